//! The part of the table that every node has, with or without Services.

use ipnet::IpNet;
use sampan_netlink::nft::build::{
    Field, TCP, clear_mark, has_mark, in_network, in_set, masquerade, new_connection, protocol,
    reject, reset, set_mark, to_local_address, verdict_map, was_redirected,
};
use sampan_netlink::nft::{
    Base, Chain, ChainType, Family, Hook, KeyType, Rule, Ruleset, Set, SetData, Verdict, priority,
};

use super::names::{
    CLUSTER_IPS, CLUSTER_IPS_CHECK, ENDPOINTS_CHECK, FIREWALL_CHECK, FIREWALL_IPS, HAIRPIN,
    MASQUERADING, NO_ENDPOINT_NODE_PORTS, NO_ENDPOINT_SERVICES, NODE_PORTS_CHECK, REJECT,
    SERVICE_IPS, SERVICE_NODE_PORTS, SERVICES,
};
use crate::settings::Node;

/// Before addresses are rewritten, so that what clients asked for can be judged.
const BEFORE_DSTNAT: i32 = priority::DSTNAT - 10;

/// (chain, type, hook, priority, only new connections, where to jump)
type BaseRow = (
    &'static str,
    ChainType,
    Hook,
    i32,
    bool,
    &'static [&'static str],
);

const BASE_CHAINS: &[BaseRow] = &[
    (
        "nat-prerouting",
        ChainType::Nat,
        Hook::Prerouting,
        priority::DSTNAT,
        false,
        &[SERVICES],
    ),
    (
        "nat-output",
        ChainType::Nat,
        Hook::Output,
        priority::DSTNAT,
        false,
        &[SERVICES],
    ),
    (
        "nat-postrouting",
        ChainType::Nat,
        Hook::Postrouting,
        priority::SRCNAT,
        false,
        &[MASQUERADING],
    ),
    (
        "filter-prerouting-pre-dnat",
        ChainType::Filter,
        Hook::Prerouting,
        BEFORE_DSTNAT,
        true,
        &[FIREWALL_CHECK],
    ),
    (
        "filter-output-pre-dnat",
        ChainType::Filter,
        Hook::Output,
        BEFORE_DSTNAT,
        true,
        &[FIREWALL_CHECK],
    ),
    (
        "filter-input",
        ChainType::Filter,
        Hook::Input,
        priority::FILTER,
        true,
        &[NODE_PORTS_CHECK, ENDPOINTS_CHECK],
    ),
    (
        "filter-forward",
        ChainType::Filter,
        Hook::Forward,
        priority::FILTER,
        true,
        &[ENDPOINTS_CHECK, CLUSTER_IPS_CHECK],
    ),
    (
        "filter-output",
        ChainType::Filter,
        Hook::Output,
        priority::FILTER,
        true,
        &[ENDPOINTS_CHECK, CLUSTER_IPS_CHECK],
    ),
];

/// The table of a node without Services.
pub fn render_base(node: &Node) -> Ruleset {
    let mut rules = Ruleset::default();
    define_sets(&mut rules, node.family);
    for (name, kind, hook, priority, only_new, targets) in BASE_CHAINS {
        let jump = |target: &&str| {
            let condition = if *only_new { new_connection() } else { vec![] };
            Rule::new()
                .with(condition)
                .verdict(Verdict::Jump((*target).to_owned()))
        };
        let chain = Chain {
            base: Some(Base::new(*kind, *hook, *priority)),
            rules: targets.iter().map(jump).collect(),
        };
        rules.chain(*name, chain);
    }
    let regular = |rules: Vec<Rule>| Chain { base: None, rules };
    rules.chain(SERVICES, regular(dispatch(node)));
    rules.chain(MASQUERADING, regular(masquerading(node)));
    rules.chain(CLUSTER_IPS_CHECK, regular(cluster_ips_check(node)));
    rules.chain(
        ENDPOINTS_CHECK,
        regular(vec![look_up(node, NO_ENDPOINT_SERVICES)]),
    );
    rules.chain(FIREWALL_CHECK, regular(vec![look_up(node, FIREWALL_IPS)]));
    let node_ports = Rule::new().with(to_node_port(node, NO_ENDPOINT_NODE_PORTS));
    rules.chain(NODE_PORTS_CHECK, regular(vec![node_ports]));
    rules.chain(REJECT, regular(refusal()));
    rules
}

fn refusal() -> Vec<Rule> {
    vec![
        Rule::new().with(protocol(TCP)).with([reset()]),
        Rule::new().with([reject()]),
    ]
}

fn define_sets(rules: &mut Ruleset, family: Family) {
    let address = KeyType::address(family == Family::Ip6);
    let destination = [address, KeyType::Protocol, KeyType::Port];
    let node_port = [KeyType::Protocol, KeyType::Port];
    for name in [SERVICE_IPS, NO_ENDPOINT_SERVICES, FIREWALL_IPS] {
        rules.set(name, Set::new(destination).mapping_to(SetData::Verdict));
    }
    for name in [SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS] {
        rules.set(name, Set::new(node_port).mapping_to(SetData::Verdict));
    }
    rules.set(CLUSTER_IPS, Set::new([address]));
    let hairpin = [address, address, KeyType::Protocol, KeyType::Port];
    rules.set(HAIRPIN, Set::new(hairpin));
}

fn destination_fields(node: &Node) -> [Field; 3] {
    [
        Field::DestinationAddress(node.family),
        Field::Protocol,
        Field::DestinationPort,
    ]
}

fn look_up(node: &Node, map: &str) -> Rule {
    Rule::new().with(verdict_map(&destination_fields(node), map))
}

/// Node ports answer on every local address but loopback, where answers could not come back.
fn to_node_port(node: &Node, map: &str) -> Vec<sampan_netlink::nft::Expr> {
    let mut conditions = to_local_address();
    conditions.extend(in_network(
        Field::DestinationAddress(node.family),
        loopback(node.family),
        false,
    ));
    conditions.extend(verdict_map(&[Field::Protocol, Field::DestinationPort], map));
    conditions
}

fn loopback(family: Family) -> IpNet {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match family {
        Family::Ip6 => IpNet::from(std::net::IpAddr::from(Ipv6Addr::LOCALHOST)),
        _ => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
    }
}

fn dispatch(node: &Node) -> Vec<Rule> {
    let mut rules = Vec::new();
    if !node.cluster_cidrs.is_empty() {
        // Somebody outside has a route to the service range through this node: the endpoint may be
        // on another one, and its answer must come back through here.
        let mut rule = Rule::new().with(in_set(
            &[Field::DestinationAddress(node.family)],
            CLUSTER_IPS,
        ));
        for cidr in &node.cluster_cidrs {
            rule = rule.with(in_network(Field::SourceAddress(node.family), *cidr, false));
        }
        let rule = rule.with(set_mark(node.masquerade_bit));
        rules.push(rule.comment("ClusterIP from outside the cluster"));
    }
    rules.push(look_up(node, SERVICE_IPS));
    rules.push(Rule::new().with(to_node_port(node, SERVICE_NODE_PORTS)));
    rules
}

fn masquerading(node: &Node) -> Vec<Rule> {
    let hairpin = [
        Field::SourceAddress(node.family),
        Field::DestinationAddress(node.family),
        Field::Protocol,
        Field::DestinationPort,
    ];
    vec![
        Rule::new()
            .with(has_mark(node.masquerade_bit))
            .with(clear_mark(node.masquerade_bit))
            .with([masquerade()]),
        Rule::new()
            .with(was_redirected())
            .with(in_set(&hairpin, HAIRPIN))
            .with([masquerade()])
            .comment("a pod that reaches itself through its Service"),
    ]
}

fn cluster_ips_check(node: &Node) -> Vec<Rule> {
    let field = Field::DestinationAddress(node.family);
    let mut rules = vec![
        Rule::new()
            .with(in_set(&[field], CLUSTER_IPS))
            .verdict(Verdict::Goto(REJECT.into()))
            .comment("a port that the Service has not"),
    ];
    for cidr in &node.service_cidrs {
        let rule = Rule::new().with(in_network(field, *cidr, true));
        rules.push(
            rule.verdict(Verdict::Drop)
                .comment("no Service has this address"),
        );
    }
    rules
}

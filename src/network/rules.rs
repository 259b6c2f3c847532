//! The node's `sampan-network` table: masquerading and host ports. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use sampan_netlink::nft::build::{
    Field, SCTP, TCP, UDP, dnat, in_network, in_set, interface, masquerade, to_local_address,
    value_map, was_redirected,
};
use sampan_netlink::nft::expr::FIRST_REGISTER;
use sampan_netlink::nft::set::Key;
use sampan_netlink::nft::{
    Base, Chain, ChainType, ElementData, Family, Hook, KeyType, Rule, Ruleset, Set, SetData,
    Verdict, priority,
};

use crate::ipam::{Allocation, PortMapping};
use crate::plan::NodePlan;
use crate::settings::{NODE_LINK, family_of};

const NODE_ADDRESSES: &str = "node-addresses";
const HOST_PORTS: &str = "host-ports";
const HOST_PORTS_BY_ADDRESS: &str = "host-ports-by-address";
const HAIRPIN: &str = "hairpin-connections";
/// Services come first where a node port and a host port have the same number.
const AFTER_SERVICES: i32 = priority::DSTNAT + 5;

/// The whole table of one family.
pub fn render<'a>(
    plan: &NodePlan,
    allocations: impl Iterator<Item = &'a Allocation>,
    family: Family,
) -> Ruleset {
    let mut rules = Ruleset::default();
    define_sets(&mut rules, family);
    let ours = |address: &&IpAddr| family_of(**address) == family;
    for address in plan.node_addresses.iter().filter(ours) {
        rules.element(NODE_ADDRESSES, Key::new().address(*address).bytes(), None);
    }
    for allocation in allocations {
        add_host_ports(&mut rules, allocation, family);
    }
    for (name, hook) in [
        ("nat-prerouting", Hook::Prerouting),
        ("nat-output", Hook::Output),
    ] {
        let base = Base::new(ChainType::Nat, hook, AFTER_SERVICES);
        rules.chain(name, chain(base, host_port_rules(family)));
    }
    let base = Base::new(ChainType::Nat, Hook::Postrouting, priority::SRCNAT);
    rules.chain("nat-postrouting", chain(base, masquerading(plan, family)));
    let base = Base::new(ChainType::Filter, Hook::Prerouting, priority::RAW);
    rules.chain("raw-prerouting", chain(base, vec![guard_loopback(family)]));
    rules
}

fn chain(base: Base, rules: Vec<Rule>) -> Chain {
    Chain {
        base: Some(base),
        rules,
    }
}

fn define_sets(rules: &mut Ruleset, family: Family) {
    let address = KeyType::address(family == Family::Ip6);
    let target = || SetData::Value(vec![address, KeyType::Port]);
    rules.set(NODE_ADDRESSES, Set::new([address]));
    let port = [KeyType::Protocol, KeyType::Port];
    rules.set(HOST_PORTS, Set::new(port).mapping_to(target()));
    let port = [address, KeyType::Protocol, KeyType::Port];
    rules.set(HOST_PORTS_BY_ADDRESS, Set::new(port).mapping_to(target()));
    let flow = [address, address, KeyType::Protocol, KeyType::Port];
    rules.set(HAIRPIN, Set::new(flow));
}

fn add_host_ports(rules: &mut Ruleset, allocation: &Allocation, family: Family) {
    let ours = |address: &&IpAddr| family_of(**address) == family;
    let Some(pod) = allocation.addresses.iter().find(ours).copied() else {
        return;
    };
    for mapping in &allocation.port_mappings {
        let Some(protocol) = protocol_number(mapping) else {
            continue;
        };
        let target = Key::new().address(pod).port(mapping.container_port).bytes();
        let data = Some(ElementData::Value(target));
        let hairpin = Key::new().address(pod).address(pod).protocol(protocol);
        match host_address(mapping) {
            Some(host) if family_of(host) != family => continue,
            Some(host) => {
                let key = Key::new().address(host).protocol(protocol);
                let key = key.port(mapping.host_port).bytes();
                rules.element(HOST_PORTS_BY_ADDRESS, key, data);
            }
            None => {
                let key = Key::new().protocol(protocol).port(mapping.host_port);
                rules.element(HOST_PORTS, key.bytes(), data);
            }
        }
        rules.element(HAIRPIN, hairpin.port(mapping.container_port).bytes(), None);
    }
}

pub(crate) fn protocol_number(mapping: &PortMapping) -> Option<u8> {
    match mapping.protocol.to_ascii_lowercase().as_str() {
        "tcp" => Some(TCP),
        "udp" => Some(UDP),
        "sctp" => Some(SCTP),
        _ => None,
    }
}

/// The one address a port is bound to, if it is.
fn host_address(mapping: &PortMapping) -> Option<IpAddr> {
    let address: IpAddr = mapping.host_ip.parse().ok()?;
    (!address.is_unspecified()).then_some(address)
}

/// A port bound to one address is more particular, so it comes first.
fn host_port_rules(family: Family) -> Vec<Rule> {
    let destination = Field::DestinationAddress(family);
    let by_address = [destination, Field::Protocol, Field::DestinationPort];
    vec![
        Rule::new()
            .with(value_map(&by_address, HOST_PORTS_BY_ADDRESS))
            .with([dnat(family, FIRST_REGISTER)]),
        Rule::new()
            .with(to_local_address())
            .with(value_map(
                &[Field::Protocol, Field::DestinationPort],
                HOST_PORTS,
            ))
            .with([dnat(family, FIRST_REGISTER)]),
    ]
}

fn masquerading(plan: &NodePlan, family: Family) -> Vec<Rule> {
    let source = Field::SourceAddress(family);
    let destination = Field::DestinationAddress(family);
    let flow = [source, destination, Field::Protocol, Field::DestinationPort];
    let mut rules = vec![
        Rule::new()
            .with(was_redirected())
            .with(in_set(&flow, HAIRPIN))
            .with([masquerade()])
            .comment("a pod that reaches itself through its host port"),
        Rule::new()
            .with(interface(Field::OutputInterface, "lo", false))
            .with(in_network(source, loopback(family), true))
            .with(was_redirected())
            .with([masquerade()])
            .comment("a host port reached through loopback"),
        Rule::new()
            .with(in_set(&[destination], NODE_ADDRESSES))
            .verdict(Verdict::Return)
            .comment("nodes see pods as they are"),
    ];
    let ours = |network: &&IpNet| family_of(network.addr()) == family;
    for own in plan.pod_cidrs.iter().filter(ours) {
        let mut rule = Rule::new().with(in_network(source, *own, true));
        let inside = plan
            .cluster_cidrs
            .iter()
            .chain(&plan.pod_cidrs)
            .filter(ours);
        for cidr in inside.copied().chain([multicast(family)]) {
            rule = rule.with(in_network(destination, cidr, false));
        }
        for link in ["lo", NODE_LINK] {
            rule = rule.with(interface(Field::OutputInterface, link, false));
        }
        rules.push(rule.with([masquerade()]).comment("pods to the outside"));
    }
    rules
}

/// Host ports on loopback need `route_localnet` on the pods' links; this keeps anybody from using
/// that to reach what listens on loopback only.
fn guard_loopback(family: Family) -> Rule {
    Rule::new()
        .with(interface(Field::InputInterface, "lo", false))
        .with(in_network(
            Field::DestinationAddress(family),
            loopback(family),
            true,
        ))
        .verdict(Verdict::Drop)
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::Ip6 => IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)),
        _ => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
    }
}

fn multicast(family: Family) -> IpNet {
    match family {
        Family::Ip6 => IpNet::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
        _ => IpNet::new_assert(Ipv4Addr::new(224, 0, 0, 0).into(), 4),
    }
}

//! One Service's chains and map elements.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_netlink::nft::build::{
    Field, dnat, forget, from_local_address, in_anonymous, in_network, pick_random, remember,
    set_mark,
};
use sampan_netlink::nft::expr::FIRST_REGISTER;
use sampan_netlink::nft::set::Key;
use sampan_netlink::nft::{
    AnonymousSet, Chain, Element, ElementData, Expr, Family, KeyType, Rule, Ruleset, Set, SetData,
    SetRef, Verdict,
};

use super::names::{
    self, CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, NO_ENDPOINT_NODE_PORTS, NO_ENDPOINT_SERVICES, REJECT,
    SERVICE_IPS, SERVICE_NODE_PORTS,
};
use crate::model::{self, Endpoint, ServicePort};
use crate::settings::Node;
use crate::topology::{self, Choice};

/// Room in an affinity map; when it is full, new clients are spread without being remembered.
const AFFINITY_CLIENTS: u32 = 65535;

/// What this Service adds to the table: nothing if it is not ours to serve.
pub fn render_service(service: &Service, slices: &[Arc<EndpointSlice>], node: &Node) -> Ruleset {
    let mut rules = Ruleset::default();
    for port in model::service_ports(service, node.family) {
        let endpoints = model::endpoints(slices, &port, node.family, &node.name);
        let choice = topology::choose(&endpoints, &port, &node.name, node.zone.as_deref());
        PortRenderer {
            node,
            port: &port,
            choice: &choice,
            rules: &mut rules,
        }
        .render();
    }
    rules
}

struct PortRenderer<'a> {
    node: &'a Node,
    port: &'a ServicePort,
    choice: &'a Choice,
    rules: &'a mut Ruleset,
}

impl PortRenderer<'_> {
    fn render(&mut self) {
        self.endpoint_chain(&names::cluster_chain(self.port), &self.choice.cluster);
        self.endpoint_chain(&names::local_chain(self.port), &self.choice.local);
        self.hairpin();
        self.internal();
        if self.port.is_external() {
            self.external();
        }
    }

    /// The ClusterIP.
    fn internal(&mut self) {
        let ip = self.port.cluster_ip;
        self.rules.element(CLUSTER_IPS, address_key(ip), None);
        let key = self.destination(ip);
        match self.policy_chain(self.port.internal_local) {
            Some(chain) => self.verdict(SERVICE_IPS, key, Verdict::Goto(chain)),
            None => self.verdict(NO_ENDPOINT_SERVICES, key, self.refusal()),
        }
    }

    /// Node port, external and load balancer addresses.
    fn external(&mut self) {
        let chain = names::external_chain(self.port);
        let served = self.policy_chain(self.port.external_local).is_some();
        if self.choice.any {
            self.external_chain(&chain);
        }
        let own = self.port.external_ips.iter();
        let addresses: Vec<_> = own.chain(&self.port.load_balancer_ips).copied().collect();
        for ip in addresses {
            let key = self.destination(ip);
            self.reach(SERVICE_IPS, NO_ENDPOINT_SERVICES, key, &chain, served);
        }
        if let Some(node_port) = self.port.node_port {
            let key = Key::new().protocol(self.port.protocol).port(node_port);
            let (map, refusals) = (SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS);
            self.reach(map, refusals, key.bytes(), &chain, served);
        }
        self.firewall();
    }

    /// Even where outsiders are refused, the external chain lets this node's own pods through.
    fn reach(&mut self, map: &str, refusals: &str, key: Vec<u8>, chain: &str, served: bool) {
        if self.choice.any {
            let goto = Verdict::Goto(chain.to_owned());
            self.verdict(map, key.clone(), goto);
        }
        if !served {
            self.verdict(refusals, key, self.refusal());
        }
    }

    /// The chain for a traffic policy, if it has endpoints.
    fn policy_chain(&self, local: bool) -> Option<String> {
        let (chain, endpoints) = if local {
            (names::local_chain(self.port), &self.choice.local)
        } else {
            (names::cluster_chain(self.port), &self.choice.cluster)
        };
        (!endpoints.is_empty()).then_some(chain)
    }

    /// Nobody serves: say so. Others do, but policy `Local` forbids to go there: silence, so that a
    /// load balancer tries another node.
    fn refusal(&self) -> Verdict {
        if self.choice.any {
            Verdict::Drop
        } else {
            Verdict::Goto(REJECT.into())
        }
    }

    fn external_chain(&mut self, name: &str) {
        let mark = || set_mark(self.node.masquerade_bit);
        let mut rules = Vec::new();
        if self.port.external_local {
            rules.extend(self.short_circuit());
            if let Some(chain) = self.policy_chain(true) {
                rules.push(Rule::new().verdict(Verdict::Goto(chain)));
            }
        } else if let Some(chain) = self.policy_chain(false) {
            // The endpoint may be on another node: its answer must come back through this one.
            rules.push(Rule::new().with(mark()).verdict(Verdict::Goto(chain)));
        }
        self.rules.chain(name, Chain { base: None, rules });
    }

    /// Policy `Local` is about clients outside: pods and processes here use all endpoints.
    fn short_circuit(&self) -> Vec<Rule> {
        let Some(chain) = self.policy_chain(false) else {
            return Vec::new();
        };
        let source = Field::SourceAddress(self.node.family);
        let from_pods = |cidr: &IpNet| {
            let rule = Rule::new().with(in_network(source, *cidr, true));
            rule.verdict(Verdict::Goto(chain.clone()))
        };
        let mut rules: Vec<_> = self.node.cluster_cidrs.iter().map(from_pods).collect();
        let from_here = Rule::new()
            .with(from_local_address())
            .with(set_mark(self.node.masquerade_bit));
        rules.push(from_here.verdict(Verdict::Goto(chain)));
        rules
    }

    /// Only the listed networks may come in through the load balancer's addresses.
    fn firewall(&mut self) {
        if self.port.source_ranges.is_empty() || self.port.load_balancer_ips.is_empty() {
            return;
        }
        let name = names::firewall_chain(self.port);
        for ip in self.port.load_balancer_ips.clone() {
            let key = self.destination(ip);
            self.verdict(FIREWALL_IPS, key, Verdict::Goto(name.clone()));
        }
        let mut allowed = self.port.source_ranges.clone();
        // This node may come in: then also under the load balancer's address, should it hold that.
        let has_us = |range: &IpNet| self.node.addresses.iter().any(|ip| range.contains(ip));
        if allowed.iter().any(has_us) {
            allowed.extend(self.port.load_balancer_ips.iter().copied().map(IpNet::from));
        }
        let source = Field::SourceAddress(self.node.family);
        let pass = |range: IpNet| {
            let rule = Rule::new().with(in_network(source, range, true));
            rule.verdict(Verdict::Return)
        };
        let mut rules: Vec<_> = allowed.into_iter().map(pass).collect();
        rules.push(Rule::new().verdict(Verdict::Drop));
        self.rules.chain(name, Chain { base: None, rules });
    }

    /// A pod may be sent to itself; it would take its own answer for a stranger's.
    fn hairpin(&mut self) {
        let here: Vec<_> = self
            .choice
            .reachable()
            .filter(|e| e.local)
            .cloned()
            .collect();
        for endpoint in here {
            let key = Key::new()
                .address(endpoint.address)
                .address(endpoint.address)
                .protocol(self.port.protocol)
                .port(endpoint.port);
            self.rules.element(HAIRPIN, key.bytes(), None);
        }
    }

    fn endpoint_chain(&mut self, name: &str, endpoints: &[Endpoint]) {
        if endpoints.is_empty() {
            return;
        }
        let family = self.node.family;
        let targets: Vec<_> = endpoints.iter().map(target).collect();
        let rules = match self.port.affinity {
            Some(timeout) => {
                let map = names::affinity_map(name);
                self.rules.set(map.clone(), affinity_set(family));
                affine_rules(family, &map, &targets, timeout)
            }
            None => vec![
                Rule::new()
                    .with(pick_random(&targets, &target_types(family), FIRST_REGISTER))
                    .with([dnat(family, FIRST_REGISTER)]),
            ],
        };
        self.rules.chain(name, Chain { base: None, rules });
    }

    fn destination(&self, ip: IpAddr) -> Vec<u8> {
        let key = Key::new().address(ip).protocol(self.port.protocol);
        key.port(self.port.port).bytes()
    }

    fn verdict(&mut self, map: &str, key: Vec<u8>, verdict: Verdict) {
        self.rules
            .element(map, key, Some(ElementData::Verdict(verdict)));
    }
}

fn address_key(ip: IpAddr) -> Vec<u8> {
    Key::new().address(ip).bytes()
}

fn target(endpoint: &Endpoint) -> Vec<u8> {
    Key::new()
        .address(endpoint.address)
        .port(endpoint.port)
        .bytes()
}

fn target_types(family: Family) -> [KeyType; 2] {
    [KeyType::address(family == Family::Ip6), KeyType::Port]
}

fn affinity_set(family: Family) -> Set {
    let address = KeyType::address(family == Family::Ip6);
    let target = SetData::Value(target_types(family).to_vec());
    Set::new([address])
        .mapping_to(target)
        .dynamic(AFFINITY_CLIENTS)
}

/// First rule: a client that is remembered, and whose endpoint still is one. Second rule: any other
/// client gets a random endpoint; what was remembered is deleted first, as an update would only
/// renew it.
fn affine_rules(family: Family, map: &str, targets: &[Vec<u8>], timeout: Duration) -> Vec<Rule> {
    let client = FIRST_REGISTER;
    let chosen = FIRST_REGISTER + 4;
    let load = || Field::SourceAddress(family).load(client);
    let element = |key: &Vec<u8>| Element {
        key: key.clone(),
        data: None,
    };
    let current = AnonymousSet {
        key: target_types(family).to_vec(),
        data: None,
        elements: targets.iter().map(element).collect(),
    };
    let recall = Expr::Lookup {
        set: SetRef::Named(map.to_owned()),
        from: client,
        to: Some(chosen),
        invert: false,
    };
    let known = Rule::new().with([
        load(),
        recall,
        in_anonymous(chosen, current),
        remember(map, client, Some(chosen), timeout),
        dnat(family, chosen),
    ]);
    let other = Rule::new()
        .with([load()])
        .with(pick_random(targets, &target_types(family), chosen))
        .with([
            forget(map, client, Some(chosen)),
            remember(map, client, Some(chosen), timeout),
            dnat(family, chosen),
        ]);
    vec![known, other]
}

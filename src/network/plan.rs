//! What a node's network must look like, from the cluster's nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};

use crate::ipam;
use crate::settings::{Settings, family_of};

/// What a node says of itself, as far as routes depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    pub name: String,
    pub pod_cidrs: Vec<IpNet>,
    pub addresses: Vec<IpAddr>,
}

impl NodeFacts {
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let many = spec.and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
        let one = spec.and_then(|s| s.pod_cidr.clone());
        let texts: Vec<_> = if many.is_empty() {
            one.into_iter().collect()
        } else {
            many
        };
        let status = node.status.as_ref();
        let addresses = status.and_then(|s| s.addresses.as_ref());
        let internal = |a: &&k8s_openapi::api::core::v1::NodeAddress| a.type_ == "InternalIP";
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            pod_cidrs: texts.iter().filter_map(|t| t.parse().ok()).collect(),
            addresses: addresses
                .into_iter()
                .flatten()
                .filter(internal)
                .filter_map(|a| a.address.parse().ok())
                .collect(),
        }
    }
}

/// The wanted state of this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePlan {
    /// This node's own ranges.
    pub pod_cidrs: Vec<IpNet>,
    /// The first address of each: the node's own among its pods.
    pub gateways: Vec<IpAddr>,
    /// Other nodes' ranges, and through which address each is reached.
    pub peers: BTreeMap<IpNet, IpAddr>,
    /// Addresses of all nodes: pods reach them under their own address.
    pub node_addresses: BTreeSet<IpAddr>,
    pub service_cidrs: Vec<IpNet>,
    pub cluster_cidrs: Vec<IpNet>,
}

impl NodePlan {
    pub fn gateway(&self, is_ipv6: bool) -> Option<IpAddr> {
        self.gateways
            .iter()
            .copied()
            .find(|g| g.is_ipv6() == is_ipv6)
    }
}

/// `None` until this node has been given a pod range.
pub fn plan_node(settings: &Settings, nodes: &[NodeFacts]) -> Option<NodePlan> {
    let own = nodes.iter().find(|n| n.name == settings.node_name)?;
    let gateways: Vec<_> = own
        .pod_cidrs
        .iter()
        .filter_map(|c| ipam::offset(*c, 1))
        .collect();
    if gateways.is_empty() {
        return None;
    }
    let mut peers = BTreeMap::new();
    let mut node_addresses: BTreeSet<_> = settings.node_ips.iter().copied().collect();
    for node in nodes {
        node_addresses.extend(node.addresses.iter().copied());
        if node.name != own.name {
            peers.extend(routes_to(node, &own.pod_cidrs, &settings.node_ips));
        }
    }
    Some(NodePlan {
        pod_cidrs: own.pod_cidrs.clone(),
        gateways,
        peers,
        node_addresses,
        service_cidrs: settings.service_cidrs.clone(),
        cluster_cidrs: settings.cluster_cidrs.clone(),
    })
}

/// A node that claims our range or our address is misconfigured or a leftover: a route to it would
/// cut off our own pods.
fn routes_to(node: &NodeFacts, own: &[IpNet], own_addresses: &[IpAddr]) -> Vec<(IpNet, IpAddr)> {
    let via = |cidr: &IpNet| {
        let same_family = |a: &&IpAddr| family_of(**a) == family_of(cidr.addr());
        node.addresses.iter().find(same_family).copied()
    };
    let overlaps = |cidr: &IpNet| own.iter().any(|o| o.contains(cidr) || cidr.contains(o));
    node.pod_cidrs
        .iter()
        .filter(|cidr| !overlaps(cidr))
        .filter_map(|cidr| Some((cidr.trunc(), via(cidr)?)))
        .filter(|(_, via)| !own_addresses.contains(via))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn settings() -> Settings {
        let mut settings = Settings::new("/d/agent".as_ref(), "here", "/bin/sampan".into());
        settings.node_ips = vec!["192.0.2.1".parse().unwrap()];
        settings
    }

    fn node(name: &str, cidr: &str, address: &str) -> NodeFacts {
        let node = json!({
            "metadata": {"name": name}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
            "status": {"addresses": [{"type": "Hostname", "address": name},
                                     {"type": "InternalIP", "address": address}]}
        });
        NodeFacts::of(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn other_nodes_are_reached_through_their_addresses() {
        let nodes = [
            node("here", "10.42.0.0/24", "192.0.2.1"),
            node("there", "10.42.1.0/24", "192.0.2.2"),
            node("new", "", "192.0.2.3"),
        ];
        let plan = plan_node(&settings(), &nodes).unwrap();
        assert_eq!(plan.gateways, ["10.42.0.1".parse::<IpAddr>().unwrap()]);
        let route = (
            "10.42.1.0/24".parse().unwrap(),
            "192.0.2.2".parse().unwrap(),
        );
        assert_eq!(plan.peers, BTreeMap::from([route]));
        assert_eq!(plan.node_addresses.len(), 3);
    }

    #[test]
    fn without_a_range_there_is_no_plan() {
        assert_eq!(plan_node(&settings(), &[]), None);
        assert_eq!(
            plan_node(&settings(), &[node("here", "", "192.0.2.1")]),
            None
        );
    }

    #[test]
    fn a_node_that_claims_what_is_ours_gets_no_route() {
        let nodes = [
            node("here", "10.42.0.0/24", "192.0.2.1"),
            node("thief", "10.42.0.0/24", "192.0.2.2"),
            node("broad", "10.42.0.0/16", "192.0.2.3"),
            node("ghost", "10.42.3.0/24", "192.0.2.1"),
        ];
        assert_eq!(
            plan_node(&settings(), &nodes).unwrap().peers,
            BTreeMap::new()
        );
    }
}

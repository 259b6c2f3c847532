//! What the proxy is told about its node and cluster.

use std::net::IpAddr;

use ipnet::IpNet;
use sampan_netlink::nft::{Family, Table};

/// Our bit of the packet mark: "masquerade this". Not among those that kubelet, kube-proxy,
/// Calico, Cilium or Tailscale are known to use.
pub const MASQUERADE_BIT: u32 = 1 << 21;
pub const TABLE_NAME: &str = "sampan-proxy";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub node_name: String,
    pub node_ips: Vec<IpAddr>,
    /// Where pods have their addresses; empty: not known, nothing counts as a pod.
    pub cluster_cidrs: Vec<IpNet>,
    pub service_cidrs: Vec<IpNet>,
    pub table_name: String,
    pub masquerade_bit: u32,
}

impl Settings {
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            node_ips: Vec::new(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            table_name: TABLE_NAME.into(),
            masquerade_bit: MASQUERADE_BIT,
        }
    }

    /// The families that services have addresses of.
    pub fn families(&self) -> Vec<Family> {
        let has = |ipv6: bool| {
            self.service_cidrs
                .iter()
                .any(|c| c.addr().is_ipv6() == ipv6)
        };
        let mut families = Vec::new();
        if has(false) || !has(true) {
            families.push(Family::Ip);
        }
        if has(true) {
            families.push(Family::Ip6);
        }
        families
    }

    pub fn table(&self, family: Family) -> Table {
        Table::new(family, self.table_name.clone())
    }

    /// What a rule set of one family depends on, beside Services and their endpoints.
    pub fn node(&self, family: Family, zone: Option<String>) -> Node {
        let ours = |address: IpAddr| address.is_ipv6() == (family == Family::Ip6);
        let networks = |all: &[IpNet]| all.iter().copied().filter(|n| ours(n.addr())).collect();
        Node {
            name: self.node_name.clone(),
            zone,
            family,
            addresses: self
                .node_ips
                .iter()
                .copied()
                .filter(|ip| ours(*ip))
                .collect(),
            cluster_cidrs: networks(&self.cluster_cidrs),
            service_cidrs: networks(&self.service_cidrs),
            masquerade_bit: self.masquerade_bit,
        }
    }
}

/// One node as seen by one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub zone: Option<String>,
    pub family: Family,
    pub addresses: Vec<IpAddr>,
    pub cluster_cidrs: Vec<IpNet>,
    pub service_cidrs: Vec<IpNet>,
    pub masquerade_bit: u32,
}

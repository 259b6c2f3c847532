//! What the pod network is told about its node and cluster, and where it keeps things.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use sampan_netlink::nft::{Family, Table};

pub const TABLE_NAME: &str = "sampan-network";
/// The link that holds the node's address in its pod range and the route for services.
pub const NODE_LINK: &str = "sampan0";
/// Its other end, in the same namespace: not every kernel has a dummy device.
pub const NODE_LINK_PEER: &str = "sampan0p";
/// Marks our routes, so that others' are never touched (`rtm_protocol`; no well-known number).
pub const ROUTE_PROTOCOL: u8 = 83;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub paths: Paths,
    pub node_name: String,
    pub node_ips: Vec<IpAddr>,
    pub cluster_cidrs: Vec<IpNet>,
    pub service_cidrs: Vec<IpNet>,
    /// What the runtime is to run as CNI plugin: our own executable.
    pub executable: PathBuf,
    /// Of pods' links; `None`: that of the link which holds the node's address.
    pub mtu: Option<u32>,
}

/// Where things are, below the agent's data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// One file per address given out, and what the node was told last.
    pub state: PathBuf,
    /// Where the runtime looks for plugins.
    pub cni_bin: PathBuf,
    /// Where the runtime looks for network configurations.
    pub cni_conf: PathBuf,
}

impl Paths {
    /// `agent_dir` is `<data-dir>/agent`.
    pub fn new(agent_dir: &Path) -> Self {
        Self {
            state: agent_dir.join("network"),
            cni_bin: agent_dir.join("cni/bin"),
            cni_conf: agent_dir.join("cni/conf"),
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.state.join("cni.sock")
    }

    pub fn addresses(&self) -> PathBuf {
        self.state.join("addresses")
    }

    /// The node's last known pod range, for a start without the API.
    pub fn last_node(&self) -> PathBuf {
        self.state.join("node.json")
    }
}

impl Settings {
    pub fn new(agent_dir: &Path, node_name: impl Into<String>, executable: PathBuf) -> Self {
        Self {
            paths: Paths::new(agent_dir),
            node_name: node_name.into(),
            node_ips: Vec::new(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            executable,
            mtu: None,
        }
    }

    /// The families that pods have addresses of.
    pub fn families(&self) -> Vec<Family> {
        let has = |ipv6: bool| {
            self.cluster_cidrs
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
}

pub fn table(family: Family) -> Table {
    Table::new(family, TABLE_NAME)
}

pub fn family_of(address: IpAddr) -> Family {
    if address.is_ipv6() {
        Family::Ip6
    } else {
        Family::Ip
    }
}

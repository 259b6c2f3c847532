//! What the options mean once they are resolved.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

/// Settings of one process. Built once by [`crate::resolve`], then only read.
#[derive(Clone, Default)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub token: Option<String>,
    pub token_file: Option<PathBuf>,
    /// Set on an agent, and on a server that joins another one.
    pub server: Option<String>,
    pub bind_addresses: Vec<IpAddr>,
    pub https_listen_port: u16,
    pub advertise_addresses: Vec<IpAddr>,
    pub tls_sans: Vec<String>,
    pub certificate_lifetime: Duration,
    pub node_name: Option<String>,
    pub node_ips: Vec<IpAddr>,
    pub node_labels: Vec<(String, String)>,
    pub node_taints: Vec<Taint>,
    pub cluster_cidrs: Vec<IpNet>,
    pub service_cidrs: Vec<IpNet>,
    pub service_node_ports: (u16, u16),
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub write_kubeconfig: PathBuf,
    pub write_kubeconfig_mode: u32,
    pub disable_agent: bool,
    pub disable_scheduler: bool,
    pub disable_controller_manager: bool,
    pub disable: Vec<Component>,
    pub container_runtime_endpoint: Option<PathBuf>,
    pub private_registry: PathBuf,
    pub pause_image: Option<String>,
    pub resolv_conf: Option<PathBuf>,
    pub kubelet_args: Vec<(String, String)>,
    pub kube_apiserver_args: Vec<(String, String)>,
    pub debug: bool,
}

/// Lengths of the prefixes that a node gets of the cluster's ranges.
pub const NODE_PREFIX_V4: u8 = 24;
pub const NODE_PREFIX_V6: u8 = 64;

/// A part that `--disable` switches off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    Dns,
    KubeProxy,
    Network,
}

impl Component {
    pub const ALL: [(&'static str, Self); 3] = [
        ("dns", Self::Dns),
        ("kube-proxy", Self::KubeProxy),
        ("network", Self::Network),
    ];
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// Only what tells one process from another: the token must not get into logs.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("data_dir", &self.data_dir)
            .field("server", &self.server)
            .field("node_name", &self.node_name)
            .field("has_token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

impl Settings {
    pub fn is_disabled(&self, component: Component) -> bool {
        self.disable.contains(&component)
    }

    pub fn server_dir(&self) -> PathBuf {
        self.data_dir.join("server")
    }

    pub fn agent_dir(&self) -> PathBuf {
        self.data_dir.join("agent")
    }

    /// The cluster's DNS address: as given, else the tenth address of the first service range.
    pub fn cluster_dns_address(&self) -> Option<IpAddr> {
        self.cluster_dns
            .first()
            .copied()
            .or_else(|| nth_address(self.service_cidrs.first()?, 10))
    }

    /// The address of the `kubernetes` Service: the first one of the first service range.
    pub fn kubernetes_service_address(&self) -> Option<IpAddr> {
        nth_address(self.service_cidrs.first()?, 1)
    }

    /// Where clients on this machine reach the API.
    pub fn local_url(&self) -> String {
        let bound = self.bind_addresses.first().copied();
        let address = bound
            .filter(|address| !address.is_unspecified())
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        format!(
            "https://{}",
            SocketAddr::new(address, self.https_listen_port)
        )
    }

    /// The last value given for an argument of the API server.
    pub fn apiserver_arg(&self, name: &str) -> Option<&str> {
        last_value(&self.kube_apiserver_args, name)
    }
}

fn last_value<'a>(arguments: &'a [(String, String)], name: &str) -> Option<&'a str> {
    arguments
        .iter()
        .rev()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

/// The address `index` places above the network address, if the range holds it.
pub fn nth_address(range: &IpNet, index: u32) -> Option<IpAddr> {
    let address = match range.network() {
        IpAddr::V4(network) => IpAddr::V4(u32::from(network).checked_add(index)?.into()),
        IpAddr::V6(network) => IpAddr::V6(u128::from(network).checked_add(index.into())?.into()),
    };
    range.contains(&address).then_some(address)
}

/// Where a relative `path` given on the command line lies; kept apart so that resolving does no I/O.
pub fn absolute(path: &Path, working_directory: &Path) -> PathBuf {
    if path.is_absolute() {
        path.to_owned()
    } else {
        working_directory.join(path)
    }
}

//! What the kubelet is told at start.

use k8s_openapi::api::core::v1::Taint;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, Clone)]
pub struct Settings {
    pub node_name: String,
    /// What the machine calls itself.
    pub hostname: String,
    /// The primary address first.
    pub node_ips: Vec<IpAddr>,
    /// `<data-dir>/agent`.
    pub agent_dir: PathBuf,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// The resolv.conf whose servers pods use that do not use the cluster's.
    pub resolv_conf: Option<PathBuf>,
    pub max_pods: u32,
    /// Where the kubelet's server listens.
    pub port: u16,
    /// What the node reports as its kubelet's version.
    pub version: String,
    /// In Go's words (`amd64`).
    pub architecture: &'static str,
}

impl Settings {
    pub const DEFAULT_MAX_PODS: u32 = 110;
    pub const DEFAULT_PORT: u16 = 10250;

    /// Everything that has a default has it.
    pub fn new(node_name: impl Into<String>, agent_dir: impl Into<PathBuf>) -> Self {
        let node_name = node_name.into();
        Self {
            hostname: node_name.clone(),
            node_name,
            node_ips: Vec::new(),
            agent_dir: agent_dir.into(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            max_pods: Self::DEFAULT_MAX_PODS,
            port: Self::DEFAULT_PORT,
            version: concat!("v1.36.2+sampan", env!("CARGO_PKG_VERSION")).to_owned(),
            architecture: architecture(),
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self::new("n1", "/nowhere")
    }
}

/// The machine's architecture as Go calls it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

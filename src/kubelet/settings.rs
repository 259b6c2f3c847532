//! What the kubelet is told at start.

use crate::qos::Amounts;
use k8s_openapi::api::core::v1::Taint;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Below these the node is under pressure, and what is below is not for pods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floors {
    pub memory: Floor,
    pub disk: Floor,
    pub inodes: Floor,
}

/// So much has to stay free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Floor {
    Bytes(u64),
    Percent(f64),
}

impl Floor {
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // Figures of disks are far below what a float holds exactly.
            Self::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }
}

/// When images that nobody uses are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGc {
    /// Above this use of the disk it begins,
    pub high_percent: u8,
    /// and below this it ends.
    pub low_percent: u8,
    /// Younger images stay.
    pub minimum_age: Duration,
}

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
    /// Manifests of pods that run here without the API's asking.
    pub static_pods: PathBuf,
    /// A container's log is put aside when it is larger than this,
    pub log_max_bytes: u64,
    /// and this many files are kept, the one being written included.
    pub log_max_files: usize,
    /// Kernel parameters that pods may set beside the safe ones; `net.*` is a prefix.
    pub unsafe_sysctls: Vec<String>,
    /// What of the machine is not for pods.
    pub reserved: Amounts,
    pub parallel_pulls: usize,
    /// How often the node is looked at.
    pub look_interval: Duration,
    pub image_gc: ImageGc,
    /// The sandbox image, if it is not the built-in one.
    pub pause_image: Option<String>,
    pub floors: Floors,
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
        let agent_dir = agent_dir.into();
        Self {
            hostname: node_name.clone(),
            node_name,
            node_ips: Vec::new(),
            static_pods: agent_dir.join("pod-manifests"),
            agent_dir,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            max_pods: Self::DEFAULT_MAX_PODS,
            log_max_bytes: 10 << 20,
            log_max_files: 5,
            unsafe_sysctls: Vec::new(),
            reserved: Amounts::new(),
            parallel_pulls: 3,
            look_interval: Duration::from_secs(10),
            image_gc: ImageGc {
                high_percent: 85,
                low_percent: 80,
                minimum_age: Duration::from_secs(120),
            },
            pause_image: None,
            floors: Floors {
                memory: Floor::Bytes(100 << 20),
                disk: Floor::Percent(10.0),
                inodes: Floor::Percent(5.0),
            },
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

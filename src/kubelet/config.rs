//! What the runtime is told about a pod: pure renderings of sandbox and container configurations.

pub mod container;
pub mod labels;
pub mod sandbox;
pub mod security;

use sampan_cri::runtime::v1::{NamespaceMode, NamespaceOption};

use crate::pod;
use k8s_openapi::api::core::v1::Pod;

/// Which namespaces a pod shares with the node.
pub(crate) fn namespaces(pod: &Pod) -> NamespaceOption {
    let spec = pod::spec(pod);
    let node_or = |is_node: Option<bool>, other: NamespaceMode| {
        if is_node == Some(true) {
            NamespaceMode::Node
        } else {
            other
        }
    };
    let pid = if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    NamespaceOption {
        network: node_or(spec.host_network, NamespaceMode::Pod) as i32,
        pid: node_or(spec.host_pid, pid) as i32,
        ipc: node_or(spec.host_ipc, NamespaceMode::Pod) as i32,
        ..NamespaceOption::default()
    }
}

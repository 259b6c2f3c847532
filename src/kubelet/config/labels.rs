//! Labels and annotations by which a later run of the agent recognizes its containers.
//!
//! The names are upstream's, so that other tools that read them from the runtime work as well.

use crate::pod;
use k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::HashMap;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

type Map = HashMap<String, String>;

pub fn pod_labels(pod: &Pod) -> Map {
    let own = pod.metadata.labels.clone().unwrap_or_default();
    let mut labels: Map = own.into_iter().collect();
    labels.extend(identity(pod));
    labels
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.to_owned(), pod::name(pod).to_owned()),
        (POD_NAMESPACE.to_owned(), pod::namespace(pod).to_owned()),
        (POD_UID.to_owned(), pod::uid(pod).to_owned()),
    ]
}

pub fn container_labels(pod: &Pod, container: &Container) -> Map {
    let mut labels = Map::from(identity(pod));
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

pub fn container_annotations(pod: &Pod, container: &Container, restart_count: u32) -> Map {
    let mut all = Map::new();
    let mut set = |name: &str, value: String| {
        all.insert(name.to_owned(), value);
    };
    set(HASH, format!("{:x}", pod::container_hash(container)));
    set(RESTART_COUNT, restart_count.to_string());
    let path = container.termination_message_path.clone();
    set(MESSAGE_PATH, path.unwrap_or_default());
    let policy = container.termination_message_policy.clone();
    set(MESSAGE_POLICY, policy.unwrap_or_default());
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        set(DELETION_GRACE, grace.to_string());
    }
    if let Some(grace) = pod::spec(pod).termination_grace_period_seconds {
        set(TERMINATION_GRACE, grace.to_string());
    }
    let pre_stop = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.pre_stop.as_ref());
    if let Some(text) = pre_stop.and_then(|hook| serde_json::to_string(hook).ok()) {
        set(PRE_STOP, text);
    }
    let ports = container.ports.as_ref().filter(|p| !p.is_empty());
    if let Some(text) = ports.and_then(|ports| serde_json::to_string(ports).ok()) {
        set(PORTS, text);
    }
    all
}

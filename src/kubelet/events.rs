//! References that events about parts of a pod carry.

use crate::pod;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use sampan_client::recorder::reference_to;

/// The container within its pod, as `spec.containers{name}`.
pub fn container_reference(pod: &Pod, container: &str) -> ObjectReference {
    let kind = pod::find_container(pod, container).map(|(kind, _)| kind);
    let list = match kind {
        Some(pod::ContainerKind::Init) => "initContainers",
        Some(pod::ContainerKind::Ephemeral) => "ephemeralContainers",
        _ => "containers",
    };
    ObjectReference {
        field_path: Some(format!("spec.{list}{{{container}}}")),
        ..reference_to(pod)
    }
}

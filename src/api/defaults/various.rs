//! RBAC, scheduling and devices.

use serde_json::Value;

use super::Rule;
use crate::meta::{at_mut, default, default_text, integer, text};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("rbac.v1.ClusterRoleBinding", binding),
    ("rbac.v1.RoleBinding", binding),
    ("rbac.v1.Subject", subject),
    ("scheduling.v1.PriorityClass", priority_class),
    ("resource.v1.ExactDeviceRequest", device_request),
    ("resource.v1.DeviceSubRequest", device_request),
];

const RBAC: &str = "rbac.authorization.k8s.io";

fn binding(binding: &mut Value) {
    if let Some(role) = at_mut(binding, &["roleRef"]) {
        default_text(role, "apiGroup", RBAC);
    }
}

fn subject(subject: &mut Value) {
    if matches!(text(subject, &["kind"]), "User" | "Group") {
        default_text(subject, "apiGroup", RBAC);
    }
}

fn priority_class(class: &mut Value) {
    default(class, "preemptionPolicy", "PreemptLowerPriority");
}

fn device_request(request: &mut Value) {
    default_text(request, "allocationMode", "ExactCount");
    let exact = text(request, &["allocationMode"]) == "ExactCount";
    if exact && integer(request, &["count"]).unwrap_or(0) == 0 {
        request["count"] = Value::from(1);
    }
}

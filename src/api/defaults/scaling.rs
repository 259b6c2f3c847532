//! Horizontal pod autoscalers, both versions.

use serde_json::{Value, json};

use super::Rule;
use crate::meta::{default, get, items};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("autoscaling.v1.HorizontalPodAutoscalerSpec", v1),
    ("autoscaling.v2.HorizontalPodAutoscalerSpec", v2),
];

fn v1(spec: &mut Value) {
    default(spec, "minReplicas", 1);
}

fn v2(spec: &mut Value) {
    default(spec, "minReplicas", 1);
    if items(spec, &["metrics"]).is_empty() {
        spec["metrics"] = json!([cpu_metric()]);
    }
    if let Some(behavior) = spec.get_mut("behavior").filter(|one| one.is_object()) {
        complete(
            behavior,
            "scaleUp",
            &json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 15},
                {"type": "Percent", "value": 100, "periodSeconds": 15}]}),
        );
        complete(
            behavior,
            "scaleDown",
            &json!({"selectPolicy": "Max", "policies": [
                {"type": "Percent", "value": 100, "periodSeconds": 15}]}),
        );
    }
}

/// The metric of an autoscaler that names none: 80 % of the CPU.
pub(crate) fn cpu_metric() -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 80}}})
}

fn complete(behavior: &mut Value, key: &str, defaults: &Value) {
    if get(behavior, key).is_null() {
        behavior[key] = json!({});
    }
    for (member, value) in defaults.as_object().into_iter().flatten() {
        default(&mut behavior[key], member, value.clone());
    }
}

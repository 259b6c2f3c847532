//! Quality of service: the class of a pod and the out-of-memory score of its containers.

use crate::pod;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use sampan_api::quantity::Quantity;
use std::collections::BTreeMap;

pub type Amounts = BTreeMap<String, Text>;

pub const GUARANTEED: &str = "Guaranteed";
pub const BURSTABLE: &str = "Burstable";
pub const BEST_EFFORT: &str = "BestEffort";

/// An amount from a resource list; absent and unreadable count as zero.
pub fn amount(list: Option<&Amounts>, resource: &str) -> Quantity {
    list.and_then(|l| l.get(resource))
        .and_then(|text| text.0.parse().ok())
        .unwrap_or(Quantity::ZERO)
}

/// The class of a pod, from the cpu and memory of its containers (or of the pod as a whole).
pub fn class(pod: &Pod) -> &'static str {
    if let Some(class) = pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        match class {
            GUARANTEED => return GUARANTEED,
            BURSTABLE => return BURSTABLE,
            BEST_EFFORT => return BEST_EFFORT,
            _ => {}
        }
    }
    let spec = pod::spec(pod);
    if let Some(whole) = spec.resources.as_ref().filter(|r| asks_for_anything(r)) {
        return if is_guaranteed(whole) {
            GUARANTEED
        } else {
            BURSTABLE
        };
    }
    let all: Vec<&Container> = pod::init_containers(pod)
        .iter()
        .chain(&spec.containers)
        .collect();
    let resources = |c: &Container| c.resources.clone().unwrap_or_default();
    if !all.iter().any(|c| asks_for_anything(&resources(c))) {
        return BEST_EFFORT;
    }
    if all.iter().all(|c| is_guaranteed(&resources(c))) {
        GUARANTEED
    } else {
        BURSTABLE
    }
}

fn asks_for_anything(resources: &ResourceRequirements) -> bool {
    let lists = [resources.requests.as_ref(), resources.limits.as_ref()];
    lists.into_iter().any(|list| {
        ["cpu", "memory"]
            .into_iter()
            .any(|name| !amount(list, name).is_zero())
    })
}

fn is_guaranteed(resources: &ResourceRequirements) -> bool {
    ["cpu", "memory"].into_iter().all(|name| {
        let limit = amount(resources.limits.as_ref(), name);
        let has_request = resources
            .requests
            .as_ref()
            .is_some_and(|r| r.contains_key(name));
        let request = amount(resources.requests.as_ref(), name);
        !limit.is_zero() && (!has_request || request == limit)
    })
}

/// The score the kernel adds when it looks for something to kill; less means safer.
pub fn oom_score_adjust(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    const NODE_CRITICAL: i32 = 2_000_001_000;
    let is_critical = pod::spec(pod).priority.is_some_and(|p| p >= NODE_CRITICAL);
    if is_critical {
        return -997;
    }
    match class(pod) {
        GUARANTEED => return -997,
        BEST_EFFORT => return 1000,
        _ => {}
    }
    let requests = container
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref());
    let request = i128::from(amount(requests, "memory").value());
    let share = 1000 - (1000 * request) / i128::from(node_memory.max(1));
    let score = i64::try_from(share).unwrap_or(0);
    // A container that asked for something stays between the two other classes.
    score.clamp(3, 999)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn pod(resources: serde_json::Value) -> Pod {
        let spec = json!({"containers": [{"name": "a", "resources": resources}]});
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    #[test]
    fn class_follows_requests_and_limits() {
        assert_eq!(class(&pod(json!({}))), BEST_EFFORT);
        assert_eq!(class(&pod(json!({"requests": {"cpu": "1"}}))), BURSTABLE);
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}});
        assert_eq!(class(&pod(full)), GUARANTEED);
    }

    #[test]
    fn scores_order_the_classes() {
        let score = |p: &Pod| oom_score_adjust(p, &pod::spec(p).containers[0], 1 << 30);
        assert_eq!(score(&pod(json!({}))), 1000);
        assert_eq!(score(&pod(json!({"requests": {"memory": "512Mi"}}))), 500);
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(score(&pod(full)), -997);
    }
}

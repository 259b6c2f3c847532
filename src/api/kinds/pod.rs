//! Pods.

use serde_json::{Value, json};

use super::Kind;
use crate::meta::{self, at, get, integer, items, items_mut, text};
use crate::quantity::Quantity;
use crate::strategy::{self, Context, Grace, copy_member};
use crate::time;

pub(super) const POD: Kind = Kind {
    shows_deleted: true,
    prepare_create,
    prepare_update,
    prepare_status,
    grace,
    checks_twice: true,
    ..Kind::DEFAULT
};

fn prepare_create(context: &Context<'_>, pod: &mut Value) {
    strategy::start_generation(context, pod);
    pod["status"] = json!({"phase": "Pending", "qosClass": qos_class(pod)});
    if !items(pod, &["spec", "schedulingGates"]).is_empty() {
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastTransitionTime": time::format(context.now),
        }]);
    }
    merge_match_label_keys(pod);
}

fn prepare_update(context: &Context<'_>, pod: &mut Value, old: &Value) {
    match context.subresource {
        "ephemeralcontainers" => only_spec_member(pod, old, "ephemeralContainers"),
        "resize" => only_resources(pod, old),
        _ => {}
    }
    copy_member(pod, old, "status");
    strategy::count_generation(context, pod, old);
}

fn prepare_status(context: &Context<'_>, pod: &mut Value, old: &Value) {
    if matches!(context.subresource, "ephemeralcontainers" | "resize") {
        prepare_update(context, pod, old);
        return;
    }
    strategy::only_status(pod, old);
    for key in ["ownerReferences", "deletionTimestamp"] {
        match at(old, &["metadata", key]) {
            Value::Null => {
                meta::remove(pod, &["metadata", key]);
            }
            value => meta::set(pod, &["metadata", key], value.clone()),
        }
    }
    keep_empty(pod, old, "qosClass");
    keep_empty(pod, old, "observedGeneration");
    keep_condition_generations(pod, old);
}

/// A member of the status that a client cleared stays.
fn keep_empty(pod: &mut Value, old: &Value, key: &str) {
    let value = at(old, &["status", key]);
    if at(pod, &["status", key]).is_null() && !value.is_null() {
        meta::set(pod, &["status", key], value.clone());
    }
}

fn keep_condition_generations(pod: &mut Value, old: &Value) {
    for condition in items_mut(pod, &["status", "conditions"]) {
        if integer(condition, &["observedGeneration"]).unwrap_or(0) != 0 {
            continue;
        }
        let kind = text(condition, &["type"]);
        let before = items(old, &["status", "conditions"])
            .iter()
            .find(|one| text(one, &["type"]) == kind)
            .and_then(|one| integer(one, &["observedGeneration"]))
            .filter(|generation| *generation != 0);
        if let Some(generation) = before {
            condition["observedGeneration"] = json!(generation);
        }
    }
}

fn only_spec_member(pod: &mut Value, old: &Value, key: &str) {
    let member = at(pod, &["spec", key]).clone();
    pod["spec"] = old["spec"].clone();
    strategy::reset_metadata(pod, old);
    if member.is_null() {
        meta::remove(pod, &["spec", key]);
    } else {
        meta::set(pod, &["spec", key], member);
    }
}

/// Only `resources` and `resizePolicy` of containers that exist, and the pod's own resources.
fn only_resources(pod: &mut Value, old: &Value) {
    let asked = pod["spec"].clone();
    pod["spec"] = old["spec"].clone();
    strategy::reset_metadata(pod, old);
    let pod_level = get(&asked, "resources");
    if !pod_level.is_null() {
        pod["spec"]["resources"] = pod_level.clone();
    }
    for list in ["containers", "initContainers"] {
        let wanted = items(&asked, &[list]);
        if wanted.len() != items(old, &["spec", list]).len() {
            pod["spec"][list] = get(&asked, list).clone();
            continue;
        }
        for container in items_mut(pod, &["spec", list]) {
            let name = text(container, &["name"]).to_owned();
            let Some(wanted) = wanted.iter().find(|one| text(one, &["name"]) == name) else {
                continue;
            };
            for key in ["resources", "resizePolicy"] {
                copy_member(container, wanted, key);
            }
        }
    }
}

/// Label keys of affinity terms and spread constraints become requirements on the pod's own values.
fn merge_match_label_keys(pod: &mut Value) {
    let labels = at(pod, &["metadata", "labels"]).clone();
    for kind in ["podAffinity", "podAntiAffinity"] {
        let base = ["spec", "affinity", kind];
        let required = [
            &base[..],
            &["requiredDuringSchedulingIgnoredDuringExecution"],
        ]
        .concat();
        for term in items_mut(pod, &required) {
            merge_keys(term, &labels);
        }
        let preferred = [
            &base[..],
            &["preferredDuringSchedulingIgnoredDuringExecution"],
        ]
        .concat();
        for weighted in items_mut(pod, &preferred) {
            if let Some(term) = weighted.get_mut("podAffinityTerm") {
                merge_keys(term, &labels);
            }
        }
    }
    for constraint in items_mut(pod, &["spec", "topologySpreadConstraints"]) {
        merge_keys(constraint, &labels);
    }
}

fn merge_keys(term: &mut Value, labels: &Value) {
    if !get(term, "labelSelector").is_object() {
        return;
    }
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys: Vec<String> = items(term, &[list])
            .iter()
            .filter_map(|key| key.as_str().map(str::to_owned))
            .collect();
        for key in keys {
            let Some(value) = get(labels, &key).as_str() else {
                continue;
            };
            let requirement = json!({"key": key, "operator": operator, "values": [value]});
            let slot = meta::entry(term, &["labelSelector", "matchExpressions"]);
            match slot {
                Value::Array(list) => list.push(requirement),
                _ => *slot = json!([requirement]),
            }
        }
    }
}

/// The quality of service that follows from requests and limits of CPU and memory.
pub fn qos_class(pod: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let spec = get(pod, "spec");
    let pod_level = get(spec, "resources");
    if pod_level.is_object() {
        rate(pod_level, &mut any, &mut guaranteed);
    } else {
        for list in ["containers", "initContainers"] {
            for container in items(spec, &[list]) {
                rate(get(container, "resources"), &mut any, &mut guaranteed);
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

fn rate(resources: &Value, any: &mut bool, guaranteed: &mut bool) {
    let amount = |list: &str, name: &str| {
        text(resources, &[list, name])
            .parse::<Quantity>()
            .ok()
            .filter(|quantity| !quantity.is_zero())
    };
    for name in ["cpu", "memory"] {
        let (request, limit) = (amount("requests", name), amount("limits", name));
        *any |= request.is_some() || limit.is_some();
        *guaranteed &= limit.is_some() && (request.is_none() || request == limit);
    }
}

fn grace(pod: &Value, requested: Option<i64>) -> Grace {
    let own = integer(pod, &["spec", "terminationGracePeriodSeconds"]);
    let seconds = requested.or(own).unwrap_or(0);
    let ended = matches!(text(pod, &["status", "phase"]), "Failed" | "Succeeded");
    if ended || text(pod, &["spec", "nodeName"]).is_empty() {
        Grace::Seconds(0)
    } else if seconds < 0 {
        Grace::Seconds(1)
    } else {
        Grace::Seconds(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_of_service() {
        let pod = |resources: Value| json!({"spec": {"containers": [{"name": "a", "resources": resources}]}});
        assert_eq!(qos_class(&pod(json!({}))), "BestEffort");
        assert_eq!(
            qos_class(&pod(json!({"requests": {"cpu": "1"}}))),
            "Burstable"
        );
        let full = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(
            qos_class(&pod(json!({"requests": full, "limits": full}))),
            "Guaranteed"
        );
    }

    #[test]
    fn grace_periods() {
        let mut pod = json!({"spec": {"terminationGracePeriodSeconds": 30}});
        assert_eq!(grace(&pod, None), Grace::Seconds(0));
        pod["spec"]["nodeName"] = json!("n");
        assert_eq!(grace(&pod, None), Grace::Seconds(30));
        assert_eq!(grace(&pod, Some(-1)), Grace::Seconds(1));
        pod["status"] = json!({"phase": "Failed"});
        assert_eq!(grace(&pod, Some(5)), Grace::Seconds(0));
    }
}

//! What one node's health asks for. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sampan_client::ObjectKey;
use serde_json::{Value, json};

use super::{Disruption, Observed, condition, ready};
use crate::runtime::{Action, EventNote, Form, Plan, Step};
use crate::{json, owner, pods};

/// Conditions that a silent node can no longer vouch for.
const VOUCHED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Which status of which condition becomes which taint.
const TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let node = &*observed.node;
    let silence = pods::until(observed.last_beat, now);
    let is_silent = silence >= observed.grace;
    if is_silent {
        plan.actions.extend(mark_unknown(node, now));
    } else {
        plan.requeue_within(observed.grace - silence);
    }
    plan_taints(observed, is_silent, now, &mut plan);
    if is_silent {
        for pod in &observed.ready_pods {
            plan.push(mark_pod_unready(pod, now));
        }
    }
    plan
}

/// Sets the conditions to Unknown that are not so yet.
fn mark_unknown(node: &Node, now: Timestamp) -> Option<Step> {
    let mut conditions: Vec<Value> = Vec::new();
    for kind in VOUCHED {
        let current = condition(node, kind);
        if current.is_some_and(|current| current.status == "Unknown") {
            continue;
        }
        let (reason, message) = match current {
            Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
            None => (
                "NodeStatusNeverUpdated",
                "Kubelet never posted node status.",
            ),
        };
        let heartbeat = current.and_then(|current| current.last_heartbeat_time.clone());
        let created = node.metadata.creation_timestamp.clone();
        conditions.push(json!({
            "type": kind,
            "status": "Unknown",
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": heartbeat.or(created),
            "lastTransitionTime": Time(now),
        }));
    }
    if conditions.is_empty() {
        return None;
    }
    let key = ObjectKey::of(&node.metadata);
    let change = json!({"status": {"conditions": conditions}});
    Some(Action::write_status::<Node>(&key, Form::Strategic, change).into())
}

/// The taints that the node's state asks for, the others left as they are.
fn plan_taints(observed: &Observed, is_silent: bool, now: Timestamp, plan: &mut Plan) {
    let node = &*observed.node;
    let spec = node.spec.as_ref();
    let current = spec
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let health = match ready(node) {
        _ if is_silent => Some("Unknown"),
        Some(condition) => Some(condition.status.as_str()),
        None => None,
    };
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (kind, status, key) in TAINTS {
        let has = match kind {
            "Ready" => health,
            // Nobody vouches for a silent node's pressures.
            _ => condition(node, kind)
                .filter(|_| !is_silent)
                .map(|known| known.status.as_str()),
        };
        if has == Some(status) {
            wanted.push((key, "NoSchedule"));
        }
    }
    if spec.and_then(|spec| spec.unschedulable).unwrap_or(false) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    wanted.extend(eviction_taint(observed, &current, health));
    let taints = replace(&current, &wanted, health.is_some(), now);
    if taints == current {
        return;
    }
    let change = json!({"spec": {"taints": if taints.is_empty() {
        Value::Null
    } else {
        json::to_value(&taints)
    }}});
    let key = ObjectKey::of(&node.metadata);
    plan.push(Action::write::<Node>(&key, Form::MergeCurrent, change));
    let has = |taints: &[Taint]| {
        let unwell = |taint: &Taint| taint.key == NOT_READY || taint.key == UNREACHABLE;
        taints.iter().any(unwell)
    };
    if has(&taints) && !has(&current) {
        let message = format!(
            "Node {} status is now: NodeNotReady",
            owner::name(&node.metadata)
        );
        plan.events
            .push(EventNote::normal(node, "NodeNotReady", message));
    }
}

/// The taint that makes pods go, unless the whole cluster seems to be unwell.
fn eviction_taint(
    observed: &Observed,
    current: &[Taint],
    health: Option<&str>,
) -> Option<(&'static str, &'static str)> {
    let key = match health? {
        "False" => NOT_READY,
        "Unknown" => UNREACHABLE,
        _ => return None,
    };
    let announced = current.iter().any(|taint| {
        taint.effect == "NoExecute" && [NOT_READY, UNREACHABLE].contains(&&*taint.key)
    });
    match observed.disrupted {
        Disruption::Full => None,
        Disruption::Partial if !announced => None,
        _ => Some((key, "NoExecute")),
    }
}

/// Whether a taint is this controller's to give and take. Before a node has reported once, the
/// taint with which it registered is not.
fn is_managed(taint: &Taint, has_reported: bool) -> bool {
    let by_health = taint.key == NOT_READY || taint.key == UNREACHABLE;
    match taint.effect.as_str() {
        "NoExecute" => by_health,
        "NoSchedule" if by_health => has_reported,
        "NoSchedule" => {
            taint.key == UNSCHEDULABLE || TAINTS.iter().any(|(_, _, key)| *key == taint.key)
        }
        _ => false,
    }
}

fn replace(
    current: &[Taint],
    wanted: &[(&str, &str)],
    has_reported: bool,
    now: Timestamp,
) -> Vec<Taint> {
    let is =
        |taint: &Taint, (key, effect): &(&str, &str)| taint.key == *key && taint.effect == *effect;
    let keep = |taint: &&Taint| {
        !is_managed(taint, has_reported) || wanted.iter().any(|wish| is(taint, wish))
    };
    let mut taints: Vec<Taint> = current.iter().filter(keep).cloned().collect();
    for wish in wanted {
        if !taints.iter().any(|taint| is(taint, wish)) {
            taints.push(Taint {
                key: wish.0.to_owned(),
                effect: wish.1.to_owned(),
                value: None,
                time_added: Some(Time(now)),
            });
        }
    }
    taints
}

fn mark_pod_unready(pod: &Pod, now: Timestamp) -> Step {
    let change = json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {"conditions": [{
            "type": "Ready",
            "status": "False",
            "lastTransitionTime": Time(now),
        }]},
    });
    let key = ObjectKey::of(&pod.metadata);
    Step::from(Action::write_status::<Pod>(&key, Form::Strategic, change))
        .on_success(EventNote::warning(pod, "NodeNotReady", "Node is not ready"))
}

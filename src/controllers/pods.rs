//! What every controller of pods asks of them.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use sampan_client::Resource;

use crate::owner;

pub fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or_default()
}

pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Neither finished nor on its way out.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// On its way out, with containers that may still run.
pub fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_some()
}

pub fn node_name(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// Since when the pod's readiness is what it is.
pub fn ready_time(pod: &Pod) -> Option<Timestamp> {
    let condition = condition(pod, "Ready")?;
    condition.last_transition_time.as_ref().map(|time| time.0)
}

pub fn seconds(count: i32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(count))
}

/// Ready for at least so many seconds.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    if !is_ready(pod) {
        return false;
    }
    min_ready_seconds == 0
        || ready_time(pod).is_some_and(|since| since + seconds(min_ready_seconds) <= now)
}

/// When the next of the ready pods becomes available.
pub fn next_availability<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    if min_ready_seconds == 0 {
        return None;
    }
    let waits = pods.into_iter().filter_map(|pod| {
        if !is_ready(pod) || is_available(pod, min_ready_seconds, now) {
            return None;
        }
        let at = ready_time(pod)? + seconds(min_ready_seconds);
        Some(unsigned(
            now.until(at).ok()?.total(jiff::Unit::Second).ok()?,
        ))
    });
    waits.min()
}

fn unsigned(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

/// How long until `at`; zero if it has passed.
pub fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

/// The pod that a template makes for its controlling owner; its name comes from the server.
pub fn from_template<O: Resource>(template: &PodTemplateSpec, owner: &O) -> Pod {
    let template_meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner::name(owner.metadata()))),
            namespace: owner.metadata().namespace.clone(),
            labels: template_meta.labels,
            annotations: template_meta.annotations,
            finalizers: template_meta.finalizers,
            owner_references: Some(vec![owner::controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// How many containers' restarts the most restarted one has.
fn restarts(pod: &Pod) -> i32 {
    let Some(status) = &pod.status else { return 0 };
    let containers = status.container_statuses.iter().flatten();
    let most = containers.map(|container| container.restart_count).max();
    most.unwrap_or(0)
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|map| map.get("controller.kubernetes.io/pod-deletion-cost"))
        .and_then(|cost| cost.parse().ok())
        .unwrap_or(0)
}

fn phase_order(pod: &Pod) -> u8 {
    match phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    }
}

/// Ages compare by their order of magnitude, so that which pod goes does not depend on seconds.
fn magnitude(since: Timestamp, now: Timestamp) -> u32 {
    let age = now.duration_since(since).as_nanos();
    u128::try_from(age)
        .ok()
        .and_then(u128::checked_ilog2)
        .unwrap_or(0)
}

/// Younger first; what has no time is youngest.
fn younger_first(a: Option<Timestamp>, b: Option<Timestamp>, now: Timestamp) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(a), Some(b)) => magnitude(a, now).cmp(&magnitude(b, now)),
    }
}

fn creation(pod: &Pod) -> Option<Timestamp> {
    let time: Option<&Time> = pod.metadata.creation_timestamp.as_ref();
    time.map(|time| time.0)
}

/// Orders pods so that those whose loss matters least come first. `crowd` counts, by node, the
/// active pods of the same purpose.
pub fn deletion_order(
    a: &Pod,
    b: &Pod,
    crowd: &HashMap<String, usize>,
    now: Timestamp,
) -> Ordering {
    let rank = |pod: &Pod| crowd.get(node_name(pod)).copied().unwrap_or(0);
    let ready = is_ready(a) && is_ready(b);
    node_name(a)
        .is_empty()
        .cmp(&node_name(b).is_empty())
        .reverse()
        .then_with(|| phase_order(a).cmp(&phase_order(b)))
        .then_with(|| is_ready(a).cmp(&is_ready(b)))
        .then_with(|| deletion_cost(a).cmp(&deletion_cost(b)))
        .then_with(|| rank(b).cmp(&rank(a)))
        .then_with(|| {
            if ready {
                younger_first(ready_time(a), ready_time(b), now)
            } else {
                Ordering::Equal
            }
        })
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| younger_first(creation(a), creation(b), now))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

/// How many of these pods are active on each node.
pub fn crowd_by_node<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> HashMap<String, usize> {
    let mut crowd = HashMap::new();
    for pod in pods.into_iter().filter(|pod| is_active(pod)) {
        *crowd.entry(node_name(pod).to_owned()).or_default() += 1;
    }
    crowd
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{at, pod};

    #[test]
    fn availability_needs_time() {
        let mut ready = pod("ns", "a");
        crate::fixtures::make_ready(&mut ready, at(100));
        assert!(is_available(&ready, 0, at(100)));
        assert!(!is_available(&ready, 10, at(105)));
        assert!(is_available(&ready, 10, at(110)));
        let wait = next_availability([&ready], 10, at(104)).unwrap();
        assert_eq!(wait, Duration::from_secs(6));
        assert_eq!(next_availability([&ready], 10, at(110)), None);
    }

    #[test]
    fn the_least_useful_pods_go_first() {
        let now = at(10_000);
        let unscheduled = pod("ns", "unscheduled");
        let mut running = pod("ns", "running");
        running.spec.as_mut().unwrap().node_name = Some("n".to_owned());
        running.status.as_mut().unwrap().phase = Some("Running".to_owned());
        let mut ready = running.clone();
        crate::fixtures::make_ready(&mut ready, at(50));
        let mut fresh = ready.clone();
        crate::fixtures::make_ready(&mut fresh, at(9_990));
        let nobody = HashMap::new();
        let mut order = [&ready, &fresh, &running, &unscheduled];
        order.sort_by(|a, b| deletion_order(a, b, &nobody, now));
        assert!(std::ptr::eq(order[0], &unscheduled));
        assert!(std::ptr::eq(order[1], &running));
        assert!(std::ptr::eq(order[2], &fresh));
    }
}

//! What comes next in a StatefulSet. In order means: nothing happens to an ordinal before all that
//! come before it are well.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSetSpec;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use sampan_client::ObjectKey;
use serde_json::json;

use super::identity::{self, POD_NAME_LABEL};
use super::{Scene, is_running_and_ready, revision_of};
use crate::deployment::scaled;
use crate::runtime::{Action, EventNote, Form, Plan, Step};
use crate::{json, owner, pods};

pub(super) fn is_rolling(spec: &StatefulSetSpec) -> bool {
    let strategy = spec.update_strategy.as_ref();
    let kind = strategy.and_then(|strategy| strategy.type_.as_deref());
    kind.unwrap_or("RollingUpdate") == "RollingUpdate"
}

/// Whether to go on after a step.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Stop,
}

pub(super) fn plan(scene: &Scene<'_>, plan: &mut Plan) {
    let in_order = scene.spec.pod_management_policy.as_deref() != Some("Parallel");
    let last = scene.start() + scene.replicas();
    for ordinal in scene.start()..last {
        if replica(scene, ordinal, in_order, plan) == Flow::Stop {
            return;
        }
    }
    if condemned(scene, in_order, plan) == Flow::Stop {
        return;
    }
    if is_rolling(scene.spec) {
        update(scene, plan);
    }
}

fn pod_at<'a>(scene: &'a Scene<'_>, ordinal: i32) -> Option<&'a Arc<Pod>> {
    let mut pods = scene.pods.iter();
    pods.find(|pod| identity::ordinal_of(scene.set, pod) == Some(ordinal))
}

/// Stops in order, goes on in parallel.
fn wait(in_order: bool) -> Flow {
    if in_order { Flow::Stop } else { Flow::On }
}

fn replica(scene: &Scene<'_>, ordinal: i32, in_order: bool, plan: &mut Plan) -> Flow {
    let Some(pod) = pod_at(scene, ordinal) else {
        ensure_claims(scene, ordinal, plan);
        plan.push(create(scene, ordinal));
        return wait(in_order);
    };
    if pods::is_finished(pod) && !owner::is_deleting(&pod.metadata) {
        plan.events.push(recreating(scene, pod));
        plan.push(delete(scene, pod));
        return wait(in_order);
    }
    ensure_claims(scene, ordinal, plan);
    plan.actions.extend(repair(pod).map(Step::from));
    if owner::is_deleting(&pod.metadata) || !scene.is_available(pod) {
        return wait(in_order);
    }
    Flow::On
}

fn create(scene: &Scene<'_>, ordinal: i32) -> Step {
    let set = scene.set;
    let name = owner::name(&set.metadata);
    let pod = identity::pod_for(scene, ordinal);
    let pod_name = identity::pod_name(set, ordinal);
    let done = format!("create Pod {pod_name} in StatefulSet {name} successful");
    let failed = format!("create Pod {pod_name} in StatefulSet {name} failed error: {{}}");
    Step::from(Action::create(&pod))
        .on_success(EventNote::normal(set, "SuccessfulCreate", done))
        .on_failure(EventNote::warning(set, "FailedCreate", failed))
}

fn delete(scene: &Scene<'_>, pod: &Pod) -> Step {
    let set = scene.set;
    let (name, pod_name) = (owner::name(&set.metadata), owner::name(&pod.metadata));
    let done = format!("delete Pod {pod_name} in StatefulSet {name} successful");
    let failed = format!("delete Pod {pod_name} in StatefulSet {name} failed error: {{}}");
    Step::from(Action::delete(pod))
        .on_success(EventNote::normal(set, "SuccessfulDelete", done))
        .on_failure(EventNote::warning(set, "FailedDelete", failed))
}

fn recreating(scene: &Scene<'_>, pod: &Pod) -> EventNote {
    let set = ObjectKey::of(&scene.set.metadata);
    let name = owner::name(&pod.metadata);
    if pods::phase(pod) == "Failed" {
        let message = format!("StatefulSet {set} is recreating failed Pod {name}");
        EventNote::warning(scene.set, "RecreatingFailedPod", message)
    } else {
        let message = format!("StatefulSet {set} is recreating terminated Pod {name}");
        EventNote::normal(scene.set, "RecreatingTerminatedPod", message)
    }
}

/// Makes missing claims, and gives present ones the owner that the policy wants.
fn ensure_claims(scene: &Scene<'_>, ordinal: i32, plan: &mut Plan) {
    let set = scene.set;
    let name = owner::name(&set.metadata);
    let pod = identity::pod_name(set, ordinal);
    for claim in identity::claims_for(scene, ordinal) {
        let claim_name = owner::name(&claim.metadata);
        let Some(present) = scene.observed.claims.get(claim_name) else {
            let what = format!("create Claim {claim_name} Pod {pod} in StatefulSet {name}");
            plan.push(
                Step::from(Action::create(&claim))
                    .on_success(EventNote::normal(
                        set,
                        "SuccessfulCreate",
                        format!("{what} success"),
                    ))
                    .on_failure(EventNote::warning(
                        set,
                        "FailedCreate",
                        format!("{what} failed error: {{}}"),
                    )),
            );
            continue;
        };
        plan.actions
            .extend(own_claim(scene, ordinal, present, None).map(Step::from));
    }
}

/// Only references to this set or its pods are ours to set and take.
fn own_claim(
    scene: &Scene<'_>,
    ordinal: i32,
    claim: &PersistentVolumeClaim,
    pod: Option<&Pod>,
) -> Option<Action> {
    scene
        .spec
        .persistent_volume_claim_retention_policy
        .as_ref()?;
    let wanted = identity::retention(scene, ordinal, pod);
    let set_uid = owner::uid(&scene.set.metadata);
    let pod_name = identity::pod_name(scene.set, ordinal);
    let current = claim.metadata.owner_references.clone().unwrap_or_default();
    let mut new = current.clone();
    new.retain(|reference| {
        reference.uid != set_uid && !(reference.kind == "Pod" && reference.name == pod_name)
    });
    new.extend(wanted);
    if new == current {
        return None;
    }
    let references = if new.is_empty() {
        json!(null)
    } else {
        json::to_value(&new)
    };
    let change = json!({"metadata": {"ownerReferences": references}});
    let key = ObjectKey::of(&claim.metadata);
    Some(Action::write::<PersistentVolumeClaim>(
        &key,
        Form::Put,
        change,
    ))
}

/// A pod that was adopted may lack the label that names it.
fn repair(pod: &Pod) -> Option<Action> {
    let name = owner::name(&pod.metadata);
    let labels = pod.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(POD_NAME_LABEL));
    if label.is_some_and(|label| label == name) {
        return None;
    }
    let change = json!({"metadata": {"uid": pod.metadata.uid, "labels": {POD_NAME_LABEL: name}}});
    Some(Action::write::<Pod>(
        &ObjectKey::of(&pod.metadata),
        Form::Merge,
        change,
    ))
}

/// Pods beyond the wanted ordinals go, the highest first.
fn condemned(scene: &Scene<'_>, in_order: bool, plan: &mut Plan) -> Flow {
    let wanted = |pod: &Arc<Pod>| {
        identity::ordinal_of(scene.set, pod).is_some_and(|ordinal| scene.wants(ordinal))
    };
    let unhealthy = scene.pods.iter().find(|pod| !is_healthy(pod));
    let mut others: Vec<&Arc<Pod>> = scene.pods.iter().filter(|pod| !wanted(pod)).collect();
    others.reverse();
    for pod in others {
        if owner::is_deleting(&pod.metadata) {
            if in_order {
                return Flow::Stop;
            }
            continue;
        }
        // While another one is unwell only that one may go.
        let is_first_unhealthy = unhealthy.is_some_and(|first| Arc::ptr_eq(first, pod));
        if in_order && !scene.is_available(pod) && !is_first_unhealthy {
            return Flow::Stop;
        }
        release_claims(scene, pod, plan);
        plan.push(delete(scene, pod));
        if in_order {
            return Flow::Stop;
        }
    }
    Flow::On
}

fn is_healthy(pod: &Pod) -> bool {
    is_running_and_ready(pod) && !owner::is_deleting(&pod.metadata)
}

/// Claims that are to go with a pod become its own before it goes.
fn release_claims(scene: &Scene<'_>, pod: &Pod, plan: &mut Plan) {
    let Some(ordinal) = identity::ordinal_of(scene.set, pod) else {
        return;
    };
    for claim in identity::claims_for(scene, ordinal) {
        if let Some(present) = scene.observed.claims.get(owner::name(&claim.metadata)) {
            let step = own_claim(scene, ordinal, present, Some(pod));
            plan.actions.extend(step.map(Step::from));
        }
    }
}

/// Replaces pods of old revisions from the highest ordinal down to the partition, as many at a time
/// as may be missing.
fn update(scene: &Scene<'_>, plan: &mut Plan) {
    let strategy = scene.spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
    let limit = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let limit = limit.map_or(1, |limit| scaled(limit, scene.replicas(), true).max(1));
    let first = scene.start() + partition;
    let last = scene.start() + scene.replicas();
    let mut unavailable = 0;
    for ordinal in (first..last).rev() {
        let Some(pod) = pod_at(scene, ordinal) else {
            unavailable += 1;
            continue;
        };
        let is_old = revision_of(pod) != scene.revisions.update_name();
        let is_well = is_healthy(pod) && scene.is_available(pod);
        if is_old && !owner::is_deleting(&pod.metadata) {
            plan.push(delete(scene, pod));
            unavailable += 1;
        } else if !is_well {
            unavailable += 1;
        }
        if unavailable >= limit {
            return;
        }
    }
}

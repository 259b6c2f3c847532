//! A Deployment's status: counts, availability, progress.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::rollout::Rollout;
use super::sets::{Set, max_unavailable, replicas_of};
use crate::json::nonzero;
use crate::{owner, pods};

const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

fn find<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    let conditions = status.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
    status.conditions = status.conditions.take().filter(|list| !list.is_empty());
}

/// Keeps what says the same already, and the transition time if only the reason changes.
fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(current) = find(status, &condition.type_)
        && current.status == condition.status
    {
        if current.reason == condition.reason {
            return;
        }
        condition.last_transition_time = current.last_transition_time.clone();
    }
    remove(status, &condition.type_.clone());
    status.conditions.get_or_insert_default().push(condition);
}

fn condition(
    kind: &str,
    value: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.into()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

fn deadline(deployment: &Deployment) -> Option<i32> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != i32::MAX).then_some(seconds)
}

/// A pause and its end stop the clock of the progress deadline.
pub(super) fn note_pause(rollout: &mut Rollout<'_>, paused: bool) {
    if deadline(rollout.deployment).is_none() {
        return;
    }
    let current = find(&rollout.status, PROGRESSING).and_then(|condition| condition.reason.clone());
    let was_paused = current.as_deref() == Some(PAUSED);
    if current.as_deref() == Some(TIMED_OUT) || paused == was_paused {
        return;
    }
    let (reason, message) = if paused {
        (PAUSED, "Deployment is paused")
    } else {
        ("DeploymentResumed", "Deployment is resumed")
    };
    let condition = condition(PROGRESSING, "Unknown", reason, message, rollout.now);
    set(&mut rollout.status, condition);
}

/// A set with the present template was there already.
pub(super) fn note_found(rollout: &mut Rollout<'_>, name: &str) {
    if deadline(rollout.deployment).is_some() && find(&rollout.status, PROGRESSING).is_none() {
        let message = format!("Found new replica set \"{name}\"");
        let condition = condition(
            PROGRESSING,
            "True",
            "FoundNewReplicaSet",
            message,
            rollout.now,
        );
        set(&mut rollout.status, condition);
    }
}

pub(super) fn note_created(rollout: &mut Rollout<'_>, name: &str) {
    if deadline(rollout.deployment).is_some() {
        let message = format!("Created new replica set \"{name}\"");
        let condition = condition(
            PROGRESSING,
            "True",
            "NewReplicaSetCreated",
            message,
            rollout.now,
        );
        set(&mut rollout.status, condition);
    }
}

/// `None` without a progress deadline: nobody asked to be told.
pub(super) fn with_creation_failure(
    deployment: &Deployment,
    message: String,
    now: Timestamp,
) -> Option<DeploymentStatus> {
    deadline(deployment)?;
    let mut status = deployment.status.clone().unwrap_or_default();
    set(
        &mut status,
        condition(PROGRESSING, "False", "ReplicaSetCreateError", message, now),
    );
    Some(status)
}

/// All wanted pods are of the present template and available, and no others exist.
pub(super) fn is_complete(deployment: &Deployment, status: Option<&DeploymentStatus>) -> bool {
    let wanted = replicas_of(deployment);
    let Some(status) = status else { return false };
    let counts = [
        status.updated_replicas,
        status.replicas,
        status.available_replicas,
    ];
    counts.iter().all(|count| count.unwrap_or(0) == wanted)
        && status.observed_generation >= deployment.metadata.generation
}

/// Counts and availability; other conditions stay as they are in the rollout.
pub(super) fn calculate(rollout: &Rollout<'_>) -> DeploymentStatus {
    let sets = &rollout.sets;
    let wanted = replicas_of(rollout.deployment);
    let available = sets.sum(Set::available);
    let updated = sets.new_set().map_or(0, Set::actual);
    let unavailable = (sets.wanted() - available).max(0);
    let terminating: Option<Vec<i32>> = sets.all.iter().map(Set::terminating).collect();
    let mut status = DeploymentStatus {
        observed_generation: rollout.deployment.metadata.generation,
        replicas: nonzero(sets.sum(Set::actual)),
        updated_replicas: nonzero(updated),
        ready_replicas: nonzero(sets.sum(Set::ready)),
        available_replicas: nonzero(available),
        unavailable_replicas: nonzero(unavailable),
        terminating_replicas: terminating.map(|counts| counts.into_iter().sum()),
        collision_count: rollout.status.collision_count,
        conditions: rollout.status.conditions.clone(),
    };
    let enough = available >= wanted - max_unavailable(rollout.deployment);
    let (value, reason, message) = if enough {
        (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    set(
        &mut status,
        condition(AVAILABLE, value, reason, message, rollout.now),
    );
    status
}

/// [`calculate`] with the progress of a rollout, and when to look at that again.
pub(super) fn with_progress(rollout: &Rollout<'_>) -> (DeploymentStatus, Option<Duration>) {
    let deployment = rollout.deployment;
    let mut status = calculate(rollout);
    let Some(deadline) = deadline(deployment) else {
        remove(&mut status, PROGRESSING);
        take_over_failures(rollout, &mut status);
        return (status, None);
    };
    let current = find(&rollout.status, PROGRESSING).cloned();
    let reason = current
        .as_ref()
        .and_then(|condition| condition.reason.as_deref());
    let settled = status.replicas == status.updated_replicas && reason == Some(NEW_SET_AVAILABLE);
    if !settled {
        report_progress(rollout, &mut status, current, deadline);
    }
    take_over_failures(rollout, &mut status);
    let requeue_after = next_check(rollout, &status, deadline);
    (status, requeue_after)
}

/// How messages name what progresses.
fn subject(rollout: &Rollout<'_>) -> String {
    match rollout.sets.new_set() {
        Some(set) => format!("ReplicaSet \"{}\"", set.name()),
        None => format!(
            "Deployment \"{}\"",
            owner::name(&rollout.deployment.metadata)
        ),
    }
}

fn report_progress(
    rollout: &Rollout<'_>,
    status: &mut DeploymentStatus,
    current: Option<DeploymentCondition>,
    deadline: i32,
) {
    let now = rollout.now;
    let subject = subject(rollout);
    if is_complete(rollout.deployment, Some(status)) {
        let message = format!("{subject} has successfully progressed.");
        set(
            status,
            condition(PROGRESSING, "True", NEW_SET_AVAILABLE, message, now),
        );
    } else if has_progressed(rollout.deployment, status) {
        let message = format!("{subject} is progressing.");
        let mut new = condition(PROGRESSING, "True", "ReplicaSetUpdated", message, now);
        if let Some(current) = current {
            if current.status == "True" {
                new.last_transition_time = current.last_transition_time;
            }
            // The update time has to move even if the reason is the same.
            remove(status, PROGRESSING);
        }
        set(status, new);
    } else if has_timed_out(status, deadline, now) {
        let message = format!("{subject} has timed out progressing.");
        set(
            status,
            condition(PROGRESSING, "False", TIMED_OUT, message, now),
        );
    }
}

/// Whether the counts moved the right way since the status in the cache was written.
fn has_progressed(deployment: &Deployment, new: &DeploymentStatus) -> bool {
    let old = deployment.status.clone().unwrap_or_default();
    let count = |count: Option<i32>| count.unwrap_or(0);
    let outdated =
        |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    count(new.updated_replicas) > count(old.updated_replicas)
        || outdated(new) < outdated(&old)
        || count(new.ready_replicas) > count(old.ready_replicas)
        || count(new.available_replicas) > count(old.available_replicas)
}

fn has_timed_out(status: &DeploymentStatus, deadline: i32, now: Timestamp) -> bool {
    let Some(condition) = find(status, PROGRESSING) else {
        return false;
    };
    match condition.reason.as_deref() {
        Some(NEW_SET_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => condition
            .last_update_time
            .as_ref()
            .is_some_and(|since| since.0 + pods::seconds(deadline) < now),
    }
}

/// The first failure of a set, the newest set's before others'.
fn take_over_failures(rollout: &Rollout<'_>, status: &mut DeploymentStatus) {
    let newest = rollout.sets.new_set().into_iter();
    let mut conditions = newest
        .chain(&rollout.sets.all)
        .filter_map(|set| set.planned.status.as_ref()?.conditions.as_ref())
        .flatten();
    match conditions.find(|condition| condition.type_ == REPLICA_FAILURE) {
        Some(failure) => set(
            status,
            DeploymentCondition {
                type_: failure.type_.clone(),
                status: failure.status.clone(),
                reason: failure.reason.clone(),
                message: failure.message.clone(),
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time.clone(),
            },
        ),
        None => remove(status, REPLICA_FAILURE),
    }
}

/// A rollout that shows no progress is looked at again when its deadline has passed.
fn next_check(rollout: &Rollout<'_>, status: &DeploymentStatus, deadline: i32) -> Option<Duration> {
    let condition = find(status, PROGRESSING)?;
    if is_complete(rollout.deployment, Some(status))
        || condition.reason.as_deref() == Some(TIMED_OUT)
    {
        return None;
    }
    let due = condition.last_update_time.as_ref()?.0 + pods::seconds(deadline);
    Some(pods::until(rollout.now, due) + Duration::from_secs(1))
}

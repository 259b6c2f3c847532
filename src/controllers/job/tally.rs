//! What a Job's pods and status add up to.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use sampan_util::Backoff;

use super::indexes::{Indexes, index_of, inherited};
use super::policy::{Reaction, react};
use super::{Case, has_finalizer};
use crate::{owner, pods};

pub(crate) const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(crate) const INDEX_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// How long to wait with a new pod after failures.
pub(crate) const FAILURE_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(10), Duration::from_secs(600));

pub(crate) struct Tally {
    pub(crate) active: Vec<Arc<Pod>>,
    pub(crate) terminating: i32,
    /// Counted, about to be counted, and found just now.
    pub(crate) succeeded: i32,
    pub(crate) failed: i32,
    /// Counted for good, with those of the uncounted whose finalizer is gone.
    pub(crate) settled_succeeded: i32,
    pub(crate) settled_failed: i32,
    /// Uids in the status whose pods are still held.
    pub(crate) pending_succeeded: Vec<String>,
    pub(crate) pending_failed: Vec<String>,
    pub(crate) succeeded_indexes: Indexes,
    /// As the status has them.
    pub(crate) recorded_indexes: Indexes,
    /// Only with a back-off limit per index.
    pub(crate) failed_indexes: Option<Indexes>,
}

/// Failed, or as good as failed: on its way out without having succeeded.
pub(crate) fn is_failed(case: &Case<'_>, pod: &Pod) -> bool {
    match pods::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => !case.replaces_only_failed() && owner::is_deleting(&pod.metadata),
    }
}

pub(crate) fn is_succeeded(pod: &Pod) -> bool {
    pods::phase(pod) == "Succeeded"
}

/// Whether the pod's index is one of the Job's; always so for a Job without indexes.
pub(crate) fn has_valid_index(case: &Case<'_>, pod: &Pod) -> bool {
    !case.is_indexed() || index_of(pod).is_some_and(|index| index < completions(case))
}

pub(crate) fn completions(case: &Case<'_>) -> i32 {
    case.spec.completions.unwrap_or(0)
}

pub(crate) fn reaction(case: &Case<'_>, pod: &Pod) -> Reaction {
    react(case.spec.pod_failure_policy.as_ref(), pod)
}

fn count<T>(items: impl IntoIterator<Item = T>) -> i32 {
    i32::try_from(items.into_iter().count()).unwrap_or(i32::MAX)
}

impl Tally {
    pub(crate) fn of(case: &Case<'_>) -> Self {
        let held: HashSet<&str> = case
            .pods
            .iter()
            .filter(|pod| has_finalizer(pod))
            .map(|pod| owner::uid(&pod.metadata))
            .collect();
        let uncounted = case
            .status
            .uncounted_terminated_pods
            .clone()
            .unwrap_or_default();
        let split = |uids: Option<Vec<String>>| -> (Vec<String>, i32) {
            let uids = uids.unwrap_or_default();
            let all = count(&uids);
            let pending: Vec<String> = uids
                .into_iter()
                .filter(|uid| held.contains(uid.as_str()))
                .collect();
            let settled = all - count(&pending);
            (pending, settled)
        };
        let (pending_succeeded, newly_succeeded) = split(uncounted.succeeded);
        let (pending_failed, newly_failed) = split(uncounted.failed);
        let settled_succeeded = case.status.succeeded.unwrap_or(0) + newly_succeeded;
        let settled_failed = case.status.failed.unwrap_or(0) + newly_failed;
        let fresh = |pod: &&Arc<Pod>, pending: &[String]| {
            has_finalizer(pod)
                && has_valid_index(case, pod)
                && !pending.iter().any(|uid| uid == owner::uid(&pod.metadata))
        };
        let found_succeeded = case
            .pods
            .iter()
            .filter(|pod| fresh(pod, &pending_succeeded) && is_succeeded(pod));
        let found_failed = case.pods.iter().filter(|pod| {
            fresh(pod, &pending_failed)
                && is_failed(case, pod)
                && reaction(case, pod) != Reaction::Ignore
        });
        let (recorded_indexes, succeeded_indexes) = succeeded_indexes(case);
        let succeeded = if case.is_indexed() {
            succeeded_indexes.count()
        } else {
            settled_succeeded + count(&pending_succeeded) + count(found_succeeded)
        };
        let terminating = case.pods.iter().filter(|pod| pods::is_terminating(pod));
        Self {
            active: case
                .pods
                .iter()
                .filter(|pod| pods::is_active(pod))
                .cloned()
                .collect(),
            terminating: count(terminating),
            succeeded,
            failed: settled_failed + count(&pending_failed) + count(found_failed),
            settled_succeeded,
            settled_failed,
            pending_succeeded,
            pending_failed,
            succeeded_indexes,
            recorded_indexes,
            failed_indexes: failed_indexes(case),
        }
    }

    pub(crate) fn active_count(&self) -> i32 {
        count(&self.active)
    }
}

/// Indexes that the status has, and with those of succeeded pods.
fn succeeded_indexes(case: &Case<'_>) -> (Indexes, Indexes) {
    if !case.is_indexed() {
        return Default::default();
    }
    let text = case.status.completed_indexes.as_deref().unwrap_or_default();
    let recorded = Indexes::parse(text, completions(case));
    let mut all = recorded.clone();
    let succeeded = case
        .pods
        .iter()
        .filter(|pod| has_finalizer(pod) && has_valid_index(case, pod) && is_succeeded(pod));
    succeeded
        .filter_map(|pod| index_of(pod))
        .for_each(|index| all.insert(index));
    (recorded, all)
}

fn failed_indexes(case: &Case<'_>) -> Option<Indexes> {
    let limit = case.spec.backoff_limit_per_index?;
    let text = case.status.failed_indexes.as_deref().unwrap_or_default();
    let mut failed = Indexes::parse(text, completions(case));
    let exhausted = |pod: &&Arc<Pod>| {
        has_finalizer(pod)
            && has_valid_index(case, pod)
            && is_failed(case, pod)
            && match reaction(case, pod) {
                Reaction::FailIndex => true,
                Reaction::Ignore => false,
                _ => inherited(pod, INDEX_FAILURES) >= limit,
            }
    };
    let pods = case.pods.iter().filter(exhausted);
    pods.filter_map(|pod| index_of(pod))
        .for_each(|index| failed.insert(index));
    Some(failed)
}

/// When a pod ended.
pub(crate) fn finish_time(pod: &Pod) -> Timestamp {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let ended = |container: &ContainerStatus| {
        let state = container.state.as_ref()?.terminated.as_ref()?;
        state.finished_at.as_ref().map(|time| time.0)
    };
    let by_containers = containers.and_then(|containers| {
        let times: Option<Vec<Timestamp>> = containers.iter().map(ended).collect();
        times?.into_iter().max()
    });
    let by_condition = || {
        let ready = pods::condition(pod, "Ready").filter(|ready| ready.status == "False")?;
        ready.last_transition_time.as_ref().map(|time| time.0)
    };
    let by_deletion = || {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let at = pod.metadata.deletion_timestamp.as_ref()?.0;
        at.checked_sub(SignedDuration::from_secs(grace)).ok()
    };
    let created = || pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    by_containers
        .or_else(by_condition)
        .or_else(by_deletion)
        .or_else(created)
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// How long no pod is to be created after the failures since the last success.
pub(crate) fn creation_delay(case: &Case<'_>) -> Duration {
    let last_success = case
        .pods
        .iter()
        .filter(|pod| is_succeeded(pod))
        .map(|pod| finish_time(pod))
        .max();
    let failures: Vec<Timestamp> = case
        .pods
        .iter()
        .filter(|pod| is_failed(case, pod) && reaction(case, pod) != Reaction::Ignore)
        .map(|pod| finish_time(pod))
        .filter(|time| last_success.is_none_or(|success| *time > success))
        .collect();
    let Some(last) = failures.iter().max() else {
        return Duration::ZERO;
    };
    delay_after(
        u32::try_from(failures.len()).unwrap_or(u32::MAX),
        *last,
        case.now,
    )
}

pub(crate) fn delay_after(failures: u32, last: Timestamp, now: Timestamp) -> Duration {
    let Some(earlier) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    FAILURE_BACKOFF
        .base(earlier)
        .saturating_sub(pods::until(last, now))
}

//! Whether a Job has reached its end, and which.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::policy::{Reaction, is_success};
use super::tally::{Tally, completions, is_failed, reaction};
use super::{Case, has_finalizer};
use crate::pods;

pub(crate) const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
pub(crate) const FAILURE_TARGET: &str = "FailureTarget";

/// The end that is decided; the Job gets there when its pods are gone and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) success: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Verdict {
    fn failure(reason: &str, message: impl Into<String>) -> Self {
        Self {
            success: false,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    fn success(reason: &str, message: impl Into<String>) -> Self {
        Self {
            success: true,
            ..Self::failure(reason, message)
        }
    }

    /// The condition that announces the end.
    pub(crate) fn interim(&self) -> &'static str {
        if self.success {
            SUCCESS_CRITERIA_MET
        } else {
            FAILURE_TARGET
        }
    }

    pub(crate) fn terminal(&self) -> &'static str {
        if self.success { "Complete" } else { "Failed" }
    }
}

pub(crate) fn find<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    let conditions = status.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == "True")
}

pub(crate) fn has_ended(status: &JobStatus) -> bool {
    find(status, "Complete").is_some() || find(status, "Failed").is_some()
}

/// Decided earlier, or by what the pods show. Completions are another matter: see [`completed`].
pub(crate) fn decide(case: &Case<'_>, tally: &Tally) -> Option<Verdict> {
    announced(case)
        .or_else(|| by_failure_policy(case))
        .or_else(|| by_limits(case, tally))
        .or_else(|| by_indexes(case, tally))
}

fn announced(case: &Case<'_>) -> Option<Verdict> {
    let verdict = |condition: &JobCondition, success| Verdict {
        success,
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    };
    if let Some(met) = find(&case.status, SUCCESS_CRITERIA_MET) {
        return Some(verdict(met, true));
    }
    find(&case.status, FAILURE_TARGET).map(|target| verdict(target, false))
}

fn by_failure_policy(case: &Case<'_>) -> Option<Verdict> {
    case.spec.pod_failure_policy.as_ref()?;
    let failed = case.pods.iter().filter(|pod| is_failed(case, pod));
    let mut reactions = failed.map(|pod| reaction(case, pod));
    reactions.find_map(|reaction| match reaction {
        Reaction::FailJob(message) => Some(Verdict::failure("PodFailurePolicy", message)),
        _ => None,
    })
}

fn by_limits(case: &Case<'_>, tally: &Tally) -> Option<Verdict> {
    let limit = case.spec.backoff_limit.unwrap_or(6);
    if tally.failed > limit || restarts_exceed(case, limit) {
        let message = "Job has reached the specified backoff limit";
        return Some(Verdict::failure("BackoffLimitExceeded", message));
    }
    let deadline = deadline(case)?;
    (deadline <= case.now).then(|| {
        let message = "Job was active longer than specified deadline";
        Verdict::failure("DeadlineExceeded", message)
    })
}

/// When a running Job has taken too long.
pub(crate) fn deadline(case: &Case<'_>) -> Option<Timestamp> {
    let seconds = case.spec.active_deadline_seconds?;
    let Time(start) = case.status.start_time.as_ref()?;
    let seconds = jiff::SignedDuration::from_secs(seconds);
    start
        .checked_add(seconds)
        .ok()
        .filter(|_| !case.is_suspended())
}

/// Pods that restart their containers themselves fail by restarting too often.
fn restarts_exceed(case: &Case<'_>, limit: i32) -> bool {
    let template = case.spec.template.spec.as_ref();
    let policy = template.and_then(|spec| spec.restart_policy.as_deref());
    if policy != Some("OnFailure") {
        return false;
    }
    let running = |pod: &&std::sync::Arc<Pod>| matches!(pods::phase(pod), "Running" | "Pending");
    let restarts: i32 = case
        .pods
        .iter()
        .filter(running)
        .filter_map(|pod| pod.status.as_ref())
        .flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        })
        .map(|container| container.restart_count)
        .sum();
    restarts > 0 && restarts >= limit
}

fn by_indexes(case: &Case<'_>, tally: &Tally) -> Option<Verdict> {
    if !case.is_indexed() {
        return None;
    }
    let completions = completions(case);
    if let Some(failed) = &tally.failed_indexes {
        if case
            .spec
            .max_failed_indexes
            .is_some_and(|most| failed.count() > most)
        {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(Verdict::failure("MaxFailedIndexesExceeded", message));
        }
        let ended = failed.count() + tally.succeeded_indexes.count();
        if failed.count() > 0 && ended >= completions {
            return Some(Verdict::failure("FailedIndexes", "Job has failed indexes"));
        }
    }
    let policy = case.spec.success_policy.as_ref();
    let message = is_success(policy, &tally.succeeded_indexes, completions)?;
    Some(Verdict::success("SuccessPolicy", message))
}

/// Enough pods have succeeded and none is left.
pub(crate) fn completed(case: &Case<'_>, tally: &Tally) -> Option<Verdict> {
    if !tally.active.is_empty() {
        return None;
    }
    let enough = match case.spec.completions {
        // A work queue: the first success says that the work is done.
        None => tally.succeeded > 0,
        Some(completions) => tally.succeeded >= completions,
    };
    let message = "Reached expected number of succeeded pods";
    enough.then(|| Verdict::success("CompletionsReached", message))
}

/// Nothing is left to be waited for or counted.
pub(crate) fn is_settled(case: &Case<'_>, tally: &Tally) -> bool {
    tally.active.is_empty()
        && tally.terminating == 0
        && tally.pending_succeeded.is_empty()
        && tally.pending_failed.is_empty()
        && !case.pods.iter().any(|pod| has_finalizer(pod))
}

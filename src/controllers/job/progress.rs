//! One reconcile of a Job that has not ended: pods, status, and the counting between them.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sampan_client::ObjectKey;

use super::policy::Reaction;
use super::tally::{Tally, has_valid_index, is_failed, is_succeeded, reaction};
use super::verdict::{self, Verdict};
use super::workers;
use super::{Case, has_finalizer, release};
use crate::json::nonzero;
use crate::owner;
use crate::runtime::{Action, EventNote, Plan};

/// So many uids may stand in the status at a time.
const MOST_UNCOUNTED: usize = 500;

pub(super) fn advance(case: &Case<'_>, plan: &mut Plan) {
    let tally = Tally::of(case);
    let mut verdict = verdict::decide(case, &tally);
    if verdict.is_some() {
        workers::remove_all(case, &tally, plan);
    } else {
        if !case.is_deleting() {
            workers::manage(case, &tally, plan);
        }
        verdict = verdict::completed(case, &tally);
        if let Some(deadline) = verdict::deadline(case) {
            plan.requeue_within(crate::pods::until(case.now, deadline));
        }
    }
    let mut status = case.status.clone();
    let counted = count_ended(case, &tally, verdict.as_ref(), &mut status);
    describe(case, &tally, &mut status, plan);
    if let Some(verdict) = &verdict {
        announce(case, verdict, &mut status);
        if verdict::is_settled(case, &tally) {
            end(case, verdict, &mut status, plan);
        }
    } else {
        note_suspension(case, &mut status, plan);
    }
    let key = ObjectKey::of(&case.job.metadata);
    let write = Action::replace_status::<Job, _>(&key, &case.job.status, &status);
    if let Some(write) = write {
        plan.push(write);
    }
    // Only after their uids stand in the status may pods go.
    for pod in counted {
        plan.push(release(&pod));
    }
}

/// Puts the uids of ended pods into the status; returns those that may lose their finalizer then.
fn count_ended(
    case: &Case<'_>,
    tally: &Tally,
    verdict: Option<&Verdict>,
    status: &mut JobStatus,
) -> Vec<Arc<Pod>> {
    let mut succeeded = tally.pending_succeeded.clone();
    let mut failed = tally.pending_failed.clone();
    let mut indexes = tally.recorded_indexes.clone();
    let mut counted = Vec::new();
    let held_back = workers::replaced_by_index(case, tally);
    let everything_goes = case.is_deleting() || verdict.is_some();
    for pod in case.pods.iter().filter(|pod| has_finalizer(pod)) {
        let uid = owner::uid(&pod.metadata);
        let is_held = held_back
            .values()
            .any(|held| owner::uid(&held.metadata) == uid);
        let has_failed = is_failed(case, pod);
        let may_go = everything_goes || is_succeeded(pod) || (has_failed && !is_held);
        // Those that have just been told to go are counted when they are seen going.
        let is_leaving_now = verdict.is_some() && crate::pods::is_active(pod);
        if !may_go || is_leaving_now {
            continue;
        }
        counted.push(Arc::clone(pod));
        let known = |uids: &[String]| uids.iter().any(|one| one == uid);
        let abandoned = verdict.is_some_and(|verdict| !verdict.success);
        if is_succeeded(pod) && !known(&failed) {
            if case.is_indexed() {
                let index = super::indexes::index_of(pod).filter(|_| has_valid_index(case, pod));
                index.into_iter().for_each(|index| indexes.insert(index));
            } else if !known(&succeeded) {
                succeeded.push(uid.to_owned());
            }
        } else if (has_failed || abandoned)
            && !known(&failed)
            && has_valid_index(case, pod)
            && reaction(case, pod) != Reaction::Ignore
        {
            failed.push(uid.to_owned());
        }
        if succeeded.len() + failed.len() >= MOST_UNCOUNTED {
            break;
        }
    }
    let list = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
    status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
        succeeded: list(succeeded),
        failed: list(failed),
    });
    status.failed = nonzero(tally.settled_failed);
    if case.is_indexed() {
        status.succeeded = nonzero(indexes.count());
        status.completed_indexes = Some(indexes.to_string()).filter(|text| !text.is_empty());
        status.failed_indexes = tally.failed_indexes.as_ref().map(ToString::to_string);
    } else {
        status.succeeded = nonzero(tally.settled_succeeded);
    }
    counted
}

/// What can be counted at any time.
fn describe(case: &Case<'_>, tally: &Tally, status: &mut JobStatus, plan: &mut Plan) {
    let ready = tally.active.iter().filter(|pod| crate::pods::is_ready(pod));
    status.active = nonzero(tally.active_count());
    status.ready = Some(i32::try_from(ready.count()).unwrap_or(i32::MAX));
    status.terminating = Some(tally.terminating);
    if status.start_time.is_none() && !case.is_suspended() {
        status.start_time = Some(Time(case.now));
        if let Some(seconds) = case.spec.active_deadline_seconds {
            plan.requeue_within(std::time::Duration::from_secs(seconds.unsigned_abs()));
        }
    }
}

fn condition(
    case: &Case<'_>,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(case.now)),
        last_transition_time: Some(Time(case.now)),
    }
}

fn announce(case: &Case<'_>, verdict: &Verdict, status: &mut JobStatus) {
    if verdict::find(status, verdict.interim()).is_none() {
        let condition = condition(
            case,
            verdict.interim(),
            "True",
            &verdict.reason,
            &verdict.message,
        );
        status.conditions.get_or_insert_default().push(condition);
    }
}

fn end(case: &Case<'_>, verdict: &Verdict, status: &mut JobStatus, plan: &mut Plan) {
    let condition = condition(
        case,
        verdict.terminal(),
        "True",
        &verdict.reason,
        &verdict.message,
    );
    status.conditions.get_or_insert_default().push(condition);
    if verdict.success {
        status.completion_time = Some(Time(case.now));
        plan.events
            .push(EventNote::normal(case.job, "Completed", "Job completed"));
    } else {
        // Reasons of failures are few: their texts are known here.
        let reason = match verdict.reason.as_str() {
            "DeadlineExceeded" => "DeadlineExceeded",
            "PodFailurePolicy" => "PodFailurePolicy",
            "MaxFailedIndexesExceeded" => "MaxFailedIndexesExceeded",
            "FailedIndexes" => "FailedIndexes",
            _ => "BackoffLimitExceeded",
        };
        plan.events.push(EventNote::warning(
            case.job,
            reason,
            verdict.message.clone(),
        ));
    }
}

fn note_suspension(case: &Case<'_>, status: &mut JobStatus, plan: &mut Plan) {
    let suspended = case.is_suspended();
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter().position(|one| one.type_ == "Suspended");
    let (value, reason, message, event) = if suspended {
        ("True", "JobSuspended", "Job suspended", "Suspended")
    } else {
        ("False", "JobResumed", "Job resumed", "Resumed")
    };
    let is_so = known.map(|at| conditions[at].status == value);
    // A Job that never was suspended says nothing about it.
    if is_so.unwrap_or(!suspended) {
        status.conditions = status.conditions.take().filter(|list| !list.is_empty());
        return;
    }
    let new = condition(case, "Suspended", value, reason, message);
    match known {
        Some(at) => conditions[at] = new,
        None => conditions.push(new),
    }
    if !suspended {
        status.start_time = Some(Time(case.now));
    }
    plan.events
        .push(EventNote::normal(case.job, event, message));
}

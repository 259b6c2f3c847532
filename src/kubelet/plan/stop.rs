//! The way down: why a pod stops, in which order, and what is left to do afterwards.

use super::{Action, Observed, Plan, Verdict, Volumes};
use crate::pod;
use crate::state::Instance;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Probe};

/// What a container gets even if no grace is left: enough to notice the signal.
pub const MINIMUM_GRACE: i64 = 2;

/// The pod is to stop, with this much time for its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    pub since: Timestamp,
    pub grace: i64,
}

/// The grace that deletion asks for, else the pod's own.
pub fn termination_grace(pod: &Pod) -> i64 {
    pod.metadata
        .deletion_grace_period_seconds
        .or(pod::spec(pod).termination_grace_period_seconds)
        .unwrap_or(MINIMUM_GRACE)
}

/// A failed probe may bring its own grace, unless the pod is being deleted.
pub(super) fn probe_grace(pod: &Pod, probe: Option<&Probe>) -> i64 {
    probe
        .filter(|_| pod.metadata.deletion_grace_period_seconds.is_none())
        .and_then(|p| p.termination_grace_period_seconds)
        .unwrap_or_else(|| termination_grace(pod))
}

/// When `activeDeadlineSeconds` runs out.
pub(super) fn deadline(observed: &Observed<'_>) -> Option<Timestamp> {
    let seconds = pod::spec(observed.pod).active_deadline_seconds?;
    let start = observed.previous.start_time.as_ref()?.0;
    Some(start + SignedDuration::from_secs(seconds))
}

pub(super) fn deadline_verdict(observed: &Observed<'_>) -> Option<Verdict> {
    (observed.now >= deadline(observed)?).then(|| Verdict {
        reason: "DeadlineExceeded".to_owned(),
        message: "Pod was active on the node longer than the specified deadline".to_owned(),
        refused: false,
        grace: None,
    })
}

/// Whether the pod has to stop, or is stopping already.
pub(super) fn decide(
    observed: &Observed<'_>,
    has_finished: bool,
    verdict: Option<&Verdict>,
) -> Option<Stop> {
    let stops = observed.is_gone
        || observed.stopping_since.is_some()
        || pod::is_being_deleted(observed.pod)
        || verdict.is_some()
        || has_finished
        || pod::is_terminal_phase(pod::phase(observed.pod));
    stops.then(|| Stop {
        since: observed.stopping_since.unwrap_or(observed.now),
        grace: verdict
            .and_then(|v| v.grace)
            .unwrap_or_else(|| termination_grace(observed.pod)),
    })
}

pub(super) fn plan(observed: &Observed<'_>, plan: &mut Plan) {
    let busy = observed.busy;
    if !busy.starting.is_empty() || busy.mounting {
        plan.actions.push(Action::CancelStart);
    }
    if stop_containers(observed, plan) || busy.creating_sandbox {
        return;
    }
    if stop_sandboxes(observed, plan) {
        return;
    }
    if observed.volumes != Volumes::Released {
        if !busy.releasing && !busy.mounting {
            plan.actions.push(Action::Release);
        }
        return;
    }
    if observed.is_gone {
        plan_purge(observed, plan);
    } else if pod::is_being_deleted(observed.pod) && observed.is_reported && !busy.deleting {
        plan.actions.push(Action::Delete);
    }
}

fn plan_purge(observed: &Observed<'_>, plan: &mut Plan) {
    if observed.is_purged {
        plan.actions.push(Action::Retire);
    } else if !observed.busy.purging {
        plan.actions.push(Action::Purge);
    }
}

/// Kills what runs: sidecars last, and among them the first one last. True while anything runs.
fn stop_containers(observed: &Observed<'_>, plan: &mut Plan) -> bool {
    let Some(stop) = plan.stop.clone() else {
        return false;
    };
    let (sidecars, others): (Vec<&Instance>, Vec<&Instance>) = observed
        .runtime
        .live()
        .partition(|i| sidecar_index(observed.pod, &i.name).is_some());
    let turn: Vec<&Instance> = if others.is_empty() {
        sidecars
            .into_iter()
            .max_by_key(|i| sidecar_index(observed.pod, &i.name))
            .into_iter()
            .collect()
    } else {
        others
    };
    for instance in &turn {
        kill(observed, instance, &stop, plan);
    }
    !turn.is_empty()
}

fn kill(observed: &Observed<'_>, instance: &Instance, stop: &Stop, plan: &mut Plan) {
    let elapsed = observed.now.duration_since(stop.since).as_secs();
    let grace = (stop.grace - elapsed).max(if stop.grace > 0 { 1 } else { MINIMUM_GRACE });
    // A shorter grace that arrives later is enforced by a second kill; passing time is not one.
    let whole = stop.grace.max(MINIMUM_GRACE);
    let given = observed.busy.killing.get(&instance.id);
    if given.is_some_and(|given| *given <= whole) {
        return;
    }
    plan.actions.push(Action::Kill {
        id: instance.id.clone(),
        name: instance.name.clone(),
        message: format!("Stopping container {}", instance.name),
        grace,
        redefined: false,
    });
}

fn sidecar_index(pod: &Pod, name: &str) -> Option<usize> {
    pod::init_containers(pod)
        .iter()
        .position(|c| c.name == name && pod::is_sidecar(c))
}

fn stop_sandboxes(observed: &Observed<'_>, plan: &mut Plan) -> bool {
    let stopping = &observed.busy.stopping_sandboxes;
    let mut anything = !stopping.is_empty();
    for sandbox in observed.runtime.ready_sandboxes() {
        anything = true;
        if !stopping.contains(&sandbox.id) {
            plan.actions.push(Action::StopSandbox(sandbox.id.clone()));
        }
    }
    anything
}

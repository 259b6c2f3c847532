//! What to do next for one pod: a pure function from what is observed to a list of actions.
//!
//! The worker of the pod calls [`plan_pod`] after every change and executes what comes back; it is
//! level-triggered and never learns why it was called. Work that is under way is part of the
//! observation ([`Busy`]), so nothing is asked for twice. Upstream counterpart: `computePodActions`
//! of `kuberuntime` and the state machine of `pod_workers`.

mod containers;
mod resize;
mod stop;

#[cfg(test)]
mod tests;

use crate::backoff::Backoff;
use crate::pod;
use crate::state::PodRuntime;
use crate::status;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use std::collections::{HashMap, HashSet};
use std::fmt;

pub use containers::{
    Changes, SandboxNeed, changes, crash_key, in_crash_backoff, needs_start, sandbox_need,
};
pub use resize::{Resize, ResizePending, is_resizing, resize_of};
pub use stop::{MINIMUM_GRACE, Stop, termination_grace};

/// Verdicts of the probes on one run of a container; `None` until a threshold was reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeState {
    pub startup: Option<bool>,
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
}

/// Why a container could not be started, and when to try again.
#[derive(Debug, Clone, PartialEq)]
pub struct StartFailure {
    pub reason: String,
    pub message: String,
    pub at: Timestamp,
    pub retry_at: Timestamp,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Volumes {
    #[default]
    Unmounted,
    Mounted,
    /// Mounted, and some content has to be written again.
    Stale,
    /// Taken down for good.
    Released,
}

/// The node decided against this pod: it was refused, evicted, or ran out of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub reason: String,
    pub message: String,
    /// It never ran here: nothing but the verdict is reported.
    pub refused: bool,
    /// Shorter than the pod's own, where there is a hurry.
    pub grace: Option<i64>,
}

/// Work that is under way.
#[derive(Debug, Clone, Default)]
pub struct Busy {
    pub mounting: bool,
    pub creating_sandbox: bool,
    /// Names of the containers in the running start sequences, not yet started.
    pub starting: HashSet<String>,
    /// Container ids being stopped and the grace they were given.
    pub killing: HashMap<String, i64>,
    pub stopping_sandboxes: HashSet<String>,
    pub removing: HashSet<String>,
    pub resizing: bool,
    pub releasing: bool,
    pub deleting: bool,
    pub purging: bool,
}

/// Everything that a decision about a pod depends on.
pub struct Observed<'a> {
    pub pod: &'a Pod,
    /// The status last reported, or the API's if nothing was reported yet.
    pub previous: &'a PodStatus,
    pub runtime: &'a PodRuntime,
    pub probes: &'a HashMap<String, ProbeState>,
    pub failures: &'a HashMap<String, StartFailure>,
    pub crashes: &'a Backoff,
    /// Ids of containers killed because their definition changed.
    pub redefined: &'a HashSet<String>,
    /// What runs of containers were given, by id.
    pub actuated: &'a HashMap<String, ResourceRequirements>,
    /// The node cannot give what the pod asks for.
    pub resize_pending: Option<&'a ResizePending>,
    /// Why the last resize failed.
    pub resize_error: Option<&'a str>,
    pub volumes: Volumes,
    /// Setting up volumes failed; not to be tried again before.
    pub mount_retry_at: Option<Timestamp>,
    pub busy: &'a Busy,
    pub verdict: Option<&'a Verdict>,
    /// When stopping began.
    pub stopping_since: Option<Timestamp>,
    /// The API object is gone (or was replaced by one of the same name).
    pub is_gone: bool,
    /// The API server has accepted the terminal status.
    pub is_reported: bool,
    /// Nothing of the pod is left in the runtime or on disk.
    pub is_purged: bool,
    pub network_ready: bool,
    pub host_ips: &'a [String],
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Mount,
    CreateSandbox {
        attempt: u32,
        /// The sandbox before it, whose network may still be set up.
        replaces: Option<String>,
    },
    /// Start these containers one after another.
    Start(Vec<String>),
    CancelStart,
    Kill {
        id: String,
        name: String,
        message: String,
        grace: i64,
        /// The kill is due to a changed definition.
        redefined: bool,
    },
    /// Give these running containers what they ask for.
    Resize(Vec<String>),
    StopSandbox(String),
    RemoveContainer(String),
    RemoveSandbox(String),
    /// Take down volumes and cgroup.
    Release,
    /// Delete the API object for good.
    Delete,
    /// Remove containers, sandboxes, logs and directories.
    Purge,
    /// The worker is no longer needed.
    Retire,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount => write!(f, "mount"),
            Self::CreateSandbox { attempt, .. } => write!(f, "create sandbox {attempt}"),
            Self::Start(names) => write!(f, "start {}", names.join(",")),
            Self::CancelStart => write!(f, "cancel start"),
            Self::Kill { name, grace, .. } => write!(f, "kill {name} in {grace}s"),
            Self::Resize(names) => write!(f, "resize {}", names.join(",")),
            Self::StopSandbox(id) => write!(f, "stop sandbox {id}"),
            Self::RemoveContainer(id) => write!(f, "remove container {id}"),
            Self::RemoveSandbox(id) => write!(f, "remove sandbox {id}"),
            Self::Release => write!(f, "release"),
            Self::Delete => write!(f, "delete"),
            Self::Purge => write!(f, "purge"),
            Self::Retire => write!(f, "retire"),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub status: PodStatus,
    /// Set once the pod is to stop; it never starts again.
    pub stop: Option<Stop>,
    /// The pod stops because its time has run out.
    pub late: Option<Verdict>,
    /// Containers that wait out a crash back-off now, and until when.
    pub backing_off: Vec<(String, Timestamp)>,
    /// A sandbox is needed, and there is no network for it.
    pub waits_for_network: bool,
    /// Plan again at this time even if nothing changes.
    pub wake_at: Option<Timestamp>,
}

impl Observed<'_> {
    /// Nothing of the pod runs, and nothing is being started.
    pub fn is_stopped(&self) -> bool {
        self.runtime.live().next().is_none()
            && self.runtime.ready_sandboxes().next().is_none()
            && self.busy.stopping_sandboxes.is_empty()
            && self.busy.starting.is_empty()
            && !self.busy.creating_sandbox
    }

    /// The pod is on its way down.
    pub fn is_stopping(&self) -> bool {
        self.stopping_since.is_some() || self.is_gone || pod::is_being_deleted(self.pod)
    }
}

impl Plan {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Decides what to do and what to report for a pod.
pub fn plan_pod(observed: &Observed<'_>) -> Plan {
    let deadline = stop::deadline_verdict(observed);
    let verdict = observed.verdict.or(deadline.as_ref());
    let rendered = status::render(observed, verdict);
    let mut plan = Plan {
        stop: stop::decide(observed, rendered.has_finished, verdict),
        status: rendered.status,
        ..Plan::default()
    };
    if plan.stop.is_some() {
        stop::plan(observed, &mut plan);
    } else {
        plan_running(observed, &mut plan);
        let times = [stop::deadline(observed), status::next_change(observed)];
        for at in times.into_iter().flatten() {
            plan.wake(at);
        }
    }
    plan.late = deadline.filter(|_| observed.verdict.is_none());
    plan
}

/// The pod is to run: volumes, sandbox, containers, in this order.
fn plan_running(observed: &Observed<'_>, plan: &mut Plan) {
    let busy = observed.busy;
    let needs_mount = matches!(observed.volumes, Volumes::Unmounted | Volumes::Stale);
    if needs_mount && !busy.mounting {
        match observed.mount_retry_at.filter(|at| observed.now < *at) {
            Some(at) => plan.wake(at),
            None => plan.actions.push(Action::Mount),
        }
    }
    if observed.volumes == Volumes::Unmounted || busy.creating_sandbox {
        return;
    }
    let changes = changes(observed);
    if changes.kill_pod {
        if !stop_everything(observed, plan)
            && let Some(need) = &changes.create_sandbox
        {
            if !observed.network_ready && !pod::is_host_network(observed.pod) {
                plan.waits_for_network = true;
                return;
            }
            purge_init_containers(observed, plan);
            plan.actions.push(Action::CreateSandbox {
                attempt: need.attempt,
                replaces: need.replaces.clone(),
            });
        }
        return;
    }
    plan.actions.extend(changes.kill.iter().cloned());
    if !changes.resize.is_empty() && !busy.resizing {
        plan.actions.push(Action::Resize(changes.resize.clone()));
    }
    // Runs being removed must not be taken for the newest ones.
    if !busy.removing.is_empty() && !pod::init_containers(observed.pod).is_empty() {
        return;
    }
    plan_starts(observed, &changes, plan);
    prune(observed, plan);
}

/// Stops whatever still runs; false if nothing does.
fn stop_everything(observed: &Observed<'_>, plan: &mut Plan) -> bool {
    let mut anything = false;
    let grace = termination_grace(observed.pod);
    for instance in observed.runtime.live() {
        anything = true;
        if !observed.busy.killing.contains_key(&instance.id) {
            plan.actions.push(Action::Kill {
                id: instance.id.clone(),
                name: instance.name.clone(),
                message: format!("Stopping container {}", instance.name),
                grace,
                redefined: false,
            });
        }
    }
    if anything {
        return true;
    }
    for sandbox in observed.runtime.ready_sandboxes() {
        anything = true;
        if !observed.busy.stopping_sandboxes.contains(&sandbox.id) {
            plan.actions.push(Action::StopSandbox(sandbox.id.clone()));
        }
    }
    anything || !observed.busy.stopping_sandboxes.is_empty()
}

/// A new sandbox starts from the first init container, so earlier runs must not count.
fn purge_init_containers(observed: &Observed<'_>, plan: &mut Plan) {
    let names: HashSet<&str> = pod::init_containers(observed.pod)
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    for instance in &observed.runtime.instances {
        let is_wanted = names.contains(instance.name.as_str());
        if is_wanted && !observed.busy.removing.contains(&instance.id) {
            plan.actions
                .push(Action::RemoveContainer(instance.id.clone()));
        }
    }
}

fn plan_starts(observed: &Observed<'_>, changes: &Changes, plan: &mut Plan) {
    let starting = &observed.busy.starting;
    for name in &changes.start_ephemeral {
        if !starting.contains(name) && may_start(observed, name, plan) {
            plan.actions.push(Action::Start(vec![name.clone()]));
        }
    }
    let ephemeral: HashSet<&str> = pod::spec(observed.pod)
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|c| c.name.as_str())
        .collect();
    let sequence_runs = starting.iter().any(|n| !ephemeral.contains(n.as_str()));
    let candidates = changes.start_init.iter().chain(&changes.start);
    let names: Vec<String> = candidates
        .filter(|name| may_start(observed, name, plan))
        .cloned()
        .collect();
    if !names.is_empty() && !sequence_runs {
        plan.actions.push(Action::Start(names));
    }
}

/// Whether neither a back-off nor a kill under way forbids a start now.
fn may_start(observed: &Observed<'_>, name: &str, plan: &mut Plan) -> bool {
    let latest = observed.runtime.latest(name);
    if latest.is_some_and(|i| observed.busy.killing.contains_key(&i.id)) {
        return false;
    }
    if let Some(until) = in_crash_backoff(observed, name) {
        plan.backing_off.push((name.to_owned(), until));
        plan.wake(until);
        return false;
    }
    if let Some(failure) = observed.failures.get(name)
        && observed.now < failure.retry_at
    {
        plan.wake(failure.retry_at);
        let flip = failure.at + status::PULL_ERROR_SHOWN;
        if failure.reason == status::ERR_IMAGE_PULL && observed.now < flip {
            plan.wake(flip);
        }
        return false;
    }
    true
}

/// Of every container the newest run and the one before it are kept, of sandboxes the newest.
fn prune(observed: &Observed<'_>, plan: &mut Plan) {
    const KEPT_RUNS: usize = 2;
    let runtime = observed.runtime;
    let removing = &observed.busy.removing;
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for instance in &runtime.instances {
        let count = seen.entry(&instance.name).or_default();
        *count += 1;
        if *count > KEPT_RUNS && !instance.is_live() && !removing.contains(&instance.id) {
            plan.actions
                .push(Action::RemoveContainer(instance.id.clone()));
        }
    }
    for sandbox in runtime.sandboxes.iter().skip(1) {
        let is_used = runtime.instances.iter().any(|i| i.sandbox_id == sandbox.id);
        if !sandbox.ready && !is_used && !removing.contains(&sandbox.id) {
            plan.actions.push(Action::RemoveSandbox(sandbox.id.clone()));
        }
    }
}

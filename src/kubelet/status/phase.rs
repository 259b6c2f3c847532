//! The phase of a pod, from the states of its containers. Upstream counterpart: `getPhase`.

use crate::plan::Observed;
use crate::pod;
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, PodStatus};

#[derive(Default)]
struct Tally {
    pending_init: u32,
    pending_sidecars: u32,
    failed_init: u32,
    unknown: u32,
    running: u32,
    waiting: u32,
    stopped: u32,
    stopped_for_good: u32,
    succeeded: u32,
}

enum Seen {
    Running,
    /// The exit code of the run that ended, and whether it is the current state.
    Ended {
        code: i32,
        is_current: bool,
    },
    Waiting,
    Unknown,
}

pub(super) fn compute(
    observed: &Observed<'_>,
    status: &PodStatus,
    is_terminal: bool,
) -> &'static str {
    let tally = tally(observed, status);
    let initialized = has_started_regular(observed);
    if tally.failed_init > 0 {
        return "Failed";
    }
    if tally.pending_init > 0 || (tally.pending_sidecars > 0 && !initialized) || tally.waiting > 0 {
        return "Pending";
    }
    if tally.unknown > 0 {
        return "Pending";
    }
    if tally.running > 0 {
        return "Running";
    }
    if tally.stopped == 0 {
        return "Pending";
    }
    if !is_terminal && tally.stopped != tally.stopped_for_good {
        return "Running";
    }
    if tally.stopped == tally.succeeded {
        "Succeeded"
    } else {
        "Failed"
    }
}

fn has_started_regular(observed: &Observed<'_>) -> bool {
    let Some(sandbox) = observed.runtime.sandboxes.first() else {
        return false;
    };
    pod::spec(observed.pod).containers.iter().any(|c| {
        observed
            .runtime
            .runs(&c.name)
            .any(|i| i.sandbox_id == sandbox.id)
    })
}

fn tally(observed: &Observed<'_>, status: &PodStatus) -> Tally {
    let mut tally = Tally::default();
    let spec = pod::spec(observed.pod);
    let init = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    for container in pod::init_containers(observed.pod) {
        let row = find(init, container);
        if pod::is_sidecar(container) {
            tally.sidecar(row);
        } else {
            let restarts = |code| pod::restarts_after(container, spec, code);
            tally.plain_init(row, restarts);
        }
    }
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    for container in &spec.containers {
        let restarts = |code| pod::restarts_after(container, spec, code);
        tally.regular(find(regular, container), restarts);
    }
    tally
}

fn find<'a>(rows: &'a [ContainerStatus], container: &Container) -> Option<&'a ContainerStatus> {
    rows.iter().find(|row| row.name == container.name)
}

fn seen(row: Option<&ContainerStatus>) -> Seen {
    let Some(row) = row else {
        return Seen::Unknown;
    };
    let ended = |state: Option<&ContainerState>| {
        state
            .and_then(|s| s.terminated.as_ref())
            .map(|t| t.exit_code)
    };
    let state = row.state.as_ref();
    if state.is_some_and(|s| s.running.is_some()) {
        return Seen::Running;
    }
    if let Some(code) = ended(state) {
        return Seen::Ended {
            code,
            is_current: true,
        };
    }
    if state.is_none_or(|s| s.waiting.is_none()) {
        return Seen::Unknown;
    }
    match ended(row.last_state.as_ref()) {
        Some(code) => Seen::Ended {
            code,
            is_current: false,
        },
        None => Seen::Waiting,
    }
}

impl Tally {
    fn plain_init(&mut self, row: Option<&ContainerStatus>, restarts: impl Fn(i32) -> bool) {
        match seen(row) {
            Seen::Ended { code, .. } => {
                self.failed_init += u32::from(code != 0 && !restarts(code));
            }
            _ => self.pending_init += 1,
        }
    }

    fn sidecar(&mut self, row: Option<&ContainerStatus>) {
        match seen(row) {
            Seen::Running => {
                let started = row.is_some_and(|r| r.started == Some(true));
                self.pending_sidecars += u32::from(!started);
                self.running += 1;
            }
            Seen::Ended { .. } => {}
            Seen::Waiting => {
                self.pending_sidecars += 1;
                self.waiting += 1;
            }
            Seen::Unknown => {
                self.pending_sidecars += u32::from(row.is_some());
                self.unknown += 1;
            }
        }
    }

    fn regular(&mut self, row: Option<&ContainerStatus>, restarts: impl Fn(i32) -> bool) {
        match seen(row) {
            Seen::Running => self.running += 1,
            Seen::Ended { code, is_current } => {
                self.stopped += 1;
                self.stopped_for_good += u32::from(!restarts(code));
                self.succeeded += u32::from(is_current && code == 0);
            }
            Seen::Waiting => self.waiting += 1,
            Seen::Unknown => self.unknown += 1,
        }
    }
}

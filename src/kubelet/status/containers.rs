//! The status of every container. Upstream counterpart: `convertToAPIContainerStatuses` and the
//! readiness part of the probe manager.

use super::{ERR_IMAGE_PULL, PULL_ERROR_SHOWN, wire_time};
use crate::backoff::go_duration;
use crate::plan::{Observed, crash_key, in_crash_backoff, needs_start};
use crate::pod::{self, ContainerKind};
use crate::state::{Instance, RunState};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus,
    VolumeMountStatus,
};

const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
const KILLED: i32 = 137;

pub(super) fn render(observed: &Observed<'_>, is_terminal: bool, status: &mut PodStatus) {
    let (mut init, mut regular, mut ephemeral) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, container) in pod::containers(observed.pod) {
        let row = Row {
            observed,
            kind,
            container: &container,
            before: previous(observed, kind, &container.name),
        };
        let rendered = row.render();
        match kind {
            ContainerKind::Init => init.push(rendered),
            ContainerKind::Regular => regular.push(rendered),
            ContainerKind::Ephemeral => ephemeral.push(rendered),
        }
    }
    if is_terminal {
        settle(observed, &mut init, &mut regular);
    }
    regular.sort_by(|a, b| a.name.cmp(&b.name));
    ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
    let filled = |rows: Vec<ContainerStatus>| (!rows.is_empty()).then_some(rows);
    status.init_container_statuses = filled(init);
    status.container_statuses = filled(regular);
    status.ephemeral_container_statuses = filled(ephemeral);
}

fn previous<'a>(
    observed: &'a Observed<'_>,
    kind: ContainerKind,
    name: &str,
) -> Option<&'a ContainerStatus> {
    let status = observed.previous;
    let rows = match kind {
        ContainerKind::Init => &status.init_container_statuses,
        ContainerKind::Regular => &status.container_statuses,
        ContainerKind::Ephemeral => &status.ephemeral_container_statuses,
    };
    rows.iter().flatten().find(|row| row.name == name)
}

struct Row<'a, 'o> {
    observed: &'a Observed<'o>,
    kind: ContainerKind,
    container: &'a Container,
    before: Option<&'a ContainerStatus>,
}

impl Row<'_, '_> {
    fn render(&self) -> ContainerStatus {
        let runtime = self.observed.runtime;
        let name = self.container.name.as_str();
        let mut runs = runtime.runs(name);
        let mut row = match runs.next() {
            None => self.without_run(),
            Some(newest) => self.with_run(newest, runs.next()),
        };
        self.explain_waiting(&mut row);
        self.set_readiness(&mut row);
        row
    }

    fn waiting_default(&self) -> ContainerState {
        let reason = if pod::init_containers(self.observed.pod).is_empty() {
            "ContainerCreating"
        } else {
            "PodInitializing"
        };
        waiting(reason, None)
    }

    fn blank(&self) -> ContainerStatus {
        ContainerStatus {
            name: self.container.name.clone(),
            image: self.container.image.clone().unwrap_or_default(),
            state: Some(self.waiting_default()),
            last_state: Some(ContainerState::default()),
            volume_mounts: self.volume_mounts(),
            ..ContainerStatus::default()
        }
    }

    fn volume_mounts(&self) -> Option<Vec<VolumeMountStatus>> {
        let mounts = self.container.volume_mounts.as_ref()?;
        let rows = mounts.iter().map(|mount| {
            let read_only = mount.read_only.unwrap_or(false);
            VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: read_only.then_some(true),
                recursive_read_only: read_only.then(|| "Disabled".to_owned()),
                volume_status: None,
            }
        });
        Some(rows.collect())
    }

    /// The runtime knows nothing of this container: never started, or removed.
    fn without_run(&self) -> ContainerStatus {
        let mut row = self.blank();
        let Some(before) = self.before else {
            return row;
        };
        if terminated(before.state.as_ref()).is_some() {
            return before.clone();
        }
        row.restart_count = before.restart_count;
        row.last_state = before.last_state.clone();
        let ran = before.state.as_ref().is_some_and(|s| s.running.is_some());
        if ran && terminated(row.last_state.as_ref()).is_none() {
            row.last_state = Some(lost(
                "The container could not be located when the pod was deleted.  The container used to be Running",
            ));
            row.restart_count += i32::from(!pod::is_being_deleted(self.observed.pod));
        }
        row
    }

    fn with_run(&self, newest: &Instance, older: Option<&Instance>) -> ContainerStatus {
        let before = self.before;
        let container_id = container_id(newest);
        let asked = self.container.resources.clone().unwrap_or_default();
        // A run has what it was given, which may not be what is asked for by now.
        let given = self.observed.actuated.get(&newest.id);
        let resources = given
            .filter(|_| newest.state == RunState::Running)
            .cloned()
            .unwrap_or_else(|| asked.clone());
        let allocated = if self.observed.resize_pending.is_some() {
            &resources
        } else {
            &asked
        };
        let restarts = i32::try_from(newest.restart_count).unwrap_or(i32::MAX);
        let mut row = ContainerStatus {
            image: newest.image.clone(),
            image_id: newest.image_ref.clone(),
            container_id: Some(container_id.clone()),
            restart_count: before.map_or(restarts, |b| restarts.max(b.restart_count)),
            allocated_resources: allocated.requests.clone(),
            resources: Some(resources),
            user: user(newest),
            state: Some(self.state(newest)),
            ..self.blank()
        };
        let known = before.filter(|b| b.container_id.as_ref() != Some(&container_id));
        row.last_state = if let Some(older) = older {
            Some(self.state(older))
        } else if let Some(ended) = known.filter(|b| terminated(b.state.as_ref()).is_some()) {
            ended.state.clone()
        } else {
            before
                .and_then(|b| b.last_state.clone())
                .or_else(|| Some(ContainerState::default()))
        };
        row
    }

    fn state(&self, instance: &Instance) -> ContainerState {
        match instance.state {
            // A container counts as running once its postStart hook is through.
            RunState::Running if !self.observed.busy.starting.contains(&instance.name) => {
                ContainerState {
                    running: Some(ContainerStateRunning {
                        started_at: instance.started_at.map(wire_time),
                    }),
                    ..ContainerState::default()
                }
            }
            RunState::Exited => ContainerState {
                terminated: Some(ContainerStateTerminated {
                    container_id: Some(container_id(instance)),
                    exit_code: instance.exit_code,
                    reason: text(&instance.reason),
                    message: text(&instance.message),
                    started_at: instance.started_at.map(wire_time),
                    finished_at: instance.finished_at.map(wire_time),
                    signal: None,
                }),
                ..ContainerState::default()
            },
            RunState::Unknown if self.was_running() => {
                lost("The container could not be located when the pod was terminated")
            }
            _ => waiting("ContainerCreating", None),
        }
    }

    fn was_running(&self) -> bool {
        self.before
            .and_then(|b| b.state.as_ref())
            .is_some_and(|s| s.running.is_some())
    }

    /// A container that will be started again is waiting, and says for what.
    fn explain_waiting(&self, row: &mut ContainerStatus) {
        if self.observed.is_stopping() {
            return;
        }
        let name = self.container.name.as_str();
        let latest = self.observed.runtime.latest(name);
        if self.kind == ContainerKind::Init && latest.is_some_and(Instance::has_succeeded) {
            return;
        }
        let starting = self.observed.busy.starting.contains(name);
        // A pull that is tried again may fail again: until it has not, what is known stays said.
        if (starting && !self.failed_to_pull()) || !self.will_start() {
            return;
        }
        let Some(state) = self.waiting_reason() else {
            return;
        };
        if terminated(row.state.as_ref()).is_some() {
            row.last_state = row.state.take();
        }
        row.state = Some(state);
    }

    fn will_start(&self) -> bool {
        match self.kind {
            ContainerKind::Ephemeral => {
                let name = self.container.name.as_str();
                self.observed.runtime.latest(name).is_none()
            }
            _ => needs_start(self.observed, self.container),
        }
    }

    fn failed_to_pull(&self) -> bool {
        let failure = self.observed.failures.get(&self.container.name);
        failure.is_some_and(|failure| failure.reason == ERR_IMAGE_PULL)
    }

    fn waiting_reason(&self) -> Option<ContainerState> {
        let observed = self.observed;
        let name = self.container.name.as_str();
        if in_crash_backoff(observed, name).is_some() {
            let delay = go_duration(observed.crashes.delay(&crash_key(self.container)));
            let message = format!(
                "back-off {delay} restarting failed container={name} pod={}",
                pod::describe(observed.pod)
            );
            return Some(waiting("CrashLoopBackOff", Some(message)));
        }
        let failure = observed.failures.get(name)?;
        let waits = observed.now >= failure.at + PULL_ERROR_SHOWN;
        let backs_off = observed.now < failure.retry_at || observed.busy.starting.contains(name);
        if failure.reason == ERR_IMAGE_PULL && waits && backs_off {
            let image = self.container.image.as_deref().unwrap_or_default();
            let message = format!(
                "Back-off pulling image {image:?}: {ERR_IMAGE_PULL}: {}",
                failure.message
            );
            return Some(waiting("ImagePullBackOff", Some(message)));
        }
        Some(waiting(&failure.reason, text(&failure.message)))
    }

    fn set_readiness(&self, row: &mut ContainerStatus) {
        if self.kind == ContainerKind::Ephemeral {
            return;
        }
        let is_running = row.state.as_ref().is_some_and(|s| s.running.is_some());
        let probes = self
            .observed
            .runtime
            .latest(&self.container.name)
            .and_then(|i| self.observed.probes.get(&i.id))
            .copied()
            .unwrap_or_default();
        // After a restart of the agent the old verdict stands until the probes have spoken.
        let same = self.before.filter(|b| b.container_id == row.container_id);
        let started = is_running
            && (self.container.startup_probe.is_none()
                || probes
                    .startup
                    .or(same.and_then(|b| b.started))
                    .unwrap_or(false));
        let ready = started
            && (self.container.readiness_probe.is_none()
                || probes.readiness.or(same.map(|b| b.ready)).unwrap_or(false))
            && attachable_at(self.observed, self.container)
                .is_none_or(|at| self.observed.now >= at);
        row.started = Some(started);
        row.ready = if self.kind == ContainerKind::Init && !pod::is_sidecar(self.container) {
            terminated(row.state.as_ref()).is_some_and(|t| t.exit_code == 0)
        } else {
            ready
        };
    }
}

/// How long a container that takes input runs before it counts as ready.
const ATTACHABLE_AFTER: SignedDuration = SignedDuration::from_secs(1);

/// When a running container that takes input counts as ready.
///
/// Who runs such a container waits until it is ready and then attaches, and whoever attaches to one that is at its end
/// already gets nothing of what it said. One that ends at once is seen ended instead, and its log is read. Upstream's
/// kubelet has the same pause by its nature: it looks at what runs once a second.
fn attachable_at(observed: &Observed<'_>, container: &Container) -> Option<Timestamp> {
    let run = observed.runtime.latest(&container.name)?;
    let waits = container.stdin == Some(true) && run.state == RunState::Running;
    // A clock that was set back makes nobody wait for it.
    let started = run.started_at.filter(|at| waits && *at <= observed.now)?;
    Some(started + ATTACHABLE_AFTER)
}

/// When the status will be another one without anything happening.
pub(crate) fn next_change(observed: &Observed<'_>) -> Option<Timestamp> {
    let containers = pod::containers(observed.pod);
    let times = containers.filter_map(|(_, container)| attachable_at(observed, &container));
    times.filter(|at| *at > observed.now).min()
}

/// Once nothing runs any more, a container whose end nobody saw counts as failed.
fn settle(observed: &Observed<'_>, init: &mut [ContainerStatus], regular: &mut [ContainerStatus]) {
    let message = "The container could not be located when the pod was terminated";
    if has_initialized(observed, init, regular) {
        for row in regular.iter_mut() {
            if terminated(row.state.as_ref()).is_none() {
                row.state = Some(lost(message));
            }
        }
    }
    let attempted = init
        .iter()
        .rposition(|row| {
            row.state.as_ref().is_none_or(|s| s.waiting.is_none())
                || terminated(row.last_state.as_ref()).is_some()
        })
        .map_or(1, |last| last + 1);
    for row in init.iter_mut().take(attempted) {
        if terminated(row.state.as_ref()).is_none() {
            row.state = Some(lost(message));
        }
    }
}

fn has_initialized(
    observed: &Observed<'_>,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
) -> bool {
    let Some(last) = pod::init_containers(observed.pod).last() else {
        return true;
    };
    let moved = |row: &ContainerStatus| {
        terminated(row.last_state.as_ref()).is_some()
            || row.state.as_ref().is_none_or(|s| s.waiting.is_none())
    };
    if regular.iter().any(moved) {
        return true;
    }
    init.last().is_some_and(|row| {
        if pod::is_sidecar(last) {
            row.started == Some(true)
        } else {
            let states = [row.state.as_ref(), row.last_state.as_ref()];
            states
                .into_iter()
                .any(|s| terminated(s).is_some_and(|t| t.exit_code == 0))
        }
    })
}

fn terminated(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state.and_then(|s| s.terminated.as_ref())
}

fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: text(reason),
            message,
        }),
        ..ContainerState::default()
    }
}

fn lost(message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            reason: Some(STATUS_UNKNOWN.to_owned()),
            message: Some(message.to_owned()),
            exit_code: KILLED,
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn container_id(instance: &Instance) -> String {
    format!("containerd://{}", instance.id)
}

fn user(instance: &Instance) -> Option<ContainerUser> {
    let user = instance.user.as_ref()?;
    Some(ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
        }),
    })
}

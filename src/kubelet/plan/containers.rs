//! Which containers have to start or stop, given what the runtime holds.

use super::{Action, Observed, ProbeState, Resize, resize_of, stop};
use crate::pod;
use crate::state::{Instance, RunState};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Probe};

/// A pod needs a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxNeed {
    pub attempt: u32,
    /// The sandbox before it.
    pub replaces: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Stop all containers and sandboxes.
    pub kill_pod: bool,
    pub create_sandbox: Option<SandboxNeed>,
    pub start_init: Vec<String>,
    pub start: Vec<String>,
    pub start_ephemeral: Vec<String>,
    pub kill: Vec<Action>,
    /// Containers whose resources are to change while they run.
    pub resize: Vec<String>,
}

/// Whether the pod's sandbox is missing, dead, of the wrong kind or without an address.
pub fn sandbox_need(observed: &Observed<'_>) -> Option<SandboxNeed> {
    let runtime = observed.runtime;
    let Some(newest) = runtime.sandboxes.first() else {
        return Some(SandboxNeed {
            attempt: 0,
            replaces: None,
        });
    };
    let host_network = pod::is_host_network(observed.pod);
    let usable = newest.ready
        && runtime.ready_sandboxes().count() == 1
        && newest.host_network == host_network
        && (host_network || !newest.ips.is_empty());
    (!usable).then_some(SandboxNeed {
        attempt: newest.attempt + 1,
        replaces: Some(newest.id.clone()),
    })
}

/// When a container that should restart may do so; `None` if it may now.
pub fn in_crash_backoff(observed: &Observed<'_>, name: &str) -> Option<Timestamp> {
    let exited = observed
        .runtime
        .runs(name)
        .find(|i| i.state == RunState::Exited)?;
    let since = exited.finished_at.unwrap_or(exited.created_at);
    let container = pod::find_container(observed.pod, name)?.1;
    let key = crash_key(&container);
    observed.crashes.until(&key, since, observed.now)
}

/// A changed image starts with a clean record.
pub fn crash_key(container: &Container) -> String {
    format!("{}/{:x}", container.name, pod::container_hash(container))
}

pub fn changes(observed: &Observed<'_>) -> Changes {
    let mut changes = Changes::default();
    if let Some(need) = sandbox_need(observed) {
        plan_new_sandbox(observed, need, &mut changes);
        return changes;
    }
    for container in pod::spec(observed.pod)
        .ephemeral_containers
        .iter()
        .flatten()
    {
        if observed.runtime.latest(&container.name).is_none() {
            changes.start_ephemeral.push(container.name.clone());
        }
    }
    let initialized = plan_init_containers(observed, &mut changes);
    if changes.kill_pod || !initialized {
        return changes;
    }
    plan_regular_containers(observed, &mut changes);
    changes
}

fn plan_new_sandbox(observed: &Observed<'_>, need: SandboxNeed, changes: &mut Changes) {
    let spec = pod::spec(observed.pod);
    let runtime = observed.runtime;
    changes.kill_pod = true;
    let never = spec.restart_policy.as_deref() == Some("Never");
    if never && need.attempt != 0 && !runtime.instances.is_empty() {
        return;
    }
    let anything_to_run = spec.containers.iter().any(|c| {
        let policy = c
            .restart_policy
            .as_deref()
            .or(spec.restart_policy.as_deref());
        let has_succeeded = runtime.latest(&c.name).is_some_and(Instance::has_succeeded);
        policy != Some("OnFailure") || !has_succeeded
    });
    let names = spec.containers.iter().map(|c| c.name.as_str());
    if !anything_to_run && runtime.any_created(names) {
        return;
    }
    changes.create_sandbox = Some(need);
}

/// Whether a regular container that does not run has to be started.
pub fn needs_start(observed: &Observed<'_>, container: &Container) -> bool {
    let Some(latest) = observed.runtime.latest(&container.name) else {
        return true;
    };
    match latest.state {
        RunState::Running => false,
        RunState::Created | RunState::Unknown => true,
        RunState::Exited => {
            observed.redefined.contains(&latest.id)
                || pod::restarts_after(container, pod::spec(observed.pod), latest.exit_code)
        }
    }
}

fn plan_regular_containers(observed: &Observed<'_>, changes: &mut Changes) {
    let spec = pod::spec(observed.pod);
    let mut kept = 0;
    for container in &spec.containers {
        if observed.busy.starting.contains(&container.name) {
            kept += 1;
            continue;
        }
        match observed.runtime.latest(&container.name) {
            Some(latest) if latest.state == RunState::Running => {
                let kill = kill_running(observed, container, latest, "Container");
                match kill {
                    // It keeps the pod alive only if it comes back.
                    Some((action, comes_back)) => {
                        kept += usize::from(comes_back);
                        push_kill(observed, changes, action);
                    }
                    None => {
                        kept += 1;
                        plan_resize(observed, container, latest, changes);
                    }
                }
            }
            latest => {
                if !needs_start(observed, container) {
                    continue;
                }
                changes.start.push(container.name.clone());
                if let Some(unknown) = latest.filter(|i| i.state == RunState::Unknown) {
                    let action = kill_unknown(observed, unknown, "Container");
                    push_kill(observed, changes, action);
                }
            }
        }
    }
    if kept == 0 && changes.start.is_empty() {
        changes.kill_pod = true;
        changes.start_init.clear();
    }
}

fn plan_resize(
    observed: &Observed<'_>,
    container: &Container,
    run: &Instance,
    changes: &mut Changes,
) {
    if observed.resize_pending.is_some() {
        return;
    }
    match resize_of(observed, container, run) {
        None => {}
        Some(Resize::InPlace) => changes.resize.push(container.name.clone()),
        Some(Resize::ByRestart) => {
            let action = Action::Kill {
                id: run.id.clone(),
                name: container.name.clone(),
                message: format!("Container {} resize requires restart", container.name),
                grace: stop::termination_grace(observed.pod),
                redefined: true,
            };
            push_kill(observed, changes, action);
        }
    }
}

fn push_kill(observed: &Observed<'_>, changes: &mut Changes, action: Action) {
    if let Action::Kill { id, .. } = &action
        && !observed.busy.killing.contains_key(id)
    {
        changes.kill.push(action);
    }
}

/// Why a running container has to be stopped, and whether it will be started again.
fn kill_running(
    observed: &Observed<'_>,
    container: &Container,
    instance: &Instance,
    what: &str,
) -> Option<(Action, bool)> {
    let probes = observed
        .probes
        .get(&instance.id)
        .copied()
        .unwrap_or_default();
    let name = &container.name;
    let restarts = pod::restarts_after_kill(container, pod::spec(observed.pod));
    let redefined = pod::container_hash(container) != instance.hash;
    let (message, probe, comes_back) = if redefined {
        let message = format!("{what} {name} definition changed");
        (message, None, true)
    } else {
        let (kind, probe) = failed_probe(container, probes)?;
        let message = format!("{what} {name} failed {kind} probe");
        (message, Some(probe), restarts)
    };
    let message = if comes_back && what == "Container" {
        format!("{message}, will be restarted")
    } else {
        message
    };
    let action = Action::Kill {
        id: instance.id.clone(),
        name: name.clone(),
        message,
        grace: stop::probe_grace(observed.pod, probe),
        redefined,
    };
    Some((action, comes_back))
}

fn failed_probe(container: &Container, probes: ProbeState) -> Option<(&'static str, &Probe)> {
    match (&container.liveness_probe, &container.startup_probe) {
        (Some(probe), _) if probes.liveness == Some(false) => Some(("liveness", probe)),
        (_, Some(probe)) if probes.startup == Some(false) => Some(("startup", probe)),
        _ => None,
    }
}

fn kill_unknown(observed: &Observed<'_>, instance: &Instance, what: &str) -> Action {
    Action::Kill {
        id: instance.id.clone(),
        name: instance.name.clone(),
        message: format!("{what} is in \"unknown\" state, try killing it before restart"),
        grace: stop::termination_grace(observed.pod),
        redefined: false,
    }
}

/// Walks the init containers from the last to the first, because completed ones may have been
/// removed from the runtime. Returns whether initialization is over.
fn plan_init_containers(observed: &Observed<'_>, changes: &mut Changes) -> bool {
    let init = pod::init_containers(observed.pod);
    if init.is_empty() {
        return true;
    }
    let mut walk = InitWalk {
        observed,
        changes,
        initialized: has_running_regular(observed),
        previous: false,
    };
    walk.previous = walk.initialized;
    for index in (0..init.len()).rev() {
        if !walk.visit(index) {
            return false;
        }
    }
    let (initialized, started) = (walk.initialized, walk.previous);
    if !started {
        changes.start_init.push(init[0].name.clone());
    }
    changes.start_init.reverse();
    changes
        .start_init
        .retain(|name| !observed.busy.starting.contains(name));
    initialized
}

fn has_running_regular(observed: &Observed<'_>) -> bool {
    pod::spec(observed.pod).containers.iter().any(|c| {
        observed
            .runtime
            .latest(&c.name)
            .is_some_and(|i| matches!(i.state, RunState::Created | RunState::Running))
    })
}

struct InitWalk<'a, 'o> {
    observed: &'a Observed<'o>,
    changes: &'a mut Changes,
    /// The regular containers may run.
    initialized: bool,
    /// A later init container, or a regular one, has already been reached.
    previous: bool,
}

impl InitWalk<'_, '_> {
    /// Looks at one init container; false if the pod has failed for good.
    fn visit(&mut self, index: usize) -> bool {
        let init = pod::init_containers(self.observed.pod);
        let container = &init[index];
        let sidecar = pod::is_sidecar(container);
        let Some(instance) = self.observed.runtime.latest(&container.name) else {
            if self.previous && sidecar {
                self.changes.start_init.push(container.name.clone());
            }
            return true;
        };
        if self.previous && !sidecar {
            return true;
        }
        let keeps_going = if sidecar {
            self.visit_sidecar(index, container, instance);
            true
        } else {
            self.visit_plain(index, container, instance)
        };
        self.previous = true;
        keeps_going
    }

    fn visit_plain(&mut self, index: usize, container: &Container, instance: &Instance) -> bool {
        match instance.state {
            RunState::Created => self.changes.start_init.push(container.name.clone()),
            RunState::Running => {}
            RunState::Exited if instance.exit_code == 0 => self.reach_next(index),
            RunState::Exited => {
                let spec = pod::spec(self.observed.pod);
                if !pod::restarts_after(container, spec, instance.exit_code) {
                    self.changes.kill_pod = true;
                    self.changes.start_init.clear();
                    return false;
                }
                self.changes.start_init.push(container.name.clone());
            }
            RunState::Unknown => {
                let action = kill_unknown(self.observed, instance, "Init container");
                push_kill(self.observed, self.changes, action);
                self.changes.start_init.push(container.name.clone());
            }
        }
        true
    }

    fn visit_sidecar(&mut self, index: usize, container: &Container, instance: &Instance) {
        match instance.state {
            RunState::Created | RunState::Exited => {
                self.changes.start_init.push(container.name.clone());
            }
            RunState::Unknown => {
                let action = kill_unknown(self.observed, instance, "Init container");
                push_kill(self.observed, self.changes, action);
                self.changes.start_init.push(container.name.clone());
            }
            RunState::Running => self.visit_running_sidecar(index, container, instance),
        }
    }

    fn visit_running_sidecar(&mut self, index: usize, container: &Container, run: &Instance) {
        if self.observed.busy.starting.contains(&container.name) {
            return;
        }
        if let Some((action, _)) = kill_running(self.observed, container, run, "Init container") {
            push_kill(self.observed, self.changes, action);
            self.changes.start_init.push(container.name.clone());
            return;
        }
        let probes = self.observed.probes.get(&run.id);
        let has_started =
            container.startup_probe.is_none() || probes.is_some_and(|p| p.startup == Some(true));
        if has_started {
            self.reach_next(index);
        }
        plan_resize(self.observed, container, run, self.changes);
    }

    /// This init container is done (or up): the next one, or the regular ones, may start.
    fn reach_next(&mut self, index: usize) {
        let init = pod::init_containers(self.observed.pod);
        match init.get(index + 1) {
            None => self.initialized = true,
            Some(next) if !self.previous => self.changes.start_init.push(next.name.clone()),
            Some(_) => {}
        }
    }
}

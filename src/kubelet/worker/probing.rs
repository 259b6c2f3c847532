//! Keeps the probes of a pod's running containers going.

use super::mailbox::Mailbox;
use super::memory::Memory;
use crate::context::Context;
use crate::pod::{self, ContainerKind};
use crate::probes::{self, Kind, Target};
use crate::state::{Instance, RunState};
use k8s_openapi::api::core::v1::Container;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::AbortHandle;

/// Tasks by container id; one that has ended by itself stays listed, so that it is not begun again.
#[derive(Default)]
pub(super) struct Probing(HashMap<(String, Kind), AbortHandle>);

impl Probing {
    /// Starts probes that are missing and stops those whose container is gone.
    pub fn follow(
        &mut self,
        context: &Arc<Context>,
        memory: &Memory,
        mailbox: &Arc<Mailbox>,
        stops: bool,
    ) {
        let mut wanted = Vec::new();
        for (kind, container) in pod::containers(&memory.pod) {
            let is_probed = match kind {
                ContainerKind::Regular => true,
                ContainerKind::Init => pod::is_sidecar(&container),
                ContainerKind::Ephemeral => false,
            };
            let run = memory.observer.state.latest(&container.name);
            if let Some(run) = run.filter(|r| is_probed && r.state == RunState::Running) {
                let kinds = kinds_of(memory, &container, run, stops);
                wanted.extend(kinds.into_iter().map(|kind| (run, container.clone(), kind)));
            }
        }
        self.0.retain(|(id, kind), task| {
            let keep = wanted.iter().any(|(run, _, k)| run.id == *id && k == kind);
            if !keep {
                task.abort();
            }
            keep
        });
        for (run, container, kind) in wanted {
            let key = (run.id.clone(), kind);
            self.0
                .entry(key)
                .or_insert_with(|| begin(context, memory, mailbox, run, &container, kind));
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.values().for_each(AbortHandle::abort);
    }
}

/// Which probes a run is to have now.
fn kinds_of(memory: &Memory, container: &Container, run: &Instance, stops: bool) -> Vec<Kind> {
    if memory.busy.starting.contains(&container.name) {
        return Vec::new();
    }
    let has = |kind: Kind| kind.of(container).is_some();
    let state = memory.probes.get(&run.id).copied().unwrap_or_default();
    let was_started = || was_started(memory, container, run);
    let started = !has(Kind::Startup) || state.startup == Some(true) || was_started();
    let mut kinds = Vec::new();
    if stops {
        kinds.extend((started && has(Kind::Readiness)).then_some(Kind::Readiness));
        return kinds;
    }
    if !started {
        return vec![Kind::Startup];
    }
    kinds.extend(
        [Kind::Liveness, Kind::Readiness]
            .into_iter()
            .filter(|kind| has(*kind)),
    );
    kinds
}

/// Before the agent was restarted the startup probe had succeeded.
fn was_started(memory: &Memory, container: &Container, run: &Instance) -> bool {
    let status = &memory.previous;
    let rows = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    rows.chain(init).any(|row| {
        let same = row
            .container_id
            .as_deref()
            .is_some_and(|id| id.ends_with(&run.id));
        row.name == container.name && same && row.started == Some(true)
    })
}

fn begin(
    context: &Arc<Context>,
    memory: &Memory,
    mailbox: &Arc<Mailbox>,
    run: &Instance,
    container: &Container,
    kind: Kind,
) -> AbortHandle {
    let ips = if pod::is_host_network(&memory.pod) {
        context.around.host_ips.as_slice()
    } else {
        memory.observer.state.ips()
    };
    let target = Target {
        pod: Arc::clone(&memory.pod),
        container: container.clone(),
        container_id: run.id.clone(),
        pod_ip: ips.first().cloned().unwrap_or_default(),
        started_at: run.started_at.unwrap_or(run.created_at),
    };
    let (handlers, recorder) = (context.handlers.clone(), context.recorder.clone());
    let (mailbox, id) = (Arc::clone(mailbox), run.id.clone());
    let task = probes::run(kind, target, handlers, recorder, move |verdict| {
        mailbox.put(|mail| mail.probes.push((id.clone(), kind, verdict)));
    });
    tokio::spawn(sampan_util::task::contain("probe", task)).abort_handle()
}

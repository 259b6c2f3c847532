//! Changing the resources of containers that run. Upstream counterpart: `computePodResizeAction`.

use super::Observed;
use crate::pod;
use crate::qos::amount;
use crate::state::{Instance, RunState};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The node cannot give what is asked for now (`Deferred`) or ever (`Infeasible`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizePending {
    pub reason: &'static str,
    pub message: String,
}

/// How a running container gets from what it has to what it should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    InPlace,
    ByRestart,
}

/// Whether this run of a container has other resources than its pod asks for.
pub fn resize_of(observed: &Observed<'_>, container: &Container, run: &Instance) -> Option<Resize> {
    if run.state != RunState::Running {
        return None;
    }
    let has = observed.actuated.get(&run.id)?;
    let wanted = container.resources.clone().unwrap_or_default();
    let changed: Vec<&str> = RESIZABLE
        .into_iter()
        .filter(|name| differs(has, &wanted, name))
        .collect();
    if changed.is_empty() {
        return None;
    }
    let policies = container.resize_policy.iter().flatten();
    let by_restart = policies.into_iter().any(|policy| {
        policy.restart_policy == "RestartContainer"
            && changed.contains(&policy.resource_name.as_str())
    });
    Some(if by_restart {
        Resize::ByRestart
    } else {
        Resize::InPlace
    })
}

fn differs(has: &ResourceRequirements, wanted: &ResourceRequirements, name: &str) -> bool {
    let limit = |r: &ResourceRequirements| amount(r.limits.as_ref(), name);
    let request = |r: &ResourceRequirements| amount(r.requests.as_ref(), name);
    limit(has) != limit(wanted) || request(has) != request(wanted)
}

/// Whether anything is left to do before the pod has what it asks for.
pub fn is_resizing(observed: &Observed<'_>) -> bool {
    let sidecars = pod::init_containers(observed.pod)
        .iter()
        .filter(|c| pod::is_sidecar(c));
    let mut all = pod::spec(observed.pod).containers.iter().chain(sidecars);
    observed.busy.resizing
        || all.any(|container| {
            let run = observed.runtime.latest(&container.name);
            run.is_some_and(|run| resize_of(observed, container, run).is_some())
        })
}

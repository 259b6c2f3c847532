//! The conditions of a pod that the kubelet owns. Upstream counterpart: `status/generate`.

use crate::plan::{Observed, is_resizing, sandbox_need};
use crate::pod;
use crate::status::wire_time;
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};

const OWNED: [&str; 5] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

/// There only while they hold.
const RESIZE: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// A condition's status with its reason and message.
#[derive(Debug, Clone, Default, PartialEq)]
struct Finding {
    is_true: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Finding {
    fn holds() -> Self {
        Self {
            is_true: true,
            ..Self::default()
        }
    }

    fn fails(reason: &'static str, message: String) -> Self {
        Self {
            is_true: false,
            reason: Some(reason),
            message: (!message.is_empty()).then_some(message),
        }
    }
}

pub(super) fn render(observed: &Observed<'_>, status: &mut PodStatus) {
    let api = observed.pod.status.as_ref();
    let others = api
        .and_then(|s| s.conditions.as_deref())
        .unwrap_or_default()
        .iter()
        .filter(|c| !OWNED.contains(&c.type_.as_str()) && !RESIZE.contains(&c.type_.as_str()));
    let mut conditions: Vec<PodCondition> = others.cloned().collect();
    conditions.extend(resize(observed));
    let containers_ready = containers_ready(observed, status);
    let findings = [
        sandbox_ready(observed),
        initialized(observed, status),
        ready(observed, &conditions, &containers_ready),
        containers_ready,
        Finding::holds(),
    ];
    for (kind, finding) in OWNED.into_iter().zip(findings) {
        conditions.push(condition(observed, kind, finding));
    }
    status.conditions = Some(conditions);
}

fn condition(observed: &Observed<'_>, kind: &str, finding: Finding) -> PodCondition {
    let status = if finding.is_true { "True" } else { "False" };
    let before = observed
        .previous
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == kind && c.status == status);
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: finding.reason.map(str::to_owned),
        message: finding.message,
        observed_generation: observed.pod.metadata.generation,
        last_probe_time: None,
        last_transition_time: before
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(wire_time(observed.now))),
    }
}

fn resize(observed: &Observed<'_>) -> Option<PodCondition> {
    let [pending, in_progress] = RESIZE;
    let (kind, reason, message) = match observed.resize_pending {
        Some(why) => (pending, Some(why.reason), Some(why.message.clone())),
        None if observed.is_stopping() || !is_resizing(observed) => return None,
        None => {
            let error = observed.resize_error;
            (
                in_progress,
                error.map(|_| "Error"),
                error.map(str::to_owned),
            )
        }
    };
    let finding = Finding {
        is_true: true,
        reason,
        message,
    };
    Some(condition(observed, kind, finding))
}

fn sandbox_ready(observed: &Observed<'_>) -> Finding {
    Finding {
        is_true: sandbox_need(observed).is_none(),
        ..Finding::default()
    }
}

/// Names as Go prints a slice: `[a b]`.
fn listed(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn explain(unknown: &[&str], what: &str, others: &[&str]) -> String {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!(
            "containers with unknown status: {}",
            listed(unknown)
        ));
    }
    if !others.is_empty() {
        parts.push(format!("containers with {what} status: {}", listed(others)));
    }
    parts.join(", ")
}

fn all_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

fn containers_ready(observed: &Observed<'_>, status: &PodStatus) -> Finding {
    let phase = status.phase.as_deref().unwrap_or_default();
    let sidecars = pod::init_containers(observed.pod)
        .iter()
        .filter(|c| pod::is_sidecar(c));
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for container in sidecars.chain(&pod::spec(observed.pod).containers) {
        match all_statuses(status).find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(row) if !row.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return Finding::fails("PodCompleted", String::new());
    }
    if phase == "Failed" {
        return Finding::fails("PodFailed", String::new());
    }
    let message = explain(&unknown, "unready", &unready);
    if message.is_empty() {
        Finding::holds()
    } else {
        Finding::fails("ContainersNotReady", message)
    }
}

fn ready(observed: &Observed<'_>, others: &[PodCondition], containers: &Finding) -> Finding {
    if !containers.is_true {
        return containers.clone();
    }
    let gates = pod::spec(observed.pod).readiness_gates.iter().flatten();
    let problems: Vec<String> = gates
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match others.iter().find(|c| &c.type_ == kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {kind:?} does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate {kind:?} is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if problems.is_empty() {
        Finding::holds()
    } else {
        Finding::fails("ReadinessGatesNotReady", problems.join(", "))
    }
}

fn initialized(observed: &Observed<'_>, status: &PodStatus) -> Finding {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in pod::init_containers(observed.pod) {
        let row = all_statuses(status).find(|s| s.name == container.name);
        let is_done = |row: &ContainerStatus| {
            if pod::is_sidecar(container) {
                row.started == Some(true)
            } else {
                row.ready
            }
        };
        match row {
            None => unknown.push(container.name.as_str()),
            Some(row) if !is_done(row) => incomplete.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if status.phase.as_deref() == Some("Succeeded") && unknown.is_empty() {
        return Finding {
            reason: Some("PodCompleted"),
            ..Finding::holds()
        };
    }
    let message = explain(&unknown, "incomplete", &incomplete);
    if message.is_empty() || any_regular_started(status) {
        Finding::holds()
    } else {
        Finding::fails("ContainersNotInitialized", message)
    }
}

fn any_regular_started(status: &PodStatus) -> bool {
    status.container_statuses.iter().flatten().any(|row| {
        row.state
            .as_ref()
            .is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    })
}

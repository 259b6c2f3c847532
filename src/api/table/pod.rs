//! Pods: the one word that says how it goes.

use serde_json::{Value, json};

use super::{AGE, Item, Printer, Row, printer_of, text, wide};
use crate::meta;

pub(super) const KINDS: &[Row] = &[("", "Pod", &POD), ("", "PodTemplate", &POD_TEMPLATE)];

pub(super) static POD: Printer = printer_of(
    &[
        text("Ready"),
        text("Status"),
        text("Restarts"),
        AGE,
        wide("IP"),
        wide("Node"),
        wide("Nominated Node"),
        wide("Readiness Gates"),
    ],
    |item| {
        let summary = Summary::of(item.object);
        let ip = item.items(&["status", "podIPs"]).first();
        let ip = ip.map_or("", |ip| meta::text(ip, &["ip"]));
        vec![
            format!("{}/{}", summary.ready, summary.total).into(),
            summary.reason.clone().into(),
            restarts(&summary, item).into(),
            item.age(),
            if ip.is_empty() { "<none>" } else { ip }.into(),
            item.text_or(&["spec", "nodeName"], "<none>"),
            item.text_or(&["status", "nominatedNodeName"], "<none>"),
            readiness_gates(item).into(),
        ]
    },
);

static POD_TEMPLATE: Printer = printer_of(
    &[text("Containers"), text("Images"), text("Pod Labels")],
    |item| {
        let [names, images] = item.containers(&["template", "spec", "containers"]);
        vec![
            names,
            images,
            item.labels(&["template", "metadata", "labels"]),
        ]
    },
);

/// Whether a pod is done, as a condition of its row.
pub(super) fn conditions(pod: &Value) -> Option<Value> {
    let (reason, message) = match meta::text(pod, &["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{
        "type": "Completed",
        "status": "True",
        "reason": reason,
        "message": message,
    }]))
}

#[derive(Debug, Default)]
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    /// When the last of them ended.
    last_restart: String,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let phase = meta::text(pod, &["status", "phase"]);
        let mut summary = Self {
            total: meta::items(pod, &["spec", "containers"]).len(),
            reason: phase.to_owned(),
            ..Self::default()
        };
        if let Some(reason) = Some(meta::text(pod, &["status", "reason"])).filter(|r| !r.is_empty())
        {
            summary.reason = reason.to_owned();
        }
        if condition(pod, "PodScheduled", |one| {
            meta::text(one, &["reason"]) == "SchedulingGated"
        }) {
            summary.reason = "SchedulingGated".to_owned();
        }
        let initializing = summary.add_init_containers(pod);
        if !initializing || condition(pod, "Initialized", is_true) {
            summary.add_containers(pod);
        }
        if !meta::at(pod, &["metadata", "deletionTimestamp"]).is_null() {
            if meta::text(pod, &["status", "reason"]) == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// True if one of them has not done its part yet. Afterwards only sidecars' restarts count.
    fn add_init_containers(&mut self, pod: &Value) -> bool {
        let specs = meta::items(pod, &["spec", "initContainers"]);
        let is_sidecar = |name: &str| {
            specs.iter().any(|one| {
                meta::text(one, &["name"]) == name
                    && meta::text(one, &["restartPolicy"]) == "Always"
            })
        };
        self.total += specs
            .iter()
            .filter(|one| meta::text(one, &["restartPolicy"]) == "Always")
            .count();
        let mut sidecars = Self::default();
        let mut initializing = false;
        for (index, status) in meta::items(pod, &["status", "initContainerStatuses"])
            .iter()
            .enumerate()
        {
            self.add_restarts(status);
            let sidecar = is_sidecar(meta::text(status, &["name"]));
            if sidecar {
                sidecars.add_restarts(status);
            }
            let terminated = meta::at(status, &["state", "terminated"]);
            if !terminated.is_null() && meta::integer(terminated, &["exitCode"]).unwrap_or(0) == 0 {
                continue;
            }
            if sidecar && meta::boolean(status, &["started"]) {
                self.ready += usize::from(meta::boolean(status, &["ready"]));
                continue;
            }
            let waiting = meta::text(status, &["state", "waiting", "reason"]);
            self.reason = if !terminated.is_null() {
                format!("Init:{}", ending(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{}", specs.len())
            };
            initializing = true;
            break;
        }
        if !initializing || condition(pod, "Initialized", is_true) {
            self.restarts = sidecars.restarts;
            self.last_restart = sidecars.last_restart;
        }
        initializing
    }

    fn add_containers(&mut self, pod: &Value) {
        let mut running = false;
        let mut error = String::new();
        for status in meta::items(pod, &["status", "containerStatuses"])
            .iter()
            .rev()
        {
            self.add_restarts(status);
            let waiting = meta::text(status, &["state", "waiting", "reason"]);
            let terminated = meta::at(status, &["state", "terminated"]);
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if !terminated.is_null() {
                self.reason = ending(terminated);
                if meta::integer(terminated, &["exitCode"]).unwrap_or(0) != 0 {
                    error.clone_from(&self.reason);
                }
            } else if meta::boolean(status, &["ready"])
                && !meta::at(status, &["state", "running"]).is_null()
            {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && condition(pod, "Ready", is_true) {
                self.reason = "Running".to_owned();
            } else if !error.is_empty() {
                self.reason = error;
            } else if running {
                self.reason = "NotReady".to_owned();
            }
        }
    }

    fn add_restarts(&mut self, status: &Value) {
        self.restarts += meta::integer(status, &["restartCount"]).unwrap_or_default();
        let ended = meta::text(status, &["lastState", "terminated", "finishedAt"]);
        // Times of this form compare as texts.
        if ended > self.last_restart.as_str() {
            self.last_restart = ended.to_owned();
        }
    }
}

/// Why a container ended.
fn ending(terminated: &Value) -> String {
    let reason = meta::text(terminated, &["reason"]);
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match meta::integer(terminated, &["signal"]) {
        Some(signal) if signal != 0 => format!("Signal:{signal}"),
        _ => format!(
            "ExitCode:{}",
            meta::integer(terminated, &["exitCode"]).unwrap_or_default()
        ),
    }
}

fn is_true(condition: &Value) -> bool {
    meta::text(condition, &["status"]) == "True"
}

fn condition(pod: &Value, kind: &str, test: impl Fn(&Value) -> bool) -> bool {
    meta::items(pod, &["status", "conditions"])
        .iter()
        .any(|one| meta::text(one, &["type"]) == kind && test(one))
}

fn restarts(summary: &Summary, item: &Item<'_>) -> String {
    if summary.restarts == 0 || summary.last_restart.is_empty() {
        return summary.restarts.to_string();
    }
    let ago = item.since_text(&summary.last_restart);
    format!("{} ({ago} ago)", summary.restarts)
}

fn readiness_gates(item: &Item<'_>) -> String {
    let gates = item.items(&["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let met = gates
        .iter()
        .filter(|gate| condition(item.object, meta::text(gate, &["conditionType"]), is_true))
        .count();
    format!("{met}/{}", gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: Value, expected: &str) {
        let pod = json!({
            "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]},
            "status": status,
        });
        let summary = Summary::of(&pod);
        let found = format!("{}/{} {}", summary.ready, summary.total, summary.reason);
        assert_eq!(found, expected);
    }

    #[test]
    fn one_word() {
        check(json!({"phase": "Pending"}), "0/2 Pending");
        check(
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
            "0/2 Init:0/1",
        );
        let done = json!([{"name": "i", "state": {"terminated": {"exitCode": 0}}}]);
        check(
            json!({"phase": "Running", "initContainerStatuses": done, "containerStatuses": [
                {"name": "a", "ready": true, "state": {"running": {}}},
                {"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            ]}),
            "1/2 CrashLoopBackOff",
        );
        check(
            json!({"phase": "Failed", "containerStatuses": [
                {"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                {"name": "b", "state": {"terminated": {"exitCode": 3}}},
            ]}),
            "0/2 ExitCode:3",
        );
    }
}

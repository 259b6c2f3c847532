//! Probes: one task per probe of a running container, each with its own timer.
//!
//! A probe reports only when its verdict changes. Liveness and startup probes end with their
//! verdict that asks for a restart, since the container they speak of is about to go.

mod grpc;

use crate::handlers::{Handlers, HttpCall, Outcome, port_number};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use sampan_client::Recorder;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::events::container_reference;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

/// What is probed.
#[derive(Clone)]
pub struct Target {
    pub pod: Arc<Pod>,
    pub container: Container,
    pub container_id: String,
    pub pod_ip: String,
    pub started_at: Timestamp,
}

/// Counts equal results up to a threshold. Pure.
#[derive(Debug, Default)]
pub struct Counter {
    last: Option<bool>,
    run: i32,
    verdict: Option<bool>,
}

impl Counter {
    /// The new verdict, if this result changes it.
    pub fn count(&mut self, result: bool, probe: &Probe) -> Option<bool> {
        if self.last == Some(result) {
            self.run += 1;
        } else {
            self.last = Some(result);
            self.run = 1;
        }
        let threshold = if result {
            probe.success_threshold.unwrap_or(1)
        } else {
            probe.failure_threshold.unwrap_or(3)
        };
        if self.run < threshold || self.verdict == Some(result) {
            return None;
        }
        self.verdict = Some(result);
        Some(result)
    }
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    let given = value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0);
    Duration::from_secs(given.unwrap_or(default))
}

/// Probes until told otherwise (the task is dropped with its container).
pub async fn run(
    kind: Kind,
    target: Target,
    handlers: Handlers,
    recorder: Recorder,
    report: impl Fn(bool) + Send,
) {
    let Some(probe) = kind.of(&target.container).cloned() else {
        return;
    };
    let period = seconds(probe.period_seconds, 10);
    let limit = seconds(probe.timeout_seconds, 1);
    let delay = Duration::from_secs(
        probe
            .initial_delay_seconds
            .and_then(|d| u64::try_from(d).ok())
            .unwrap_or_default(),
    );
    let age = Timestamp::now().duration_since(target.started_at);
    let age = Duration::try_from(age).unwrap_or_default();
    let mut ticks = interval_at(Instant::now() + delay.saturating_sub(age), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counter = Counter::default();
    loop {
        ticks.tick().await;
        let outcome = once(&probe, &target, &handlers, limit).await;
        let Some(result) = judge(kind, &target, outcome, &recorder) else {
            continue;
        };
        let Some(verdict) = counter.count(result, &probe) else {
            continue;
        };
        report(verdict);
        // A startup probe has said all it can; a failed liveness probe waits for the next run.
        if kind == Kind::Startup || (kind == Kind::Liveness && !verdict) {
            return;
        }
    }
}

/// Tells of failures, and drops results that say nothing.
fn judge(kind: Kind, target: &Target, outcome: Outcome, recorder: &Recorder) -> Option<bool> {
    let name = kind.name();
    let about = || container_reference(&target.pod, &target.container.name);
    match outcome {
        Outcome::Success => Some(true),
        Outcome::Warning(text) => {
            let message = format!("{name} probe warning: {text}");
            recorder.record(about(), true, "ProbeWarning", message);
            Some(true)
        }
        Outcome::Failure(text) => {
            let message = format!("{name} probe failed: {text}");
            recorder.record(about(), true, "Unhealthy", message);
            Some(false)
        }
        Outcome::Error(text) => {
            let message = format!("{name} probe errored and resulted in unknown state: {text}");
            recorder.record(about(), true, "Unhealthy", message);
            None
        }
    }
}

async fn once(probe: &Probe, target: &Target, handlers: &Handlers, limit: Duration) -> Outcome {
    if let Some(action) = &probe.exec {
        let command = crate::probes::expanded(action.command.as_deref().unwrap_or_default());
        return handlers
            .probe_exec(&target.container_id, &command, limit)
            .await;
    }
    if let Some(action) = &probe.http_get {
        return match HttpCall::new(action, &target.container, &target.pod_ip) {
            Ok(call) => handlers.probe_http(&call, limit).await,
            Err(error) => Outcome::Error(error),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let host = action.host.as_deref().filter(|h| !h.is_empty());
        let host = host.unwrap_or(&target.pod_ip);
        return match port_number(&action.port, &target.container) {
            Ok(port) => handlers.probe_tcp(host, port, limit).await,
            Err(error) => Outcome::Error(error),
        };
    }
    if let Some(action) = &probe.grpc {
        let service = action.service.clone().unwrap_or_default();
        let check = grpc::check(&target.pod_ip, action.port, service);
        return match timeout(limit, check).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Failure(format!(
                "timeout: failed to connect service \"{}:{}\" within {}s: context deadline exceeded",
                target.pod_ip,
                action.port,
                limit.as_secs()
            )),
        };
    }
    Outcome::Error("missing probe handler".to_owned())
}

/// Commands of probes know no variables, but `$$` still stands for `$`.
fn expanded(command: &[String]) -> Vec<String> {
    command
        .iter()
        .map(|word| crate::expand::expand(word, |_| None).unwrap_or_else(|_| word.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_need_their_thresholds() {
        let probe = Probe {
            failure_threshold: Some(3),
            success_threshold: Some(2),
            ..Probe::default()
        };
        let mut counter = Counter::default();
        let verdicts: Vec<Option<bool>> = [
            true, true, true, false, false, true, false, false, false, true, true,
        ]
        .into_iter()
        .map(|result| counter.count(result, &probe))
        .collect();
        let mut expected = vec![None; 11];
        expected[1] = Some(true);
        expected[8] = Some(false);
        expected[10] = Some(true);
        assert_eq!(verdicts, expected);
    }
}

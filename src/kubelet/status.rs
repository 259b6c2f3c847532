//! What is reported of a pod: a pure rendering of the observation.
//!
//! Upstream counterparts: `generateAPIPodStatus` and the rules of `status_manager` that keep a
//! terminal phase from being reported while anything of the pod may still run.

mod conditions;
mod containers;
mod patch;
mod phase;
mod resources;

#[cfg(test)]
mod tests;

use crate::plan::{Observed, Verdict};
use crate::{pod, qos};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{HostIP, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(crate) use containers::next_change;
pub use patch::status_patch;

pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
/// How long a failed pull is shown as such before it shows as waiting for the next one.
pub const PULL_ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(2);

#[derive(Debug, Clone, Default)]
pub struct Rendered {
    pub status: PodStatus,
    /// All containers have ended and none will start again.
    pub has_finished: bool,
}

/// Times go over the wire in whole seconds.
pub(crate) fn wire_time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

pub fn render(observed: &Observed<'_>, verdict: Option<&Verdict>) -> Rendered {
    if let Some(verdict) = verdict.filter(|v| v.refused) {
        return refused(observed, verdict);
    }
    let previous = observed.previous;
    let is_terminal = observed.is_stopped() && (observed.is_stopping() || verdict.is_some());
    let mut status = PodStatus {
        observed_generation: observed.pod.metadata.generation,
        qos_class: Some(qos::class(observed.pod).to_owned()),
        start_time: previous
            .start_time
            .clone()
            .or_else(|| Some(wire_time(observed.now))),
        ..PodStatus::default()
    };
    containers::render(observed, is_terminal, &mut status);
    let computed = phase::compute(observed, &status, is_terminal);
    let phase = settle_phase(observed, verdict, computed, is_terminal);
    // Nothing may look finished while it could still run.
    let has_finished = pod::is_terminal_phase(phase);
    let reported = if has_finished && !observed.is_stopped() {
        previous.phase.as_deref().unwrap_or("Pending")
    } else {
        phase
    };
    status.phase = Some(reported.to_owned());
    if previous.phase.as_deref() == Some(reported) {
        // Others may have said something about the phase; it stands as long as the phase does.
        let api = observed.pod.status.as_ref();
        let said = |of: fn(&PodStatus) -> &Option<String>| {
            of(previous)
                .clone()
                .or_else(|| api.and_then(|s| of(s).clone()))
        };
        status.reason = said(|s| &s.reason);
        status.message = said(|s| &s.message);
    }
    if let Some(verdict) = verdict.filter(|_| reported == "Failed") {
        status.reason = Some(verdict.reason.clone());
        status.message = Some(verdict.message.clone());
    }
    set_addresses(observed, &mut status);
    resources::render(observed.pod, &mut status);
    conditions::render(observed, &mut status);
    Rendered {
        status,
        has_finished,
    }
}

/// A terminal phase is never left again, and a verdict or a stop makes the phase terminal.
fn settle_phase<'a>(
    observed: &'a Observed<'_>,
    verdict: Option<&Verdict>,
    computed: &'a str,
    is_terminal: bool,
) -> &'a str {
    let api = pod::phase(observed.pod);
    let before = observed.previous.phase.as_deref().unwrap_or_default();
    for known in [api, before] {
        if pod::is_terminal_phase(known) {
            return known;
        }
    }
    if verdict.is_some() {
        return "Failed";
    }
    if is_terminal && !pod::is_terminal_phase(computed) {
        return "Failed";
    }
    computed
}

fn refused(observed: &Observed<'_>, verdict: &Verdict) -> Rendered {
    let status = PodStatus {
        observed_generation: observed.pod.metadata.generation,
        phase: Some("Failed".to_owned()),
        reason: Some(verdict.reason.clone()),
        message: Some(format!("Pod was rejected: {}", verdict.message)),
        qos_class: Some(qos::class(observed.pod).to_owned()),
        start_time: observed
            .previous
            .start_time
            .clone()
            .or_else(|| Some(wire_time(observed.now))),
        conditions: observed.previous.conditions.clone(),
        ..PodStatus::default()
    };
    Rendered {
        status,
        has_finished: true,
    }
}

fn set_addresses(observed: &Observed<'_>, status: &mut PodStatus) {
    let previous = observed.previous;
    let hosts = observed.host_ips;
    status.host_ip = hosts.first().cloned().or_else(|| previous.host_ip.clone());
    status.host_ips = if hosts.is_empty() {
        previous.host_ips.clone()
    } else {
        let rows = hosts.iter().map(|ip| HostIP { ip: ip.clone() });
        Some(rows.collect())
    };
    let ips = if pod::is_host_network(observed.pod) {
        hosts
    } else {
        observed.runtime.ips()
    };
    if ips.is_empty() {
        // A pod that ended keeps the address it had.
        status.pod_ip = previous.pod_ip.clone();
        status.pod_ips = previous.pod_ips.clone();
    } else {
        status.pod_ip = ips.first().cloned();
        status.pod_ips = Some(ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect());
    }
}

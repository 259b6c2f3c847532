//! What a worker remembers of its pod between two plans.

use super::jobs::{MountOutcome, ResizeOutcome};
use crate::backoff::Backoff;
use crate::objects::Held;
use crate::observe::{Known, Observer};
use crate::plan::{
    Busy, Observed, ProbeState, ResizePending, StartFailure, Verdict, Volumes, crash_key,
};
use crate::pod;
use crate::probes::Kind;
use crate::state::{Instance, RunState};
use crate::volumes::MountedVolumes;
use crate::volumes::token::Tokens;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const FIRST_MOUNT_RETRY: SignedDuration = SignedDuration::from_millis(500);
const LAST_MOUNT_RETRY: SignedDuration = SignedDuration::from_secs(122);

#[derive(Default)]
pub(super) struct Memory {
    pub pod: Arc<Pod>,
    pub previous: PodStatus,
    /// The status as the server has it.
    pub reported: Value,
    /// The copy in the API, of a static pod.
    pub mirror: Option<Arc<Pod>>,
    pub is_reporting: bool,
    pub report_failures: u32,
    pub observer: Observer,
    /// What the observer is told.
    pub known: Known,
    /// The runtime has been asked at least once.
    pub is_observed: bool,
    pub probes: HashMap<String, ProbeState>,
    pub failures: HashMap<String, StartFailure>,
    pub crashes: Backoff,
    pub pulls: Backoff,
    /// When an event last told of a back-off that lasts, by container.
    pub announced: HashMap<String, Timestamp>,
    /// An event has told that the network is missing.
    pub network_announced: bool,
    pub redefined: HashSet<String>,
    pub actuated: HashMap<String, ResourceRequirements>,
    pub resize_pending: Option<ResizePending>,
    pub resize_error: Option<String>,
    pub resize_failures: u32,
    pub held: Option<Arc<Held>>,
    pub volumes: Volumes,
    pub mounted: MountedVolumes,
    pub tokens: Tokens,
    pub renew_at: Option<Timestamp>,
    pub mount_failures: u32,
    pub mount_retry_at: Option<Timestamp>,
    /// Something changed while volumes were being set up.
    pub remount: bool,
    pub busy: Busy,
    pub verdict: Option<Verdict>,
    pub stopping_since: Option<Timestamp>,
    pub sandbox_failures: u32,
    pub release_failures: u32,
    pub is_gone: bool,
    pub is_reported: bool,
    pub is_purged: bool,
}

fn version(pod: &Pod) -> u64 {
    let text = pod.metadata.resource_version.as_deref();
    text.and_then(|v| v.parse().ok()).unwrap_or_default()
}

fn status_value(pod: &Pod) -> Value {
    let status = pod.status.clone().unwrap_or_default();
    serde_json::to_value(status).unwrap_or(Value::Null)
}

impl Memory {
    pub fn new(pod: Arc<Pod>, is_gone: bool) -> Self {
        Self {
            previous: pod.status.clone().unwrap_or_default(),
            reported: status_value(&pod),
            pod,
            is_gone,
            ..Self::default()
        }
    }

    pub fn observed<'a>(
        &'a self,
        host_ips: &'a [String],
        network_ready: bool,
        now: Timestamp,
    ) -> Observed<'a> {
        let is_due = self.renew_at.is_some_and(|at| now >= at);
        let volumes = match self.volumes {
            Volumes::Mounted if is_due => Volumes::Stale,
            volumes => volumes,
        };
        Observed {
            pod: &self.pod,
            previous: &self.previous,
            runtime: &self.observer.state,
            probes: &self.probes,
            failures: &self.failures,
            crashes: &self.crashes,
            redefined: &self.redefined,
            actuated: &self.actuated,
            resize_pending: self.resize_pending.as_ref(),
            resize_error: self.resize_error.as_deref(),
            volumes,
            mount_retry_at: self.mount_retry_at,
            busy: &self.busy,
            verdict: self.verdict.as_ref(),
            stopping_since: self.stopping_since,
            is_gone: self.is_gone,
            is_reported: self.is_reported,
            is_purged: self.is_purged,
            network_ready,
            host_ips,
            now,
        }
    }

    /// A newer form of the pod; an older one that arrives late is ignored.
    pub fn accept_pod(&mut self, pod: Arc<Pod>) {
        if version(&pod) < version(&self.pod) {
            return;
        }
        let metadata = |pod: &Pod| {
            let metadata = &pod.metadata;
            (metadata.labels.clone(), metadata.annotations.clone())
        };
        let shows_itself = pod::spec(&pod).volumes.iter().flatten().any(|v| {
            v.downward_api.is_some()
                || v.projected
                    .iter()
                    .flat_map(|p| p.sources.iter().flatten())
                    .any(|s| s.downward_api.is_some())
        });
        if shows_itself && metadata(&pod) != metadata(&self.pod) {
            self.make_stale();
        }
        self.reported = status_value(&pod);
        self.pod = pod;
    }

    /// The uid of what the API shows of this pod, if it shows anything.
    pub fn api_uid(&self) -> Option<&str> {
        if pod::is_static(&self.pod) {
            self.mirror.as_deref().map(pod::uid)
        } else {
            Some(pod::uid(&self.pod))
        }
    }

    /// The copy of a static pod has appeared, changed or gone.
    pub fn accept_mirror(&mut self, mirror: Option<Arc<Pod>>) {
        let is_older = |new: &Pod| {
            let known = self.mirror.as_deref();
            known.is_some_and(|old| pod::uid(old) == pod::uid(new) && version(new) < version(old))
        };
        if mirror.as_deref().is_some_and(is_older) {
            return;
        }
        self.reported = mirror.as_deref().map_or(Value::Null, status_value);
        self.mirror = mirror;
    }

    /// The server's answer to a status write.
    pub fn accept_report(&mut self, pod: Option<Box<Pod>>) {
        self.is_reporting = false;
        match pod {
            Some(pod) => {
                self.report_failures = 0;
                if pod::is_static(&self.pod) {
                    self.accept_mirror(Some(Arc::from(pod)));
                } else {
                    self.accept_pod(pod::of_api(Arc::from(pod)));
                }
            }
            None => self.report_failures += 1,
        }
    }

    fn make_stale(&mut self) {
        if self.volumes == Volumes::Mounted {
            self.volumes = Volumes::Stale;
        }
        self.remount = true;
        self.mount_retry_at = None;
    }

    /// An object that the pod refers to has changed: volumes may show something else now, and
    /// containers that could not be configured may have become possible.
    pub fn objects_changed(&mut self) {
        self.make_stale();
        self.failures
            .retain(|_, failure| failure.reason != "CreateContainerConfigError");
    }

    pub fn accept_volumes(&mut self, outcome: MountOutcome) {
        self.busy.mounting = false;
        self.tokens = outcome.tokens;
        self.renew_at = outcome.renew_at;
        if self.volumes == Volumes::Released {
            return;
        }
        if outcome.is_complete {
            self.mounted = outcome.volumes;
            self.mount_failures = 0;
            self.mount_retry_at = None;
            self.volumes = if self.remount {
                Volumes::Stale
            } else {
                Volumes::Mounted
            };
        } else if !self.remount {
            let factor = 1 << self.mount_failures.min(10);
            let delay = (FIRST_MOUNT_RETRY * factor).min(LAST_MOUNT_RETRY);
            self.mount_retry_at = Some(Timestamp::now() + delay);
            self.mount_failures += 1;
            // What stands stays usable.
            if self.volumes != Volumes::Unmounted {
                self.volumes = Volumes::Stale;
            }
        }
    }

    pub fn probe_said(&mut self, container_id: String, kind: Kind, verdict: bool) {
        let state = self.probes.entry(container_id).or_default();
        match kind {
            Kind::Startup => state.startup = Some(verdict),
            Kind::Liveness => state.liveness = Some(verdict),
            Kind::Readiness => state.readiness = Some(verdict),
        }
    }

    /// Runs found at start have what the status said of them; those gone are forgotten.
    pub fn note_runs(&mut self) {
        let state = &self.observer.state;
        self.actuated
            .retain(|id, _| state.instances.iter().any(|i| i.id == *id));
        self.probes
            .retain(|id, _| state.instances.iter().any(|i| i.id == *id));
        for run in state.live() {
            if self.actuated.contains_key(&run.id) {
                continue;
            }
            let rows = self.previous.container_statuses.iter().flatten();
            let init = self.previous.init_container_statuses.iter().flatten();
            let known = rows.chain(init).find(|row| {
                let id = row.container_id.as_deref().unwrap_or_default();
                row.name == run.name && id.ends_with(&run.id)
            });
            let asked = || {
                let container = pod::find_container(&self.pod, &run.name)?.1;
                container.resources.clone()
            };
            let has = known.and_then(|row| row.resources.clone());
            let has = has.or_else(asked).unwrap_or_default();
            self.actuated.insert(run.id.clone(), has);
        }
    }

    /// The ids and names of the newest runs.
    pub fn runs_of(&self, names: &[String]) -> Vec<(String, String)> {
        let state = &self.observer.state;
        names
            .iter()
            .filter_map(|name| Some((state.latest(name)?.id.clone(), name.clone())))
            .collect()
    }

    pub fn accept_resize(&mut self, outcome: ResizeOutcome) {
        self.busy.resizing = false;
        self.actuated.extend(outcome.given);
        self.resize_failures = match &outcome.error {
            Some(_) => self.resize_failures + 1,
            None => 0,
        };
        self.resize_error = outcome.error;
    }

    pub fn instance(&self, id: &str) -> Option<&Instance> {
        self.observer.state.instances.iter().find(|i| i.id == id)
    }

    /// Each restart of a container that ended makes the next one wait longer.
    pub fn note_restarts(&mut self, names: &[String], now: Timestamp) {
        for name in names {
            let mut runs = self.observer.state.runs(name);
            let Some(exited) = runs.find(|i| i.state == RunState::Exited) else {
                continue;
            };
            let Some((_, container)) = pod::find_container(&self.pod, name) else {
                continue;
            };
            let at = exited.finished_at.unwrap_or(exited.created_at);
            self.crashes.advance(&crash_key(&container), at, now);
        }
    }
}

//! A pod and what is observed of it, for tests of the planners.

#![allow(clippy::unwrap_used)]

use crate::backoff::Backoff;
use crate::context::Context;
use crate::dirs::Dirs;
use crate::kubelet::{Kubelet, Parts};
use crate::plan::{
    Busy, Observed, Plan, ProbeState, ResizePending, StartFailure, Verdict, Volumes, plan_pod,
};
use crate::pod;
use crate::settings::Settings;
use crate::state::{Instance, PodRuntime, RunState, Sandbox};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use sampan_util::Shutdown;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

/// What workers need, above a runtime that is not there and an API server in memory.
pub(crate) fn context() -> Arc<Context> {
    sampan_net::install_crypto_provider();
    let dir = std::env::temp_dir().join("sampan-no-kubelet");
    let client = sampan_client::testing::FakeServer::new().client();
    let shutdown = Shutdown::new();
    let (_, runtime_up) = tokio::sync::watch::channel(Err("none".to_owned()));
    let parts = Parts {
        informers: sampan_client::Informers::new(client.clone(), shutdown.clone()),
        client,
        channel: sampan_cri::connect_lazy(&dir.join("containerd.sock")),
        runtime_up,
        cgroups: None,
        journal: None,
        nudge: Arc::default(),
        watcher: crate::inotify::FileWatcher::new().unwrap(),
        imported: tokio::sync::watch::channel(None).1,
    };
    let kubelet = Kubelet::new(Settings::new("n", dir.clone()), parts);
    let (_, network) = tokio::sync::watch::channel(Ok(()));
    kubelet
        .context(Dirs::new(&dir), network, &shutdown)
        .unwrap()
}

pub(crate) fn pod_of(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u-1", "generation": 1},
        "spec": spec,
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

pub(crate) fn instance(id: &str, state: RunState) -> Instance {
    Instance {
        id: id.into(),
        sandbox_id: "s0".into(),
        name: id.into(),
        hash: 0,
        restart_count: 0,
        state,
        created_at: at(10),
        started_at: (state != RunState::Created).then(|| at(11)),
        finished_at: (state == RunState::Exited).then(|| at(90)),
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: "img:1".into(),
        image_ref: "img@sha256:1".into(),
        user: None,
    }
}

pub(crate) struct World {
    pub(crate) pod: Pod,
    pub(crate) previous: PodStatus,
    pub(crate) runtime: PodRuntime,
    pub(crate) probes: HashMap<String, ProbeState>,
    pub(crate) failures: HashMap<String, StartFailure>,
    pub(crate) crashes: Backoff,
    pub(crate) redefined: HashSet<String>,
    pub(crate) actuated: HashMap<String, ResourceRequirements>,
    pub(crate) resize_pending: Option<ResizePending>,
    pub(crate) volumes: Volumes,
    pub(crate) busy: Busy,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) stopping_since: Option<Timestamp>,
    pub(crate) is_gone: bool,
    pub(crate) is_reported: bool,
    pub(crate) is_purged: bool,
    pub(crate) now: Timestamp,
}

impl World {
    pub(crate) fn new(spec: Value) -> Self {
        Self {
            pod: pod_of(spec),
            previous: PodStatus::default(),
            runtime: PodRuntime::default(),
            probes: HashMap::new(),
            failures: HashMap::new(),
            crashes: Backoff::default(),
            redefined: HashSet::new(),
            actuated: HashMap::new(),
            resize_pending: None,
            volumes: Volumes::Mounted,
            busy: Busy::default(),
            verdict: None,
            stopping_since: None,
            is_gone: false,
            is_reported: false,
            is_purged: false,
            now: at(100),
        }
    }

    pub(crate) fn with_sandbox(mut self) -> Self {
        self.runtime.sandboxes.push(Sandbox {
            id: "s0".into(),
            attempt: 0,
            ready: true,
            created_at: at(0),
            ips: vec!["10.42.0.7".into()],
            host_network: false,
        });
        self
    }

    /// Adds a run of a container as the newest one; its id is `name-N`.
    pub(crate) fn run(mut self, name: &str, state: RunState, exit_code: i32) -> Self {
        let count = self.runtime.runs(name).count();
        let container = pod::find_container(&self.pod, name).unwrap().1;
        let instance = Instance {
            name: name.into(),
            hash: pod::container_hash(&container),
            restart_count: u32::try_from(count).unwrap(),
            exit_code,
            reason: match (state, exit_code) {
                (RunState::Exited, 0) => "Completed".into(),
                (RunState::Exited, _) => "Error".into(),
                _ => String::new(),
            },
            ..instance(&format!("{name}-{count}"), state)
        };
        self.runtime.instances.insert(0, instance);
        self
    }

    pub(crate) fn deleted(mut self, grace: i64) -> Self {
        self.pod.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)),
        );
        self.pod.metadata.deletion_grace_period_seconds = Some(grace);
        self
    }

    pub(crate) fn observed(&self) -> Observed<'_> {
        Observed {
            pod: &self.pod,
            previous: &self.previous,
            runtime: &self.runtime,
            probes: &self.probes,
            failures: &self.failures,
            crashes: &self.crashes,
            redefined: &self.redefined,
            actuated: &self.actuated,
            resize_pending: self.resize_pending.as_ref(),
            resize_error: None,
            volumes: self.volumes,
            mount_retry_at: None,
            busy: &self.busy,
            verdict: self.verdict.as_ref(),
            stopping_since: self.stopping_since,
            is_gone: self.is_gone,
            is_reported: self.is_reported,
            is_purged: self.is_purged,
            network_ready: true,
            host_ips: HOST_IPS.get_or_init(|| vec!["192.168.0.1".into()]),
            now: self.now,
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        plan_pod(&self.observed())
    }

    /// The plan's actions as text.
    pub(crate) fn actions(&self) -> String {
        let actions: Vec<String> = self.plan().actions.iter().map(|a| a.to_string()).collect();
        actions.join("; ")
    }
}

static HOST_IPS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();

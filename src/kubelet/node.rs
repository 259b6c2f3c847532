//! The node as the API shows it: registered, kept up to date, and kept alive by its Lease.
//!
//! One loop does it all. Every ten seconds it renews the Lease and looks at the runtime; the status
//! is written when it says something new, or every five minutes. While the runtime or its network is
//! not ready the loop looks more often, so that the node turns Ready at once. Upstream counterpart:
//! `kubelet_node_status` and the node lease controller.

mod lease;
mod register;
pub mod status;

use crate::machine::{Disk, MachineInfo, Memory};
use crate::runtime::supervisor::Up;
use crate::settings::Settings;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeStatus, ObjectReference};
use lease::Renewal;
pub use register::announce;
use sampan_client::{Client, Patch, Recorder};
use sampan_cri::runtime::v1::{
    ListImagesRequest, RuntimeCondition, StatusRequest, StatusResponse, VersionRequest,
};
use sampan_cri::{Images, Runtime};
use sampan_util::Shutdown;
use serde_json::json;
use status::{Facts, Health};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

const RENEW_INTERVAL: Duration = Duration::from_secs(10);
const REPORT_INTERVAL: SignedDuration = SignedDuration::from_secs(300);
const IMAGES_INTERVAL: Duration = Duration::from_secs(60);
/// A runtime may be away for this long, to be restarted, before the node counts as not ready.
const RUNTIME_TOLERANCE: Duration = Duration::from_secs(30);
/// One that hangs must not hold up the Lease: the node is alive.
const RUNTIME_ANSWER: Duration = Duration::from_secs(10);
const RETRY: sampan_util::Backoff =
    sampan_util::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

pub struct NodeLoop {
    pub settings: Arc<Settings>,
    pub client: Client,
    pub recorder: Recorder,
    pub runtime: Runtime,
    pub images: Images,
    pub machine: MachineInfo,
    /// Its file system is the node's.
    pub data_dir: PathBuf,
    /// Somebody who wants the node looked at now.
    pub nudge: Arc<Notify>,
    /// Whether the runtime's process is up.
    pub up: watch::Receiver<Up>,
    /// Told whether pods can have a network.
    pub network: watch::Sender<Result<(), String>>,
}

/// What the loop remembers between two rounds.
#[derive(Default)]
struct Progress {
    /// The node as the server has it.
    node: Option<Node>,
    reported_at: Option<Timestamp>,
    runtime_version: String,
    images: Vec<k8s_openapi::api::core::v1::ContainerImage>,
    images_at: Option<Instant>,
    /// When the runtime answered last, and what it said.
    answered: Option<(Instant, StatusResponse)>,
    failures: u32,
}

impl NodeLoop {
    pub async fn run(self, shutdown: Shutdown) {
        let mut progress = Progress::default();
        let mut renewal = Renewal::default();
        let mut up = self.up.clone();
        self.event("Starting", "Starting kubelet.".to_owned());
        loop {
            let pause = self.round(&mut progress, &mut renewal).await;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.nudge.notified() => {}
                Ok(()) = up.changed() => {}
                () = shutdown.wait() => return,
            }
        }
    }

    /// One look at everything; answers how long there is nothing to do.
    async fn round(&self, progress: &mut Progress, renewal: &mut Renewal) -> Duration {
        let health = self.health(progress).await;
        let network = match (&health.runtime, &health.network) {
            (Err(problem), _) | (_, Err(problem)) => Err(problem.clone()),
            _ => Ok(()),
        };
        let is_ready = network.is_ok() && health.is_fresh;
        self.network.send_if_modified(|current| {
            let changes = *current != network;
            *current = network;
            changes
        });
        let written = self.write(progress, &health).await;
        let uid = progress.node.as_ref().and_then(|n| n.metadata.uid.clone());
        let renewed = match uid {
            Some(uid) => {
                renewal
                    .renew(&self.client, &self.settings.node_name, &uid)
                    .await
            }
            None => Ok(RENEW_INTERVAL),
        };
        let wait = match (written, renewed) {
            (Ok(()), Ok(wait)) if is_ready => {
                progress.failures = 0;
                return wait.min(self.settings.look_interval);
            }
            (Ok(()), Ok(wait)) => wait,
            (written, renewed) => {
                for error in [written.err(), renewed.err()].into_iter().flatten() {
                    tracing::debug!(%error, "the node cannot be reported");
                }
                RENEW_INTERVAL
            }
        };
        let pause = RETRY.base(progress.failures);
        progress.failures = progress.failures.saturating_add(1);
        pause.min(wait)
    }

    async fn health(&self, progress: &mut Progress) -> Health {
        let reply = in_time(self.runtime.status(StatusRequest::default())).await;
        let is_fresh = reply.is_ok();
        let recent = progress
            .answered
            .as_ref()
            .filter(|(at, _)| at.elapsed() < RUNTIME_TOLERANCE);
        let reply = match (reply, recent) {
            (Ok(reply), _) => {
                progress.answered = Some((Instant::now(), reply.clone()));
                reply
            }
            (Err(_), Some((_, before))) => before.clone(),
            (Err(error), None) => {
                return Health {
                    runtime: Err(format!("container runtime is down: {error}")),
                    ..Health::default()
                };
            }
        };
        if is_fresh {
            self.look_at_version(progress).await;
            self.look_at_images(progress).await;
        }
        Health {
            runtime: condition(&reply, "RuntimeReady", "container runtime not ready"),
            network: condition(
                &reply,
                "NetworkReady",
                "container runtime network not ready",
            ),
            is_fresh,
            handlers: reply.runtime_handlers,
            features: reply.features,
            memory: Memory::read(),
            disk: Disk::read(&self.data_dir).unwrap_or_default(),
        }
    }

    async fn look_at_version(&self, progress: &mut Progress) {
        if progress.runtime_version.is_empty()
            && let Ok(version) = in_time(self.runtime.version(VersionRequest::default())).await
        {
            progress.runtime_version =
                format!("{}://{}", version.runtime_name, version.runtime_version);
        }
    }

    async fn look_at_images(&self, progress: &mut Progress) {
        let is_recent = progress
            .images_at
            .is_some_and(|at| at.elapsed() < IMAGES_INTERVAL);
        if is_recent {
            return;
        }
        if let Ok(reply) = in_time(self.images.list_images(ListImagesRequest::default())).await {
            progress.images = status::images(&reply.images);
            progress.images_at = Some(Instant::now());
        }
    }

    /// Registers the node, or writes its status if that is due.
    async fn write(
        &self,
        progress: &mut Progress,
        health: &Health,
    ) -> Result<(), sampan_client::Error> {
        let facts = Facts {
            settings: &self.settings,
            machine: &self.machine,
            runtime_version: &progress.runtime_version,
            images: &progress.images,
            health,
        };
        let now = Timestamp::now();
        let Some(node) = &progress.node else {
            let status = status::render(&facts, &NodeStatus::default(), now);
            let node = register::register(&self.client, &self.settings, status).await?;
            self.announce(None, node.status.as_ref());
            progress.node = Some(node);
            // What the server knew before may differ: compare in the next round, at once.
            return Box::pin(self.write(progress, health)).await;
        };
        let before = node.status.clone().unwrap_or_default();
        let status = status::render(&facts, &before, now);
        let is_due = progress
            .reported_at
            .is_none_or(|at| now.duration_since(at) >= REPORT_INTERVAL);
        if !is_due && !status::differs(&before, &status) {
            return Ok(());
        }
        let patch = Patch::Strategic(json!({"status": status::patch(&status)}));
        let name = &self.settings.node_name;
        let written = self.client.patch_status::<Node>(None, name, &patch).await;
        match written {
            Ok(node) => {
                self.announce(Some(&before), node.status.as_ref());
                progress.node = Some(node);
                progress.reported_at = Some(now);
                Ok(())
            }
            Err(error) => {
                if error.is_not_found() {
                    // Somebody deleted the node: register anew.
                    progress.node = None;
                }
                Err(error)
            }
        }
    }

    fn event(&self, reason: &str, message: String) {
        let about = node_reference(&self.settings.node_name);
        self.recorder.record(about, false, reason, message);
    }

    /// Tells of conditions that changed.
    fn announce(&self, before: Option<&NodeStatus>, after: Option<&NodeStatus>) {
        let Some(after) = after else {
            return;
        };
        for reason in status::announcements(before, after) {
            let name = &self.settings.node_name;
            let message = format!("Node {name} status is now: {reason}");
            self.event(reason, message);
        }
    }
}

/// How events name a node: by its name, also as uid.
pub fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// What the runtime answers, or why it does not.
async fn in_time<T>(call: impl Future<Output = Result<T, sampan_cri::Error>>) -> Result<T, String> {
    match tokio::time::timeout(RUNTIME_ANSWER, call).await {
        Ok(answered) => answered.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {RUNTIME_ANSWER:?}")),
    }
}

fn condition(reply: &StatusResponse, kind: &str, words: &str) -> Result<(), String> {
    let rows: &[RuntimeCondition] = reply
        .status
        .as_ref()
        .map_or(&[], |s| s.conditions.as_slice());
    let Some(row) = rows.iter().find(|c| c.r#type == kind) else {
        return Err(format!("{words}: {kind} is not reported"));
    };
    if row.status {
        return Ok(());
    }
    Err(format!(
        "{words}: {kind}=false reason:{} message:{}",
        row.reason, row.message
    ))
}

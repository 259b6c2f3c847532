//! What is written because of a decision: bindings, conditions, evictions, events.
//!
//! Everything runs beside the decisions; only the writes about one pod wait for each other.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{Client, DeleteOptions, Error, Patch, Recorder};
use sampan_util::task;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::pod_info::{PodInfo, ScheduledCondition};
use crate::preemption::Preemption;

/// Requests under way at once.
const CONCURRENT: usize = 256;
/// The longest message an event may carry.
const LONGEST_NOTE: usize = 1024;

/// What the pod's condition and events are to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub reason: &'static str,
    pub message: String,
    /// `Some` sets `status.nominatedNodeName`, the empty name clears it.
    pub nominate: Option<String>,
}

#[derive(Clone)]
struct Shared {
    client: Client,
    recorder: Recorder,
    permits: Arc<Semaphore>,
    scheduler: Arc<str>,
}

pub struct Effects {
    shared: Shared,
    /// The last write about each pod, while it may still be under way.
    running: HashMap<Arc<str>, JoinHandle<Option<()>>>,
}

impl Effects {
    pub fn new(client: Client, recorder: Recorder, scheduler: &str) -> Self {
        let shared = Shared {
            client,
            recorder,
            permits: Arc::new(Semaphore::new(CONCURRENT)),
            scheduler: scheduler.into(),
        };
        Self {
            shared,
            running: HashMap::new(),
        }
    }

    pub fn forget(&mut self, uid: &str) {
        self.running.remove(uid);
    }

    /// Runs `work` after what was started for the pod before.
    fn after_previous<F>(&mut self, uid: &Arc<str>, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.running.retain(|_, handle| !handle.is_finished());
        let previous = self.running.remove(uid);
        let permits = self.shared.permits.clone();
        let handle = task::spawn("scheduler-write", async move {
            if let Some(previous) = previous
                && let Err(error) = previous.await
            {
                tracing::debug!(%error, "an earlier write about the pod was cancelled");
            }
            let _permit = permits.acquire().await;
            work.await;
        });
        self.running.insert(uid.clone(), handle);
    }

    pub fn bind<F>(&mut self, pod: Arc<PodInfo>, node: Arc<str>, done: F)
    where
        F: FnOnce(Result<(), Error>) + Send + 'static,
    {
        let shared = self.shared.clone();
        let uid = pod.uid.clone();
        self.after_previous(&uid, async move {
            let result = bind(&shared.client, &pod, &node).await;
            if result.is_ok() {
                let message = format!(
                    "Successfully assigned {}/{} to {node}",
                    pod.namespace, pod.name
                );
                shared
                    .recorder
                    .record(reference(&pod), false, "Scheduled", message);
            }
            done(result);
        });
    }

    /// Tells why the pod has no node.
    pub fn report(&mut self, pod: &Arc<PodInfo>, report: Report) {
        self.shared.recorder.record(
            reference(pod),
            true,
            "FailedScheduling",
            shorten(&report.message),
        );
        let Some(patch) = status_patch(pod, &report, Timestamp::now()) else {
            return;
        };
        let (shared, pod) = (self.shared.clone(), pod.clone());
        let uid = pod.uid.clone();
        self.after_previous(&uid, async move {
            let result = shared
                .client
                .patch_status::<Pod>(Some(&pod.namespace), &pod.name, &patch)
                .await;
            log_unless_gone(
                result.map(drop),
                &pod,
                "cannot report why a pod has no node",
            );
        });
    }

    pub fn preempt(&mut self, pod: &Arc<PodInfo>, preemption: &Preemption) {
        let message = format!("Preempted by pod {} on node {}", pod.uid, preemption.node);
        for victim in preemption
            .victims
            .iter()
            .filter(|victim| !victim.terminating)
        {
            let (shared, victim, message) = (self.shared.clone(), victim.clone(), message.clone());
            let uid = victim.uid.clone();
            self.after_previous(&uid, async move {
                match evict(&shared, &victim).await {
                    Ok(()) => {
                        shared
                            .recorder
                            .record(reference(&victim), false, "Preempted", message)
                    }
                    Err(error) => log_unless_gone(Err(error), &victim, "cannot preempt a pod"),
                }
            });
        }
    }

    /// Takes back a nomination of a pod that lost its claim to a more important one.
    pub fn clear_nomination(&mut self, pod: &Arc<PodInfo>) {
        let (shared, pod) = (self.shared.clone(), pod.clone());
        let uid = pod.uid.clone();
        self.after_previous(&uid, async move {
            let patch = Patch::Strategic(json!({"status": {"nominatedNodeName": null}}));
            let result = shared
                .client
                .patch_status::<Pod>(Some(&pod.namespace), &pod.name, &patch)
                .await;
            log_unless_gone(result.map(drop), &pod, "cannot clear a nomination");
        });
    }
}

async fn bind(client: &Client, pod: &PodInfo, node: &str) -> Result<(), Error> {
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.to_string()),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    let answer: Value = client
        .create_subresource::<Pod, _, _>(Some(&pod.namespace), &pod.name, "binding", &binding)
        .await?;
    tracing::debug!(namespace = pod.namespace, name = pod.name, node, %answer, "bound");
    Ok(())
}

async fn evict(shared: &Shared, victim: &PodInfo) -> Result<(), Error> {
    let condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": format!("{}: preempting to accommodate a higher priority pod", shared.scheduler),
        "lastProbeTime": null,
        "lastTransitionTime": rfc3339(Timestamp::now()),
        "observedGeneration": victim.generation,
    });
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    let namespace = Some(victim.namespace.as_str());
    shared
        .client
        .patch_status::<Pod>(namespace, &victim.name, &patch)
        .await?;
    let options = DeleteOptions::uid(victim.uid.to_string());
    shared
        .client
        .delete::<Pod>(namespace, &victim.name, &options)
        .await
}

fn log_unless_gone(result: Result<(), Error>, pod: &PodInfo, what: &'static str) {
    match result {
        Err(error) if !error.is_not_found() && !error.is_conflict() => {
            tracing::warn!(namespace = pod.namespace, name = pod.name, %error, "{what}");
        }
        _ => {}
    }
}

fn reference(pod: &PodInfo) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.to_string()),
        resource_version: Some(pod.resource_version.clone()),
        field_path: None,
    }
}

fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `None` if the pod says all this already.
fn status_patch(pod: &PodInfo, report: &Report, now: Timestamp) -> Option<Patch> {
    let current = pod.condition.clone().unwrap_or_default();
    let wanted = ScheduledCondition {
        status: "False".to_owned(),
        reason: report.reason.to_owned(),
        message: report.message.clone(),
        since: current.since,
    };
    let mut status = json!({});
    if current != wanted {
        let since = if current.status == "False" {
            current.since.unwrap_or(now)
        } else {
            now
        };
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": report.reason,
            "message": report.message,
            "lastProbeTime": null,
            "lastTransitionTime": rfc3339(since),
            "observedGeneration": pod.generation,
        }]);
    }
    if let Some(node) = report
        .nominate
        .as_deref()
        .filter(|node| pod.nominated_node.as_deref().unwrap_or("") != *node)
    {
        status["nominatedNodeName"] = if node.is_empty() {
            Value::Null
        } else {
            json!(node)
        };
    }
    let changes = status.as_object().is_some_and(|status| !status.is_empty());
    changes.then(|| Patch::Strategic(json!({"metadata": {"uid": &*pod.uid}, "status": status})))
}

fn shorten(message: &str) -> String {
    const END: &str = " ...";
    if message.len() <= LONGEST_NOTE {
        return message.to_owned();
    }
    let mut end = LONGEST_NOTE - END.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{END}", &message[..end])
}

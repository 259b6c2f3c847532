//! The loop: changes in, decisions out.
//!
//! One task owns everything. It first takes in all changes that have arrived, then decides one pod;
//! what a decision needs written happens in other tasks that report back as messages.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use sampan_client::{Change, Client, Error, Informers, Lister, Recorder};
use sampan_util::{Inbox, Shutdown};

use crate::decide::{Decision, Request, decide};
use crate::diagnosis::Diagnosis;
use crate::effects::{Effects, Report};
use crate::facts::Facts;
use crate::node_info::NodeInfo;
use crate::plugins::Event;
use crate::pod_info::{DEFAULT_SCHEDULER, PodInfo};
use crate::preemption::Preemption;
use crate::queue::{Queue, Waiting};
use crate::snapshot::Snapshot;
use crate::volumes::Volumes;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Pods that name this scheduler are ours.
    pub name: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: DEFAULT_SCHEDULER.to_owned(),
        }
    }
}

enum Message {
    Pod(Change<Pod>),
    Node(Change<Node>),
    Namespace(Change<Namespace>),
    Service(Change<Service>),
    Budget(Change<PodDisruptionBudget>),
    Claim(Change<PersistentVolumeClaim>),
    Volume(Change<PersistentVolume>),
    Class(Change<StorageClass>),
    BindFailed(Box<Waiting>, Error),
}

/// Of many changes of one object only the last one counts: by kind and uid.
type Messages = Inbox<(&'static str, String), Message>;

/// Schedules pods until shutdown.
pub async fn run(client: Client, informers: Informers, settings: Settings, shutdown: Shutdown) {
    let messages = Arc::new(Messages::default());
    let recorder = Recorder::new(client.clone(), &settings.name, "");
    let mut scheduler = Scheduler {
        snapshot: Snapshot::default(),
        queue: Queue::default(),
        facts: Facts::new(&informers),
        effects: Effects::new(client, recorder, &settings.name),
        pods: informers.lister(),
        settings,
        messages: messages.clone(),
        start: 0,
        decisions: 0,
    };
    subscribe(&informers, &messages);
    tokio::select! {
        () = informers.synced() => {}
        () = shutdown.wait() => return,
    }
    loop {
        while let Some(message) = messages.try_take() {
            scheduler.take_in(message);
        }
        if shutdown.is_triggered() {
            return;
        }
        if scheduler.decide_one() {
            tokio::task::yield_now().await;
            continue;
        }
        let deadline = scheduler.queue.next_deadline();
        tokio::select! {
            message = messages.take() => scheduler.take_in(message),
            () = sleep_until(deadline) => {}
            () = shutdown.wait() => return,
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn subscribe(informers: &Informers, messages: &Arc<Messages>) {
    forward(informers, messages, Message::Namespace);
    forward(informers, messages, Message::Node);
    forward(informers, messages, Message::Pod);
    forward(informers, messages, Message::Service);
    forward(informers, messages, Message::Budget);
    forward(informers, messages, Message::Claim);
    forward(informers, messages, Message::Volume);
    forward(informers, messages, Message::Class);
}

fn forward<K: sampan_client::Resource>(
    informers: &Informers,
    messages: &Arc<Messages>,
    wrap: fn(Change<K>) -> Message,
) {
    let messages = messages.clone();
    informers.lister::<K>().on_change(move |change| {
        let uid = change.object().metadata().uid.clone();
        messages.put((K::KIND, uid.unwrap_or_default()), wrap(change.clone()));
    });
}

/// By tokio's clock, which tests stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

struct Scheduler {
    snapshot: Snapshot,
    queue: Queue,
    facts: Facts,
    effects: Effects,
    pods: Lister<Pod>,
    settings: Settings,
    messages: Arc<Messages>,
    /// Where the next search for a node starts.
    start: usize,
    decisions: u64,
}

impl Scheduler {
    fn take_in(&mut self, message: Message) {
        match message {
            Message::Pod(Change::Applied { new, .. }) => self.pod_applied(&new),
            Message::Pod(Change::Deleted(pod)) => {
                self.pod_gone(pod.metadata.uid.as_deref().unwrap_or_default())
            }
            Message::Node(Change::Applied { new, .. }) => self.node_applied(&new),
            Message::Node(Change::Deleted(node)) => {
                self.snapshot
                    .remove_node(node.metadata.name.as_deref().unwrap_or_default());
                self.notice(&Event::NodeRemoved);
            }
            Message::Namespace(Change::Applied { new, .. }) => {
                let name = new.metadata.name.as_deref().unwrap_or_default();
                if self
                    .snapshot
                    .set_namespace(name, new.metadata.labels.clone().unwrap_or_default())
                {
                    self.notice(&Event::NamespaceChanged);
                }
            }
            Message::Namespace(Change::Deleted(namespace)) => {
                self.snapshot
                    .remove_namespace(namespace.metadata.name.as_deref().unwrap_or_default());
            }
            Message::Service(Change::Applied { new, .. }) => self.facts.set_service(&new),
            Message::Service(Change::Deleted(service)) => self.facts.remove_service(&service),
            Message::Budget(Change::Applied { new, .. }) => self.facts.set_budget(&new),
            Message::Budget(Change::Deleted(budget)) => self.facts.remove_budget(&budget),
            Message::Claim(change) => self.volumes(|volumes| match change {
                Change::Applied { new, .. } => volumes.set_claim(&new),
                Change::Deleted(old) => volumes.remove_claim(&old),
            }),
            Message::Volume(change) => self.volumes(|volumes| match change {
                Change::Applied { new, .. } => volumes.set_volume(&new),
                Change::Deleted(old) => volumes.remove_volume(&old),
            }),
            Message::Class(change) => self.volumes(|volumes| match change {
                Change::Applied { new, .. } => volumes.set_class(&new),
                Change::Deleted(old) => volumes.remove_class(&old),
            }),
            Message::BindFailed(waiting, error) => self.bind_failed(*waiting, &error),
        }
    }

    fn volumes(&mut self, change: impl FnOnce(&mut Volumes) -> bool) {
        if change(self.snapshot.volumes_mut()) {
            self.notice(&Event::VolumesChanged);
        }
    }

    fn notice(&mut self, event: &Event<'_>) {
        self.queue.notice(event, &self.snapshot, now());
    }

    // === changes ===

    fn node_applied(&mut self, node: &Node) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let old = self.snapshot.node(name).map(NodeInfo::bare);
        self.snapshot.set_node(node);
        let Some(new) = self.snapshot.node(name) else {
            return;
        };
        let event = match &old {
            None => Event::NodeAdded(new),
            Some(old) if old.schedules_differently(new) => Event::NodeChanged { old, new },
            Some(_) => return,
        };
        self.queue.notice(&event, &self.snapshot, now());
    }

    fn pod_applied(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return self.pod_gone(uid);
        }
        let info = Arc::new(PodInfo::new(pod));
        if info.node_name.is_some() {
            self.pod_placed(info);
        } else {
            self.pod_waits(info);
        }
    }

    fn pod_placed(&mut self, info: Arc<PodInfo>) {
        self.queue.remove(&info.uid);
        self.effects.forget(&info.uid);
        let before = self
            .snapshot
            .placement(&info.uid)
            .map(|(node, _)| node.clone());
        let old = self.snapshot.pod(&info.uid).cloned();
        self.snapshot.set_pod(info.clone());
        match old {
            None => self.notice(&Event::PodPlaced(&info)),
            Some(old) if before != info.node_name => {
                self.notice(&Event::PodRemoved(&old));
                self.notice(&Event::PodPlaced(&info));
            }
            Some(old) if old.labels != info.labels || old.requests != info.requests => {
                self.notice(&Event::PodChanged {
                    old: &old,
                    new: &info,
                });
            }
            Some(_) => {}
        }
    }

    fn pod_waits(&mut self, info: Arc<PodInfo>) {
        // A state from before the decision that is being carried out.
        if self.snapshot.placement(&info.uid).is_some() {
            return;
        }
        if info.scheduler_name != self.settings.name || info.terminating {
            return self.pod_gone(&info.uid);
        }
        match info.nominated_node.as_deref() {
            Some(node) => self.snapshot.nominate(info.clone(), node),
            None => self.snapshot.clear_nomination(&info.uid),
        }
        self.queue.update(info, now());
    }

    fn pod_gone(&mut self, uid: &str) {
        self.queue.remove(uid);
        self.effects.forget(uid);
        self.snapshot.clear_nomination(uid);
        if let Some(gone) = self.snapshot.remove_pod(uid) {
            self.notice(&Event::PodRemoved(&gone));
        }
    }

    // === decisions ===

    /// Returns whether there was a pod to decide.
    fn decide_one(&mut self) -> bool {
        let Some(waiting) = self.queue.pop(now()) else {
            return false;
        };
        let pod = waiting.pod.clone();
        let default_spread = self.facts.default_spread(&pod);
        self.decisions = self.decisions.wrapping_add(1);
        let decision = decide(&Request {
            pod: &pod,
            snapshot: &self.snapshot,
            default_spread: default_spread.as_ref(),
            budgets: self.facts.budgets(),
            start: self.start,
            seed: self.decisions,
        });
        self.start = (self.start + decision.examined()) % self.snapshot.nodes().len().max(1);
        match decision {
            Decision::Place { node, .. } => self.place(waiting, node),
            Decision::Refuse {
                diagnosis,
                preemption,
                ..
            } => self.refuse(waiting, &diagnosis, preemption),
        }
        true
    }

    fn place(&mut self, waiting: Waiting, node: Arc<str>) {
        let pod = waiting.pod.clone();
        tracing::debug!(namespace = pod.namespace, name = pod.name, %node, attempts = waiting.attempts, "placed");
        self.snapshot.assume(pod.clone(), node.clone());
        self.notice(&Event::PodPlaced(&pod));
        let messages = self.messages.clone();
        self.effects.bind(pod, node, move |result| {
            let Err(error) = result else { return };
            let uid = waiting.pod.uid.to_string();
            messages.put(("bind", uid), Message::BindFailed(Box::new(waiting), error));
        });
    }

    fn refuse(
        &mut self,
        mut waiting: Waiting,
        diagnosis: &Diagnosis,
        preemption: Option<Preemption>,
    ) {
        let pod = waiting.pod.clone();
        let message = diagnosis.to_string();
        tracing::debug!(
            namespace = pod.namespace,
            name = pod.name,
            message,
            "no node"
        );
        let nominate = match &preemption {
            Some(preemption) => preemption.node.to_string(),
            None => self.kept_nomination(&pod, diagnosis),
        };
        self.effects.report(
            &pod,
            Report {
                reason: "Unschedulable",
                message,
                nominate: Some(nominate.clone()),
            },
        );
        // Known here before the informer tells: else the next try could take other victims.
        let mut nominated = (*pod).clone();
        nominated.nominated_node = (!nominate.is_empty()).then(|| Arc::from(nominate.as_str()));
        waiting.pod = Arc::new(nominated);
        let pod = waiting.pod.clone();
        self.queue.refuse(waiting, diagnosis.refused_by, now());
        if nominate.is_empty() {
            self.snapshot.clear_nomination(&pod.uid);
        }
        if let Some(preemption) = preemption {
            self.preempt(&pod, &preemption);
        }
    }

    /// A pod keeps its nomination only while its victims are still leaving.
    fn kept_nomination(&self, pod: &PodInfo, diagnosis: &Diagnosis) -> String {
        let waits = diagnosis
            .preemption
            .starts_with("not eligible due to a terminating pod");
        pod.nominated_node
            .as_deref()
            .filter(|_| waits)
            .unwrap_or_default()
            .to_owned()
    }

    fn preempt(&mut self, pod: &Arc<PodInfo>, preemption: &Preemption) {
        let lesser: Vec<_> = self
            .snapshot
            .nominated(&preemption.node)
            .iter()
            .filter(|each| each.priority < pod.priority)
            .cloned()
            .collect();
        for each in lesser {
            self.snapshot.clear_nomination(&each.uid);
            self.effects.clear_nomination(&each);
        }
        self.snapshot.nominate(pod.clone(), &preemption.node);
        self.effects.preempt(pod, preemption);
    }

    fn bind_failed(&mut self, mut waiting: Waiting, error: &Error) {
        let pod = waiting.pod.clone();
        // Only what is still assumed is taken back: the informer knows better.
        if !self
            .snapshot
            .placement(&pod.uid)
            .is_some_and(|(_, assumed)| assumed)
        {
            return;
        }
        tracing::warn!(namespace = pod.namespace, name = pod.name, %error, "cannot bind a pod");
        if let Some(gone) = self.snapshot.remove_pod(&pod.uid) {
            self.notice(&Event::PodRemoved(&gone));
        }
        if error.is_not_found() {
            return;
        }
        let message = format!("running Bind plugin \"DefaultBinder\": {error}");
        self.effects.report(
            &pod,
            Report {
                reason: "SchedulerError",
                message,
                nominate: None,
            },
        );
        // Changes that came while the binding was under way were passed over.
        if let Some(newest) = self.pods.get(Some(&pod.namespace), &pod.name) {
            let newest = PodInfo::new(&newest);
            if newest.uid == pod.uid && newest.node_name.is_none() {
                waiting.pod = Arc::new(newest);
            }
        }
        self.queue.retry(waiting, now());
    }
}

#[cfg(test)]
mod tests;

//! All pods of the node: one worker each, found by uid.
//!
//! One task hears of pods from the API and of sandboxes and containers from the runtime, decides
//! whether a new pod may run here, starts workers and hands them their mail. What the runtime holds
//! of pods that nobody knows gets a worker too, whose pod is gone: it cleans up.

mod lookup;
mod orphans;

use crate::admission::{self, NodeRoom};
use crate::context::Context;
use crate::plan::Verdict;
use crate::pod;
use crate::relist::SeenPod;
use crate::state::PodRuntime;
use crate::worker::mailbox::Mailbox;
use crate::worker::{End, Worker};
use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus, ResourceRequirements};
use sampan_client::{Change, Lister};
use sampan_util::{Shutdown, task};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::mpsc;

/// A worker that fails at once whenever it starts must not keep the machine busy.
const REPLACE_AFTER: Duration = Duration::from_secs(5);

/// What a worker last saw and said.
#[derive(Debug, Clone)]
pub struct View {
    pub pod: Arc<Pod>,
    pub status: PodStatus,
    pub runtime: PodRuntime,
    pub logs: PathBuf,
}

/// The views of all pods, by uid.
#[derive(Debug, Default)]
pub struct Views(RwLock<HashMap<String, View>>);

impl Views {
    pub fn put(&self, uid: &str, view: View) {
        self.write().insert(uid.to_owned(), view);
    }

    pub fn remove(&self, uid: &str) {
        self.write().remove(uid);
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, View>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, View>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the manager hears.
#[derive(Debug)]
pub enum Note {
    Applied(Arc<Pod>),
    Gone(Arc<Pod>),
    Runtime(Vec<SeenPod>),
    Retired(String),
    /// The worker of this pod has ended by a bug.
    Broken(String),
}

pub struct Manager {
    context: Arc<Context>,
    views: Arc<Views>,
    node: Lister<Node>,
    pods: Lister<Pod>,
    notes: mpsc::UnboundedSender<Note>,
    workers: HashMap<String, Running>,
    shutdown: Shutdown,
}

struct Running {
    mailbox: Arc<Mailbox>,
    pod: Arc<Pod>,
    was_refused: bool,
    /// The API does not know the pod any more.
    is_gone: bool,
    /// Its resize waits for room.
    is_deferred: bool,
}

impl Manager {
    pub fn new(
        context: Arc<Context>,
        views: Arc<Views>,
        node: Lister<Node>,
        pods: Lister<Pod>,
        notes: mpsc::UnboundedSender<Note>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            context,
            views,
            node,
            pods,
            notes,
            workers: HashMap::new(),
            shutdown,
        }
    }

    /// Turns changes of the API's pods into notes.
    pub fn listen(pods: &Lister<Pod>, notes: &mpsc::UnboundedSender<Note>) {
        let notes = notes.clone();
        pods.on_change(move |change| {
            for note in notes_of(change) {
                // Nobody listens any more once the kubelet ends.
                let _ended = notes.send(note);
            }
        });
    }

    pub async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Note>) {
        tokio::select! {
            () = self.pods.synced() => {}
            () = self.shutdown.wait() => return,
        }
        loop {
            tokio::select! {
                note = inbox.recv() => match note {
                    Some(note) => self.hear(note),
                    None => return,
                },
                () = self.shutdown.wait() => return,
            }
        }
    }

    fn hear(&mut self, note: Note) {
        match note {
            Note::Applied(pod) => self.apply(pod),
            Note::Gone(pod) => {
                if let Some(running) = self.workers.get_mut(pod::uid(&pod)) {
                    running.is_gone = true;
                    running.mailbox.put(|mail| mail.is_gone = true);
                }
            }
            Note::Runtime(seen) => seen.into_iter().for_each(|pod| self.see(pod)),
            Note::Retired(uid) => {
                self.workers.remove(&uid);
                self.judge_deferred();
            }
            Note::Broken(uid) => self.replace(&uid),
        }
    }

    /// Another worker goes on from what the runtime says.
    fn replace(&mut self, uid: &str) {
        let Some(old) = self.workers.remove(uid) else {
            return;
        };
        let verdict = old.was_refused.then(|| self.judge(&old.pod)).flatten();
        self.start(old.pod, verdict, old.is_gone);
        if old.is_deferred {
            self.judge_resize(uid);
        }
    }

    fn apply(&mut self, pod: Arc<Pod>) {
        let uid = pod::uid(&pod).to_owned();
        if let Some(running) = self.workers.get_mut(&uid) {
            let asks_anew = resources_of(&running.pod) != resources_of(&pod);
            running.pod = Arc::clone(&pod);
            running.mailbox.put(|mail| mail.pod = Some(pod));
            if asks_anew {
                self.judge_resize(&uid);
            }
            return;
        }
        let verdict = self.judge(&pod);
        self.start(pod, verdict, false);
    }

    /// A pod that has never run here must fit; one that has is taken as it is.
    fn judge(&self, pod: &Pod) -> Option<Verdict> {
        let status = pod.status.as_ref();
        let is_known = status.is_some_and(|s| s.start_time.is_some());
        if is_known || pod::is_being_deleted(pod) || pod::is_terminal_phase(pod::phase(pod)) {
            return None;
        }
        let node = self.node.get(None, &self.context.node_name);
        let others = self.others(pod::uid(pod));
        let room = NodeRoom {
            node: node.as_deref(),
            allocatable: &self.context.around.allocatable,
            pods: &others,
        };
        admission::judge(pod, &room)
    }

    /// Whether the node can give a running pod what it asks for by now.
    fn judge_resize(&mut self, uid: &str) {
        let Some(running) = self.workers.get(uid) else {
            return;
        };
        let others = self.others(uid);
        let pending =
            admission::judge_resize(&running.pod, &self.context.around.allocatable, &others);
        let is_deferred = pending.as_ref().is_some_and(|p| p.reason == "Deferred");
        let Some(running) = self.workers.get_mut(uid) else {
            return;
        };
        running.is_deferred = is_deferred;
        running.mailbox.put(|mail| mail.resize = Some(pending));
    }

    /// A pod has left: what was deferred may have become possible.
    fn judge_deferred(&mut self) {
        let deferred: Vec<String> = self
            .workers
            .iter()
            .filter(|(_, running)| running.is_deferred)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in deferred {
            self.judge_resize(&uid);
        }
    }

    /// The pods that take up room beside this one.
    fn others(&self, uid: &str) -> Vec<&Pod> {
        self.workers
            .iter()
            .filter(|(other, _)| *other != uid)
            .map(|(_, running)| running)
            .filter(|r| !r.was_refused && !pod::is_terminal_phase(pod::phase(&r.pod)))
            .map(|r| &*r.pod)
            .collect()
    }

    /// The runtime holds something else of this pod than its worker saw.
    fn see(&mut self, seen: SeenPod) {
        if let Some(running) = self.workers.get(&seen.uid) {
            running.mailbox.put(|mail| mail.runtime_changed = true);
            return;
        }
        if seen.name.is_empty() {
            self.context.relister.forget(&seen.uid);
            return;
        }
        // The API's pods are all known by now: this one is not among them.
        tracing::info!(pod = %seen.name, namespace = %seen.namespace, uid = %seen.uid, "cleaning up after a pod that is gone");
        self.start(Arc::new(orphans::pod_of(&seen)), None, true);
    }

    fn start(&mut self, pod: Arc<Pod>, verdict: Option<Verdict>, is_gone: bool) {
        let uid = pod::uid(&pod).to_owned();
        let mailbox: Arc<Mailbox> = Arc::default();
        let was_refused = verdict.is_some();
        if let Some(verdict) = &verdict {
            let message = verdict.message.clone();
            self.context
                .recorder
                .warning(&*pod, verdict.reason.clone(), message);
        }
        mailbox.put(|mail| mail.verdict = verdict);
        let worker = Worker::new(
            Arc::clone(&self.context),
            Arc::clone(&self.views),
            Arc::clone(&mailbox),
            Arc::clone(&pod),
            is_gone,
        );
        let running = Running {
            mailbox,
            pod,
            was_refused,
            is_gone,
            is_deferred: false,
        };
        self.workers.insert(uid.clone(), running);
        let (shutdown, notes) = (self.shutdown.clone(), self.notes.clone());
        task::spawn("pod-worker", async move {
            let ended = AssertUnwindSafe(worker.run(shutdown.clone())).catch_unwind();
            let note = match ended.await {
                Ok(End::Retired) => Note::Retired(uid),
                ended => {
                    tracing::error!(uid, panicked = ended.is_err(), "the pod gets a new worker");
                    tokio::select! {
                        () = tokio::time::sleep(REPLACE_AFTER) => {}
                        () = shutdown.wait() => {}
                    }
                    Note::Broken(uid)
                }
            };
            // Nobody listens any more once the kubelet ends.
            let _ended = notes.send(note);
        });
    }

    /// Directories of pods that neither the API nor the runtime knows.
    pub fn find_leftovers(context: &Context) -> Vec<SeenPod> {
        orphans::on_disk(&context.dirs)
    }
}

fn resources_of(pod: &Pod) -> Vec<Option<ResourceRequirements>> {
    pod::containers(pod)
        .map(|(_, c)| c.resources.clone())
        .collect()
}

fn notes_of(change: &Change<Pod>) -> Vec<Note> {
    match change {
        Change::Applied { old, new } => {
            let replaced = old
                .as_ref()
                .filter(|old| pod::uid(old) != pod::uid(new))
                .map(|old| Note::Gone(Arc::clone(old)));
            let applied = Note::Applied(Arc::clone(new));
            replaced.into_iter().chain([applied]).collect()
        }
        Change::Deleted(pod) => vec![Note::Gone(Arc::clone(pod))],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_worker_that_broke_is_replaced() {
        let context = crate::fixture::context();
        let informers = sampan_client::Informers::new(context.client.clone(), Shutdown::new());
        let (notes, _inbox) = mpsc::unbounded_channel();
        let mut manager = Manager::new(
            context,
            Arc::default(),
            informers.lister(),
            informers.lister(),
            notes,
            Shutdown::new(),
        );
        let pod = Arc::new(crate::fixture::pod_of(
            serde_json::json!({"containers": []}),
        ));
        let uid = pod::uid(&pod).to_owned();
        manager.start(Arc::clone(&pod), None, false);
        manager.hear(Note::Gone(pod));
        let old = Arc::clone(&manager.workers[&uid].mailbox);
        manager.hear(Note::Broken(uid.clone()));
        let new = &manager.workers[&uid];
        assert!(!Arc::ptr_eq(&old, &new.mailbox) && new.is_gone);
        manager.hear(Note::Retired(uid.clone()));
        manager.hear(Note::Broken(uid));
        assert!(manager.workers.is_empty(), "what has retired stays away");
    }
}

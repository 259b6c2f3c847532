//! All pods of the node: one worker each, found by uid.
//!
//! One task hears of pods from the API and of sandboxes and containers from the runtime, decides
//! whether a new pod may run here, starts workers and hands them their mail. What the runtime holds
//! of pods that nobody knows gets a worker too, whose pod is gone: it cleans up.

mod lookup;
mod notes;
mod orphans;

pub use notes::Notes;

use crate::admission::{self, NodeRoom};
use crate::context::Context;
use crate::plan::Verdict;
use crate::pod;
use crate::relist::{Relister, SeenPod};
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
use tokio::sync::watch;

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
pub struct Views {
    by_uid: RwLock<HashMap<String, View>>,
    /// What is known of the runtime before it shows it.
    pub(crate) relister: Arc<Relister>,
}

impl Views {
    pub fn put(&self, uid: &str, view: View) {
        self.write().insert(uid.to_owned(), view);
    }

    pub fn remove(&self, uid: &str) {
        self.write().remove(uid);
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, View>> {
        self.by_uid.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, View>> {
        self.by_uid.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the manager hears.
#[derive(Debug)]
pub enum Note {
    Applied(Arc<Pod>),
    Gone(Arc<Pod>),
    /// The static pods that there are to be.
    Static(Vec<Arc<Pod>>),
    Runtime(Vec<SeenPod>),
    /// The node has decided against a pod that runs.
    Evicted(String, Verdict),
    Retired(String),
    /// The worker of this pod has ended by a bug.
    Broken(String),
}

pub struct Manager {
    context: Arc<Context>,
    views: Arc<Views>,
    node: Lister<Node>,
    pods: Lister<Pod>,
    notes: Arc<Notes>,
    workers: HashMap<String, Running>,
    statics: Vec<Arc<Pod>>,
    /// Tells which static pods the API is to show.
    shown: watch::Sender<Vec<Arc<Pod>>>,
    shutdown: Shutdown,
}

struct Running {
    mailbox: Arc<Mailbox>,
    pod: Arc<Pod>,
    was_refused: bool,
    /// The API does not know the pod any more.
    is_gone: bool,
    is_evicted: bool,
    /// Its resize waits for room.
    is_deferred: bool,
}

impl Manager {
    pub fn new(
        context: Arc<Context>,
        views: Arc<Views>,
        node: Lister<Node>,
        pods: Lister<Pod>,
        notes: Arc<Notes>,
        shown: watch::Sender<Vec<Arc<Pod>>>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            context,
            views,
            node,
            pods,
            notes,
            workers: HashMap::new(),
            statics: Vec::new(),
            shown,
            shutdown,
        }
    }

    /// Turns changes of the API's pods into notes.
    pub fn listen(pods: &Lister<Pod>, notes: &Arc<Notes>) {
        let notes = Arc::clone(notes);
        pods.on_change(move |change| {
            for note in notes_of(change) {
                notes.send(note);
            }
        });
    }

    pub async fn run(mut self) {
        let inbox = Arc::clone(&self.notes);
        let early = Notes::default();
        // Only then is it known which pods are whose: before, everything in the runtime looks left over.
        let mut knows_statics = false;
        loop {
            tokio::select! {
                () = self.pods.synced(), if knows_statics => break,
                note = inbox.take() => {
                    knows_statics |= matches!(note, Note::Static(_));
                    self.hear_early(note, &early);
                }
                () = self.shutdown.wait() => return,
            }
        }
        // Whatever the list brought lies in the box by now.
        while let Some(note) = inbox.try_take() {
            self.hear_early(note, &early);
        }
        // Pods first: what the runtime holds of them must find its worker, or it would be cleaned up.
        let (runtime, pods): (Vec<Note>, Vec<Note>) = std::iter::from_fn(|| early.try_take())
            .partition(|note| matches!(note, Note::Runtime(_)));
        for note in pods.into_iter().chain(runtime) {
            self.hear(note);
        }
        loop {
            tokio::select! {
                note = inbox.take() => self.hear(note),
                () = self.shutdown.wait() => return,
            }
        }
    }

    /// Until the API's pods are known only static ones run; the rest waits in its order.
    fn hear_early(&mut self, note: Note, early: &Notes) {
        match note {
            Note::Runtime(seen) => {
                let (known, unknown): (Vec<_>, Vec<_>) = seen
                    .into_iter()
                    .partition(|pod| self.workers.contains_key(&pod.uid));
                known.into_iter().for_each(|pod| self.see(pod));
                early.send(Note::Runtime(unknown));
            }
            Note::Applied(_) | Note::Gone(_) => early.send(note),
            Note::Static(_) | Note::Evicted(..) | Note::Retired(_) | Note::Broken(_) => {
                self.hear(note);
            }
        }
    }

    fn hear(&mut self, note: Note) {
        match note {
            Note::Static(pods) => {
                self.statics = pods;
                self.settle_statics();
            }
            Note::Applied(pod) => self.apply(pod),
            Note::Gone(pod) if pod::is_mirror(&pod) => self.show(&pod, None),
            Note::Gone(pod) => {
                if let Some(running) = self.workers.get_mut(pod::uid(&pod)) {
                    running.is_gone = true;
                    running.mailbox.put(|mail| mail.is_gone = true);
                }
            }
            Note::Runtime(seen) => seen.into_iter().for_each(|pod| self.see(pod)),
            Note::Evicted(uid, verdict) => self.evict(&uid, verdict),
            Note::Retired(uid) => {
                let retired = self.workers.remove(&uid);
                if retired.is_some_and(|running| pod::is_static(&running.pod)) {
                    self.settle_statics();
                }
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

    /// Stops what no file asks for any more, starts what is new; of one name the old pod goes first.
    fn settle_statics(&mut self) {
        let wanted: HashMap<&str, &Arc<Pod>> =
            self.statics.iter().map(|p| (pod::uid(p), p)).collect();
        let mut running: HashMap<String, Arc<Pod>> = HashMap::new();
        for (uid, worker) in &mut self.workers {
            if !pod::is_static(&worker.pod) {
                continue;
            }
            if !wanted.contains_key(uid.as_str()) {
                worker.is_gone = true;
                worker.mailbox.put(|mail| mail.is_gone = true);
            }
            running.insert(pod::key(&worker.pod), Arc::clone(&worker.pod));
        }
        let new: Vec<Arc<Pod>> = self
            .statics
            .iter()
            .filter(|pod| !running.contains_key(&pod::key(pod)))
            .cloned()
            .collect();
        for pod in new {
            let verdict = self.judge(&pod);
            self.start(Arc::clone(&pod), verdict, false);
            running.insert(pod::key(&pod), pod);
        }
        self.shown.send_if_modified(|shown| {
            let mut now: Vec<Arc<Pod>> = running.into_values().collect();
            now.sort_by_key(|pod| pod::key(pod));
            let changes = *shown != now;
            *shown = now;
            changes
        });
    }

    /// The API's copy of a static pod is this now.
    fn show(&self, about: &Pod, copy: Option<Arc<Pod>>) {
        let key = pod::key(about);
        let mut workers = self.workers.values();
        let shown = workers.find(|r| pod::is_static(&r.pod) && pod::key(&r.pod) == key);
        if let Some(running) = shown {
            running.mailbox.put(|mail| mail.mirror = Some(copy));
        }
    }

    fn apply(&mut self, pod: Arc<Pod>) {
        if pod::is_mirror(&pod) {
            self.show(&Arc::clone(&pod), Some(pod));
            return;
        }
        let pod = pod::of_api(pod);
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
            unsafe_sysctls: &self.context.settings.unsafe_sysctls,
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
            // One that the API no longer has only has its traces removed, and its place may be given away already.
            .filter(|r| !r.was_refused && !r.is_gone)
            .filter(|r| !pod::is_terminal_phase(pod::phase(&r.pod)))
            .map(|r| &*r.pod)
            .collect()
    }

    fn evict(&mut self, uid: &str, verdict: Verdict) {
        let Some(running) = self.workers.get_mut(uid) else {
            return;
        };
        if std::mem::replace(&mut running.is_evicted, true) {
            return;
        }
        let recorder = &self.context.recorder;
        recorder.warning(
            &*running.pod,
            verdict.reason.clone(),
            verdict.message.clone(),
        );
        running.mailbox.put(|mail| mail.verdict = Some(verdict));
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
        let copy = pod::is_static(&pod)
            .then(|| self.pods.get(Some(pod::namespace(&pod)), pod::name(&pod)))
            .flatten()
            .filter(|copy| pod::is_mirror(copy));
        mailbox.put(|mail| {
            mail.verdict = verdict;
            mail.mirror = copy.map(Some);
        });
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
            is_evicted: false,
            is_deferred: false,
        };
        self.workers.insert(uid.clone(), running);
        let (shutdown, notes) = (self.shutdown.clone(), Arc::clone(&self.notes));
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
            notes.send(note);
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
        let mut manager = Manager::new(
            context,
            Arc::default(),
            informers.lister(),
            informers.lister(),
            Arc::default(),
            watch::channel(Vec::new()).0,
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

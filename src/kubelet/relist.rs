//! Notices what happens in the runtime: containers that end, sandboxes that die.
//!
//! The runtime's events say when to look; the lists say what is. A pod whose list differs from what
//! its worker last saw is reported, and the worker then asks for the details itself. So a lost event
//! loses nothing but time, and a node on which nothing happens does nothing. A runtime without
//! events is listed once a second. Upstream counterpart: `pleg`.

mod events;

use crate::config::labels;
use crate::observe::run_state;
use crate::state::{PodRuntime, RunState};
use sampan_cri::runtime::v1::{
    Container, ListContainersRequest, ListPodSandboxRequest, PodSandbox, PodSandboxState,
};
use sampan_cri::{Containerd, Error, Runtime};
use sampan_util::Shutdown;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

const POLL: Duration = Duration::from_secs(1);
/// After an exit the runtime needs a moment until its lists tell; how long we keep looking.
const FOLLOW_UP: [u64; 12] = [2, 5, 10, 20, 50, 100, 100, 100, 200, 200, 500, 1000];

/// Ids with their state: what a change of shows in a list.
type Signature = BTreeSet<(String, u8)>;

/// A pod that the runtime holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenPod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// The grace its containers were created with, for pods that nobody knows any more.
    pub grace: Option<i64>,
}

/// What the workers have seen last.
#[derive(Debug, Default)]
pub struct Relister {
    seen: Mutex<HashMap<String, Signature>>,
    /// Containers whose end was announced while the runtime still lists them as running.
    ending: Mutex<HashSet<String>>,
}

impl Relister {
    pub fn note(&self, uid: &str, state: &PodRuntime) {
        self.seen().insert(uid.to_owned(), signature_of(state));
    }

    pub fn forget(&self, uid: &str) {
        self.seen().remove(uid);
    }

    /// Whether a container has ended, though the runtime does not show it yet.
    pub fn is_ending(&self, container_id: &str) -> bool {
        self.ending().contains(container_id)
    }

    fn ending(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<String, Signature>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pods whose list is not what their worker saw, among them pods without a worker.
    fn changed(&self, lists: &HashMap<String, Listed>) -> Vec<SeenPod> {
        let seen = self.seen();
        let differing = lists
            .iter()
            .filter(|(uid, listed)| seen.get(*uid) != Some(&listed.signature))
            .map(|(_, listed)| listed.pod.clone());
        let vanished = seen
            .iter()
            .filter(|(uid, signature)| !signature.is_empty() && !lists.contains_key(*uid))
            .map(|(uid, _)| SeenPod {
                uid: uid.clone(),
                ..SeenPod::default()
            });
        differing.chain(vanished).collect()
    }
}

fn code(state: RunState) -> u8 {
    match state {
        RunState::Created => 0,
        RunState::Running => 1,
        RunState::Exited => 2,
        RunState::Unknown => 3,
    }
}

fn signature_of(state: &PodRuntime) -> Signature {
    let sandboxes = state
        .sandboxes
        .iter()
        .map(|s| (s.id.clone(), u8::from(s.ready)));
    let instances = state
        .instances
        .iter()
        .map(|i| (i.id.clone(), code(i.state)));
    sandboxes.chain(instances).collect()
}

#[derive(Debug, Default)]
struct Listed {
    pod: SeenPod,
    signature: Signature,
}

fn group(sandboxes: &[PodSandbox], containers: &[Container]) -> HashMap<String, Listed> {
    let mut pods: HashMap<String, Listed> = HashMap::new();
    let text = |map: &HashMap<String, String>, name: &str| map.get(name).cloned();
    for sandbox in sandboxes {
        let Some(uid) = text(&sandbox.labels, labels::POD_UID) else {
            continue;
        };
        let listed = pods.entry(uid.clone()).or_default();
        listed.pod.uid = uid;
        listed.pod.namespace = text(&sandbox.labels, labels::POD_NAMESPACE).unwrap_or_default();
        listed.pod.name = text(&sandbox.labels, labels::POD_NAME).unwrap_or_default();
        let ready = sandbox.state == PodSandboxState::SandboxReady as i32;
        listed
            .signature
            .insert((sandbox.id.clone(), u8::from(ready)));
    }
    for container in containers {
        let Some(uid) = text(&container.labels, labels::POD_UID) else {
            continue;
        };
        let listed = pods.entry(uid.clone()).or_default();
        listed.pod.uid = uid;
        listed.pod.namespace = text(&container.labels, labels::POD_NAMESPACE).unwrap_or_default();
        listed.pod.name = text(&container.labels, labels::POD_NAME).unwrap_or_default();
        let grace = text(&container.annotations, labels::TERMINATION_GRACE);
        listed.pod.grace = grace.and_then(|g| g.parse().ok()).or(listed.pod.grace);
        let state = code(run_state(container.state));
        listed.signature.insert((container.id.clone(), state));
    }
    pods
}

/// Lists when the runtime tells of an exit (or once a second if it never does), and reports pods
/// that changed.
pub struct Watch<F> {
    pub runtime: Runtime,
    pub containerd: Containerd,
    pub relister: std::sync::Arc<Relister>,
    pub report: F,
}

impl<F: Fn(Vec<SeenPod>) + Send + Sync> Watch<F> {
    pub async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = self.follow() => {}
            () = shutdown.wait() => {}
        }
    }

    async fn follow(&self) {
        let (exits, mut exited) = mpsc::channel(64);
        let source = events::follow(self.runtime.clone(), self.containerd.clone(), exits);
        tokio::pin!(source);
        let mut pending: HashMap<String, usize> = HashMap::new();
        let mut next = Some(Instant::now());
        loop {
            tokio::select! {
                Some(event) = exited.recv() => {
                    if let events::Event::Exited(id) = event {
                        self.relister.ending().insert(id.clone());
                        pending.insert(id, 0);
                    }
                    // A new stream, too, asks for a look: whatever happened before was missed.
                    next = Some(Instant::now());
                }
                // This runtime has no events.
                () = &mut source => return self.poll().await,
                () = at(next) => {
                    let delay = self.list(&mut pending).await;
                    next = delay.map(|delay| Instant::now() + delay);
                }
            }
        }
    }

    async fn poll(&self) {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.list(&mut HashMap::new()).await;
        }
    }

    /// Lists and reports; answers after which time to list again, if that is needed.
    async fn list(&self, pending: &mut HashMap<String, usize>) -> Option<Duration> {
        let (sandboxes, containers) = match self.lists().await {
            Ok(lists) => lists,
            Err(error) => {
                tracing::debug!(%error, "the runtime cannot be listed");
                return Some(POLL);
            }
        };
        let changed = self.relister.changed(&group(&sandboxes, &containers));
        if !changed.is_empty() {
            (self.report)(changed);
        }
        let running: HashSet<&str> = containers
            .iter()
            .filter(|c| run_state(c.state) == RunState::Running)
            .map(|c| c.id.as_str())
            .chain(
                sandboxes
                    .iter()
                    .filter(|s| s.state == PodSandboxState::SandboxReady as i32)
                    .map(|s| s.id.as_str()),
            )
            .collect();
        pending.retain(|id, tries| {
            *tries += 1;
            running.contains(id.as_str()) && *tries <= FOLLOW_UP.len()
        });
        self.relister.ending().retain(|id| pending.contains_key(id));
        let soonest = pending.values().min()?;
        FOLLOW_UP
            .get(soonest.saturating_sub(1))
            .map(|millis| Duration::from_millis(*millis))
    }

    async fn lists(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Error> {
        let sandboxes = self
            .runtime
            .list_pod_sandbox(ListPodSandboxRequest::default());
        let containers = self
            .runtime
            .list_containers(ListContainersRequest::default());
        let (sandboxes, containers) = tokio::try_join!(sandboxes, containers)?;
        Ok((sandboxes.items, containers.containers))
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(uid: &str, id: &str, state: i32) -> Container {
        Container {
            id: id.into(),
            state,
            labels: [(labels::POD_UID.to_owned(), uid.to_owned())].into(),
            ..Container::default()
        }
    }

    #[test]
    fn only_pods_that_differ_are_reported() {
        let relister = Relister::default();
        relister.ending().insert("a".to_owned());
        assert!(relister.is_ending("a") && !relister.is_ending("b"));
        let lists = group(&[], &[container("u1", "a", 1), container("u2", "b", 1)]);
        assert_eq!(relister.changed(&lists).len(), 2);
        let mut state = PodRuntime::default();
        state
            .instances
            .push(crate::fixture::instance("a", RunState::Running));
        relister.note("u1", &state);
        state.instances[0].id = "b".into();
        relister.note("u2", &state);
        assert_eq!(relister.changed(&lists), []);
        let ended = group(&[], &[container("u1", "a", 2)]);
        let mut uids: Vec<String> = relister
            .changed(&ended)
            .into_iter()
            .map(|p| p.uid)
            .collect();
        uids.sort();
        assert_eq!(uids, ["u1", "u2"]);
    }
}

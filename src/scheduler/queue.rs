//! Pods that wait for a decision: at once, after a back-off, or until something changes for them.
//!
//! Pure: time is an argument.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plugins::{Event, PluginSet};
use crate::pod_info::PodInfo;
use crate::snapshot::Snapshot;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// A pod on its way through the queue.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub pod: Arc<PodInfo>,
    pub attempts: u32,
    /// Failures of our own (a lost request), not of the pod to fit.
    errors: u32,
    refused_by: PluginSet,
    refused_at: Option<Instant>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Active(u64),
    BackingOff(Instant, u64),
    /// Refused; waits for an event that its plugins care about.
    Refused,
    Gated,
}

#[derive(Debug, PartialEq, Eq)]
struct Ready {
    priority: i32,
    sequence: Reverse<u64>,
    uid: Arc<str>,
}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        self.priority
            .cmp(&other.priority)
            .then(self.sequence.cmp(&other.sequence))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, Default)]
pub struct Queue {
    pods: HashMap<Arc<str>, Waiting>,
    /// May hold stale entries; the pod's own place decides.
    active: BinaryHeap<Ready>,
    backing_off: BTreeMap<(Instant, u64), Arc<str>>,
    sequence: u64,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub fn get(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|waiting| &waiting.pod)
    }

    /// A pod that is new here.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        let place = Place::Gated;
        self.insert(Waiting {
            pod,
            attempts: 0,
            errors: 0,
            refused_by: PluginSet::default(),
            refused_at: None,
            place,
        });
    }

    fn insert(&mut self, waiting: Waiting) {
        let uid = waiting.pod.uid.clone();
        let gated = !waiting.pod.gates.is_empty();
        self.forget_place(&uid);
        self.pods.insert(uid.clone(), waiting);
        if !gated {
            self.activate(&uid);
        }
    }

    /// A newer state of a pod that waits; if it could be decided differently it gets another chance.
    pub fn update(&mut self, pod: Arc<PodInfo>, now: Instant) {
        let uid = pod.uid.clone();
        let Some(waiting) = self.pods.get_mut(&uid) else {
            return self.add(pod);
        };
        let differs = pod.schedules_differently(&waiting.pod);
        let gated = !pod.gates.is_empty();
        let place = waiting.place;
        waiting.pod = pod;
        match place {
            Place::Gated if !gated => self.activate(&uid),
            Place::Active(_) if differs => self.activate(&uid),
            Place::Refused if differs => self.wake(&uid, now),
            _ => {}
        }
    }

    pub fn remove(&mut self, uid: &str) -> Option<Waiting> {
        self.forget_place(uid);
        self.pods.remove(uid)
    }

    /// The most important pod that may be decided now. When none is, one that merely backs off
    /// after being refused is taken early: an event has promised that it may fit.
    pub fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.end_backoffs(now);
        while let Some(ready) = self.active.pop() {
            let current = self.pods.get(&ready.uid).map(|waiting| waiting.place);
            if current == Some(Place::Active(ready.sequence.0)) {
                return self.take(&ready.uid);
            }
        }
        let early = self
            .backing_off
            .values()
            .find(|uid| self.pods.get(*uid).is_some_and(|each| each.errors == 0));
        let uid = early.cloned()?;
        self.take(&uid)
    }

    fn take(&mut self, uid: &str) -> Option<Waiting> {
        let mut waiting = self.remove(uid)?;
        waiting.attempts += 1;
        Some(waiting)
    }

    /// When `pop` will have something that it has not now.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.backing_off.keys().next().map(|(at, _)| *at)
    }

    /// A pod that no node wants; it waits until an event wakes one of the plugins.
    pub fn refuse(&mut self, mut waiting: Waiting, refused_by: PluginSet, now: Instant) {
        waiting.errors = 0;
        waiting.refused_by = refused_by;
        waiting.refused_at = Some(now);
        waiting.place = Place::Refused;
        self.pods.insert(waiting.pod.uid.clone(), waiting);
    }

    /// A pod that could not be bound for reasons of ours; it is tried again after a while.
    pub fn retry(&mut self, mut waiting: Waiting, now: Instant) {
        waiting.errors += 1;
        waiting.refused_at = Some(now);
        let uid = waiting.pod.uid.clone();
        let until = now + backoff(waiting.errors);
        self.pods.insert(uid.clone(), waiting);
        self.back_off(&uid, until);
    }

    /// Wakes the pods that could fit after the event.
    pub fn notice(&mut self, event: &Event<'_>, snapshot: &Snapshot, now: Instant) {
        let woken: Vec<Arc<str>> = self
            .pods
            .iter()
            .filter(|(_, each)| {
                each.place == Place::Refused && each.refused_by.woken_by(&each.pod, event, snapshot)
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in woken {
            self.wake(&uid, now);
        }
    }

    fn wake(&mut self, uid: &str, now: Instant) {
        let Some(waiting) = self.pods.get(uid) else {
            return;
        };
        if !waiting.pod.gates.is_empty() {
            return;
        }
        match waiting
            .refused_at
            .map(|at| at + backoff(waiting.attempts))
            .filter(|until| *until > now)
        {
            Some(until) => self.back_off(uid, until),
            None => self.activate(uid),
        }
    }

    fn activate(&mut self, uid: &str) {
        self.forget_place(uid);
        self.sequence += 1;
        if let Some(waiting) = self.pods.get_mut(uid) {
            waiting.place = Place::Active(self.sequence);
            let (priority, uid) = (waiting.pod.priority, waiting.pod.uid.clone());
            self.active.push(Ready {
                priority,
                sequence: Reverse(self.sequence),
                uid,
            });
        }
    }

    fn back_off(&mut self, uid: &str, until: Instant) {
        self.forget_place(uid);
        self.sequence += 1;
        if let Some(waiting) = self.pods.get_mut(uid) {
            waiting.place = Place::BackingOff(until, self.sequence);
            self.backing_off
                .insert((until, self.sequence), waiting.pod.uid.clone());
        }
    }

    fn end_backoffs(&mut self, now: Instant) {
        while let Some(entry) = self
            .backing_off
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
        {
            let uid = entry.remove();
            self.activate(&uid);
        }
    }

    fn forget_place(&mut self, uid: &str) {
        if let Some(Place::BackingOff(until, sequence)) =
            self.pods.get(uid).map(|waiting| waiting.place)
        {
            self.backing_off.remove(&(until, sequence));
        }
    }
}

fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(10);
    (INITIAL_BACKOFF * 2u32.pow(doublings)).min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests;

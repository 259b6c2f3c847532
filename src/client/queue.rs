//! A work queue: every key at most once waiting, at most once worked on, retried with back-off.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sampan_util::Backoff;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A key added while it is being worked on is handed out again after [`Queue::done`], so no change
/// is lost and no two workers ever hold the same key.
pub struct Queue<T>(Arc<Inner<T>>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    backoff: Backoff,
}

/// What a queue has done so far, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Figures {
    /// Keys that began to wait.
    pub adds: u64,
    /// Keys that came back after a failure.
    pub retries: u64,
    /// How long keys waited until they were handed out: sum and number.
    pub waited: Duration,
    pub handed_out: u64,
    /// Keys that wait now.
    pub depth: usize,
}

struct State<T> {
    ready: VecDeque<T>,
    /// Since when each key in `ready` waits.
    since: VecDeque<Instant>,
    figures: Figures,
    /// Keys that wait to be handed out, in `ready` or behind `processing`.
    dirty: HashSet<T>,
    processing: HashSet<T>,
    delayed: BTreeMap<(Instant, u64), T>,
    due: HashMap<T, (Instant, u64)>,
    failures: HashMap<T, u32>,
    sequence: u64,
    closed: bool,
}

impl<T: Clone + Eq + Hash> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone + Eq + Hash> Queue<T> {
    pub fn new() -> Self {
        Self::with_backoff(Backoff::new(
            Duration::from_millis(5),
            Duration::from_secs(60),
        ))
    }

    pub fn with_backoff(backoff: Backoff) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                since: VecDeque::new(),
                figures: Figures::default(),
                dirty: HashSet::new(),
                processing: HashSet::new(),
                delayed: BTreeMap::new(),
                due: HashMap::new(),
                failures: HashMap::new(),
                sequence: 0,
                closed: false,
            }),
            wake: Notify::new(),
            backoff,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, key: T) {
        if self.state().add(key) {
            self.0.wake.notify_one();
        }
    }

    /// Adds the key once `delay` has passed; an earlier appointment of the same key wins.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            self.add(key);
            return;
        }
        self.state().delay(key, Instant::now() + delay);
        self.0.wake.notify_one();
    }

    /// Adds the key after a delay that grows with its failures, which are counted here.
    pub fn add_rate_limited(&self, key: T) -> Duration {
        let failures = {
            let mut state = self.state();
            state.figures.retries += 1;
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures += 1;
            *failures
        };
        let delay = self.0.backoff.delay(failures - 1);
        self.add_after(key, delay);
        delay
    }

    /// The key succeeded: its next failure starts from the shortest delay.
    pub fn forget(&self, key: &T) {
        self.state().failures.remove(key);
    }

    pub fn failures(&self, key: &T) -> u32 {
        self.state().failures.get(key).copied().unwrap_or(0)
    }

    pub fn figures(&self) -> Figures {
        let state = self.state();
        Figures {
            depth: state.ready.len(),
            ..state.figures
        }
    }

    /// How many keys wait to be handed out now.
    pub fn len(&self) -> usize {
        self.state().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key to work on; `None` once the queue is closed. Call [`Queue::done`] afterwards.
    pub async fn next(&self) -> Option<T> {
        loop {
            let notified = self.0.wake.notified();
            let deadline = {
                let mut state = self.state();
                if state.closed {
                    return None;
                }
                state.promote(Instant::now());
                if let Some(key) = state.take() {
                    if !state.ready.is_empty() || !state.delayed.is_empty() {
                        self.0.wake.notify_one();
                    }
                    return Some(key);
                }
                state.delayed.keys().next().map(|(at, _)| *at)
            };
            match deadline {
                Some(at) => {
                    tokio::select! {
                        () = notified => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => notified.await,
            }
        }
    }

    /// The key is no longer worked on; if it was added meanwhile it is handed out again.
    pub fn done(&self, key: &T) {
        if self.state().finish(key) {
            self.0.wake.notify_one();
        }
    }

    /// Every waiting and future [`Queue::next`] returns `None`.
    pub fn close(&self) {
        self.state().closed = true;
        self.0.wake.notify_waiters();
        self.0.wake.notify_one();
    }
}

impl<T: Clone + Eq + Hash> State<T> {
    /// Whether a worker has to be woken.
    fn add(&mut self, key: T) -> bool {
        if let Some(at) = self.due.remove(&key) {
            self.delayed.remove(&at);
        }
        if !self.dirty.insert(key.clone()) {
            return false;
        }
        self.figures.adds += 1;
        if self.processing.contains(&key) {
            return false;
        }
        self.push(key);
        true
    }

    fn delay(&mut self, key: T, at: Instant) {
        if self.dirty.contains(&key) && !self.processing.contains(&key) {
            return;
        }
        if let Some(earlier) = self.due.get(&key).copied() {
            if earlier.0 <= at {
                return;
            }
            self.delayed.remove(&earlier);
        }
        self.sequence += 1;
        let slot = (at, self.sequence);
        self.delayed.insert(slot, key.clone());
        self.due.insert(key, slot);
    }

    fn promote(&mut self, now: Instant) {
        while let Some((&(at, _), _)) = self.delayed.iter().next() {
            if at > now {
                break;
            }
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }

    fn push(&mut self, key: T) {
        self.ready.push_back(key);
        self.since.push_back(Instant::now());
    }

    fn take(&mut self) -> Option<T> {
        let key = self.ready.pop_front()?;
        if let Some(since) = self.since.pop_front() {
            self.figures.waited += since.elapsed();
            self.figures.handed_out += 1;
        }
        self.dirty.remove(&key);
        self.processing.insert(key.clone());
        Some(key)
    }

    fn finish(&mut self, key: &T) -> bool {
        self.processing.remove(key);
        if self.dirty.contains(key) {
            self.push(key.clone());
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_key_waits_once_and_comes_back_if_added_while_worked_on() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, Some("a"));
        assert_eq!(queue.len(), 0);
        queue.add("a");
        assert_eq!(queue.len(), 0, "held back while it is being worked on");
        queue.done(&"a");
        assert_eq!(queue.next().await, Some("a"));
        queue.done(&"a");
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_appointments_wins() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(3));
        queue.add_after("a", Duration::from_secs(5));
        assert_eq!(queue.next().await, Some("a"));
        assert_eq!(start.elapsed().as_secs(), 3);
        queue.done(&"a");
        let later = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(later.is_err(), "the later appointments are gone");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_until_forgotten() {
        let queue = Queue::new();
        let first = queue.add_rate_limited("a");
        let second = queue.add_rate_limited("a");
        assert!(second > first);
        assert_eq!(queue.failures(&"a"), 2);
        queue.forget(&"a");
        assert!(queue.add_rate_limited("b") < second);
        assert_eq!(queue.failures(&"a"), 0);
    }

    #[tokio::test]
    async fn closing_wakes_every_worker() {
        let queue: Queue<u8> = Queue::new();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.next().await })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for worker in workers {
            assert_eq!(worker.await.unwrap(), None);
        }
    }
}

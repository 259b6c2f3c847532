//! Objects of volatile rows go by themselves after a while.
//!
//! Every object has one appointment, which each write puts off. Several objects go together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sampan_api::{ResourceDef, meta};
use sampan_store::{Change, Class, Expect, Key, Mutation, Revision};
use sampan_util::shutdown::Shutdown;
use serde_json::Value;
use tokio::time::Instant;

use super::cache::Bucket;
use super::object::Object;
use super::server::Core;

/// Objects that expire within this part of their time go together.
const TOGETHER: u32 = 60;

/// When what cannot be removed now is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// When which object goes.
#[derive(Default)]
struct Queue {
    /// In order of time; the revision, under which nothing else was written, tells equal times apart.
    by_time: BTreeMap<(Instant, Revision), Key>,
    by_key: HashMap<Key, (Instant, Revision)>,
}

impl Queue {
    fn put(&mut self, key: Key, at: Instant, revision: Revision) {
        self.remove(&key);
        self.by_time.insert((at, revision), key.clone());
        self.by_key.insert(key, (at, revision));
    }

    fn remove(&mut self, key: &str) {
        if let Some(appointment) = self.by_key.remove(key) {
            self.by_time.remove(&appointment);
        }
    }

    fn next(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    /// The object that has been due for longest.
    fn pop_due(&mut self, now: Instant) -> Option<(Key, Revision)> {
        let entry = self.by_time.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let ((_, revision), key) = entry.remove_entry();
        self.by_key.remove(&key);
        Some((key, revision))
    }
}

/// Removes the objects of `def` when `ttl` has passed since they were last written.
pub async fn run(core: Arc<Core>, def: Arc<ResourceDef>, ttl: Duration, shutdown: Shutdown) {
    let bucket = core.cache.bucket(&def);
    let mut changes = bucket.subscribe();
    let (mut queue, mut position) = existing(&core, &bucket, ttl);
    loop {
        changes.borrow_and_update();
        position = follow(&core, &bucket, position, ttl, &mut queue);
        expire(&core, &bucket, &mut queue).await;
        let due = queue.next().map(|at| at + ttl / TOGETHER);
        tokio::select! {
            () = shutdown.wait() => return,
            // Looked at now, because the time of the write is not written down anywhere.
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

/// What was there at start, by the times written in the objects.
fn existing(core: &Core, bucket: &Bucket, ttl: Duration) -> (Queue, Revision) {
    let snapshot = core.cache.snapshot(bucket);
    let (now, clock) = (Instant::now(), core.now());
    let mut queue = Queue::default();
    for object in snapshot.map.under(bucket.prefix()) {
        let age = last_written(object).and_then(|at| Duration::try_from(clock - at).ok());
        let left = ttl.saturating_sub(age.unwrap_or_default());
        queue.put(object.key.clone(), now + left, object.revision);
    }
    (queue, snapshot.revision)
}

fn last_written(object: &Object) -> Option<jiff::Timestamp> {
    let tree: Value = serde_json::from_slice(&object.bytes).ok()?;
    [
        &["lastTimestamp"][..],
        &["series", "lastObservedTime"],
        &["eventTime"],
        &["metadata", "creationTimestamp"],
    ]
    .iter()
    .find_map(|path| meta::text(&tree, path).parse().ok())
}

/// Queues what was written since `position`.
fn follow(
    core: &Core,
    bucket: &Bucket,
    mut position: Revision,
    ttl: Duration,
    queue: &mut Queue,
) -> Revision {
    let mut events = Vec::new();
    loop {
        events.clear();
        if bucket.events_after(position, 1_024, &mut events).is_err() {
            let (all, revision) = existing(core, bucket, ttl);
            *queue = all;
            return revision;
        }
        let Some(last) = events.last() else {
            return position;
        };
        position = last.revision;
        let at = Instant::now() + ttl;
        for event in &events {
            match &event.new {
                Some(object) => queue.put(object.key.clone(), at, object.revision),
                None => queue.remove(event.key()),
            }
        }
    }
}

async fn expire(core: &Core, bucket: &Bucket, queue: &mut Queue) {
    let now = Instant::now();
    while let Some((key, revision)) = queue.pop_due(now) {
        let current = bucket.get(&key);
        if current.is_none_or(|object| object.revision != revision) {
            continue;
        }
        let mutation = Mutation {
            key: key.clone(),
            expect: Expect::At(revision),
            change: Change::Delete,
            class: Class::Volatile,
            attachment: None,
        };
        // Written again meanwhile: that write makes a new appointment.
        if let Err(error) = core.store.commit(mutation).await
            && !matches!(error, sampan_store::Error::RevisionMismatch { .. })
        {
            tracing::warn!(%error, "cannot remove an expired object");
            queue.put(key, now + RETRY, revision);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_object_has_one_appointment() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut queue = Queue::default();
        for second in 0..1_000 {
            queue.put("/a".into(), after(second), second);
        }
        queue.put("/b".into(), after(10), 2_000);
        assert_eq!((queue.by_time.len(), queue.by_key.len()), (2, 2));
        assert_eq!(queue.next(), Some(after(10)));
        assert_eq!(queue.pop_due(after(9)), None);
        assert_eq!(queue.pop_due(after(10)), Some(("/b".into(), 2_000)));
        queue.remove("/a");
        assert!(queue.next().is_none() && queue.by_key.is_empty());
    }
}

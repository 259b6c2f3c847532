//! Objects of volatile rows go by themselves after a while.
//!
//! The queue is in order of time by construction: a write puts its object at the end. Between
//! expiries nothing wakes up, and several objects go together.

use std::collections::VecDeque;
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

/// Objects that expire within this time go together.
const TOGETHER: Duration = Duration::from_secs(60);

struct Entry {
    at: Instant,
    key: Key,
    revision: Revision,
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
        let due = queue.front().map(|entry| entry.at + TOGETHER);
        tokio::select! {
            () = shutdown.wait() => return,
            changed = changes.changed(), if due.is_none() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

/// What was there at start, by the times written in the objects.
fn existing(core: &Core, bucket: &Bucket, ttl: Duration) -> (VecDeque<Entry>, Revision) {
    let snapshot = core.cache.snapshot(bucket);
    let (now, clock) = (Instant::now(), core.now());
    let mut entries: Vec<Entry> = snapshot
        .map
        .under(bucket.prefix())
        .map(|object| {
            let age = last_written(object).and_then(|at| Duration::try_from(clock - at).ok());
            let left = ttl.saturating_sub(age.unwrap_or_default());
            entry(object, now + left)
        })
        .collect();
    entries.sort_by_key(|entry| entry.at);
    (entries.into(), snapshot.revision)
}

fn entry(object: &Object, at: Instant) -> Entry {
    Entry {
        at,
        key: object.key.clone(),
        revision: object.revision,
    }
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
    queue: &mut VecDeque<Entry>,
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
        let written = events.iter().filter_map(|event| event.new.as_ref());
        queue.extend(written.map(|object| entry(object, at)));
    }
}

async fn expire(core: &Core, bucket: &Bucket, queue: &mut VecDeque<Entry>) {
    let now = Instant::now();
    while queue.front().is_some_and(|entry| entry.at <= now) {
        let Some(entry) = queue.pop_front() else {
            return;
        };
        let current = bucket.get(&entry.key);
        if current.is_none_or(|object| object.revision != entry.revision) {
            continue;
        }
        let mutation = Mutation {
            key: entry.key,
            expect: Expect::At(entry.revision),
            change: Change::Delete,
            class: Class::Volatile,
            attachment: None,
        };
        // Written again meanwhile: the newer entry stands further back in the queue.
        if let Err(error) = core.store.commit(mutation).await
            && !matches!(error, sampan_store::Error::RevisionMismatch { .. })
        {
            tracing::warn!(%error, "cannot remove an expired object");
            return;
        }
    }
}

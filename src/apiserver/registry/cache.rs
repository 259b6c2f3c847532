//! The watch cache: every object of the cluster as served bytes, and the recent changes.
//!
//! It is the sink of the store, so it is never behind an acknowledged write. Each resource has a
//! [`Bucket`]: a copy-on-write map for gets and lists, and a ring of events bounded in bytes for
//! watches. Watches read the ring at their own pace; one that falls out of it is told 410.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sampan_api::{Registry, ResourceDef};
use sampan_store::{Event as StoreEvent, Key, Revision, Sink};
use tokio::sync::watch;

use super::map::Map;
use super::object::{Field, Object, Selectable, splice};
use super::storage::{Prepared, StorageCodec};
use crate::auth::{ChangeHandler, ObjectChange};

/// How many bytes of old and new states one resource's ring may hold.
const RING_BYTES: usize = 8 << 20;
/// A ring keeps at least this many events even if they are large …
const RING_MIN: usize = 64;
/// … and at most this many even if they are small.
const RING_MAX: usize = 16_384;
/// How many old states of one resource open pages may hold on to.
const PAGES: usize = 32;
/// … how many bytes of objects that have changed since …
const PAGE_BYTES: usize = 8 << 20;
/// … and for how long.
const PAGE_AGE: Duration = Duration::from_secs(300);

/// One change of one object, as watches need it.
#[derive(Clone)]
pub struct Event {
    pub revision: Revision,
    /// The new state; `None` for a deletion.
    pub new: Option<Arc<Object>>,
    pub old: Option<Arc<Object>>,
    /// What a deletion shows: the last state under the deletion's revision.
    pub last: Option<Bytes>,
}

impl Event {
    pub fn key(&self) -> &str {
        let object = self.new.as_ref().or(self.old.as_ref());
        object.map_or("", |object| &object.key)
    }

    fn size(&self) -> usize {
        let bytes = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |one| one.bytes.len());
        256 + bytes(&self.new) + self.last.as_ref().map_or(0, Bytes::len)
    }
}

/// The state at one moment.
#[derive(Clone)]
pub struct Snapshot {
    pub map: Map,
    /// Every change up to here is in, none after it.
    pub revision: Revision,
}

/// Why a position cannot be watched from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld {
    pub oldest: Revision,
}

/// One resource's objects.
pub struct Bucket {
    /// `/registry/GROUP/PLURAL/`
    prefix: Box<str>,
    fields: RwLock<Arc<[Field]>>,
    state: Mutex<State>,
    /// The revision of the last change; wakes watches.
    changed: watch::Sender<Revision>,
    /// Counts the rows that have stood for this resource: a watch belongs to one.
    epoch: AtomicU64,
}

/// An old state, for the pages of lists that began with it.
struct Page {
    since: Instant,
    snapshot: Snapshot,
    /// Lists that are not at their end yet, as far as known.
    lists: usize,
    /// What only this state and older ones still hold.
    bytes: usize,
}

#[derive(Default)]
struct State {
    map: Map,
    ring: VecDeque<Arc<Event>>,
    ring_bytes: usize,
    /// Changes after this revision are in the ring.
    oldest: Revision,
    /// The last change of this resource.
    revision: Revision,
    /// Old states that open pages still read.
    pages: VecDeque<Page>,
    /// Told of every change before its writer is answered.
    observers: Vec<ChangeHandler>,
}

impl Bucket {
    fn new(prefix: &str, fields: Arc<[Field]>, oldest: Revision) -> Self {
        Self {
            prefix: prefix.into(),
            fields: RwLock::new(fields),
            state: Mutex::new(State {
                oldest,
                ..State::default()
            }),
            changed: watch::Sender::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The row has changed or is gone: watches end.
    pub fn end_watches(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.changed.send_modify(|_| ());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn fields(&self) -> Arc<[Field]> {
        self.fields
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.state().map.get(key).cloned()
    }

    pub fn len(&self) -> usize {
        self.state().map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state now. `known` is the global revision read before this call: everything up to it
    /// is in, because caches are changed before the global revision is published.
    fn snapshot(&self, known: Revision) -> Snapshot {
        let state = self.state();
        Snapshot {
            map: state.map.clone(),
            revision: known.max(state.revision),
        }
    }

    /// The state at `revision` if memory still has it.
    pub fn snapshot_at(&self, revision: Revision) -> Option<Snapshot> {
        let state = self.state();
        if state.revision <= revision {
            return Some(Snapshot {
                map: state.map.clone(),
                revision,
            });
        }
        state
            .pages
            .iter()
            .find(|page| page.snapshot.revision == revision)
            .map(|page| page.snapshot.clone())
    }

    /// Keeps a state for the following pages of a list that begins.
    pub fn hold(&self, snapshot: &Snapshot) {
        let mut state = self.state();
        if let Some(page) = state.page(snapshot.revision) {
            page.lists += 1;
            page.since = Instant::now();
            return;
        }
        let at = state
            .pages
            .partition_point(|page| page.snapshot.revision < snapshot.revision);
        let page = Page {
            since: Instant::now(),
            snapshot: snapshot.clone(),
            lists: 1,
            bytes: 0,
        };
        state.pages.insert(at, page);
        state.trim_pages();
    }

    /// A list has shown its last page.
    pub fn release(&self, revision: Revision) {
        let mut state = self.state();
        let Some(page) = state.page(revision) else {
            return;
        };
        page.lists -= 1;
        if page.lists > 0 {
            return;
        }
        let at = state
            .pages
            .partition_point(|page| page.snapshot.revision < revision);
        let gone = state.pages.remove(at).map_or(0, |page| page.bytes);
        // Older states may hold the same.
        if let Some(older) = at.checked_sub(1).and_then(|at| state.pages.get_mut(at)) {
            older.bytes += gone;
        }
    }

    /// How many old states open lists hold.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.state().pages.len()
    }

    /// Appends at most `limit` events after `after` to `events`.
    pub fn events_after(
        &self,
        after: Revision,
        limit: usize,
        events: &mut Vec<Arc<Event>>,
    ) -> Result<(), TooOld> {
        let state = self.state();
        if after < state.oldest {
            return Err(TooOld {
                oldest: state.oldest,
            });
        }
        let start = state.ring.partition_point(|event| event.revision <= after);
        events.extend(state.ring.range(start..).take(limit).cloned());
        Ok(())
    }

    /// Ready when something changes after the receiver was last marked as seen.
    pub fn subscribe(&self) -> watch::Receiver<Revision> {
        self.changed.subscribe()
    }

    fn load(&self, object: Arc<Object>) {
        let mut state = self.state();
        state.revision = state.revision.max(object.revision);
        state.map.insert(object);
    }

    fn apply(&self, event: &StoreEvent, codec: &StorageCodec) {
        let new = event.value.as_ref().and_then(|value| {
            let object = self.object(event, value, codec);
            object.map(Arc::new)
        });
        let mut state = self.state();
        let old = match &new {
            Some(object) => state.map.insert(object.clone()),
            None => state.map.remove(&event.key),
        };
        let last = match (&new, &old) {
            (None, Some(old)) => Some(match prepared(event) {
                Some(prepared) => splice(&prepared.plain, event.revision),
                None => old.at(event.revision),
            }),
            _ => None,
        };
        let entry = Arc::new(Event {
            revision: event.revision,
            new,
            old,
            last,
        });
        state.push(entry.clone());
        state.revision = event.revision;
        let observers = state.observers.clone();
        drop(state);
        if !observers.is_empty() {
            let change = self.change(entry.key(), entry.old.as_ref(), entry.new.as_ref());
            observers.iter().for_each(|observer| observer(&change));
        }
    }

    fn change(
        &self,
        key: &str,
        old: Option<&Arc<Object>>,
        new: Option<&Arc<Object>>,
    ) -> ObjectChange {
        let rest = key.strip_prefix(&*self.prefix).unwrap_or(key);
        let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
        ObjectChange {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            old: old.map(|object| object.bytes.clone()),
            new: new.map(|object| object.bytes.clone()),
        }
    }

    /// Replays what is there, then tells every change.
    pub fn observe(&self, observer: ChangeHandler) {
        let mut state = self.state();
        for object in state.map.iter_from("") {
            observer(&self.change(&object.key, None, Some(object)));
        }
        state.observers.push(observer);
    }

    fn object(&self, event: &StoreEvent, value: &Bytes, codec: &StorageCodec) -> Option<Object> {
        if let Some(prepared) = prepared(event) {
            return Some(Object {
                key: event.key.clone(),
                revision: event.revision,
                bytes: splice(&prepared.plain, event.revision),
                selectable: prepared.selectable.clone(),
            });
        }
        read(&event.key, value, event.revision, &self.fields(), codec)
    }

    /// New selectable fields: the values are read again.
    fn set_fields(&self, fields: Arc<[Field]>) {
        *self.fields.write().unwrap_or_else(PoisonError::into_inner) = fields.clone();
        let mut state = self.state();
        let objects: Vec<Arc<Object>> = state.map.iter_from("").cloned().collect();
        for object in objects {
            if let Ok(selectable) = Selectable::of_bytes(&object.bytes, &fields) {
                state.map.insert(Arc::new(Object {
                    key: object.key.clone(),
                    revision: object.revision,
                    bytes: object.bytes.clone(),
                    selectable,
                }));
            }
        }
    }
}

/// What the writer attached, if it wrote here.
fn prepared(event: &StoreEvent) -> Option<&Prepared> {
    event.attachment.as_ref()?.downcast_ref()
}

impl State {
    fn page(&mut self, revision: Revision) -> Option<&mut Page> {
        self.pages
            .iter_mut()
            .find(|page| page.snapshot.revision == revision)
    }

    fn trim_pages(&mut self) {
        self.pages.retain(|page| page.since.elapsed() <= PAGE_AGE);
        let bytes = |state: &Self| state.pages.iter().map(|page| page.bytes).sum::<usize>();
        while self.pages.len() > PAGES || bytes(self) > PAGE_BYTES {
            self.pages.pop_front();
        }
    }

    fn push(&mut self, event: Arc<Event>) {
        // Pages only cost something once what they show has changed.
        if let (Some(page), Some(old)) = (self.pages.back_mut(), &event.old)
            && old.revision <= page.snapshot.revision
        {
            page.bytes += 256 + old.bytes.len();
        }
        self.trim_pages();
        self.ring_bytes += event.size();
        self.ring.push_back(event);
        while self.ring.len() > RING_MAX
            || (self.ring_bytes > RING_BYTES && self.ring.len() > RING_MIN)
        {
            let Some(gone) = self.ring.pop_front() else {
                return;
            };
            self.ring_bytes -= gone.size();
            self.oldest = gone.revision;
        }
    }
}

/// Decodes a stored value; one that cannot be read is logged and left out.
fn read(
    key: &Key,
    value: &[u8],
    revision: Revision,
    fields: &[Field],
    codec: &StorageCodec,
) -> Option<Object> {
    let plain = codec
        .open(key, value)
        .map_err(|error| tracing::error!(%key, %error, "cannot decrypt a stored object"))
        .ok()?;
    let selectable = Selectable::of_bytes(&plain, fields)
        .map_err(|error| tracing::error!(%key, %error, "cannot read a stored object"))
        .ok()?;
    Some(Object {
        key: key.clone(),
        revision,
        bytes: splice(&plain, revision),
        selectable,
    })
}

/// All buckets.
pub struct Cache {
    registry: Arc<Registry>,
    codec: Arc<StorageCodec>,
    buckets: RwLock<HashMap<Box<str>, Arc<Bucket>>>,
    /// Everything up to here is in every bucket.
    revision: AtomicU64,
    changed: watch::Sender<Revision>,
    /// What was not there at start cannot be watched from before it.
    floor: AtomicU64,
}

impl Cache {
    pub fn new(registry: Arc<Registry>, codec: Arc<StorageCodec>) -> Arc<Self> {
        let cache = Self {
            registry,
            codec,
            buckets: RwLock::default(),
            revision: AtomicU64::new(0),
            changed: watch::Sender::new(0),
            floor: AtomicU64::new(0),
        };
        for def in cache.registry.snapshot().rows() {
            if def.is_stored() {
                cache.register(def);
            }
        }
        Arc::new(cache)
    }

    /// The bucket of a row; made if there is none, its fields renewed if they changed.
    pub fn register(&self, def: &ResourceDef) -> Arc<Bucket> {
        let fields = Field::of(def);
        let bucket = self.bucket_of_prefix(&def.prefix());
        if *bucket.fields() != *fields {
            bucket.set_fields(fields);
        }
        bucket
    }

    pub fn bucket(&self, def: &ResourceDef) -> Arc<Bucket> {
        let prefix = def.prefix();
        let found = self.find(&prefix);
        found.unwrap_or_else(|| self.register(def))
    }

    fn find(&self, prefix: &str) -> Option<Arc<Bucket>> {
        self.buckets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(prefix)
            .cloned()
    }

    fn bucket_of_prefix(&self, prefix: &str) -> Arc<Bucket> {
        if let Some(bucket) = self.find(prefix) {
            return bucket;
        }
        let floor = self.floor.load(Ordering::Acquire);
        self.buckets
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(prefix.into())
            .or_insert_with(|| Arc::new(Bucket::new(prefix, Arc::new([]), floor)))
            .clone()
    }

    /// The global revision: what a list made now shows.
    pub fn revision(&self) -> Revision {
        self.revision.load(Ordering::Acquire)
    }

    pub fn snapshot(&self, bucket: &Bucket) -> Snapshot {
        bucket.snapshot(self.revision())
    }

    /// One object of a row.
    pub fn get(
        &self,
        def: &ResourceDef,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Object>> {
        self.bucket(def).get(&def.key(namespace, name))
    }

    /// Ready when anything has changed.
    pub fn subscribe(&self) -> watch::Receiver<Revision> {
        self.changed.subscribe()
    }
}

/// `/registry/GROUP/PLURAL/` of a key.
fn prefix_of(key: &str) -> Option<&str> {
    let end = key.match_indices('/').nth(3)?.0;
    key.get(..=end)
}

impl Sink for Cache {
    fn record(&self, key: &Key, value: &[u8], _created: Revision, revision: Revision) {
        let Some(prefix) = prefix_of(key) else {
            return;
        };
        let bucket = self.bucket_of_prefix(prefix);
        if let Some(object) = read(key, value, revision, &bucket.fields(), &self.codec) {
            bucket.load(Arc::new(object));
        }
    }

    fn loaded(&self, revision: Revision) {
        self.floor.store(revision, Ordering::Release);
        for bucket in self
            .buckets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
        {
            bucket.state().oldest = revision;
        }
        self.revision.store(revision, Ordering::Release);
        self.changed.send_replace(revision);
    }

    fn committed(&self, batch: &[StoreEvent]) {
        let mut touched: Vec<Arc<Bucket>> = Vec::new();
        let mut last: Option<Arc<Bucket>> = None;
        for event in batch {
            let Some(prefix) = prefix_of(&event.key) else {
                continue;
            };
            let bucket = match last.take() {
                Some(bucket) if *bucket.prefix == *prefix => bucket,
                _ => self.bucket_of_prefix(prefix),
            };
            bucket.apply(event, &self.codec);
            if !touched.iter().any(|one| Arc::ptr_eq(one, &bucket)) {
                touched.push(bucket.clone());
            }
            last = Some(bucket);
        }
        let Some(revision) = batch.last().map(|event| event.revision) else {
            return;
        };
        self.revision.store(revision, Ordering::Release);
        for bucket in touched {
            bucket.changed.send_replace(revision);
        }
        self.changed.send_replace(revision);
    }
}

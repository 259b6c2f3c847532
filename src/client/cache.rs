//! What an informer holds: the served bytes of every object, decoded only when somebody looks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

use bytes::Bytes;
use sampan_util::Shutdown;
use serde::Deserialize;
use tokio::sync::watch;

use crate::client::{Resource, parse_revision};
use crate::informer::Change;
use crate::key::ObjectKey;
use crate::reflector::Sink;

/// Labels as they lie in the cache: sorted by key.
pub type Labels = BTreeMap<String, String>;

/// The part of an object's metadata that is worth keeping decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: Labels,
    pub(crate) owners: Vec<String>,
}

#[derive(Deserialize)]
struct PartialObject {
    metadata: PartialMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialMeta {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    labels: Option<Labels>,
    #[serde(default)]
    owner_references: Option<Vec<PartialOwner>>,
}

#[derive(Deserialize)]
struct PartialOwner {
    uid: String,
}

impl Meta {
    pub(crate) fn parse(object: &[u8]) -> Result<Self, serde_json::Error> {
        let PartialObject { metadata } = serde_json::from_slice(object)?;
        let owners = metadata.owner_references.unwrap_or_default();
        Ok(Self {
            key: ObjectKey::new(metadata.namespace, metadata.name),
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            labels: metadata.labels.unwrap_or_default(),
            owners: owners.into_iter().map(|owner| owner.uid).collect(),
        })
    }
}

pub(crate) struct Entry<K> {
    object: Bytes,
    meta: Meta,
    /// Shared by everybody who looks at the same time, gone when the last one lets go.
    decoded: Mutex<Weak<K>>,
}

impl<K: Resource> Entry<K> {
    fn new(object: Bytes, meta: Meta) -> Arc<Self> {
        Arc::new(Self {
            object,
            meta,
            decoded: Mutex::new(Weak::new()),
        })
    }

    pub(crate) fn object(&self) -> &Bytes {
        &self.object
    }

    pub(crate) fn labels(&self) -> &Labels {
        &self.meta.labels
    }

    pub(crate) fn is_unowned(&self) -> bool {
        self.meta.owners.is_empty()
    }

    /// `None` for an object that does not fit the type, which is logged.
    pub(crate) fn decode(&self) -> Option<Arc<K>> {
        let mut decoded = lock(&self.decoded);
        if let Some(object) = decoded.upgrade() {
            return Some(object);
        }
        match serde_json::from_slice::<K>(&self.object) {
            Ok(object) => {
                let object = Arc::new(object);
                *decoded = Arc::downgrade(&object);
                Some(object)
            }
            Err(error) => {
                tracing::error!(kind = K::KIND, object = %self.meta.key, %error, "cannot decode a cached object");
                None
            }
        }
    }
}

/// How far the cache has followed the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) synced: bool,
    pub(crate) revision: u64,
    /// Counts changes, so that waiting for a condition wakes at each.
    pub(crate) changes: u64,
}

/// What is told of changes until its scope is shut down.
pub(crate) struct Handler<K> {
    scope: Shutdown,
    call: Call<K>,
}

type Call<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

pub(crate) struct Cache<K> {
    contents: RwLock<Contents<K>>,
    /// Held while a change is applied and told, so that a handler added meanwhile misses nothing
    /// and sees nothing twice.
    handlers: Mutex<Vec<Handler<K>>>,
    progress: watch::Sender<Progress>,
}

struct Contents<K> {
    objects: BTreeMap<ObjectKey, Arc<Entry<K>>>,
    by_owner: HashMap<String, BTreeSet<ObjectKey>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K> Contents<K> {
    fn index(&mut self, meta: &Meta) {
        for owner in &meta.owners {
            self.by_owner
                .entry(owner.clone())
                .or_default()
                .insert(meta.key.clone());
        }
    }

    fn unindex(&mut self, meta: &Meta) {
        for owner in &meta.owners {
            if let Some(keys) = self.by_owner.get_mut(owner) {
                keys.remove(&meta.key);
                if keys.is_empty() {
                    self.by_owner.remove(owner);
                }
            }
        }
    }
}

impl<K: Resource> Cache<K> {
    pub(crate) fn new() -> Self {
        Self {
            contents: RwLock::new(Contents {
                objects: BTreeMap::new(),
                by_owner: HashMap::new(),
            }),
            handlers: Mutex::new(Vec::new()),
            progress: watch::Sender::new(Progress::default()),
        }
    }

    fn contents(&self) -> RwLockReadGuard<'_, Contents<K>> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<Entry<K>>> {
        self.contents().objects.get(key).cloned()
    }

    pub(crate) fn entries(&self, namespace: Option<&str>) -> Vec<Arc<Entry<K>>> {
        let contents = self.contents();
        let Some(namespace) = namespace else {
            return contents.objects.values().cloned().collect();
        };
        let first = ObjectKey::new(namespace, "");
        contents
            .objects
            .range((Bound::Included(first), Bound::Unbounded))
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, entry)| Arc::clone(entry))
            .collect()
    }

    pub(crate) fn by_owner(&self, uid: &str) -> Vec<Arc<Entry<K>>> {
        let contents = self.contents();
        let Some(keys) = contents.by_owner.get(uid) else {
            return Vec::new();
        };
        keys.iter()
            .filter_map(|key| contents.objects.get(key).cloned())
            .collect()
    }

    /// Those that still want to be told.
    fn handlers(&self) -> MutexGuard<'_, Vec<Handler<K>>> {
        let mut handlers = lock(&self.handlers);
        handlers.retain(|handler| !handler.scope.is_triggered());
        handlers
    }

    /// Registers a handler after telling it about everything that is here already.
    pub(crate) fn add_handler(&self, scope: Shutdown, call: Call<K>) {
        let mut handlers = self.handlers();
        let existing = self.entries(None);
        for new in existing.iter().filter_map(|entry| entry.decode()) {
            call(&Change::Applied { old: None, new });
        }
        handlers.push(Handler { scope, call });
    }

    fn put(&self, object: Bytes, meta: Meta, handlers: &[Handler<K>]) {
        let old = self.get(&meta.key);
        if let Some(old) = &old {
            if old.meta.resource_version == meta.resource_version && old.meta.uid == meta.uid {
                return;
            }
            if old.meta.uid != meta.uid {
                self.remove(&meta.key, None, handlers);
            }
        }
        let old = old.filter(|old| old.meta.uid == meta.uid);
        // Decoded before it is replaced, so that both states can be told.
        let before = old.as_ref().filter(|_| !handlers.is_empty());
        let before = before.and_then(|old| old.decode());
        let entry = Entry::new(object, meta);
        {
            let mut contents = self
                .contents
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(old) = &old {
                contents.unindex(&old.meta);
            }
            contents.index(&entry.meta);
            contents
                .objects
                .insert(entry.meta.key.clone(), Arc::clone(&entry));
        }
        if handlers.is_empty() {
            return;
        }
        if let Some(new) = entry.decode() {
            tell(handlers, &Change::Applied { old: before, new });
        }
    }

    fn remove(&self, key: &ObjectKey, last: Option<Bytes>, handlers: &[Handler<K>]) {
        let removed = {
            let mut contents = self
                .contents
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            let removed = contents.objects.remove(key);
            if let Some(entry) = &removed {
                contents.unindex(&entry.meta);
            }
            removed
        };
        let Some(entry) = removed else { return };
        if handlers.is_empty() {
            return;
        }
        let last = last.and_then(|object| serde_json::from_slice(&object).ok());
        if let Some(object) = last.map(Arc::new).or_else(|| entry.decode()) {
            tell(handlers, &Change::Deleted(object));
        }
    }

    fn advance(&self, revision: Option<u64>, synced: Option<bool>) {
        self.progress.send_modify(|progress| {
            progress.revision = progress.revision.max(revision.unwrap_or(0));
            progress.synced |= synced.unwrap_or(false);
            progress.changes += 1;
        });
    }
}

impl<K: Resource> Sink for Cache<K> {
    fn apply(&self, object: Bytes) {
        match Meta::parse(&object) {
            Ok(meta) => {
                let revision = parse_revision(&meta.resource_version);
                self.put(object, meta, &self.handlers());
                self.advance(revision, None);
            }
            Err(error) => tracing::error!(kind = K::KIND, %error, "cannot read a watched object"),
        }
    }

    fn delete(&self, object: Bytes) {
        match Meta::parse(&object) {
            Ok(meta) => {
                let revision = parse_revision(&meta.resource_version);
                self.remove(&meta.key, Some(object), &self.handlers());
                self.advance(revision, None);
            }
            Err(error) => tracing::error!(kind = K::KIND, %error, "cannot read a deleted object"),
        }
    }

    fn bookmark(&self, resource_version: &str) {
        self.advance(parse_revision(resource_version), None);
    }

    /// The cache becomes what a list showed; only differences are told.
    fn replace(&self, items: Vec<Bytes>, resource_version: &str) {
        let handlers = self.handlers();
        let mut gone: BTreeSet<ObjectKey> = self.contents().objects.keys().cloned().collect();
        for object in items {
            match Meta::parse(&object) {
                Ok(meta) => {
                    gone.remove(&meta.key);
                    self.put(object, meta, &handlers);
                }
                Err(error) => {
                    tracing::error!(kind = K::KIND, %error, "cannot read a listed object");
                }
            }
        }
        for key in gone {
            self.remove(&key, None, &handlers);
        }
        drop(handlers);
        self.advance(parse_revision(resource_version), Some(true));
    }
}

fn tell<K>(handlers: &[Handler<K>], change: &Change<K>) {
    for handler in handlers {
        (handler.call)(change);
    }
}

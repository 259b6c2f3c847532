//! Shared, watched copies of collections, and views on them.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sampan_util::{Shutdown, task};

use crate::cache::{Cache, Labels, Progress};
use crate::client::{Client, ListParams, Resource, target_of};
use crate::key::ObjectKey;
use crate::reflector::Reflector;

/// What happened to an object of the cache. An object that was deleted and made anew under the same
/// name arrives as a deletion and an application.
#[derive(Debug, Clone)]
pub enum Change<K> {
    Applied { old: Option<Arc<K>>, new: Arc<K> },
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The newest known state.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Applied { new, .. } => new,
            Self::Deleted(object) => object,
        }
    }

    /// The new state and, if there was one, the old.
    pub fn states(&self) -> impl Iterator<Item = &Arc<K>> {
        let (first, second) = match self {
            Self::Applied { old, new } => (Some(new), old.as_ref()),
            Self::Deleted(object) => (Some(object), None),
        };
        first.into_iter().chain(second)
    }
}

#[derive(PartialEq, Eq, Hash)]
struct InformerKey {
    kind: TypeId,
    namespace: Option<String>,
    params: ListParams,
}

type Synced = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

struct Registered {
    cache: Arc<dyn Any + Send + Sync>,
    synced: Synced,
}

/// One informer per kind, namespace and selection, started when it is first asked for and stopped
/// at shutdown. Must be used within a tokio runtime.
#[derive(Clone)]
pub struct Informers {
    client: Client,
    shutdown: Shutdown,
    /// When what was asked for here is no longer wanted.
    scope: Shutdown,
    registered: Arc<Mutex<HashMap<InformerKey, Registered>>>,
}

impl Informers {
    pub fn new(client: Client, shutdown: Shutdown) -> Self {
        Self {
            client,
            scope: shutdown.clone(),
            shutdown,
            registered: Arc::default(),
        }
    }

    /// The same informers for a user who may end before they do: when `scope` is shut down, handlers that were added
    /// through it are called no more and its waits return.
    pub fn scoped(&self, scope: Shutdown) -> Self {
        Self {
            scope,
            ..self.clone()
        }
    }

    /// All objects of a kind.
    pub fn lister<K: Resource>(&self) -> Lister<K> {
        self.lister_with(None, ListParams::default())
    }

    /// The objects of a kind in one namespace, or those that selectors pick.
    pub fn lister_with<K: Resource>(
        &self,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Lister<K> {
        let key = InformerKey {
            kind: TypeId::of::<K>(),
            namespace: namespace.map(str::to_owned),
            params: params.clone(),
        };
        let mut registered = self.registered();
        let known = registered
            .get(&key)
            .and_then(|known| Arc::clone(&known.cache).downcast::<Cache<K>>().ok());
        if let Some(cache) = known {
            return self.view(cache);
        }
        let cache = Arc::new(Cache::<K>::new());
        let lister = self.view(Arc::clone(&cache));
        let waiting = Lister {
            cache: Arc::clone(&cache),
            scope: self.shutdown.clone(),
        };
        registered.insert(
            key,
            Registered {
                cache: Arc::clone(&cache) as Arc<dyn Any + Send + Sync>,
                synced: Box::new(move || {
                    let lister = waiting.clone();
                    Box::pin(async move { lister.synced().await })
                }),
            },
        );
        drop(registered);
        self.start(namespace, params, cache);
        lister
    }

    fn view<K>(&self, cache: Arc<Cache<K>>) -> Lister<K> {
        Lister {
            cache,
            scope: self.scope.clone(),
        }
    }

    fn start<K: Resource>(
        &self,
        namespace: Option<&str>,
        params: ListParams,
        cache: Arc<Cache<K>>,
    ) {
        let client = self.client.clone();
        let target = target_of::<K>(namespace, None);
        let shutdown = self.shutdown.clone();
        let supervised = task::supervise(K::URL_PATH_SEGMENT, shutdown.clone(), move || {
            let reflector = Reflector {
                client: client.clone(),
                target: target.clone(),
                params: params.clone(),
                sink: Arc::clone(&cache),
            };
            reflector.run(shutdown.clone())
        });
        task::spawn("reflector", supervised);
    }

    fn registered(&self) -> MutexGuard<'_, HashMap<InformerKey, Registered>> {
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once every informer asked for so far holds its first list (or at shutdown).
    pub async fn synced(&self) {
        let waits: Vec<_> = self
            .registered()
            .values()
            .map(|known| (known.synced)())
            .collect();
        for wait in waits {
            tokio::select! {
                () = wait => {}
                () = self.scope.wait() => return,
            }
        }
    }
}

/// A view on an informer's cache. Objects are shared: never expect to change one.
pub struct Lister<K> {
    cache: Arc<Cache<K>>,
    scope: Shutdown,
}

impl<K> Clone for Lister<K> {
    fn clone(&self) -> Self {
        Self {
            cache: Arc::clone(&self.cache),
            scope: self.scope.clone(),
        }
    }
}

impl<K: Resource> Lister<K> {
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<Arc<K>> {
        self.get_key(&ObjectKey::new(namespace.unwrap_or_default(), name))
    }

    pub fn get_key(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.cache.get(key)?.decode()
    }

    /// The object's bytes as the server sent them.
    pub fn get_bytes(&self, key: &ObjectKey) -> Option<Bytes> {
        Some(self.cache.get(key)?.object().clone())
    }

    /// In order of namespace and name.
    pub fn list(&self, namespace: Option<&str>) -> Vec<Arc<K>> {
        let entries = self.cache.entries(namespace);
        entries.iter().filter_map(|entry| entry.decode()).collect()
    }

    /// Like [`Lister::list`], but only those whose labels match are decoded.
    pub fn select(
        &self,
        namespace: Option<&str>,
        matches: impl Fn(&Labels) -> bool,
    ) -> Vec<Arc<K>> {
        let entries = self.cache.entries(namespace);
        entries
            .iter()
            .filter(|entry| matches(entry.labels()))
            .filter_map(|entry| entry.decode())
            .collect()
    }

    /// Like [`Lister::select`], but only objects that nobody owns.
    pub fn select_unowned(
        &self,
        namespace: Option<&str>,
        matches: impl Fn(&Labels) -> bool,
    ) -> Vec<Arc<K>> {
        let entries = self.cache.entries(namespace);
        entries
            .iter()
            .filter(|entry| entry.is_unowned() && matches(entry.labels()))
            .filter_map(|entry| entry.decode())
            .collect()
    }

    /// The objects that name this uid among their owners.
    pub fn by_owner(&self, uid: &str) -> Vec<Arc<K>> {
        let entries = self.cache.by_owner(uid);
        entries.iter().filter_map(|entry| entry.decode()).collect()
    }

    pub fn is_synced(&self) -> bool {
        self.cache.progress().borrow().synced
    }

    /// Returns once the first list has arrived, or at shutdown.
    pub async fn synced(&self) {
        self.wait(|progress| progress.synced).await;
    }

    /// Returns once the cache shows the object that was written at this revision, or at shutdown:
    /// whoever wrote waits here before it decides again on what it reads. The revision must be one
    /// at which an object of this cache was written; another may only be passed with the next
    /// bookmark.
    pub async fn wait_for(&self, revision: u64) {
        self.wait(|progress| progress.revision >= revision).await;
    }

    /// Returns once the condition holds, asking again at each change, or at shutdown.
    pub async fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        self.wait(|_| condition(self)).await;
    }

    async fn wait(&self, mut condition: impl FnMut(&Progress) -> bool) {
        let mut progress = self.cache.progress();
        tokio::select! {
            // The sender lives in the cache that `self` holds: this cannot fail.
            _ = progress.wait_for(|progress| condition(progress)) => {}
            () = self.scope.wait() => {}
        }
    }

    /// Calls the handler for every object that is here, then for each change. It runs inline with
    /// the watch: it may read listers and enqueue, nothing else.
    pub fn on_change(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.cache
            .add_handler(self.scope.clone(), Box::new(handler));
    }
}

#[cfg(test)]
mod tests;

//! What the informers hold, and which Services have changed since somebody looked.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_client::{Lister, ObjectKey};
use tokio::sync::Notify;

use crate::model::ServiceName;
use crate::render::Slices;

/// What has to be looked at again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    Everything,
    Services(BTreeSet<ServiceName>),
}

/// Collects changes until the loop takes them. Starts with everything to do.
#[derive(Debug, Clone)]
pub(super) struct Pending(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<(bool, BTreeSet<ServiceName>)>,
    wake: Notify,
}

impl Pending {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new((true, BTreeSet::new())),
            wake: Notify::new(),
        }))
    }

    pub(super) fn add(&self, services: impl IntoIterator<Item = ServiceName>) {
        lock(&self.0.state).1.extend(services);
        self.0.wake.notify_one();
    }

    pub(super) fn add_all(&self) {
        lock(&self.0.state).0 = true;
        self.0.wake.notify_one();
    }

    pub(super) async fn next(&self) -> Work {
        loop {
            if let Some(work) = self.take() {
                return work;
            }
            self.0.wake.notified().await;
        }
    }

    fn take(&self) -> Option<Work> {
        let mut state = lock(&self.0.state);
        let (everything, services) = std::mem::take(&mut *state);
        if everything {
            return Some(Work::Everything);
        }
        (!services.is_empty()).then_some(Work::Services(services))
    }
}

type Index = HashMap<ServiceName, HashSet<ObjectKey>>;

#[derive(Clone)]
pub(super) struct Observed {
    services: Lister<Service>,
    slices: Lister<EndpointSlice>,
    /// Which slices belong to a Service: the cache knows them by their own names only.
    index: Arc<Mutex<Index>>,
}

impl Observed {
    pub(super) fn new(services: Lister<Service>, slices: Lister<EndpointSlice>) -> Self {
        Self {
            services,
            slices,
            index: Arc::default(),
        }
    }

    pub(super) async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
    }

    pub(super) fn subscribe(&self) -> Pending {
        let pending = Pending::new();
        let changed = pending.clone();
        self.services.on_change(move |change| {
            changed.add([ServiceName::of(&change.object().metadata)]);
        });
        let changed = pending.clone();
        let index = Arc::clone(&self.index);
        self.slices.on_change(move |change| {
            use sampan_client::Change;
            let (old, new) = match change {
                Change::Applied { old, new } => (old.as_deref(), Some(new.as_ref())),
                Change::Deleted(old) => (Some(old.as_ref()), None),
            };
            let touched = reindex(&mut lock(&index), old, new);
            changed.add(touched);
        });
        pending
    }

    pub(super) fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.services.get(Some(&name.namespace), &name.name)
    }

    pub(super) fn slices_of(&self, name: &ServiceName) -> Vec<Arc<EndpointSlice>> {
        let keys: Vec<_> = lock(&self.index)
            .get(name)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        keys.iter()
            .filter_map(|key| self.slices.get_key(key))
            .collect()
    }

    /// Everything there is.
    pub(super) fn all(&self) -> (Vec<Arc<Service>>, Slices) {
        let mut slices: Slices = BTreeMap::new();
        for slice in self.slices.list(None) {
            if let Some(name) = ServiceName::of_slice(&slice) {
                slices.entry(name).or_default().push(slice);
            }
        }
        (self.services.list(None), slices)
    }
}

/// Keeps the index true to a changed slice; returns the Services it belongs or belonged to.
fn reindex(
    index: &mut Index,
    old: Option<&EndpointSlice>,
    new: Option<&EndpointSlice>,
) -> Vec<ServiceName> {
    let mut touched = Vec::new();
    if let Some(old) = old
        && let Some(name) = ServiceName::of_slice(old)
    {
        if let Some(keys) = index.get_mut(&name) {
            keys.remove(&ObjectKey::of(&old.metadata));
            if keys.is_empty() {
                index.remove(&name);
            }
        }
        touched.push(name);
    }
    if let Some(new) = new
        && let Some(name) = ServiceName::of_slice(new)
    {
        let keys = index.entry(name.clone()).or_default();
        keys.insert(ObjectKey::of(&new.metadata));
        touched.push(name);
    }
    touched
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

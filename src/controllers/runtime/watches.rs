//! What a controller watches, and the views that its writes wait on.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sampan_client::{Change, Informers, ListParams, Lister, ObjectKey, Queue, Resource};

use crate::owner;

/// A lister without its type.
pub(crate) trait View: Send + Sync {
    fn bytes(&self, key: &ObjectKey) -> Option<Bytes>;
    fn synced(&self) -> BoxFuture<'_, ()>;
    fn wait_for(&self, revision: u64) -> BoxFuture<'_, ()>;
    /// Until there is no such object.
    fn wait_absent<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, ()>;
    /// Until the object with this uid is gone or marked for deletion.
    fn wait_gone<'a>(&'a self, key: &'a ObjectKey, uid: &'a str) -> BoxFuture<'a, ()>;
}

impl<K: Resource> View for Lister<K> {
    fn bytes(&self, key: &ObjectKey) -> Option<Bytes> {
        self.get_bytes(key)
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        Self::synced(self).boxed()
    }

    fn wait_for(&self, revision: u64) -> BoxFuture<'_, ()> {
        Self::wait_for(self, revision).boxed()
    }

    fn wait_absent<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        self.wait_until(move |lister| lister.get_bytes(key).is_none())
            .boxed()
    }

    fn wait_gone<'a>(&'a self, key: &'a ObjectKey, uid: &'a str) -> BoxFuture<'a, ()> {
        self.wait_until(move |lister| {
            lister.get_key(key).is_none_or(|object| {
                let metadata = object.metadata();
                metadata.uid.as_deref() != Some(uid) || metadata.deletion_timestamp.is_some()
            })
        })
        .boxed()
    }
}

/// Views by group and plural.
#[derive(Default)]
pub(crate) struct Views(HashMap<(&'static str, &'static str), Arc<dyn View>>);

impl Views {
    pub(crate) fn get(&self, group: &str, plural: &str) -> Option<&Arc<dyn View>> {
        self.0
            .iter()
            .find(|((own_group, own_plural), _)| *own_group == group && *own_plural == plural)
            .map(|(_, view)| view)
    }

    pub(crate) async fn synced(&self) {
        for view in self.0.values() {
            view.synced().await;
        }
    }
}

/// Handed to [`Controller::new`](super::Controller::new).
pub struct Watches<'a> {
    informers: &'a Informers,
    queue: Queue<ObjectKey>,
    views: Views,
}

impl<'a> Watches<'a> {
    pub(crate) fn new(informers: &'a Informers, queue: Queue<ObjectKey>) -> Self {
        Self {
            informers,
            queue,
            views: Views::default(),
        }
    }

    pub(crate) fn into_views(self) -> Views {
        self.views
    }

    /// Objects that are looked at, whose changes concern nobody.
    pub fn reads<K: Resource>(&mut self) -> Lister<K> {
        self.reads_with(ListParams::default())
    }

    /// Like [`Watches::reads`], of a selection of the objects.
    pub fn reads_with<K: Resource>(&mut self, params: ListParams) -> Lister<K> {
        let lister = self.informers.lister_with::<K>(None, params);
        self.views.0.insert(
            (K::GROUP, K::URL_PATH_SEGMENT),
            Arc::new(lister.clone()) as Arc<dyn View>,
        );
        lister
    }

    /// Each change concerns the object itself.
    pub fn primary<K: Resource>(&mut self) -> Lister<K> {
        self.mapped(|change: &Change<K>| vec![ObjectKey::of(change.object().metadata())])
    }

    /// Each change concerns the object of kind `O` that controls the changed one.
    pub fn owned<K: Resource, O: Resource>(&mut self) -> Lister<K> {
        self.mapped(owner::controllers_of::<K, O>)
    }

    /// Each change concerns the keys that `map` names. It runs inline with the watch.
    pub fn mapped<K: Resource>(
        &mut self,
        map: impl Fn(&Change<K>) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> Lister<K> {
        self.mapped_with(ListParams::default(), map)
    }

    /// Like [`Watches::mapped`], of a selection of the objects.
    pub fn mapped_with<K: Resource>(
        &mut self,
        params: ListParams,
        map: impl Fn(&Change<K>) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> Lister<K> {
        let lister = self.reads_with::<K>(params);
        let queue = self.queue.clone();
        lister.on_change(move |change| {
            for key in map(change) {
                queue.add(key);
            }
        });
        lister
    }
}

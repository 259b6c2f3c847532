//! ConfigMaps and Secrets that pods refer to: watched one by one, as long as any pod needs them.
//!
//! A node may only see objects that its pods use, so each is watched by name. Pods that share an
//! object share the watch; the last one that lets go ends it.

use crate::env::Objects;
use crate::pod;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Volume};
use sampan_client::{Client, Informers, ListParams, Lister, Resource};
use sampan_util::Shutdown;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Called when an object that a pod holds has changed.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The names that a pod refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

/// What a pod's containers and volumes refer to.
pub fn references(pod: &Pod) -> References {
    let mut all = References::default();
    for (_, container) in pod::containers(pod) {
        of_container(&container, &mut all);
    }
    for volume in pod::spec(pod).volumes.iter().flatten() {
        of_volume(volume, &mut all);
    }
    all
}

fn of_container(container: &Container, all: &mut References) {
    for source in container.env_from.iter().flatten() {
        let map = source.config_map_ref.as_ref().map(|r| r.name.clone());
        let secret = source.secret_ref.as_ref().map(|r| r.name.clone());
        all.config_maps.extend(map);
        all.secrets.extend(secret);
    }
    for variable in container.env.iter().flatten() {
        let Some(source) = &variable.value_from else {
            continue;
        };
        let map = source.config_map_key_ref.as_ref().map(|r| r.name.clone());
        let secret = source.secret_key_ref.as_ref().map(|r| r.name.clone());
        all.config_maps.extend(map);
        all.secrets.extend(secret);
    }
}

fn of_volume(volume: &Volume, all: &mut References) {
    if let Some(source) = &volume.config_map {
        all.config_maps.insert(source.name.clone());
    }
    if let Some(source) = &volume.secret {
        all.secrets.extend(source.secret_name.clone());
    }
    let projected = volume.projected.iter().flat_map(|p| p.sources.iter());
    for projection in projected.flatten() {
        let map = projection.config_map.as_ref().map(|s| s.name.clone());
        let secret = projection.secret.as_ref().map(|s| s.name.clone());
        all.config_maps.extend(map);
        all.secrets.extend(secret);
    }
}

struct Watched<K> {
    lister: Lister<K>,
    stop: Shutdown,
    /// By holder.
    users: Arc<Mutex<HashMap<String, Wake>>>,
}

/// Watches of one kind, by namespace and name.
struct Watches<K>(Mutex<HashMap<(String, String), Watched<K>>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Resource> Watches<K> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn acquire(
        &self,
        cache: &ObjectCache,
        key: (String, String),
        user: &str,
        wake: &Wake,
    ) -> Lister<K> {
        let mut watches = locked(&self.0);
        let watched = watches.entry(key).or_insert_with_key(|(namespace, name)| {
            let stop = cache.shutdown.child();
            let informers = Informers::new(cache.client.clone(), stop.clone());
            let params = ListParams::fields(format!("metadata.name={name}"));
            let lister = informers.lister_with::<K>(Some(namespace), params);
            let users: Arc<Mutex<HashMap<String, Wake>>> = Arc::default();
            let listeners = Arc::clone(&users);
            lister.on_change(move |_| {
                let wakes: Vec<Wake> = locked(&listeners).values().cloned().collect();
                wakes.iter().for_each(|wake| wake());
            });
            Watched {
                lister,
                stop,
                users,
            }
        });
        locked(&watched.users).insert(user.to_owned(), Arc::clone(wake));
        watched.lister.clone()
    }

    fn release(&self, key: &(String, String), user: &str) {
        let mut watches = locked(&self.0);
        let Some(watched) = watches.get(key) else {
            return;
        };
        let mut users = locked(&watched.users);
        users.remove(user);
        let is_last = users.is_empty();
        drop(users);
        if is_last {
            watched.stop.trigger();
            watches.remove(key);
        }
    }
}

pub struct ObjectCache {
    client: Client,
    shutdown: Shutdown,
    serial: AtomicU64,
    config_maps: Watches<ConfigMap>,
    secrets: Watches<Secret>,
}

impl ObjectCache {
    pub fn new(client: Client, shutdown: Shutdown) -> Arc<Self> {
        Arc::new(Self {
            client,
            shutdown,
            serial: AtomicU64::new(0),
            config_maps: Watches::new(),
            secrets: Watches::new(),
        })
    }

    /// Watches everything the pod refers to until the answer is dropped.
    pub fn hold(self: &Arc<Self>, pod: &Pod, wake: &Wake) -> Held {
        let wanted = references(pod);
        let namespace = pod::namespace(pod).to_owned();
        // A pod may hold twice for a moment, when its references change.
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let user = format!("{}/{serial}", pod::uid(pod));
        let key = |name: &String| (namespace.clone(), name.clone());
        let config_maps = wanted.config_maps.iter().map(|name| {
            let lister = self.config_maps.acquire(self, key(name), &user, wake);
            (name.clone(), lister)
        });
        let config_maps = config_maps.collect();
        let secrets = wanted.secrets.iter().map(|name| {
            let lister = self.secrets.acquire(self, key(name), &user, wake);
            (name.clone(), lister)
        });
        Held {
            cache: Arc::clone(self),
            secrets: secrets.collect(),
            config_maps,
            references: wanted,
            namespace,
            user,
        }
    }
}

/// The objects of one pod, kept up to date.
pub struct Held {
    cache: Arc<ObjectCache>,
    pub references: References,
    namespace: String,
    user: String,
    config_maps: BTreeMap<String, Lister<ConfigMap>>,
    secrets: BTreeMap<String, Lister<Secret>>,
}

impl Held {
    /// Returns once the server has been asked for every object.
    pub async fn synced(&self) {
        for lister in self.config_maps.values() {
            lister.synced().await;
        }
        for lister in self.secrets.values() {
            lister.synced().await;
        }
    }
}

impl Objects for Held {
    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
        self.config_maps.get(name)?.get(Some(&self.namespace), name)
    }

    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        self.secrets.get(name)?.get(Some(&self.namespace), name)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for name in self.config_maps.keys() {
            let key = (self.namespace.clone(), name.clone());
            self.cache.config_maps.release(&key, &self.user);
        }
        for name in self.secrets.keys() {
            let key = (self.namespace.clone(), name.clone());
            self.cache.secrets.release(&key, &self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::pod_of;
    use sampan_client::testing::FakeServer;
    use serde_json::json;

    #[test]
    fn references_of_environment_and_volumes() {
        let pod = pod_of(json!({"containers": [{"name": "a",
                "envFrom": [{"configMapRef": {"name": "m1"}}],
                "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}]}],
            "volumes": [{"name": "v", "secret": {"secretName": "s2"}},
                {"name": "p", "projected": {"sources": [{"configMap": {"name": "m2"}}]}}]}));
        let all = references(&pod);
        assert_eq!(all.config_maps, ["m1".into(), "m2".into()].into());
        assert_eq!(all.secrets, ["s1".into(), "s2".into()].into());
    }

    #[tokio::test]
    async fn changes_wake_the_pods_that_hold_an_object() {
        let server = FakeServer::new();
        let client = server.client();
        let map = |value: &str| -> ConfigMap {
            serde_json::from_value(
                json!({"metadata": {"name": "m1", "namespace": "default"}, "data": {"k": value}}),
            )
            .unwrap()
        };
        client.create(&map("1")).await.unwrap();
        let cache = ObjectCache::new(client.clone(), Shutdown::new());
        let pod = pod_of(
            json!({"containers": [{"name": "a", "envFrom": [{"configMapRef": {"name": "m1"}}]}]}),
        );
        let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel();
        let wake: Wake = Arc::new(move || {
            let _ = tx.send(());
        });
        let held = cache.hold(&pod, &wake);
        held.synced().await;
        let value = |held: &Held| held.config_map("m1").unwrap().data.clone().unwrap()["k"].clone();
        assert_eq!(value(&held), "1");
        assert!(held.secret("m1").is_none());
        client.update(&map("2")).await.unwrap();
        while value(&held) != "2" {
            rx.recv().await.unwrap();
        }
        drop(held);
        assert!(locked(&cache.config_maps.0).is_empty());
    }
}

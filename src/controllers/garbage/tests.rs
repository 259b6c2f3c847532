#![allow(clippy::unwrap_used)]

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sampan_api::Registry;
use sampan_client::testing::FakeServer;
use sampan_client::{Client, DeleteOptions, Informers, Propagation, Resource};

use super::*;
use crate::Settings;

struct Cluster {
    server: FakeServer,
    client: Client,
    shutdown: Shutdown,
}

impl Cluster {
    /// A server with the collector running on it.
    fn start() -> Self {
        let server = FakeServer::new();
        let shutdown = Shutdown::new();
        let client = server.client();
        let own = client.clone();
        let context = Arc::new(Context {
            shared: client.clone(),
            client_of: Arc::new(move |_| own.clone()),
            informers: Informers::new(client.clone(), shutdown.clone()),
            settings: Settings::new(Arc::new(Registry::builtin()), String::new(), Vec::new()),
            shutdown: shutdown.clone(),
            departures: Departures::default(),
        });
        tokio::spawn(run(context));
        Self {
            server,
            client,
            shutdown,
        }
    }

    async fn create<K: Resource>(
        &self,
        mut object: K,
        owners: &[OwnerReference],
    ) -> OwnerReference {
        let metadata = object.metadata_mut();
        metadata.namespace = Some("ns".to_owned());
        metadata.owner_references = (!owners.is_empty()).then(|| owners.to_vec());
        let object = self.client.create(&object).await.unwrap();
        let mut reference = crate::owner::controller_reference(&object);
        reference.controller = None;
        reference
    }

    async fn delete<K: Resource>(&self, name: &str, how: Propagation) {
        let options = DeleteOptions::default().propagation(how);
        self.client
            .delete::<K>(Some("ns"), name, &options)
            .await
            .unwrap();
    }

    async fn until(&self, condition: impl Fn(&FakeServer) -> bool) {
        for _ in 0..10_000 {
            if condition(&self.server) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("it never happened: {:?}", self.server.writes());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

fn set(name: &str) -> ReplicaSet {
    ReplicaSet {
        metadata: named(name),
        ..ReplicaSet::default()
    }
}

fn pod(name: &str) -> Pod {
    Pod {
        metadata: named(name),
        ..Pod::default()
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

#[tokio::test(start_paused = true)]
async fn dependents_follow_their_owner_in_the_background() {
    let cluster = Cluster::start();
    let owner = cluster.create(set("web"), &[]).await;
    let middle = cluster.create(pod("a"), &[owner]).await;
    cluster
        .create(
            ConfigMap {
                metadata: named("deep"),
                ..ConfigMap::default()
            },
            &[middle],
        )
        .await;
    cluster
        .delete::<ReplicaSet>("web", Propagation::Background)
        .await;
    cluster
        .until(|server| server.all::<Pod>().is_empty() && server.all::<ConfigMap>().is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_foreground_deletion_goes_last() {
    let cluster = Cluster::start();
    let owner = cluster.create(set("web"), &[]).await;
    cluster.create(pod("a"), std::slice::from_ref(&owner)).await;
    cluster.create(pod("b"), &[owner]).await;
    cluster
        .delete::<ReplicaSet>("web", Propagation::Foreground)
        .await;
    cluster
        .until(|server| server.all::<ReplicaSet>().is_empty())
        .await;
    assert!(cluster.server.all::<Pod>().is_empty());
    let writes = cluster.server.writes();
    assert!(
        writes.last().unwrap().starts_with("patch replicasets"),
        "{writes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn orphans_stay() {
    let cluster = Cluster::start();
    let owner = cluster.create(set("web"), &[]).await;
    cluster.create(pod("a"), &[owner]).await;
    cluster
        .delete::<ReplicaSet>("web", Propagation::Orphan)
        .await;
    cluster
        .until(|server| server.all::<ReplicaSet>().is_empty())
        .await;
    let pods = cluster.server.all::<Pod>();
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].metadata.owner_references, None);
}

#[tokio::test(start_paused = true)]
async fn who_has_another_owner_stays_and_who_never_had_one_goes() {
    let cluster = Cluster::start();
    let first = cluster.create(set("first"), &[]).await;
    let second = cluster.create(set("second"), &[]).await;
    cluster
        .create(pod("shared"), &[first.clone(), second.clone()])
        .await;
    let mut unknown = second.clone();
    unknown.uid = "never-was".to_owned();
    cluster.create(pod("stray"), &[unknown]).await;
    cluster.until(|server| server.all::<Pod>().len() == 1).await;
    cluster
        .delete::<ReplicaSet>("first", Propagation::Background)
        .await;
    cluster
        .until(|server| {
            let pods = server.all::<Pod>();
            let owners = pods[0].metadata.owner_references.as_deref();
            owners.is_some_and(|owners| owners.len() == 1 && owners[0].uid == second.uid)
        })
        .await;
}

#[test]
fn a_resource_that_comes_again_as_another_kind_is_followed_anew() {
    let row = |kind: &str| {
        sampan_api::custom::row(&serde_json::json!({
            "spec": {"group": "g.example", "scope": "Namespaced",
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]},
            "status": {
                "acceptedNames": {"plural": "as", "singular": "a", "kind": kind, "listKind": "AList"},
                "conditions": [{"type": "Established", "status": "True"}]},
        }))
        .unwrap()
    };
    assert_eq!(row("A").storage_gvr(), row("B").storage_gvr());
    assert_eq!(followable(&row("A")), followable(&row("A")));
    assert_ne!(followable(&row("A")), followable(&row("B")));
}

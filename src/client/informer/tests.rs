#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

use super::*;
use crate::client::{DeleteOptions, Patch};
use crate::testing::FakeServer;

fn config_map(namespace: &str, name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

fn names(lister: &Lister<ConfigMap>, namespace: Option<&str>) -> Vec<String> {
    let objects = lister.list(namespace);
    let name = |object: &Arc<ConfigMap>| object.metadata.name.clone().unwrap();
    objects.iter().map(name).collect()
}

fn revision(object: &ConfigMap) -> u64 {
    object
        .metadata
        .resource_version
        .clone()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_written_revision_is_waited_for() {
    let server = FakeServer::new();
    let client = server.client();
    client.create(&config_map("a", "one")).await.unwrap();
    let informers = Informers::new(client.clone(), Shutdown::new());
    let lister = informers.lister::<ConfigMap>();
    informers.synced().await;
    assert_eq!(names(&lister, None), ["one"]);

    let second = client.create(&config_map("b", "two")).await.unwrap();
    lister.wait_for(revision(&second)).await;
    assert_eq!(names(&lister, None), ["one", "two"]);
    assert_eq!(names(&lister, Some("b")), ["two"]);
}

#[tokio::test(start_paused = true)]
async fn watches_resume_and_lists_replace_what_is_too_old() {
    let server = FakeServer::new();
    let client = server.client();
    let informers = Informers::new(client.clone(), Shutdown::new());
    let lister = informers.lister::<ConfigMap>();
    client.create(&config_map("a", "gone")).await.unwrap();
    lister
        .wait_until(|lister| lister.get(Some("a"), "gone").is_some())
        .await;
    server.close_watches();
    client.create(&config_map("a", "after")).await.unwrap();
    lister
        .wait_until(|lister| lister.get(Some("a"), "after").is_some())
        .await;

    client
        .delete::<ConfigMap>(Some("a"), "gone", &DeleteOptions::default())
        .await
        .unwrap();
    server.compact();
    let last = client.create(&config_map("a", "last")).await.unwrap();
    lister.wait_for(revision(&last)).await;
    assert_eq!(names(&lister, Some("a")), ["after", "last"]);
}

#[tokio::test]
async fn handlers_see_what_was_there_and_every_change_in_order() {
    let server = FakeServer::new();
    let client = server.client();
    client.create(&config_map("a", "one")).await.unwrap();
    let informers = Informers::new(client.clone(), Shutdown::new());
    let lister = informers.lister::<ConfigMap>();
    lister.synced().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    lister.on_change(move |change| {
        let what = match change {
            Change::Applied { old: None, .. } => "added",
            Change::Applied { old: Some(_), .. } => "modified",
            Change::Deleted(_) => "deleted",
        };
        told.lock().unwrap().push(what);
    });
    let patch = Patch::Merge(json!({"data": {"key": "value"}}));
    client
        .patch::<ConfigMap>(Some("a"), "one", &patch)
        .await
        .unwrap();
    client
        .delete::<ConfigMap>(Some("a"), "one", &DeleteOptions::default())
        .await
        .unwrap();
    lister
        .wait_until(|lister| lister.list(None).is_empty())
        .await;
    assert_eq!(*seen.lock().unwrap(), ["added", "modified", "deleted"]);
}

#[tokio::test]
async fn objects_are_found_by_owner_and_shared_while_looked_at() {
    let server = FakeServer::new();
    let client = server.client();
    let owner = OwnerReference {
        uid: "owner".to_owned(),
        ..OwnerReference::default()
    };
    let mut pod = Pod::default();
    pod.metadata.namespace = Some("a".to_owned());
    pod.metadata.name = Some("web".to_owned());
    pod.metadata.owner_references = Some(vec![owner]);
    client.create(&pod).await.unwrap();
    let informers = Informers::new(client.clone(), Shutdown::new());
    let lister = informers.lister::<Pod>();
    lister.synced().await;
    let owned = lister.by_owner("owner");
    assert_eq!(owned.len(), 1);
    let again = lister.get(Some("a"), "web").unwrap();
    assert!(Arc::ptr_eq(&owned[0], &again));

    let orphan = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    client
        .patch::<Pod>(Some("a"), "web", &orphan)
        .await
        .unwrap();
    lister
        .wait_until(|lister| lister.by_owner("owner").is_empty())
        .await;
    assert!(lister.get(Some("a"), "web").is_some());
}

#[tokio::test]
async fn handlers_of_a_scope_that_ended_are_called_no_more() {
    let server = FakeServer::new();
    let client = server.client();
    let informers = Informers::new(client.clone(), Shutdown::new());
    let (scope, seen) = (Shutdown::new(), Arc::new(Mutex::new(0)));
    let told = Arc::clone(&seen);
    let lister = informers.scoped(scope.clone()).lister::<ConfigMap>();
    lister.on_change(move |_| *told.lock().unwrap() += 1);
    let first = client.create(&config_map("a", "one")).await.unwrap();
    lister.wait_for(revision(&first)).await;
    assert_eq!(*seen.lock().unwrap(), 1);
    scope.trigger();
    let second = client.create(&config_map("a", "two")).await.unwrap();
    let all = informers.lister::<ConfigMap>();
    all.wait_for(revision(&second)).await;
    assert_eq!(*seen.lock().unwrap(), 1);
    assert_eq!(Arc::strong_count(&seen), 1, "the handler was dropped");
}

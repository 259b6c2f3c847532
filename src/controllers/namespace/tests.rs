#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::ConfigMap;
use sampan_client::testing::FakeServer;
use sampan_util::Shutdown;

use super::*;
use crate::fixtures::{at, meta, object};

#[test]
fn conditions_name_what_remains() {
    let namespace = Namespace::default();
    let mut remains = Remains::default();
    remains.counts.insert("pods.".to_owned(), 2);
    remains.finalizers.insert("example.com/x".to_owned(), 1);
    let status = conditions::updated(&namespace, &remains, at(5)).unwrap();
    let message = |kind: &str| {
        let conditions = status.conditions.as_ref().unwrap();
        let found = conditions.iter().find(|condition| condition.type_ == kind);
        found.unwrap().message.clone().unwrap()
    };
    assert_eq!(
        message("NamespaceContentRemaining"),
        "Some resources are remaining: pods. has 2 resource instances"
    );
    assert_eq!(
        message("NamespaceFinalizersRemaining"),
        "Some content in the namespace has finalizers remaining: example.com/x in 1 resource instances"
    );
    let again = Namespace {
        status: Some(status),
        ..Namespace::default()
    };
    assert_eq!(conditions::updated(&again, &remains, at(9)), None);
}

#[tokio::test]
async fn content_goes_before_the_finalizer() {
    let server = FakeServer::new();
    let client = server.client();
    let namespace: Namespace = object(json!({
        "metadata": {"name": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"finalizers": ["kubernetes"]},
    }));
    client.create(&namespace).await.unwrap();
    let mut held = ConfigMap {
        metadata: meta("ns", "held"),
        ..ConfigMap::default()
    };
    held.metadata.finalizers = Some(vec!["example.com/x".to_owned()]);
    client.create(&held).await.unwrap();
    let informers = sampan_client::Informers::new(client.clone(), Shutdown::new());
    let deleter = Deleter {
        client: client.clone(),
        registry: Arc::new(Registry::builtin()),
        namespaces: informers.lister::<Namespace>(),
    };
    informers.synced().await;
    let key = ObjectKey::cluster("ns");
    // Nobody looks again by time: what goes wakes it.
    assert_eq!(deleter.delete(&key).await.unwrap(), None);
    let waiting: Namespace = client.get(None, "ns").await.unwrap();
    assert!(has_finalizer(&waiting));
    assert_eq!(
        waiting.status.unwrap().phase.as_deref(),
        Some("Terminating")
    );

    let release = sampan_client::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    client
        .patch::<ConfigMap>(Some("ns"), "held", &release)
        .await
        .unwrap();
    assert_eq!(deleter.delete(&key).await.unwrap(), None);
    assert!(server.all::<ConfigMap>().is_empty());
    assert!(
        server
            .writes()
            .last()
            .unwrap()
            .starts_with("update namespaces/finalize")
    );
}

#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::Verb;
use sampan_client::Informers;
use sampan_client::testing::{FakeServer, failure};
use sampan_client::{DeleteOptions, Lister, Queue};
use sampan_util::Shutdown;

use super::*;
use crate::runtime::Watches;

fn pod(name: &str) -> Pod {
    Pod {
        metadata: ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Pod::default()
    }
}

async fn executor(server: &FakeServer) -> (Executor, Lister<Pod>) {
    let informers = Informers::new(server.client(), Shutdown::new());
    let mut watches = Watches::new(&informers, Queue::new());
    let lister = watches.reads::<Pod>();
    let views = watches.into_views();
    views.synced().await;
    let recorder = Recorder::new(server.client(), "test", "");
    let executor = Executor::new(server.client(), server.client(), recorder, views);
    (executor, lister)
}

fn creations(count: usize) -> Plan {
    let steps = (0..count).map(|number| Step::from(Action::create(&pod(&format!("p{number}")))));
    Plan {
        actions: steps.collect(),
        ..Plan::default()
    }
}

#[test]
fn creations_start_slowly_and_deletions_run_together() {
    let steps = creations(10).actions;
    assert_eq!(batch_size(&steps, 0), 1);
    assert_eq!(batch_size(&steps, 1), 1);
    assert_eq!(batch_size(&steps, 4), 4);
    assert_eq!(batch_size(&steps[..2], 4), 2);
    let deletions: Vec<Step> = (0..3)
        .map(|_| Action::delete_with(&pod("p"), DeleteOptions::default()).into())
        .collect();
    assert_eq!(batch_size(&deletions, 0), 3);
}

#[tokio::test]
async fn what_was_written_is_in_the_cache_afterwards() {
    let server = FakeServer::new();
    let (executor, lister) = executor(&server).await;
    executor.execute(creations(7), |_| None).await.unwrap();
    assert_eq!(lister.list(None).len(), 7);

    let plan = Plan {
        actions: lister
            .list(None)
            .iter()
            .map(|pod| Action::delete(&**pod).into())
            .collect(),
        ..Plan::default()
    };
    executor.execute(plan, |_| None).await.unwrap();
    assert!(lister.list(None).is_empty());
}

#[tokio::test]
async fn a_failure_stops_later_batches_and_the_status_is_still_written() {
    let server = FakeServer::new();
    let (executor, lister) = executor(&server).await;
    server.client().create(&pod("status")).await.unwrap();
    server.fail_next(
        Verb::Create,
        "pods",
        failure(Reason::Forbidden, "exceeded quota"),
    );
    let mut plan = creations(5);
    let key = ObjectKey::new("ns", "status");
    let change = serde_json::json!({"status": {"phase": "Running"}});
    plan.status = Some(Action::write_status::<Pod>(&key, Form::Put, change).into());
    let error = executor.execute(plan, |_| None).await.unwrap_err();
    assert_eq!(error.to_string(), "exceeded quota");
    let pods = lister.list(None);
    assert_eq!(pods.len(), 1, "nothing was created after the refusal");
    let phase = pods[0]
        .status
        .as_ref()
        .and_then(|status| status.phase.clone());
    assert_eq!(phase.as_deref(), Some("Running"));
}

#[tokio::test]
async fn deleting_what_is_gone_is_success() {
    let server = FakeServer::new();
    let (executor, _lister) = executor(&server).await;
    let plan = Plan {
        actions: vec![Action::delete(&pod("gone")).into()],
        ..Plan::default()
    };
    executor.execute(plan, |_| None).await.unwrap();
}

#[tokio::test]
async fn after_a_conflict_only_the_object_itself_is_waited_for() {
    let server = FakeServer::new();
    let (executor, _lister) = executor(&server).await;
    let client = server.client();
    client.create(&pod("web")).await.unwrap();
    // Revisions of other resources go on: no event will ever bring them to this cache.
    client
        .create(&k8s_openapi::api::core::v1::Node::default())
        .await
        .unwrap();
    server.fail_next(Verb::Update, "pods", failure(Reason::Conflict, "modified"));
    let key = ObjectKey::new("ns", "web");
    let change = serde_json::json!({"spec": {"nodeName": "n"}});
    let plan = Plan {
        actions: vec![Action::write::<Pod>(&key, Form::Put, change).into()],
        ..Plan::default()
    };
    let executed = executor.execute(plan, |_| None);
    let waited = tokio::time::timeout(std::time::Duration::from_secs(5), executed).await;
    assert!(waited.unwrap().unwrap_err().is_conflict());
}

#[tokio::test]
async fn a_change_of_the_current_object_sends_only_itself_and_fails_if_it_is_not() {
    let server = FakeServer::new();
    let (executor, lister) = executor(&server).await;
    let created = server.client().create(&pod("web")).await.unwrap();
    let revision = created.metadata.resource_version.unwrap().parse().unwrap();
    lister.wait_for(revision).await;
    server.forget_writes();
    let key = ObjectKey::new("ns", "web");
    let plan = || Plan {
        actions: vec![
            Action::write::<Pod>(
                &key,
                Form::MergeCurrent,
                serde_json::json!({"metadata": {"labels": {"a": "b"}}}),
            )
            .into(),
        ],
        ..Plan::default()
    };
    executor.execute(plan(), |_| None).await.unwrap();
    assert_eq!(server.writes(), ["patch pods ns/web"]);
    server.fail_next(Verb::Patch, "pods", failure(Reason::Conflict, "modified"));
    let conflict = executor.execute(plan(), |_| None).await.unwrap_err();
    assert!(conflict.is_conflict());
}

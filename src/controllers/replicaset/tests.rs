#![allow(clippy::unwrap_used)]

use k8s_openapi::api::apps::v1::ReplicaSet;
use sampan_client::Error;
use sampan_client::testing::failure;
use serde_json::json;

use super::*;
use crate::fixtures::{at, make_ready, object, pod};

type Sets = PodSetController<ReplicaSet>;

fn set(replicas: i32) -> ReplicaSet {
    object(json!({
        "metadata": {"namespace": "ns", "name": "web", "uid": "uid-web", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}},
        },
    }))
}

fn owned(set: &ReplicaSet, name: &str) -> Pod {
    let mut pod = orphan(name);
    pod.metadata.owner_references = Some(vec![owner::controller_reference(set)]);
    pod
}

fn orphan(name: &str) -> Pod {
    let mut pod = pod("ns", name);
    pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    pod
}

fn observed(set: ReplicaSet, pods: Vec<Pod>) -> Observed<ReplicaSet> {
    let selector = set.selector();
    Observed {
        set: Arc::new(set),
        selector,
        pods: pods.into_iter().map(Arc::new).collect(),
        crowd: HashMap::new(),
        kind: PhantomData,
    }
}

fn plan(observed: &Observed<ReplicaSet>) -> Plan {
    Sets::reconcile(observed, at(1000))
}

#[test]
fn missing_pods_are_created() {
    let set = set(3);
    let pods = vec![owned(&set, "a")];
    let plan = plan(&observed(set, pods));
    assert_eq!(
        plan.lines()[..2],
        ["create pods ns/web-", "create pods ns/web-"]
    );
    assert_eq!(
        plan.lines()[2],
        "write replicasets/status ns/web {\"status\":{\"fullyLabeledReplicas\":1,\
         \"observedGeneration\":1,\"replicas\":1,\"terminatingReplicas\":0}}"
    );
    let note = plan.actions[0].success.as_ref().unwrap();
    assert_eq!(
        (note.reason, note.message.as_str()),
        ("SuccessfulCreate", "Created pod: {}")
    );
}

#[test]
fn surplus_pods_are_deleted_the_least_useful_first() {
    let set = set(1);
    let mut ready = owned(&set, "ready");
    make_ready(&mut ready, at(10));
    let pods = vec![ready, owned(&set, "pending")];
    let plan = plan(&observed(set, pods));
    assert_eq!(plan.lines()[0], "delete pods ns/pending");
    assert_eq!(plan.actions.len(), 1);
}

#[test]
fn finished_and_terminating_pods_do_not_count() {
    let set = set(2);
    let mut failed = owned(&set, "failed");
    failed.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    let mut leaving = owned(&set, "leaving");
    leaving.metadata.deletion_timestamp = Some(Time(at(5)));
    let plan = plan(&observed(set, vec![failed, leaving]));
    assert_eq!(plan.actions.len(), 2);
    assert!(plan.lines()[2].contains("\"terminatingReplicas\":1"));
}

#[test]
fn orphans_are_adopted_and_strangers_released() {
    let set = set(2);
    let mut stranger = owned(&set, "stranger");
    stranger.metadata.labels = None;
    let pods = vec![stranger, orphan("orphan"), owned(&set, "mine")];
    let plan = plan(&observed(set, pods));
    let lines = plan.lines();
    assert!(lines[0].starts_with("write pods ns/stranger"));
    assert!(lines[0].contains("\"$patch\":\"delete\""));
    assert!(lines[1].starts_with("write pods ns/orphan"));
    assert!(plan.actions[1].only_while.is_some());
    assert_eq!(plan.actions.len(), 2, "two pods are enough: {lines:?}");
}

#[test]
fn a_set_being_deleted_leaves_its_pods_alone() {
    let mut set = set(3);
    set.metadata.deletion_timestamp = Some(Time(at(5)));
    let plan = plan(&observed(set, vec![orphan("orphan")]));
    assert!(plan.actions.is_empty());
}

#[test]
fn availability_is_looked_at_again_in_time() {
    let mut set = set(1);
    set.spec.as_mut().unwrap().min_ready_seconds = Some(30);
    let mut ready = owned(&set, "ready");
    make_ready(&mut ready, at(990));
    let plan = plan(&observed(set, vec![ready]));
    assert_eq!(plan.requeue_after.map(|after| after.as_secs()), Some(20));
}

#[test]
fn a_refused_creation_becomes_a_condition() {
    let observed = observed(set(1), Vec::new());
    let planned = plan(&observed);
    let error: Error = failure(sampan_api::Reason::Forbidden, "exceeded quota");
    let failures = [Failure {
        step: planned.actions[0].clone(),
        error,
    }];
    let step = Sets::on_failure(&observed, &failures, at(1000)).unwrap();
    let line = step.action.to_string();
    assert!(line.contains("\"reason\":\"FailedCreate\""), "{line}");
    assert!(line.contains("exceeded quota"), "{line}");
}

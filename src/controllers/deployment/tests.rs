#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::fixtures::{at, object};

fn deployment(replicas: i32, image: &str) -> Deployment {
    object(json!({
        "metadata": {"namespace": "ns", "name": "web", "uid": "uid-web", "generation": 2},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 1,
        },
    }))
}

/// A set of the deployment with all its pods available.
fn set(deployment: &Deployment, revision: i64, replicas: i32) -> ReplicaSet {
    let mut set = revision::new_set(deployment).unwrap();
    set.scale(deployment, replicas);
    set.annotate(revision::REVISION, revision.to_string());
    let mut set = set.planned;
    set.metadata.uid = Some(format!("uid-{revision}"));
    set.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        at(revision),
    ));
    set.status = Some(object(json!({
        "replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        "terminatingReplicas": 0,
    })));
    set
}

fn observed(deployment: Deployment, sets: Vec<ReplicaSet>) -> Observed {
    let selector = selector_of(&deployment.spec.as_ref().unwrap().selector);
    Observed {
        deployment: Arc::new(deployment),
        selector,
        candidates: sets.into_iter().map(Arc::new).collect(),
        namesake: None,
        running: Vec::new(),
    }
}

fn plan(observed: &Observed) -> Plan {
    DeploymentController::reconcile(observed, at(1000))
}

/// The planned replicas of the sets that are written, by their names' order.
fn sizes(plan: &Plan) -> Vec<i64> {
    let size = |step: &Step| match &step.action {
        Action::Create { object, .. } => object["spec"]["replicas"].as_i64(),
        Action::Write { change, .. } => change["spec"]["replicas"].as_i64(),
        Action::Make { .. } | Action::Delete { .. } => None,
    };
    plan.actions.iter().filter_map(size).collect()
}

#[test]
fn a_new_deployment_gets_its_first_set() {
    let deployment = deployment(3, "a");
    let name = revision::set_name(&deployment);
    let plan = plan(&observed(deployment, Vec::new()));
    let lines = plan.lines();
    assert_eq!(lines[0], format!("create replicasets ns/{name}"));
    assert_eq!(sizes(&plan), [3]);
    assert!(
        lines[1].contains("deployment.kubernetes.io/revision\":\"1\""),
        "{lines:?}"
    );
    let status = &lines[1];
    assert!(
        status.contains("NewReplicaSetCreated") && status.contains("\"unavailableReplicas\":3")
    );
    let note = plan.actions[0].success.as_ref().unwrap();
    assert_eq!(
        note.message,
        format!("Scaled up replica set {name} from 0 to 3")
    );
    assert_eq!(plan.requeue_after.map(|after| after.as_secs()), Some(601));
}

#[test]
fn a_new_template_is_rolled_out_within_the_limits() {
    let old = set(&deployment(4, "a"), 1, 4);
    // Surge 1: the new set starts with one, one old pod may go at once.
    let plan_1 = plan(&observed(deployment(4, "b"), vec![old.clone()]));
    assert_eq!(sizes(&plan_1), [1, 3]);
    // The new pod is not available yet: nothing more may go.
    let mut new = set(&deployment(4, "b"), 2, 1);
    new.status.as_mut().unwrap().available_replicas = None;
    let mut old_3 = old.clone();
    old_3.spec.as_mut().unwrap().replicas = Some(3);
    let plan_2 = plan(&observed(
        deployment(4, "b"),
        vec![old_3.clone(), new.clone()],
    ));
    assert_eq!(sizes(&plan_2), [2], "the surge is used, nothing old goes");
    new.spec.as_mut().unwrap().replicas = Some(2);
    let plan_3 = plan(&observed(deployment(4, "b"), vec![old_3, new]));
    assert!(sizes(&plan_3).is_empty());
}

#[test]
fn a_finished_rollout_cleans_up_and_says_so() {
    let sets = vec![
        set(&deployment(2, "a"), 1, 0),
        set(&deployment(2, "b"), 2, 0),
        set(&deployment(2, "c"), 3, 2),
    ];
    let mut deployment = deployment(2, "c");
    deployment.status = Some(object(json!({
        "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2,
        "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}],
    })));
    let oldest = owner::name(&sets[0].metadata).to_owned();
    let mut sets = sets;
    for set in &mut sets {
        set.status.as_mut().unwrap().observed_generation = Some(1);
        set.metadata.generation = Some(1);
    }
    let plan = plan(&observed(deployment, sets));
    let lines = plan.lines();
    assert_eq!(lines[0], format!("delete replicasets ns/{oldest}"));
    assert!(
        lines
            .last()
            .unwrap()
            .contains("has successfully progressed."),
        "{lines:?}"
    );
    assert_eq!(plan.requeue_after, None);
}

#[test]
fn rolling_back_renumbers_the_old_set() {
    let sets = vec![
        set(&deployment(1, "a"), 1, 0),
        set(&deployment(1, "b"), 2, 1),
    ];
    let plan = plan(&observed(deployment(1, "a"), sets));
    let line = &plan.lines()[0];
    assert!(line.contains("/revision\":\"3\""), "{line}");
    assert!(line.contains("/revision-history\":\"1\""), "{line}");
}

#[test]
fn a_namesake_with_another_template_counts_as_collision() {
    let mut observed = observed(deployment(1, "a"), Vec::new());
    observed.namesake = Some(Arc::new(ReplicaSet::default()));
    let plan = plan(&observed);
    assert!(plan.actions.is_empty());
    assert!(plan.lines()[0].contains("\"collisionCount\":1"));
}

#[test]
fn scaling_in_the_middle_of_a_rollout_keeps_proportions() {
    let old = set(&deployment(10, "a"), 1, 8);
    let new = set(&deployment(10, "b"), 2, 5);
    let plan = plan(&observed(deployment(20, "b"), vec![old, new]));
    let mut sizes = sizes(&plan);
    sizes.sort_unstable();
    // 20 and a surge of 5, in the proportion of 5 to 8.
    assert_eq!(sizes, [10, 15]);
}

#[test]
fn recreate_waits_until_old_pods_are_gone() {
    let recreate = |image: &str| {
        let mut deployment = deployment(2, image);
        let strategy = object(json!({"type": "Recreate"}));
        deployment.spec.as_mut().unwrap().strategy = Some(strategy);
        deployment
    };
    let mut old = set(&recreate("a"), 1, 2);
    let step_1 = plan(&observed(recreate("b"), vec![old.clone()]));
    assert_eq!(sizes(&step_1), [0]);
    old.spec.as_mut().unwrap().replicas = Some(0);
    old.status.as_mut().unwrap().replicas = 0;
    let mut waiting = observed(recreate("b"), vec![old.clone()]);
    waiting.running = vec!["uid-1".to_owned()];
    assert!(sizes(&plan(&waiting)).is_empty());
    let step_2 = plan(&observed(recreate("b"), vec![old]));
    assert_eq!(sizes(&step_2), [2]);
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut paused = deployment(5, "b");
    paused.spec.as_mut().unwrap().paused = Some(true);
    let plan = plan(&observed(paused, vec![set(&deployment(3, "a"), 1, 3)]));
    assert_eq!(sizes(&plan), [5]);
    assert!(plan.lines().last().unwrap().contains("DeploymentPaused"));
}

#[test]
fn a_stuck_rollout_times_out() {
    let mut stuck = deployment(1, "a");
    stuck.status = Some(object(json!({
        "observedGeneration": 2, "unavailableReplicas": 1, "terminatingReplicas": 0,
        "conditions": [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated",
            "lastUpdateTime": "1970-01-01T00:01:40Z"}],
    })));
    let mut set = set(&stuck, 1, 1);
    set.status = None;
    let observed = observed(stuck, vec![set]);
    let early = DeploymentController::reconcile(&observed, at(600));
    assert_eq!(early.requeue_after.map(|after| after.as_secs()), Some(101));
    let late = DeploymentController::reconcile(&observed, at(701));
    let line = late.lines().last().unwrap().clone();
    assert!(line.contains("ProgressDeadlineExceeded"), "{line}");
}

#[test]
fn shares_are_rounded_for_the_rollout() {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    let quarter = IntOrString::String("25%".to_owned());
    assert_eq!(sets::scaled(&quarter, 10, true), 3);
    assert_eq!(sets::scaled(&quarter, 10, false), 2);
    assert_eq!(sets::scaled(&IntOrString::Int(4), 10, false), 4);
}

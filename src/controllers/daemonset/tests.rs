#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::fixtures::{at, make_ready, object};

fn set(image: &str) -> DaemonSet {
    object(json!({
        "metadata": {"namespace": "ns", "name": "agent", "uid": "uid-agent", "generation": 1},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        },
    }))
}

fn node(name: &str, taints: Value) -> Arc<Node> {
    Arc::new(object(
        json!({"metadata": {"name": name}, "spec": {"taints": taints}}),
    ))
}

fn observed(set: DaemonSet, nodes: &[&str], pods: Vec<Pod>) -> Observed {
    let selector = selector_of(&set.spec.as_ref().unwrap().selector);
    Observed {
        set: Arc::new(set),
        selector,
        nodes: nodes.iter().map(|name| node(name, json!(null))).collect(),
        pods: pods.into_iter().map(Arc::new).collect(),
        revisions: Vec::new(),
        revision_names: HashSet::new(),
        held: HashMap::new(),
    }
}

fn plan(observed: &Observed) -> Plan {
    DaemonSetController::reconcile(observed, at(1000))
}

/// The pod that a plan creates for each node, running and ready.
fn created(plan: &Plan) -> Vec<Pod> {
    let pods = plan.actions.iter().filter_map(|step| match &step.action {
        Action::Create {
            object: made,
            target,
        } if target.resource.resource == "pods" => Some(object::<Pod>(made.clone())),
        _ => None,
    });
    pods.map(|mut pod| {
        let node = placement::target_node(&pod).to_owned();
        pod.metadata.name = Some(format!("agent-{node}"));
        pod.metadata.uid = Some(format!("uid-{node}"));
        pod.spec.as_mut().unwrap().node_name = Some(node);
        pod.status = Some(Default::default());
        make_ready(&mut pod, at(0));
        pod
    })
    .collect()
}

fn pod_lines(plan: &Plan) -> Vec<String> {
    let lines = plan.lines().into_iter();
    lines.filter(|line| line.contains(" pods ")).collect()
}

#[test]
fn every_suitable_node_gets_a_pod() {
    let mut observed = observed(set("a"), &["n1", "n2"], Vec::new());
    observed.nodes.push(node(
        "tainted",
        json!([{"key": "x", "effect": "NoSchedule"}]),
    ));
    observed.nodes.push(node(
        "unready",
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]),
    ));
    let plan = plan(&observed);
    assert!(plan.lines()[0].starts_with("create controllerrevisions ns/agent-"));
    let nodes: Vec<String> = created(&plan)
        .iter()
        .map(|pod| pods::node_name(pod).to_owned())
        .collect();
    assert_eq!(nodes, ["n1", "n2", "unready"]);
    assert!(
        plan.lines()
            .last()
            .unwrap()
            .contains("\"desiredNumberScheduled\":3")
    );
}

#[test]
fn doubles_and_misplaced_pods_go() {
    let mut pods = created(&plan(&observed(set("a"), &["n1", "n2"], Vec::new())));
    let mut double = pods[0].clone();
    double.metadata.name = Some("double".to_owned());
    double.metadata.uid = Some("uid-double".to_owned());
    pods.push(double);
    let mut observed = observed(set("a"), &["n1"], pods);
    observed
        .nodes
        .push(node("n2", json!([{"key": "x", "effect": "NoExecute"}])));
    assert_eq!(
        pod_lines(&plan(&observed)),
        ["delete pods ns/double", "delete pods ns/agent-n2"]
    );
}

#[test]
fn old_pods_are_replaced_one_node_at_a_time() {
    let pods = created(&plan(&observed(set("a"), &["n1", "n2", "n3"], Vec::new())));
    let update = plan(&observed(set("b"), &["n1", "n2", "n3"], pods.clone()));
    assert_eq!(pod_lines(&update), ["delete pods ns/agent-n1"]);
    let missing = observed(set("b"), &["n1", "n2", "n3"], pods[1..].to_vec());
    let next = plan(&missing);
    assert_eq!(pod_lines(&next)[0], "create pods ns/agent-");
    let mut again = pods.clone();
    again[0] = created(&next).remove(0);
    again[0].status.as_mut().unwrap().conditions = None;
    let waiting = plan(&observed(set("b"), &["n1", "n2", "n3"], again));
    assert!(pod_lines(&waiting).is_empty(), "{waiting}");
}

#[test]
fn surging_creates_before_it_deletes() {
    let surging = |image: &str| {
        let mut set = set(image);
        let strategy = json!({"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        set.spec.as_mut().unwrap().update_strategy = object(strategy);
        set
    };
    let mut pods = created(&plan(&observed(surging("a"), &["n1", "n2"], Vec::new())));
    let update = plan(&observed(surging("b"), &["n1", "n2"], pods.clone()));
    assert_eq!(pod_lines(&update), ["create pods ns/agent-"]);
    let mut new = created(&update).remove(0);
    new.metadata.name = Some("new".to_owned());
    new.metadata.uid = Some("uid-new".to_owned());
    pods.push(new);
    let next = plan(&observed(surging("b"), &["n1", "n2"], pods));
    assert_eq!(
        pod_lines(&next),
        ["create pods ns/agent-", "delete pods ns/agent-n1"]
    );
}

#[test]
fn failed_pods_are_replaced_unless_held() {
    let mut pods = created(&plan(&observed(set("a"), &["n1"], Vec::new())));
    pods[0].status.as_mut().unwrap().phase = Some("Failed".to_owned());
    let mut observed = observed(set("a"), &["n1"], pods);
    let first = plan(&observed);
    assert_eq!(pod_lines(&first), ["delete pods ns/agent-n1"]);
    assert_eq!(first.events[0].reason, "FailedDaemonPod");
    let hold = Duration::from_secs(7);
    observed.held.insert("agent-n1".to_owned(), hold);
    let held = plan(&observed);
    assert!(pod_lines(&held).is_empty());
    assert_eq!(held.requeue_after, Some(hold));
}

#[test]
fn failures_are_answered_ever_more_slowly() {
    let backoff = FailureBackoff::default();
    assert_eq!(backoff.hold("set", "node", at(0)), Duration::ZERO);
    assert_eq!(backoff.hold("set", "node", at(0)), Duration::from_secs(1));
    assert_eq!(backoff.hold("set", "node", at(2)), Duration::ZERO);
    assert_eq!(backoff.hold("set", "node", at(2)), Duration::from_secs(2));
    assert_eq!(backoff.hold("set", "other", at(2)), Duration::ZERO);
}

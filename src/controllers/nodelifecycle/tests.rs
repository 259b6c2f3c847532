#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::fixtures::{at, make_ready, object, pod};

fn node(ready: &str, taints: serde_json::Value) -> Node {
    object(json!({
        "metadata": {"name": "n1", "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
}

fn observed(node: Node, last_beat: i64) -> Observed {
    Observed {
        node: Arc::new(node),
        last_beat: at(last_beat),
        grace: Duration::from_secs(40),
        ready_pods: Vec::new(),
        disrupted: Disruption::None,
    }
}

fn plan(observed: &Observed) -> Plan {
    NodeLifecycleController::reconcile(observed, at(100))
}

#[test]
fn a_live_node_is_looked_at_when_its_grace_ends() {
    let plan = plan(&observed(node("True", json!(null)), 90));
    assert!(plan.is_nothing(), "{plan}");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(30)));
}

#[test]
fn a_silent_node_becomes_unknown_and_is_tainted() {
    let mut observed = observed(node("True", json!(null)), 60);
    let mut ready = pod("ns", "web");
    make_ready(&mut ready, at(0));
    observed.ready_pods = vec![Arc::new(ready)];
    let plan = plan(&observed);
    let lines = plan.lines();
    assert!(
        lines[0].contains("Kubelet stopped posting node status."),
        "{lines:?}"
    );
    assert!(
        lines[0].contains("Kubelet never posted node status."),
        "for pressures: {lines:?}"
    );
    assert!(
        lines[1].contains("unreachable") && lines[1].contains("NoExecute"),
        "{lines:?}"
    );
    assert!(
        lines[2].starts_with("write pods/status ns/web"),
        "{lines:?}"
    );
    assert_eq!(plan.events[0].reason, "NodeNotReady");
}

#[test]
fn a_recovered_node_loses_only_our_taints() {
    let taints = json!([
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
        {"key": "mine", "effect": "NoExecute"},
    ]);
    let plan = plan(&observed(node("True", taints), 90));
    let wanted =
        "write nodes n1 {\"spec\":{\"taints\":[{\"effect\":\"NoExecute\",\"key\":\"mine\"}]}}";
    assert_eq!(plan.lines(), [wanted]);
}

#[test]
fn nobody_is_evicted_when_everything_is_down() {
    let mut full = observed(node("False", json!(null)), 90);
    full.disrupted = Disruption::Full;
    let line = plan(&full).lines().remove(0);
    assert!(
        line.contains("NoSchedule") && !line.contains("NoExecute"),
        "{line}"
    );

    let nodes = |states: &[&str]| -> Vec<Arc<Node>> {
        let node = |state: &&str| Arc::new(node(state, json!(null)));
        states.iter().map(node).collect()
    };
    assert_eq!(disruption(&nodes(&["False"])), Disruption::Full);
    assert_eq!(disruption(&nodes(&["False", "True"])), Disruption::None);
    let most = ["False", "Unknown", "False", "True"];
    assert_eq!(disruption(&nodes(&most)), Disruption::Partial);
}

#[test]
fn cordoned_and_pressed_nodes_take_no_pods() {
    let mut node = node("True", json!(null));
    node.spec.as_mut().unwrap().unschedulable = Some(true);
    let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions.push(object(json!({"type": "DiskPressure", "status": "True"})));
    let line = plan(&observed(node, 90)).lines().remove(0);
    assert!(
        line.contains("disk-pressure") && line.contains("unschedulable"),
        "{line}"
    );
}

#[test]
fn the_taint_of_registration_stays_until_the_node_reports() {
    let mut node = node(
        "True",
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
    );
    node.status = None;
    let plan = plan(&observed(node, 90));
    assert!(plan.is_nothing(), "{plan}");
}

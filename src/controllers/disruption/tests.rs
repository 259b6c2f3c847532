#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::fixtures::{at, make_ready, object, pod};

fn observed(spec: Value, status: Value, ready: usize, pending: usize) -> Observed {
    let pod = |number: usize| {
        let mut pod = pod("ns", &format!("p{number}"));
        if number < ready {
            make_ready(&mut pod, at(0));
        }
        Arc::new(pod)
    };
    Observed {
        budget: Arc::new(object(json!({
            "metadata": {"namespace": "ns", "name": "budget", "generation": 1},
            "spec": spec,
            "status": status,
        }))),
        pods: (0..ready + pending).map(pod).collect(),
        expected: Ok(4),
    }
}

fn allowed(observed: &Observed) -> (i32, i32) {
    let status = calculate(observed, at(100), &mut Plan::default()).unwrap();
    (
        status.disruptions_allowed.unwrap(),
        status.desired_healthy.unwrap(),
    )
}

#[test]
fn only_what_is_more_than_needed_may_go() {
    let none = json!(null);
    let min = |value: Value| json!({"minAvailable": value});
    let max = |value: Value| json!({"maxUnavailable": value});
    assert_eq!(
        allowed(&observed(min(json!(2)), none.clone(), 3, 1)),
        (1, 2)
    );
    assert_eq!(
        allowed(&observed(min(json!("50%")), none.clone(), 4, 0)),
        (2, 2)
    );
    assert_eq!(
        allowed(&observed(max(json!(1)), none.clone(), 4, 0)),
        (1, 3)
    );
    assert_eq!(
        allowed(&observed(max(json!(1)), none.clone(), 3, 1)),
        (0, 3)
    );
    assert_eq!(
        allowed(&observed(max(json!("25%")), none.clone(), 4, 0)),
        (1, 3)
    );
    assert_eq!(allowed(&observed(min(json!(0)), none, 0, 0)), (0, 0));
}

#[test]
fn granted_evictions_count_until_they_are_forgotten() {
    let spec = json!({"minAvailable": 1});
    let granted = |when: &str| json!({"disruptedPods": {"p0": when}});
    let fresh = observed(spec.clone(), granted("1970-01-01T00:01:30Z"), 2, 0);
    assert_eq!(allowed(&fresh), (0, 1));
    let stale = observed(spec, granted("1969-12-31T23:00:00Z"), 2, 0);
    assert_eq!(allowed(&stale), (1, 1));
}

#[test]
fn nothing_is_allowed_when_the_size_is_unknown() {
    let mut lost = observed(json!({"maxUnavailable": 1}), json!(null), 3, 0);
    lost.expected = Err("found no controller ref for pod \"p0\"".to_owned());
    let plan = DisruptionController::reconcile(&lost, at(100));
    let line = &plan.lines()[0];
    assert!(
        line.contains("SyncFailed") && line.contains("no controller ref"),
        "{line}"
    );
}

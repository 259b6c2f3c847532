#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::fixtures::{at, object, pod};

fn job(spec: Value) -> Job {
    let mut whole = json!({
        "selector": {"matchLabels": {"job": "work"}},
        "template": {"metadata": {"labels": {"job": "work"}},
            "spec": {"containers": [{"name": "c"}], "restartPolicy": "Never"}},
    });
    crate::json::merge(&mut whole, &spec);
    object(json!({
        "metadata": {"namespace": "ns", "name": "work", "uid": "uid-work", "generation": 1},
        "spec": whole,
        "status": {"startTime": "1970-01-01T00:00:00Z"},
    }))
}

fn worker(job: &Job, name: &str, phase: &str) -> Pod {
    let mut pod = pod("ns", name);
    pod.metadata.labels = Some(BTreeMap::from([("job".to_owned(), "work".to_owned())]));
    pod.metadata.owner_references = Some(vec![owner::controller_reference(job)]);
    pod.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
    pod
}

fn indexed(mut pod: Pod, index: i32) -> Pod {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(indexes::ANNOTATION.to_owned(), index.to_string());
    pod
}

fn plan(job: &Job, pods: Vec<Pod>) -> Plan {
    let observed = Observed {
        selector: selector_of(job.spec.as_ref().unwrap().selector.as_ref().unwrap()),
        job: Some(Arc::new(job.clone())),
        pods: pods.into_iter().map(Arc::new).collect(),
        orphans: Vec::new(),
    };
    JobController::reconcile(&observed, at(1000))
}

fn pod_lines(plan: &Plan) -> Vec<String> {
    let lines = plan.lines().into_iter();
    lines.filter(|line| line.contains(" pods ")).collect()
}

/// The status as it is after the plan.
fn status(job: &Job, plan: &Plan) -> Value {
    let mut whole = crate::json::to_value(job);
    for step in &plan.actions {
        if let Action::Write { target, change, .. } = &step.action
            && target.resource.resource == "jobs"
        {
            crate::json::merge(&mut whole, change);
        }
    }
    whole["status"].clone()
}

fn with_status(job: &Job, status: &Value) -> Job {
    let mut job = job.clone();
    job.status = object(status.clone());
    job
}

#[test]
fn pods_are_created_up_to_the_parallelism() {
    let job = job(json!({"completions": 5, "parallelism": 2}));
    let plan = plan(&job, Vec::new());
    assert_eq!(
        pod_lines(&plan),
        ["create pods ns/work-", "create pods ns/work-"]
    );
    let Action::Create { object, .. } = &plan.actions[0].action else {
        panic!("{plan}");
    };
    assert_eq!(object["metadata"]["finalizers"][0], FINALIZER);
}

#[test]
fn a_success_is_recorded_then_released_then_counted() {
    let job = job(json!({"completions": 1, "parallelism": 1}));
    let done = worker(&job, "a", "Succeeded");
    let first = plan(&job, vec![done.clone()]);
    let after = status(&job, &first);
    assert_eq!(after["uncountedTerminatedPods"]["succeeded"][0], "uid-a");
    assert_eq!(after["conditions"][0]["type"], "SuccessCriteriaMet");
    assert!(
        after["succeeded"].is_null(),
        "not before the finalizer is gone"
    );
    let lines = first.lines();
    assert!(lines[0].starts_with("write jobs/status"), "{lines:?}");
    assert!(lines[1].starts_with("write pods ns/a"), "{lines:?}");

    let job = with_status(&job, &after);
    let mut free = done;
    free.metadata.finalizers = None;
    let second = plan(&job, vec![free]);
    let after = status(&job, &second);
    assert_eq!(after["succeeded"], 1);
    assert!(after["uncountedTerminatedPods"]["succeeded"].is_null());
    assert_eq!(after["conditions"][1]["type"], "Complete");
    assert!(!after["completionTime"].is_null());
    assert_eq!(second.events[0].reason, "Completed");
}

#[test]
fn failures_delay_the_next_pod_and_end_the_job_at_the_limit() {
    let job = job(json!({"completions": 1, "parallelism": 1, "backoffLimit": 1}));
    let failed = |name: &str, when: &str| {
        let mut pod = worker(&job, name, "Failed");
        pod.status.as_mut().unwrap().container_statuses = object(json!([{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "finishedAt": when}},
        }]));
        pod
    };
    let once = plan(&job, vec![failed("a", "1970-01-01T00:16:35Z")]);
    assert!(
        !pod_lines(&once)
            .iter()
            .any(|line| line.starts_with("create")),
        "{once}"
    );
    assert_eq!(once.requeue_after.map(|after| after.as_secs()), Some(5));
    let running = worker(&job, "c", "Running");
    let pods = vec![
        failed("a", "1970-01-01T00:00:10Z"),
        failed("b", "1970-01-01T00:00:20Z"),
        running,
    ];
    let twice = plan(&job, pods);
    assert!(
        pod_lines(&twice).contains(&"delete pods ns/c".to_owned()),
        "{twice}"
    );
    let after = status(&job, &twice);
    assert_eq!(after["conditions"][0]["type"], "FailureTarget");
    assert_eq!(after["conditions"][0]["reason"], "BackoffLimitExceeded");
    assert!(
        after["conditions"][1].is_null(),
        "not failed before its pods are gone"
    );
}

#[test]
fn indexes_are_worked_on_once() {
    let job = job(json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"}));
    let pods = vec![
        indexed(worker(&job, "a", "Running"), 0),
        indexed(worker(&job, "b", "Succeeded"), 2),
    ];
    let two = plan(&job, pods.clone());
    assert_eq!(
        pod_lines(&two)[..2],
        ["create pods ns/work-1-", "create pods ns/work-3-"]
    );
    assert_eq!(status(&job, &two)["completedIndexes"], "2");
    let mut double = indexed(worker(&job, "double", "Pending"), 0);
    double.metadata.uid = Some("uid-double".to_owned());
    let mut doubled = pods;
    doubled.push(double);
    let prune = plan(&job, doubled);
    assert_eq!(pod_lines(&prune)[0], "delete pods ns/double");
}

#[test]
fn an_index_fails_alone() {
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed",
        "backoffLimitPerIndex": 0, "backoffLimit": 100});
    let job = job(spec);
    let pods = vec![
        indexed(worker(&job, "a", "Failed"), 0),
        indexed(worker(&job, "b", "Running"), 1),
    ];
    let plan = plan(&job, pods);
    assert!(
        !pod_lines(&plan)
            .iter()
            .any(|line| line.starts_with("create")),
        "{plan}"
    );
    let after = status(&job, &plan);
    assert_eq!(after["failedIndexes"], "0");
    assert!(after["conditions"].is_null());
}

#[test]
fn a_suspended_job_has_no_pods() {
    let suspended = job(json!({"completions": 1, "suspend": true}));
    let stop = plan(&suspended, vec![worker(&suspended, "a", "Running")]);
    assert_eq!(pod_lines(&stop), ["delete pods ns/a"]);
    let after = status(&suspended, &stop);
    assert_eq!(after["conditions"][0]["type"], "Suspended");
    assert_eq!(stop.events[0].reason, "Suspended");
    let resumed = with_status(&job(json!({"completions": 1})), &after);
    let start = plan(&resumed, Vec::new());
    assert_eq!(pod_lines(&start), ["create pods ns/work-"]);
    let after = status(&resumed, &start);
    assert_eq!(after["conditions"][0]["status"], "False");
    assert_eq!(after["startTime"], "1970-01-01T00:16:40Z");
}

#[test]
fn the_deadline_ends_a_job() {
    let slow = job(json!({"completions": 1, "activeDeadlineSeconds": 2000}));
    let early = plan(&slow, vec![worker(&slow, "a", "Running")]);
    assert_eq!(early.requeue_after.map(|after| after.as_secs()), Some(1000));
    let late = job(json!({"completions": 1, "activeDeadlineSeconds": 500}));
    let end = plan(&late, vec![worker(&late, "a", "Running")]);
    assert_eq!(pod_lines(&end)[0], "delete pods ns/a");
    assert_eq!(
        status(&late, &end)["conditions"][0]["reason"],
        "DeadlineExceeded"
    );
}

#[test]
fn pods_of_a_job_that_is_gone_are_released() {
    let job = job(json!({}));
    let orphan = worker(&job, "a", "Running");
    let observed = Observed {
        job: None,
        selector: Selector::nothing(),
        pods: Vec::new(),
        orphans: vec![Arc::new(orphan)],
    };
    let plan = JobController::reconcile(&observed, at(0));
    assert!(plan.lines()[0].contains("\"finalizers\":null"), "{plan}");
}

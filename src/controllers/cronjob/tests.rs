#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::fixtures::object;

fn cron(spec: Value, status: Value) -> CronJob {
    let mut whole = json!({
        "schedule": "0 * * * *",
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"spec": {"template": {}}},
    });
    crate::json::merge(&mut whole, &spec);
    object(json!({
        "metadata": {"namespace": "ns", "name": "tick", "uid": "uid-tick",
            "creationTimestamp": "2026-01-01T00:30:00Z"},
        "spec": whole,
        "status": status,
    }))
}

fn job(name: &str, end: Option<&str>) -> Arc<Job> {
    let conditions = end.map(|end| json!([{"type": end, "status": "True"}]));
    Arc::new(object(json!({
        "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
        "status": {"conditions": conditions, "startTime": "2026-01-01T00:00:00Z"},
    })))
}

fn plan(cron: CronJob, jobs: Vec<Arc<Job>>, now: &str) -> Plan {
    let observed = Observed {
        cron: Arc::new(cron),
        jobs,
    };
    CronJobController::reconcile(&observed, now.parse().unwrap())
}

#[test]
fn a_due_job_is_started_under_the_name_of_its_time() {
    let before = plan(
        cron(json!({}), json!({})),
        Vec::new(),
        "2026-01-01T00:59:00Z",
    );
    assert!(before.actions.is_empty());
    assert_eq!(before.requeue_after.map(|after| after.as_secs()), Some(60));
    let due = plan(
        cron(json!({}), json!({})),
        Vec::new(),
        "2026-01-01T01:00:01Z",
    );
    let Action::Create { object, .. } = &due.actions[0].action else {
        panic!("{due}");
    };
    assert_eq!(object["metadata"]["name"], "tick-29453820");
    let at = &object["metadata"]["annotations"][SCHEDULED_AT];
    assert_eq!(at, "2026-01-01T01:00:00Z");
    assert!(due.lines()[1].contains("\"lastScheduleTime\":\"2026-01-01T01:00:00Z\""));
    let again = cron(
        json!({}),
        json!({"lastScheduleTime": "2026-01-01T01:00:00Z"}),
    );
    assert!(
        plan(again, Vec::new(), "2026-01-01T01:00:02Z")
            .actions
            .is_empty()
    );
}

#[test]
fn what_still_runs_forbids_or_is_replaced() {
    let running = || vec![job("old", None)];
    let status = json!({"active": [{"name": "old", "uid": "uid-old"}]});
    let forbid = cron(json!({"concurrencyPolicy": "Forbid"}), status.clone());
    let kept = plan(forbid, running(), "2026-01-01T01:00:01Z");
    assert!(kept.actions.is_empty());
    assert_eq!(kept.events[0].reason, "JobAlreadyActive");
    let replace = cron(json!({"concurrencyPolicy": "Replace"}), status);
    let lines = plan(replace, running(), "2026-01-01T01:00:01Z").lines();
    assert_eq!(
        lines[..2],
        ["delete jobs ns/old", "create jobs ns/tick-29453820"]
    );
}

#[test]
fn ended_jobs_leave_the_list_and_then_the_cluster() {
    let status = json!({"active": [{"name": "a", "uid": "uid-a"}]});
    let jobs = vec![job("a", Some("Complete")), job("b", Some("Complete"))];
    let suspended = cron(json!({"suspend": true}), status);
    let plan = plan(suspended, jobs, "2026-01-01T01:00:01Z");
    assert_eq!(
        plan.events[0].message,
        "Saw completed job: a, condition: Complete"
    );
    assert_eq!(plan.lines()[0], "delete jobs ns/a");
    assert!(plan.lines()[1].contains("\"active\":null"));
}

#[test]
fn a_start_that_comes_too_late_is_missed() {
    let late = cron(json!({"startingDeadlineSeconds": 30}), json!({}));
    let plan = plan(late, Vec::new(), "2026-01-01T01:10:00Z");
    assert!(plan.actions.is_empty());
}

//! Finished Jobs with a time to live are deleted when it is over.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sampan_client::{DeleteOptions, Lister, ObjectKey, Propagation};

use crate::runtime::{Action, Controller, Plan, Watches};
use crate::{Settings, owner, pods};

pub struct TtlController {
    jobs: Lister<Job>,
}

impl Controller for TtlController {
    const NAME: &'static str = "ttl-after-finished-controller";
    const WORKERS: usize = 1;

    type Observed = Arc<Job>;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        Self {
            jobs: watches.primary::<Job>(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Arc<Job>> {
        let job = self.jobs.get_key(key)?;
        (!owner::is_deleting(&job.metadata)).then_some(job)
    }

    fn reconcile(job: &Arc<Job>, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(end) = expiry(job) else { return plan };
        if end > now {
            plan.requeue_within(pods::until(now, end));
        } else {
            let options = DeleteOptions::default().propagation(Propagation::Foreground);
            plan.push(Action::delete_with(&**job, options));
        }
        plan
    }
}

fn expiry(job: &Job) -> Option<Timestamp> {
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions.iter().find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })?;
    let Time(at) = end.last_transition_time.clone()?;
    at.checked_add(SignedDuration::from_secs(i64::from(seconds)))
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{at, object};

    #[test]
    fn only_finished_jobs_with_a_ttl_go_and_only_in_time() {
        let job = |status: &str| -> Arc<Job> {
            Arc::new(object(json!({
                "metadata": {"namespace": "ns", "name": "work", "uid": "u"},
                "spec": {"ttlSecondsAfterFinished": 60, "template": {}},
                "status": {"conditions": [{"type": "Complete", "status": status,
                    "lastTransitionTime": "1970-01-01T00:00:40Z"}]},
            })))
        };
        let plan = |job: &Arc<Job>, now| TtlController::reconcile(job, at(now));
        assert_eq!(plan(&job("True"), 100).lines(), ["delete jobs ns/work"]);
        let early = plan(&job("True"), 70);
        assert!(early.is_nothing());
        assert_eq!(early.requeue_after.map(|after| after.as_secs()), Some(30));
        assert_eq!(plan(&job("False"), 100), Plan::default());
    }
}

//! Jobs: pods that run until enough of them have succeeded, or too many have failed.
//!
//! A finished pod is counted exactly once although its count and the pod are two objects: pods
//! carry a finalizer; their uids are first written into the status as uncounted, then the finalizer
//! goes, and only the next reconcile, which sees that it is gone, turns uids into counts.
//!
//! [`tally`] counts, [`verdict`] decides whether the Job has ended and why, [`workers`] which pods
//! come and go, [`progress`] what the status says; [`indexes`] and [`policy`] are their tools.

mod indexes;
mod policy;
mod progress;
mod tally;
mod verdict;
mod workers;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use sampan_api::Selector;
use sampan_client::{Change, Lister, ObjectKey};
use serde_json::{Value, json};

use crate::labels::selector_of;
use crate::runtime::{Action, Controller, Form, Plan, Step, Watches};
use crate::{Settings, owner};

pub(crate) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
const MANAGER: &str = "kubernetes.io/job-controller";

pub struct JobController {
    jobs: Lister<Job>,
    pods: Lister<Pod>,
}

pub struct Observed {
    pub(crate) job: Option<Arc<Job>>,
    selector: Selector,
    /// The Job's pods and those it may adopt.
    pods: Vec<Arc<Pod>>,
    /// Pods of a Job that is gone, still held by the finalizer.
    orphans: Vec<Arc<Pod>>,
}

impl Controller for JobController {
    const NAME: &'static str = "job-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let jobs = watches.primary::<Job>();
        let known = jobs.clone();
        Self {
            pods: watches.mapped::<Pod>(move |change| keys_of_pod(change, &known)),
            jobs,
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let job = self.jobs.get_key(key);
        let uid = job.as_ref().map_or("", |job| owner::uid(&job.metadata));
        let mut orphans = self.pods.select(key.namespace(), |labels| {
            labels.get(JOB_NAME) == Some(&key.name)
        });
        orphans.retain(|pod| is_orphan(pod, &key.name, uid));
        let spec = job.as_ref().and_then(|job| job.spec.as_ref());
        let selector = spec.and_then(|spec| spec.selector.as_ref());
        let selector = selector.map_or_else(Selector::nothing, selector_of);
        let mut pods = Vec::new();
        if !uid.is_empty() {
            pods = self.pods.by_owner(uid);
            let mine = |labels: &_| selector.matches(labels);
            pods.extend(self.pods.select_unowned(key.namespace(), mine));
        }
        Some(Observed {
            job,
            selector,
            pods,
            orphans,
        })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        for pod in &observed.orphans {
            plan.push(release(pod));
        }
        let Some(job) = &observed.job else {
            return plan;
        };
        let Some(spec) = &job.spec else { return plan };
        if spec.managed_by.as_ref().is_some_and(|name| name != MANAGER) {
            return plan;
        }
        let claims = owner::claim::<Job, Pod, _>(&**job, &observed.selector, observed.pods.clone());
        plan.actions.extend(claims.steps);
        let case = Case {
            job,
            spec,
            status: job.status.clone().unwrap_or_default(),
            pods: claims.owned,
            now,
        };
        if verdict::has_ended(&case.status) {
            let held = case.pods.iter().filter(|pod| has_finalizer(pod));
            plan.actions
                .extend(held.map(|pod| Step::from(release(pod))));
        } else {
            progress::advance(&case, &mut plan);
        }
        plan
    }
}

/// A Job with what belongs to it.
pub(crate) struct Case<'a> {
    pub(crate) job: &'a Job,
    pub(crate) spec: &'a JobSpec,
    pub(crate) status: JobStatus,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) now: Timestamp,
}

impl Case<'_> {
    pub(crate) fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.spec.suspend.unwrap_or(false)
    }

    pub(crate) fn parallelism(&self) -> i32 {
        self.spec.parallelism.unwrap_or(1)
    }

    pub(crate) fn is_deleting(&self) -> bool {
        owner::is_deleting(&self.job.metadata)
    }

    /// Pods on their way out are replaced only when they have ended.
    pub(crate) fn replaces_only_failed(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed")
            || self.spec.pod_failure_policy.is_some()
    }
}

pub(crate) fn has_finalizer(pod: &Pod) -> bool {
    let finalizers = pod.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|name| name == FINALIZER)
}

/// Lets a counted pod go.
pub(crate) fn release(pod: &Pod) -> Action {
    let kept: Vec<&String> = pod
        .metadata
        .finalizers
        .iter()
        .flatten()
        .filter(|name| *name != FINALIZER)
        .collect();
    let kept = if kept.is_empty() {
        Value::Null
    } else {
        json!(kept)
    };
    let change = json!({"metadata": {
        "uid": pod.metadata.uid,
        "resourceVersion": pod.metadata.resource_version,
        "finalizers": kept,
    }});
    Action::write::<Pod>(&ObjectKey::of(&pod.metadata), Form::Merge, change)
}

fn is_orphan(pod: &Pod, name: &str, uid: &str) -> bool {
    has_finalizer(pod)
        && match owner::controller_of(&pod.metadata) {
            Some(reference) => {
                owner::refers_to::<Job>(reference) && reference.name == name && reference.uid != uid
            }
            // Released by its Job's orphaning deletion.
            None => uid.is_empty(),
        }
}

/// The Job that controls the pod or is named by its label; for a pod of nobody all takers.
fn keys_of_pod(change: &Change<Pod>, jobs: &Lister<Job>) -> Vec<ObjectKey> {
    let mut keys = owner::controllers_of::<Pod, Job>(change);
    let Change::Applied { new, .. } = change else {
        return keys;
    };
    let namespace = new.metadata.namespace.clone().unwrap_or_default();
    let labels = new.metadata.labels.as_ref();
    if has_finalizer(new)
        && let Some(name) = labels.and_then(|labels| labels.get(JOB_NAME))
    {
        let key = ObjectKey::new(namespace.clone(), name.clone());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    if keys.is_empty() && owner::controller_of(&new.metadata).is_none() {
        let takes = |job: &&Arc<Job>| {
            let spec = job.spec.as_ref();
            let selector = spec.and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| selector_of(selector).matches(&new.metadata.labels))
        };
        let jobs = jobs.list(Some(&namespace));
        keys.extend(
            jobs.iter()
                .filter(takes)
                .map(|job| ObjectKey::of(&job.metadata)),
        );
    }
    keys
}

#[cfg(test)]
mod tests;

//! Deployments: ReplicaSets replaced step by step.
//!
//! Watches Deployments, ReplicaSets and (for Recreate) pods; creates, scales and deletes
//! ReplicaSets; writes the revision annotation and the Deployments' status. Pods it never touches.
//!
//! [`sets`] holds the ReplicaSets as planned so far, [`rollout`] decides replacing, [`scaling`]
//! decides scaling, [`revision`] numbers and hashes, [`status`] reports.

pub(crate) mod revision;
mod rollout;
mod scaling;
mod sets;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use sampan_api::Selector;
use sampan_client::{Change, Lister, ObjectKey};
use serde_json::json;

use crate::labels::selector_of;
use crate::runtime::{Action, Controller, EventNote, Failure, Form, Plan, Step, Watches};
use crate::{Settings, owner, pods};
use sets::Sets;
pub(crate) use sets::scaled;

pub struct DeploymentController {
    deployments: Lister<Deployment>,
    sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
}

pub struct Observed {
    deployment: Arc<Deployment>,
    selector: Selector,
    /// Its ReplicaSets and those it may adopt.
    candidates: Vec<Arc<ReplicaSet>>,
    /// The ReplicaSet that stands where the next one would have to.
    namesake: Option<Arc<ReplicaSet>>,
    /// Unfinished pods with the uid of their ReplicaSet; only for Recreate.
    running: Vec<String>,
}

impl Controller for DeploymentController {
    const NAME: &'static str = "deployment-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let deployments = watches.primary::<Deployment>();
        let known = deployments.clone();
        let sets = watches.mapped::<ReplicaSet>(move |change| keys_of_set(change, &known));
        let (known, owners) = (deployments.clone(), sets.clone());
        let pods = watches.mapped::<Pod>(move |change| keys_of_pod(change, &known, &owners));
        Self {
            deployments,
            sets,
            pods,
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let deployment = self.deployments.get_key(key)?;
        let selector = selector_of(&deployment.spec.as_ref()?.selector);
        let mut candidates = self.sets.by_owner(owner::uid(&deployment.metadata));
        let unowned = |labels: &_| !selector.is_everything() && selector.matches(labels);
        candidates.extend(self.sets.select_unowned(key.namespace(), unowned));
        let name = revision::set_name(&deployment);
        let namesake = self.sets.get(key.namespace(), &name);
        let running = if sets::is_recreate(&deployment) {
            self.running(&candidates)
        } else {
            Vec::new()
        };
        Some(Observed {
            deployment,
            selector,
            candidates,
            namesake,
            running,
        })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let deployment = &*observed.deployment;
        if observed.selector.is_everything() {
            return selecting_all(deployment);
        }
        let claims = observed.claim();
        let mut rollout = rollout::Rollout::new(observed, Sets::of(deployment, claims.owned), now);
        rollout.decide();
        let mut plan = rollout.into_plan();
        plan.actions.splice(0..0, claims.steps);
        plan
    }

    fn on_failure(observed: &Observed, failures: &[Failure], now: Timestamp) -> Option<Step> {
        let deployment = &*observed.deployment;
        let failed = failures
            .iter()
            .find(|failure| matches!(failure.step.action, Action::Create { .. }))?;
        // Somebody took the name meanwhile: the next reconcile sees who.
        if failed.error.is_already_exists() {
            return None;
        }
        let name = revision::set_name(deployment);
        let message = format!(
            "Failed to create new replica set \"{name}\": {}",
            failed.error
        );
        let status = status::with_creation_failure(deployment, message, now)?;
        replace_status(deployment, &status).map(Step::from)
    }
}

impl DeploymentController {
    fn running(&self, sets: &[Arc<ReplicaSet>]) -> Vec<String> {
        let mut running = Vec::new();
        for set in sets {
            let uid = owner::uid(&set.metadata);
            let pods = self.pods.by_owner(uid);
            let unfinished = pods.iter().filter(|pod| !pods::is_finished(pod));
            running.extend(unfinished.map(|_| uid.to_owned()));
        }
        running
    }
}

impl Observed {
    fn claim(&self) -> owner::Claims<Arc<ReplicaSet>> {
        let candidates = self.candidates.clone();
        owner::claim::<Deployment, ReplicaSet, _>(&*self.deployment, &self.selector, candidates)
    }
}

/// Writes what differs from the status in the cache.
fn replace_status(
    deployment: &Deployment,
    new: &k8s_openapi::api::apps::v1::DeploymentStatus,
) -> Option<Action> {
    let key = ObjectKey::of(&deployment.metadata);
    Action::replace_status::<Deployment, _>(&key, &deployment.status, new)
}

/// The Deployment that controls the set; for a set of nobody all that would take it.
fn keys_of_set(change: &Change<ReplicaSet>, deployments: &Lister<Deployment>) -> Vec<ObjectKey> {
    let keys = owner::controllers_of::<ReplicaSet, Deployment>(change);
    let Change::Applied { new, .. } = change else {
        return keys;
    };
    if !keys.is_empty() || owner::controller_of(&new.metadata).is_some() {
        return keys;
    }
    let takes = |deployment: &&Arc<Deployment>| {
        let Some(spec) = &deployment.spec else {
            return false;
        };
        let selector = selector_of(&spec.selector);
        !selector.is_everything() && selector.matches(&new.metadata.labels)
    };
    let candidates = deployments.list(new.metadata.namespace.as_deref());
    candidates
        .iter()
        .filter(takes)
        .map(|deployment| ObjectKey::of(&deployment.metadata))
        .collect()
}

/// A pod that ends may let a Recreate Deployment go on.
fn keys_of_pod(
    change: &Change<Pod>,
    deployments: &Lister<Deployment>,
    sets: &Lister<ReplicaSet>,
) -> Vec<ObjectKey> {
    let pod = change.object();
    let ended = matches!(change, Change::Deleted(_)) || pods::is_finished(pod);
    let reference = owner::controller_of(&pod.metadata)
        .filter(|reference| ended && owner::refers_to::<ReplicaSet>(reference));
    let Some(reference) = reference else {
        return Vec::new();
    };
    let namespace = pod.metadata.namespace.as_deref();
    let recreating = || {
        let set = sets.get(namespace, &reference.name)?;
        let owner = owner::controller_of(&set.metadata)?;
        let deployment = deployments.get(namespace, &owner.name)?;
        sets::is_recreate(&deployment).then(|| ObjectKey::of(&deployment.metadata))
    };
    recreating().into_iter().collect()
}

fn selecting_all(deployment: &Deployment) -> Plan {
    let message = "This deployment is selecting all pods. A non-empty selector is required.";
    let generation = deployment.metadata.generation;
    let status = deployment.status.as_ref();
    let observed = status.and_then(|status| status.observed_generation);
    let mut plan = Plan::default();
    if observed < generation {
        plan.events
            .push(EventNote::warning(deployment, "SelectingAll", message));
        let change = json!({"status": {"observedGeneration": generation}});
        let key = ObjectKey::of(&deployment.metadata);
        plan.status = Some(Action::write_status::<Deployment>(&key, Form::Put, change).into());
    }
    plan
}

#[cfg(test)]
mod tests;

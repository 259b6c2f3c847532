//! ReplicaSets and ReplicationControllers: as many pods as wanted, no more, no fewer.
//!
//! Watches the sets and pods; creates, deletes, adopts and releases pods; writes the sets' status.
//! Both kinds are one controller over [`PodSet`].

mod kinds;

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sampan_api::Selector;
use sampan_client::{Change, Lister, ObjectKey, Resource};

use crate::json::nonzero;
use crate::runtime::{Action, Controller, EventNote, Failure, Plan, Step, Watches};
use crate::{Settings, owner, pods};

/// So many pods are created or deleted in one go.
const BURST: usize = 500;

/// What the two kinds have in common.
pub trait PodSet: Resource {
    const CONTROLLER: &'static str;
    const REPORTS_TERMINATING: bool;

    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn selector(&self) -> Selector;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn status(&self) -> ReplicaSetStatus;
    fn replace_status(&self, new: ReplicaSetStatus) -> Option<Action>;
}

pub struct PodSetController<S> {
    sets: Lister<S>,
    pods: Lister<Pod>,
}

pub struct Observed<S> {
    set: Arc<S>,
    selector: Selector,
    /// The set's pods and those it may adopt.
    pods: Vec<Arc<Pod>>,
    /// Active pods by node of all sets with the same owner, when some of ours must go.
    crowd: HashMap<String, usize>,
    kind: PhantomData<S>,
}

impl<S: PodSet> Controller for PodSetController<S> {
    const NAME: &'static str = S::CONTROLLER;

    type Observed = Observed<S>;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let sets = watches.primary::<S>();
        let known = sets.clone();
        let pods = watches.mapped::<Pod>(move |change| keys_of_pod(change, &known));
        Self { sets, pods }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed<S>> {
        let set = self.sets.get_key(key)?;
        let selector = set.selector();
        let mut pods = self.pods.by_owner(owner::uid(set.metadata()));
        let orphans = self
            .pods
            .select_unowned(key.namespace(), |labels| selector.matches(labels));
        pods.extend(orphans);
        let active = pods.iter().filter(|pod| pods::is_active(pod)).count();
        let crowd = if active > usize::try_from(set.replicas()).unwrap_or(0) {
            self.crowd(&set)
        } else {
            HashMap::new()
        };
        Some(Observed {
            set,
            selector,
            pods,
            crowd,
            kind: PhantomData,
        })
    }

    fn reconcile(observed: &Observed<S>, now: Timestamp) -> Plan {
        let set = &*observed.set;
        let mut plan = Plan::default();
        let claims = observed.claim();
        plan.actions = claims.steps;
        let active = claims.owned;
        if !owner::is_deleting(set.metadata()) {
            manage(observed, &active, now, &mut plan);
        }
        let status = calculate_status(observed, &active, None, now);
        let ready = status.ready_replicas;
        if ready != status.available_replicas {
            let active = active.iter().map(|pod| &**pod);
            plan.requeue_after = pods::next_availability(active, set.min_ready_seconds(), now);
        }
        plan.status = set.replace_status(status).map(Step::from);
        plan
    }

    fn on_failure(observed: &Observed<S>, failures: &[Failure], now: Timestamp) -> Option<Step> {
        let active = observed.claim().owned;
        let error = failures.first()?.error.to_string();
        let status = calculate_status(observed, &active, Some(&error), now);
        observed.set.replace_status(status).map(Step::from)
    }
}

impl<S: PodSet> PodSetController<S> {
    /// Counts the active pods by node of all sets that the set's owner owns.
    fn crowd(&self, set: &Arc<S>) -> HashMap<String, usize> {
        let related = match owner::controller_of(set.metadata()) {
            Some(reference) => self.sets.by_owner(&reference.uid),
            None => vec![Arc::clone(set)],
        };
        let owned = |set: &Arc<S>| self.pods.by_owner(owner::uid(set.metadata()));
        let pods: Vec<Arc<Pod>> = related.iter().flat_map(owned).collect();
        pods::crowd_by_node(&pods)
    }
}

/// The set that controls the pod; for a pod of nobody all sets that would take it.
fn keys_of_pod<S: PodSet>(change: &Change<Pod>, sets: &Lister<S>) -> Vec<ObjectKey> {
    let keys = owner::controllers_of::<Pod, S>(change);
    let Change::Applied { new, .. } = change else {
        return keys;
    };
    if !keys.is_empty() || owner::controller_of(&new.metadata).is_some() || !pods::is_active(new) {
        return keys;
    }
    let candidates = sets.list(new.metadata.namespace.as_deref());
    candidates
        .iter()
        .filter(|set| set.selector().matches(&new.metadata.labels))
        .map(|set| ObjectKey::of(set.metadata()))
        .collect()
}

impl<S: PodSet> Observed<S> {
    fn claim(&self) -> owner::Claims<Arc<Pod>> {
        let active = self.pods.iter().filter(|pod| pods::is_active(pod));
        owner::claim::<S, Pod, _>(&*self.set, &self.selector, active.cloned().collect())
    }

    /// Owned pods on their way out.
    fn terminating(&self) -> usize {
        let uid = owner::uid(self.set.metadata());
        let ours = |pod: &&Arc<Pod>| {
            pods::is_terminating(pod) && owner::is_controlled_by(&pod.metadata, uid)
        };
        self.pods.iter().filter(ours).count()
    }
}

/// Plans creations or deletions so that the number of active pods becomes the wanted one.
fn manage<S: PodSet>(observed: &Observed<S>, active: &[Arc<Pod>], now: Timestamp, plan: &mut Plan) {
    let set = &*observed.set;
    let wanted = usize::try_from(set.replicas()).unwrap_or(0);
    if active.len() < wanted {
        let Some(template) = set.template() else {
            return;
        };
        let count = (wanted - active.len()).min(BURST);
        let pod = pods::from_template(template, set);
        let step = Step::from(Action::create(&pod))
            .on_success(EventNote::normal(
                set,
                "SuccessfulCreate",
                "Created pod: {}",
            ))
            .on_failure(EventNote::warning(
                set,
                "FailedCreate",
                "Error creating: {}",
            ));
        plan.actions.extend(std::iter::repeat_n(step, count));
        return;
    }
    let count = (active.len() - wanted).min(BURST);
    if count == 0 {
        return;
    }
    let mut order: Vec<&Arc<Pod>> = active.iter().collect();
    if count < order.len() {
        order.sort_by(|a, b| pods::deletion_order(a, b, &observed.crowd, now));
    }
    for pod in &order[..count] {
        let step = Step::from(Action::delete(&***pod))
            .on_success(EventNote::normal(
                set,
                "SuccessfulDelete",
                "Deleted pod: {}",
            ))
            .on_failure(EventNote::warning(
                set,
                "FailedDelete",
                "Error deleting: {}",
            ));
        plan.push(step);
    }
}

/// The status that fits these active pods; `error` is why managing them failed.
fn calculate_status<S: PodSet>(
    observed: &Observed<S>,
    active: &[Arc<Pod>],
    error: Option<&str>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let set = &*observed.set;
    let count = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
    };
    let template_labels = set
        .template()
        .and_then(|template| template.metadata.as_ref()?.labels.clone())
        .unwrap_or_default();
    let labelled = Selector::from_map(&template_labels);
    let replicas = count(&|_| true);
    let terminating = i32::try_from(observed.terminating()).unwrap_or(i32::MAX);
    let mut conditions = set.status().conditions.unwrap_or_default();
    let known = conditions
        .iter()
        .any(|condition| condition.type_ == FAILURE);
    match error {
        Some(error) if !known => {
            let reason = if replicas < set.replicas() {
                "FailedCreate"
            } else {
                "FailedDelete"
            };
            conditions.push(failure_condition(reason, error, now));
        }
        Some(_) => {}
        None => conditions.retain(|condition| condition.type_ != FAILURE),
    }
    ReplicaSetStatus {
        replicas,
        fully_labeled_replicas: nonzero(count(&|pod| labelled.matches(&pod.metadata.labels))),
        ready_replicas: nonzero(count(&pods::is_ready)),
        available_replicas: nonzero(count(&|pod| {
            pods::is_available(pod, set.min_ready_seconds(), now)
        })),
        terminating_replicas: S::REPORTS_TERMINATING.then_some(terminating),
        observed_generation: set.metadata().generation,
        conditions: (!conditions.is_empty()).then_some(conditions),
    }
}

const FAILURE: &str = "ReplicaFailure";

fn failure_condition(reason: &str, message: &str, now: Timestamp) -> ReplicaSetCondition {
    ReplicaSetCondition {
        type_: FAILURE.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
    }
}

#[cfg(test)]
mod tests;

//! PodDisruptionBudgets: how many of the selected pods may be evicted now.

mod expected;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sampan_client::{Change, Lister, ObjectKey};

use crate::labels::selector_of;
use crate::runtime::{Action, Controller, EventNote, Plan, Step, Watches};
use crate::{Settings, owner, pods};

/// An eviction that was granted but does not happen is forgotten after this.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct DisruptionController {
    budgets: Lister<PodDisruptionBudget>,
    pods: Lister<Pod>,
    scales: expected::Scales,
}

pub struct Observed {
    budget: Arc<PodDisruptionBudget>,
    pods: Vec<Arc<Pod>>,
    /// How many pods the owners of these pods want in all; what cannot be told is an error.
    expected: Result<i32, String>,
}

impl Controller for DisruptionController {
    const NAME: &'static str = "disruption-controller";
    const COMPONENT: &'static str = "controllermanager";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let budgets = watches.primary::<PodDisruptionBudget>();
        let known = budgets.clone();
        Self {
            pods: watches.mapped::<Pod>(move |change| keys_of_pod(change, &known)),
            scales: expected::Scales {
                deployments: watches.reads::<Deployment>(),
                replica_sets: watches.reads::<ReplicaSet>(),
                controllers: watches.reads::<ReplicationController>(),
                stateful_sets: watches.reads::<StatefulSet>(),
            },
            budgets,
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let budget = self.budgets.get_key(key)?;
        let selector = selector_of(budget.spec.as_ref()?.selector.as_ref()?);
        let pods = self
            .pods
            .select(key.namespace(), |labels| selector.matches(labels));
        let expected = self.scales.of(&pods);
        Some(Observed {
            budget,
            pods,
            expected,
        })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let budget = &*observed.budget;
        let mut plan = Plan::default();
        if observed.pods.is_empty() {
            let old = budget
                .status
                .as_ref()
                .and_then(|status| status.expected_pods);
            if old != Some(0) {
                plan.events.push(EventNote::normal(
                    budget,
                    "NoPods",
                    "No matching pods found",
                ));
            }
        }
        let status = match calculate(observed, now, &mut plan) {
            Ok(status) => status,
            Err(error) => failed(budget, &error, now),
        };
        let key = ObjectKey::of(&budget.metadata);
        let action =
            Action::replace_status::<PodDisruptionBudget, _>(&key, &budget.status, &status);
        plan.status = action.map(Step::from);
        plan
    }
}

/// Budgets that select the pod, or did before.
fn keys_of_pod(change: &Change<Pod>, budgets: &Lister<PodDisruptionBudget>) -> Vec<ObjectKey> {
    let namespace = change.object().metadata.namespace.as_deref();
    let selects = |budget: &&Arc<PodDisruptionBudget>| {
        let spec = budget.spec.as_ref();
        let Some(selector) = spec.and_then(|spec| spec.selector.as_ref()) else {
            return false;
        };
        let selector = selector_of(selector);
        change
            .states()
            .any(|pod| selector.matches(&pod.metadata.labels))
    };
    let budgets = budgets.list(namespace);
    let selecting = budgets.iter().filter(selects);
    selecting
        .map(|budget| ObjectKey::of(&budget.metadata))
        .collect()
}

fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

fn calculate(
    observed: &Observed,
    now: Timestamp,
    plan: &mut Plan,
) -> Result<PodDisruptionBudgetStatus, String> {
    let budget = &*observed.budget;
    let spec = budget.spec.clone().unwrap_or_default();
    let all = count(observed.pods.len());
    let expected = expected::counts(&spec, all, &observed.expected)?;
    let old = budget.status.clone().unwrap_or_default();
    let disrupted = still_disrupted(observed, &old, now, plan);
    let healthy = observed.pods.iter().filter(|pod| {
        let name = owner::name(&pod.metadata);
        pods::is_active(pod) && pods::is_ready(pod) && !disrupted.contains_key(name)
    });
    let healthy = count(healthy.count());
    let allowed = if all > 0 {
        (healthy - expected.desired).max(0)
    } else {
        0
    };
    let (value, reason) = if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    Ok(PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(expected.desired),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected.pods),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: Some(conditions(budget, value, reason, "", now)),
    })
}

/// Evictions that were granted and are still to happen.
fn still_disrupted(
    observed: &Observed,
    old: &PodDisruptionBudgetStatus,
    now: Timestamp,
    plan: &mut Plan,
) -> BTreeMap<String, Time> {
    let mut disrupted = BTreeMap::new();
    for (name, time) in old.disrupted_pods.iter().flatten() {
        let mut pods = observed.pods.iter();
        let pod = pods.find(|pod| owner::name(&pod.metadata) == name);
        let waited = pods::until(time.0, now);
        if pod.is_some_and(|pod| !owner::is_deleting(&pod.metadata)) && waited < PATIENCE {
            plan.requeue_within(PATIENCE - waited);
            disrupted.insert(name.clone(), time.clone());
        }
    }
    disrupted
}

fn conditions(
    budget: &PodDisruptionBudget,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Vec<Condition> {
    const KIND: &str = "DisruptionAllowed";
    let status = budget.status.as_ref();
    let mut conditions = status
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let known = conditions
        .iter()
        .position(|condition| condition.type_ == KIND);
    let since = known
        .map(|at| &conditions[at])
        .filter(|known| known.status == value)
        .map_or(Time(now), |known| known.last_transition_time.clone());
    let condition = Condition {
        type_: KIND.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: budget.metadata.generation,
        last_transition_time: since,
    };
    match known {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    conditions
}

/// Nothing may be evicted while nobody knows how many pods there should be.
fn failed(budget: &PodDisruptionBudget, error: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    PodDisruptionBudgetStatus {
        disruptions_allowed: Some(0),
        observed_generation: budget.metadata.generation,
        conditions: Some(conditions(budget, "False", "SyncFailed", error, now)),
        ..budget.status.clone().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;

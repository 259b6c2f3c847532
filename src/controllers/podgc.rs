//! Removes pods that nobody else will: those on nodes that are gone, and those that were deleted
//! before they had a node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sampan_client::{Change, DeleteOptions, Lister, ObjectKey};
use sampan_util::Clock;
use serde_json::json;

use crate::runtime::{Action, Controller, Form, Plan, Watches};
use crate::{Settings, owner, pods};

/// A node must be missing for so long before its pods are given up.
const QUARANTINE: Duration = Duration::from_secs(40);

pub struct PodGarbageCollector {
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    /// Since when each node is missed.
    missing: Mutex<HashMap<String, Timestamp>>,
    clock: Clock,
}

pub enum Observed {
    /// On its way out without ever having had a node.
    NeverScheduled(Arc<Pod>),
    /// Its node is missing since then.
    Stranded(Arc<Pod>, Timestamp),
}

impl Controller for PodGarbageCollector {
    const NAME: &'static str = "pod-garbage-collector-controller";
    const IDENTITY: &'static str = "pod-garbage-collector";
    const WORKERS: usize = 1;

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self {
        let pods = watches.reads::<Pod>();
        let all = pods.clone();
        let nodes = watches.mapped::<Node>(move |change| keys_of_node(change, &all));
        let known = nodes.clone();
        watches.mapped::<Pod>(move |change| keys_of_pod(change, &known));
        Self {
            pods,
            nodes,
            missing: Mutex::default(),
            clock: settings.clock.clone(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let pod = self.pods.get_key(key)?;
        let node = pods::node_name(&pod);
        if node.is_empty() {
            let deleting = owner::is_deleting(&pod.metadata);
            return deleting.then_some(Observed::NeverScheduled(pod));
        }
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.nodes.get(None, node).is_some() {
            missing.remove(node);
            return None;
        }
        let now = Timestamp::try_from(self.clock.now()).unwrap_or(Timestamp::UNIX_EPOCH);
        let since = *missing.entry(node.to_owned()).or_insert(now);
        Some(Observed::Stranded(pod, since))
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match observed {
            Observed::NeverScheduled(pod) => plan.push(removal(pod)),
            Observed::Stranded(pod, since) => {
                let waited = pods::until(*since, now);
                if waited < QUARANTINE {
                    plan.requeue_within(QUARANTINE - waited);
                } else {
                    plan.actions.extend(failing(pod, now).map(Into::into));
                    plan.push(removal(pod));
                }
            }
        }
        plan
    }
}

fn keys_of_node(change: &Change<Node>, pods: &Lister<Pod>) -> Vec<ObjectKey> {
    let Change::Deleted(node) = change else {
        return Vec::new();
    };
    let name = owner::name(&node.metadata);
    let pods = pods.list(None);
    let here = pods.iter().filter(|pod| pods::node_name(pod) == name);
    here.map(|pod| ObjectKey::of(&pod.metadata)).collect()
}

fn keys_of_pod(change: &Change<Pod>, nodes: &Lister<Node>) -> Vec<ObjectKey> {
    let Change::Applied { new, .. } = change else {
        return Vec::new();
    };
    let node = pods::node_name(new);
    let concerned = if node.is_empty() {
        owner::is_deleting(&new.metadata)
    } else {
        nodes.get(None, node).is_none()
    };
    if concerned {
        vec![ObjectKey::of(&new.metadata)]
    } else {
        Vec::new()
    }
}

/// Nobody is left to end it gracefully.
fn removal(pod: &Pod) -> Action {
    Action::delete_with(pod, DeleteOptions::default().grace_period(0))
}

fn failing(pod: &Pod, now: Timestamp) -> Option<Action> {
    if pods::is_finished(pod) {
        return None;
    }
    let change = json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {
            "phase": "Failed",
            "conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
                "lastTransitionTime": Time(now),
            }],
        },
    });
    let key = ObjectKey::of(&pod.metadata);
    Some(Action::write_status::<Pod>(&key, Form::Strategic, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, pod};

    #[test]
    fn stranded_pods_are_given_up_after_a_while() {
        let stranded = Observed::Stranded(Arc::new(pod("ns", "web")), at(100));
        let early = PodGarbageCollector::reconcile(&stranded, at(110));
        assert!(early.is_nothing());
        assert_eq!(early.requeue_after, Some(Duration::from_secs(30)));
        let late = PodGarbageCollector::reconcile(&stranded, at(140));
        assert!(late.lines()[0].contains("\"phase\":\"Failed\""));
        assert_eq!(late.lines()[1], "delete pods ns/web");
    }
}

//! Evicts pods from nodes with `NoExecute` taints that they do not tolerate, or not for longer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sampan_client::{Change, Lister, ObjectKey};
use sampan_util::Clock;
use serde_json::json;

use crate::runtime::{Action, Controller, EventNote, Form, Plan, Watches};
use crate::{Settings, owner, pods};

pub struct TaintEvictionController {
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    clock: Clock,
    /// Taints carry no time when a person adds them, so it is remembered since when a pod has to bear which.
    borne: Mutex<BTreeMap<ObjectKey, Borne>>,
}

/// What one pod (by uid) has to bear since when.
struct Borne {
    uid: Option<String>,
    taints: Vec<(Taint, Timestamp)>,
}

pub struct Observed {
    pod: Arc<Pod>,
    /// With the time since which the pod has to bear each.
    taints: Vec<(Taint, Timestamp)>,
}

impl Controller for TaintEvictionController {
    const NAME: &'static str = "taint-eviction-controller";
    const IDENTITY: &'static str = "node-controller";

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
            clock: settings.clock.clone(),
            borne: Mutex::default(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let pod = self.pods.get_key(key).filter(|pod| pods::is_active(pod));
        let node = pod
            .as_ref()
            .and_then(|pod| self.nodes.get(None, pods::node_name(pod)));
        let taints = node.as_deref().map(evicting_taints).unwrap_or_default();
        let mut borne = self.borne.lock().unwrap_or_else(PoisonError::into_inner);
        let before = borne.remove(key);
        let pod = pod?;
        let now = Timestamp::try_from(self.clock.now()).unwrap_or(Timestamp::UNIX_EPOCH);
        let taints = since_when(&pod, taints, before.as_ref(), now);
        if !taints.is_empty() {
            let uid = pod.metadata.uid.clone();
            let taints = taints.clone();
            borne.insert(key.clone(), Borne { uid, taints });
        }
        Some(Observed { pod, taints })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let pod = &*observed.pod;
        match deadline(pod, &observed.taints) {
            Deadline::Never => {}
            Deadline::At(at) if at > now => plan.requeue_within(pods::until(now, at)),
            Deadline::Now | Deadline::At(_) => plan_eviction(pod, now, &mut plan),
        }
        plan
    }
}

fn evicting_taints(node: &Node) -> Vec<Taint> {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    let evicting = taints.filter(|taint| taint.effect == "NoExecute");
    evicting.cloned().collect()
}

/// What is known from `before` stays. Else the time written in the taint counts, from when the pod came to the node; what
/// has none is borne from `now`.
fn since_when(
    pod: &Pod,
    taints: Vec<Taint>,
    before: Option<&Borne>,
    now: Timestamp,
) -> Vec<(Taint, Timestamp)> {
    let before = before.filter(|before| before.uid == pod.metadata.uid);
    let known = before
        .map(|before| before.taints.as_slice())
        .unwrap_or_default();
    let came = pods::condition(pod, "PodScheduled")
        .and_then(|scheduled| scheduled.last_transition_time.as_ref())
        .map(|Time(at)| *at);
    let since = |taint: &Taint| {
        if let Some((_, since)) = known.iter().find(|(one, _)| one == taint) {
            return *since;
        }
        match (&taint.time_added, came) {
            (Some(Time(added)), Some(came)) => came.max(*added),
            (Some(Time(added)), None) => *added,
            (None, _) => now,
        }
    };
    taints
        .into_iter()
        .map(|taint| {
            let since = since(&taint);
            (taint, since)
        })
        .collect()
}

/// All pods of a node whose evicting taints changed.
fn keys_of_node(change: &Change<Node>, pods: &Lister<Pod>) -> Vec<ObjectKey> {
    let Change::Applied { old, new } = change else {
        return Vec::new();
    };
    let before = old
        .as_ref()
        .map(|node| evicting_taints(node))
        .unwrap_or_default();
    if before == evicting_taints(new) {
        return Vec::new();
    }
    let name = owner::name(&new.metadata);
    let pods = pods.list(None);
    let here = pods.iter().filter(|pod| pods::node_name(pod) == name);
    here.map(|pod| ObjectKey::of(&pod.metadata)).collect()
}

/// A pod that came to a tainted node, or whose tolerations changed there.
fn keys_of_pod(change: &Change<Pod>, nodes: &Lister<Node>) -> Vec<ObjectKey> {
    let Change::Applied { old, new } = change else {
        return Vec::new();
    };
    let facts = |pod: &Pod| {
        let spec = pod.spec.as_ref();
        spec.map(|spec| (spec.node_name.clone(), spec.tolerations.clone()))
    };
    if old.as_ref().is_some_and(|old| facts(old) == facts(new)) {
        return Vec::new();
    }
    let node = nodes.get(None, pods::node_name(new));
    match node {
        Some(node) if !evicting_taints(&node).is_empty() => vec![ObjectKey::of(&new.metadata)],
        _ => Vec::new(),
    }
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Deadline {
    Now,
    At(Timestamp),
    Never,
}

/// When the first of the taints is no longer tolerated.
fn deadline(pod: &Pod, taints: &[(Taint, Timestamp)]) -> Deadline {
    let none = Vec::new();
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_ref());
    let tolerations = tolerations.unwrap_or(&none);
    let mut first = None;
    for (taint, since) in taints {
        let Some(toleration) = tolerations.iter().find(|one| tolerates(one, taint)) else {
            return Deadline::Now;
        };
        let Some(seconds) = toleration.toleration_seconds else {
            continue;
        };
        if seconds <= 0 {
            return Deadline::Now;
        }
        let at = since
            .checked_add(jiff::SignedDuration::from_secs(seconds))
            .unwrap_or(Timestamp::MAX);
        first = Some(first.map_or(at, |known: Timestamp| known.min(at)));
    }
    first.map_or(Deadline::Never, Deadline::At)
}

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "Equal" | "" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

fn plan_eviction(pod: &Pod, now: Timestamp, plan: &mut Plan) {
    let key = ObjectKey::of(&pod.metadata);
    let message = format!("Marking for deletion Pod {key}");
    plan.events
        .push(EventNote::normal(pod, "TaintManagerEviction", message));
    let change = json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {"conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": Time(now),
        }]},
    });
    plan.push(Action::write_status::<Pod>(&key, Form::Strategic, change));
    plan.push(Action::delete(pod));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{at, object, pod};

    fn plan(tolerations: serde_json::Value, now: i64) -> Plan {
        let mut pod = pod("ns", "web");
        pod.spec.as_mut().unwrap().tolerations = object(tolerations);
        let taint: Taint = object(json!({
            "key": "node.kubernetes.io/unreachable", "effect": "NoExecute",
            "timeAdded": "1970-01-01T00:01:40Z",
        }));
        let observed = Observed {
            taints: since_when(&pod, vec![taint], None, at(now)),
            pod: Arc::new(pod),
        };
        TaintEvictionController::reconcile(&observed, at(now))
    }

    #[test]
    fn a_taint_without_a_time_is_borne_from_when_it_was_seen() {
        let pod = pod("ns", "web");
        let taint: Taint = object(json!({"key": "maintenance", "effect": "NoExecute"}));
        let first = since_when(&pod, vec![taint.clone()], None, at(10));
        assert_eq!(first, [(taint.clone(), at(10))]);
        let borne = |uid: Option<String>| Borne {
            uid,
            taints: first.clone(),
        };
        let same = borne(pod.metadata.uid.clone());
        let again = since_when(&pod, vec![taint.clone()], Some(&same), at(20));
        assert_eq!(again, first);
        let other = borne(Some("another pod of this name".to_owned()));
        let anew = since_when(&pod, vec![taint.clone()], Some(&other), at(20));
        assert_eq!(anew, [(taint, at(20))]);
    }

    #[test]
    fn a_pod_that_came_later_bears_it_from_then() {
        let mut pod = pod("ns", "web");
        pod.status.get_or_insert_default().conditions = object(json!([{
            "type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:05:00Z",
        }]));
        let taint: Taint = object(json!({
            "key": "k", "effect": "NoExecute", "timeAdded": "1970-01-01T00:01:40Z",
        }));
        let since = since_when(&pod, vec![taint.clone()], None, at(400));
        assert_eq!(since, [(taint, at(300))]);
    }

    #[test]
    fn pods_go_when_their_toleration_ends() {
        let for_a_while = json!([{
            "key": "node.kubernetes.io/unreachable", "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 300,
        }]);
        let early = plan(for_a_while.clone(), 150);
        assert!(early.is_nothing());
        assert_eq!(early.requeue_after.unwrap().as_secs(), 250);
        let late = plan(for_a_while, 400);
        assert_eq!(late.lines()[1], "delete pods ns/web");
        assert_eq!(plan(json!([]), 101).lines().len(), 2);
        let forever = json!([{"operator": "Exists"}]);
        let never = plan(forever, 10_000);
        assert!(never.is_nothing() && never.requeue_after.is_none());
    }
}

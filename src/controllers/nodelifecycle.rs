//! Nodes that fall silent or unwell: conditions, taints, and their pods' readiness.
//!
//! A node gives a sign of life by renewing its Lease or its Ready condition. When the signs come is
//! measured on this machine's clock, so that clocks of nodes do not matter. A node that was silent
//! for the grace period gets the Unknown conditions; conditions become taints; while most of the
//! cluster is down nobody is evicted, for the fault is then more likely here.

mod health;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use sampan_client::{Change, Lister, ObjectKey};
use sampan_util::Clock;

use crate::runtime::{Controller, Plan, Watches};
use crate::{Settings, pods};

const LEASE_NAMESPACE: &str = "kube-node-lease";
/// A node that has never reported anything may take so long.
const STARTUP_GRACE: Duration = Duration::from_secs(60);

/// When each node gave its last sign of life, by our clock.
#[derive(Clone, Default)]
struct Heartbeats(Arc<Mutex<HashMap<String, Timestamp>>>);

impl Heartbeats {
    fn beat(&self, node: &str, at: Timestamp) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.insert(node.to_owned(), at);
    }

    fn forget(&self, node: &str) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.remove(node);
    }

    /// A node seen for the first time counts from now.
    fn last(&self, node: &str, now: Timestamp) -> Timestamp {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *table.entry(node.to_owned()).or_insert(now)
    }
}

pub struct NodeLifecycleController {
    nodes: Lister<Node>,
    pods: Lister<Pod>,
    heartbeats: Heartbeats,
    clock: Clock,
    grace: Duration,
}

pub struct Observed {
    pub(crate) node: Arc<Node>,
    pub(crate) last_beat: Timestamp,
    pub(crate) grace: Duration,
    /// Pods on a silent node that still claim to be ready.
    pub(crate) ready_pods: Vec<Arc<Pod>>,
    /// So much of the cluster is unwell that nobody is to be evicted.
    pub(crate) disrupted: Disruption,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disruption {
    None,
    /// Evictions that are announced stay so, new ones are not.
    Partial,
    /// Announced evictions are taken back.
    Full,
}

impl Controller for NodeLifecycleController {
    const NAME: &'static str = "node-lifecycle-controller";
    const IDENTITY: &'static str = "node-controller";
    const COMPONENT: &'static str = "node-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self {
        let heartbeats = Heartbeats::default();
        let clock = settings.clock.clone();
        let nodes = watches.reads::<Node>();
        let (all, beats, time) = (nodes.clone(), heartbeats.clone(), clock.clone());
        watches.mapped::<Node>(move |change| keys_of_node(change, &all, &beats, now(&time)));
        let (all, beats, time) = (nodes.clone(), heartbeats.clone(), clock.clone());
        watches.mapped::<Lease>(move |change| keys_of_lease(change, &all, &beats, now(&time)));
        Self {
            pods: watches.reads::<Pod>(),
            nodes,
            heartbeats,
            clock,
            grace: settings.node_grace_period,
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let node = self.nodes.get_key(key)?;
        let now = now(&self.clock);
        let last_beat = self.heartbeats.last(&key.name, now);
        let ready_pods = if ready(&node).is_some_and(|ready| ready.status == "Unknown") {
            self.ready_pods(&key.name)
        } else {
            Vec::new()
        };
        Some(Observed {
            grace: self.grace_of(&node),
            last_beat,
            ready_pods,
            disrupted: disruption(&self.nodes.list(None)),
            node,
        })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        health::plan(observed, now)
    }
}

impl NodeLifecycleController {
    fn grace_of(&self, node: &Node) -> Duration {
        if ready(node).is_some() {
            self.grace
        } else {
            self.grace.max(STARTUP_GRACE)
        }
    }

    fn ready_pods(&self, node: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.list(None);
        pods.retain(|pod| pods::node_name(pod) == node && pods::is_ready(pod));
        pods
    }
}

fn now(clock: &Clock) -> Timestamp {
    Timestamp::try_from(clock.now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn ready(node: &Node) -> Option<&NodeCondition> {
    condition(node, "Ready")
}

fn is_ready(node: &Node) -> bool {
    ready(node).is_some_and(|ready| ready.status == "True")
}

/// The node; all nodes if its readiness changed, for that may change who may be evicted.
fn keys_of_node(
    change: &Change<Node>,
    nodes: &Lister<Node>,
    heartbeats: &Heartbeats,
    now: Timestamp,
) -> Vec<ObjectKey> {
    let name = change.object().metadata.name.clone().unwrap_or_default();
    let (old, new) = match change {
        Change::Deleted(_) => {
            heartbeats.forget(&name);
            return all(nodes);
        }
        Change::Applied { old, new } => (old, new),
    };
    let Some(old) = old else {
        heartbeats.beat(&name, now);
        return all(nodes);
    };
    let beat = |node: &Node| ready(node).and_then(|ready| ready.last_heartbeat_time.clone());
    if beat(old) != beat(new) && ready(new).is_some_and(|ready| ready.status != "Unknown") {
        heartbeats.beat(&name, now);
    }
    if is_ready(old) == is_ready(new) {
        vec![ObjectKey::cluster(name)]
    } else {
        all(nodes)
    }
}

fn all(nodes: &Lister<Node>) -> Vec<ObjectKey> {
    let nodes = nodes.list(None);
    nodes
        .iter()
        .map(|node| ObjectKey::of(&node.metadata))
        .collect()
}

/// A renewed Lease is a sign of life; only for a node that is not ready does it need attention.
fn keys_of_lease(
    change: &Change<Lease>,
    nodes: &Lister<Node>,
    heartbeats: &Heartbeats,
    now: Timestamp,
) -> Vec<ObjectKey> {
    let Change::Applied { new, .. } = change else {
        return Vec::new();
    };
    if new.metadata.namespace.as_deref() != Some(LEASE_NAMESPACE) {
        return Vec::new();
    }
    let name = new.metadata.name.clone().unwrap_or_default();
    heartbeats.beat(&name, now);
    match nodes.get(None, &name) {
        Some(node) if !is_ready(&node) => vec![ObjectKey::cluster(name)],
        _ => Vec::new(),
    }
}

/// All nodes unwell: full. More than two, and more than half of a small cluster: partial.
fn disruption(nodes: &[Arc<Node>]) -> Disruption {
    let down = nodes.iter().filter(|node| !is_ready(node)).count();
    if down == nodes.len() {
        Disruption::Full
    } else if down > 2 && down * 100 >= nodes.len() * 55 {
        Disruption::Partial
    } else {
        Disruption::None
    }
}

#[cfg(test)]
mod tests;

//! Rolling updates of DaemonSets: node by node, within the limits.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSetSpec;
use k8s_openapi::api::core::v1::Pod;

use super::{Situation, placement};
use crate::deployment::scaled;
use crate::owner;

pub(super) fn is_rolling(spec: &DaemonSetSpec) -> bool {
    let strategy = spec.update_strategy.as_ref();
    let kind = strategy.and_then(|strategy| strategy.type_.as_deref());
    kind.unwrap_or("RollingUpdate") == "RollingUpdate"
}

/// New pods may come before the old ones go.
pub(super) fn surges(spec: &DaemonSetSpec) -> bool {
    is_rolling(spec) && limits(spec, 100).0 > 0
}

/// How many nodes may have a second pod, and how many may have none available.
fn limits(spec: &DaemonSetSpec, nodes: i32) -> (i32, i32) {
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let surge = surge.map_or(0, |surge| scaled(surge, nodes, true));
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let unavailable = unavailable.map_or(1, |unavailable| scaled(unavailable, nodes, true));
    if surge == 0 && unavailable == 0 {
        return (0, 1);
    }
    (surge, unavailable)
}

type Pair = (Option<Arc<Pod>>, Option<Arc<Pod>>);

/// The new and the old pod of a node; `None` if there are more, which are pruned first.
fn pair(situation: &Situation<'_>, pods: &[Arc<Pod>]) -> Option<Pair> {
    let (mut new, mut old) = (None, None);
    for pod in pods.iter().filter(|pod| !owner::is_deleting(&pod.metadata)) {
        let slot = if situation.is_updated(pod) {
            &mut new
        } else {
            &mut old
        };
        if slot.replace(Arc::clone(pod)).is_some() {
            return None;
        }
    }
    Some((new, old))
}

pub(super) fn roll(situation: &mut Situation<'_>) {
    let wanted = situation
        .observed
        .nodes
        .iter()
        .filter(|node| placement::judge(situation.spec, node).should_run)
        .count();
    let wanted = i32::try_from(wanted).unwrap_or(i32::MAX);
    let (surge, unavailable) = limits(situation.spec, wanted);
    if surge == 0 {
        replace(situation, unavailable);
    } else {
        surge_over(situation, surge, wanted);
    }
}

/// Deletes old pods; what is missing then is created like anything missing.
fn replace(situation: &mut Situation<'_>, limit: i32) {
    let mut missing = 0;
    let mut broken = Vec::new();
    let mut candidates = Vec::new();
    for pods in situation.by_node.values() {
        match pair(situation, pods) {
            None | Some((None, None) | (Some(_), Some(_))) => missing += 1,
            Some((Some(new), None)) => missing += i32::from(!situation.is_available(&new)),
            Some((None, Some(old))) if situation.is_available(&old) => candidates.push(old),
            // An old pod that serves nobody can go at once.
            Some((None, Some(old))) => {
                broken.push(old);
                missing += 1;
            }
        }
    }
    let room = usize::try_from(limit - missing).unwrap_or(0);
    situation.delete.extend(broken);
    situation.delete.extend(candidates.into_iter().take(room));
}

/// Creates new pods beside old ones and deletes the old ones that have been replaced.
fn surge_over(situation: &mut Situation<'_>, limit: i32, wanted: i32) {
    let (mut surging, mut available) = (0, 0);
    let mut allowed = Vec::new();
    let mut candidates = Vec::new();
    let mut replaced = Vec::new();
    let mut misplaced = Vec::new();
    let should_run = |name: &str| {
        let mut nodes = situation.observed.nodes.iter();
        let node = nodes.find(|node| owner::name(&node.metadata) == name);
        node.is_some_and(|node| placement::judge(situation.spec, node).should_run)
    };
    for (node, pods) in &situation.by_node {
        let Some((new, old)) = pair(situation, pods) else {
            surging += 1;
            continue;
        };
        let shown = old.as_ref().or(new.as_ref());
        available += i32::from(shown.is_some_and(|pod| situation.is_available(pod)));
        match (new, old) {
            (_, None) => {}
            (Some(new), Some(old)) if situation.is_available(&new) => replaced.push(old),
            (Some(_), Some(_)) => surging += 1,
            (None, Some(old)) => match (situation.is_available(&old), should_run(node)) {
                (true, true) => candidates.push(node.clone()),
                (true, false) => misplaced.push(old),
                (false, true) => allowed.push(node.clone()),
                (false, false) => replaced.push(old),
            },
        }
    }
    let room = usize::try_from(limit - surging).unwrap_or(0);
    let spare = usize::try_from(available - wanted).unwrap_or(0);
    situation.delete.extend(replaced);
    situation.delete.extend(misplaced.into_iter().take(spare));
    situation.create_on.extend(allowed);
    situation
        .create_on
        .extend(candidates.into_iter().take(room));
}

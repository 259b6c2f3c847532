//! Enough of everything, and the node with the most left.

use std::sync::Arc;

use super::{
    Cycle, Event, MAX_SCORE, Normalize, Plugin, Prepared, Reason, Reasons, Scorer, Verdict,
};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesFit",
    weight: 1,
    filter: Some(filter),
    score: Some(score),
    wakes,
};

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let pod = cycle.pod;
    Prepared::Filter(Box::new(move |node| {
        if fits(pod, node) {
            return Verdict::Fits;
        }
        explain(pod, node)
    }))
}

fn fits(pod: &PodInfo, node: &NodeInfo) -> bool {
    let wanted = &pod.requests.exact;
    let (has, used) = (&node.allocatable, &node.requested);
    let enough = |wanted: i64, has: i64, used: i64| wanted <= 0 || wanted <= has - used;
    pods_on(node) < node.allowed_pods
        && enough(wanted.milli_cpu, has.milli_cpu, used.milli_cpu)
        && enough(wanted.memory, has.memory, used.memory)
        && enough(
            wanted.ephemeral_storage,
            has.ephemeral_storage,
            used.ephemeral_storage,
        )
        && wanted
            .scalars
            .iter()
            .all(|(name, amount)| enough(*amount, has.scalar(name), used.scalar(name)))
}

fn pods_on(node: &NodeInfo) -> i64 {
    i64::try_from(node.pods.len()).unwrap_or(i64::MAX)
}

/// Everything that is short, and whether an empty node would do.
fn explain(pod: &PodInfo, node: &NodeInfo) -> Verdict {
    let wanted = &pod.requests.exact;
    let (has, used) = (&node.allocatable, &node.requested);
    let mut reasons = Vec::new();
    let mut unresolvable = false;
    if pods_on(node) >= node.allowed_pods {
        reasons.push(Reason::Text("Too many pods"));
    }
    let fixed = [
        (
            "Insufficient cpu",
            wanted.milli_cpu,
            has.milli_cpu,
            used.milli_cpu,
        ),
        (
            "Insufficient memory",
            wanted.memory,
            has.memory,
            used.memory,
        ),
        (
            "Insufficient ephemeral-storage",
            wanted.ephemeral_storage,
            has.ephemeral_storage,
            used.ephemeral_storage,
        ),
    ];
    for (text, wanted, has, used) in fixed {
        if wanted > 0 && wanted > has - used {
            reasons.push(Reason::Text(text));
            unresolvable |= wanted > has;
        }
    }
    for (name, wanted) in &wanted.scalars {
        let has = has.scalar(name);
        if *wanted > 0 && *wanted > has - used.scalar(name) {
            reasons.push(Reason::Insufficient(Arc::clone(name)));
            unresolvable |= *wanted > has;
        }
    }
    let reasons = Reasons::Many(reasons);
    if unresolvable {
        Verdict::Unresolvable(reasons)
    } else {
        Verdict::Rejected(reasons)
    }
}

/// The more CPU and memory is left, the better.
fn score<'a>(cycle: Cycle<'a>, _: &[usize]) -> Option<Scorer<'a>> {
    let wanted = &cycle.pod.requests.for_scoring;
    let raw = move |node: &NodeInfo| {
        let (has, used) = (&node.allocatable, &node.requested_for_scoring);
        let left = [
            share_left(used.milli_cpu + wanted.milli_cpu, has.milli_cpu),
            share_left(used.memory + wanted.memory, has.memory),
        ];
        let (sum, count) = left
            .iter()
            .flatten()
            .fold((0, 0), |(sum, count), each| (sum + each, count + 1));
        if count == 0 { 0 } else { sum / count }
    };
    Some(Scorer {
        raw: Box::new(raw),
        normalize: Normalize::No,
    })
}

fn share_left(requested: i64, capacity: i64) -> Option<i64> {
    match capacity {
        0 => None,
        _ if requested > capacity => Some(0),
        _ => Some((capacity - requested).saturating_mul(MAX_SCORE) / capacity),
    }
}

fn wakes(pod: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    match event {
        Event::NodeAdded(node) => fits(pod, node),
        Event::NodeChanged { old, new } => {
            (old.allocatable != new.allocatable || old.allowed_pods != new.allowed_pods)
                && fits(pod, new)
        }
        Event::PodRemoved(_) => true,
        Event::PodChanged { old, new } => old.requests != new.requests,
        _ => false,
    }
}

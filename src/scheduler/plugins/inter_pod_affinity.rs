//! Pods that want to be near other pods, or far from them.

use std::collections::HashMap;

use super::{Cycle, Event, MAX_SCORE, Normalize, Plugin, Prepared, Reasons, Scorer, Verdict};
use crate::node_info::NodeInfo;
use crate::pod_info::{AffinityTerm, PodInfo};
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "InterPodAffinity",
    weight: 2,
    filter: Some(filter),
    score: Some(score),
    wakes,
};

const NO_AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING_ANTI_AFFINITY: &str = "node(s) didn't satisfy existing pods anti-affinity rules";
/// What a required term of a pod that is already placed adds to the score of its domain.
const REQUIRED_WEIGHT: i64 = 1;

/// Numbers by topology label (key, value).
type ByDomain<'a> = HashMap<(&'a str, &'a str), i64>;

fn count<'a>(counts: &mut ByDomain<'a>, node: &'a NodeInfo, key: &'a str, by: i64) {
    if let Some(value) = node.labels.get(key) {
        *counts.entry((key, value)).or_default() += by;
    }
}

fn at_node(counts: &ByDomain<'_>, node: &NodeInfo, key: &str) -> i64 {
    node.labels
        .get(key)
        .and_then(|value| counts.get(&(key, value.as_str())))
        .copied()
        .unwrap_or(0)
}

#[derive(Default)]
struct Counts<'a> {
    /// Placed pods whose anti-affinity refuses this pod.
    existing_anti: ByDomain<'a>,
    /// Placed pods that match every affinity term of this pod.
    affinity: ByDomain<'a>,
    /// Placed pods that match an anti-affinity term of this pod.
    anti: ByDomain<'a>,
}

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let pod = cycle.pod;
    let required = &pod.affinity.required;
    let has_own_terms = !required.is_empty() || !pod.anti_affinity.required.is_empty();
    if !has_own_terms && !cycle.snapshot.has_required_anti_affinity() {
        return Prepared::Skip;
    }
    let counts = count_required(cycle, has_own_terms);
    if !has_own_terms && counts.existing_anti.is_empty() {
        return Prepared::Skip;
    }
    let matches_itself = matches_all(required, pod, cycle.snapshot);
    Prepared::Filter(Box::new(move |node| {
        judge(pod, node, &counts, matches_itself)
    }))
}

fn count_required<'a>(cycle: Cycle<'a>, has_own_terms: bool) -> Counts<'a> {
    let (pod, snapshot) = (cycle.pod, cycle.snapshot);
    let own_labels = snapshot.namespace_labels(&pod.namespace);
    let mut counts = Counts::default();
    for node in cycle.nodes() {
        if node.pods_with_required_anti_affinity > 0 {
            for term in node
                .pods
                .iter()
                .flat_map(|other| &other.anti_affinity.required)
            {
                if term.matches(pod, own_labels) {
                    count(&mut counts.existing_anti, node, &term.topology_key, 1);
                }
            }
        }
        if !has_own_terms {
            continue;
        }
        for other in &node.pods {
            if matches_all(&pod.affinity.required, other, snapshot) {
                for term in &pod.affinity.required {
                    count(&mut counts.affinity, node, &term.topology_key, 1);
                }
            }
            let labels = snapshot.namespace_labels(&other.namespace);
            for term in pod
                .anti_affinity
                .required
                .iter()
                .filter(|term| term.matches(other, labels))
            {
                count(&mut counts.anti, node, &term.topology_key, 1);
            }
        }
    }
    counts
}

fn matches_all(terms: &[AffinityTerm], pod: &PodInfo, snapshot: &Snapshot) -> bool {
    let labels = snapshot.namespace_labels(&pod.namespace);
    !terms.is_empty() && terms.iter().all(|term| term.matches(pod, labels))
}

fn judge(pod: &PodInfo, node: &NodeInfo, counts: &Counts<'_>, matches_itself: bool) -> Verdict {
    let required = &pod.affinity.required;
    if required
        .iter()
        .any(|term| !node.labels.contains_key(&term.topology_key))
    {
        return Verdict::Unresolvable(Reasons::from(NO_AFFINITY));
    }
    let near = required
        .iter()
        .all(|term| at_node(&counts.affinity, node, &term.topology_key) > 0);
    // The first pod of a group that wants to be near itself must go somewhere.
    let first = counts.affinity.is_empty() && matches_itself;
    if !near && !first {
        return Verdict::Unresolvable(Reasons::from(NO_AFFINITY));
    }
    if pod
        .anti_affinity
        .required
        .iter()
        .any(|term| at_node(&counts.anti, node, &term.topology_key) > 0)
    {
        return Verdict::Rejected(Reasons::from(ANTI_AFFINITY));
    }
    let refused = |(key, value): (&String, &String)| {
        counts
            .existing_anti
            .get(&(key.as_str(), value.as_str()))
            .is_some_and(|count| *count > 0)
    };
    if !counts.existing_anti.is_empty() && node.labels.iter().any(refused) {
        return Verdict::Rejected(Reasons::from(EXISTING_ANTI_AFFINITY));
    }
    Verdict::Fits
}

fn score<'a>(cycle: Cycle<'a>, _: &[usize]) -> Option<Scorer<'a>> {
    let pod = cycle.pod;
    let wishes = !pod.affinity.preferred.is_empty() || !pod.anti_affinity.preferred.is_empty();
    if !wishes && !cycle.snapshot.has_affinity() {
        return None;
    }
    let mut scores = ByDomain::new();
    for node in cycle.nodes() {
        if !wishes && node.pods_with_affinity == 0 {
            continue;
        }
        for other in node
            .pods
            .iter()
            .filter(|other| wishes || other.has_affinity())
        {
            score_pair(cycle, node, other, &mut scores);
        }
    }
    if scores.is_empty() {
        return None;
    }
    let raw = move |node: &NodeInfo| {
        let labels = node.labels.iter();
        labels
            .filter_map(|(key, value)| scores.get(&(key.as_str(), value.as_str())))
            .sum()
    };
    Some(Scorer {
        raw: Box::new(raw),
        normalize: Normalize::With(normalize),
    })
}

/// What the terms of both pods, one of them already placed, say about each other.
fn score_pair<'a>(
    cycle: Cycle<'a>,
    node: &'a NodeInfo,
    other: &'a PodInfo,
    scores: &mut ByDomain<'a>,
) {
    let (pod, snapshot) = (cycle.pod, cycle.snapshot);
    let other_labels = snapshot.namespace_labels(&other.namespace);
    let own_labels = snapshot.namespace_labels(&pod.namespace);
    let wishes = [
        (&pod.affinity.preferred, other, other_labels, 1),
        (&pod.anti_affinity.preferred, other, other_labels, -1),
        (&other.affinity.preferred, pod, own_labels, 1),
        (&other.anti_affinity.preferred, pod, own_labels, -1),
    ];
    for (terms, target, labels, sign) in wishes {
        for (weight, term) in terms
            .iter()
            .filter(|(_, term)| term.matches(target, labels))
        {
            count(scores, node, &term.topology_key, sign * weight);
        }
    }
    for term in other
        .affinity
        .required
        .iter()
        .filter(|term| term.matches(pod, own_labels))
    {
        count(scores, node, &term.topology_key, REQUIRED_WEIGHT);
    }
}

fn normalize(scores: &mut [i64]) {
    let (least, most) = (
        scores.iter().copied().min().unwrap_or(0),
        scores.iter().copied().max().unwrap_or(0),
    );
    for score in scores {
        *score = if most > least {
            (MAX_SCORE as f64 * ((*score - least) as f64 / (most - least) as f64)) as i64
        } else {
            0
        };
    }
}

fn wakes(pod: &PodInfo, event: &Event<'_>, snapshot: &Snapshot) -> bool {
    let labels = |other: &PodInfo| snapshot.namespace_labels(&other.namespace).clone();
    let wanted = |other: &PodInfo| {
        pod.affinity
            .required
            .iter()
            .any(|term| term.matches(other, &labels(other)))
    };
    let shunned = |other: &PodInfo| {
        pod.anti_affinity
            .required
            .iter()
            .any(|term| term.matches(other, &labels(other)))
            || other
                .anti_affinity
                .required
                .iter()
                .any(|term| term.matches(pod, &labels(pod)))
    };
    match event {
        Event::NodeAdded(_) | Event::NamespaceChanged => true,
        Event::VolumesChanged => false,
        Event::NodeChanged { old, new } => old.labels != new.labels,
        Event::NodeRemoved => false,
        Event::PodPlaced(other) => wanted(other),
        Event::PodRemoved(other) => shunned(other),
        Event::PodChanged { old, new } => {
            old.labels != new.labels && (wanted(new) || (shunned(old) && !shunned(new)))
        }
    }
}

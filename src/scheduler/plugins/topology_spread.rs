//! Pods of one kind spread over zones and nodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::taint_toleration::has_untolerated;
use super::{
    Cycle, Event, MAX_SCORE, NodeFilter, Normalize, Plugin, Prepared, Reasons, Scorer, Verdict,
};
use crate::node_info::NodeInfo;
use crate::pod_info::{PodInfo, SpreadConstraint};
use crate::selector::Selector;
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "PodTopologySpread",
    weight: 2,
    filter: Some(filter),
    score: Some(score),
    wakes,
};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
const NO_MATCH: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";
/// The raw score of a node that lacks a topology label; it ends as 0.
const IGNORED: i64 = -1;

/// How many matching pods sit in each domain of a constraint.
struct Domains<'a> {
    constraint: &'a SpreadConstraint,
    counts: HashMap<&'a str, i64>,
}

impl Domains<'_> {
    fn least(&self) -> i64 {
        let domains = i64::try_from(self.counts.len()).unwrap_or(i64::MAX);
        if domains < self.constraint.min_domains {
            return 0;
        }
        self.counts
            .values()
            .copied()
            .min()
            .unwrap_or(i64::from(i32::MAX))
    }
}

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let pod = cycle.pod;
    let constraints: Vec<&SpreadConstraint> = pod.spread.iter().filter(|each| each.hard).collect();
    if constraints.is_empty() {
        return Prepared::Skip;
    }
    let rules: Vec<_> = count_domains(cycle, &constraints)
        .into_iter()
        .map(|domains| {
            let own = i64::from(domains.constraint.selector.matches(&pod.labels));
            let most = domains.constraint.max_skew + domains.least() - own;
            (domains, most)
        })
        .collect();
    let filter: NodeFilter<'_> = Box::new(move |node| {
        for (domains, most) in &rules {
            let Some(value) = node.labels.get(&domains.constraint.topology_key) else {
                return Verdict::Unresolvable(Reasons::from(NO_LABEL));
            };
            if domains.counts.get(value.as_str()).copied().unwrap_or(0) > *most {
                return Verdict::Rejected(Reasons::from(NO_MATCH));
            }
        }
        Verdict::Fits
    });
    Prepared::Filter(filter)
}

fn count_domains<'a>(cycle: Cycle<'a>, constraints: &[&'a SpreadConstraint]) -> Vec<Domains<'a>> {
    let mut all: Vec<Domains<'a>> = constraints
        .iter()
        .map(|constraint| Domains {
            constraint,
            counts: HashMap::new(),
        })
        .collect();
    for node in cycle.nodes().filter(|node| has_all_keys(node, constraints)) {
        for domains in &mut all {
            let constraint = domains.constraint;
            if !counts_node(cycle.pod, node, constraint) {
                continue;
            }
            if let Some(value) = node.labels.get(&constraint.topology_key) {
                *domains.counts.entry(value).or_default() +=
                    matching(node, &constraint.selector, cycle.pod);
            }
        }
    }
    all
}

fn has_all_keys(node: &NodeInfo, constraints: &[&SpreadConstraint]) -> bool {
    constraints
        .iter()
        .all(|each| node.labels.contains_key(&each.topology_key))
}

/// Whether the node's pods count at all, by the constraint's inclusion policies.
fn counts_node(pod: &PodInfo, node: &NodeInfo, constraint: &SpreadConstraint) -> bool {
    (!constraint.honor_affinity || pod.required_nodes.matches(&node.name, &node.labels))
        && (!constraint.honor_taints || !has_untolerated(node, &pod.tolerations))
}

fn matching(node: &NodeInfo, selector: &Selector, pod: &PodInfo) -> i64 {
    if selector.is_empty() {
        return 0;
    }
    let counted = |each: &&Arc<PodInfo>| {
        each.namespace == pod.namespace && !each.terminating && selector.matches(&each.labels)
    };
    i64::try_from(node.pods.iter().filter(counted).count()).unwrap_or(i64::MAX)
}

/// The wishes of the pod, or the ones everybody has: over zones, then over nodes.
fn soft_constraints(cycle: Cycle<'_>) -> Vec<SpreadConstraint> {
    if !cycle.pod.spread.is_empty() {
        return cycle
            .pod
            .spread
            .iter()
            .filter(|each| !each.hard)
            .cloned()
            .collect();
    }
    let Some(selector) = cycle.default_spread.filter(|selector| !selector.is_empty()) else {
        return Vec::new();
    };
    [(HOSTNAME, 3), (ZONE, 5)]
        .map(|(key, max_skew)| SpreadConstraint {
            max_skew,
            topology_key: key.to_owned(),
            selector: selector.clone(),
            min_domains: 1,
            honor_affinity: true,
            honor_taints: false,
            hard: false,
        })
        .to_vec()
}

/// A soft constraint with the numbers that scoring a node needs.
struct Wish {
    constraint: SpreadConstraint,
    /// Matching pods by domain; empty for the hostname, where each node is counted by itself.
    counts: HashMap<String, i64>,
    weight: f64,
}

fn score<'a>(cycle: Cycle<'a>, feasible: &[usize]) -> Option<Scorer<'a>> {
    let constraints = soft_constraints(cycle);
    if constraints.is_empty() {
        return None;
    }
    let strict = !cycle.pod.spread.is_empty();
    let by_ref: Vec<&SpreadConstraint> = constraints.iter().collect();
    let nodes = cycle.snapshot.nodes();
    let scored: Vec<&NodeInfo> = feasible
        .iter()
        .map(|at| &nodes[*at])
        .filter(|node| !strict || has_all_keys(node, &by_ref))
        .collect();
    let domains: Vec<HashSet<&str>> = constraints
        .iter()
        .map(|each| domains_of(&scored, each))
        .collect();
    let counts = count_wishes(cycle, &constraints, &domains, strict);
    let wishes: Vec<Wish> = constraints
        .iter()
        .zip(domains)
        .zip(counts)
        .map(|((constraint, domains), counts)| {
            let size = if constraint.topology_key == HOSTNAME {
                scored.len()
            } else {
                domains.len()
            };
            Wish {
                constraint: constraint.clone(),
                counts,
                weight: ((size + 2) as f64).ln(),
            }
        })
        .collect();
    let pod = cycle.pod;
    let raw = move |node: &NodeInfo| {
        if strict
            && !wishes
                .iter()
                .all(|wish| node.labels.contains_key(&wish.constraint.topology_key))
        {
            return IGNORED;
        }
        wishes
            .iter()
            .map(|wish| wish_score(wish, node, pod))
            .sum::<f64>()
            .round() as i64
    };
    Some(Scorer {
        raw: Box::new(raw),
        normalize: Normalize::With(normalize),
    })
}

fn domains_of<'a>(nodes: &[&'a NodeInfo], constraint: &SpreadConstraint) -> HashSet<&'a str> {
    nodes
        .iter()
        .filter_map(|node| node.labels.get(&constraint.topology_key))
        .map(String::as_str)
        .collect()
}

fn count_wishes(
    cycle: Cycle<'_>,
    constraints: &[SpreadConstraint],
    domains: &[HashSet<&str>],
    strict: bool,
) -> Vec<HashMap<String, i64>> {
    let mut all = vec![HashMap::new(); constraints.len()];
    let by_domain: Vec<usize> = (0..constraints.len())
        .filter(|at| constraints[*at].topology_key != HOSTNAME)
        .collect();
    if by_domain.iter().all(|at| domains[*at].is_empty()) {
        return all;
    }
    let by_ref: Vec<&SpreadConstraint> = constraints.iter().collect();
    for node in cycle
        .nodes()
        .filter(|node| !strict || has_all_keys(node, &by_ref))
    {
        for at in &by_domain {
            let constraint = &constraints[*at];
            let Some(value) = node.labels.get(&constraint.topology_key) else {
                continue;
            };
            if domains[*at].contains(value.as_str()) && counts_node(cycle.pod, node, constraint) {
                *all[*at].entry(value.clone()).or_default() +=
                    matching(node, &constraint.selector, cycle.pod);
            }
        }
    }
    all
}

fn wish_score(wish: &Wish, node: &NodeInfo, pod: &PodInfo) -> f64 {
    let key = &wish.constraint.topology_key;
    let Some(value) = node.labels.get(key) else {
        return 0.0;
    };
    let count = if key == HOSTNAME {
        matching(node, &wish.constraint.selector, pod)
    } else {
        wish.counts.get(value).copied().unwrap_or(0)
    };
    count as f64 * wish.weight + (wish.constraint.max_skew - 1) as f64
}

/// Few matching pods make a high score.
fn normalize(scores: &mut [i64]) {
    let counted = || scores.iter().copied().filter(|score| *score != IGNORED);
    let (least, most) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
    for score in scores {
        *score = match *score {
            IGNORED => 0,
            _ if most == 0 => MAX_SCORE,
            score => MAX_SCORE * (most + least - score) / most,
        };
    }
}

fn wakes(pod: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    let concerned = |other: &PodInfo| {
        other.namespace == pod.namespace
            && pod
                .spread
                .iter()
                .any(|each| each.hard && each.selector.matches(&other.labels))
    };
    let has_keys = |node: &NodeInfo| {
        pod.spread
            .iter()
            .filter(|each| each.hard)
            .all(|each| node.labels.contains_key(&each.topology_key))
    };
    match event {
        Event::NodeAdded(node) => has_keys(node),
        Event::NodeChanged { old, new } => old.labels != new.labels || old.taints != new.taints,
        Event::NodeRemoved => true,
        Event::PodPlaced(other) | Event::PodRemoved(other) => concerned(other),
        Event::PodChanged { old, new } => {
            old.labels != new.labels && (concerned(old) || concerned(new))
        }
        Event::NamespaceChanged | Event::VolumesChanged => false,
    }
}

//! `nodeSelector` and node affinity.

use super::{Cycle, Event, NodeFilter, Normalize, Plugin, Prepared, Reason, Scorer, Verdict};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::selector::NodeTerm;
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "NodeAffinity",
    weight: 2,
    filter: Some(filter),
    score: Some(score),
    wakes,
};

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let required = &cycle.pod.required_nodes;
    if required.is_empty() {
        return Prepared::Skip;
    }
    let filter: NodeFilter<'_> = Box::new(move |node| {
        let fits = required.matches(&node.name, &node.labels);
        Verdict::unresolvable_unless(fits, "node(s) didn't match Pod's node affinity/selector")
    });
    match required.terms.as_deref().and_then(named_nodes) {
        None => Prepared::Filter(filter),
        Some(names) if names.is_empty() => {
            Prepared::Reject(Reason::Text("pod affinity terms conflict"))
        }
        Some(names) => Prepared::Only(names, filter),
    }
}

/// The nodes named by the terms, if every term names some: then no other node needs a look.
fn named_nodes(terms: &[NodeTerm]) -> Option<Vec<&str>> {
    if terms.is_empty() {
        return None;
    }
    let mut names = Vec::new();
    for term in terms {
        names.extend(term.node_names()?);
    }
    names.sort_unstable();
    names.dedup();
    Some(names)
}

fn score<'a>(cycle: Cycle<'a>, _: &[usize]) -> Option<Scorer<'a>> {
    let preferred = &cycle.pod.preferred_nodes;
    if preferred.is_empty() {
        return None;
    }
    let raw = move |node: &NodeInfo| {
        let matching = preferred
            .iter()
            .filter(|(_, term)| term.matches(&node.name, &node.labels));
        matching.map(|(weight, _)| weight).sum()
    };
    Some(Scorer {
        raw: Box::new(raw),
        normalize: Normalize::ToMax,
    })
}

fn wakes(pod: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    event.node_newly(|node| pod.required_nodes.matches(&node.name, &node.labels))
}

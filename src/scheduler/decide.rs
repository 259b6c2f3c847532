//! The decision about one pod: pure, over the snapshot.

use std::sync::Arc;

use crate::diagnosis::{Diagnosis, RefusedNode};
use crate::node_info::NodeInfo;
use crate::plugins::{Cycle, NodeFilter, PLUGINS, PluginSet, Prepared, Reason, Reasons, Verdict};
use crate::pod_info::PodInfo;
use crate::preemption::{self, Budget, Preemption};
use crate::selector::Selector;
use crate::snapshot::Snapshot;

/// Clusters up to this size are searched completely.
const SEARCH_ALL: usize = 100;

/// Everything a decision depends on.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub pod: &'a PodInfo,
    pub snapshot: &'a Snapshot,
    /// Selects the pods that this one belongs to by its Services and its controller.
    pub default_spread: Option<&'a Selector>,
    pub budgets: &'a [Budget],
    /// The node at which the search starts, so that over time all are looked at.
    pub start: usize,
    /// Chooses among equally good nodes.
    pub seed: u64,
}

impl<'a> Request<'a> {
    pub fn new(pod: &'a PodInfo, snapshot: &'a Snapshot) -> Self {
        Self {
            pod,
            snapshot,
            default_spread: None,
            budgets: &[],
            start: 0,
            seed: 0,
        }
    }

    fn cycle(&self) -> Cycle<'a> {
        Cycle {
            pod: self.pod,
            snapshot: self.snapshot,
            overlay: None,
            default_spread: self.default_spread,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Place {
        node: Arc<str>,
        /// How many nodes were looked at.
        examined: usize,
    },
    Refuse {
        diagnosis: Diagnosis,
        preemption: Option<Preemption>,
        examined: usize,
    },
}

impl Decision {
    pub fn examined(&self) -> usize {
        match self {
            Self::Place { examined, .. } | Self::Refuse { examined, .. } => *examined,
        }
    }
}

pub fn decide(request: &Request<'_>) -> Decision {
    let nodes = request.snapshot.nodes();
    if nodes.is_empty() {
        return Decision::Refuse {
            diagnosis: Diagnosis::default(),
            preemption: None,
            examined: 0,
        };
    }
    let filters = match Filters::prepare(request.cycle()) {
        Ok(filters) => filters,
        Err((plugin, reason)) => return refuse_everywhere(request, plugin, reason),
    };
    let found = search(request, &filters);
    if found.feasible.is_empty() {
        return refuse(request, &filters, found.refused);
    }
    let best = choose(request, &found.feasible);
    Decision::Place {
        node: nodes[best].name.clone(),
        examined: found.examined,
    }
}

/// The filters that have something to say about the pod.
struct Filters<'a> {
    rows: Vec<(usize, NodeFilter<'a>)>,
    only: Option<Vec<&'a str>>,
    only_by: PluginSet,
}

impl<'a> Filters<'a> {
    /// Or the plugin that refuses every node.
    fn prepare(cycle: Cycle<'a>) -> Result<Self, (usize, Reason)> {
        let mut filters = Self {
            rows: Vec::new(),
            only: None,
            only_by: PluginSet::default(),
        };
        for (plugin, row) in PLUGINS.iter().enumerate() {
            let Some(prepare) = row.filter else { continue };
            match prepare(cycle) {
                Prepared::Skip => {}
                Prepared::Reject(reason) => return Err((plugin, reason)),
                Prepared::Filter(filter) => filters.rows.push((plugin, filter)),
                Prepared::Only(names, filter) => {
                    filters.rows.push((plugin, filter));
                    filters.only = Some(names);
                    filters.only_by.insert(plugin);
                }
            }
        }
        Ok(filters)
    }

    fn judge(&self, node: &NodeInfo) -> Result<(), RefusedNode> {
        for (plugin, filter) in &self.rows {
            let (reasons, resolvable) = match filter(node) {
                Verdict::Fits => continue,
                Verdict::Rejected(reasons) => (reasons, true),
                Verdict::Unresolvable(reasons) => (reasons, false),
            };
            return Err(RefusedNode {
                node: node.name.clone(),
                plugin: *plugin,
                reasons,
                resolvable,
            });
        }
        Ok(())
    }
}

#[derive(Default)]
struct Found {
    feasible: Vec<usize>,
    refused: Vec<RefusedNode>,
    examined: usize,
}

fn search(request: &Request<'_>, filters: &Filters<'_>) -> Found {
    if let Some(at) = request
        .pod
        .nominated_node
        .as_deref()
        .and_then(|name| request.snapshot.index_of(name))
        && judge_with_nominated(request, filters, at).is_ok()
    {
        return Found {
            feasible: vec![at],
            examined: 1,
            ..Found::default()
        };
    }
    let total = request.snapshot.nodes().len();
    let mut found = Found::default();
    let mut look_at = |at: usize| {
        found.examined += 1;
        match judge_with_nominated(request, filters, at) {
            Ok(()) => found.feasible.push(at),
            Err(refused) => found.refused.push(refused),
        }
        found.feasible.len()
    };
    if let Some(names) = &filters.only {
        for at in names
            .iter()
            .filter_map(|name| request.snapshot.index_of(name))
        {
            look_at(at);
        }
        return found;
    }
    let enough = enough_nodes(total);
    for step in 0..total {
        if look_at((request.start + step) % total) >= enough {
            break;
        }
    }
    found
}

/// How many feasible nodes end the search: all in small clusters, a shrinking share in large ones.
fn enough_nodes(total: usize) -> usize {
    if total <= SEARCH_ALL {
        return total;
    }
    let percent = 50usize.saturating_sub(total / 125).max(5);
    (total * percent / 100).max(SEARCH_ALL)
}

/// Pods that wait for room on the node and matter at least as much count as if they were there,
/// but the pod must not depend on them either.
fn judge_with_nominated(
    request: &Request<'_>,
    filters: &Filters<'_>,
    at: usize,
) -> Result<(), RefusedNode> {
    let node = &request.snapshot.nodes()[at];
    filters.judge(node)?;
    match with_nominated(request, node) {
        Some(crowded) => judge_overlay(request, at, &crowded),
        None => Ok(()),
    }
}

fn with_nominated(request: &Request<'_>, node: &NodeInfo) -> Option<NodeInfo> {
    let pod = request.pod;
    let nominated = request.snapshot.nominated(&node.name).iter();
    let mut rivals = nominated
        .filter(|each| each.uid != pod.uid && each.priority >= pod.priority)
        .peekable();
    rivals.peek()?;
    let mut crowded = node.clone();
    rivals.for_each(|each| crowded.add_pod(each.clone()));
    Some(crowded)
}

/// Judges the node as it would be with other pods on it, looking at everything anew.
fn judge_overlay(request: &Request<'_>, at: usize, node: &NodeInfo) -> Result<(), RefusedNode> {
    let cycle = Cycle {
        overlay: Some((at, node)),
        ..request.cycle()
    };
    match Filters::prepare(cycle) {
        Ok(filters) => filters.judge(node),
        Err((plugin, reason)) => {
            let reasons = Reasons::One(reason);
            Err(RefusedNode {
                node: node.name.clone(),
                plugin,
                reasons,
                resolvable: false,
            })
        }
    }
}

/// Whether the pod would fit on the node if it looked like this, with nominated pods there and without.
pub(crate) fn fits_on(
    request: &Request<'_>,
    at: usize,
    node: &NodeInfo,
) -> Result<(), RefusedNode> {
    judge_overlay(request, at, node)?;
    match with_nominated(request, node) {
        Some(crowded) => judge_overlay(request, at, &crowded),
        None => Ok(()),
    }
}

fn choose(request: &Request<'_>, feasible: &[usize]) -> usize {
    let [first, rest @ ..] = feasible else {
        return 0;
    };
    if rest.is_empty() {
        return *first;
    }
    let totals = scores(request, feasible);
    let best = totals.iter().copied().max().unwrap_or(0);
    let ties: Vec<usize> = feasible
        .iter()
        .zip(&totals)
        .filter(|(_, total)| **total == best)
        .map(|(at, _)| *at)
        .collect();
    let pick = usize::try_from(request.seed % ties.len() as u64).unwrap_or(0);
    ties[pick]
}

fn scores(request: &Request<'_>, feasible: &[usize]) -> Vec<i64> {
    let nodes = request.snapshot.nodes();
    let mut totals = vec![0; feasible.len()];
    for row in PLUGINS {
        let Some(scorer) = row.score.and_then(|score| score(request.cycle(), feasible)) else {
            continue;
        };
        let mut scores: Vec<i64> = feasible
            .iter()
            .map(|at| (scorer.raw)(&nodes[*at]))
            .collect();
        scorer.normalize.apply(&mut scores);
        for (total, score) in totals.iter_mut().zip(scores) {
            *total += row.weight * score;
        }
    }
    totals
}

fn refuse_everywhere(request: &Request<'_>, plugin: usize, reason: Reason) -> Decision {
    let mut diagnosis = Diagnosis {
        nodes: request.snapshot.nodes().len(),
        general: Some(reason),
        ..Diagnosis::default()
    };
    diagnosis.refused_by.insert(plugin);
    let preemption = preempt(request, &mut diagnosis);
    Decision::Refuse {
        diagnosis,
        preemption,
        examined: 0,
    }
}

fn refuse(request: &Request<'_>, filters: &Filters<'_>, refused: Vec<RefusedNode>) -> Decision {
    let mut refused_by = filters.only_by;
    for node in &refused {
        refused_by.insert(node.plugin);
    }
    let names: Vec<&str> = filters.only_by.iter().map(|plugin| plugin.name).collect();
    let examined = refused.len();
    let mut diagnosis = Diagnosis {
        nodes: request.snapshot.nodes().len(),
        unexamined: filters.only.is_some().then(|| {
            Reason::Other(format!("node(s) didn't satisfy plugin(s) [{}]", names.join(" ")).into())
        }),
        refused,
        refused_by,
        ..Diagnosis::default()
    };
    let preemption = preempt(request, &mut diagnosis);
    Decision::Refuse {
        diagnosis,
        preemption,
        examined,
    }
}

fn preempt(request: &Request<'_>, diagnosis: &mut Diagnosis) -> Option<Preemption> {
    match preemption::find(request, diagnosis) {
        Ok(preemption) => Some(preemption),
        Err(text) => {
            diagnosis.preemption = text;
            None
        }
    }
}

#[cfg(test)]
mod tests;

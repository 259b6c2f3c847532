//! Which pods would have to go so that a more important one fits.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::decide::{Request, fits_on};
use crate::diagnosis::{Diagnosis, preemption_text};
use crate::node_info::NodeInfo;
use crate::plugins::Reasons;
use crate::pod_info::PodInfo;
use crate::selector::Selector;

/// At least so many candidates are looked for, and at least this share of the nodes.
const CANDIDATES: usize = 100;
const CANDIDATES_PERCENT: usize = 10;

/// A disruption budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    pub namespace: String,
    pub selector: Selector,
    pub allowed: i32,
    /// Pods that are already being disrupted.
    pub disrupted: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Preemption {
    pub node: Arc<str>,
    pub victims: Vec<Arc<PodInfo>>,
}

struct Candidate {
    node: Arc<str>,
    victims: Vec<Arc<PodInfo>>,
    violations: usize,
}

/// The preemption that disturbs least, or the sentence that says why there is none.
pub fn find(request: &Request<'_>, diagnosis: &Diagnosis) -> Result<Preemption, String> {
    eligible(request, diagnosis)?;
    let resolvable: Vec<usize> = diagnosis
        .refused
        .iter()
        .filter(|node| node.resolvable)
        .filter_map(|node| request.snapshot.index_of(&node.node))
        .collect();
    let enough = (resolvable.len() * CANDIDATES_PERCENT / 100).max(CANDIDATES);
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut failures: Vec<Reasons> = Vec::new();
    for at in resolvable {
        match victims_on(request, at) {
            Ok(candidate) => candidates.push(candidate),
            Err(reasons) => failures.push(reasons),
        }
        if candidates.len() >= enough && candidates.iter().any(|each| each.violations == 0) {
            break;
        }
    }
    match candidates.into_iter().min_by_key(disturbance) {
        Some(best) => Ok(Preemption {
            node: best.node,
            victims: best.victims,
        }),
        None => Err(preemption_text(diagnosis.nodes, failures.iter())),
    }
}

fn eligible(request: &Request<'_>, diagnosis: &Diagnosis) -> Result<(), String> {
    let pod = request.pod;
    if !pod.may_preempt {
        return Err("not eligible due to preemptionPolicy=Never.".to_owned());
    }
    let Some(nominated) = pod.nominated_node.as_deref() else {
        return Ok(());
    };
    let hopeless = diagnosis
        .refused
        .iter()
        .any(|each| &*each.node == nominated && !each.resolvable);
    let leaving = |node: &NodeInfo| {
        node.pods
            .iter()
            .any(|each| each.preempted && each.priority < pod.priority)
    };
    if !hopeless && request.snapshot.node(nominated).is_some_and(leaving) {
        return Err("not eligible due to a terminating pod on the nominated node.".to_owned());
    }
    Ok(())
}

/// The least important pods of a node without which the pod fits.
fn victims_on(request: &Request<'_>, at: usize) -> Result<Candidate, Reasons> {
    let pod = request.pod;
    let mut node = request.snapshot.nodes()[at].clone();
    let mut lesser: Vec<Arc<PodInfo>> = node
        .pods
        .iter()
        .filter(|each| each.priority < pod.priority)
        .cloned()
        .collect();
    if lesser.is_empty() {
        return Err(Reasons::from(
            "No preemption victims found for incoming pod",
        ));
    }
    for each in &lesser {
        node.remove_pod(&each.uid);
    }
    fits_on(request, at, &node).map_err(|refused| refused.reasons)?;
    lesser.sort_by_key(|each| {
        (
            Reverse(each.priority),
            each.started.unwrap_or(Timestamp::MAX),
        )
    });
    let (violating, harmless) = split_by_budget(lesser, request.budgets);
    let mut victims = Vec::new();
    let mut violations = 0;
    for (group, violates) in [(violating, true), (harmless, false)] {
        for each in group {
            node.add_pod(each.clone());
            if fits_on(request, at, &node).is_err() {
                node.remove_pod(&each.uid);
                violations += usize::from(violates);
                victims.push(each);
            }
        }
    }
    victims.sort_by_key(|each| {
        (
            Reverse(each.priority),
            each.started.unwrap_or(Timestamp::MAX),
        )
    });
    Ok(Candidate {
        node: node.name,
        victims,
        violations,
    })
}

/// Which of the pods, in this order, a budget no longer lets go.
fn split_by_budget(
    pods: Vec<Arc<PodInfo>>,
    budgets: &[Budget],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut left: Vec<i32> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.into_iter().partition(|pod| {
        if pod.labels.is_empty() {
            return false;
        }
        let concerned = budgets.iter().zip(&mut left).filter(|(budget, _)| {
            budget.namespace == pod.namespace
                && !budget.selector.is_empty()
                && budget.selector.matches(&pod.labels)
                && !budget.disrupted.contains(&pod.name)
        });
        let mut violates = false;
        for (_, left) in concerned {
            *left -= 1;
            violates |= *left < 0;
        }
        violates
    })
}

/// What counts against a candidate, most important first.
fn disturbance(candidate: &Candidate) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
    let highest = candidate
        .victims
        .iter()
        .map(|each| each.priority)
        .max()
        .unwrap_or(i32::MIN);
    let sum = candidate
        .victims
        .iter()
        .map(|each| i64::from(each.priority) + i64::from(i32::MAX) + 1)
        .sum();
    let highest_ones = candidate
        .victims
        .iter()
        .filter(|each| each.priority == highest);
    let oldest = highest_ones
        .map(|each| each.started.unwrap_or(Timestamp::MAX))
        .min()
        .unwrap_or(Timestamp::MAX);
    (
        candidate.violations,
        highest,
        sum,
        candidate.victims.len(),
        Reverse(oldest),
    )
}

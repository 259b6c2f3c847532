//! Why a pod got no node, as data, and as the sentence that people know.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::plugins::{PluginSet, Reason, Reasons};

/// A node that a plugin refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedNode {
    pub node: Arc<str>,
    /// The row in [`PLUGINS`](crate::plugins::PLUGINS).
    pub plugin: usize,
    pub reasons: Reasons,
    /// Taking other pods off the node could help.
    pub resolvable: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// How many nodes there are.
    pub nodes: usize,
    /// A reason that holds for every node.
    pub general: Option<Reason>,
    pub refused: Vec<RefusedNode>,
    /// What to say of nodes that were not looked at.
    pub unexamined: Option<Reason>,
    pub refused_by: PluginSet,
    /// Why taking pods off a node does not help; empty if it does.
    pub preemption: String,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        write!(f, "0/{} nodes are available:", self.nodes)?;
        match &self.general {
            Some(reason) => write!(f, " {reason}.")?,
            None => {
                let unexamined = self.nodes.saturating_sub(self.refused.len());
                let counted = count_reasons(self.refused.iter().map(|each| &each.reasons));
                write_reasons(f, counted, self.unexamined.as_ref(), unexamined)?;
            }
        }
        if !self.preemption.is_empty() {
            write!(f, " preemption: {}", self.preemption)?;
        }
        Ok(())
    }
}

type Histogram = BTreeMap<String, usize>;

fn count_reasons<'a>(reasons: impl Iterator<Item = &'a Reasons>) -> Histogram {
    let mut counts: BTreeMap<&Reason, usize> = BTreeMap::new();
    for reason in reasons.flat_map(Reasons::as_slice) {
        *counts.entry(reason).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|(reason, count)| (reason.to_string(), count))
        .collect()
}

fn write_reasons(
    f: &mut impl fmt::Write,
    mut counts: Histogram,
    of_the_rest: Option<&Reason>,
    rest: usize,
) -> fmt::Result {
    if let Some(reason) = of_the_rest.filter(|_| rest > 0) {
        *counts.entry(reason.to_string()).or_default() += rest;
    }
    if counts.is_empty() {
        return Ok(());
    }
    // In the order of the texts, numbers included: so upstream does it.
    let mut texts: Vec<String> = counts
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    texts.sort_unstable();
    write!(f, " {}.", texts.join(", "))
}

/// The sentence about a failed preemption: what each candidate node said, and that the rest is no candidate.
pub fn preemption_text<'a>(
    nodes: usize,
    candidates: impl ExactSizeIterator<Item = &'a Reasons>,
) -> String {
    let rest = nodes.saturating_sub(candidates.len());
    let mut text = format!("0/{nodes} nodes are available:");
    let not_helpful = Reason::Text("Preemption is not helpful for scheduling");
    if write_reasons(
        &mut text,
        count_reasons(candidates),
        Some(&not_helpful),
        rest,
    )
    .is_err()
    {
        // Writing to a string does not fail.
        text.clear();
    }
    text
}

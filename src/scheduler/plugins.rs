//! The plugins: rows of one table, each judging nodes for a pod and saying which changes could change its mind.
//!
//! A plugin is a file below this one and a row in [`PLUGINS`]. Order matters: the first plugin that
//! refuses a node gives the reason that people see.

mod balanced_allocation;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources;
mod node_unschedulable;
mod taint_toleration;
mod topology_spread;
mod volume_binding;

use std::fmt;
use std::sync::Arc;

use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::selector::Selector;
use crate::snapshot::Snapshot;

pub const MAX_SCORE: i64 = 100;

/// All plugins, in the order in which they are asked.
pub const PLUGINS: &[Plugin] = &[
    node_unschedulable::PLUGIN,
    node_name::PLUGIN,
    taint_toleration::PLUGIN,
    node_affinity::PLUGIN,
    node_ports::PLUGIN,
    node_resources::PLUGIN,
    volume_binding::PLUGIN,
    topology_spread::PLUGIN,
    inter_pod_affinity::PLUGIN,
    balanced_allocation::PLUGIN,
    image_locality::PLUGIN,
];

pub struct Plugin {
    pub name: &'static str,
    /// How much its score counts.
    pub weight: i64,
    pub filter: Option<fn(Cycle<'_>) -> Prepared<'_>>,
    /// Takes the nodes that are left; `None` if all are equally good.
    pub score: Option<Score>,
    /// Whether a pod that this plugin refused may fit after the event.
    pub wakes: fn(&PodInfo, &Event<'_>, &Snapshot) -> bool,
}

pub type Score = for<'a> fn(Cycle<'a>, &[usize]) -> Option<Scorer<'a>>;

/// One pod being placed.
#[derive(Clone, Copy)]
pub struct Cycle<'a> {
    pub pod: &'a PodInfo,
    pub snapshot: &'a Snapshot,
    /// What one node would look like with other pods on it.
    pub overlay: Option<(usize, &'a NodeInfo)>,
    /// Selects the pods beside which this one should not sit if it says nothing about spreading itself.
    pub default_spread: Option<&'a Selector>,
}

impl<'a> Cycle<'a> {
    pub fn nodes(self) -> impl Iterator<Item = &'a NodeInfo> {
        let nodes = self.snapshot.nodes().iter().enumerate();
        nodes.map(move |(at, node)| match self.overlay {
            Some((replaced, overlay)) if replaced == at => overlay,
            _ => node,
        })
    }
}

/// What a plugin says about a pod before it sees single nodes.
pub enum Prepared<'a> {
    /// It has nothing to say about this pod.
    Skip,
    /// No node will do.
    Reject(Reason),
    /// Only these nodes are worth a look; the filter still runs on them.
    Only(Vec<&'a str>, NodeFilter<'a>),
    Filter(NodeFilter<'a>),
}

pub type NodeFilter<'a> = Box<dyn Fn(&NodeInfo) -> Verdict + 'a>;

pub enum Verdict {
    Fits,
    /// Taking other pods off the node could help.
    Rejected(Reasons),
    /// Nothing about the other pods of the node would help.
    Unresolvable(Reasons),
}

impl Verdict {
    fn unresolvable_unless(fits: bool, reason: &'static str) -> Self {
        if fits {
            Self::Fits
        } else {
            Self::Unresolvable(Reasons::from(reason))
        }
    }

    fn rejected_unless(fits: bool, reason: &'static str) -> Self {
        if fits {
            Self::Fits
        } else {
            Self::Rejected(Reasons::from(reason))
        }
    }
}

/// Why a node was refused, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    Text(&'static str),
    Insufficient(Arc<str>),
    Other(Arc<str>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Insufficient(resource) => write!(f, "Insufficient {resource}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reasons {
    One(Reason),
    Many(Vec<Reason>),
}

impl Reasons {
    pub fn as_slice(&self) -> &[Reason] {
        match self {
            Self::One(reason) => std::slice::from_ref(reason),
            Self::Many(reasons) => reasons,
        }
    }
}

impl From<&'static str> for Reasons {
    fn from(text: &'static str) -> Self {
        Self::One(Reason::Text(text))
    }
}

/// Scores the nodes that are left.
pub struct Scorer<'a> {
    pub raw: Box<dyn Fn(&NodeInfo) -> i64 + 'a>,
    pub normalize: Normalize,
}

pub enum Normalize {
    /// The raw score already runs from 0 to 100.
    No,
    /// The largest becomes 100.
    ToMax,
    /// The largest becomes 0.
    Reverse,
    With(fn(&mut [i64])),
}

impl Normalize {
    pub fn apply(&self, scores: &mut [i64]) {
        match self {
            Self::No => {}
            Self::ToMax => to_max(scores, false),
            Self::Reverse => to_max(scores, true),
            Self::With(normalize) => normalize(scores),
        }
    }
}

fn to_max(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let scaled = if max == 0 {
            0
        } else {
            MAX_SCORE * *score / max
        };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}

/// Something that happened in the cluster and could make room for a pod.
pub enum Event<'a> {
    NodeAdded(&'a NodeInfo),
    NodeChanged {
        old: &'a NodeInfo,
        new: &'a NodeInfo,
    },
    NodeRemoved,
    PodPlaced(&'a PodInfo),
    /// Labels or requests of a pod on a node changed.
    PodChanged {
        old: &'a PodInfo,
        new: &'a PodInfo,
    },
    PodRemoved(&'a PodInfo),
    NamespaceChanged,
    /// A claim, a volume or a class of them.
    VolumesChanged,
}

impl Event<'_> {
    /// Whether `fits` holds on a node now and did not before the event.
    fn node_newly(&self, fits: impl Fn(&NodeInfo) -> bool) -> bool {
        match self {
            Self::NodeAdded(node) => fits(node),
            Self::NodeChanged { old, new } => fits(new) && !fits(old),
            _ => false,
        }
    }
}

/// A set of rows of [`PLUGINS`], a bit a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PluginSet(u32);

const _: () = assert!(PLUGINS.len() <= u32::BITS as usize);

impl PluginSet {
    pub fn insert(&mut self, plugin: usize) {
        self.0 |= 1 << plugin;
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = &'static Plugin> {
        PLUGINS
            .iter()
            .enumerate()
            .filter(move |(at, _)| self.0 & (1 << at) != 0)
            .map(|(_, plugin)| plugin)
    }

    /// Whether a pod refused by these plugins is worth another look.
    pub fn woken_by(self, pod: &PodInfo, event: &Event<'_>, snapshot: &Snapshot) -> bool {
        if self.is_empty() {
            return matches!(event, Event::NodeAdded(_));
        }
        self.iter()
            .any(|plugin| (plugin.wakes)(pod, event, snapshot))
    }
}

fn never_wakes(_: &PodInfo, _: &Event<'_>, _: &Snapshot) -> bool {
    false
}

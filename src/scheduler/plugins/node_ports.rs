//! Host ports that are taken on a node.

use super::{Cycle, Event, Plugin, Prepared, Verdict};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "NodePorts",
    weight: 0,
    filter: Some(filter),
    score: None,
    wakes,
};

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let pod = cycle.pod;
    if pod.ports.is_empty() {
        return Prepared::Skip;
    }
    Prepared::Filter(Box::new(move |node| {
        Verdict::rejected_unless(
            has_free(node, pod),
            "node(s) didn't have free ports for the requested pod ports",
        )
    }))
}

fn has_free(node: &NodeInfo, pod: &PodInfo) -> bool {
    !pod.ports
        .iter()
        .any(|wanted| node.ports.iter().any(|taken| taken.conflicts_with(wanted)))
}

fn wakes(pod: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    match event {
        Event::NodeAdded(node) => has_free(node, pod),
        Event::PodRemoved(gone) => gone
            .ports
            .iter()
            .any(|freed| pod.ports.iter().any(|wanted| wanted.conflicts_with(freed))),
        _ => false,
    }
}

//! A pod that names its node runs there and nowhere else.

use super::{Cycle, Event, Plugin, Prepared, Verdict};
use crate::pod_info::PodInfo;
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "NodeName",
    weight: 0,
    filter: Some(filter),
    score: None,
    wakes,
};

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let Some(wanted) = cycle.pod.node_name.as_deref() else {
        return Prepared::Skip;
    };
    Prepared::Filter(Box::new(move |node| {
        Verdict::unresolvable_unless(
            &*node.name == wanted,
            "node(s) didn't match the requested node name",
        )
    }))
}

fn wakes(pod: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    event.node_newly(|node| pod.node_name.as_deref() == Some(&*node.name))
}

//! A pod runs where its volumes can be reached, and not before they are bound.

use super::{Cycle, Event, Plugin, Prepared, Reason, Reasons, Verdict};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::snapshot::Snapshot;
use crate::volumes::Needs;

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const OUT_OF_REACH: &str = "node(s) didn't match PersistentVolume's node affinity";
const MISSING: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

pub const PLUGIN: Plugin = Plugin {
    name: "VolumeBinding",
    weight: 0,
    filter: Some(filter),
    score: None,
    wakes,
};

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let pod = cycle.pod;
    if pod.claims.is_empty() {
        return Prepared::Skip;
    }
    match cycle.snapshot.volumes().needs(&pod.namespace, &pod.claims) {
        Err(reason) => Prepared::Reject(Reason::Other(reason)),
        Ok(needs) => Prepared::Filter(Box::new(move |node| judge(&needs, node))),
    }
}

fn judge(needs: &Needs<'_>, node: &NodeInfo) -> Verdict {
    let reachable =
        |nodes: &&crate::selector::RequiredNodes| nodes.matches(&node.name, &node.labels);
    let reasons: Vec<Reason> = [
        (!needs.nodes.iter().all(reachable), OUT_OF_REACH),
        // Nobody makes volumes for a node that was chosen.
        (needs.waits, NO_VOLUME),
        (needs.missing, MISSING),
    ]
    .into_iter()
    .filter(|(holds, _)| *holds)
    .map(|(_, reason)| Reason::Text(reason))
    .collect();
    match reasons.is_empty() {
        true => Verdict::Fits,
        false => Verdict::Unresolvable(Reasons::Many(reasons)),
    }
}

fn wakes(_: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    matches!(
        event,
        Event::VolumesChanged | Event::NodeAdded(_) | Event::NodeChanged { .. }
    )
}

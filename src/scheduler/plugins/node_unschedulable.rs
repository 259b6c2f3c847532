//! Cordoned nodes take only pods that tolerate it.

use k8s_openapi::api::core::v1::Taint;

use super::taint_toleration::tolerates;
use super::{Cycle, Event, Plugin, Prepared, Verdict};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "NodeUnschedulable",
    weight: 0,
    filter: Some(filter),
    score: None,
    wakes,
};

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let tolerated = tolerates_cordon(cycle.pod);
    Prepared::Filter(Box::new(move |node| {
        Verdict::unresolvable_unless(
            tolerated || !node.unschedulable,
            "node(s) were unschedulable",
        )
    }))
}

fn tolerates_cordon(pod: &PodInfo) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    tolerates(&pod.tolerations, &taint)
}

fn wakes(_: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    event.node_newly(|node: &NodeInfo| !node.unschedulable)
}

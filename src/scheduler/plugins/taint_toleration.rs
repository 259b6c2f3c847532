//! Taints keep pods away unless they tolerate them.

use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::{Cycle, Event, Normalize, Plugin, Prepared, Scorer, Verdict};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::snapshot::Snapshot;

pub const PLUGIN: Plugin = Plugin {
    name: "TaintToleration",
    weight: 3,
    filter: Some(filter),
    score: Some(score),
    wakes,
};

fn filter(cycle: Cycle<'_>) -> Prepared<'_> {
    let tolerations = &cycle.pod.tolerations;
    Prepared::Filter(Box::new(move |node| {
        Verdict::unresolvable_unless(
            !has_untolerated(node, tolerations),
            "node(s) had untolerated taint(s)",
        )
    }))
}

fn score<'a>(cycle: Cycle<'a>, _: &[usize]) -> Option<Scorer<'a>> {
    let wishes = |node: &NodeInfo| {
        node.taints
            .iter()
            .any(|taint| taint.effect == "PreferNoSchedule")
    };
    if !cycle.nodes().any(wishes) {
        return None;
    }
    let tolerations: Vec<&Toleration> = cycle
        .pod
        .tolerations
        .iter()
        .filter(|each| matches!(each.effect.as_deref(), None | Some("" | "PreferNoSchedule")))
        .collect();
    let raw = move |node: &NodeInfo| {
        let unwelcome = node.taints.iter().filter(|taint| {
            taint.effect == "PreferNoSchedule"
                && !tolerations.iter().any(|each| tolerates_one(each, taint))
        });
        i64::try_from(unwelcome.count()).unwrap_or(i64::MAX)
    };
    Some(Scorer {
        raw: Box::new(raw),
        normalize: Normalize::Reverse,
    })
}

fn wakes(pod: &PodInfo, event: &Event<'_>, _: &Snapshot) -> bool {
    event.node_newly(|node| !has_untolerated(node, &pod.tolerations))
}

/// Whether a taint of the node keeps a pod with these tolerations from being scheduled.
pub fn has_untolerated(node: &NodeInfo, tolerations: &[Toleration]) -> bool {
    let keeps_away = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    node.taints
        .iter()
        .filter(keeps_away)
        .any(|taint| !tolerates(tolerations, taint))
}

pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|each| tolerates_one(each, taint))
}

fn tolerates_one(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    let number =
        |value: &Option<String>| value.as_deref().and_then(|value| value.parse::<i64>().ok());
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => text(&toleration.value) == text(&taint.value),
        "Exists" => true,
        "Lt" => number(&taint.value)
            .zip(number(&toleration.value))
            .is_some_and(|(taint, bound)| taint < bound),
        "Gt" => number(&taint.value)
            .zip(number(&toleration.value))
            .is_some_and(|(taint, bound)| taint > bound),
        _ => false,
    }
}

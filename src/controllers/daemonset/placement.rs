//! Which nodes a DaemonSet's pods belong on, and the pod for one of them.

use std::cmp::Ordering;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodSpec, Toleration,
};

use super::HASH_LABEL;
use crate::{affinity, owner, pods};

const NAME_FIELD: &str = "metadata.name";

/// Taints that never keep a daemon away, with the effect tolerated.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

pub(super) struct Verdict {
    /// A pod belongs here.
    pub(super) should_run: bool,
    /// A pod that is here may stay.
    pub(super) may_stay: bool,
}

pub(super) fn judge(spec: &DaemonSetSpec, node: &Node) -> Verdict {
    let none = Verdict {
        should_run: false,
        may_stay: false,
    };
    let Some(template) = &spec.template.spec else {
        return none;
    };
    let wanted = template.node_name.as_deref().unwrap_or_default();
    if !(wanted.is_empty() || wanted == owner::name(&node.metadata)) {
        return none;
    }
    if !affinity::wants(template, node) {
        return none;
    }
    let tolerations = tolerations(template);
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let tolerates = |effects: &[&str]| affinity::tolerates_all(&tolerations, &taints, effects);
    Verdict {
        should_run: tolerates(&["NoSchedule", "NoExecute"]),
        may_stay: tolerates(&["NoExecute"]),
    }
}

/// The template's tolerations and those every daemon has.
fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    let network = ("node.kubernetes.io/network-unavailable", "NoSchedule");
    let on_host = spec.host_network.unwrap_or(false);
    for (key, effect) in TOLERATED.into_iter().chain(on_host.then_some(network)) {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    tolerations
}

pub(super) fn pod_for(set: &DaemonSet, spec: &DaemonSetSpec, hash: &str, node: &str) -> Pod {
    let mut pod = pods::from_template(&spec.template, set);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    let generation = set.metadata.annotations.as_ref();
    let generation = generation.and_then(|map| map.get("deprecated.daemonset.template.generation"));
    if let Some(generation) = generation {
        labels.insert("pod-template-generation".to_owned(), generation.clone());
    }
    if let Some(spec) = &mut pod.spec {
        spec.tolerations = Some(tolerations(spec));
        bind_to(spec.affinity.get_or_insert_default(), node);
    }
    pod
}

/// Replaces what the template says about nodes by name; its other terms have been judged already.
fn bind_to(affinity: &mut Affinity, node: &str) {
    let by_name = NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm {
        match_fields: Some(vec![by_name]),
        match_expressions: None,
    };
    let node_affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    node_affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![term],
    });
}

/// The node a daemon's pod is on, or is meant for.
pub(super) fn target_node(pod: &Pod) -> &str {
    let bound = pods::node_name(pod);
    if !bound.is_empty() {
        return bound;
    }
    named_node(pod).unwrap_or_default()
}

fn named_node(pod: &Pod) -> Option<&str> {
    let affinity = pod
        .spec
        .as_ref()?
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let mut names = fields.filter(|field| field.key == NAME_FIELD);
    names.next()?.values.as_ref()?.first().map(String::as_str)
}

pub(super) fn scheduled_then_oldest(a: &Arc<Pod>, b: &Arc<Pod>) -> Ordering {
    let waits = |pod: &Pod| pods::node_name(pod).is_empty();
    let time = |pod: &Pod| pod.metadata.creation_timestamp.clone();
    waits(a)
        .cmp(&waits(b))
        .then_with(|| time(a).cmp(&time(b)))
        .then_with(|| a.metadata.name.cmp(&b.metadata.name))
}

//! Whether a pod's own demands let it run on a node: selector and required affinity.

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

use crate::owner;
use crate::tainteviction::tolerates;

/// `nodeSelector` and the required part of `nodeAffinity`.
pub(crate) fn wants(spec: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| {
        labels
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| label(key) == Some(value));
    let affinity = spec.affinity.as_ref();
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    selected
        && required.is_none_or(|required| {
            let mut terms = required.node_selector_terms.iter();
            terms.any(|term| term_matches(term, node))
        })
}

/// A term without any requirement matches no node.
fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let none = Vec::new();
    let expressions = term.match_expressions.as_ref().unwrap_or(&none);
    let fields = term.match_fields.as_ref().unwrap_or(&none);
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let labels = node.metadata.labels.as_ref();
    let by_label = |one: &NodeSelectorRequirement| {
        let value = labels.and_then(|labels| labels.get(&one.key));
        requirement_matches(one, value.map(String::as_str))
    };
    let by_field = |one: &NodeSelectorRequirement| {
        let name = (one.key == "metadata.name").then(|| owner::name(&node.metadata));
        requirement_matches(one, name)
    };
    expressions.iter().all(by_label) && fields.iter().all(by_field)
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|one| one == value);
    let numbers =
        || -> Option<(i64, i64)> { Some((value?.parse().ok()?, values.first()?.parse().ok()?)) };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(have, bound)| have > bound),
        "Lt" => numbers().is_some_and(|(have, bound)| have < bound),
        _ => false,
    }
}

/// Whether the pod tolerates all of the node's taints with one of these effects.
pub(crate) fn tolerates_all(
    tolerations: &[Toleration],
    taints: &[Taint],
    effects: &[&str],
) -> bool {
    let concerned = taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()));
    let tolerated = |taint: &Taint| tolerations.iter().any(|one| tolerates(one, taint));
    concerned.into_iter().all(tolerated)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::object;

    #[test]
    fn terms_are_alternatives_and_requirements_are_not() {
        let node: Node =
            object(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "cores": "8"}}}));
        let wants_terms = |terms: serde_json::Value| {
            let spec: PodSpec = object(json!({"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            }}}));
            wants(&spec, &node)
        };
        let zone = json!({"key": "zone", "operator": "In", "values": ["a", "b"]});
        let cores = json!({"key": "cores", "operator": "Gt", "values": ["8"]});
        assert!(wants_terms(json!([{"matchExpressions": [zone]}])));
        assert!(!wants_terms(json!([{"matchExpressions": [zone, cores]}])));
        assert!(wants_terms(
            json!([{"matchExpressions": [cores]}, {"matchExpressions": [zone]}])
        ));
        let other = json!({"key": "metadata.name", "operator": "In", "values": ["n2"]});
        assert!(!wants_terms(json!([{"matchFields": [other]}])));
        assert!(!wants_terms(json!([{}])));
    }
}

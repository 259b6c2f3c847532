//! Where pods may go: affinity, tolerations, taints, spreading.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{label_name, label_selector, one_of, required_one_of};
use crate::field::{ErrorList, Path};
use crate::meta::{entries, get, integer, items, text};
use crate::names;

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(crate) fn affinity(affinity: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    node_affinity(
        get(affinity, "nodeAffinity"),
        &path.child("nodeAffinity"),
        errors,
    );
    for key in ["podAffinity", "podAntiAffinity"] {
        let rules = get(affinity, key);
        let at = path.child(key);
        let required = at.child(REQUIRED);
        for (index, term) in items(rules, &[REQUIRED]).iter().enumerate() {
            pod_term(term, &required.index(index), errors);
        }
        let preferred = at.child(PREFERRED);
        for (index, weighted) in items(rules, &[PREFERRED]).iter().enumerate() {
            let at = preferred.index(index);
            weight(weighted, &at, errors);
            let term = get(weighted, "podAffinityTerm");
            pod_term(term, &at.child("podAffinityTerm"), errors);
        }
    }
}

fn weight(term: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let weight = integer(term, &["weight"]).unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.invalid(&path.child("weight"), weight, "must be in the range 1-100");
    }
}

fn node_affinity(affinity: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let required = get(affinity, REQUIRED);
    if !required.is_null() {
        node_selector(required, &path.child(REQUIRED), errors);
    }
    let preferred = path.child(PREFERRED);
    for (index, term) in items(affinity, &[PREFERRED]).iter().enumerate() {
        let at = preferred.index(index);
        weight(term, &at, errors);
        node_term(
            get(term, "preference"),
            false,
            &at.child("preference"),
            errors,
        );
    }
}

pub(crate) fn node_selector(selector: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let list = path.child("nodeSelectorTerms");
    let terms = items(selector, &["nodeSelectorTerms"]);
    if terms.is_empty() {
        errors.required(&list, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        node_term(term, true, &list.index(index), errors);
    }
}

/// Values are only checked where a term is a must.
fn node_term(term: &Value, strict: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let list = path.child("matchExpressions");
    for (index, rule) in items(term, &["matchExpressions"]).iter().enumerate() {
        node_requirement(rule, strict, &list.index(index), errors);
    }
    let list = path.child("matchFields");
    for (index, rule) in items(term, &["matchFields"]).iter().enumerate() {
        node_field(rule, &list.index(index), errors);
    }
}

fn node_requirement(rule: &Value, strict: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let values = items(rule, &["values"]);
    let at = path.child("values");
    match text(rule, &["operator"]) {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&at, why);
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.required(&at, why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        ),
    }
    label_name(text(rule, &["key"]), &path.child("key"), errors);
    if strict {
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            errors.invalid_each(&at.index(index), value, names::label_value(value));
        }
    }
}

fn node_field(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let values = items(rule, &["values"]);
    let at = path.child("values");
    match text(rule, &["operator"]) {
        "In" | "NotIn" => {
            if values.len() != 1 {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.required(&at, why);
            }
        }
        other => errors.invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        ),
    }
    let key = text(rule, &["key"]);
    if key != "metadata.name" {
        errors.invalid(&path.child("key"), key, "not a valid field selector key");
        return;
    }
    for (index, value) in values.iter().enumerate() {
        super::dns_subdomain(value.as_str().unwrap_or_default(), &at.index(index), errors);
    }
}

fn pod_term(term: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    label_selector(
        get(term, "labelSelector"),
        &path.child("labelSelector"),
        errors,
    );
    label_selector(
        get(term, "namespaceSelector"),
        &path.child("namespaceSelector"),
        errors,
    );
    for name in items(term, &["namespaces"]) {
        super::dns_label(
            name.as_str().unwrap_or_default(),
            &path.child("namespace"),
            errors,
        );
    }
    match_label_keys(term, path, errors);
    let key = text(term, &["topologyKey"]);
    let at = path.child("topologyKey");
    if key.is_empty() {
        errors.required(&at, "can not be empty");
    }
    label_name(key, &at, errors);
}

/// `matchLabelKeys` and `mismatchLabelKeys` beside a selector that may already hold what follows
/// from them.
fn match_label_keys(term: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let selector = get(term, "labelSelector");
    let keys = |list: &str| -> Vec<&str> {
        items(term, &[list])
            .iter()
            .filter_map(Value::as_str)
            .collect()
    };
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let at = path.child(list);
        let keys = keys(list);
        if keys.is_empty() {
            continue;
        }
        if selector.is_null() {
            errors.forbidden(&at, "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            label_name(key, &at.index(index), errors);
        }
    }
    let (matching, mismatching) = (keys("matchLabelKeys"), keys("mismatchLabelKeys"));
    let mut seen: BTreeSet<&str> = entries(selector, &["matchLabels"])
        .map(|(key, _)| key.as_str())
        .collect();
    for rule in items(selector, &["matchExpressions"]) {
        let key = text(rule, &["key"]);
        if let Some(index) = matching.iter().rposition(|one| *one == key)
            && seen.contains(key)
        {
            let why = "exists in both matchLabelKeys and labelSelector";
            errors.invalid(&path.index(index), key, why);
        }
        seen.insert(key);
    }
    let at = path.child("matchLabelKeys");
    for (index, key) in matching.iter().enumerate() {
        if mismatching.contains(key) {
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.invalid(&at.index(index), *key, why);
        }
    }
}

pub(crate) fn tolerations(tolerations: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, one) in tolerations.iter().enumerate() {
        toleration(one, &path.index(index), errors);
    }
}

fn toleration(one: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let part = |key: &str| text(one, &[key]);
    let (key, operator, value, effect) =
        (part("key"), part("operator"), part("value"), part("effect"));
    let operator_path = path.child("operator");
    let effect_path = path.child("effect");
    if !key.is_empty() {
        label_name(key, &path.child("key"), errors);
    } else if operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&operator_path, operator, why);
    }
    if !get(one, "tolerationSeconds").is_null() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(&effect_path, effect, why);
    }
    match operator {
        "Equal" | "" => {
            let messages = names::label_value(value);
            if !messages.is_empty() {
                errors.invalid(&operator_path, value, messages.join(";"));
            }
        }
        "Exists" => {
            if !value.is_empty() {
                errors.invalid(
                    &operator_path,
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
        }
        "Lt" | "Gt" => {
            let valid = ["Equal", "Exists", "Lt", "Gt"];
            errors.not_supported(&operator_path, operator, &valid);
        }
        other => errors.not_supported(&operator_path, other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        one_of(effect, EFFECTS, &effect_path, errors);
    }
}

/// Taints of a node.
pub(crate) fn taints(taints: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let at = path.index(index);
        let (key, value) = (text(taint, &["key"]), text(taint, &["value"]));
        let effect = text(taint, &["effect"]);
        label_name(key, &at.child("key"), errors);
        let messages = names::label_value(value);
        if !messages.is_empty() {
            errors.invalid(&at.child("value"), value, messages.join(";"));
        }
        required_one_of(effect, EFFECTS, &at.child("effect"), errors);
        if !effect.is_empty() && !seen.insert((key, effect)) {
            errors.add(
                crate::field::ErrorKind::Duplicate,
                &at,
                Some(taint.clone()),
                "taints must be unique by key and effect pair",
            );
        }
    }
}

pub(crate) fn spread_constraints(list: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, constraint) in list.iter().enumerate() {
        let at = path.index(index);
        let skew = integer(constraint, &["maxSkew"]).unwrap_or(0);
        if skew <= 0 {
            errors.invalid(&at.child("maxSkew"), skew, "must be greater than zero");
        }
        let key = text(constraint, &["topologyKey"]);
        if key.is_empty() {
            errors.required(&at.child("topologyKey"), "can not be empty");
        }
        let action = text(constraint, &["whenUnsatisfiable"]);
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        one_of(action, &actions, &at.child("whenUnsatisfiable"), errors);
        let same = |other: &Value| {
            text(other, &["topologyKey"]) == key && text(other, &["whenUnsatisfiable"]) == action
        };
        if list[index + 1..].iter().any(same) {
            let pair = at.child("{topologyKey, whenUnsatisfiable}");
            errors.duplicate(&pair, format!("{{{key}, {action}}}"));
        }
        min_domains(constraint, action, &at.child("minDomains"), errors);
        for key in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = get(constraint, key).as_str() {
                one_of(policy, &["Honor", "Ignore"], &at.child(key), errors);
            }
        }
        match_label_keys(constraint, &at, errors);
        label_selector(
            get(constraint, "labelSelector"),
            &at.child("labelSelector"),
            errors,
        );
    }
}

fn min_domains(constraint: &Value, action: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(minimum) = integer(constraint, &["minDomains"]) else {
        return;
    };
    if minimum <= 0 {
        errors.invalid(path, minimum, "must be greater than zero");
    }
    if action != "DoNotSchedule" {
        let why =
            format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        errors.invalid(path, minimum, why);
    }
}

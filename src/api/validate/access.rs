//! Roles and their bindings.

use serde_json::Value;

use super::{dns_subdomain, label_selector, one_of};
use crate::field::{ErrorList, Path};
use crate::meta::{get, items, text};
use crate::names;
use crate::selector::Selector;

const GROUP: &str = "rbac.authorization.k8s.io";

fn rules(role: &Value, namespaced: bool, errors: &mut ErrorList) {
    let path = Path::new("rules");
    for (index, rule) in items(role, &["rules"]).iter().enumerate() {
        let at = path.index(index);
        let is_empty = |key: &str| items(rule, &[key]).is_empty();
        if is_empty("verbs") {
            errors.required(&at.child("verbs"), "verbs must contain at least one value");
        }
        if !is_empty("nonResourceURLs") {
            let urls = at.child("nonResourceURLs");
            let shown = items(rule, &["nonResourceURLs"]).to_vec();
            if namespaced {
                let why = "namespaced rules cannot apply to non-resource URLs";
                errors.invalid(&urls, shown.clone(), why);
            }
            if !["apiGroups", "resources", "resourceNames"]
                .iter()
                .all(|key| is_empty(key))
            {
                let why = "rules cannot apply to both regular resources and non-resource URLs";
                errors.invalid(&urls, shown, why);
            }
            continue;
        }
        if is_empty("apiGroups") {
            let why = "resource rules must supply at least one api group";
            errors.required(&at.child("apiGroups"), why);
        }
        if is_empty("resources") {
            let why = "resource rules must supply at least one resource";
            errors.required(&at.child("resources"), why);
        }
    }
}

pub(crate) fn role(role: &Value, errors: &mut ErrorList) {
    rules(role, true, errors);
}

pub(crate) fn cluster_role(role: &Value, errors: &mut ErrorList) {
    rules(role, false, errors);
    let aggregation = get(role, "aggregationRule");
    if aggregation.is_null() {
        return;
    }
    let path = Path::new("aggregationRule.clusterRoleSelectors");
    let selectors = items(aggregation, &["clusterRoleSelectors"]);
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.required(&path, why);
    }
    for (index, selector) in selectors.iter().enumerate() {
        let at = path.index(index);
        label_selector(selector, &at, errors);
        if Selector::from_object(selector).is_err() {
            errors.invalid(&at, Value::Null, "invalid label selector.");
        }
    }
}

fn binding(binding: &Value, kinds: &[&str], namespaced: bool, errors: &mut ErrorList) {
    let path = Path::new("roleRef");
    let reference = get(binding, "roleRef");
    one_of(
        text(reference, &["apiGroup"]),
        &[GROUP],
        &path.child("apiGroup"),
        errors,
    );
    one_of(
        text(reference, &["kind"]),
        kinds,
        &path.child("kind"),
        errors,
    );
    let name = text(reference, &["name"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    } else {
        errors.invalid_each(&path.child("name"), name, names::path_segment(name));
    }
    let list = Path::new("subjects");
    for (index, one) in items(binding, &["subjects"]).iter().enumerate() {
        subject(one, namespaced, &list.index(index), errors);
    }
}

fn subject(subject: &Value, namespaced: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let name = text(subject, &["name"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    let group = text(subject, &["apiGroup"]);
    match text(subject, &["kind"]) {
        "ServiceAccount" => {
            if !name.is_empty() {
                dns_subdomain(name, &path.child("name"), errors);
            }
            if !group.is_empty() {
                errors.not_supported(&path.child("apiGroup"), group, &[""]);
            }
            if !namespaced && text(subject, &["namespace"]).is_empty() {
                errors.required(&path.child("namespace"), "");
            }
        }
        "User" | "Group" => one_of(group, &[GROUP], &path.child("apiGroup"), errors),
        other => {
            let valid = ["ServiceAccount", "User", "Group"];
            errors.not_supported(&path.child("kind"), other, &valid);
        }
    }
}

pub(crate) fn role_binding(object: &Value, errors: &mut ErrorList) {
    binding(object, &["Role", "ClusterRole"], true, errors);
}

pub(crate) fn cluster_role_binding(object: &Value, errors: &mut ErrorList) {
    binding(object, &["ClusterRole"], false, errors);
}

/// A binding stays bound to its role.
pub(crate) fn same_role(new: &Value, old: &Value, errors: &mut ErrorList) {
    let role = get(new, "roleRef");
    if role != get(old, "roleRef") {
        errors.invalid(&Path::new("roleRef"), role.clone(), "cannot change roleRef");
    }
}

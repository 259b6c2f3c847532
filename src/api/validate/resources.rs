//! Resource names and amounts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{NON_NEGATIVE, label_name};
use crate::field::{ErrorList, Path};
use crate::meta::{entries, get, items, text};
use crate::names;
use crate::quantity::Quantity;

const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

/// Resources that are counted.
const COUNTED: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

pub(crate) fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Names without a domain, or with Kubernetes' own.
pub(crate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name) || is_hugepages(name)
}

fn is_extended(name: &str) -> bool {
    if is_native(name) || name.starts_with("requests.") {
        return false;
    }
    names::label_key(&format!("requests.{name}")).is_empty()
}

fn is_integer(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

pub(super) fn allows_overcommit(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

pub(crate) fn resource_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let before = errors.len();
    label_name(name, path, errors);
    if errors.len() == before && !name.contains('/') && !is_standard(name) {
        errors.invalid(
            path,
            name,
            "must be a standard resource type or fully qualified",
        );
    }
}

pub(super) fn container_resource_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    resource_name(name, path, errors);
    if !name.contains('/') {
        let standard = ["cpu", "memory", "ephemeral-storage"].contains(&name) || is_hugepages(name);
        if !standard {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

pub(crate) fn parse(value: &Value) -> Quantity {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(Quantity::ZERO)
}

pub(crate) fn non_negative_quantity(value: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if parse(value).is_negative() {
        errors.invalid(path, value.clone(), NON_NEGATIVE);
    }
}

pub(crate) fn resource_value(name: &str, value: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    non_negative_quantity(value, path, errors);
    if is_integer(name) && !parse(value).is_integer() {
        errors.invalid(path, value.clone(), "must be an integer");
    }
}

/// Requests and limits of a container; `claims` are those the pod declares.
pub(crate) fn container_resources(
    resources: &Value,
    claims: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let mut basic = false;
    let mut huge = false;
    for (name, value) in entries(resources, &["limits"]) {
        let at = limits_path.key(name);
        container_resource_name(name, &at, errors);
        resource_value(name, value, &at, errors);
        hugepages(name, value, &at, errors);
        basic |= name == "cpu" || name == "memory";
        huge |= is_hugepages(name);
    }
    for (name, value) in entries(resources, &["requests"]) {
        let at = requests_path.key(name);
        container_resource_name(name, &at, errors);
        resource_value(name, value, &at, errors);
        request_fits(resources, name, value, path, errors);
        hugepages(name, value, &at, errors);
        basic |= name == "cpu" || name == "memory";
        huge |= is_hugepages(name);
    }
    if huge && !basic {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    claim_names(resources, claims, &path.child("claims"), errors);
}

fn hugepages(name: &str, value: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(size) = name.strip_prefix("hugepages-") else {
        return;
    };
    let Ok(page) = size.parse::<Quantity>() else {
        return;
    };
    let amount = parse(value);
    if !page.is_zero() && amount.nano_value() % page.nano_value() != 0 {
        let why = format!("{amount} is not positive integer multiple of {page}");
        errors.invalid(path, value.clone(), why);
    }
}

fn request_fits(
    resources: &Value,
    name: &str,
    value: &Value,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let limit = get(get(resources, "limits"), name);
    let request = parse(value);
    if limit.is_null() {
        if !allows_overcommit(name) {
            let why = "Limit must be set for non overcommitable resources";
            errors.required(&path.child("limits"), why);
        }
        return;
    }
    let bound = parse(limit);
    let at = path.child("requests");
    if request != bound && !allows_overcommit(name) {
        let why = format!("must be equal to {name} limit of {bound}");
        errors.invalid(&at, request.to_string(), why);
    } else if request > bound {
        let why = format!("must be less than or equal to {name} limit of {bound}");
        errors.invalid(&at, request.to_string(), why);
    }
}

fn claim_names(
    resources: &Value,
    claims: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (index, claim) in items(resources, &["claims"]).iter().enumerate() {
        let at = path.index(index);
        let (name, request) = (text(claim, &["name"]), text(claim, &["request"]));
        if name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        if !seen.insert((name, request)) {
            let shown = if request.is_empty() {
                name.to_owned()
            } else {
                format!("{name}/{request}")
            };
            errors.duplicate(&at, shown);
        }
        if !claims.contains(name) {
            errors.not_found(&at, name);
        }
    }
}

/// Amounts of a list in which any resource may stand (overhead, node capacity, quota).
pub(crate) fn resource_list(list: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (name, value) in list.as_object().into_iter().flatten() {
        let at = path.key(name);
        resource_name(name, &at, errors);
        resource_value(name, value, &at, errors);
    }
}

//! Flow schemas and priority levels.

use serde_json::Value;

use super::{dns_label, dns_subdomain, one_of};
use crate::field::{ErrorList, Path};
use crate::meta::{boolean, get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");

pub(crate) fn schema(schema: &Value, errors: &mut ErrorList) {
    let spec = get(schema, "spec");
    let precedence = integer(spec, &["matchingPrecedence"]).unwrap_or(0);
    let path = SPEC.child("matchingPrecedence");
    if precedence <= 0 {
        errors.invalid(&path, precedence, "must be a positive value");
    }
    if precedence > 10_000 {
        errors.invalid(&path, precedence, "must not be greater than 10000");
    }
    if precedence == 1 && text(schema, &["metadata", "name"]) != "exempt" {
        let why = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.invalid(&path, precedence, why);
    }
    let method = get(spec, "distinguisherMethod");
    if !method.is_null() {
        let kind = text(method, &["type"]);
        if !matches!(kind, "ByUser" | "ByNamespace") {
            let path = SPEC.child("distinguisherMethod");
            let valid = ["ByNamespace", "ByUser"];
            errors.not_supported(&path.child("type"), method.clone(), &valid);
        }
    }
    let level = text(spec, &["priorityLevelConfiguration", "name"]);
    let path = SPEC.child("priorityLevelConfiguration");
    if level.is_empty() {
        errors.required(&path.child("name"), "must reference a priority level");
    } else {
        dns_subdomain(level, &path.child("name"), errors);
    }
    let path = SPEC.child("rules");
    for (index, rule) in items(spec, &["rules"]).iter().enumerate() {
        self::rule(rule, &path.index(index), errors);
    }
}

fn rule(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let subjects = items(rule, &["subjects"]);
    let list = path.child("subjects");
    if subjects.is_empty() {
        errors.required(&list, "subjects must contain at least one value");
    }
    for (index, one) in subjects.iter().enumerate() {
        subject(one, &list.index(index), errors);
    }
    let (resources, urls) = (
        items(rule, &["resourceRules"]),
        items(rule, &["nonResourceRules"]),
    );
    if resources.is_empty() && urls.is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.required(path, why);
    }
    let list = path.child("resourceRules");
    for (index, one) in resources.iter().enumerate() {
        resource_rule(one, &list.index(index), errors);
    }
    let list = path.child("nonResourceRules");
    for (index, one) in urls.iter().enumerate() {
        url_rule(one, &list.index(index), errors);
    }
}

/// Kinds of subjects and their members.
const SUBJECTS: &[(&str, &str)] = &[
    ("ServiceAccount", "serviceAccount"),
    ("User", "user"),
    ("Group", "group"),
];

fn subject(subject: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = text(subject, &["kind"]);
    if !SUBJECTS.iter().any(|row| row.0 == kind) {
        let valid = ["Group", "ServiceAccount", "User"];
        errors.not_supported(&path.child("kind"), kind, &valid);
        return;
    }
    for (own, member) in SUBJECTS {
        let value = get(subject, member);
        let at = path.child(member);
        if *own != kind {
            if !value.is_null() {
                let why = format!("{member} is forbidden when subject kind is not '{own}'");
                errors.forbidden(&at, why);
            }
            continue;
        }
        if value.is_null() {
            let why = format!("{member} is required when subject kind is '{own}'");
            errors.required(&at, why);
            continue;
        }
        let name = text(value, &["name"]);
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if *own == "ServiceAccount" && name != "*" {
            dns_subdomain(name, &at.child("name"), errors);
        }
        if *own == "ServiceAccount" {
            let namespace = text(value, &["namespace"]);
            if namespace.is_empty() {
                let why = "must specify namespace for service account";
                errors.required(&at.child("namespace"), why);
            } else {
                dns_label(namespace, &at.child("namespace"), errors);
            }
        }
    }
}

const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];

fn has_wildcard(list: &[Value]) -> bool {
    list.iter().any(|one| one == "*")
}

fn verbs(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let list = items(rule, &["verbs"]);
    let at = path.child("verbs");
    let known = |one: &Value| one.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if list.is_empty() {
        errors.required(&at, "verbs must contain at least one value");
    } else if has_wildcard(list) {
        if list.len() > 1 {
            let why = "if '*' is present, must not specify other verbs";
            errors.invalid(&at, list.to_vec(), why);
        }
    } else if !list.iter().all(known) {
        errors.not_supported(&at, list.to_vec(), VERBS);
    }
}

fn resource_rule(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    verbs(rule, path, errors);
    for (key, one, other) in [
        ("apiGroups", "api group", "api groups"),
        ("resources", "resource", "resources"),
    ] {
        let list = items(rule, &[key]);
        if list.is_empty() {
            let why = format!("resource rules must supply at least one {one}");
            errors.required(&path.child(key), why);
        } else if list.len() > 1 && has_wildcard(list) {
            let why = format!("if '*' is present, must not specify other {other}");
            errors.invalid(&path.child(key), list.to_vec(), why);
        }
    }
    let namespaces = items(rule, &["namespaces"]);
    let at = path.child("namespaces");
    if namespaces.is_empty() && !boolean(rule, &["clusterScope"]) {
        let why = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.required(&at, why);
    } else if has_wildcard(namespaces) {
        if namespaces.len() > 1 {
            let why = "if '*' is present, must not specify other namespaces";
            errors.invalid(&at, namespaces.to_vec(), why);
        }
    } else {
        for (index, name) in namespaces.iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            for message in names::dns1123_label(name) {
                let why =
                    format!("each member of this list must be '*' or a DNS-1123 label; {message}");
                errors.invalid(&at.index(index), name, why);
            }
        }
    }
}

fn url_rule(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    verbs(rule, path, errors);
    let urls = items(rule, &["nonResourceURLs"]);
    let at = path.child("nonResourceURLs");
    if urls.is_empty() {
        errors.required(&at, "nonResourceURLs must contain at least one value");
    } else if has_wildcard(urls) {
        if urls.len() > 1 {
            let why = "if '*' is present, must not specify other non-resource URLs";
            errors.invalid(&at, urls.to_vec(), why);
        }
    } else {
        for (index, url) in urls.iter().enumerate() {
            let url = url.as_str().unwrap_or_default();
            let at = at.index(index);
            let why = if url.is_empty() {
                "must not be empty"
            } else if url == "/" {
                continue;
            } else if !url.starts_with('/') {
                "must start with slash"
            } else if url.contains(' ') {
                "must not contain white-space"
            } else if url.contains("//") {
                "must not contain double slash"
            } else if url.trim_end_matches("/*").contains('*') {
                "wildcard can only do suffix matching"
            } else {
                continue;
            };
            errors.invalid(&at, url, why);
        }
    }
}

pub(crate) fn level(level: &Value, errors: &mut ErrorList) {
    let spec = get(level, "spec");
    let kind = text(spec, &["type"]);
    if (text(level, &["metadata", "name"]) == "exempt") != (kind == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.invalid(&SPEC.child("type"), kind, why);
    }
    let (limited, exempt) = (get(spec, "limited"), get(spec, "exempt"));
    let (limited_path, exempt_path) = (SPEC.child("limited"), SPEC.child("exempt"));
    match kind {
        "Exempt" => {
            if !limited.is_null() {
                errors.forbidden(&limited_path, "must be nil if the type is not Limited");
            }
            shares(exempt, &exempt_path, errors);
        }
        "Limited" => {
            if !exempt.is_null() {
                errors.forbidden(&exempt_path, "must be nil if the type is Limited");
            }
            if limited.is_null() {
                errors.required(&limited_path, "must not be empty when type is Limited");
            } else {
                limits(limited, &limited_path, errors);
            }
        }
        other => errors.not_supported(&SPEC.child("type"), other, &["Exempt", "Limited"]),
    }
}

fn shares(holder: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(shares) = integer(holder, &["nominalConcurrencyShares"])
        && shares < 0
    {
        let why = "must be a non-negative integer";
        errors.invalid(&path.child("nominalConcurrencyShares"), shares, why);
    }
    if let Some(percent) = integer(holder, &["lendablePercent"])
        && !(0..=100).contains(&percent)
    {
        let why = "must be between 0 and 100, inclusive";
        errors.invalid(&path.child("lendablePercent"), percent, why);
    }
}

fn limits(limited: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    shares(limited, path, errors);
    let response = get(limited, "limitResponse");
    let at = path.child("limitResponse");
    let kind = text(response, &["type"]);
    let queuing = get(response, "queuing");
    let queuing_path = at.child("queuing");
    match kind {
        "Reject" => {
            if !queuing.is_null() {
                errors.forbidden(
                    &queuing_path,
                    "must be nil if limited.limitResponse.type is not Limited",
                );
            }
        }
        "Queue" if queuing.is_null() => {
            errors.required(
                &queuing_path,
                "must not be empty if limited.limitResponse.type is Limited",
            );
        }
        "Queue" => {
            for key in ["queueLengthLimit", "queues", "handSize"] {
                let number = integer(queuing, &[key]).unwrap_or(0);
                if number <= 0 {
                    errors.invalid(&queuing_path.child(key), number, "must be positive");
                }
            }
            let hand = integer(queuing, &["handSize"]).unwrap_or(0);
            let queues = integer(queuing, &["queues"]).unwrap_or(0);
            if hand > queues && queues > 0 {
                let why = format!("should not be greater than queues ({queues})");
                errors.invalid(&queuing_path.child("handSize"), hand, why);
            }
        }
        other => one_of(other, &["Queue", "Reject"], &at.child("type"), errors),
    }
    if let Some(percent) = integer(limited, &["borrowingLimitPercent"])
        && percent < 0
    {
        let why = "if specified, must be a non-negative integer";
        errors.invalid(&path.child("borrowingLimitPercent"), percent, why);
    }
}

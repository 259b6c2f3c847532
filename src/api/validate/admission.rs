//! Webhooks and admission policies. Expressions are only checked for being there.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{dns_subdomain, label_name, label_selector, one_of, required_one_of};
use crate::field::{ErrorList, Path};
use crate::meta::{get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");

pub(crate) fn webhooks(configuration: &Value, errors: &mut ErrorList) {
    let list = Path::new("webhooks");
    let mut seen = BTreeSet::new();
    for (index, hook) in items(configuration, &["webhooks"]).iter().enumerate() {
        let at = list.index(index);
        webhook(hook, &at, errors);
        review_versions(hook, &at.child("admissionReviewVersions"), errors);
        let name = text(hook, &["name"]);
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
    }
}

fn webhook(hook: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let name = text(hook, &["name"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    } else {
        errors.invalid_each(&path.child("name"), name, names::fully_qualified(name));
    }
    rules(hook, "rules", &path.child("rules"), errors);
    for (key, valid) in [
        ("failurePolicy", &["Fail", "Ignore"]),
        ("matchPolicy", &["Equivalent", "Exact"]),
    ] {
        if let Some(value) = get(hook, key).as_str() {
            one_of(value, valid, &path.child(key), errors);
        }
    }
    let effects = path.child("sideEffects");
    match get(hook, "sideEffects").as_str() {
        None => errors.required(&effects, "must specify one of None, NoneOnDryRun"),
        Some(value) => one_of(value, &["None", "NoneOnDryRun"], &effects, errors),
    }
    if let Some(seconds) = integer(hook, &["timeoutSeconds"])
        && !(1..=30).contains(&seconds)
    {
        let why = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&path.child("timeoutSeconds"), seconds, why);
    }
    for key in ["namespaceSelector", "objectSelector"] {
        label_selector(get(hook, key), &path.child(key), errors);
    }
    if let Some(value) = get(hook, "reinvocationPolicy").as_str() {
        one_of(
            value,
            &["IfNeeded", "Never"],
            &path.child("reinvocationPolicy"),
            errors,
        );
    }
    client_config(
        get(hook, "clientConfig"),
        &path.child("clientConfig"),
        errors,
    );
    conditions(hook, &path.child("matchConditions"), errors);
}

/// Where a webhook is.
pub(crate) fn client_config(config: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (url, service) = (get(config, "url"), get(config, "service"));
    match (url.as_str(), service.is_null()) {
        (None, true) | (Some(_), false) => {
            errors.required(path, "exactly one of url or service is required");
        }
        (Some(url), true) => webhook_url(url, &path.child("url"), errors),
        (None, false) => webhook_service(service, &path.child("service"), errors),
    }
}

const FORM: &str = "; desired format: https://host[/path]";

fn webhook_url(url: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let Some((scheme, rest)) = url.split_once("://") else {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.invalid(path, "", why);
        if url.is_empty() || !url.starts_with('/') {
            errors.invalid(path, "", format!("host must be specified{FORM}"));
        }
        return;
    };
    if scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.invalid(path, scheme, why);
    }
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, host) = match host.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, host),
    };
    if host.is_empty() {
        errors.invalid(path, host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if let Some((_, fragment)) = rest.split_once('#') {
        errors.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if let Some((_, query)) = rest.split_once('?') {
        let query = query.split('#').next().unwrap_or_default();
        errors.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn webhook_service(service: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if text(service, &["name"]).is_empty() {
        errors.required(&path.child("name"), "service name is required");
    }
    if text(service, &["namespace"]).is_empty() {
        errors.required(&path.child("namespace"), "service namespace is required");
    }
    let port = integer(service, &["port"]).unwrap_or(443);
    for message in names::port_number(port) {
        let why = format!("port is not valid: {message}");
        errors.invalid(&path.child("port"), port, why);
    }
    let Some(target) = get(service, "path").as_str() else {
        return;
    };
    let at = path.child("path");
    if target == "/" || target.is_empty() {
        return;
    }
    if target == "//" {
        errors.invalid(&at, target, "segment[0] may not be empty");
        return;
    }
    if !target.starts_with('/') {
        errors.invalid(&at, target, "must start with a '/'");
    }
    let body = target.trim_start_matches('/');
    for (index, step) in body.trim_end_matches('/').split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(&at, target, format!("segment[{index}] may not be empty"));
            continue;
        }
        for message in names::dns1123_subdomain(step) {
            errors.invalid(&at, target, format!("segment[{index}]: {message}"));
        }
    }
}

fn review_versions(hook: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let versions = items(hook, &["admissionReviewVersions"]);
    if versions.is_empty() {
        errors.required(path, "must specify one of v1, v1beta1");
        return;
    }
    let mut accepted = false;
    for (index, version) in versions.iter().enumerate() {
        let version = version.as_str().unwrap_or_default();
        let at = path.index(index);
        if versions[..index].iter().any(|one| one == version) {
            errors.invalid(&at, version, "duplicate version");
            continue;
        }
        errors.invalid_each(&at, version, names::dns1035_label(version));
        accepted |= matches!(version, "v1" | "v1beta1");
    }
    if !accepted {
        let why = "must include at least one of v1, v1beta1";
        errors.invalid(path, versions.to_vec(), why);
    }
}

fn rules(holder: &Value, list: &str, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, one) in items(holder, &[list]).iter().enumerate() {
        rule(one, &path.index(index), errors);
    }
}

fn wildcard(values: &[Value]) -> bool {
    values.iter().any(|value| value == "*")
}

/// Operations and what they are done to.
fn rule(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    names_of(rule, path, errors);
    for (key, what) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let at = path.child(key);
        let values = items(rule, &[key]);
        if values.is_empty() {
            errors.required(&at, "");
        }
        if values.len() > 1 && wildcard(values) {
            let why = format!("if '*' is present, must not specify other {what}");
            errors.invalid(&at, values.to_vec(), why);
        }
        for (index, value) in values.iter().enumerate() {
            if key == "apiVersions" && value == "" {
                errors.required(&at.index(index), "");
            }
        }
    }
    let resources = items(rule, &["resources"]);
    let at = path.child("resources");
    if resources.is_empty() {
        errors.required(&at, "");
    }
    rule_resources(resources, &at, errors);
    if let Some(scope) = get(rule, "scope").as_str() {
        one_of(
            scope,
            &["*", "Cluster", "Namespaced"],
            &path.child("scope"),
            errors,
        );
    }
    let operations = items(rule, &["operations"]);
    let at = path.child("operations");
    if operations.is_empty() {
        errors.required(&at, "");
    }
    if operations.len() > 1 && wildcard(operations) {
        let why = "if '*' is present, must not specify other operations";
        errors.invalid(&at, operations.to_vec(), why);
    }
    for (index, operation) in operations.iter().enumerate() {
        let valid = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        one_of(
            operation.as_str().unwrap_or_default(),
            &valid,
            &at.index(index),
            errors,
        );
    }
}

fn names_of(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let list = items(rule, &["resourceNames"]);
    let at = path.child("resourceNames");
    for (index, name) in list.iter().enumerate() {
        let name = name.as_str().unwrap_or_default();
        errors.invalid_each(&at.index(index), name, names::path_segment(name));
        if list[..index].iter().any(|one| one == name) {
            errors.duplicate(&at.index(index), name);
        }
    }
}

fn rule_resources(resources: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    let all: Vec<&str> = resources.iter().filter_map(Value::as_str).collect();
    for (index, resource) in all.iter().enumerate() {
        let at = path.index(index);
        if resource.is_empty() {
            errors.required(&at, "");
        }
        if resource.matches('/').count() > 1 {
            errors.invalid(&at, *resource, "must have at most one slash");
        }
        if let Some((_, sub)) = resource.split_once('/') {
            let whole = format!("*/{sub}");
            if *resource != whole && all.contains(&whole.as_str()) {
                let why = format!("if '{whole}' is present, must not specify {resource}");
                errors.invalid(&at, *resource, why);
            }
        }
        if let Some((kind, sub)) = resource.split_once('/')
            && sub != "*"
            && all.contains(&format!("{kind}/*").as_str())
        {
            let why = format!("if '{kind}/*' is present, must not specify {resource}");
            errors.invalid(&at, *resource, why);
        }
    }
    if all.len() > 1 && all.contains(&"*/*") {
        let why = "if '*/*' is present, must not specify other resources";
        errors.invalid(path, resources.to_vec(), why);
    }
}

fn conditions(holder: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let list = items(holder, &["matchConditions"]);
    if list.len() > 64 {
        errors.too_many(path, list.len(), 64);
    }
    for (index, condition) in list.iter().enumerate() {
        let at = path.index(index);
        if text(condition, &["expression"]).trim().is_empty() {
            errors.required(&at.child("expression"), "");
        }
        let name = text(condition, &["name"]);
        if name.is_empty() {
            errors.required(&at.child("name"), "");
            continue;
        }
        label_name(name, &at.child("name"), errors);
        if list[..index].iter().any(|one| text(one, &["name"]) == name) {
            errors.duplicate(&at.child("name"), name);
        }
    }
}

fn match_resources(matching: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let policy = text(matching, &["matchPolicy"]);
    required_one_of(
        policy,
        &["Equivalent", "Exact"],
        &path.child("matchPolicy"),
        errors,
    );
    for key in ["namespaceSelector", "objectSelector"] {
        let selector = get(matching, key);
        if selector.is_null() {
            errors.required(&path.child(key), "");
        } else {
            label_selector(selector, &path.child(key), errors);
        }
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        rules(matching, key, &path.child(key), errors);
    }
}

fn param_kind(kind: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let version = text(kind, &["apiVersion"]);
    let at = path.child("apiVersion");
    if version.is_empty() {
        errors.required(&at, "");
    } else if version.matches('/').count() > 1 {
        errors.invalid(
            &at,
            version,
            format!("unexpected GroupVersion string: {version}"),
        );
    } else {
        let (group, version_only) = version.split_once('/').unwrap_or(("", version));
        if !group.is_empty() {
            let messages = names::dns1123_subdomain(group);
            if !messages.is_empty() {
                errors.invalid(&at, group, messages.join(","));
            }
        }
        let messages = names::dns1035_label(version_only);
        if version_only.is_empty() {
            errors.invalid(&at, version, "version must be specified");
        } else if !messages.is_empty() {
            errors.invalid(&at, version_only, messages.join(","));
        }
    }
    let name = text(kind, &["kind"]);
    let messages = names::dns1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.required(&path.child("kind"), "");
    } else if !messages.is_empty() {
        let why = format!(
            "may have mixed case, but should otherwise match: {}",
            messages.join(",")
        );
        errors.invalid(&path.child("kind"), name, why);
    }
}

/// What validating and mutating policies share.
fn policy_common(spec: &Value, errors: &mut ErrorList) {
    let policy = text(spec, &["failurePolicy"]);
    required_one_of(
        policy,
        &["Fail", "Ignore"],
        &SPEC.child("failurePolicy"),
        errors,
    );
    let kind = get(spec, "paramKind");
    if !kind.is_null() {
        param_kind(kind, &SPEC.child("paramKind"), errors);
    }
    let matching = get(spec, "matchConstraints");
    let path = SPEC.child("matchConstraints");
    if matching.is_null() {
        errors.required(&path, "");
    } else {
        match_resources(matching, &path, errors);
        if items(matching, &["resourceRules"]).is_empty() {
            errors.required(&path.child("resourceRules"), "");
        }
    }
    conditions(spec, &SPEC.child("matchConditions"), errors);
    let path = SPEC.child("variables");
    for (index, variable) in items(spec, &["variables"]).iter().enumerate() {
        let at = path.index(index);
        let name = text(variable, &["name"]);
        if name.is_empty() {
            errors.required(&at.child("name"), "name is not specified");
        } else if !is_identifier(name) {
            errors.invalid(
                &at.child("name"),
                name,
                "name is not a valid CEL identifier",
            );
        }
        if text(variable, &["expression"]).trim().is_empty() {
            errors.required(&at.child("expression"), "expression is not specified");
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

pub(crate) fn validating_policy(policy: &Value, errors: &mut ErrorList) {
    let spec = get(policy, "spec");
    policy_common(spec, errors);
    let checks = items(spec, &["validations"]);
    let notes = items(spec, &["auditAnnotations"]);
    if checks.is_empty() && notes.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.required(&SPEC.child("validations"), why);
        errors.required(&SPEC.child("auditAnnotations"), why);
    }
    let path = SPEC.child("validations");
    for (index, check) in checks.iter().enumerate() {
        let at = path.index(index);
        if text(check, &["expression"]).trim().is_empty() {
            errors.required(&at.child("expression"), "expression is not specified");
        }
        for key in ["message", "messageExpression"] {
            let Some(value) = get(check, key).as_str().filter(|value| !value.is_empty()) else {
                continue;
            };
            if value.trim().is_empty() {
                let why = format!("{key} must be non-empty if specified");
                errors.invalid(&at.child(key), value, why);
            }
        }
        let message = text(check, &["message"]);
        if message.contains('\n') {
            errors.invalid(
                &at.child("message"),
                message,
                "message must not contain line breaks",
            );
        }
        if let Some(reason) = get(check, "reason").as_str() {
            let valid = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
            one_of(reason, &valid, &at.child("reason"), errors);
        }
    }
    audit_annotations(policy, notes, errors);
}

fn audit_annotations(policy: &Value, notes: &[Value], errors: &mut ErrorList) {
    let path = SPEC.child("auditAnnotations");
    if notes.len() > 20 {
        let why = "must not have more than 20 auditAnnotations";
        errors.invalid(&path, notes.to_vec(), why);
    }
    let name = text(policy, &["metadata", "name"]);
    for (index, note) in notes.iter().enumerate() {
        let at = path.index(index);
        let key = text(note, &["key"]);
        if key.is_empty() {
            errors.required(&at.child("key"), "");
        } else {
            label_name(&format!("{name}/{key}"), &at.child("key"), errors);
        }
        if text(note, &["valueExpression"]).trim().is_empty() {
            let why = "valueExpression is not specified";
            errors.required(&at.child("valueExpression"), why);
        }
        if notes[..index].iter().any(|one| text(one, &["key"]) == key) {
            errors.duplicate(&at.child("key"), key);
        }
    }
}

pub(crate) fn mutating_policy(policy: &Value, errors: &mut ErrorList) {
    let spec = get(policy, "spec");
    policy_common(spec, errors);
    let path = SPEC.child("mutations");
    let mutations = items(spec, &["mutations"]);
    if mutations.is_empty() {
        errors.required(&path, "mutations must contain at least one item");
    }
    for (index, mutation) in mutations.iter().enumerate() {
        let at = path.index(index);
        let kind = text(mutation, &["patchType"]);
        let (own, other) = match kind {
            "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
            "JSONPatch" => ("jsonPatch", "applyConfiguration"),
            _ => {
                let valid = ["ApplyConfiguration", "JSONPatch"];
                required_one_of(kind, &valid, &at.child("patchType"), errors);
                continue;
            }
        };
        if get(mutation, own).is_null() {
            let why = format!("must be specified when patchType is {kind}");
            errors.required(&at.child(own), why);
        } else if text(mutation, &[own, "expression"]).trim().is_empty() {
            let at = at.child(own);
            errors.required(&at.child("expression"), "expression is not specified");
        }
        if !get(mutation, other).is_null() {
            let why = format!("must not be specified when patchType is {kind}");
            errors.invalid(&at.child(other), format!("{{{other}}}"), why);
        }
    }
    let policy = text(spec, &["reinvocationPolicy"]);
    let path = SPEC.child("reinvocationPolicy");
    required_one_of(policy, &["IfNeeded", "Never"], &path, errors);
}

fn policy_binding(spec: &Value, errors: &mut ErrorList) {
    let name = text(spec, &["policyName"]);
    if name.is_empty() {
        errors.required(&SPEC.child("policyName"), "");
    } else {
        dns_subdomain(name, &SPEC.child("policyName"), errors);
    }
    let reference = get(spec, "paramRef");
    if !reference.is_null() {
        param_ref(reference, &SPEC.child("paramRef"), errors);
    }
    let matching = get(spec, "matchResources");
    if !matching.is_null() {
        match_resources(matching, &SPEC.child("matchResources"), errors);
    }
}

fn param_ref(reference: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (name, selector) = (text(reference, &["name"]), get(reference, "selector"));
    match (name.is_empty(), selector.is_null()) {
        (true, true) => errors.required(path, "one of name or selector must be specified"),
        (false, false) => {
            let why = "name and selector are mutually exclusive";
            errors.forbidden(&path.child("name"), why);
            errors.forbidden(&path.child("selector"), why);
        }
        (false, true) => {
            errors.invalid_each(&path.child("name"), name, names::path_segment(name));
        }
        (true, false) => label_selector(selector, &path.child("selector"), errors),
    }
    let at = path.child("parameterNotFoundAction");
    match get(reference, "parameterNotFoundAction").as_str() {
        None => errors.required(&at, ""),
        Some(action) => one_of(action, &["Deny", "Allow"], &at, errors),
    }
}

pub(crate) fn validating_binding(binding: &Value, errors: &mut ErrorList) {
    let spec = get(binding, "spec");
    policy_binding(spec, errors);
    let actions = items(spec, &["validationActions"]);
    let path = SPEC.child("validationActions");
    for (index, action) in actions.iter().enumerate() {
        let action = action.as_str().unwrap_or_default();
        one_of(
            action,
            &["Audit", "Deny", "Warn"],
            &path.index(index),
            errors,
        );
        if actions[..index].iter().any(|one| one == action) {
            errors.duplicate(&path.index(index), action);
        }
    }
    let has = |word: &str| actions.iter().any(|one| one == word);
    if has("Deny") && has("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.invalid(&path, actions.to_vec(), why);
    }
    if actions.is_empty() {
        errors.required(&path, "at least one validation action is required");
    }
}

pub(crate) fn mutating_binding(binding: &Value, errors: &mut ErrorList) {
    policy_binding(get(binding, "spec"), errors);
}

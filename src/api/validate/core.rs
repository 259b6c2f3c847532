//! Kinds of the core group beside pods, services and volumes.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use serde_json::Value;

use super::network::{cidr, endpoint_ip};
use super::resources::{container_resource_name, parse, resource_name, resource_value};
use super::{
    dns_label, dns_subdomain, immutable, label_name, legacy_ip, required_one_of, scheduling,
};
use crate::field::{ErrorList, Path};
use crate::meta::{at, boolean, entries, get, integer, items, text};
use crate::names;
use crate::quantity::Quantity;

const SPEC: Path<'static> = Path::new("spec");
const MAX_SIZE: usize = 1 << 20;
const IMMUTABLE_SET: &str = "field is immutable when `immutable` is set";

/// Bytes that a base64 text stands for.
fn decoded_len(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

pub(crate) fn config_map(map: &Value, errors: &mut ErrorList) {
    let (data, binary) = (Path::new("data"), Path::new("binaryData"));
    let mut size = 0;
    for (key, value) in entries(map, &["data"]) {
        let at = data.key(key);
        errors.invalid_each(&at, key, names::config_map_key(key));
        if !at_key(map, "binaryData", key).is_null() {
            errors.invalid(&at, key.as_str(), "duplicate of key present in binaryData");
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(map, &["binaryData"]) {
        errors.invalid_each(&binary.key(key), key, names::config_map_key(key));
        size += decoded_len(value.as_str().unwrap_or_default());
    }
    if size > MAX_SIZE {
        errors.too_long(&Path::new(""), MAX_SIZE);
    }
}

fn at_key<'v>(object: &'v Value, map: &str, key: &str) -> &'v Value {
    get(get(object, map), key)
}

fn unchanged_if_immutable(new: &Value, old: &Value, keys: &[&str], errors: &mut ErrorList) {
    if !boolean(old, &["immutable"]) {
        return;
    }
    if !boolean(new, &["immutable"]) {
        errors.forbidden(&Path::new("immutable"), IMMUTABLE_SET);
    }
    for key in keys {
        if get(new, key) != get(old, key) {
            errors.forbidden(&Path::new(key), IMMUTABLE_SET);
        }
    }
}

pub(crate) fn config_map_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    unchanged_if_immutable(new, old, &["data", "binaryData"], errors);
    config_map(new, errors);
}

pub(crate) fn secret(secret: &Value, errors: &mut ErrorList) {
    let path = Path::new("data");
    let mut size = 0;
    for (key, value) in entries(secret, &["data"]) {
        errors.invalid_each(&path.key(key), key, names::config_map_key(key));
        size += decoded_len(value.as_str().unwrap_or_default());
    }
    if size > MAX_SIZE {
        errors.too_long(&path, MAX_SIZE);
    }
    let datum = |key: &str| at_key(secret, "data", key).as_str();
    let needs = |key: &str, errors: &mut ErrorList| errors.required(&path.key(key), "");
    match text(secret, &["type"]) {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            if text(secret, &["metadata", "annotations", ACCOUNT]).is_empty() {
                errors.required(&Path::new("metadata.annotations").key(ACCOUNT), "");
            }
        }
        "kubernetes.io/dockercfg" => docker_config(datum(".dockercfg"), ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => {
            docker_config(datum(".dockerconfigjson"), ".dockerconfigjson", errors);
        }
        "kubernetes.io/basic-auth" => {
            if datum("username").is_none() && datum("password").is_none() {
                needs("username", errors);
                needs("password", errors);
            }
        }
        "kubernetes.io/ssh-auth" => {
            if datum("ssh-privatekey").is_none_or(str::is_empty) {
                needs("ssh-privatekey", errors);
            }
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if datum(key).is_none() {
                    needs(key, errors);
                }
            }
        }
        _ => {}
    }
}

fn docker_config(data: Option<&str>, key: &str, errors: &mut ErrorList) {
    let path = Path::new("data");
    let Some(data) = data else {
        errors.required(&path.key(key), "");
        return;
    };
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(data)
        .unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes) {
        let why = format!("invalid character in configuration: {error}");
        errors.invalid(&path.key(key), "<secret contents redacted>", why);
    }
}

pub(crate) fn secret_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    immutable(
        get(new, "type"),
        get(old, "type"),
        &Path::new("type"),
        errors,
    );
    unchanged_if_immutable(new, old, &["data"], errors);
    secret(new, errors);
}

/// Finalizers in a namespace's spec.
pub(crate) fn namespace(namespace: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("finalizers");
    for name in items(namespace, &["spec", "finalizers"]) {
        let name = name.as_str().unwrap_or_default();
        finalizer(name, &path, errors);
    }
}

/// What the `finalize` door lets through.
pub(crate) fn finalize(namespace: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("finalizers");
    for (index, name) in items(namespace, &["spec", "finalizers"]).iter().enumerate() {
        finalizer(
            name.as_str().unwrap_or_default(),
            &path.index(index),
            errors,
        );
    }
}

pub(crate) fn namespace_status(namespace: &Value, errors: &mut ErrorList) {
    let phase = text(namespace, &["status", "phase"]);
    let deleting = !at(namespace, &["metadata", "deletionTimestamp"]).is_null();
    let path = Path::new("status.phase");
    if !deleting && phase != "Active" {
        let why = "may only be 'Active' if `deletionTimestamp` is empty";
        errors.invalid(&path, phase, why);
    } else if deleting && phase != "Terminating" {
        let why = "may only be 'Terminating' if `deletionTimestamp` is not empty";
        errors.invalid(&path, phase, why);
    }
}

fn finalizer(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let before = errors.len();
    label_name(name, path, errors);
    let standard = ["kubernetes", "orphan", "foregroundDeletion"];
    if errors.len() == before && !name.contains('/') && !standard.contains(&name) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.invalid(path, name, why);
    }
}

fn node_resources(node: &Value, errors: &mut ErrorList) {
    let status = Path::new("status");
    for list in ["capacity", "allocatable"] {
        let path = status.child(list);
        for (name, value) in entries(node, &["status", list]) {
            resource_value(name, value, &path.child(name), errors);
        }
    }
}

pub(crate) fn node(node: &Value, errors: &mut ErrorList) {
    let taints = items(node, &["spec", "taints"]);
    scheduling::taints(taints, &Path::new("metadata.taints"), errors);
    node_resources(node, errors);
    let path = SPEC.child("podCIDRs");
    let ranges = items(node, &["spec", "podCIDRs"]);
    let before = errors.len();
    for (index, range) in ranges.iter().enumerate() {
        cidr(
            range.as_str().unwrap_or_default(),
            &path.index(index),
            errors,
        );
    }
    let is_v6 = |range: &Value| range.as_str().is_some_and(|range| range.contains(':'));
    let dual = ranges.len() == 2 && is_v6(&ranges[0]) != is_v6(&ranges[1]);
    if errors.len() == before && ranges.len() > 1 && !dual {
        let why = "may specify no more than one CIDR for each IP family";
        errors.invalid(&path, ranges.to_vec(), why);
    }
}

pub(crate) fn node_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    node_resources(new, errors);
    let addresses = items(new, &["status", "addresses"]);
    let path = Path::new("status.addresses");
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            errors.duplicate(&path.index(index), address.clone());
        }
    }
    let before = items(old, &["spec", "podCIDRs"]);
    let now = items(new, &["spec", "podCIDRs"]);
    let why = "node updates may not change podCIDR except from \"\" to valid";
    if !before.is_empty() && before.len() != now.len() {
        errors.forbidden(&SPEC.child("podCIDRs"), why);
    } else {
        for _ in before.iter().zip(now).filter(|(before, now)| before != now) {
            errors.forbidden(&SPEC.child("podCIDRs"), why);
        }
    }
    let id = ["spec", "providerID"];
    if !text(old, &id).is_empty() && text(old, &id) != text(new, &id) {
        let why = "node updates may not change providerID except from \"\" to valid";
        errors.forbidden(&SPEC.child("providerID"), why);
    }
    let taints = items(new, &["spec", "taints"]);
    scheduling::taints(taints, &Path::new("metadata.taints"), errors);
}

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Resources without a slash that a quota may bound.
fn is_quota_resource(name: &str) -> bool {
    let base = name
        .strip_prefix("requests.")
        .or_else(|| name.strip_prefix("limits."))
        .unwrap_or(name);
    matches!(base, "cpu" | "memory" | "ephemeral-storage")
        || super::resources::is_hugepages(base)
        || matches!(
            name,
            "pods"
                | "services"
                | "replicationcontrollers"
                | "resourcequotas"
                | "secrets"
                | "configmaps"
                | "persistentvolumeclaims"
                | "requests.storage"
                | "services.nodeports"
                | "services.loadbalancers"
        )
}

fn scope_fits(scope: &str, resource: &str) -> bool {
    match scope {
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => {
            let base = resource
                .strip_prefix("requests.")
                .or_else(|| resource.strip_prefix("limits."))
                .unwrap_or(resource);
            matches!(base, "pods" | "cpu" | "memory" | "ephemeral-storage")
                || super::resources::is_hugepages(base)
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => true,
    }
}

pub(crate) fn quota(quota: &Value, errors: &mut ErrorList) {
    let spec = get(quota, "spec");
    let path = SPEC.child("hard");
    for (name, value) in entries(spec, &["hard"]) {
        let at = path.key(name);
        resource_name(name, &at, errors);
        if !name.contains('/') && !is_quota_resource(name) {
            errors.invalid(&at, name.as_str(), "must be a standard resource for quota");
        }
        resource_value(name, value, &at, errors);
    }
    let hard: Vec<&str> = entries(spec, &["hard"])
        .map(|(name, _)| name.as_str())
        .filter(|name| is_quota_resource(name))
        .collect();
    let path = SPEC.child("scopes");
    let scopes = items(spec, &["scopes"]);
    for scope in scopes.iter().filter_map(Value::as_str) {
        if !SCOPES.contains(&scope) {
            errors.invalid(&path, scopes.to_vec(), "unsupported scope");
        }
        for _ in hard.iter().filter(|name| !scope_fits(scope, name)) {
            errors.invalid(
                &path,
                scopes.to_vec(),
                "unsupported scope applied to resource",
            );
        }
    }
    let named: Vec<&str> = scopes.iter().filter_map(Value::as_str).collect();
    conflicting(&named, scopes, &path, errors);
    scope_selector(spec, &hard, errors);
}

fn conflicting(named: &[&str], shown: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for pair in [
        ["BestEffort", "NotBestEffort"],
        ["Terminating", "NotTerminating"],
    ] {
        if pair.iter().all(|scope| named.contains(scope)) {
            errors.invalid(path, shown.to_vec(), "conflicting scopes");
        }
    }
}

fn scope_selector(spec: &Value, hard: &[&str], errors: &mut ErrorList) {
    let selector = get(spec, "scopeSelector");
    let selector_path = SPEC.child("scopeSelector");
    let path = selector_path.child("matchExpressions");
    let mut named = Vec::new();
    for rule in items(selector, &["matchExpressions"]) {
        let (scope, operator) = (text(rule, &["scopeName"]), text(rule, &["operator"]));
        named.push(scope);
        if !SCOPES.contains(&scope) {
            errors.invalid(&path.child("scopeName"), scope, "unsupported scope");
        }
        for _ in hard.iter().filter(|name| !scope_fits(scope, name)) {
            errors.invalid(
                &path,
                selector.clone(),
                "unsupported scope applied to resource",
            );
        }
        let only_exists =
            SCOPES.contains(&scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if only_exists && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&path.child("operator"), operator, why);
        }
        let values = items(rule, &["values"]);
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&path.child("values"), why);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(&path.child("values"), values.to_vec(), why);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.invalid(
                    &path.child("operator"),
                    other,
                    "not a valid selector operator",
                );
            }
        }
    }
    conflicting(&named, items(spec, &["scopes"]), &path, errors);
}

pub(crate) fn quota_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    quota(new, errors);
    let set = |quota: &Value| -> BTreeSet<String> {
        items(quota, &["spec", "scopes"])
            .iter()
            .filter_map(|scope| scope.as_str().map(str::to_owned))
            .collect()
    };
    if set(new) != set(old) {
        let scopes = items(new, &["spec", "scopes"]).to_vec();
        errors.invalid(&SPEC.child("scopes"), scopes, super::IMMUTABLE);
    }
}

pub(crate) fn limit_range(range: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("limits");
    let mut seen = BTreeSet::new();
    for (index, limit) in items(range, &["spec", "limits"]).iter().enumerate() {
        let at = path.index(index);
        let kind = text(limit, &["type"]);
        label_name(kind, &at.child("type"), errors);
        let standard = ["Pod", "Container", "PersistentVolumeClaim"];
        if !kind.contains('/') && !standard.contains(&kind) {
            let why = "must be a standard limit type or fully qualified";
            errors.invalid(&at.child("type"), kind, why);
        }
        if !seen.insert(kind) {
            errors.duplicate(&at.child("type"), kind);
        }
        limits(limit, kind, &at, errors);
    }
}

fn limits(limit: &Value, kind: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let mut keys: BTreeMap<&str, ()> = BTreeMap::new();
    for list in [
        "max",
        "min",
        "default",
        "defaultRequest",
        "maxLimitRequestRatio",
    ] {
        let list_path = path.child(list);
        if kind == "Pod" && list.starts_with("default") {
            if entries(limit, &[list]).next().is_some() {
                errors.forbidden(&list_path, "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        for (name, _) in entries(limit, &[list]) {
            if matches!(kind, "Pod" | "Container") {
                container_resource_name(name, &list_path.key(name), errors);
            } else {
                resource_name(name, &list_path.key(name), errors);
            }
            keys.insert(name, ());
        }
    }
    if kind == "PersistentVolumeClaim"
        && ["min", "max"]
            .iter()
            .all(|list| at(limit, &[list, "storage"]).is_null())
    {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        errors.required(&path.child("limits"), why);
    }
    for key in keys.keys() {
        compare(limit, key, path, errors);
    }
}

/// The amounts of one resource against each other.
fn compare(limit: &Value, key: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let amount = |list: &str| -> Option<Quantity> {
        let value = at_key(limit, list, key);
        (!value.is_null()).then(|| parse(value))
    };
    let (min, max) = (amount("min"), amount("max"));
    let (default, request) = (amount("default"), amount("defaultRequest"));
    // Where, what is shown, the smaller, the larger, their names.
    let rules = [
        ("min", min, min, max, "min value", "max value"),
        (
            "defaultRequest",
            request,
            min,
            request,
            "min value",
            "default request value",
        ),
        (
            "defaultRequest",
            request,
            request,
            max,
            "default request value",
            "max value",
        ),
        (
            "defaultRequest",
            request,
            request,
            default,
            "default request value",
            "default limit value",
        ),
        ("default", min, min, default, "min value", "default value"),
        ("default", max, default, max, "default value", "max value"),
    ];
    for (list, shown, small, large, small_name, large_name) in rules {
        if let (Some(shown), Some(small), Some(large)) = (shown, small, large)
            && small > large
        {
            let why = format!("{small_name} {small} is greater than {large_name} {large}");
            errors.invalid(&path.child(list).key(key), shown.to_string(), why);
        }
    }
    let ratio_path = path.child("maxLimitRequestRatio");
    let at = ratio_path.key(key);
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        if ratio.milli_value() < 1000 {
            errors.invalid(
                &at,
                ratio.to_string(),
                format!("ratio {ratio} is less than 1"),
            );
        }
        if let (Some(min), Some(max)) = (min, max) {
            let bound = max.as_f64() / min.as_f64();
            if ratio.as_f64() > bound {
                let why = format!("ratio {ratio} is greater than max/min = {bound:.6}");
                errors.invalid(&at, ratio.to_string(), why);
            }
        }
    }
    if let (Some(default), Some(request)) = (default, request)
        && !super::resources::allows_overcommit(key)
        && default != request
    {
        let why = format!(
            "default value {default} must equal to defaultRequest value {request} in {key}"
        );
        errors.invalid(
            &path.child("defaultRequest").key(key),
            request.to_string(),
            why,
        );
    }
}

pub(crate) fn endpoints(endpoints: &Value, errors: &mut ErrorList) {
    let path = Path::new("subsets");
    for (index, subset) in items(endpoints, &["subsets"]).iter().enumerate() {
        let at = path.index(index);
        let mut none = true;
        for list in ["addresses", "notReadyAddresses"] {
            let list_path = at.child(list);
            for (index, address) in items(subset, &[list]).iter().enumerate() {
                none = false;
                endpoint_address(address, &list_path.index(index), errors);
            }
        }
        if none {
            errors.required(&at, "must specify `addresses` or `notReadyAddresses`");
        }
        let list_path = at.child("ports");
        let ports = items(subset, &["ports"]);
        for (index, port) in ports.iter().enumerate() {
            endpoint_port(port, ports.len() > 1, &list_path.index(index), errors);
        }
    }
}

fn endpoint_address(address: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let ip = text(address, &["ip"]);
    legacy_ip(ip, &path.child("ip"), errors);
    let host = text(address, &["hostname"]);
    if !host.is_empty() {
        dns_label(host, &path.child("hostname"), errors);
    }
    if let Some(node) = get(address, "nodeName").as_str() {
        dns_subdomain(node, &path.child("nodeName"), errors);
    }
    endpoint_ip(ip, &path.child("ip"), errors);
}

fn endpoint_port(port: &Value, named: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let name = text(port, &["name"]);
    if !name.is_empty() {
        dns_label(name, &path.child("name"), errors);
    } else if named {
        errors.required(&path.child("name"), "");
    }
    let number = integer(port, &["port"]).unwrap_or(0);
    for message in names::port_number(number) {
        errors.invalid(&path.child("port"), number, message);
    }
    let protocol = text(port, &["protocol"]);
    required_one_of(
        protocol,
        &["SCTP", "TCP", "UDP"],
        &path.child("protocol"),
        errors,
    );
    if let Some(protocol) = get(port, "appProtocol").as_str() {
        label_name(protocol, &path.child("appProtocol"), errors);
    }
}

pub(crate) fn pod_template(template: &Value, errors: &mut ErrorList) {
    super::pod::template(get(template, "template"), &Path::new("template"), errors);
}

//! Kinds with few rules.

use serde_json::Value;

use super::{dns_label, dns_subdomain, immutable, label_name, non_negative_member, one_of};
use super::{required_one_of, required_text};
use crate::field::{ErrorList, Path};
use crate::meta::{at, boolean, get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");

/// Priorities that belong to the system.
const SYSTEM_CLASSES: &[(&str, i64)] = &[
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];

pub(crate) fn priority_class(class: &Value, errors: &mut ErrorList) {
    let name = text(class, &["metadata", "name"]);
    let value = integer(class, &["value"]).unwrap_or(0);
    if name.starts_with("system-") {
        let fault = match SYSTEM_CLASSES.iter().find(|row| row.0 == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, known)) if *known != value => {
                Some(format!("value of {name} PriorityClass must be {known}"))
            }
            Some(_) if boolean(class, &["globalDefault"]) => Some(format!(
                "globalDefault of {name} PriorityClass must be false"
            )),
            Some(_) => None,
        };
        if let Some(fault) = fault {
            let why = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {fault}"
            );
            errors.forbidden(&Path::new("metadata.name"), why);
        }
    } else if value > 1_000_000_000 {
        let why = "maximum allowed value of a user defined priority is 1000000000";
        errors.forbidden(&Path::new("value"), why);
    }
    if let Some(policy) = get(class, "preemptionPolicy").as_str() {
        let valid = ["PreemptLowerPriority", "Never"];
        required_one_of(policy, &valid, &Path::new("preemptionPolicy"), errors);
    }
}

pub(crate) fn priority_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if get(new, "value") != get(old, "value") {
        let why = "may not be changed in an update.";
        errors.forbidden(&Path::new("Value"), why);
    }
    immutable(
        get(new, "preemptionPolicy"),
        get(old, "preemptionPolicy"),
        &Path::new("preemptionPolicy"),
        errors,
    );
}

pub(crate) fn runtime_class(class: &Value, errors: &mut ErrorList) {
    let handler = text(class, &["handler"]);
    dns_label(handler, &Path::new("handler"), errors);
    let overhead = at(class, &["overhead", "podFixed"]);
    super::resources::resource_list(overhead, &Path::new("overhead.podFixed"), errors);
    let scheduling = get(class, "scheduling");
    let path = Path::new("scheduling");
    super::labels(
        get(scheduling, "nodeSelector"),
        &path.child("nodeSelector"),
        errors,
    );
    let tolerations = items(scheduling, &["tolerations"]);
    super::scheduling::tolerations(tolerations, &path.child("tolerations"), errors);
}

pub(crate) fn runtime_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("handler");
    immutable(get(new, "handler"), get(old, "handler"), &path, errors);
}

pub(crate) fn lease(lease: &Value, errors: &mut ErrorList) {
    let spec = get(lease, "spec");
    if let Some(seconds) = integer(spec, &["leaseDurationSeconds"])
        && seconds <= 0
    {
        errors.invalid(
            &SPEC.child("leaseDurationSeconds"),
            seconds,
            "must be greater than 0",
        );
    }
    non_negative_member(spec, "leaseTransitions", &SPEC, errors);
    if let Some(strategy) = get(spec, "strategy").as_str() {
        if get(spec, "preferredHolder").is_null() && strategy.is_empty() {
            errors.required(&SPEC.child("strategy"), "");
        }
        label_name(strategy, &SPEC.child("strategy"), errors);
    }
}

/// An event; `core`: through the door of the core group.
pub(crate) fn event(event: &Value, core: bool, errors: &mut ErrorList) {
    let namespace = text(event, &["metadata", "namespace"]);
    let about = text(event, &["involvedObject", "namespace"]);
    let mut wrong_place = |bad: bool| {
        if bad {
            let path = Path::new("involvedObject.namespace");
            errors.invalid(&path, about, "does not match event.namespace");
        }
    };
    if get(event, "eventTime").is_null() {
        wrong_place(if about.is_empty() {
            !namespace.is_empty() && namespace != "default"
        } else {
            namespace != about
        });
    } else {
        wrong_place(about.is_empty() && !matches!(namespace, "default" | "kube-system"));
        new_event(event, core, errors);
    }
    dns_subdomain(namespace, &Path::new("namespace"), errors);
}

fn new_event(event: &Value, core: bool, errors: &mut ErrorList) {
    let path = Path::new(if core {
        "reportingComponent"
    } else {
        "reportingController"
    });
    let controller = text(event, &["reportingComponent"]);
    if controller.is_empty() {
        errors.required(&path, "");
    }
    label_name(controller, &path, errors);
    for (key, required, most) in [
        ("reportingInstance", true, 128),
        ("action", true, 128),
        ("reason", true, 128),
        ("message", false, 1024),
    ] {
        let value = text(event, &[key]);
        if required && value.is_empty() {
            errors.required(&Path::new(key), "");
        }
        if value.len() > most {
            let why = format!("can have at most {most} characters");
            errors.invalid(&Path::new(key), "", why);
        }
    }
}

/// What only the newer group demands.
pub(crate) fn strict_event(event: &Value, errors: &mut ErrorList) {
    let series = get(event, "series");
    if !series.is_null() {
        if integer(series, &["count"]).unwrap_or(0) < 2 {
            errors.invalid(&Path::new("series.count"), "", "should be at least 2");
        }
        if get(series, "lastObservedTime").is_null() {
            errors.required(&Path::new("series.lastObservedTime"), "");
        }
    }
    if get(event, "eventTime").is_null() {
        errors.required(&Path::new("eventTime"), "");
    }
    let kind = text(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
    }
    for key in ["firstTimestamp", "lastTimestamp", "count"] {
        let value = get(event, key);
        if !value.is_null() && value != 0 {
            errors.invalid(&Path::new(key), "", "needs to be unset");
        }
    }
    let source = get(event, "source");
    if ["component", "host"]
        .iter()
        .any(|key| !text(source, &[key]).is_empty())
    {
        errors.invalid(&Path::new("source"), "", "needs to be unset");
    }
}

/// What an update through the newer group must leave alone.
pub(crate) fn strict_event_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    for (key, shown) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        immutable(get(new, key), get(old, key), &Path::new(shown), errors);
    }
}

pub(crate) fn api_service(service: &Value, errors: &mut ErrorList) {
    let spec = get(service, "spec");
    let (group, version) = (text(spec, &["group"]), text(spec, &["version"]));
    let name = text(service, &["metadata", "name"]);
    let needed = format!("{version}.{group}");
    if names::path_segment(name).is_empty() && name != needed {
        let why = format!("must be `spec.version+\".\"+spec.group`: {needed:?}");
        errors.invalid(&Path::new("metadata.name"), name, why);
    }
    if group.is_empty() && version != "v1" {
        let why = "only v1 may have an empty group and it better be legacy kube";
        errors.required(&SPEC.child("group"), why);
    }
    if !group.is_empty() {
        dns_subdomain(group, &SPEC.child("group"), errors);
    }
    errors.invalid_each(
        &SPEC.child("version"),
        version,
        names::dns1035_label(version),
    );
    for (key, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let number = integer(spec, &[key]).unwrap_or(0);
        if number <= 0 || number > most {
            let why = format!("must be positive and less than {most}");
            errors.invalid(&SPEC.child(key), number, why);
        }
    }
    let insecure = boolean(spec, &["insecureSkipTLSVerify"]);
    let bundle = text(spec, &["caBundle"]);
    let target = get(spec, "service");
    let insecure_path = SPEC.child("insecureSkipTLSVerify");
    if target.is_null() {
        if !bundle.is_empty() {
            let shown = format!("{} bytes", bundle.len() / 4 * 3);
            let why = "local APIServices may not have a caBundle";
            errors.invalid(&SPEC.child("caBundle"), shown, why);
        }
        if insecure {
            let why = "local APIServices may not have insecureSkipTLSVerify";
            errors.invalid(&insecure_path, true, why);
        }
        return;
    }
    let path = SPEC.child("service");
    required_text(target, "namespace", &path, errors);
    required_text(target, "name", &path, errors);
    let port = integer(target, &["port"]).unwrap_or(0);
    for message in names::port_number(port) {
        let why = format!("port is not valid: {message}");
        errors.invalid(&path.child("port"), port, why);
    }
    if insecure && !bundle.is_empty() {
        errors.invalid(
            &insecure_path,
            true,
            "may not be true if caBundle is present",
        );
    }
}

/// A claim of devices.
pub(crate) fn claim_spec(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let devices = path.child("devices");
    let list = devices.child("requests");
    let requests = items(spec, &["devices", "requests"]);
    let mut known: Vec<String> = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let at = list.index(index);
        let name = text(request, &["name"]);
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else {
            dns_label(name, &at.child("name"), errors);
            if known.iter().any(|one| one == name) {
                errors.duplicate(&at.child("name"), name);
            }
        }
        known.push(name.to_owned());
        let exact = get(request, "exactly");
        let choices = items(request, &["firstAvailable"]);
        for choice in choices {
            known.push(format!("{name}/{}", text(choice, &["name"])));
        }
        match (exact.is_null(), choices.is_empty()) {
            (true, true) => {
                let why = "exactly one of `exactly` or `firstAvailable` is required";
                errors.required(&at, why);
            }
            (false, false) => {
                let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
                errors.invalid(&at, Value::Null, why);
            }
            (false, true) => exact_request(exact, &at.child("exactly"), errors),
            (true, false) => {
                let list = at.child("firstAvailable");
                for (index, choice) in choices.iter().enumerate() {
                    exact_request(choice, &list.index(index), errors);
                }
            }
        }
    }
    constraints(spec, &known, &devices.child("constraints"), errors);
}

fn exact_request(request: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let class = text(request, &["deviceClassName"]);
    if class.is_empty() {
        errors.required(&path.child("deviceClassName"), "");
    } else {
        dns_subdomain(class, &path.child("deviceClassName"), errors);
    }
    let mode = text(request, &["allocationMode"]);
    let count = integer(request, &["count"]).unwrap_or(0);
    let at = path.child("count");
    match mode {
        "All" => {
            if count != 0 {
                let why = "must not be specified when allocationMode is 'All'";
                errors.invalid(&at, count, why);
            }
        }
        "ExactCount" => {
            if count <= 0 {
                errors.invalid(&at, count, "must be greater than zero");
            }
        }
        other => one_of(
            other,
            &["All", "ExactCount"],
            &path.child("allocationMode"),
            errors,
        ),
    }
}

fn constraints(spec: &Value, known: &[String], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, constraint) in items(spec, &["devices", "constraints"]).iter().enumerate() {
        let at = path.index(index);
        let list = at.child("requests");
        for (index, name) in items(constraint, &["requests"]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            if !known.iter().any(|one| one == name) {
                let why = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
                errors.invalid(&list.index(index), name, why);
            }
        }
        if let Some(attribute) = get(constraint, "matchAttribute").as_str()
            && !attribute.contains('/')
        {
            let why = "a fully qualified name must be a domain and a name separated by a slash";
            errors.invalid(&at.child("matchAttribute"), attribute, why);
        }
    }
}

pub(crate) fn resource_claim(claim: &Value, errors: &mut ErrorList) {
    claim_spec(get(claim, "spec"), &SPEC, errors);
}

pub(crate) fn resource_claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    immutable(get(new, "spec"), get(old, "spec"), &SPEC, errors);
}

pub(crate) fn resource_claim_template(template: &Value, errors: &mut ErrorList) {
    claim_spec(at(template, &["spec", "spec"]), &SPEC.child("spec"), errors);
}

const SLICE_NODES: [&str; 4] = [
    "nodeName",
    "nodeSelector",
    "allNodes",
    "perDeviceNodeSelection",
];

pub(crate) fn resource_slice(slice: &Value, errors: &mut ErrorList) {
    let spec = get(slice, "spec");
    let set: Vec<String> = SLICE_NODES
        .iter()
        .filter(|key| {
            let value = get(spec, key);
            !value.is_null() && value != "" && value != false
        })
        .map(|key| format!("`{key}`"))
        .collect();
    let all = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => errors.required(&SPEC, all),
        1 => {}
        _ => {
            let why = format!("{all}, but multiple fields are set");
            errors.invalid(&SPEC, format!("{{{}}}", set.join(", ")), why);
        }
    }
    let driver = text(spec, &["driver"]);
    super::volume::csi_driver_name(driver, &SPEC.child("driver"), errors);
    let path = SPEC.child("devices");
    for (index, device) in items(spec, &["devices"]).iter().enumerate() {
        let at = path.index(index);
        dns_label(text(device, &["name"]), &at.child("name"), errors);
        let attributes = at.child("attributes");
        for (name, attribute) in crate::meta::entries(device, &["attributes"]) {
            if let Some(version) = get(attribute, "version").as_str()
                && !is_semantic_version(version)
            {
                let at = attributes.key(name);
                let why = "must be a string compatible with semver.org spec 2.0.0";
                errors.invalid(&at.child("version"), version, why);
            }
        }
    }
}

fn is_semantic_version(version: &str) -> bool {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<&str> = core.split('.').collect();
    parts.len() == 3
        && parts.iter().all(|part| {
            part.bytes().all(|byte| byte.is_ascii_digit())
                && !part.is_empty()
                && (part.len() == 1 || !part.starts_with('0'))
        })
}

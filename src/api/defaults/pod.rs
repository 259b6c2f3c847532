//! Pods, their templates and containers.

use serde_json::{Map, Value, json};

use super::Rule;
use crate::meta::{at_mut, boolean, default, default_text, get, integer, items_mut, text};
use crate::quantity::Quantity;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("core.v1.Pod", pod),
    ("core.v1.PodSpec", spec),
    ("core.v1.PodTemplateSpec", template),
    ("core.v1.PodStatus", status),
    ("core.v1.Container", container),
    ("core.v1.EphemeralContainer", container),
    ("core.v1.Probe", probe),
    ("core.v1.HTTPGetAction", http_get),
    ("core.v1.GRPCAction", grpc),
    ("core.v1.ObjectFieldSelector", field_selector),
    ("core.v1.ResourceRequirements", resources),
    ("core.v1.VolumeResourceRequirements", resources),
];

/// Annotations of long ago that are never kept.
const INIT_ANNOTATIONS: &[&str] = &[
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

fn pod(pod: &mut Value) {
    template(pod);
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, &[list]) {
            requests_from_limits(container);
        }
    }
    pod_level_requests(spec);
    default(spec, "enableServiceLinks", true);
    if boolean(spec, &["hostNetwork"]) {
        for list in ["containers", "initContainers"] {
            for container in items_mut(spec, &[list]) {
                host_ports(container);
            }
        }
    }
    let grace = integer(spec, &["terminationGracePeriodSeconds"]);
    if grace.is_some_and(|seconds| seconds < 0) {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
}

fn template(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata") else {
        return;
    };
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else {
        return;
    };
    annotations.retain(|key, _| !INIT_ANNOTATIONS.contains(&key.as_str()));
    if annotations.is_empty() {
        crate::meta::remove(metadata, &["annotations"]);
    }
}

fn requests_from_limits(container: &mut Value) {
    let Some(Value::Object(limits)) = at_mut(container, &["resources", "limits"]).cloned() else {
        return;
    };
    let requests = crate::meta::entry(container, &["resources", "requests"]);
    if requests.is_null() {
        *requests = json!({});
    }
    for (key, value) in limits {
        default(requests, &key, value);
    }
}

/// Requests of the whole pod follow those of its containers, else the pod's limits.
fn pod_level_requests(spec: &mut Value) {
    let limits = match get(get(spec, "resources"), "limits") {
        Value::Object(limits) if !limits.is_empty() => limits.clone(),
        _ => return,
    };
    let supported = |key: &str| key == "cpu" || key == "memory" || key.starts_with("hugepages-");
    let mut sums: Map<String, Value> = Map::new();
    for container in crate::meta::items(spec, &["containers"]) {
        for (key, value) in crate::meta::entries(container, &["resources", "requests"]) {
            let parse = |value: &Value| {
                value
                    .as_str()
                    .and_then(|text| text.parse::<Quantity>().ok())
                    .unwrap_or(Quantity::ZERO)
            };
            let sum = sums.get(key).map_or(Quantity::ZERO, parse) + parse(value);
            sums.insert(key.clone(), Value::String(sum.to_string()));
        }
    }
    let requests = crate::meta::entry(spec, &["resources", "requests"]);
    if requests.is_null() {
        *requests = json!({});
    }
    for (key, value) in sums {
        if key == "cpu" || key == "memory" {
            default(requests, &key, value);
        }
    }
    for (key, value) in limits {
        if supported(&key) {
            default(requests, &key, value);
        }
    }
}

fn host_ports(container: &mut Value) {
    for port in items_mut(container, &["ports"]) {
        if integer(port, &["hostPort"]).unwrap_or(0) == 0 {
            let own = get(port, "containerPort").clone();
            port["hostPort"] = own;
        }
    }
}

fn spec(spec: &mut Value) {
    default_text(spec, "dnsPolicy", "ClusterFirst");
    default_text(spec, "restartPolicy", "Always");
    default(spec, "securityContext", json!({}));
    default(spec, "terminationGracePeriodSeconds", 30);
    default_text(spec, "schedulerName", "default-scheduler");
    // The old name of the service account's field always mirrors the new one.
    let account = match text(spec, &["serviceAccountName"]) {
        "" => text(spec, &["serviceAccount"]),
        account => account,
    }
    .to_owned();
    if account.is_empty() {
        crate::meta::remove(spec, &["serviceAccount"]);
    } else {
        spec["serviceAccountName"] = Value::from(account.as_str());
        spec["serviceAccount"] = Value::from(account);
    }
}

/// The list of addresses and the single one agree; the single one decides.
fn status(status: &mut Value) {
    let single = text(status, &["podIP"]).to_owned();
    let first = text(
        get(status, "podIPs").get(0).unwrap_or(&Value::Null),
        &["ip"],
    )
    .to_owned();
    if single.is_empty() && !first.is_empty() {
        status["podIP"] = Value::from(first);
    } else if !single.is_empty() && single != first {
        status["podIPs"] = json!([{"ip": single}]);
    }
}

/// `Always` for images tagged `latest`, explicitly or by saying nothing.
pub(super) fn pull_policy(image: &str) -> &'static str {
    if crate::names::image_tag(image) == Some("latest") {
        "Always"
    } else {
        "IfNotPresent"
    }
}

fn container(container: &mut Value) {
    let policy = pull_policy(text(container, &["image"]));
    default_text(container, "imagePullPolicy", policy);
    default_text(container, "terminationMessagePath", "/dev/termination-log");
    default_text(container, "terminationMessagePolicy", "File");
}

fn default_number(object: &mut Value, key: &str, value: i64) {
    if integer(object, &[key]).unwrap_or(0) == 0 {
        object[key] = Value::from(value);
    }
}

fn probe(probe: &mut Value) {
    default_number(probe, "timeoutSeconds", 1);
    default_number(probe, "periodSeconds", 10);
    default_number(probe, "successThreshold", 1);
    default_number(probe, "failureThreshold", 3);
}

fn http_get(action: &mut Value) {
    default_text(action, "path", "/");
    default_text(action, "scheme", "HTTP");
}

fn grpc(action: &mut Value) {
    default(action, "service", "");
}

fn field_selector(selector: &mut Value) {
    default_text(selector, "apiVersion", "v1");
}

fn resources(resources: &mut Value) {
    for list in ["limits", "requests"] {
        if let Some(list) = resources.get_mut(list) {
            round_to_milli(list);
        }
    }
}

/// Amounts smaller than a thousandth are rounded up to one.
pub(super) fn round_to_milli(list: &mut Value) {
    for (_, value) in list.as_object_mut().into_iter().flatten() {
        let Some(Ok(quantity)) = value.as_str().map(str::parse::<Quantity>) else {
            continue;
        };
        if !quantity.is_milli_integer() {
            let rounded = Quantity::from_milli(quantity.milli_value(), quantity.format());
            *value = Value::String(rounded.to_string());
        }
    }
}

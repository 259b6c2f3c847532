//! The other kinds of the core group.

use serde_json::{Value, json};

use super::Rule;
use crate::meta::{self, default, default_text, get, text};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("core.v1.Secret", secret),
    ("core.v1.Namespace", namespace),
    ("core.v1.NamespaceStatus", namespace_status),
    ("core.v1.NodeSpec", node_spec),
    ("core.v1.NodeStatus", node_status),
    ("core.v1.LimitRangeItem", limit_range_item),
    ("core.v1.EndpointPort", endpoint_port),
    ("core.v1.ReplicationController", replication_controller),
    ("core.v1.ResourceQuotaSpec", quota_spec),
];

/// `stringData` is a write-only way to fill `data`.
fn secret(secret: &mut Value) {
    use base64::Engine as _;
    if let Some(Value::Object(plain)) = meta::remove(secret, &["stringData"]) {
        default(secret, "data", json!({}));
        for (key, value) in plain {
            let text = value.as_str().unwrap_or_default();
            let encoded = base64::engine::general_purpose::STANDARD.encode(text);
            secret["data"][key] = Value::String(encoded);
        }
    }
    default_text(secret, "type", "Opaque");
}

/// Every namespace carries its name as a label.
fn namespace(namespace: &mut Value) {
    let name = text(namespace, &["metadata", "name"]).to_owned();
    if !name.is_empty() {
        let labels = ["metadata", "labels", "kubernetes.io/metadata.name"];
        meta::set(namespace, &labels, name);
    }
}

fn namespace_status(status: &mut Value) {
    default_text(status, "phase", "Active");
}

/// The single range is the first of the list.
fn node_spec(spec: &mut Value) {
    let single = text(spec, &["podCIDR"]).to_owned();
    let first = meta::items(spec, &["podCIDRs"])
        .first()
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if single.is_empty() && !first.is_empty() {
        spec["podCIDR"] = Value::from(first);
    } else if !single.is_empty() && single != first {
        spec["podCIDRs"] = json!([single]);
    }
}

fn node_status(status: &mut Value) {
    if get(status, "allocatable").is_null() && get(status, "capacity").is_object() {
        status["allocatable"] = status["capacity"].clone();
    }
    for list in ["capacity", "allocatable"] {
        if let Some(list) = status.get_mut(list) {
            super::pod::round_to_milli(list);
        }
    }
}

fn limit_range_item(item: &mut Value) {
    if text(item, &["type"]) != "Container" {
        return;
    }
    for (from, to) in [
        ("max", "default"),
        ("default", "defaultRequest"),
        ("min", "defaultRequest"),
    ] {
        let Some(Value::Object(values)) = item.get(from).cloned() else {
            continue;
        };
        default(item, to, json!({}));
        for (key, value) in values {
            default(&mut item[to], &key, value);
        }
    }
}

fn endpoint_port(port: &mut Value) {
    default_text(port, "protocol", "TCP");
}

/// Labels of the template serve as selector and as own labels.
fn replication_controller(controller: &mut Value) {
    let labels = meta::at(controller, &["spec", "template", "metadata", "labels"]).clone();
    if !labels.is_object() {
        return;
    }
    for path in [["spec", "selector"], ["metadata", "labels"]] {
        if meta::at(controller, &path)
            .as_object()
            .is_none_or(serde_json::Map::is_empty)
        {
            meta::set(controller, &path, labels.clone());
        }
    }
}

fn quota_spec(spec: &mut Value) {
    if let Some(hard) = spec.get_mut("hard") {
        super::pod::round_to_milli(hard);
    }
}

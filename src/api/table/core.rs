//! Configuration, namespaces, nodes, quotas.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{AGE, AGED, Item, Printer, Row, number, printer_of, text, wide};
use crate::meta;

pub(super) const KINDS: &[Row] = &[
    ("", "ComponentStatus", &COMPONENT_STATUS),
    ("", "ConfigMap", &CONFIG_MAP),
    ("", "Namespace", &NAMESPACE),
    ("", "Node", &NODE),
    ("", "ResourceQuota", &RESOURCE_QUOTA),
    ("", "Secret", &SECRET),
    ("", "ServiceAccount", &AGED),
    ("autoscaling", "Scale", &SCALE),
];

static CONFIG_MAP: Printer = printer_of(&[text("Data"), AGE], |item| {
    let entries = |key: &str| meta::entries(item.object, &[key]).count();
    vec![(entries("data") + entries("binaryData")).into(), item.age()]
});

static SECRET: Printer = printer_of(&[text("Type"), text("Data"), AGE], |item| {
    vec![item.text(&["type"]), item.count(&["data"]), item.age()]
});

static NAMESPACE: Printer = printer_of(&[text("Status"), AGE], |item| {
    vec![item.text(&["status", "phase"]), item.age()]
});

pub(super) static SCALE: Printer =
    printer_of(&[number("Desired"), number("Available"), AGE], |item| {
        vec![
            item.number(&["spec", "replicas"]),
            item.number(&["status", "replicas"]),
            item.age(),
        ]
    });

static COMPONENT_STATUS: Printer =
    printer_of(&[text("Status"), text("Message"), text("Error")], |item| {
        let healthy = item
            .items(&["conditions"])
            .iter()
            .find(|one| meta::text(one, &["type"]) == "Healthy");
        let Some(condition) = healthy else {
            return vec!["Unknown".into(), "".into(), "".into()];
        };
        let status = match meta::text(condition, &["status"]) {
            "True" => "Healthy",
            _ => "Unhealthy",
        };
        vec![
            status.into(),
            meta::text(condition, &["message"]).into(),
            meta::text(condition, &["error"]).into(),
        ]
    });

static RESOURCE_QUOTA: Printer = printer_of(&[text("Request"), text("Limit"), AGE], |item| {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (name, hard) in meta::entries(item.object, &["status", "hard"]) {
        let used = match meta::text(item.object, &["status", "used", name]) {
            "" => "0",
            used => used,
        };
        let entry = format!("{name}: {used}/{}", hard.as_str().unwrap_or_default());
        if name.starts_with("limits.") {
            limits.push(entry);
        } else {
            requests.push(entry);
        }
    }
    vec![
        requests.join(", ").into(),
        limits.join(", ").into(),
        item.age(),
    ]
});

static NODE: Printer = printer_of(
    &[
        text("Status"),
        text("Roles"),
        AGE,
        text("Version"),
        wide("Internal-IP"),
        wide("External-IP"),
        wide("OS-Image"),
        wide("Kernel-Version"),
        wide("Container-Runtime"),
    ],
    |item| {
        let info = |key: &str| item.text_or(&["status", "nodeInfo", key], "<unknown>");
        vec![
            node_status(item).into(),
            node_roles(item).into(),
            item.age(),
            item.text(&["status", "nodeInfo", "kubeletVersion"]),
            node_address(item, "InternalIP"),
            node_address(item, "ExternalIP"),
            info("osImage"),
            kernel(item).into(),
            info("containerRuntimeVersion"),
        ]
    },
);

fn node_status(item: &Item<'_>) -> String {
    let ready = item
        .items(&["status", "conditions"])
        .iter()
        .rfind(|one| meta::text(one, &["type"]) == "Ready");
    let mut status = match ready.map(|one| meta::text(one, &["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if meta::boolean(item.object, &["spec", "unschedulable"]) {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn node_roles(item: &Item<'_>) -> String {
    let roles: BTreeSet<&str> = meta::entries(item.object, &["metadata", "labels"])
        .filter_map(|(key, value)| match key.as_str() {
            "kubernetes.io/role" => value.as_str(),
            key => key.strip_prefix("node-role.kubernetes.io/"),
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() {
        return "<none>".to_owned();
    }
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn node_address(item: &Item<'_>, kind: &str) -> Value {
    item.items(&["status", "addresses"])
        .iter()
        .find(|one| meta::text(one, &["type"]) == kind)
        .map_or("<none>", |one| meta::text(one, &["address"]))
        .into()
}

fn kernel(item: &Item<'_>) -> String {
    let info = |key: &str| meta::text(item.object, &["status", "nodeInfo", key]);
    let version = match info("kernelVersion") {
        "" => "<unknown>",
        version => version,
    };
    match info("architecture") {
        "" => version.to_owned(),
        architecture => format!("{version} ({architecture})"),
    }
}

//! Leases, runtimes, devices, extension servers.

use super::{AGE, AGED, Printer, Row, printer_of, text};
use crate::meta;

const RESOURCE: &str = "resource.k8s.io";

pub(super) const KINDS: &[Row] = &[
    ("apiregistration.k8s.io", "APIService", &SERVICE),
    ("coordination.k8s.io", "Lease", &LEASE),
    ("node.k8s.io", "RuntimeClass", &RUNTIME),
    (RESOURCE, "DeviceClass", &AGED),
    (RESOURCE, "ResourceClaim", &CLAIM),
    (RESOURCE, "ResourceClaimTemplate", &AGED),
    (RESOURCE, "ResourceSlice", &SLICE),
];

static LEASE: Printer = printer_of(&[text("Holder"), AGE], |item| {
    vec![item.text(&["spec", "holderIdentity"]), item.age()]
});

static RUNTIME: Printer = printer_of(&[text("Handler"), AGE], |item| {
    vec![item.text(&["handler"]), item.age()]
});

static CLAIM: Printer = printer_of(&[text("State"), AGE], |item| {
    let mut states = Vec::new();
    if item.is_deleting() {
        states.push("deleted");
    }
    if meta::at(item.object, &["status", "allocation"]).is_null() {
        if !item.is_deleting() {
            states.push("pending");
        }
    } else {
        states.push("allocated");
        if !item.items(&["status", "reservedFor"]).is_empty() {
            states.push("reserved");
        }
    }
    vec![states.join(",").into(), item.age()]
});

static SLICE: Printer = printer_of(&[text("Node"), text("Driver"), text("Pool"), AGE], |item| {
    vec![
        item.text(&["spec", "nodeName"]),
        item.text(&["spec", "driver"]),
        item.text(&["spec", "pool", "name"]),
        item.age(),
    ]
});

static SERVICE: Printer = printer_of(&[text("Service"), text("Available"), AGE], |item| {
    let service = meta::at(item.object, &["spec", "service"]);
    let service = if service.is_null() {
        "Local".to_owned()
    } else {
        let part = |key: &str| meta::text(service, &[key]);
        format!("{}/{}", part("namespace"), part("name"))
    };
    let available = item
        .items(&["status", "conditions"])
        .iter()
        .find(|one| meta::text(one, &["type"]) == "Available")
        .map_or_else(
            || "Unknown".to_owned(),
            |one| match (meta::text(one, &["status"]), meta::text(one, &["reason"])) {
                ("True", _) => "True".to_owned(),
                (status, reason) => format!("{status} ({reason})"),
            },
        );
    vec![service.into(), available.into(), item.age()]
});

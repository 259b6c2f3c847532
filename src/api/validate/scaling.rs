//! Horizontal pod autoscalers (in the form of v2) and disruption budgets.

use serde_json::Value;

use super::network::segment;
use super::one_of;
use super::resources::{container_resource_name, parse};
use super::{
    at_most_100_percent, dns_label, label_selector, non_negative_member, number_or_percent,
};
use crate::field::{ErrorList, Path};
use crate::meta::{at, get, integer, items, text};

const SPEC: Path<'static> = Path::new("spec");

pub(crate) fn budget(budget: &Value, errors: &mut ErrorList) {
    let spec = get(budget, "spec");
    let keys = ["minAvailable", "maxUnavailable"];
    if keys.iter().all(|key| !get(spec, key).is_null()) {
        let why = "minAvailable and maxUnavailable cannot be both set";
        errors.invalid(&SPEC, spec.clone(), why);
    }
    for key in keys {
        let value = get(spec, key);
        if !value.is_null() {
            number_or_percent(value, &SPEC.child(key), errors);
            at_most_100_percent(value, &SPEC.child(key), errors);
        }
    }
    label_selector(get(spec, "selector"), &SPEC.child("selector"), errors);
    if let Some(policy) = get(spec, "unhealthyPodEvictionPolicy").as_str() {
        let valid = ["AlwaysAllow", "IfHealthyBudget"];
        one_of(
            policy,
            &valid,
            &SPEC.child("unhealthyPodEvictionPolicy"),
            errors,
        );
    }
}

pub(crate) fn budget_status(budget: &Value, errors: &mut ErrorList) {
    let status = get(budget, "status");
    let path = Path::new("status");
    for key in [
        "disruptionsAllowed",
        "currentHealthy",
        "desiredHealthy",
        "expectedPods",
    ] {
        non_negative_member(status, key, &path, errors);
    }
}

pub(crate) fn autoscaler(autoscaler: &Value, errors: &mut ErrorList) {
    let spec = get(autoscaler, "spec");
    let least = integer(spec, &["minReplicas"]);
    let most = integer(spec, &["maxReplicas"]).unwrap_or(0);
    let most_path = SPEC.child("maxReplicas");
    if let Some(least) = least.filter(|least| *least < 1) {
        let why = "must be greater than or equal to 1";
        errors.invalid(&SPEC.child("minReplicas"), least, why);
    }
    if most == 0 {
        errors.required(&most_path, "must be set and greater than 0");
    } else if most < 0 {
        errors.invalid(&most_path, most, "must be greater than or equal to 1");
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid(
            &most_path,
            most,
            "must be greater than or equal to `minReplicas`",
        );
    }
    target_reference(
        get(spec, "scaleTargetRef"),
        false,
        &SPEC.child("scaleTargetRef"),
        errors,
    );
    let path = SPEC.child("metrics");
    for (index, metric) in items(spec, &["metrics"]).iter().enumerate() {
        self::metric(metric, &path.index(index), errors);
    }
    let path = SPEC.child("behavior");
    for key in ["scaleUp", "scaleDown"] {
        let rules = at(spec, &["behavior", key]);
        if !rules.is_null() {
            scaling_rules(rules, &path.child(key), errors);
        }
    }
}

fn target_reference(reference: &Value, core: bool, path: &Path<'_>, errors: &mut ErrorList) {
    for key in ["kind", "name"] {
        segment(text(reference, &[key]), &path.child(key), errors);
    }
    let version = text(reference, &["apiVersion"]);
    let why = match version.matches('/').count() {
        0 if !core => "apiVersion must specify API group".to_owned(),
        0 | 1 => return,
        _ => format!("unexpected GroupVersion string: {version}"),
    };
    errors.invalid(&path.child("apiVersion"), version, why);
}

/// Types of metrics and the members that hold them, in the order they are looked at.
const METRICS: &[(&str, &str)] = &[
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

fn metric(metric: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = text(metric, &["type"]);
    let valid = [
        "ContainerResource",
        "External",
        "Object",
        "Pods",
        "Resource",
    ];
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric source type");
    }
    if !valid.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, &valid);
    }
    let present: Vec<&str> = METRICS
        .iter()
        .map(|row| row.1)
        .filter(|member| !get(metric, member).is_null())
        .collect();
    if let Some(first) = present.first() {
        source(get(metric, first), first, &path.child(first), errors);
    }
    let expected = METRICS.iter().find(|row| row.0 == kind).map(|row| row.1);
    match expected {
        Some(member) if get(metric, member).is_null() => {
            let why = "must populate information for the given metric source";
            errors.required(&path.child(member), why);
        }
        Some(_) => {}
        None => errors.not_supported(&path.child("type"), kind, &valid),
    }
    if present.len() != 1 {
        for member in present.iter().filter(|member| Some(**member) != expected) {
            let why = "must populate the given metric source only";
            errors.forbidden(&path.child(member), why);
        }
    }
}

fn source(source: &Value, member: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let target = path.child("target");
    let value = |key: &str| !at(source, &["target", key]).is_null();
    let has_name = matches!(member, "resource" | "containerResource");
    if has_name {
        let name = text(source, &["name"]);
        if name.is_empty() {
            errors.required(&path.child("name"), "must specify a resource name");
        } else if member == "containerResource" {
            container_resource_name(name, &path.child("name"), errors);
        }
    } else {
        if member == "object" {
            let described = path.child("describedObject");
            target_reference(get(source, "describedObject"), true, &described, errors);
        }
        let name = text(source, &["metric", "name"]);
        let metric = path.child("metric");
        if name.is_empty() {
            errors.required(&metric.child("name"), "must specify a metric name");
        } else {
            segment(name, &metric.child("name"), errors);
        }
    }
    if member == "containerResource" {
        let container = text(source, &["container"]);
        if container.is_empty() {
            errors.required(&path.child("container"), "must specify a container");
        } else {
            dns_label(container, &path.child("container"), errors);
        }
    }
    metric_target(get(source, "target"), &target, errors);
    let average = target.child("averageValue");
    match member {
        "pods" if !value("averageValue") => {
            errors.required(&average, "must specify a positive target averageValue");
        }
        "object" if !value("value") && !value("averageValue") => {
            errors.required(&average, "must set either a target value or averageValue");
        }
        "external" if !value("value") && !value("averageValue") => {
            let why = "must set either a target value for metric or a per-pod target";
            errors.required(&average, why);
        }
        "external" if value("value") && value("averageValue") => {
            let why = "may not set both a target value for metric and a per-pod target";
            errors.forbidden(&target.child("value"), why);
        }
        _ if has_name && !value("averageUtilization") && !value("averageValue") => {
            let why = "must set either a target raw value or a target utilization";
            errors.required(&target.child("averageUtilization"), why);
        }
        _ if has_name && value("averageUtilization") && value("averageValue") => {
            let why = "may not set both a target raw value and a target utilization";
            errors.forbidden(&average, why);
        }
        _ => {}
    }
}

fn metric_target(target: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = text(target, &["type"]);
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let why = "must be either Utilization, Value, or AverageValue";
        errors.invalid(&path.child("type"), kind, why);
    }
    for key in ["value", "averageValue"] {
        let value = get(target, key);
        let amount = parse(value);
        if !value.is_null() && (amount.is_zero() || amount.is_negative()) {
            errors.invalid(&path.child(key), value.clone(), "must be positive");
        }
    }
    if let Some(percent) = integer(target, &["averageUtilization"])
        && percent < 1
    {
        errors.invalid(
            &path.child("averageUtilization"),
            percent,
            "must be greater than 0",
        );
    }
}

fn scaling_rules(rules: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(seconds) = integer(rules, &["stabilizationWindowSeconds"]) {
        let at = path.child("stabilizationWindowSeconds");
        if seconds < 0 {
            errors.invalid(&at, seconds, "must be greater than or equal to zero");
        }
        if seconds > 3600 {
            errors.invalid(&at, seconds, "must be less than or equal to 3600");
        }
    }
    if let Some(policy) = get(rules, "selectPolicy").as_str() {
        one_of(
            policy,
            &["Disabled", "Max", "Min"],
            &path.child("selectPolicy"),
            errors,
        );
    }
    let list = path.child("policies");
    let policies = items(rules, &["policies"]);
    if policies.is_empty() {
        errors.required(&list, "must specify at least one Policy");
    }
    for (index, policy) in policies.iter().enumerate() {
        let at = list.index(index);
        one_of(
            text(policy, &["type"]),
            &["Percent", "Pods"],
            &at.child("type"),
            errors,
        );
        for key in ["value", "periodSeconds"] {
            let number = integer(policy, &[key]).unwrap_or(0);
            if number <= 0 {
                errors.invalid(&at.child(key), number, "must be greater than zero");
            }
            if key == "periodSeconds" && number > 1800 {
                errors.invalid(&at.child(key), number, "must be less than or equal to 1800");
            }
        }
    }
    let tolerance = get(rules, "tolerance");
    if !tolerance.is_null() {
        super::resources::non_negative_quantity(tolerance, &path.child("tolerance"), errors);
    }
}

pub(crate) fn autoscaler_status(autoscaler: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    for key in ["currentReplicas", "desiredReplicas"] {
        non_negative_member(get(autoscaler, "status"), key, &path, errors);
    }
}

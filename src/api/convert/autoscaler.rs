//! Horizontal pod autoscalers: v1 knows only a CPU target; everything else of v2 travels in
//! annotations.

use serde_json::{Map, Value, json};

use crate::meta::{self, at, get, items, text};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

pub(super) fn to_v2(scaler: &mut Value) {
    let annotation = |name: &str| -> Option<Value> {
        let value = at(scaler, &["metadata", "annotations", name]).as_str()?;
        serde_json::from_str(value).ok()
    };
    let others = annotation(METRICS);
    let current = annotation(CURRENT);
    let conditions = annotation(CONDITIONS);
    let behavior = annotation(BEHAVIOR);
    let mut metrics: Vec<Value> = items(&others.unwrap_or_default(), &[])
        .iter()
        .map(spec_to_v2)
        .collect();
    if let Some(percent) = meta::remove(scaler, &["spec", "targetCPUUtilizationPercentage"]) {
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percent}}}));
    }
    if metrics.is_empty() {
        metrics.push(crate::defaults::default_metric());
    }
    meta::set(scaler, &["spec", "metrics"], metrics);
    if at(scaler, &["status", "currentReplicas"]) == 0 {
        meta::remove(scaler, &["status", "currentReplicas"]);
    }
    if let Some(behavior) = behavior {
        meta::set(
            scaler,
            &["spec", "behavior"],
            rename_behavior(&behavior, false),
        );
    }
    let percent = meta::remove(scaler, &["status", "currentCPUUtilizationPercentage"]);
    match current {
        Some(current) => {
            let list: Vec<Value> = items(&current, &[]).iter().map(status_to_v2).collect();
            meta::set(scaler, &["status", "currentMetrics"], list);
        }
        None => {
            let list = percent.map(|percent| {
                json!([{"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": percent}}}])
            });
            meta::set(
                scaler,
                &["status", "currentMetrics"],
                list.unwrap_or_default(),
            );
        }
    }
    if let Some(conditions) = conditions {
        meta::set(scaler, &["status", "conditions"], conditions);
    }
    drop_annotations(scaler);
}

fn drop_annotations(scaler: &mut Value) {
    let Some(annotations) = meta::at_mut(scaler, &["metadata", "annotations"]) else {
        return;
    };
    if let Some(map) = annotations.as_object_mut() {
        map.retain(|key, _| ![METRICS, CURRENT, CONDITIONS, BEHAVIOR].contains(&key.as_str()));
        if map.is_empty() {
            meta::remove(scaler, &["metadata", "annotations"]);
        }
    }
}

fn is_cpu(metric: &Value) -> bool {
    text(metric, &["type"]) == "Resource" && text(metric, &["resource", "name"]) == "cpu"
}

pub(super) fn from_v2(scaler: &mut Value) {
    drop_annotations(scaler);
    let metrics = match meta::remove(scaler, &["spec", "metrics"]) {
        Some(Value::Array(metrics)) => metrics,
        _ => Vec::new(),
    };
    let mut others = Vec::new();
    for metric in &metrics {
        let percent = at(metric, &["resource", "target", "averageUtilization"]);
        if is_cpu(metric) && !percent.is_null() {
            meta::set(
                scaler,
                &["spec", "targetCPUUtilizationPercentage"],
                percent.clone(),
            );
        } else {
            others.push(spec_from_v2(metric));
        }
    }
    let current = match meta::remove(scaler, &["status", "currentMetrics"]) {
        Some(Value::Array(current)) => current,
        _ => Vec::new(),
    };
    for metric in &current {
        let percent = at(metric, &["resource", "current", "averageUtilization"]);
        if is_cpu(metric) && !percent.is_null() {
            let path = ["status", "currentCPUUtilizationPercentage"];
            meta::set(scaler, &path, percent.clone());
        }
    }
    let current: Vec<Value> = current.iter().map(status_from_v2).collect();
    let conditions = meta::remove(scaler, &["status", "conditions"]).unwrap_or_default();
    let behavior = meta::remove(scaler, &["spec", "behavior"]);
    // Always written in this version.
    if at(scaler, &["status", "currentReplicas"]).is_null() {
        meta::set(scaler, &["status", "currentReplicas"], 0);
    }
    let mut annotate = |name: &str, value: Value| {
        meta::set(
            scaler,
            &["metadata", "annotations", name],
            value.to_string(),
        );
    };
    if !others.is_empty() {
        annotate(METRICS, others.into());
    }
    if !current.is_empty() {
        annotate(CURRENT, current.into());
    }
    if !items(&conditions, &[]).is_empty() {
        annotate(CONDITIONS, conditions);
    }
    if let Some(behavior) = behavior {
        annotate(BEHAVIOR, rename_behavior(&behavior, true));
    }
}

/// The annotation holds the behaviour with capitalised names.
fn rename_behavior(value: &Value, up: bool) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| {
                    let (first, rest) = key.split_at(1);
                    let first = if up {
                        first.to_uppercase()
                    } else {
                        first.to_lowercase()
                    };
                    (format!("{first}{rest}"), rename_behavior(value, up))
                })
                .collect(),
        ),
        Value::Array(items) => items.iter().map(|item| rename_behavior(item, up)).collect(),
        other => other.clone(),
    }
}

/// An object of those members that are there.
fn object(members: Vec<(&str, &Value)>) -> Value {
    let map: Map<String, Value> = members
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    Value::Object(map)
}

/// Applies `change` to the source that the metric's type names.
fn with_source(metric: &Value, change: fn(&str, &Value) -> Value) -> Value {
    let mut result = object(vec![("type", get(metric, "type"))]);
    for key in [
        "resource",
        "containerResource",
        "pods",
        "object",
        "external",
    ] {
        if let Some(source) = metric.get(key) {
            result[key] = change(key, source);
        }
    }
    result
}

fn spec_to_v2(metric: &Value) -> Value {
    with_source(metric, |key, source| {
        let average = get(source, "targetAverageValue");
        let utilization = get(source, "targetAverageUtilization");
        let kind =
            |condition: bool, yes: &str, no: &str| Value::from(if condition { yes } else { no });
        match key {
            "resource" | "containerResource" => object(vec![
                ("name", get(source, "name")),
                ("container", get(source, "container")),
                (
                    "target",
                    &object(vec![
                        (
                            "type",
                            &kind(utilization.is_null(), "AverageValue", "Utilization"),
                        ),
                        ("averageValue", average),
                        ("averageUtilization", utilization),
                    ]),
                ),
            ]),
            "pods" => object(vec![
                ("metric", &identifier(source, "selector")),
                (
                    "target",
                    &object(vec![
                        ("type", &json!("AverageValue")),
                        ("averageValue", average),
                    ]),
                ),
            ]),
            "object" => {
                let average = get(source, "averageValue");
                object(vec![
                    ("describedObject", get(source, "target")),
                    ("metric", &identifier(source, "selector")),
                    (
                        "target",
                        &object(vec![
                            ("type", &kind(average.is_null(), "Value", "AverageValue")),
                            ("value", get(source, "targetValue")),
                            ("averageValue", average),
                        ]),
                    ),
                ])
            }
            _ => {
                let value = get(source, "targetValue");
                object(vec![
                    ("metric", &identifier(source, "metricSelector")),
                    (
                        "target",
                        &object(vec![
                            ("type", &kind(value.is_null(), "AverageValue", "Value")),
                            ("value", value),
                            ("averageValue", average),
                        ]),
                    ),
                ])
            }
        }
    })
}

fn identifier(source: &Value, selector: &str) -> Value {
    object(vec![
        ("name", get(source, "metricName")),
        ("selector", get(source, selector)),
    ])
}

fn spec_from_v2(metric: &Value) -> Value {
    with_source(metric, |key, source| {
        let target = get(source, "target");
        let value = get(target, "value");
        let average = get(target, "averageValue");
        let name = at(source, &["metric", "name"]);
        let selector = at(source, &["metric", "selector"]);
        match key {
            "resource" | "containerResource" => object(vec![
                ("name", get(source, "name")),
                (
                    "targetAverageUtilization",
                    get(target, "averageUtilization"),
                ),
                ("targetAverageValue", average),
                ("container", get(source, "container")),
            ]),
            "pods" => object(vec![
                ("metricName", name),
                ("targetAverageValue", average),
                ("selector", selector),
            ]),
            "object" => object(vec![
                ("target", get(source, "describedObject")),
                ("metricName", name),
                ("targetValue", value),
                ("selector", selector),
                ("averageValue", average),
            ]),
            _ => object(vec![
                ("metricName", name),
                ("metricSelector", selector),
                ("targetValue", value),
                ("targetAverageValue", average),
            ]),
        }
    })
}

fn status_to_v2(metric: &Value) -> Value {
    with_source(metric, |key, source| {
        let current = match key {
            "object" | "external" => object(vec![
                ("value", get(source, "currentValue")),
                (
                    "averageValue",
                    get(
                        source,
                        if key == "object" {
                            "averageValue"
                        } else {
                            "currentAverageValue"
                        },
                    ),
                ),
            ]),
            _ => object(vec![
                ("averageValue", get(source, "currentAverageValue")),
                (
                    "averageUtilization",
                    get(source, "currentAverageUtilization"),
                ),
            ]),
        };
        match key {
            "resource" | "containerResource" => object(vec![
                ("name", get(source, "name")),
                ("container", get(source, "container")),
                ("current", &current),
            ]),
            "object" => object(vec![
                ("describedObject", get(source, "target")),
                ("metric", &identifier(source, "selector")),
                ("current", &current),
            ]),
            "external" => object(vec![
                ("metric", &identifier(source, "metricSelector")),
                ("current", &current),
            ]),
            _ => object(vec![
                ("metric", &identifier(source, "selector")),
                ("current", &current),
            ]),
        }
    })
}

fn status_from_v2(metric: &Value) -> Value {
    with_source(metric, |key, source| {
        let current = get(source, "current");
        let value = get(current, "value");
        let average = get(current, "averageValue");
        let name = at(source, &["metric", "name"]);
        let selector = at(source, &["metric", "selector"]);
        match key {
            "resource" | "containerResource" => object(vec![
                ("name", get(source, "name")),
                ("container", get(source, "container")),
                (
                    "currentAverageUtilization",
                    get(current, "averageUtilization"),
                ),
                ("currentAverageValue", average),
            ]),
            "object" => object(vec![
                ("target", get(source, "describedObject")),
                ("metricName", name),
                ("currentValue", value),
                ("selector", selector),
                ("averageValue", average),
            ]),
            "external" => object(vec![
                ("metricName", name),
                ("metricSelector", selector),
                ("currentValue", value),
                ("currentAverageValue", average),
            ]),
            _ => object(vec![
                ("metricName", name),
                ("currentAverageValue", average),
                ("selector", selector),
            ]),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let v1 = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}, "status": {}});
        let mut scaler = v1.clone();
        to_v2(&mut scaler);
        assert_eq!(
            scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
            50
        );
        scaler["spec"]["metrics"] = json!([
            {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}]);
        let v2 = scaler.clone();
        from_v2(&mut scaler);
        assert!(scaler["metadata"]["annotations"][METRICS].is_string());
        to_v2(&mut scaler);
        assert_eq!(scaler, v2);
    }
}

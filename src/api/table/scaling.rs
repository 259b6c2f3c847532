//! Autoscalers and disruption budgets.

use serde_json::Value;

use super::{AGE, Item, Printer, Row, number, plain, printer_of, text};
use crate::meta;

pub(super) const KINDS: &[Row] = &[
    ("autoscaling", "HorizontalPodAutoscaler", &AUTOSCALER),
    ("policy", "PodDisruptionBudget", &BUDGET),
];

static BUDGET: Printer = printer_of(
    &[
        text("Min Available"),
        text("Max Unavailable"),
        number("Allowed Disruptions"),
        AGE,
    ],
    |item| {
        let limit = |key: &str| match meta::at(item.object, &["spec", key]) {
            Value::Null => "N/A".into(),
            value => Value::from(plain(value)),
        };
        vec![
            limit("minAvailable"),
            limit("maxUnavailable"),
            item.number(&["status", "disruptionsAllowed"]),
            item.age(),
        ]
    },
);

static AUTOSCALER: Printer = printer_of(
    &[
        text("Reference"),
        text("Targets"),
        text("MinPods"),
        text("MaxPods"),
        text("Replicas"),
        AGE,
    ],
    |item| {
        let target = |key: &str| meta::text(item.object, &["spec", "scaleTargetRef", key]);
        let minimum = match meta::integer(item.object, &["spec", "minReplicas"]) {
            Some(minimum) => minimum.to_string(),
            None => "<unset>".to_owned(),
        };
        vec![
            format!("{}/{}", target("kind"), target("name")).into(),
            targets(item).into(),
            minimum.into(),
            item.number(&["spec", "maxReplicas"]),
            item.number(&["status", "currentReplicas"]),
            item.age(),
        ]
    },
);

const MAX_TARGETS: usize = 2;

fn targets(item: &Item<'_>) -> String {
    // Version 1 knows one metric.
    if let Some(wanted) = meta::integer(item.object, &["spec", "targetCPUUtilizationPercentage"]) {
        let current = meta::integer(item.object, &["status", "currentCPUUtilizationPercentage"])
            .map_or_else(|| "<unknown>".to_owned(), |current| format!("{current}%"));
        return format!("cpu: {current}/{wanted}%");
    }
    let specs = item.items(&["spec", "metrics"]);
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let statuses = item.items(&["status", "currentMetrics"]);
    let list = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| target(spec, statuses.get(index)))
        .collect();
    super::shortened(list, MAX_TARGETS, ", ")
}

fn target(spec: &Value, status: Option<&Value>) -> String {
    let (key, named) = match meta::text(spec, &["type"]) {
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "External" => ("external", false),
        _ => return "<unknown type>".to_owned(),
    };
    let wanted = meta::at(spec, &[key, "target"]);
    let current = |field: &str| {
        let value = status.map(|status| meta::at(status, &[key, "current", field]));
        value
            .filter(|value| !value.is_null())
            .map_or_else(|| "<unknown>".to_owned(), plain)
    };
    let text = |field: &str| plain(meta::get(wanted, field));
    let has = |field: &str| !meta::get(wanted, field).is_null();
    if named {
        let name = meta::text(spec, &[key, "name"]);
        if has("averageValue") {
            return format!(
                "{name}: {}/{}",
                current("averageValue"),
                text("averageValue")
            );
        }
        let percent = |value: String| match value.as_str() {
            "<unknown>" => value,
            _ => format!("{value}%"),
        };
        let goal = match has("averageUtilization") {
            true => format!("{}%", text("averageUtilization")),
            false => "<auto>".to_owned(),
        };
        return format!("{name}: {}/{goal}", percent(current("averageUtilization")));
    }
    if key == "pods" {
        return format!("{}/{}", current("averageValue"), text("averageValue"));
    }
    if has("averageValue") {
        return format!("{}/{} (avg)", current("averageValue"), text("averageValue"));
    }
    format!("{}/{}", current("value"), text("value"))
}

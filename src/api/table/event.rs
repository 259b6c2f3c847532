//! Events, in both of their forms.

use serde_json::Value;

use super::{Item, Printer, Row, plain_name, text, wide};
use crate::meta;

pub(super) const KINDS: &[Row] = &[("", "Event", &EVENT), ("events.k8s.io", "Event", &EVENT)];

static EVENT: Printer = Printer {
    columns: &[
        text("Last Seen"),
        text("Type"),
        text("Reason"),
        text("Object"),
        wide("Subobject"),
        wide("Source"),
        text("Message"),
        wide("First Seen"),
        wide("Count"),
    ],
    cells,
    name_last: true,
    name: plain_name,
};

/// The first of the paths that holds a text.
fn either<'a>(item: &Item<'a>, paths: &[&[&str]]) -> &'a str {
    paths
        .iter()
        .map(|path| meta::text(item.object, path))
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

fn cells(item: &Item<'_>) -> Vec<Value> {
    let first = either(
        item,
        &[
            &["firstTimestamp"],
            &["deprecatedFirstTimestamp"],
            &["eventTime"],
        ],
    );
    let mut last = either(item, &[&["lastTimestamp"], &["deprecatedLastTimestamp"]]);
    if last.is_empty() {
        last = first;
    }
    let mut count = ["count", "deprecatedCount"]
        .iter()
        .find_map(|key| meta::integer(item.object, &[key]))
        .filter(|count| *count != 0)
        .unwrap_or(1);
    let series = meta::get(item.object, "series");
    if !series.is_null() {
        last = meta::text(series, &["lastObservedTime"]);
        count = meta::integer(series, &["count"]).unwrap_or_default();
    }
    let kind = either(item, &[&["involvedObject", "kind"], &["regarding", "kind"]]).to_lowercase();
    let object = match either(item, &[&["involvedObject", "name"], &["regarding", "name"]]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let message = either(item, &[&["message"], &["note"]]);
    vec![
        item.since_text(last).into(),
        item.text(&["type"]),
        item.text(&["reason"]),
        object.into(),
        either(
            item,
            &[
                &["involvedObject", "fieldPath"],
                &["regarding", "fieldPath"],
            ],
        )
        .into(),
        source(item).into(),
        message.trim().into(),
        item.since_text(first).into(),
        count.into(),
    ]
}

fn source(item: &Item<'_>) -> String {
    let component = either(
        item,
        &[
            &["source", "component"],
            &["deprecatedSource", "component"],
            &["reportingComponent"],
            &["reportingController"],
        ],
    );
    let instance = either(
        item,
        &[
            &["source", "host"],
            &["deprecatedSource", "host"],
            &["reportingInstance"],
        ],
    );
    if instance.is_empty() {
        component.to_owned()
    } else {
        format!("{component}, {instance}")
    }
}

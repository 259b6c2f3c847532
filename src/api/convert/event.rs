//! Events: the same object under other names.

use serde_json::Value;

use crate::meta;

/// Names in events.k8s.io/v1 and in core/v1.
const NAMES: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Fields a client may select by, in both groups.
const FIELDS: &[(&str, &str)] = &[
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.uid", "involvedObject.uid"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    (
        "regarding.resourceVersion",
        "involvedObject.resourceVersion",
    ),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("reportingController", "reportingComponent"),
];

pub(super) fn to_core(event: &mut Value) {
    for (new, core) in NAMES {
        if let Some(value) = meta::remove(event, &[new]) {
            event[*core] = value;
        }
    }
}

pub(super) fn from_core(event: &mut Value) {
    for (new, core) in NAMES {
        if let Some(value) = meta::remove(event, &[core]) {
            event[*new] = value;
        }
    }
    // Written even when empty in one group, left out in the other.
    for key in ["reportingController", "reportingInstance", "note"] {
        if meta::get(event, key) == "" {
            meta::remove(event, &[key]);
        }
    }
}

pub(super) fn field(field: &str) -> &str {
    FIELDS
        .iter()
        .find(|(new, _)| *new == field)
        .map_or(field, |(_, core)| core)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn there_and_back() {
        let new = json!({"regarding": {"kind": "Pod"}, "note": "n", "eventTime": null,
            "reportingController": "c", "deprecatedCount": 2, "reason": "r"});
        let mut event = new.clone();
        to_core(&mut event);
        assert_eq!(event["involvedObject"]["kind"], "Pod");
        assert_eq!(event["message"], "n");
        from_core(&mut event);
        assert_eq!(event, new);
    }
}

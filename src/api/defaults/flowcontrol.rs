//! Flow schemas and priority levels.

use serde_json::Value;

use super::Rule;
use crate::meta::{default, integer};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("flowcontrol.v1.FlowSchemaSpec", flow_schema),
    ("flowcontrol.v1.ExemptPriorityLevelConfiguration", exempt),
    ("flowcontrol.v1.LimitedPriorityLevelConfiguration", limited),
    ("flowcontrol.v1.QueuingConfiguration", queuing),
];

fn flow_schema(spec: &mut Value) {
    if integer(spec, &["matchingPrecedence"]).unwrap_or(0) == 0 {
        spec["matchingPrecedence"] = Value::from(1000);
    }
}

fn exempt(level: &mut Value) {
    default(level, "nominalConcurrencyShares", 0);
    default(level, "lendablePercent", 0);
}

fn limited(level: &mut Value) {
    default(level, "nominalConcurrencyShares", 30);
    default(level, "lendablePercent", 0);
}

fn queuing(queuing: &mut Value) {
    for (key, value) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
        if integer(queuing, &[key]).unwrap_or(0) == 0 {
            queuing[key] = Value::from(value);
        }
    }
}

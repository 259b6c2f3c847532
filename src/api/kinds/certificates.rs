//! Certificate signing requests: who asks is written down by the server.

use serde_json::{Map, Value, json};

use super::Kind;
use crate::meta::{self, items, items_mut, text};
use crate::strategy::{Context, copy_member};
use crate::time;

pub(super) const REQUEST: Kind = Kind {
    names: crate::strategy::NameRule::PathSegment,
    prepare_create,
    prepare_update: |_, request, old| {
        copy_member(request, old, "spec");
        copy_member(request, old, "status");
    },
    prepare_status,
    ..Kind::DEFAULT
};

fn prepare_create(context: &Context<'_>, request: &mut Value) {
    let spec = meta::entry(request, &["spec"]);
    for key in ["username", "uid", "groups", "extra"] {
        meta::remove(spec, &[key]);
    }
    if let Some(user) = context.user {
        let mut put = |key: &str, value: Value| {
            spec[key] = value;
        };
        put("username", json!(user.username));
        if !user.uid.is_empty() {
            put("uid", json!(user.uid));
        }
        if !user.groups.is_empty() {
            put("groups", json!(user.groups));
        }
        if !user.extra.is_empty() {
            put("extra", json!(user.extra));
        }
    }
    request["status"] = Value::Object(Map::new());
}

/// `approval` sets the conditions that decide, `status` everything else.
fn prepare_status(context: &Context<'_>, request: &mut Value, old: &Value) {
    copy_member(request, old, "spec");
    if context.subresource == "approval" {
        let conditions = meta::at(request, &["status", "conditions"]).clone();
        copy_member(request, old, "status");
        if conditions.is_null() {
            meta::remove(request, &["status", "conditions"]);
        } else {
            meta::set(request, &["status", "conditions"], conditions);
        }
    } else {
        keep_decision(request, old);
    }
    stamp_conditions(context, request, old);
}

fn decides(condition: &Value) -> bool {
    matches!(text(condition, &["type"]), "Approved" | "Denied")
}

/// Approval and denial cannot be taken back or given through `status`.
fn keep_decision(request: &mut Value, old: &Value) {
    let kept: Vec<Value> = items(old, &["status", "conditions"])
        .iter()
        .filter(|one| decides(one))
        .cloned()
        .collect();
    let mut conditions: Vec<Value> = items(request, &["status", "conditions"])
        .iter()
        .filter(|one| {
            !decides(one)
                || kept
                    .iter()
                    .any(|k| text(k, &["type"]) == text(one, &["type"]))
        })
        .cloned()
        .collect();
    for condition in kept {
        if !conditions
            .iter()
            .any(|one| text(one, &["type"]) == text(&condition, &["type"]))
        {
            conditions.push(condition);
        }
    }
    if !conditions.is_empty() {
        meta::set(request, &["status", "conditions"], conditions);
    }
}

fn stamp_conditions(context: &Context<'_>, request: &mut Value, old: &Value) {
    let now = time::format(context.now);
    for condition in items_mut(request, &["status", "conditions"]) {
        if meta::get(condition, "lastUpdateTime").is_null() {
            condition["lastUpdateTime"] = json!(now);
        }
        if meta::get(condition, "lastTransitionTime").is_null() {
            let before = items(old, &["status", "conditions"]).iter().find(|one| {
                text(one, &["type"]) == text(condition, &["type"])
                    && text(one, &["status"]) == text(condition, &["status"])
            });
            condition["lastTransitionTime"] = before
                .map(|one| meta::get(one, "lastTransitionTime").clone())
                .filter(|time| !time.is_null())
                .unwrap_or_else(|| json!(now));
        }
    }
}

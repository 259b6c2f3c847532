//! The difference between two statuses as a strategic merge patch.
//!
//! Lists of containers are atomic and go whole. Conditions merge by type and addresses by IP: for
//! these the patch names the order, so that the server drops what is not named.

use serde_json::{Map, Value, json};

/// The patch that turns `old` into `new`, guarded by the pod's uid; `None` if they are equal.
pub fn status_patch(uid: &str, old: &Value, new: &Value) -> Option<Value> {
    let empty = Map::new();
    let old = old.as_object().unwrap_or(&empty);
    let new = new.as_object().unwrap_or(&empty);
    let mut changed = Map::new();
    for (field, value) in new {
        let before = old.get(field);
        if before == Some(value) {
            continue;
        }
        match merge_key(field) {
            Some(key) => patch_list(field, key, before, value, &mut changed),
            None => {
                changed.insert(field.clone(), value.clone());
            }
        }
    }
    for field in old.keys().filter(|f| !new.contains_key(*f)) {
        changed.insert(field.clone(), Value::Null);
    }
    if changed.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"uid": uid}, "status": changed}))
}

fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
    }
}

fn patch_list(
    field: &str,
    key: &str,
    before: Option<&Value>,
    after: &Value,
    changed: &mut Map<String, Value>,
) {
    let rows = |list: Option<&Value>| list.and_then(Value::as_array).cloned().unwrap_or_default();
    let (before, after) = (rows(before), rows(Some(after)));
    let find = |row: &Value| before.iter().find(|b| b[key] == row[key]);
    let mut elements = Vec::new();
    for row in &after {
        if let Some(element) = patch_element(key, find(row), row) {
            elements.push(element);
        }
    }
    for gone in &before {
        if !after.iter().any(|a| a[key] == gone[key]) {
            elements.push(json!({"$patch": "delete", key: gone[key].clone()}));
        }
    }
    let order: Vec<Value> = after
        .iter()
        .map(|row| json!({key: row[key].clone()}))
        .collect();
    changed.insert(format!("$setElementOrder/{field}"), Value::Array(order));
    changed.insert(field.to_owned(), Value::Array(elements));
}

fn patch_element(key: &str, before: Option<&Value>, after: &Value) -> Option<Value> {
    let Some(before) = before.and_then(Value::as_object) else {
        return Some(after.clone());
    };
    let after = after.as_object()?;
    let mut element = Map::new();
    for (name, value) in after {
        if before.get(name) != Some(value) {
            element.insert(name.clone(), value.clone());
        }
    }
    for name in before.keys().filter(|n| !after.contains_key(*n)) {
        element.insert(name.clone(), Value::Null);
    }
    if element.is_empty() {
        return None;
    }
    element.insert(key.to_owned(), after[key].clone());
    Some(Value::Object(element))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn equal_statuses_need_no_patch() {
        let status =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(status_patch("u", &status, &status), None);
    }

    #[test]
    fn only_changed_conditions_are_named_and_lost_fields_become_null() {
        let old = json!({"phase": "Pending", "reason": "X", "conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
            {"type": "PodScheduled", "status": "True"}]});
        let new = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "True"}]});
        let patch = status_patch("u", &old, &new).unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"uid": "u"}, "status": {
                "phase": "Running", "reason": null,
                "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "PodScheduled"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": null}]}})
        );
    }

    #[test]
    fn a_changed_address_replaces_the_old_one() {
        let old = json!({"podIPs": [{"ip": "10.0.0.1"}]});
        let new = json!({"podIPs": [{"ip": "10.0.0.2"}]});
        let patch = status_patch("u", &old, &new).unwrap();
        assert_eq!(
            patch["status"]["podIPs"],
            json!([{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}])
        );
    }
}

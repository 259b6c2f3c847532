//! Merging of JSON trees, as far as tests need it.

use serde_json::{Map, Value};

/// RFC 7396.
pub(super) fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Like [`merge`], but lists of objects merge by their `uid`, `type`, `name` or `ip`. Statuses of
/// containers go whole, and orders of elements are ignored.
pub(super) fn merge_strategically(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if key.starts_with("$setElementOrder/") {
                    continue;
                }
                if value.is_null() {
                    target.remove(&key);
                } else if key.ends_with("Statuses") {
                    target.insert(key, value);
                } else {
                    merge_strategically(target.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(target), Value::Array(patch)) => {
            for item in patch {
                merge_item(target, item);
            }
        }
        (target, patch) => *target = patch,
    }
}

fn merge_item(target: &mut Vec<Value>, item: Value) {
    let key = ["uid", "type", "name", "ip"]
        .into_iter()
        .find(|key| item.get(key).is_some());
    let at = key.and_then(|key| target.iter().position(|old| old.get(key) == item.get(key)));
    let deletes = item.get("$patch").is_some_and(|patch| patch == "delete");
    match at {
        Some(at) if deletes => drop(target.remove(at)),
        Some(at) => merge_strategically(&mut target[at], item),
        None if !deletes && !target.contains(&item) => target.push(item),
        None => {}
    }
}

/// The string at a path, or the empty string.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

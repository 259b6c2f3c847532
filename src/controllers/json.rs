//! Small operations on JSON trees.

use serde::Serialize;
use serde_json::{Map, Value};

/// A Kubernetes object as a tree. What cannot be a tree becomes `null`, which no object type does.
pub fn to_value<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// RFC 7396: `null` removes, objects merge, everything else replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
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
            target.remove(key);
        } else {
            merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

/// The merge patch that makes `old` into `new`; `None` if they are equal.
pub fn difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return Some(new.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        let change = match old.get(key) {
            Some(old) => difference(old, value),
            None => Some(value.clone()),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    Some(Value::Object(patch))
}

/// `None` for zero: how the API omits a count.
pub fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_merged_gives_the_new_tree() {
        let old = json!({"a": 1, "b": {"c": [1], "d": 2}, "e": 3});
        let new = json!({"a": 1, "b": {"c": [2], "f": {}}, "g": "h"});
        let patch = difference(&old, &new).unwrap_or_default();
        assert_eq!(
            patch,
            json!({"b": {"c": [2], "d": null, "f": {}}, "e": null, "g": "h"})
        );
        let mut merged = old;
        merge(&mut merged, &patch);
        assert_eq!(merged, new);
        assert_eq!(difference(&new, &new), None);
    }
}

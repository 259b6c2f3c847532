//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

use super::PatchError;

/// Merges `patch` into `target`; `null` removes.
pub fn apply(target: &mut Value, patch: Value) -> Result<(), PatchError> {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            merge(target, patch);
            Ok(())
        }
        _ => Err(PatchError::Malformed(
            "json: cannot unmarshal array into Go value of type map[string]interface {}".to_owned(),
        )),
    }
}

fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match (target.get_mut(&key), value) {
            (_, Value::Null) => {
                target.remove(&key);
            }
            (Some(Value::Object(inner)), Value::Object(patch)) => merge(inner, patch),
            (_, mut value) => {
                prune_nulls(&mut value);
                target.insert(key, value);
            }
        }
    }
}

/// Removes `null` members, also those of objects in lists.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, member| !member.is_null());
            map.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn merges() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "l": [1], "x": "y"});
        let patch =
            json!({"a": {"b": null, "d": {"e": null, "f": 1}}, "l": [{"n": null}], "x": null});
        apply(&mut target, patch).unwrap();
        assert_eq!(target, json!({"a": {"c": 2, "d": {"f": 1}}, "l": [{}]}));
        assert!(apply(&mut target, json!([])).is_err());
    }
}

//! What a structural schema does to values: fields it does not know go, defaults come.
//!
//! Schemas are the JSON of `openAPIV3Schema`, checked when the definition was accepted.

use serde_json::{Map, Value};

use crate::meta::{boolean, get};
use crate::schema::{self, DecodeError};

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// Members that an object of its own always may have.
const OBJECT: &[&str] = &["apiVersion", "kind", "metadata"];

/// Drops fields that nothing knows and returns their paths. `root` has metadata whatever the schema says; metadata
/// that is none is left as it is.
pub fn prune(schema: &Value, value: &mut Value, root: bool) -> Vec<String> {
    pruned(schema, value, root).unknown
}

/// The same; metadata that is none is refused.
pub fn decode(schema: &Value, value: &mut Value) -> Result<Vec<String>, DecodeError> {
    let pruner = pruned(schema, value, true);
    pruner.fault.map_or(Ok(pruner.unknown), Err)
}

fn pruned(schema: &Value, value: &mut Value, root: bool) -> Pruner {
    let mut pruner = Pruner {
        path: String::new(),
        unknown: Vec::new(),
        fault: None,
    };
    pruner.value(schema, value, root);
    pruner
}

struct Pruner {
    path: String,
    unknown: Vec<String>,
    fault: Option<DecodeError>,
}

impl Pruner {
    fn value(&mut self, schema: &Value, value: &mut Value, root: bool) {
        match value {
            Value::Object(map) => self.object(schema, map, root || boolean(schema, &[EMBEDDED])),
            Value::Array(items) => {
                let length = self.path.len();
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    self.value(get(schema, "items"), item, false);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, schema: &Value, map: &mut Map<String, Value>, object: bool) {
        let properties = get(schema, "properties");
        let additional = get(schema, "additionalProperties");
        let preserve = boolean(schema, &[PRESERVE]);
        let length = self.path.len();
        map.retain(|key, member| {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(key);
            let mut keep = true;
            if object && OBJECT.contains(&key.as_str()) {
                if key == "metadata" {
                    self.metadata(member);
                }
            } else if let Some(known) = properties.get(key.as_str()) {
                self.value(known, member, false);
            } else if additional.is_object() {
                self.value(additional, member, false);
            } else if !preserve && additional != &Value::Bool(true) {
                self.unknown.push(self.path.clone());
                keep = false;
            }
            self.path.truncate(length);
            keep
        });
    }

    /// Metadata has the type it has everywhere.
    fn metadata(&mut self, metadata: &mut Value) {
        let Some(schema) = schema::by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
        else {
            return;
        };
        let mut decoded = metadata.clone();
        match schema.decode(&mut decoded) {
            Ok(unknown) => {
                let place = &self.path;
                let paths = unknown.into_iter().map(|path| format!("{place}.{path}"));
                self.unknown.extend(paths);
                *metadata = decoded;
            }
            Err(fault) => self.fault = self.fault.take().or(Some(fault)),
        }
    }
}

/// Fills defaults in. A null that is not allowed counts as absent.
pub fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, property) in get(schema, "properties").as_object().into_iter().flatten() {
                let nullable = boolean(property, &["nullable"]);
                let null = map
                    .get(key)
                    .is_some_and(|value| value.is_null() && !nullable);
                match property.get("default") {
                    Some(default) if null || !map.contains_key(key) => {
                        map.insert(key.clone(), default.clone());
                    }
                    None if null => {
                        map.remove(key);
                    }
                    _ => {}
                }
                if let Some(member) = map.get_mut(key) {
                    self::default(property, member);
                }
            }
            let additional = get(schema, "additionalProperties");
            if additional.is_object() {
                let known = get(schema, "properties");
                let others = map
                    .iter_mut()
                    .filter(|(key, _)| known.get(key.as_str()).is_none());
                others.for_each(|(_, member)| element(additional, member));
            }
        }
        Value::Array(list) => {
            let item = get(schema, "items");
            list.iter_mut().for_each(|member| element(item, member));
        }
        _ => {}
    }
}

/// A member of a list or map.
fn element(schema: &Value, member: &mut Value) {
    if let (true, false, Some(value)) = (
        member.is_null(),
        boolean(schema, &["nullable"]),
        schema.get("default"),
    ) {
        *member = value.clone();
    }
    default(schema, member);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_go_where_they_may() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "any": {"x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object"}}}}}});
        let mut value = json!({"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "n", "odd": 1},
            "spec": {"a": "1", "b": 2, "any": {"x": 1}, "list": [{"k": "v", "z": 1}], "map": {"m": {"q": 1}}}});
        let unknown = prune(&schema, &mut value, true);
        assert_eq!(
            unknown,
            ["metadata.odd", "spec.b", "spec.list[0].z", "spec.map.m.q"]
        );
        assert_eq!(
            value["spec"],
            json!({"a": "1", "any": {"x": 1}, "list": [{"k": "v"}], "map": {"m": {}}})
        );
    }

    #[test]
    fn defaults_come_and_nulls_go() {
        let schema = json!({"properties": {"spec": {"properties": {
            "n": {"type": "integer", "default": 3}, "nul": {"nullable": true, "default": "x"},
            "plain": {"type": "string"}, "nested": {"properties": {"deep": {"default": "d"}}}}}}});
        let mut value = json!({"spec": {"nul": null, "plain": null, "nested": {}}});
        default(&schema, &mut value);
        assert_eq!(
            value,
            json!({"spec": {"n": 3, "nul": null, "nested": {"deep": "d"}}})
        );
        let mut empty = json!({});
        default(&schema, &mut empty);
        assert_eq!(empty, json!({}));
    }
}

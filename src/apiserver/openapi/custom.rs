//! Schemas of custom resources: as their definition has them, with what every object has. Version 2 of OpenAPI knows
//! less, and its readers trip over what is half known, so there they say less.

use sampan_api::meta::{boolean, get};
use serde_json::{Value, json};

use super::Flavor;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

const API_VERSION: &str = "Which group and version this is written in.";
const KIND: &str = "What this object is, in one word.";

/// The schema of whole objects. `metadata` refers to the type of metadata.
pub(super) fn root(schema: &Value, metadata: &Value, flavor: Flavor) -> Value {
    let v2 = flavor == Flavor::V2;
    // Whoever reads version 2 takes what is not named for wrong.
    if !schema.is_object() || (v2 && boolean(schema, &[PRESERVE])) {
        return json!({"type": "object"});
    }
    let mut out = node(schema, metadata, v2);
    add_object(&mut out, metadata);
    out
}

fn add_object(schema: &mut Value, metadata: &Value) {
    schema["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    schema["properties"]["kind"] = json!({"type": "string", "description": KIND});
    schema["properties"]["metadata"] = metadata.clone();
}

fn node(schema: &Value, metadata: &Value, v2: bool) -> Value {
    let mut out = schema.clone();
    if v2 {
        simplify(&mut out);
    }
    if let Some(properties) = out.get_mut("properties").and_then(Value::as_object_mut) {
        for property in properties.values_mut() {
            *property = node(property, metadata, v2);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = out.get_mut(key).filter(|inner| inner.is_object()) {
            *inner = node(inner, metadata, v2);
        }
    }
    let keeps_all = v2 && boolean(schema, &[PRESERVE]);
    if boolean(schema, &[EMBEDDED]) && !keeps_all {
        add_object(&mut out, metadata);
        let mut required = get(&out, "required")
            .as_array()
            .cloned()
            .unwrap_or_default();
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|one| one == name) {
                required.push(name.into());
            }
        }
        out["required"] = required.into();
    }
    out
}

/// Takes away what version 2 has no words for.
fn simplify(schema: &mut Value) {
    let nullable = boolean(schema, &["nullable"]);
    let preserve = boolean(schema, &[PRESERVE]);
    let names: Vec<String> = get(schema, "properties")
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, property)| boolean(property, &["nullable"]))
        .map(|(name, _)| name.clone())
        .collect();
    let Some(map) = schema.as_object_mut() else {
        return;
    };
    for key in ["allOf", "anyOf", "oneOf", "not", "nullable"] {
        map.remove(key);
    }
    if nullable || preserve {
        map.remove("items");
        map.remove("properties");
    }
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    let untyped = nullable
        || (kind == "array" && !map.contains_key("items"))
        || (kind == "object" && preserve);
    if untyped {
        map.remove("type");
    }
    if let Some(Value::Array(required)) = map.get_mut("required") {
        required.retain(|name| !names.iter().any(|one| name == one));
        if required.is_empty() {
            map.remove("required");
        }
    }
}

//! Between schemas and the types and values of CEL.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cel::{self, Key, Type};
use crate::meta::{boolean, get, text};
use crate::time;

const EMBEDDED: &str = "x-kubernetes-embedded-resource";
/// Reserved words that are values.
const LITERALS: &[&str] = &["true", "false", "null"];

/// The name of a field in an expression; `None` if it has none there.
fn name_of(field: &str) -> Option<String> {
    if LITERALS.contains(&field) || cel::RESERVED.contains(&field) {
        return Some(format!("__{field}__"));
    }
    if !field.starts_with(|one: char| one.is_ascii_alphabetic() || one == '_') {
        return None;
    }
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(one) = rest.chars().next() {
        let (part, length) = match one {
            '_' if rest.starts_with("__") => ("__underscores__", 2),
            '.' => ("__dot__", 1),
            '-' => ("__dash__", 1),
            '/' => ("__slash__", 1),
            one if one.is_ascii_alphanumeric() || one == '_' => (&rest[..1], 1),
            _ => return None,
        };
        out.push_str(part);
        rest = &rest[length..];
    }
    Some(out)
}

/// What an object has whatever its schema says: of metadata only the names can be read.
fn object_fields() -> Vec<(String, Type)> {
    let names = ["name", "generateName"].map(|name| (name.to_owned(), Type::Text));
    vec![
        ("apiVersion".to_owned(), Type::Text),
        ("kind".to_owned(), Type::Text),
        (
            "metadata".to_owned(),
            Type::Object(Arc::new(names.to_vec())),
        ),
    ]
}

pub(super) fn type_of(schema: &Value, root: bool) -> Type {
    if boolean(schema, &["x-kubernetes-int-or-string"]) {
        return Type::Dyn;
    }
    match text(schema, &["type"]) {
        "boolean" => Type::Bool,
        "integer" => Type::Int,
        "number" => Type::Double,
        "string" => match text(schema, &["format"]) {
            "byte" => Type::Bytes,
            "duration" => Type::Duration,
            "date" | "date-time" => Type::Time,
            _ => Type::Text,
        },
        "array" => Type::List(Box::new(type_of(get(schema, "items"), false))),
        "object" => object(schema, root || boolean(schema, &[EMBEDDED])),
        _ => Type::Dyn,
    }
}

fn object(schema: &Value, whole: bool) -> Type {
    let additional = get(schema, "additionalProperties");
    let properties = get(schema, "properties").as_object();
    if additional.is_object() && properties.is_none() {
        return Type::Map(Box::new(type_of(additional, false)));
    }
    let mut fields = if whole { object_fields() } else { Vec::new() };
    for (name, property) in properties.into_iter().flatten() {
        let given = fields.iter().any(|(one, _)| one == name);
        if let Some(name) = name_of(name).filter(|_| !given) {
            fields.push((name, type_of(property, false)));
        }
    }
    Type::Object(Arc::new(fields))
}

/// A value as its schema has it: times as times, real numbers as real numbers. What the schema does not know is not
/// there.
pub(super) fn value_of(schema: &Value, value: &Value, root: bool) -> cel::Value {
    if text(schema, &["type"]).is_empty() {
        return plain(value);
    }
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) if text(schema, &["type"]) == "number" => {
            cel::Value::Double(number.as_f64().unwrap_or_default())
        }
        Value::Number(_) => plain(value),
        Value::String(string) => scalar(text(schema, &["format"]), string),
        Value::Array(list) => {
            let item = get(schema, "items");
            let list = list.iter().map(|one| value_of(item, one, false));
            cel::Value::list(list.collect())
        }
        Value::Object(map) => {
            let additional = get(schema, "additionalProperties");
            let properties = get(schema, "properties");
            let whole = root || boolean(schema, &[EMBEDDED]);
            let mut all = BTreeMap::new();
            for (key, member) in map {
                let (name, made) = if whole && ["apiVersion", "kind", "metadata"].contains(&&**key)
                {
                    (Some(key.clone()), plain(member))
                } else if let Some(known) = properties.get(key) {
                    (name_of(key), value_of(known, member, false))
                } else if additional.is_object() {
                    (Some(key.clone()), value_of(additional, member, false))
                } else {
                    continue;
                };
                if let Some(name) = name {
                    all.insert(Key::text(&name), made);
                }
            }
            cel::Value::Map(Arc::new(all))
        }
    }
}

fn scalar(format: &str, string: &str) -> cel::Value {
    let found = match format {
        "byte" => {
            use base64::Engine as _;
            let decoded = base64::engine::general_purpose::STANDARD.decode(string);
            decoded.ok().map(|bytes| cel::Value::Bytes(bytes.into()))
        }
        "duration" => cel::duration(string).map(cel::Value::Duration),
        "date-time" => time::parse(string).map(cel::Value::Time),
        "date" => time::parse(&format!("{string}T00:00:00Z")).map(cel::Value::Time),
        _ => None,
    };
    found.unwrap_or_else(|| cel::Value::from(string))
}

/// A value of which no schema is known.
fn plain(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => cel::Value::Int(value),
            (None, Some(value)) => cel::Value::Uint(value),
            _ => cel::Value::Double(number.as_f64().unwrap_or_default()),
        },
        Value::String(string) => cel::Value::from(string.as_str()),
        Value::Array(list) => cel::Value::list(list.iter().map(plain).collect()),
        Value::Object(map) => {
            let map = map
                .iter()
                .map(|(key, value)| (Key::text(key), plain(value)));
            cel::Value::Map(Arc::new(map.collect()))
        }
    }
}

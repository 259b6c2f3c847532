//! Turns a tree that a client sent into the form that a typed server would store: unknown fields
//! reported and dropped, types checked, empty values written or left out exactly as the Go types do.

use base64::Engine as _;
use serde_json::{Map as JsonMap, Value};

use super::{Field, List, Map, Or, Schema, Shape, Struct};
use crate::quantity::Quantity;
use crate::time;

/// A value that does not fit its type; the text is what follows "cannot be handled as a KIND: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DecodeError {
    pub text: String,
    /// How it is told of a tree that was never text: the result of a strategic merge.
    pub of_tree: String,
}

impl DecodeError {
    fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            of_tree: text.clone(),
            text,
        }
    }
}

/// Go's word for a value of a tree.
fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

/// What happens to fields the schema does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    Ignore,
    Warn,
    Strict,
}

impl Schema {
    /// Brings `value` into the form of this type. Returns the paths of fields that were dropped
    /// because nothing knows them.
    pub fn decode(&self, value: &mut Value) -> Result<Vec<String>, DecodeError> {
        let mut decoder = Decoder::default();
        decoder.value(self, value)?;
        Ok(decoder.unknown)
    }

    /// The form of the type's zero value.
    pub fn zero(&self) -> Value {
        match &self.shape {
            Shape::String => Value::String(String::new()),
            Shape::Boolean => Value::Bool(false),
            Shape::Int32 | Shape::Int64 | Shape::IntOrString => Value::from(0),
            Shape::Double => Value::from(0.0),
            Shape::Quantity => Value::from("0"),
            Shape::Struct(structure) => {
                let mut map = JsonMap::new();
                fill_zeros(structure, &mut map);
                Value::Object(map)
            }
            _ => Value::Null,
        }
    }
}

fn fill_zeros(structure: &Struct, map: &mut JsonMap<String, Value>) {
    for field in structure.fields.iter().filter(|field| field.always) {
        if !map.contains_key(field.name.as_ref()) {
            map.insert(field.name.clone().into_owned(), zero_of(field));
        }
    }
}

fn zero_of(field: &Field) -> Value {
    if field.pointer {
        Value::Null
    } else {
        field.schema.zero()
    }
}

/// Whether `omitempty` leaves the value out.
fn is_empty(schema: &Schema, value: &Value) -> bool {
    match (&schema.shape, value) {
        (Shape::String | Shape::Bytes, Value::String(text)) => text.is_empty(),
        (Shape::Boolean, Value::Bool(value)) => !value,
        (Shape::Int32 | Shape::Int64, Value::Number(number)) => number.as_i64() == Some(0),
        (Shape::Double, Value::Number(number)) => number.as_f64() == Some(0.0),
        (Shape::List(_), Value::Array(items)) => items.is_empty(),
        (Shape::Map(_), Value::Object(map)) => map.is_empty(),
        (_, Value::Null) => true,
        _ => false,
    }
}

/// `-0` is an integer, which the JSON library only can hold as a floating-point number.
fn is_negative_zero(value: &Value) -> bool {
    let number = value.as_f64().filter(|_| value.is_f64());
    number.is_some_and(|number| number == 0.0 && number.is_sign_negative())
}

#[derive(Default)]
struct Decoder {
    /// Where the decoder is, for messages.
    path: String,
    unknown: Vec<String>,
}

impl Decoder {
    fn value(&mut self, schema: &Schema, value: &mut Value) -> Result<(), DecodeError> {
        match &schema.shape {
            Shape::Any | Shape::Raw | Shape::Fields | Shape::Json => Ok(()),
            Shape::String => match value {
                Value::String(_) => Ok(()),
                _ => self.mismatch(value, "string"),
            },
            Shape::Bytes => self.bytes(value),
            Shape::Boolean => match value {
                Value::Bool(_) => Ok(()),
                _ => self.mismatch(value, "bool"),
            },
            Shape::Int32 | Shape::Int64 if is_negative_zero(value) => {
                *value = Value::from(0);
                Ok(())
            }
            Shape::Int32 => match value.as_i64() {
                Some(number) if i32::try_from(number).is_ok() => Ok(()),
                _ => self.mismatch(value, "int32"),
            },
            Shape::Int64 => match value.as_i64() {
                Some(_) => Ok(()),
                None => self.mismatch(value, "int64"),
            },
            Shape::Double => match value {
                Value::Number(_) => Ok(()),
                _ => self.mismatch(value, "float64"),
            },
            Shape::Time => self.time(value, false),
            Shape::MicroTime => self.time(value, true),
            Shape::Quantity => self.quantity(value),
            Shape::IntOrString => self.int_or_string(value),
            Shape::SchemaOr(inner, or) => self.schema_or(inner, *or, value),
            Shape::Struct(structure) => self.structure(structure, &schema.name, value),
            Shape::Map(map) => self.map(map, value),
            Shape::List(list) => self.list(list, value),
        }
    }

    fn mismatch(&self, value: &Value, wanted: &str) -> Result<(), DecodeError> {
        let found = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(number) if wanted.starts_with("int") => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let text = format!(
            "json: cannot unmarshal {found} into Go struct field {} of type {wanted}",
            self.path.trim_start_matches('.')
        );
        let kind = go_kind(value);
        let of_tree = match wanted {
            "map" => format!("cannot restore map from {kind}"),
            "slice" | "[]uint8" => format!("cannot restore slice from {kind}"),
            "string" | "bool" | "int32" | "int64" | "float64" => {
                format!("unrecognized type: {wanted}")
            }
            "resource.Quantity" => text.clone(),
            _ => format!("cannot restore struct from: {kind}"),
        };
        Err(DecodeError { text, of_tree })
    }

    fn bytes(&self, value: &mut Value) -> Result<(), DecodeError> {
        let Value::String(text) = value else {
            return self.mismatch(value, "[]uint8");
        };
        // Go's decoder skips line breaks.
        if text.contains(['\n', '\r']) {
            text.retain(|character| character != '\n' && character != '\r');
        }
        match base64::engine::general_purpose::STANDARD.decode(text.as_bytes()) {
            Ok(_) => Ok(()),
            Err(error) => Err(DecodeError::new(format!(
                "illegal base64 data at input byte {}",
                illegal_byte(text, &error)
            ))),
        }
    }

    fn time(&self, value: &mut Value, micro: bool) -> Result<(), DecodeError> {
        let Value::String(text) = value else {
            return self.mismatch(value, "string");
        };
        let parsed = if micro {
            time::parse_micro(text)
        } else {
            time::parse(text)
        };
        match parsed {
            Some(at) => {
                let canonical = if micro {
                    time::format_micro(at)
                } else {
                    time::format(at)
                };
                *text = canonical;
                Ok(())
            }
            None => {
                let quoted = crate::field::go_quote(text);
                Err(DecodeError::new(format!(
                    "parsing time {quoted} as \"2006-01-02T15:04:05Z07:00\": cannot parse {quoted} as \"2006\""
                )))
            }
        }
    }

    fn quantity(&self, value: &mut Value) -> Result<(), DecodeError> {
        let text = match value {
            Value::String(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            _ => return self.mismatch(value, "resource.Quantity"),
        };
        match text.parse::<Quantity>() {
            Ok(quantity) => {
                *value = Value::String(quantity.to_string());
                Ok(())
            }
            Err(error) => Err(DecodeError::new(error.to_string())),
        }
    }

    fn int_or_string(&self, value: &Value) -> Result<(), DecodeError> {
        match value {
            Value::String(_) => Ok(()),
            Value::Number(number) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {
                Ok(())
            }
            _ => self.mismatch(value, "int32"),
        }
    }

    fn schema_or(&mut self, inner: &Schema, or: Or, value: &mut Value) -> Result<(), DecodeError> {
        match (or, &mut *value) {
            (Or::Bool, Value::Bool(_)) => Ok(()),
            (Or::Array, Value::Array(items)) => items
                .iter_mut()
                .try_for_each(|item| self.value(inner, item)),
            (Or::Strings, Value::Array(items)) if items.iter().all(Value::is_string) => Ok(()),
            (_, Value::Object(_)) => self.value(inner, value),
            (Or::Bool, _) => Err(DecodeError::new("boolean or JSON schema expected")),
            (Or::Array | Or::Strings, _) => self.mismatch(value, "v1.JSONSchemaProps"),
        }
    }

    fn structure(
        &mut self,
        structure: &Struct,
        name: &str,
        value: &mut Value,
    ) -> Result<(), DecodeError> {
        let Value::Object(map) = value else {
            let short = name.rsplit('.').next().unwrap_or(name);
            return self.mismatch(value, short);
        };
        let mut failure = None;
        let length = self.path.len();
        map.retain(|key, member| {
            if failure.is_some() {
                return true;
            }
            let Some(field) = structure.field(key) else {
                self.unknown.push(
                    format!("{}.{key}", self.path)
                        .trim_start_matches('.')
                        .to_owned(),
                );
                return false;
            };
            if member.is_null() {
                return false;
            }
            self.path.push('.');
            self.path.push_str(key);
            let result = self.value(&field.schema, member);
            self.path.truncate(length);
            if let Err(error) = result {
                failure = Some(error);
                return true;
            }
            // An empty list or map does not survive storage, written or not.
            let container = matches!(field.schema.shape, Shape::List(_) | Shape::Map(_));
            if container || !(field.always || field.pointer) {
                !is_empty(&field.schema, member)
            } else {
                true
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        fill_zeros(structure, map);
        Ok(())
    }

    fn map(&mut self, map: &Map, value: &mut Value) -> Result<(), DecodeError> {
        let Value::Object(members) = value else {
            return self.mismatch(value, "map");
        };
        let length = self.path.len();
        for (key, member) in members.iter_mut() {
            if member.is_null() {
                *member = map.value.zero();
                continue;
            }
            self.path.push('.');
            self.path.push_str(key);
            self.value(&map.value, member)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn list(&mut self, list: &List, value: &mut Value) -> Result<(), DecodeError> {
        let Value::Array(items) = value else {
            return self.mismatch(value, "slice");
        };
        let length = self.path.len();
        for (index, item) in items.iter_mut().enumerate() {
            if item.is_null() {
                *item = list.item.zero();
                continue;
            }
            self.path.push_str(&format!("[{index}]"));
            self.value(&list.item, item)?;
            self.path.truncate(length);
        }
        Ok(())
    }
}

/// Where Go's decoder would stop: the offset of the first byte that is wrong.
fn illegal_byte(text: &str, error: &base64::DecodeError) -> usize {
    match error {
        base64::DecodeError::InvalidByte(offset, _)
        | base64::DecodeError::InvalidLastSymbol(offset, _) => *offset,
        // Text that just ends is reported at the start of the group that is incomplete.
        base64::DecodeError::InvalidLength(_) => text.len() / 4 * 4,
        base64::DecodeError::InvalidPadding => text.find('=').unwrap_or(text.len() / 4 * 4),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::of_kind;
    use super::*;
    use serde_json::json;

    fn decode(group: &str, version: &str, kind: &str, mut value: Value) -> (Value, Vec<String>) {
        let unknown = of_kind(group, version, kind)
            .unwrap()
            .decode(&mut value)
            .unwrap();
        (value, unknown)
    }

    #[test]
    fn empty_values_go_or_stay_as_in_go() {
        let (pod, unknown) = decode(
            "",
            "v1",
            "Pod",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {}, "x": 1},
                "spec": {"hostNetwork": false, "automountServiceAccountToken": false, "nodeName": null,
                    "containers": [{"name": "a", "image": "", "resources": {"limits": {"cpu": "1000m", "memory": 1024}}}]}}),
        );
        assert_eq!(
            pod,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {"automountServiceAccountToken": false,
                    "containers": [{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1024"}}}]},
                "status": {}})
        );
        assert_eq!(unknown, ["metadata.x"]);
    }

    #[test]
    fn zero_structs() {
        let (deployment, _) = decode(
            "apps",
            "v1",
            "Deployment",
            json!({"spec": {"paused": true}}),
        );
        assert_eq!(
            deployment["spec"],
            json!({"paused": true, "selector": null, "strategy": {},
                "template": {"metadata": {}, "spec": {"containers": null}}})
        );
    }

    #[test]
    fn wrong_types() {
        let pod = of_kind("", "v1", "Pod").unwrap();
        let error = |mut value: Value| pod.decode(&mut value).unwrap_err().text;
        assert_eq!(
            error(json!({"spec": {"containers": [{"name": 1}]}})),
            "json: cannot unmarshal number into Go struct field spec.containers[0].name of type string"
        );
        assert!(
            error(json!({"metadata": {"creationTimestamp": "x"}}))
                .starts_with("parsing time \"x\" as")
        );
        let secret = of_kind("", "v1", "Secret").unwrap();
        let mut value = json!({"data": {"a": "%%%"}});
        assert_eq!(
            secret.decode(&mut value).unwrap_err().text,
            "illegal base64 data at input byte 0"
        );
    }
}

//! Trees to messages.
//!
//! Fields that are no pointers are written even if they are zero, as upstream does: readers tell
//! absent from zero only for pointers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::wire::{put_bytes, put_double, put_varint};
use crate::schema::{Field, Or, Schema, Shape, Struct, by_name};
use crate::time;

static NULL: Value = Value::Null;

/// The message of an object.
pub fn encode(schema: &Schema, object: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    message(&mut out, schema, object);
    out
}

/// The message of an object reduced to its metadata.
pub fn encode_partial(metadata: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(schema) = by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
        single(&mut out, 1, schema, metadata);
    }
    out
}

/// The message of a list: its metadata, and the messages of its items.
pub fn encode_list<'a>(metadata: &Value, items: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut meta = Vec::new();
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    put_bytes(&mut meta, 1, b"");
    put_bytes(&mut meta, 2, text("resourceVersion").as_bytes());
    put_bytes(&mut meta, 3, text("continue").as_bytes());
    if let Some(count) = metadata["remainingItemCount"].as_i64() {
        put_varint(&mut meta, 4, count as u64);
    }
    put_bytes(&mut out, 1, &meta);
    for item in items {
        put_bytes(&mut out, 2, item);
    }
    out
}

/// The content of a message field.
fn message(out: &mut Vec<u8>, schema: &Schema, value: &Value) {
    match &schema.shape {
        Shape::Struct(structure) => fields(out, structure, &mut Vec::new(), value),
        Shape::Time | Shape::MicroTime => timestamp(out, value),
        Shape::Quantity => {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Null => "0".to_owned(),
                other => other.to_string(),
            };
            put_bytes(out, 1, text.as_bytes());
        }
        Shape::IntOrString => int_or_string(out, value),
        Shape::Raw | Shape::Fields | Shape::Json | Shape::Any => {
            if !value.is_null() {
                put_bytes(out, 1, value.to_string().as_bytes());
            }
        }
        Shape::SchemaOr(inner, or) => schema_or(out, inner, *or, value),
        Shape::List(list) => {
            for item in value.as_array().into_iter().flatten() {
                single(out, 1, &list.item, item);
            }
        }
        _ => {}
    }
}

/// Writes a struct's fields that stand in the message reached by `via`, in the order of their tags.
fn fields(out: &mut Vec<u8>, structure: &Struct, via: &mut Vec<u32>, value: &Value) {
    let mut tags: Vec<(u32, Option<&Field>)> = Vec::new();
    for field in structure.fields.iter().filter(|field| field.tag != 0) {
        if field.via == via.as_slice() {
            tags.push((field.tag, Some(field)));
        } else if field.via.starts_with(via) {
            let next = field.via[via.len()];
            if !tags.iter().any(|(tag, _)| *tag == next) {
                tags.push((next, None));
            }
        }
    }
    tags.sort_unstable_by_key(|(tag, _)| *tag);
    for (tag, field) in tags {
        match field {
            Some(field) => write_field(out, field, value.get(&*field.name)),
            None => {
                via.push(tag);
                let mut inner = Vec::new();
                fields(&mut inner, structure, via, value);
                put_bytes(out, tag, &inner);
                via.pop();
            }
        }
    }
}

fn write_field(out: &mut Vec<u8>, field: &Field, value: Option<&Value>) {
    let value = value.filter(|value| !value.is_null());
    match &field.schema.shape {
        Shape::List(list) if !list.wrapped => {
            for item in value.and_then(Value::as_array).into_iter().flatten() {
                single(out, field.tag, &list.item, item);
            }
        }
        Shape::Map(map) => {
            for (key, value) in value.and_then(Value::as_object).into_iter().flatten() {
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, key.as_bytes());
                single(&mut entry, 2, &map.value, value);
                put_bytes(out, field.tag, &entry);
            }
        }
        Shape::Bytes | Shape::List(_) if value.is_none() => {}
        _ => match value {
            Some(value) => single(out, field.tag, &field.schema, value),
            None if field.pointer => {}
            None => single(out, field.tag, &field.schema, &NULL),
        },
    }
}

/// One value under a tag; `null` is the zero value.
fn single(out: &mut Vec<u8>, tag: u32, schema: &Schema, value: &Value) {
    match &schema.shape {
        Shape::String => {
            put_bytes(out, tag, value.as_str().unwrap_or_default().as_bytes());
        }
        Shape::Bytes => {
            let text = value.as_str().unwrap_or_default();
            put_bytes(out, tag, &STANDARD.decode(text).unwrap_or_default());
        }
        Shape::Boolean => put_varint(out, tag, u64::from(value.as_bool().unwrap_or_default())),
        Shape::Int32 | Shape::Int64 => put_varint(out, tag, integer(value) as u64),
        Shape::Double => put_double(out, tag, value.as_f64().unwrap_or_default()),
        _ => {
            let mut inner = Vec::new();
            message(&mut inner, schema, value);
            put_bytes(out, tag, &inner);
        }
    }
}

fn integer(value: &Value) -> i64 {
    value
        .as_i64()
        .or_else(|| value.as_f64().map(|number| number as i64))
        .unwrap_or_default()
}

fn timestamp(out: &mut Vec<u8>, value: &Value) {
    let Some(at) = value.as_str().and_then(time::parse) else {
        return;
    };
    put_varint(out, 1, at.as_second() as u64);
    put_varint(out, 2, i64::from(at.subsec_nanosecond()) as u64);
}

fn int_or_string(out: &mut Vec<u8>, value: &Value) {
    let text = value.as_str();
    put_varint(out, 1, u64::from(text.is_some()));
    put_varint(out, 2, integer(value) as u64);
    put_bytes(out, 3, text.unwrap_or_default().as_bytes());
}

fn schema_or(out: &mut Vec<u8>, inner: &Schema, or: Or, value: &Value) {
    let put_schema = |out: &mut Vec<u8>, tag: u32, value: &Value| {
        let mut schema = Vec::new();
        message(&mut schema, inner, value);
        put_bytes(out, tag, &schema);
    };
    match (value, or) {
        (Value::Bool(allows), _) => put_varint(out, 1, u64::from(*allows)),
        (Value::Object(_), Or::Bool) => {
            put_varint(out, 1, 1);
            put_schema(out, 2, value);
        }
        (Value::Object(_), _) => put_schema(out, 1, value),
        (Value::Array(items), Or::Strings) => {
            for item in items {
                put_bytes(out, 2, item.as_str().unwrap_or_default().as_bytes());
            }
        }
        (Value::Array(items), _) => {
            for item in items {
                put_schema(out, 2, item);
            }
        }
        _ => {}
    }
}

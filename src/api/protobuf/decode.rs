//! Messages to trees.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map as JsonMap, Value};

use super::Error;
use super::wire::{Raw, Reader};
use crate::schema::{Field, List, Map, Or, Schema, Shape, Struct};
use crate::time;

/// Deeper than any honest document (schemas of CRDs are the deepest).
const MAX_DEPTH: usize = 200;

pub(super) fn message(schema: &Schema, raw: &[u8]) -> Result<Value, Error> {
    Decoder { depth: 0 }.message(schema, raw)
}

struct Decoder {
    depth: usize,
}

impl Decoder {
    /// What stands in a length-delimited field of a message type.
    fn message(&mut self, schema: &Schema, raw: &[u8]) -> Result<Value, Error> {
        if self.depth >= MAX_DEPTH {
            return Err(Error::Depth);
        }
        self.depth += 1;
        let value = match &schema.shape {
            Shape::Struct(structure) => {
                let mut map = JsonMap::new();
                self.fields(structure, &mut Vec::new(), raw, &mut map)?;
                Value::Object(map)
            }
            Shape::Time | Shape::MicroTime => timestamp(schema, raw)?,
            Shape::Quantity => first_text(raw)?.into(),
            Shape::IntOrString => int_or_string(raw)?,
            Shape::Raw | Shape::Fields | Shape::Json | Shape::Any => embedded_json(raw)?,
            Shape::SchemaOr(inner, or) => self.schema_or(inner, *or, raw)?,
            Shape::List(list) => {
                let mut items = Vec::new();
                let mut reader = Reader::new(raw);
                while let Some((tag, value)) = reader.field()? {
                    if tag == 1 {
                        items.push(self.scalar_or_message(&list.item, tag, value)?);
                    }
                }
                Value::Array(items)
            }
            _ => return Err(Error::WireType(0)),
        };
        self.depth -= 1;
        Ok(value)
    }

    /// Reads the fields of a message into `map`; `via` is the way from the struct's own message to
    /// this one, which is inlined.
    fn fields(
        &mut self,
        structure: &Struct,
        via: &mut Vec<u32>,
        raw: &[u8],
        map: &mut JsonMap<String, Value>,
    ) -> Result<(), Error> {
        let mut reader = Reader::new(raw);
        while let Some((tag, value)) = reader.field()? {
            let own = structure
                .fields
                .iter()
                .find(|field| field.tag == tag && field.via == via.as_slice());
            if let Some(field) = own {
                self.field(field, tag, value, map)?;
                continue;
            }
            via.push(tag);
            if structure
                .fields
                .iter()
                .any(|field| field.via.starts_with(via))
            {
                self.fields(structure, via, value.bytes(tag)?, map)?;
            }
            via.pop();
        }
        Ok(())
    }

    fn field(
        &mut self,
        field: &Field,
        tag: u32,
        value: Raw<'_>,
        map: &mut JsonMap<String, Value>,
    ) -> Result<(), Error> {
        match &field.schema.shape {
            Shape::List(list) if !list.wrapped => self.element(field, list, tag, value, map),
            Shape::Map(inner) => self.entry(field, inner, tag, value, map),
            _ => {
                let value = self.scalar_or_message(&field.schema, tag, value)?;
                map.insert(field.name.to_string(), value);
                Ok(())
            }
        }
    }

    fn element(
        &mut self,
        field: &Field,
        list: &List,
        tag: u32,
        value: Raw<'_>,
        map: &mut JsonMap<String, Value>,
    ) -> Result<(), Error> {
        let mut new = Vec::new();
        match (value, &list.item.shape) {
            // Numbers may come packed.
            (Raw::Bytes(packed), Shape::Int32 | Shape::Int64 | Shape::Boolean) => {
                // A packed list is varints without keys; borrow the reader by giving it keys.
                let mut keyed = Vec::with_capacity(packed.len() + 8);
                let mut start = true;
                for byte in packed {
                    if start {
                        keyed.push(8);
                    }
                    keyed.push(*byte);
                    start = byte & 0x80 == 0;
                }
                let mut reader = Reader::new(&keyed);
                while let Some((_, value)) = reader.field()? {
                    new.push(self.scalar_or_message(&list.item, tag, value)?);
                }
            }
            _ => new.push(self.scalar_or_message(&list.item, tag, value)?),
        }
        let slot = map
            .entry(field.name.to_string())
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(items) = slot {
            items.append(&mut new);
        }
        Ok(())
    }

    fn entry(
        &mut self,
        field: &Field,
        inner: &Map,
        tag: u32,
        value: Raw<'_>,
        map: &mut JsonMap<String, Value>,
    ) -> Result<(), Error> {
        let mut key = String::new();
        let mut found = None;
        let mut reader = Reader::new(value.bytes(tag)?);
        while let Some((tag, value)) = reader.field()? {
            match tag {
                1 => key = value.text(tag)?.to_owned(),
                2 => found = Some(self.scalar_or_message(&inner.value, tag, value)?),
                _ => {}
            }
        }
        let found = found.unwrap_or_else(|| inner.value.zero());
        let slot = map
            .entry(field.name.to_string())
            .or_insert_with(|| Value::Object(JsonMap::new()));
        if let Value::Object(entries) = slot {
            entries.insert(key, found);
        }
        Ok(())
    }

    fn scalar_or_message(
        &mut self,
        schema: &Schema,
        tag: u32,
        value: Raw<'_>,
    ) -> Result<Value, Error> {
        Ok(match &schema.shape {
            Shape::String => value.text(tag)?.into(),
            Shape::Bytes => STANDARD.encode(value.bytes(tag)?).into(),
            Shape::Boolean => (value.varint(tag)? != 0).into(),
            Shape::Int32 => (value.varint(tag)? as i32).into(),
            Shape::Int64 => (value.varint(tag)? as i64).into(),
            Shape::Double => value.double(tag)?.into(),
            _ => self.message(schema, value.bytes(tag)?)?,
        })
    }

    /// A schema, or something simpler: `true`, a list of schemas, a list of names.
    fn schema_or(&mut self, inner: &Schema, or: Or, raw: &[u8]) -> Result<Value, Error> {
        let schema_tag = match or {
            Or::Bool => 2,
            Or::Array | Or::Strings => 1,
        };
        let mut schema = None;
        let mut list = Vec::new();
        let mut allows = false;
        let mut reader = Reader::new(raw);
        while let Some((tag, value)) = reader.field()? {
            match (tag, or) {
                (tag, _) if tag == schema_tag => {
                    schema = Some(self.message(inner, value.bytes(tag)?)?);
                }
                (1, Or::Bool) => allows = value.varint(tag)? != 0,
                (2, Or::Array) => list.push(self.message(inner, value.bytes(tag)?)?),
                (2, Or::Strings) => list.push(value.text(tag)?.into()),
                _ => {}
            }
        }
        Ok(match (schema, or) {
            (Some(schema), _) => schema,
            (None, Or::Bool) => allows.into(),
            (None, _) if list.is_empty() => Value::Null,
            (None, _) => Value::Array(list),
        })
    }
}

fn timestamp(schema: &Schema, raw: &[u8]) -> Result<Value, Error> {
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    let mut reader = Reader::new(raw);
    while let Some((tag, value)) = reader.field()? {
        match tag {
            1 => seconds = value.varint(tag)? as i64,
            2 => nanos = value.varint(tag)? as i32,
            _ => {}
        }
    }
    let Ok(at) = jiff::Timestamp::new(seconds, nanos) else {
        return Ok(Value::Null);
    };
    // The zero time of Go lies in the year 1.
    const ZERO: i64 = -62_135_596_800;
    Ok(match schema.shape {
        _ if seconds == ZERO => Value::Null,
        Shape::MicroTime => time::format_micro(at).into(),
        _ => time::format(at).into(),
    })
}

fn first_text(raw: &[u8]) -> Result<String, Error> {
    let mut reader = Reader::new(raw);
    while let Some((tag, value)) = reader.field()? {
        if tag == 1 {
            return value.text(tag).map(str::to_owned);
        }
    }
    Ok("0".to_owned())
}

fn int_or_string(raw: &[u8]) -> Result<Value, Error> {
    let (mut is_text, mut number, mut text) = (false, 0_i32, "");
    let mut reader = Reader::new(raw);
    while let Some((tag, value)) = reader.field()? {
        match tag {
            1 => is_text = value.varint(tag)? == 1,
            2 => number = value.varint(tag)? as i32,
            3 => text = value.text(tag)?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

/// A message whose only field holds JSON text.
fn embedded_json(raw: &[u8]) -> Result<Value, Error> {
    let mut reader = Reader::new(raw);
    while let Some((tag, value)) = reader.field()? {
        let bytes = value.bytes(tag)?;
        if tag == 1 && !bytes.is_empty() {
            return serde_json::from_slice(bytes).map_err(|error| Error::Json(error.to_string()));
        }
    }
    Ok(Value::Null)
}

//! Unknown and duplicate fields of a document, in the order in which they stand there.
//!
//! A tree has lost both, so this reads the bytes once more, guided by the schema, and allocates
//! only for what it reports.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Or, Schema, Shape};

/// At most this many are reported.
const LIMIT: usize = 100;

/// `unknown field "…"` and `duplicate field "…"` for JSON that is known to parse. Without a schema
/// only duplicates are found.
pub fn strict_errors(document: &[u8], schema: Option<&Schema>) -> Vec<String> {
    let mut state = State::default();
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    let seed = Seed {
        schema,
        state: &mut state,
    };
    // Malformed JSON is reported by whoever builds the tree.
    match seed.deserialize(&mut deserializer) {
        Ok(()) | Err(_) => state.errors,
    }
}

#[derive(Default)]
struct State {
    path: String,
    errors: Vec<String>,
}

impl State {
    fn report(&mut self, what: &str, key: &str) {
        if self.errors.len() >= LIMIT {
            return;
        }
        let dot = if self.path.is_empty() { "" } else { "." };
        self.errors
            .push(format!("{what} field \"{}{dot}{key}\"", self.path));
    }
}

struct Seed<'s, 't> {
    schema: Option<&'s Schema>,
    state: &'t mut State,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// What is known about an object's member: nothing, that it is unknown, or its schema.
enum Member<'s> {
    Free,
    Unknown,
    Known(&'s Schema),
}

fn member<'s>(schema: Option<&'s Schema>, key: &str) -> Member<'s> {
    let Some(schema) = schema else {
        return Member::Free;
    };
    match &schema.shape {
        Shape::Struct(structure) => match structure.field(key) {
            Some(field) => Member::Known(&field.schema),
            None => match &structure.additional {
                Some(schema) => Member::Known(schema),
                None if structure.preserve_unknown => Member::Free,
                None => Member::Unknown,
            },
        },
        Shape::Map(map) => Member::Known(&map.value),
        Shape::SchemaOr(inner, _) => member(Some(inner), key),
        _ => Member::Free,
    }
}

fn element(schema: Option<&Schema>) -> Option<&Schema> {
    match &schema?.shape {
        Shape::List(list) => Some(&list.item),
        Shape::SchemaOr(inner, Or::Array) => Some(inner),
        _ => None,
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen: HashSet<Cow<'de, str>> = HashSet::new();
        let length = self.state.path.len();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if seen.contains(&key) {
                self.state.report("duplicate", &key);
            }
            let schema = match member(self.schema, &key) {
                Member::Known(schema) => Some(schema),
                Member::Free => None,
                Member::Unknown => {
                    if !seen.contains(&key) {
                        self.state.report("unknown", &key);
                    }
                    map.next_value::<IgnoredAny>()?;
                    seen.insert(key);
                    continue;
                }
            };
            if length > 0 {
                self.state.path.push('.');
            }
            self.state.path.push_str(&key);
            map.next_value_seed(Seed {
                schema,
                state: &mut *self.state,
            })?;
            self.state.path.truncate(length);
            seen.insert(key);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        let length = self.state.path.len();
        let schema = element(self.schema);
        let mut index = 0;
        loop {
            self.state.path.push_str(&format!("[{index}]"));
            let seed = Seed {
                schema,
                state: &mut *self.state,
            };
            let more = sequence.next_element_seed(seed)?.is_some();
            self.state.path.truncate(length);
            if !more {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::of_kind;
    use super::*;

    #[test]
    fn in_document_order() {
        let text = br#"{"kind":"ConfigMap","metadata":{"name":"a","name":"b","mystery":1,"labels":{"x":"1","x":"2"}},
            "fnord":{"a":1,"a":2},"data":{"k":"v"}}"#;
        assert_eq!(
            strict_errors(text, of_kind("", "v1", "ConfigMap")),
            [
                "duplicate field \"metadata.name\"",
                "unknown field \"metadata.mystery\"",
                "duplicate field \"metadata.labels.x\"",
                "unknown field \"fnord\"",
            ]
        );
        let pod = br#"{"spec":{"containers":[{"name":"a"},{"x":1}]}}"#;
        assert_eq!(
            strict_errors(pod, of_kind("", "v1", "Pod")),
            ["unknown field \"spec.containers[1].x\""]
        );
    }
}

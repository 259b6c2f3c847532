//! An object as the cache holds it: the bytes that are served, and what selectors look at.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sampan_api::resource::Name;
use sampan_api::schema::{SchemaRef, Shape};
use sampan_api::{ResourceDef, meta};
use sampan_store::{Key, Revision};
use serde_json::Value;

/// What selectors look at. Labels and field values are short, so they are kept decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selectable {
    pub labels: BTreeMap<String, String>,
    /// Values of the row's selectable fields, in the row's order; empty where absent.
    pub fields: Box<[Box<str>]>,
}

/// A field that selectors may name, and what they find where it is absent: the zero of its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    path: Name,
    zero: &'static str,
}

/// Names that stand for another path.
const ALIASES: &[(&str, &str)] = &[
    ("status.successful", "status.succeeded"),
    ("source", "source.component"),
];

impl Field {
    /// The selectable fields of a row, in its order.
    pub fn of(def: &ResourceDef) -> Arc<[Self]> {
        let schema = super::codec::schema_of(def, def.storage_version());
        def.selectable
            .iter()
            .map(|name| {
                let alias = ALIASES.iter().find(|(alias, _)| alias == name);
                let path = alias.map_or_else(|| name.clone(), |(_, path)| Name::Borrowed(path));
                // What a custom object does not have is shown as an empty text, whatever its type.
                let known = schema.as_ref().filter(|_| !def.is_custom());
                let zero = known.map_or("", |schema| zero(schema, &path));
                Self { path, zero }
            })
            .collect()
    }
}

fn zero(schema: &SchemaRef, path: &str) -> &'static str {
    let mut schema = schema.clone();
    for step in path.split('.') {
        let Some(next) = schema.field(step).map(|field| field.schema.clone()) else {
            return "";
        };
        schema = next;
    }
    match schema.shape {
        Shape::Int32 | Shape::Int64 => "0",
        Shape::Boolean => "false",
        _ => "",
    }
}

/// One immutable state of one object.
#[derive(Debug)]
pub struct Object {
    pub key: Key,
    pub revision: Revision,
    /// The JSON in the storage version: `kind`, `apiVersion`, then `metadata` with
    /// `resourceVersion` first.
    pub bytes: Bytes,
    pub selectable: Selectable,
}

/// Where `metadata` begins in every stored object.
const METADATA: &[u8] = b"\"metadata\":{";
const VERSION: &[u8] = b"\"resourceVersion\":\"";

impl Object {
    /// The last segment of the key.
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// The segment before the name; only meaningful for namespaced resources.
    pub fn namespace(&self) -> &str {
        self.key.rsplit('/').nth(1).unwrap_or_default()
    }

    /// The same state under another revision: what a deletion shows.
    pub fn at(&self, revision: Revision) -> Bytes {
        resplice(&self.bytes, revision)
    }

    #[cfg(test)]
    pub(crate) fn for_test(key: &str, revision: Revision) -> Self {
        Self {
            key: key.into(),
            revision,
            bytes: Bytes::new(),
            selectable: Selectable::default(),
        }
    }
}

impl Selectable {
    pub fn of_value(object: &Value, fields: &[Field]) -> Self {
        let labels = meta::entries(object, &["metadata", "labels"])
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect();
        let fields = fields
            .iter()
            .map(|field| or_zero(field_text(object, &field.path), field))
            .collect();
        Self { labels, fields }
    }

    pub fn of_bytes(object: &[u8], fields: &[Field]) -> Result<Self, serde_json::Error> {
        let labels = labels(object)?;
        let paths: Vec<&str> = fields.iter().map(|field| &*field.path).collect();
        let fields = if paths.is_empty() {
            Box::default()
        } else {
            meta::fields(object, &paths)?
                .into_iter()
                .zip(fields)
                .map(|(text, field)| or_zero(text.into_boxed_str(), field))
                .collect()
        };
        Ok(Self { labels, fields })
    }
}

/// Only the metadata is read: it stands at the front, so the rest need not even be scanned.
fn labels(object: &[u8]) -> Result<BTreeMap<String, String>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        #[serde(default)]
        labels: Option<BTreeMap<String, String>>,
    }
    let Some(at) = find(object, METADATA) else {
        return Ok(BTreeMap::new());
    };
    // Up to the brace that METADATA ends with.
    let metadata = &object[at + METADATA.len() - 1..];
    let mut values = serde_json::Deserializer::from_slice(metadata).into_iter::<Metadata>();
    let found = values.next().transpose()?;
    Ok(found.and_then(|found| found.labels).unwrap_or_default())
}

fn or_zero(text: Box<str>, field: &Field) -> Box<str> {
    if text.is_empty() {
        field.zero.into()
    } else {
        text
    }
}

fn field_text(object: &Value, path: &str) -> Box<str> {
    let found = path
        .split('.')
        .try_fold(object, |value, step| value.get(step));
    match found {
        Some(Value::String(text)) => text.as_str().into(),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string().into(),
        _ => "".into(),
    }
}

/// The stored form of a tree: `kind`, `apiVersion` and `metadata` first, no `resourceVersion`.
pub fn encode(object: &Value) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::with_capacity(1_024);
    let empty = serde_json::Map::new();
    let map = object.as_object().unwrap_or(&empty);
    bytes.extend_from_slice(b"{\"kind\":");
    serde_json::to_writer(&mut bytes, meta::get(object, "kind"))?;
    bytes.extend_from_slice(b",\"apiVersion\":");
    serde_json::to_writer(&mut bytes, meta::get(object, "apiVersion"))?;
    bytes.push(b',');
    bytes.extend_from_slice(METADATA);
    let mut first = true;
    for (key, value) in meta::entries(object, &["metadata"]) {
        if key != "resourceVersion" && key != "selfLink" {
            member(&mut bytes, key, value, &mut first)?;
        }
    }
    bytes.push(b'}');
    let mut first = false;
    for (key, value) in map {
        if key != "kind" && key != "apiVersion" && key != "metadata" {
            member(&mut bytes, key, value, &mut first)?;
        }
    }
    bytes.push(b'}');
    Ok(bytes)
}

fn member(
    bytes: &mut Vec<u8>,
    key: &str,
    value: &Value,
    first: &mut bool,
) -> Result<(), serde_json::Error> {
    if !std::mem::replace(first, false) {
        bytes.push(b',');
    }
    serde_json::to_writer(&mut *bytes, key)?;
    bytes.push(b':');
    serde_json::to_writer(&mut *bytes, value)
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
}

/// The served form: `resourceVersion` put in at the front of `metadata`.
pub fn splice(stored: &[u8], revision: Revision) -> Bytes {
    let Some(at) = find(stored, METADATA).map(|at| at + METADATA.len()) else {
        return Bytes::copy_from_slice(stored);
    };
    let number = revision.to_string();
    let mut bytes = Vec::with_capacity(stored.len() + VERSION.len() + number.len() + 2);
    bytes.extend_from_slice(&stored[..at]);
    bytes.extend_from_slice(VERSION);
    bytes.extend_from_slice(number.as_bytes());
    bytes.push(b'"');
    if stored.get(at) != Some(&b'}') {
        bytes.push(b',');
    }
    bytes.extend_from_slice(&stored[at..]);
    Bytes::from(bytes)
}

/// Replaces the revision in a served form.
pub fn resplice(served: &[u8], revision: Revision) -> Bytes {
    let Some((from, to)) = version_range(served) else {
        return Bytes::copy_from_slice(served);
    };
    let number = revision.to_string();
    let mut bytes = Vec::with_capacity(served.len() + number.len());
    bytes.extend_from_slice(&served[..from]);
    bytes.extend_from_slice(number.as_bytes());
    bytes.extend_from_slice(&served[to..]);
    Bytes::from(bytes)
}

/// Where the digits of `resourceVersion` stand in a served form.
fn version_range(served: &[u8]) -> Option<(usize, usize)> {
    let metadata = find(served, METADATA)? + METADATA.len();
    let rest = served.get(metadata..)?.strip_prefix(VERSION)?;
    let from = metadata + VERSION.len();
    let length = rest.iter().position(|byte| *byte == b'"')?;
    Some((from, from + length))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn the_version_is_spliced_in_and_replaced() {
        let tree = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"metadata": "x"},
            "metadata": {"name": "a", "annotations": {"x": "\"metadata\":{"}, "resourceVersion": "7"}});
        let stored = encode(&tree).unwrap();
        assert!(
            stored.starts_with(
                br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"annotations":"#
            )
        );
        let served = splice(&stored, 42);
        let mut expected = tree.clone();
        expected["metadata"]["resourceVersion"] = json!("42");
        assert_eq!(serde_json::from_slice::<Value>(&served).unwrap(), expected);
        expected["metadata"]["resourceVersion"] = json!("100000");
        let again = resplice(&served, 100_000);
        assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), expected);
        let bare = splice(
            &encode(&json!({"kind": "A", "apiVersion": "v1"})).unwrap(),
            5,
        );
        assert_eq!(
            &bare[..],
            br#"{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"5"}}"#
        );
    }

    #[test]
    fn selectable_fields_agree_between_tree_and_bytes() {
        let tree = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"nodeName": "n", "hostNetwork": true}});
        let registry = sampan_api::Registry::builtin();
        let rows = registry.snapshot();
        let pods = rows.by_resource("", "v1", "pods").unwrap();
        let fields = Field::of(&pods);
        let of_tree = Selectable::of_value(&tree, &fields);
        assert_eq!(
            of_tree,
            Selectable::of_bytes(&encode(&tree).unwrap(), &fields).unwrap()
        );
        let value = |name: &str| {
            let index = pods.selectable.iter().position(|field| field == name);
            &*of_tree.fields[index.unwrap()]
        };
        assert_eq!(value("spec.nodeName"), "n");
        assert_eq!(value("spec.hostNetwork"), "true");
        assert_eq!(value("status.phase"), "");
        let rows = rows.by_resource("", "v1", "nodes").unwrap();
        let absent = Selectable::of_value(&json!({}), &Field::of(&rows));
        assert_eq!(
            &*absent.fields[0], "false",
            "absent is the zero of the type"
        );
    }
}

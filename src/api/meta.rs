//! An object's metadata, read from bytes without building a tree, and small helpers on trees.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The parts of `metadata` that machinery needs; everything else is skipped while reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    pub name: String,
    pub generate_name: String,
    /// Empty for what has no namespace.
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    pub deletion_grace_period_seconds: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub owner_references: Vec<OwnerReference>,
    pub finalizers: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    metadata: Option<Meta>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

impl Meta {
    /// Reads the metadata of an object's JSON.
    pub fn from_bytes(object: &[u8]) -> Result<Self, serde_json::Error> {
        let envelope: Envelope = serde_json::from_slice(object)?;
        Ok(envelope.metadata.unwrap_or_default())
    }

    pub fn from_value(object: &Value) -> Self {
        object
            .get("metadata")
            .and_then(|metadata| Self::deserialize(metadata).ok())
            .unwrap_or_default()
    }

    /// The owner that manages the object, if one does.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references
            .iter()
            .find(|owner| owner.controller == Some(true))
    }

    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// `(apiVersion, kind)` of an object's JSON.
pub fn type_of(object: &[u8]) -> Result<(String, String), serde_json::Error> {
    let found: TypeMeta<'_> = serde_json::from_slice(object)?;
    Ok((found.api_version.into_owned(), found.kind.into_owned()))
}

/// Texts of the fields at dotted paths (`spec.nodeName`), empty where absent: what field selectors
/// compare. Only the way to those fields is read.
pub fn fields(object: &[u8], paths: &[&str]) -> Result<Vec<String>, serde_json::Error> {
    let mut found = vec![String::new(); paths.len()];
    let wanted: Vec<(usize, &str)> = paths.iter().copied().enumerate().collect();
    let mut deserializer = serde_json::Deserializer::from_slice(object);
    FieldsSeed {
        wanted,
        found: &mut found,
    }
    .deserialize(&mut deserializer)?;
    Ok(found)
}

/// Reads one value: as a map if some wanted path leads into it, as a scalar if one ends here.
struct FieldsSeed<'a, 'p> {
    wanted: Vec<(usize, &'p str)>,
    found: &'a mut [String],
}

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl FieldsSeed<'_, '_> {
    fn set(self, text: &str) {
        for (index, rest) in self.wanted {
            if rest.is_empty() {
                self.found[index] = text.to_owned();
            }
        }
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let wanted: Vec<(usize, &str)> = self
                .wanted
                .iter()
                .filter_map(|&(index, path)| {
                    let rest = path.strip_prefix(key.as_ref())?;
                    match rest.strip_prefix('.') {
                        Some(rest) => Some((index, rest)),
                        None if rest.is_empty() => Some((index, "")),
                        None => None,
                    }
                })
                .collect();
            if wanted.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(FieldsSeed {
                    wanted,
                    found: &mut *self.found,
                })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.set(text);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.set(if value { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.set(&value.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.set(&value.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.set(&value.to_string());
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

static NULL: Value = Value::Null;

/// The value at a path of keys (`at(pod, &["spec", "nodeName"])`), `null` if it is not there.
pub fn at<'a>(object: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(object, |value, key| get(value, key))
}

/// One member, `null` if it is not there.
/// How many lists and objects stand inside each other; 0 for a scalar.
pub fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(map) => map.values().map(depth).max(),
        _ => return 0,
    };
    1 + below.unwrap_or_default()
}

pub fn get<'a>(object: &'a Value, key: &str) -> &'a Value {
    object.get(key).unwrap_or(&NULL)
}

/// The text at a path, empty if absent or no text.
pub fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).as_str().unwrap_or_default()
}

pub fn integer(object: &Value, path: &[&str]) -> Option<i64> {
    at(object, path).as_i64()
}

pub fn boolean(object: &Value, path: &[&str]) -> bool {
    at(object, path).as_bool().unwrap_or_default()
}

/// The elements of the list at a path; none if there is no list.
pub fn items<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).as_array().map_or(&[], Vec::as_slice)
}

/// The entries of the map at a path.
pub fn entries<'a>(
    object: &'a Value,
    path: &[&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    at(object, path).as_object().into_iter().flatten()
}

/// The member's list, mutable, if it is one.
pub fn items_mut<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut [Value] {
    at_mut(object, path)
        .and_then(Value::as_array_mut)
        .map_or(&mut [], Vec::as_mut_slice)
}

pub fn at_mut<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter()
        .try_fold(object, |value, key| value.get_mut(*key))
}

/// Sets the value at a path and makes the objects on the way; what is no object is replaced.
pub fn set(object: &mut Value, path: &[&str], value: impl Into<Value>) {
    *entry(object, path) = value.into();
}

/// The slot at a path; absent objects on the way are made.
pub fn entry<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(object, |value, key| {
        if !value.is_object() {
            *value = Value::Object(serde_json::Map::new());
        }
        &mut value[*key]
    })
}

/// Sets a member if it is absent or `null`.
pub fn default(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut() {
        let slot = map.entry(key).or_insert(Value::Null);
        if slot.is_null() {
            *slot = value.into();
        }
    }
}

/// Sets a text member if it is absent, `null` or empty.
pub fn default_text(object: &mut Value, key: &str, value: &str) {
    if get(object, key).as_str().unwrap_or_default().is_empty() && object.is_object() {
        object[key] = Value::from(value);
    }
}

/// Removes the value at a path and returns it.
pub fn remove(object: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, way) = path.split_last()?;
    at_mut(object, way)?.as_object_mut()?.remove(*last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const POD: &[u8] = br#"{"kind":"Pod","apiVersion":"v1","spec":{"nodeName":"n1","hostNetwork":true,
        "containers":[{"name":"a"}]},"metadata":{"name":"p","namespace":"x","labels":{"a":"b"},
        "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u","controller":true}]}}"#;

    #[test]
    fn metadata_from_bytes() {
        let meta = Meta::from_bytes(POD).unwrap();
        assert_eq!(meta.name, "p");
        assert_eq!(meta.controller().unwrap().uid, "u");
        assert_eq!(type_of(POD).unwrap(), ("v1".to_owned(), "Pod".to_owned()));
    }

    #[test]
    fn fields_from_bytes() {
        let paths = [
            "spec.nodeName",
            "status.phase",
            "spec.hostNetwork",
            "metadata.name",
        ];
        assert_eq!(fields(POD, &paths).unwrap(), ["n1", "", "true", "p"]);
    }

    #[test]
    fn trees() {
        let mut object: Value = serde_json::from_slice(POD).unwrap();
        assert_eq!(text(&object, &["spec", "nodeName"]), "n1");
        set(&mut object, &["status", "phase"], "Pending");
        default(&mut object["status"], "phase", "x");
        assert_eq!(
            remove(&mut object, &["status", "phase"]),
            Some("Pending".into())
        );
        assert!(at(&object, &["status", "x", "y"]).is_null());
    }
}

//! Answers as protobuf documents, made from the JSON that the cache holds.

use bytes::Bytes;
use sampan_api::{meta, protobuf, schema};
use sampan_client::List;
use serde_json::Value;

use super::{json, respond};

/// An object (or status) in its envelope; `None` if its kind has no protobuf form.
pub(super) fn document(object: &[u8]) -> Option<Vec<u8>> {
    let object: Value = serde_json::from_slice(object).ok()?;
    let kind = meta::text(&object, &["kind"]);
    let api_version = meta::text(&object, &["apiVersion"]);
    let raw = message(api_version, kind, &object)?;
    Some(protobuf::wrap(api_version, kind, &raw))
}

fn message(api_version: &str, kind: &str, object: &Value) -> Option<Vec<u8>> {
    if kind == "PartialObjectMetadata" {
        return Some(protobuf::encode_partial(meta::get(object, "metadata")));
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let schema = schema::of_kind(group, version, kind)?;
    Some(protobuf::encode(schema, object))
}

/// A list in its envelope.
pub(super) fn list(
    kind: &str,
    api_version: &str,
    item_kind: &str,
    list: &List,
    items: &[Bytes],
) -> Option<Vec<u8>> {
    let mut messages = Vec::with_capacity(items.len());
    for item in items {
        let object: Value = serde_json::from_slice(item).ok()?;
        messages.push(message(api_version, item_kind, &object)?);
    }
    let metadata = respond::list_metadata(list);
    let raw = protobuf::encode_list(&metadata, messages.iter().map(Vec::as_slice));
    Some(protobuf::wrap(api_version, kind, &raw))
}

/// Whether the document is a status, whatever was asked for.
pub(super) fn is_status(object: &[u8]) -> bool {
    json::member(object, "kind") == Some(b"\"Status\"")
}

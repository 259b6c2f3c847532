//! Selectors of typed objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use sampan_api::Selector;

use crate::json;

/// A selector that cannot be read selects nothing: validation lets none in.
pub fn selector_of(selector: &LabelSelector) -> Selector {
    Selector::from_object(&json::to_value(selector)).unwrap_or_else(|error| {
        tracing::warn!(%error, "a stored selector cannot be read");
        Selector::nothing()
    })
}

/// Exactly these labels; an absent or empty map selects nothing.
pub fn selector_of_map(map: Option<&BTreeMap<String, String>>) -> Selector {
    match map {
        Some(map) if !map.is_empty() => Selector::from_map(map),
        _ => Selector::nothing(),
    }
}

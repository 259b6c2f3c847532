//! Rules for CustomResourceDefinitions. Upstream checks the form in which what all versions have in common stands
//! above them, and names fields as that form does; so do we.

use serde_json::Value;

use super::names::is_protected;
use super::{formats, schema_rules};
use crate::field::{ErrorList, Path};
use crate::meta::{at, boolean, get, items, text};
use crate::names;

const SCOPES: &[&str] = &["Cluster", "Namespaced"];

pub(crate) fn create(definition: &Value, errors: &mut ErrorList) {
    check(definition, None, errors);
}

pub(crate) fn update(definition: &Value, old: &Value, errors: &mut ErrorList) {
    check(definition, Some(old), errors);
    let spec = Path::new("spec");
    if super::names::is_established(old) {
        for key in ["scope", "group"] {
            crate::validate::immutable(
                at(definition, &["spec", key]),
                at(old, &["spec", key]),
                &spec.child(key),
                errors,
            );
        }
        let path = spec.child("names.plural");
        crate::validate::immutable(
            at(definition, &["spec", "names", "plural"]),
            at(old, &["spec", "names", "plural"]),
            &path,
            errors,
        );
    }
}

/// Formats that are not known are ignored, which is worth a word.
pub(crate) fn warnings(definition: &Value, _: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for version in items(definition, &["spec", "versions"]) {
        unknown_formats(at(version, &["schema", "openAPIV3Schema"]), &mut found);
    }
    found.dedup();
    let formats = found.into_iter();
    let mut warnings: Vec<String> = formats
        .map(|format| format!("unrecognized format {format:?}"))
        .collect();
    warnings.extend(not_there_yet(definition));
    warnings
}

/// What is accepted and has no effect yet.
fn not_there_yet(definition: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if text(definition, &["spec", "conversion", "strategy"]) == "Webhook" {
        warnings.push("spec.conversion: conversion by webhook is not supported yet: only the stored version can be read and written".to_owned());
    }
    warnings
}

fn unknown_formats(schema: &Value, found: &mut Vec<String>) {
    let format = text(schema, &["format"]);
    if !format.is_empty()
        && text(schema, &["type"]) == "string"
        && !formats::STRING.contains(&format)
    {
        found.push(format.to_owned());
    }
    for (_, property) in get(schema, "properties").as_object().into_iter().flatten() {
        unknown_formats(property, found);
    }
    for key in ["items", "additionalProperties"] {
        if get(schema, key).is_object() {
            unknown_formats(get(schema, key), found);
        }
    }
}

fn check(definition: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let spec = get(definition, "spec");
    let path = Path::new("spec");
    let metadata = Path::new("metadata");
    let (group, plural) = (text(spec, &["group"]), text(spec, &["names", "plural"]));
    let name = text(definition, &["metadata", "name"]);
    if name != format!("{plural}.{group}") {
        errors.invalid(
            &metadata.child("name"),
            name,
            "must be spec.names.plural+\".\"+spec.group",
        );
    }
    group_name(group, &path, errors);
    scope(text(spec, &["scope"]), &path, errors);
    versions(spec, &path, errors);
    all_names(spec, &path, errors);
    conversion(get(spec, "conversion"), &path.child("conversion"), errors);
    stored_versions(definition, errors);
    if is_protected(group) && old.is_none_or(|old| text(old, &["spec", "group"]) != group) {
        approved(definition, &metadata, errors);
    }
}

fn group_name(group: &str, spec: &Path<'_>, errors: &mut ErrorList) {
    let path = spec.child("group");
    if group.is_empty() {
        errors.required(&path, "");
        return;
    }
    let faults = names::dns1123_subdomain(group);
    if !faults.is_empty() {
        errors.invalid(&path, group, faults.join(","));
    } else if !group.contains('.') {
        errors.invalid(&path, group, "should be a domain with at least one dot");
    }
}

fn scope(scope: &str, spec: &Path<'_>, errors: &mut ErrorList) {
    let path = spec.child("scope");
    if scope.is_empty() {
        errors.required(&path, "");
    } else if !SCOPES.contains(&scope) {
        errors.not_supported(&path, scope, SCOPES);
    }
}

fn versions(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let list = items(spec, &["versions"]);
    let at_list = path.child("versions");
    let names_of: Vec<&str> = list
        .iter()
        .map(|version| text(version, &["name"]))
        .collect();
    let unique = names_of
        .iter()
        .enumerate()
        .all(|(index, name)| !names_of[..index].contains(name));
    if !unique {
        errors.invalid(&at_list, list.to_vec(), "must contain unique version names");
    }
    let stored = list
        .iter()
        .filter(|version| boolean(version, &["storage"]))
        .count();
    if stored != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.invalid(&at_list, list.to_vec(), detail);
    }
    for (index, version) in list.iter().enumerate() {
        let place = at_list.index(index);
        let name = text(version, &["name"]);
        errors.invalid_each(&place.child("name"), name, names::dns1035_label(name));
        if index == 0 {
            errors.invalid_each(&path.child("version"), name, names::dns1035_label(name));
        }
        deprecation(version, &place, errors);
    }
    // What all versions have in common stands above them.
    let common = |key: &str| {
        list.windows(2)
            .all(|pair| get(&pair[0], key) == get(&pair[1], key))
    };
    for (key, above) in [
        ("schema", "validation"),
        ("subresources", ""),
        ("selectableFields", ""),
    ] {
        let check =
            |version: &Value, place: &Path<'_>, hoisted: bool, errors: &mut ErrorList| match key {
                "schema" if hoisted => schema(version, &place.child(above), errors),
                "schema" => schema(version, &place.child("schema"), errors),
                "subresources" => subresources(version, &place.child(key), errors),
                _ => selectable(version, &place.child(key), errors),
            };
        let missing = key == "schema"
            && list
                .iter()
                .any(|version| at(version, &["schema", "openAPIV3Schema"]).is_null());
        match list.first() {
            Some(first) if common(key) && !missing => check(first, path, true, errors),
            _ => {
                for (index, version) in list.iter().enumerate() {
                    check(version, &at_list.index(index), false, errors);
                }
            }
        }
    }
}

fn deprecation(version: &Value, place: &Path<'_>, errors: &mut ErrorList) {
    let warning = get(version, "deprecationWarning");
    let Some(words) = warning.as_str() else {
        return;
    };
    let path = place.child("deprecationWarning");
    if !boolean(version, &["deprecated"]) {
        errors.invalid(&path, words, "can only be set for deprecated versions");
    } else if words.is_empty() {
        errors.invalid(&path, words, "must not be empty");
    } else if words.len() > 256 {
        errors.invalid(&path, words, "must be <= 256 characters long");
    }
}

fn schema(version: &Value, place: &Path<'_>, errors: &mut ErrorList) {
    let path = place.child("openAPIV3Schema");
    let schema = at(version, &["schema", "openAPIV3Schema"]);
    if schema.is_null() {
        errors.required(&path, "");
        return;
    }
    schema_rules::root(schema, &path, errors);
}

fn simple_path(path: &str, root: &str) -> Option<&'static str> {
    if !path.starts_with('.')
        || path.contains(['[', '*', '?', ' '])
        || path.len() < 2
        || path.ends_with('.')
    {
        return Some("must be a simple json path starting with .");
    }
    let below = path
        .strip_prefix(root)
        .is_some_and(|rest| rest.starts_with('.'));
    match root {
        _ if below => None,
        ".spec" => Some("should be a json path under .spec"),
        _ => Some("should be a json path under .status"),
    }
}

fn subresources(version: &Value, place: &Path<'_>, errors: &mut ErrorList) {
    let scale = at(version, &["subresources", "scale"]);
    if !scale.is_object() {
        return;
    }
    let place = place.child("scale");
    for (key, root) in [
        ("specReplicasPath", ".spec"),
        ("statusReplicasPath", ".status"),
    ] {
        let path = text(scale, &[key]);
        if path.is_empty() {
            errors.required(&place.child(key), "");
        } else if let Some(fault) = simple_path(path, root) {
            errors.invalid(&place.child(key), path, fault);
        }
    }
    let path = text(scale, &["labelSelectorPath"]);
    if !path.is_empty() {
        let below_spec = simple_path(path, ".spec").is_none();
        if simple_path(path, ".status").is_some() && !below_spec {
            let detail = "should be a json path under either .spec or .status";
            errors.invalid(&place.child("labelSelectorPath"), path, detail);
        }
    }
}

const SELECTABLE_MAX: usize = 8;

fn selectable(version: &Value, place: &Path<'_>, errors: &mut ErrorList) {
    let fields = items(version, &["selectableFields"]);
    if fields.len() > SELECTABLE_MAX {
        errors.too_many(place, fields.len(), SELECTABLE_MAX);
    }
    let schema = at(version, &["schema", "openAPIV3Schema"]);
    let mut seen: Vec<&str> = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let item = place.index(index);
        let path = item.child("jsonPath");
        let json_path = text(field, &["jsonPath"]);
        if json_path.is_empty() {
            errors.required(&path, "");
            continue;
        }
        if seen.contains(&json_path) {
            errors.duplicate(&path, json_path);
            continue;
        }
        seen.push(json_path);
        let steps = json_path.strip_prefix('.').unwrap_or(json_path).split('.');
        let found = steps.fold(schema, |schema, step| at(schema, &["properties", step]));
        let kind = text(found, &["type"]);
        if found.is_null() {
            errors.invalid(
                &path,
                json_path,
                "is an invalid path: does not refer to a valid field",
            );
        } else if !matches!(kind, "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.invalid(&path, json_path, detail);
        }
    }
}

fn all_names(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let path = path.child("names");
    let given = get(spec, "names");
    let get_text = |key: &str| text(given, &[key]);
    for key in ["plural", "singular", "kind", "listKind"] {
        let value = get_text(key);
        let place = path.child(key);
        if value.is_empty() {
            errors.required(&place, "");
            continue;
        }
        let mixed = matches!(key, "kind" | "listKind");
        let faults = names::dns1035_label(&if mixed {
            value.to_lowercase()
        } else {
            value.to_owned()
        });
        if !faults.is_empty() {
            let words = faults.join(",");
            let detail = if mixed {
                format!("may have mixed case, but should otherwise match: {words}")
            } else {
                words
            };
            errors.invalid(&place, value, detail);
        }
    }
    if !get_text("kind").is_empty() && get_text("kind") == get_text("listKind") {
        errors.invalid(
            &path.child("listKind"),
            get_text("listKind"),
            "kind and listKind may not be the same",
        );
    }
    for key in ["shortNames", "categories"] {
        let place = path.child(key);
        for (index, value) in items(given, &[key]).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            let faults = names::dns1035_label(value);
            if !faults.is_empty() {
                errors.invalid(&place.index(index), value, faults.join(","));
            }
        }
    }
}

fn conversion(conversion: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let strategy = text(conversion, &["strategy"]);
    let config = at(conversion, &["webhook", "clientConfig"]);
    let reviews = items(conversion, &["webhook", "conversionReviewVersions"]);
    match strategy {
        "" => errors.required(&path.child("strategy"), ""),
        "None" => {
            let detail = "should not be set when strategy is not set to Webhook";
            if !config.is_null() {
                errors.forbidden(&path.child("webhookClientConfig"), detail);
            }
            if !reviews.is_empty() {
                errors.forbidden(&path.child("conversionReviewVersions"), detail);
            }
        }
        "Webhook" => {
            let place = path.child("webhookClientConfig");
            if config.is_null() {
                errors.required(&place, "required when strategy is set to Webhook");
            } else if get(config, "url").is_null() == get(config, "service").is_null() {
                errors.required(&place, "exactly one of url or service is required");
            }
            let place = path.child("conversionReviewVersions");
            if reviews.is_empty() {
                errors.required(&place, "");
            } else if !reviews.iter().any(|one| one == "v1" || one == "v1beta1") {
                errors.invalid(
                    &place,
                    reviews.to_vec(),
                    "must include at least one of v1, v1beta1",
                );
            }
        }
        other => errors.not_supported(&path.child("strategy"), other, &["None", "Webhook"]),
    }
}

fn stored_versions(definition: &Value, errors: &mut ErrorList) {
    let status = Path::new("status");
    let path = status.child("storedVersions");
    let stored = items(definition, &["status", "storedVersions"]);
    if stored.is_empty() {
        errors.invalid(&path, Value::Null, "must have at least one stored version");
        return;
    }
    let versions = items(definition, &["spec", "versions"]);
    // Of several that are marked, upstream looks at the last.
    let storage = versions
        .iter()
        .rfind(|version| boolean(version, &["storage"]));
    for (index, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| get(version, "name") == name) {
            errors.invalid(&path.index(index), name.clone(), "missing from spec.versions; it was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in this version and removes it from status.storedVersions");
        }
    }
    if let Some(storage) = storage.map(|version| get(version, "name"))
        && !stored.contains(storage)
    {
        let name = storage.as_str().unwrap_or_default();
        errors.invalid(
            &path,
            stored.to_vec(),
            format!("must have the storage version {name}"),
        );
    }
}

const APPROVED: &str = "api-approved.kubernetes.io";
const PULL: &str = "https://github.com/kubernetes/enhancements/pull/1111";

fn approved(definition: &Value, metadata: &Path<'_>, errors: &mut ErrorList) {
    let annotations = metadata.child("annotations");
    let path = annotations.key(APPROVED);
    let value = text(definition, &["metadata", "annotations", APPROVED]);
    if value.is_empty() {
        errors.required(
            &path,
            format!("protected groups must have approval annotation {APPROVED:?}, see {PULL}"),
        );
    } else if !value.starts_with("unapproved") && !value.starts_with("http") {
        errors.invalid(
            &path,
            value,
            format!("protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \"unapproved\", see {PULL}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_has_no_effect_is_told() {
        let mut definition = json!({"spec": {"versions": [{"name": "v1"}]}});
        assert!(warnings(&definition, &Value::Null).is_empty());
        definition["spec"]["conversion"] = json!({"strategy": "Webhook"});
        assert_eq!(warnings(&definition, &Value::Null).len(), 1);
    }
}

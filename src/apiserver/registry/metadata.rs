//! Rules for `metadata` that hold for every kind.

use std::collections::BTreeSet;

use sampan_api::field::{ErrorKind, ErrorList, Path};
use sampan_api::strategy::NameRule;
use sampan_api::{Status, meta, names};
use serde_json::Value;

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

const ANNOTATIONS_MAX: usize = 256 << 10;
const MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;
const IMMUTABLE: &str = "field is immutable";

/// Fields that only the server sets.
const SYSTEM: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
];

pub fn wipe_system_fields(object: &mut Value) {
    for field in SYSTEM {
        meta::remove(object, &["metadata", field]);
    }
}

/// The object gets the request's namespace, or the request is refused.
pub fn match_namespace(object: &mut Value, namespace: &str) -> Result<(), Status> {
    let own = meta::text(object, &["metadata", "namespace"]);
    if own == namespace {
        return Ok(());
    }
    if !own.is_empty() {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta::set(object, &["metadata", "namespace"], namespace);
    Ok(())
}

/// The name in the object must be the one in the URL.
pub fn match_name(object: &Value, name: &str) -> Result<(), Status> {
    let own = meta::text(object, &["metadata", "name"]);
    if own == name {
        return Ok(());
    }
    Err(Status::bad_request(if own.is_empty() {
        format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )
    } else {
        format!("the name of the object ({own}) does not match the name on the URL ({name})")
    }))
}

/// Removes owner references that are there twice; returns the text of the warning if any were.
pub fn dedup_owners(object: &mut Value, after_admission: bool) -> Option<String> {
    let owners = meta::at_mut(object, &["metadata", "ownerReferences"])?.as_array_mut()?;
    let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
    let mut doubled = BTreeSet::new();
    for owner in owners.drain(..) {
        if kept.contains(&owner) {
            doubled.insert(meta::text(&owner, &["uid"]).to_owned());
        } else {
            kept.push(owner);
        }
    }
    *owners = kept;
    if doubled.is_empty() {
        return None;
    }
    let uids = doubled.into_iter().collect::<Vec<_>>().join(", ");
    Some(if after_admission {
        format!(
            ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uids}"
        )
    } else {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uids}"
        )
    })
}

pub fn strings<'a>(object: &'a Value, field: &str) -> Vec<&'a str> {
    meta::items(object, &["metadata", field])
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    strings(object, "finalizers")
}

fn name_messages(rule: NameRule, name: &str, prefix: bool) -> Vec<String> {
    // A prefix may end in a dash: something always follows it.
    let masked = match name.strip_suffix('-') {
        Some(rest) if prefix && !rest.is_empty() => format!("{rest}a"),
        _ => name.to_owned(),
    };
    match rule {
        NameRule::Subdomain => names::dns1123_subdomain(&masked),
        NameRule::Label => names::dns1123_label(&masked),
        NameRule::Label1035 => names::dns1035_label(&masked),
        NameRule::PathSegment => names::path_segment(name),
        NameRule::Address => match name.parse::<std::net::IpAddr>() {
            Ok(_) => Vec::new(),
            Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()],
        },
    }
}

/// All faults in the metadata of a new object.
pub fn validate(object: &Value, namespaced: bool, rule: NameRule) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata");
    let text = |field| meta::text(object, &["metadata", field]);
    let generate = text("generateName");
    if !generate.is_empty() {
        let messages = name_messages(rule, generate, true);
        errors.invalid_each(&path.child("generateName"), generate, messages);
    }
    let name = text("name");
    if name.is_empty() {
        errors.required(&path.child("name"), "name or generateName is required");
    } else {
        errors.invalid_each(&path.child("name"), name, name_messages(rule, name, false));
    }
    let namespace = text("namespace");
    let at = path.child("namespace");
    if !namespaced {
        if !namespace.is_empty() {
            errors.forbidden(&at, "not allowed on this type");
        }
    } else if namespace.is_empty() {
        errors.required(&at, "");
    } else {
        errors.invalid_each(&at, namespace, names::dns1123_label(namespace));
    }
    common(object, &path, &mut errors);
    errors
}

/// Finalizers of built-in kinds are the system's or have a domain.
pub fn known_finalizers(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata.finalizers");
    for (index, finalizer) in finalizers(object).into_iter().enumerate() {
        let known =
            finalizer.contains('/') || [ORPHAN, FOREGROUND, "kubernetes"].contains(&finalizer);
        if !known && names::label_key(finalizer).is_empty() {
            errors.invalid(
                &path.index(index),
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
    errors
}

/// All faults in the metadata of a changed object. Those of the change itself are reported twice:
/// upstream checks them for all kinds and once more for each, and clients may count causes.
pub fn validate_update(object: &Value, old: &Value, times: usize) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata");
    for _ in 0..times {
        common(object, &path, &mut errors);
    }
    for _ in 0..2 {
        change(object, old, &path, &mut errors);
    }
    errors
}

fn change(object: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if !meta::text(old, &["metadata", "deletionTimestamp"]).is_empty() {
        let before = finalizers(old);
        let mut added: Vec<&str> = finalizers(object)
            .into_iter()
            .filter(|name| !before.contains(name))
            .collect();
        added.sort_unstable();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
            errors.forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    list.join(", ")
                ),
            );
        }
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let new = meta::at(object, &["metadata", field]);
        if new != meta::at(old, &["metadata", field]) {
            errors.invalid(&path.child(field), new.clone(), IMMUTABLE);
        }
    }
    labels(object, &path.child("labels"), errors);
    annotations(object, &path.child("annotations"), errors);
    owners(object, &path.child("ownerReferences"), errors);
    managed_fields(object, &path.child("managedFields"), errors);
}

/// What is checked on create and update alike.
fn common(object: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if meta::integer(object, &["metadata", "generation"]).is_some_and(|value| value < 0) {
        errors.invalid(
            &path.child("generation"),
            meta::at(object, &["metadata", "generation"]).clone(),
            "must be greater than or equal to 0",
        );
    }
    labels(object, &path.child("labels"), errors);
    annotations(object, &path.child("annotations"), errors);
    owners(object, &path.child("ownerReferences"), errors);
    finalizer_names(object, &path.child("finalizers"), errors);
    managed_fields(object, &path.child("managedFields"), errors);
}

fn labels(object: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (key, value) in meta::entries(object, &["metadata", "labels"]) {
        errors.invalid_each(path, key, names::label_key(key));
        let value = value.as_str().unwrap_or_default();
        errors.invalid_each(path, value, names::label_value(value));
    }
}

fn annotations(object: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut size = 0;
    for (key, value) in meta::entries(object, &["metadata", "annotations"]) {
        errors.invalid_each(path, key, names::label_key(&key.to_lowercase()));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_MAX {
        errors.too_long(path, ANNOTATIONS_MAX);
    }
}

fn owners(object: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let owners = meta::items(object, &["metadata", "ownerReferences"]);
    let mut controller = String::new();
    for owner in owners {
        let text = |field| meta::text(owner, &[field]);
        let version = text("apiVersion");
        if version.rsplit('/').next().unwrap_or_default().is_empty() {
            errors.invalid(
                &path.child("apiVersion"),
                version,
                "version must not be empty",
            );
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                errors.invalid(&path.child(field), "", "must not be empty");
            }
        }
        if version == "v1" && text("kind") == "Event" {
            errors.invalid(
                path,
                owner.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            );
        }
        if !meta::boolean(owner, &["controller"]) {
            continue;
        }
        let this = format!("{}/{}", text("kind"), text("name"));
        if controller.is_empty() {
            controller = this;
        } else {
            errors.invalid(path, owners.to_vec(), format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {controller} and {this}"
            ));
        }
    }
}

fn finalizer_names(object: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let finalizers = finalizers(object);
    for finalizer in &finalizers {
        errors.invalid_each(path, finalizer, names::label_key(finalizer));
    }
    if finalizers.contains(&ORPHAN) && finalizers.contains(&FOREGROUND) {
        errors.invalid(
            path,
            finalizers,
            format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set"),
        );
    }
}

fn managed_fields(object: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, entry) in meta::items(object, &["metadata", "managedFields"])
        .iter()
        .enumerate()
    {
        let path = path.index(index);
        let text = |field| meta::text(entry, &[field]);
        if !matches!(text("operation"), "Apply" | "Update") {
            errors.invalid(
                &path.child("operation"),
                text("operation"),
                "must be `Apply` or `Update`",
            );
        }
        if !matches!(text("fieldsType"), "" | "FieldsV1") {
            errors.invalid(
                &path.child("fieldsType"),
                text("fieldsType"),
                "must be `FieldsV1`",
            );
        }
        manager_name(text("manager"), &path.child("manager"), errors);
        if text("subresource").len() > SUBRESOURCE_MAX {
            errors.too_long(&path.child("subresource"), SUBRESOURCE_MAX);
        }
    }
}

/// The name of a field manager is short and printable.
pub fn manager_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if name.len() > MANAGER_MAX {
        errors.too_long(path, MANAGER_MAX);
    }
    for (position, character) in name.char_indices() {
        if character.is_control() {
            errors.add(
                ErrorKind::Invalid,
                path,
                Some(Value::from(name)),
                format!(
                    "invalid character U+{:04X} (at position {position})",
                    character as u32
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn new_objects() {
        let good = json!({"metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}}});
        assert!(validate(&good, true, NameRule::Subdomain).is_empty());
        let bad = json!({"metadata": {"name": "A", "generateName": "b-", "namespace": "n",
            "finalizers": ["orphan", "foregroundDeletion"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]}});
        let fields: Vec<String> = validate(&bad, false, NameRule::Subdomain)
            .into_iter()
            .map(|error| error.field)
            .collect();
        assert_eq!(
            fields,
            [
                "metadata.name",
                "metadata.namespace",
                "metadata.ownerReferences.uid",
                "metadata.finalizers",
                "metadata.finalizers",
                "metadata.finalizers"
            ][..4]
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn changed_objects() {
        let old = json!({"metadata": {"name": "a", "uid": "1", "deletionTimestamp": "x"}});
        let new = json!({"metadata": {"name": "a", "uid": "2", "deletionTimestamp": "x", "finalizers": ["a/b"]}});
        let text = validate_update(&new, &old, 1).aggregate();
        assert!(
            text.contains("found new finalizers []string{\"a/b\"}"),
            "{text}"
        );
        assert!(
            text.contains("metadata.uid: Invalid value: \"2\": field is immutable"),
            "{text}"
        );
    }

    #[test]
    fn doubled_owners_go() {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
        let mut object = json!({"metadata": {"ownerReferences": [owner, owner]}});
        assert!(dedup_owners(&mut object, false).is_some_and(|text| text.ends_with("observed: u")));
        assert_eq!(
            meta::items(&object, &["metadata", "ownerReferences"]).len(),
            1
        );
        assert!(dedup_owners(&mut object, false).is_none());
    }
}

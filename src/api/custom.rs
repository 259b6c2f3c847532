//! Custom resources: a CustomResourceDefinition becomes a row like any other.
//!
//! [`row`] makes it; [`CustomStrategy`] is what all custom kinds have in common. Values are pruned and completed by
//! [`structural`], checked by [`values`]. Which names are accepted, and so whether a row is served, says [`names`].

use std::sync::Arc;

use serde_json::Value;

use crate::field::{ErrorKind, ErrorList, FieldError};
use crate::meta::{self, at, boolean, get, items, text};
use crate::registry::{ResourceDef, Scope, ServedVersion, SubresourceDef};
use crate::resource::{GroupVersionKind, Name, Verb};
use crate::schema::{CustomSchema, CustomVersion, DecodeError};
use crate::strategy::{self, Context, Strategy};

pub mod columns;
pub(crate) mod definition;
pub(crate) mod formats;
pub mod names;
pub(crate) mod pattern;
pub mod rules;
mod schema_rules;
pub mod structural;
mod typed;
mod values;

/// The finalizer that keeps a definition until its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// In the order in which discovery has always shown them.
const VERBS: &[Verb] = &[
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Create,
    Verb::Update,
    Verb::Watch,
];
/// While the definition is being deleted nothing new is made.
const VERBS_OF_DYING: &[Verb] = &[
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
const OWN: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];

fn owned(text: &str) -> Name {
    Name::Owned(text.to_owned())
}

fn names_of(value: &Value, key: &str) -> Vec<Name> {
    items(value, &[key])
        .iter()
        .filter_map(Value::as_str)
        .map(owned)
        .collect()
}

/// The row that a definition stands for; `None` while it is not established.
pub fn row(definition: &Value) -> Option<ResourceDef> {
    if !names::is_established(definition) {
        return None;
    }
    let spec = get(definition, "spec");
    let names = at(definition, &["status", "acceptedNames"]);
    let group = text(spec, &["group"]);
    let mut list: Vec<&Value> = items(spec, &["versions"]).iter().collect();
    list.sort_by(|a, b| crate::resource::compare_versions(text(a, &["name"]), text(b, &["name"])));
    let storage = list
        .iter()
        .position(|version| boolean(version, &["storage"]))?;
    let versions = list
        .iter()
        .map(|version| ServedVersion {
            group: owned(group),
            version: owned(text(version, &["name"])),
            served: boolean(version, &["served"]),
        })
        .collect();
    let kind = text(names, &["kind"]);
    let dying = !at(definition, &["metadata", "deletionTimestamp"]).is_null();
    let custom = Arc::new(custom_schema(definition, &list, group, kind));
    Some(ResourceDef {
        plural: owned(text(names, &["plural"])),
        singular: owned(text(names, &["singular"])),
        kind: owned(kind),
        list_kind: owned(text(names, &["listKind"])),
        short_names: names_of(names, "shortNames"),
        categories: names_of(names, "categories"),
        scope: if text(spec, &["scope"]) == "Cluster" {
            Scope::Cluster
        } else {
            Scope::Namespaced
        },
        verbs: if dying { VERBS_OF_DYING } else { VERBS }.to_vec(),
        versions,
        storage,
        subresources: subresources(list[storage]),
        generations: true,
        volatile: false,
        selectable: items(list[storage], &["selectableFields"])
            .iter()
            .map(|field| owned(text(field, &["jsonPath"]).trim_start_matches('.')))
            .collect(),
        strategy: Arc::new(CustomStrategy(custom.clone())),
        custom: Some(custom),
    })
}

fn subresources(version: &Value) -> Vec<SubresourceDef> {
    let given = get(version, "subresources");
    let mut list = Vec::new();
    if get(given, "status").is_object() {
        list.push(SubresourceDef {
            name: Name::Borrowed("status"),
            verbs: OWN.to_vec(),
            kind: None,
        });
    }
    if get(given, "scale").is_object() {
        list.push(SubresourceDef {
            name: Name::Borrowed("scale"),
            verbs: OWN.to_vec(),
            kind: Some(GroupVersionKind {
                group: Name::Borrowed("autoscaling"),
                version: Name::Borrowed("v1"),
                kind: Name::Borrowed("Scale"),
            }),
        });
    }
    list
}

fn custom_schema(definition: &Value, versions: &[&Value], group: &str, kind: &str) -> CustomSchema {
    let storage = versions
        .iter()
        .find(|version| boolean(version, &["storage"]));
    let storage = storage.map_or("", |version| text(version, &["name"]));
    let versions = versions
        .iter()
        .map(|version| {
            let schema = at(version, &["schema", "openAPIV3Schema"]);
            CustomVersion {
                name: text(version, &["name"]).to_owned(),
                schema: typed::of_root(schema),
                raw: schema.clone(),
                rules: rules::Rules::of_root(schema),
                deprecation: deprecation(version, versions, group, kind),
                columns: columns::of_version(version),
                scale: get(get(version, "subresources"), "scale").clone(),
            }
        })
        .collect();
    CustomSchema {
        uid: text(definition, &["metadata", "uid"]).to_owned(),
        generation: meta::integer(definition, &["metadata", "generation"]).unwrap_or(0),
        storage: storage.to_owned(),
        by_webhook: text(definition, &["spec", "conversion", "strategy"]) == "Webhook",
        versions,
    }
}

/// What clients of a deprecated version are told.
fn deprecation(version: &Value, all: &[&Value], group: &str, kind: &str) -> Option<String> {
    if !boolean(version, &["deprecated"]) {
        return None;
    }
    if let Some(words) = get(version, "deprecationWarning").as_str() {
        return Some(words.to_owned());
    }
    let name = text(version, &["name"]);
    let base = format!("{group}/{name} {kind} is deprecated");
    let mut newer = all
        .iter()
        .filter(|other| boolean(other, &["served"]) && !boolean(other, &["deprecated"]));
    Some(match newer.next() {
        Some(other) => format!("{base}; use {group}/{} {kind}", text(other, &["name"])),
        None => base,
    })
}

/// Brings an object into the form of a version: unknown fields go and are returned, defaults come.
pub fn decode(
    custom: &CustomSchema,
    version: &str,
    object: &mut Value,
) -> Result<Vec<String>, DecodeError> {
    let Some(version) = custom.of(version) else {
        return Ok(Vec::new());
    };
    let unknown = structural::decode(&version.raw, object)?;
    structural::default(&version.raw, object);
    Ok(unknown)
}

/// Brings an object into another version, which only changes what it is called and what is known.
pub fn convert(custom: &CustomSchema, group: &str, version: &str, object: &mut Value) {
    let api_version = crate::resource::api_version(group, version);
    if text(object, &["apiVersion"]) == api_version {
        return;
    }
    meta::set(object, &["apiVersion"], api_version);
    if let Some(version) = custom.of(version) {
        structural::prune(&version.raw, object, true);
    }
}

/// Rules may rely on types and sizes.
fn keeps_rules_from_running(error: &FieldError) -> bool {
    matches!(
        error.kind,
        ErrorKind::NotSupported
            | ErrorKind::Required
            | ErrorKind::TooLong
            | ErrorKind::TooMany
            | ErrorKind::TypeInvalid
    )
}

/// What all custom kinds do.
struct CustomStrategy(Arc<CustomSchema>);

impl CustomStrategy {
    fn faults(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let Some(version) = self.0.of(&self.0.storage) else {
            return ErrorList::new();
        };
        let mut errors = values::check(&version.raw, object, old);
        if let Some(rules) = &version.rules {
            if errors.0.iter().any(keeps_rules_from_running) {
                errors.0.push(FieldError {
                    kind: ErrorKind::Invalid,
                    field: "<nil>".to_owned(),
                    value: Some(Value::Null),
                    detail: "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation".to_owned(),
                });
            } else {
                errors.extend(rules.check(object, old));
            }
        }
        errors
    }
}

impl Strategy for CustomStrategy {
    fn prepare_for_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        strategy::keep_status(context, object, old);
        let ignored: &[&str] = if context.def.has_status() {
            &["metadata", "status", "kind", "apiVersion"]
        } else {
            &["metadata", "kind", "apiVersion"]
        };
        let generation = meta::integer(old, &["metadata", "generation"]).unwrap_or(0);
        let changed = strategy::differs_beside(object, old, ignored);
        meta::set(
            object,
            &["metadata", "generation"],
            generation + i64::from(changed),
        );
    }

    fn prepare_for_status_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        strategy::only_status(object, old);
        strategy::reset_metadata(object, old);
    }

    fn validate(&self, _: &Context<'_>, object: &Value) -> ErrorList {
        self.faults(object, None)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> ErrorList {
        self.faults(object, Some(old))
    }

    fn validate_status_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> ErrorList {
        self.faults(object, Some(old))
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn reset_fields(&self, def: &ResourceDef, subresource: &str) -> &'static [&'static str] {
        match subresource {
            "" if def.has_status() => &["status"],
            "status" => &["spec", "metadata"],
            "scale" => &["status"],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_definition_is_a_row() {
        let mut definition = json!({"metadata": {"uid": "u"}, "spec": {"group": "g.example", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [
                {"name": "v1alpha1", "served": true, "deprecated": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}}]}});
        assert!(row(&definition).is_none());
        definition["status"] =
            names::status(&definition, &[], jiff::Timestamp::UNIX_EPOCH).unwrap();
        let row = row(&definition).unwrap();
        assert_eq!(row.storage_version().version, "v1");
        assert_eq!(row.prefix(), "/registry/g.example/things/");
        assert!(row.has_status() && row.is_custom());
        let custom = row.custom.as_ref().unwrap();
        assert_eq!(
            custom.of("v1alpha1").unwrap().deprecation.as_deref(),
            Some("g.example/v1alpha1 Thing is deprecated; use g.example/v1 Thing")
        );
        let mut object =
            json!({"apiVersion": "g.example/v1", "kind": "Thing", "spec": {"x": 1}, "y": 1});
        assert_eq!(decode(custom, "v1", &mut object).unwrap(), ["spec.x", "y"]);
        assert!(decode(custom, "v1", &mut json!({"metadata": {"name": true}})).is_err());
    }
}

//! Rules for `openAPIV3Schema`: it must be structural, and say nothing that cannot be.

use serde_json::Value;

use super::{structural, values};
use crate::field::{ErrorList, Path};
use crate::meta::{at, boolean, get, items, text};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const REASONS: &[&str] = &[
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

pub(super) fn root(schema: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = text(schema, &["type"]);
    if kind.is_empty() {
        errors.required(&path.child("type"), "must not be empty at the root");
        return;
    }
    if kind != "object" {
        errors.invalid(&path.child("type"), kind, "must be object at the root");
    }
    node(
        schema,
        path,
        &Place {
            root: true,
            lost: None,
        },
        errors,
    );
}

/// Where a schema stands.
#[derive(Default)]
struct Place {
    root: bool,
    /// What it is in that has no old value to compare with, if it is in such.
    lost: Option<String>,
}

impl Place {
    /// The place of what is inside.
    fn inside(&self, schema: &Value, path: &Path<'_>) -> Self {
        let list = text(schema, &["type"]) == "array"
            && text(schema, &["x-kubernetes-list-type"]) != "map";
        let lost = list || text(schema, &["x-kubernetes-map-type"]) == "atomic";
        Self {
            root: false,
            lost: self.lost.clone().or_else(|| lost.then(|| path.to_string())),
        }
    }
}

fn node(schema: &Value, path: &Path<'_>, place: &Place, errors: &mut ErrorList) {
    let root = place.root;
    let inside = place.inside(schema, path);
    forbidden_words(schema, path, errors);
    types(schema, path, root, errors);
    lists(schema, path, errors);
    maps(schema, path, errors);
    default(schema, path, errors);
    rules(schema, path, place, errors);
    pattern(schema, path, errors);
    let properties = path.child("properties");
    for (name, property) in get(schema, "properties").as_object().into_iter().flatten() {
        node(property, &properties.key(name), &inside, errors);
    }
    if get(schema, "items").is_object() {
        node(get(schema, "items"), &path.child("items"), &inside, errors);
    }
    if get(schema, "additionalProperties").is_object() {
        node(
            get(schema, "additionalProperties"),
            &path.child("additionalProperties"),
            &inside,
            errors,
        );
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let list = path.child(key);
        for (index, part) in items(schema, &[key]).iter().enumerate() {
            valuation(part, schema, &list.index(index), errors);
        }
    }
    if get(schema, "not").is_object() {
        valuation(get(schema, "not"), schema, &path.child("not"), errors);
    }
}

fn forbidden_words(schema: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (key, detail) in [
        ("$ref", "$ref is not supported"),
        ("additionalItems", "additionalItems is not supported"),
        ("patternProperties", "patternProperties is not supported"),
        ("definitions", "definitions is not supported"),
        ("dependencies", "dependencies is not supported"),
        ("id", "id is not supported"),
    ] {
        if !get(schema, key).is_null() {
            errors.forbidden(&path.child(key), detail);
        }
    }
    if boolean(schema, &["uniqueItems"]) {
        errors.forbidden(
            &path.child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        );
    }
    if get(schema, "items").is_array() {
        errors.forbidden(
            &path.child("items"),
            "items must be a schema object and not an array",
        );
    }
    let both =
        get(schema, "properties").is_object() && !get(schema, "additionalProperties").is_null();
    if both && get(schema, "additionalProperties") != &Value::Bool(false) {
        errors.forbidden(
            &path.child("additionalProperties"),
            "additionalProperties and properties are mutual exclusive",
        );
    }
}

fn types(schema: &Value, path: &Path<'_>, root: bool, errors: &mut ErrorList) {
    let kind = text(schema, &["type"]);
    let free = boolean(schema, &[PRESERVE]) || boolean(schema, &[INT_OR_STRING]);
    if kind.is_empty() {
        // A reference says all there is to say.
        if !free && !root && get(schema, "$ref").is_null() {
            errors.required(
                &path.child("type"),
                "must not be empty for specified object fields",
            );
        }
    } else if !TYPES.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, TYPES);
    }
    if kind == "array" && get(schema, "items").is_null() {
        errors.required(&path.child("items"), "must be specified");
    }
    if !boolean(schema, &[EMBEDDED]) {
        return;
    }
    if kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        if kind.is_empty() {
            errors.required(&path.child("type"), detail);
        } else {
            errors.invalid(&path.child("type"), kind, detail);
        }
    }
    if !boolean(schema, &[PRESERVE]) && !get(schema, "properties").is_object() {
        errors.required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        );
    }
}

fn lists(schema: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = get(schema, "x-kubernetes-list-type");
    let place = path.child("x-kubernetes-list-type");
    let keys = items(schema, &["x-kubernetes-list-map-keys"]);
    let at_keys = path.child("x-kubernetes-list-map-keys");
    let Some(kind) = kind.as_str() else {
        if !keys.is_empty() {
            errors.required(
                &place,
                "must be map if x-kubernetes-list-map-keys is non-empty",
            );
        }
        return;
    };
    if !matches!(kind, "atomic" | "set" | "map") {
        errors.not_supported(&place, kind, &["atomic", "map", "set"]);
        return;
    }
    if text(schema, &["type"]) != "array" {
        errors.invalid(
            &path.child("type"),
            text(schema, &["type"]),
            "must be array if x-kubernetes-list-type is specified",
        );
    }
    let item = get(schema, "items");
    let at_items = path.child("items");
    match kind {
        "set"
            if text(item, &["type"]) == "object"
                && text(item, &["x-kubernetes-map-type"]) != "atomic" =>
        {
            errors.invalid(
                &at_items.child("x-kubernetes-map-type"),
                get(item, "x-kubernetes-map-type").clone(),
                "must be atomic as item of a list with x-kubernetes-list-type=set",
            );
        }
        "set"
            if text(item, &["type"]) == "array"
                && text(item, &["x-kubernetes-list-type"]) != "atomic" =>
        {
            errors.invalid(
                &at_items.child("x-kubernetes-list-type"),
                get(item, "x-kubernetes-list-type").clone(),
                "must be atomic as item of a list with x-kubernetes-list-type=set",
            );
        }
        "map" => map_keys(item, keys, &at_keys, &at_items, errors),
        _ => {}
    }
}

fn map_keys(
    item: &Value,
    keys: &[Value],
    at_keys: &Path<'_>,
    at_items: &Path<'_>,
    errors: &mut ErrorList,
) {
    if keys.is_empty() {
        errors.required(
            at_keys,
            "must not be empty if x-kubernetes-list-type is map",
        );
        return;
    }
    if text(item, &["type"]) != "object" {
        errors.invalid(
            &at_items.child("type"),
            text(item, &["type"]),
            "must be object if parent array's x-kubernetes-list-type is map",
        );
    }
    let properties = get(item, "properties");
    let names = keys.iter().filter_map(Value::as_str);
    if names.clone().any(|name| properties.get(name).is_none()) {
        errors.invalid(
            at_keys,
            keys.to_vec(),
            "entries must all be names of item properties",
        );
        return;
    }
    let at_properties = at_items.child("properties");
    for name in names {
        let required = items(item, &["required"]).iter().any(|one| one == name);
        let property = get(properties, name);
        let place = at_properties.key(name);
        if !required && property.get("default").is_none() {
            errors.required(
                &place.child("default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            );
        }
        if boolean(property, &["nullable"]) {
            errors.forbidden(
                &place.child("nullable"),
                "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            );
        }
    }
}

fn maps(schema: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(kind) = get(schema, "x-kubernetes-map-type").as_str() else {
        return;
    };
    let place = path.child("x-kubernetes-map-type");
    if !matches!(kind, "atomic" | "granular") {
        errors.not_supported(&place, kind, &["atomic", "granular"]);
    } else if text(schema, &["type"]) != "object" {
        errors.invalid(
            &path.child("type"),
            text(schema, &["type"]),
            "must be object if x-kubernetes-map-type is specified",
        );
    }
}

/// A default must be a value of its own schema.
fn default(schema: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(default) = schema.get("default").filter(|default| !default.is_null()) else {
        return;
    };
    let place = path.child("default");
    let mut pruned = default.clone();
    if !structural::prune(schema, &mut pruned, false).is_empty() {
        errors.invalid(&place, default.clone(), "must not have unknown fields");
        return;
    }
    errors.extend(values::check_default(schema, default, &place));
}

fn pattern(schema: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let pattern = text(schema, &["pattern"]);
    if !pattern.is_empty() && super::pattern::matches(pattern, "").is_none() {
        let detail = format!(
            "must be a valid regular expression, but isn't: error parsing regexp: {pattern:?}"
        );
        errors.invalid(&path.child("pattern"), pattern, detail);
    }
}

/// What stands in `x-kubernetes-validations`, as far as it can be told without running it.
fn rules(schema: &Value, path: &Path<'_>, at_place: &Place, errors: &mut ErrorList) {
    let list = path.child("x-kubernetes-validations");
    for (index, rule) in items(schema, &["x-kubernetes-validations"])
        .iter()
        .enumerate()
    {
        let place = list.index(index);
        if text(rule, &["rule"]).trim().is_empty() {
            errors.required(&place.child("rule"), "rule is not specified");
        } else {
            compiled(rule, schema, at_place, &place, errors);
        }
        let reason = text(rule, &["reason"]);
        if !reason.is_empty() && !REASONS.contains(&reason) {
            errors.not_supported(&place.child("reason"), reason, REASONS);
        }
        let field = text(rule, &["fieldPath"]);
        if !field.is_empty() && !leads_somewhere(schema, field) {
            errors.invalid(&place.child("fieldPath"), field, "must be a valid path");
        }
    }
}

fn compiled(
    rule: &Value,
    schema: &Value,
    at_place: &Place,
    place: &Path<'_>,
    errors: &mut ErrorList,
) {
    let (refusals, uses_old) = super::rules::refusals(rule, schema, at_place.root);
    if refusals.is_empty() && !uses_old && !get(rule, "optionalOldSelf").is_null() {
        errors.invalid(
            &place.child("optionalOldSelf"),
            get(rule, "optionalOldSelf").clone(),
            "may not be set if oldSelf is not used in rule",
        );
    }
    for refusal in refusals {
        let field = if refusal.of_message {
            "messageExpression"
        } else {
            "rule"
        };
        errors.invalid(&place.child(field), rule.clone(), refusal.why);
    }
    if let Some(lost) = at_place.lost.as_ref().filter(|_| uses_old) {
        let detail = format!(
            "oldSelf cannot be used on the uncorrelatable portion of the schema within {lost}"
        );
        errors.invalid(&place.child("rule"), text(rule, &["rule"]), detail);
    }
}

fn leads_somewhere(schema: &Value, path: &str) -> bool {
    let Some(steps) = path.strip_prefix('.') else {
        return path.starts_with('[');
    };
    let mut at_schema = schema;
    for step in steps.split(['.', '[']) {
        let step = step.trim_end_matches(']').trim_matches(['\'', '"']);
        let next = at(at_schema, &["properties", step]);
        at_schema = match get(at_schema, "additionalProperties") {
            additional if next.is_null() && additional.is_object() => additional,
            _ => next,
        };
        if at_schema.is_null() {
            return false;
        }
    }
    true
}

/// Parts of `allOf` and its like may only restrict values, and only of fields that are specified outside.
fn valuation(part: &Value, outside: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let by_int_or_string = boolean(outside, &[INT_OR_STRING]);
    for key in [
        "type",
        "description",
        "title",
        "default",
        "nullable",
        "additionalProperties",
        PRESERVE,
        EMBEDDED,
        INT_OR_STRING,
    ] {
        let value = get(part, key);
        let set = !value.is_null() && value != &Value::Bool(false) && value != "";
        if set && !(key == "type" && by_int_or_string) {
            let detail = match key {
                "nullable" => "must be false to be structural",
                _ => "must be empty to be structural",
            };
            errors.forbidden(&path.child(key), detail);
        }
    }
    let properties = path.child("properties");
    for (name, property) in get(part, "properties").as_object().into_iter().flatten() {
        let place = properties.key(name);
        let specified = at(outside, &["properties", name]);
        if specified.is_null()
            && !get(outside, "additionalProperties").is_object()
            && name != "metadata"
        {
            continue;
        }
        valuation(property, specified, &place, errors);
    }
    if get(part, "items").is_object() {
        valuation(
            get(part, "items"),
            get(outside, "items"),
            &path.child("items"),
            errors,
        );
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let list = path.child(key);
        for (index, inner) in items(part, &[key]).iter().enumerate() {
            valuation(inner, outside, &list.index(index), errors);
        }
    }
}

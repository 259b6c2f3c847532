//! Validation: rules of types, worded as upstream words them. Kinds call these from their
//! strategies; every function adds what it finds to a list and goes on.

use serde_json::Value;

use crate::field::{ErrorList, Path};
use crate::meta::{get, items, text};
use crate::names;

pub(crate) mod access;
pub(crate) mod admission;
pub(crate) mod certificate;
pub(crate) mod container;
pub(crate) mod core;
pub(crate) mod flow;
pub(crate) mod job;
pub(crate) mod network;
pub(crate) mod pod;
pub(crate) mod pod_update;
pub(crate) mod resources;
pub(crate) mod rules;
pub(crate) mod scaling;
pub(crate) mod schedule;
pub(crate) mod scheduling;
pub(crate) mod security;
pub(crate) mod service;
pub(crate) mod storage;
pub(crate) mod various;
pub(crate) mod volume;
pub(crate) mod warning;
pub(crate) mod workload;

pub(crate) const NON_NEGATIVE: &str = "must be greater than or equal to 0";
pub(crate) const IMMUTABLE: &str = "field is immutable";

/// A qualified name, as keys of labels and the like.
pub(crate) fn label_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    errors.invalid_each(path, name, names::label_key(name));
}

/// A map of labels; keys and values are reported at the map.
pub(crate) fn labels(labels: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        label_name(key, path, errors);
        let value = value.as_str().unwrap_or_default();
        errors.invalid_each(path, value, names::label_value(value));
    }
}

/// A `LabelSelector`; null is none.
pub(crate) fn label_selector(selector: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if selector.is_null() {
        return;
    }
    labels(
        get(selector, "matchLabels"),
        &path.child("matchLabels"),
        errors,
    );
    let list = path.child("matchExpressions");
    for (index, requirement) in items(selector, &["matchExpressions"]).iter().enumerate() {
        selector_requirement(requirement, &list.index(index), errors);
    }
}

fn selector_requirement(requirement: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let operator = text(requirement, &["operator"]);
    let values = items(requirement, &["values"]);
    let values_path = path.child("values");
    match operator {
        "In" | "NotIn" => {
            if values.is_empty() {
                errors.required(
                    &values_path,
                    "must be specified when `operator` is 'In' or 'NotIn'",
                );
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                errors.forbidden(
                    &values_path,
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
        }
        other => errors.invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        ),
    }
    label_name(text(requirement, &["key"]), &path.child("key"), errors);
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        errors.invalid_each(&values_path.index(index), value, names::label_value(value));
    }
}

/// One of a few words.
pub(crate) fn one_of(value: &str, valid: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    if !valid.contains(&value) {
        errors.not_supported(path, value, valid);
    }
}

/// One of a few words, and not nothing.
pub(crate) fn required_one_of(
    value: &str,
    valid: &[&str],
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if value.is_empty() {
        errors.required(path, "");
    } else {
        one_of(value, valid, path, errors);
    }
}

pub(crate) fn non_negative(value: i64, path: &Path<'_>, errors: &mut ErrorList) {
    if value < 0 {
        errors.invalid(path, value, NON_NEGATIVE);
    }
}

/// The member, if it is there, is not negative.
pub(crate) fn non_negative_member(
    object: &Value,
    key: &str,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if let Some(value) = get(object, key).as_i64() {
        non_negative(value, &path.child(key), errors);
    }
}

/// Reported at the member if it is empty.
pub(crate) fn required_text(object: &Value, key: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if text(object, &[key]).is_empty() {
        errors.required(&path.child(key), "");
    }
}

pub(crate) fn dns_label(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    errors.invalid_each(path, name, names::dns1123_label(name));
}

pub(crate) fn dns_subdomain(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    errors.invalid_each(path, name, names::dns1123_subdomain(name));
}

/// The two are the same.
pub(crate) fn immutable(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if new != old {
        errors.invalid(path, new.clone(), IMMUTABLE);
    }
}

/// An address in the notation that old fields take.
pub(crate) fn legacy_ip(address: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if names::parse_legacy_ip(address).is_none() {
        errors.invalid(
            path,
            address,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        );
    }
}

/// A number or a percentage (`maxUnavailable`).
pub(crate) fn number_or_percent(value: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match value {
        Value::String(text) => errors.invalid_each(path, text, names::percent(text)),
        Value::Number(number) => non_negative(number.as_i64().unwrap_or(0), path, errors),
        _ => errors.invalid(
            path,
            value.clone(),
            "must be an integer or percentage (e.g '5%%')",
        ),
    }
}

/// The percentage a value states, if it states one.
pub(crate) fn percent_of(value: &Value) -> Option<i64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

pub(crate) fn at_most_100_percent(value: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if percent_of(value).is_some_and(|percent| percent > 100) {
        errors.invalid(path, value.clone(), "must not be greater than 100%");
    }
}

/// A port's number or name.
pub(crate) fn port(port: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match port {
        Value::String(name) => errors.invalid_each(path, name, names::port_name(name)),
        other => {
            let number = other.as_i64().unwrap_or(0);
            for message in names::port_number(number) {
                errors.invalid(path, number, message);
            }
        }
    }
}

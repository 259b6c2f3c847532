//! Quantities, named formats and versions.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::cel::eval::{Outcome, error};
use crate::cel::value::Value;
use crate::custom::formats;
use crate::names;
use crate::quantity::Quantity;

pub(super) fn call(name: &str, values: &[Value]) -> Option<Outcome> {
    Some(match (name, values) {
        ("isQuantity", [Value::Text(text)]) => Ok(Value::Bool(text.parse::<Quantity>().is_ok())),
        ("quantity", [Value::Text(text)]) => match text.parse() {
            Ok(quantity) => Ok(Value::Quantity(quantity)),
            Err(_) => error(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
        },
        (_, [Value::Quantity(quantity), rest @ ..]) => return on_quantity(name, *quantity, rest),
        ("isSemver", [Value::Text(text), ..]) => Ok(Value::Bool(
            Version::parse(text, is_lenient(values)).is_some(),
        )),
        ("semver", [Value::Text(text), ..]) => match Version::parse(text, is_lenient(values)) {
            Some(version) => Ok(Value::Version(Arc::new(version))),
            None => error("No Major.Minor.Patch elements found"),
        },
        (_, [Value::Version(version), rest @ ..]) => return on_version(name, version, rest),
        ("format.named", [Value::Text(format)]) => Ok(if FORMATS.contains(&&**format) {
            Value::some(Value::Format(format.clone()))
        } else {
            Value::Optional(None)
        }),
        ("validate", [Value::Format(format), Value::Text(text)]) => Ok(validate(format, text)),
        (name, []) => {
            let format = name.strip_prefix("format.")?;
            Ok(Value::Format(Arc::from(format)))
        }
        _ => return None,
    })
}

fn ordered(name: &str, order: Ordering) -> Option<Outcome> {
    Some(Ok(match name {
        "isGreaterThan" => Value::Bool(order.is_gt()),
        "isLessThan" => Value::Bool(order.is_lt()),
        "compareTo" => Value::Int(order as i64),
        _ => return None,
    }))
}

fn on_quantity(name: &str, quantity: Quantity, rest: &[Value]) -> Option<Outcome> {
    Some(Ok(match (name, rest) {
        ("isInteger", []) => Value::Bool(quantity.is_integer()),
        ("asInteger", []) if quantity.is_integer() => Value::Int(quantity.value()),
        ("asInteger", []) => return Some(error("cannot convert value to integer")),
        ("asApproximateFloat", []) => Value::Double(quantity.as_f64()),
        ("sign", []) => Value::Int(if quantity.is_zero() {
            0
        } else if quantity.is_negative() {
            -1
        } else {
            1
        }),
        ("add", [Value::Quantity(other)]) => Value::Quantity(quantity + *other),
        ("sub", [Value::Quantity(other)]) => Value::Quantity(quantity - *other),
        ("add", [Value::Int(other)]) => Value::Quantity(quantity + whole(*other)?),
        ("sub", [Value::Int(other)]) => Value::Quantity(quantity - whole(*other)?),
        (_, [Value::Quantity(other)]) => return ordered(name, quantity.cmp(other)),
        _ => return None,
    }))
}

fn whole(number: i64) -> Option<Quantity> {
    number.to_string().parse().ok()
}

const FORMATS: &[&str] = &[
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// Faults of a text as an optional list: none if there are none.
fn validate(format: &str, text: &str) -> Value {
    // A prefix may end with what a name may not end with.
    let prefix = text
        .strip_suffix('-')
        .map_or(text.to_owned(), |text| format!("{text}-a"));
    let faults: Vec<String> = match format {
        "dns1123Label" => names::dns1123_label(text),
        "dns1123LabelPrefix" => names::dns1123_label(&prefix),
        "dns1123Subdomain" => names::dns1123_subdomain(text),
        "dns1123SubdomainPrefix" => names::dns1123_subdomain(&prefix),
        "dns1035Label" => names::dns1035_label(text),
        "dns1035LabelPrefix" => names::dns1035_label(&prefix),
        "qualifiedName" => names::label_key(text),
        "labelValue" => names::label_value(text),
        other if formats::fits(other, text) => Vec::new(),
        other => vec![format!("invalid {other}")],
    };
    if faults.is_empty() {
        Value::Optional(None)
    } else {
        Value::some(Value::list(faults.into_iter().map(Value::from).collect()))
    }
}

/// A semantic version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    before: Vec<String>,
}

fn is_lenient(values: &[Value]) -> bool {
    matches!(values, [_, Value::Bool(true)])
}

impl Version {
    fn parse(text: &str, lenient: bool) -> Option<Self> {
        let text = if lenient {
            text.trim().trim_start_matches('v')
        } else {
            text
        };
        let (text, build) = text.split_once('+').unwrap_or((text, "0"));
        let (core, before) = text.split_once('-').unwrap_or((text, ""));
        let mut parts: Vec<&str> = core.split('.').collect();
        while lenient && parts.len() < 3 {
            parts.push("0");
        }
        let number = |part: &&str| {
            let leads = part.len() > 1 && part.starts_with('0') && !lenient;
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            (digits && !leads).then(|| part.parse().ok()).flatten()
        };
        let numbers: Option<Vec<u64>> = parts.iter().map(number).collect();
        let word = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let has_before = text.contains('-');
        let fine = build.split('.').all(word) && (!has_before || before.split('.').all(word));
        Some(Self {
            numbers: numbers.filter(|_| fine)?.try_into().ok()?,
            before: if has_before {
                before.split('.').map(str::to_owned).collect()
            } else {
                Vec::new()
            },
        })
    }

    /// What comes before a release is smaller than it.
    fn order(&self, other: &Self) -> Ordering {
        let identifier = |a: &String, b: &String| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            _ => a.cmp(b),
        };
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.before.is_empty(), other.before.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                _ => self
                    .before
                    .iter()
                    .zip(&other.before)
                    .map(|(a, b)| identifier(a, b))
                    .find(|order| order.is_ne())
                    .unwrap_or_else(|| self.before.len().cmp(&other.before.len())),
            }
        })
    }
}

fn on_version(name: &str, version: &Version, rest: &[Value]) -> Option<Outcome> {
    let number = |index: usize| {
        let value = i64::try_from(version.numbers[index]).unwrap_or(i64::MAX);
        Some(Ok(Value::Int(value)))
    };
    match (name, rest) {
        ("major", []) => number(0),
        ("minor", []) => number(1),
        ("patch", []) => number(2),
        (_, [Value::Version(other)]) => ordered(name, version.order(other)),
        _ => None,
    }
}

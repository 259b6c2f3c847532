//! Checks values against a schema, with upstream's words.

use std::collections::HashSet;

use serde_json::Value;

use super::formats;
use crate::field::{ErrorKind, ErrorList, FieldError, Path};
use crate::meta::{at, boolean, get, items, text};

/// All faults of a custom object. Faults of what an update leaves as it was are let be.
pub fn check(schema: &Value, object: &Value, old: Option<&Value>) -> ErrorList {
    let mut checker = Checker::new("");
    checker.value(schema, object, &Place::default());
    let faults = checker.faults.into_iter();
    let changed = |fault: &Fault| match old {
        Some(old) => {
            let pointer = fault.pointer.as_str();
            old.pointer(pointer).is_none() || old.pointer(pointer) != object.pointer(pointer)
        }
        None => true,
    };
    ErrorList(faults.filter(changed).map(|fault| fault.error).collect())
}

/// The faults of a default, whose own path is empty.
pub fn check_default(schema: &Value, value: &Value, path: &Path<'_>) -> ErrorList {
    let mut checker = Checker::new(&path.to_string());
    checker.value(schema, value, &Place::default());
    ErrorList(
        checker
            .faults
            .into_iter()
            .map(|fault| fault.error)
            .collect(),
    )
}

struct Fault {
    /// Of the value that is at fault.
    pointer: String,
    error: FieldError,
}

#[derive(Clone, Default)]
struct Place {
    /// `spec.list[0].x`
    name: String,
    pointer: String,
}

impl Place {
    fn child(&self, key: &str) -> Self {
        let dot = if self.name.is_empty() { "" } else { "." };
        Self {
            name: format!("{}{dot}{key}", self.name),
            pointer: format!(
                "{}/{}",
                self.pointer,
                key.replace('~', "~0").replace('/', "~1")
            ),
        }
    }

    fn index(&self, index: usize) -> Self {
        Self {
            name: format!("{}[{index}]", self.name),
            pointer: format!("{}/{index}", self.pointer),
        }
    }
}

struct Checker {
    /// Put before every path.
    base: String,
    faults: Vec<Fault>,
}

/// JSON's name for what a value is.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_type(wanted: &str, value: &Value) -> bool {
    let found = type_of(value);
    found == wanted
        || (wanted == "number" && found == "integer")
        || (wanted == "integer"
            && value
                .as_f64()
                .is_some_and(|number| found == "number" && number.fract() == 0.0))
}

impl Checker {
    fn new(base: &str) -> Self {
        Self {
            base: base.to_owned(),
            faults: Vec::new(),
        }
    }

    fn add(
        &mut self,
        place: &Place,
        kind: ErrorKind,
        value: Option<Value>,
        detail: impl Into<String>,
    ) {
        let field = match (self.base.as_str(), place.name.as_str()) {
            ("", "") => "<nil>".to_owned(),
            ("", name) => name.to_owned(),
            (base, "") => base.to_owned(),
            (base, name) => format!("{base}.{name}"),
        };
        self.faults.push(Fault {
            pointer: place.pointer.clone(),
            error: FieldError {
                kind,
                field,
                value,
                detail: detail.into(),
            },
        });
    }

    fn invalid(&mut self, place: &Place, value: &Value, what: &str) {
        let detail = format!("{} in body {what}", place.name);
        self.add(place, ErrorKind::Invalid, Some(value.clone()), detail);
    }

    fn value(&mut self, schema: &Value, value: &Value, place: &Place) {
        if value.is_null() && boolean(schema, &["nullable"]) {
            return;
        }
        if !self.has_right_type(schema, value, place) {
            return;
        }
        self.enumeration(schema, value, place);
        match value {
            Value::String(string) => self.string(schema, string, value, place),
            Value::Number(number) => {
                self.number(schema, number.as_f64().unwrap_or(0.0), value, place)
            }
            Value::Array(list) => self.list(schema, list, value, place),
            Value::Object(map) => self.object(schema, map, value, place),
            _ => {}
        }
        self.combinations(schema, value, place);
    }

    fn has_right_type(&mut self, schema: &Value, value: &Value, place: &Place) -> bool {
        let (wanted, fits) = if boolean(schema, &["x-kubernetes-int-or-string"]) {
            (
                "integer,string",
                has_type("integer", value) || has_type("string", value),
            )
        } else {
            let wanted = text(schema, &["type"]);
            (wanted, wanted.is_empty() || has_type(wanted, value))
        };
        if fits {
            return true;
        }
        let found = type_of(value);
        let detail = format!("{} in body must be of type {wanted}: {found:?}", place.name);
        self.add(place, ErrorKind::TypeInvalid, Some(found.into()), detail);
        false
    }

    fn enumeration(&mut self, schema: &Value, value: &Value, place: &Place) {
        let allowed = items(schema, &["enum"]);
        if allowed.is_empty() || allowed.contains(value) {
            return;
        }
        let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
        let detail = format!("supported values: {}", list.join(", "));
        self.add(place, ErrorKind::NotSupported, Some(value.clone()), detail);
    }

    fn string(&mut self, schema: &Value, string: &str, value: &Value, place: &Place) {
        // The first of these is told, not all.
        let length = string.chars().count() as u64;
        let bound = |key: &str| get(schema, key).as_u64();
        let pattern = text(schema, &["pattern"]);
        if let Some(most) = bound("maxLength").filter(|most| length > *most) {
            let unit = if most == 1 { "byte" } else { "bytes" };
            let detail = format!("may not be more than {most} {unit}");
            self.add(place, ErrorKind::TooLong, None, detail);
        } else if let Some(least) = bound("minLength").filter(|least| length < *least) {
            self.invalid(
                place,
                value,
                &format!("should be at least {least} chars long"),
            );
        } else if !pattern.is_empty() && super::pattern::matches(pattern, string) == Some(false) {
            self.invalid(place, value, &format!("should match '{pattern}'"));
        }
        let format = text(schema, &["format"]);
        if !formats::fits(format, string) {
            let detail = format!(
                "{} in body must be of type {format}: {string:?}",
                place.name
            );
            self.add(place, ErrorKind::TypeInvalid, Some(value.clone()), detail);
        }
    }

    fn number(&mut self, schema: &Value, number: f64, value: &Value, place: &Place) {
        let bound = |key: &str| get(schema, key).as_f64();
        if let Some(most) = bound("maximum") {
            let exclusive = boolean(schema, &["exclusiveMaximum"]);
            if number > most || (exclusive && number >= most) {
                let or_equal = if exclusive { "" } else { " or equal to" };
                self.invalid(
                    place,
                    value,
                    &format!("should be less than{or_equal} {most}"),
                );
            }
        }
        if let Some(least) = bound("minimum") {
            let exclusive = boolean(schema, &["exclusiveMinimum"]);
            if number < least || (exclusive && number <= least) {
                let or_equal = if exclusive { "" } else { " or equal to" };
                self.invalid(
                    place,
                    value,
                    &format!("should be greater than{or_equal} {least}"),
                );
            }
        }
        if let Some(factor) = bound("multipleOf").filter(|factor| *factor != 0.0) {
            let quotient = number / factor;
            if (quotient - quotient.round()).abs() > 1e-9 {
                self.invalid(place, value, &format!("should be a multiple of {factor}"));
            }
        }
    }

    fn list(&mut self, schema: &Value, list: &[Value], value: &Value, place: &Place) {
        let length = list.len() as u64;
        self.at_most(get(schema, "maxItems"), length, place);
        if let Some(least) = get(schema, "minItems")
            .as_u64()
            .filter(|least| length < *least)
        {
            self.invalid(place, value, &format!("should have at least {least} items"));
        }
        for (index, item) in list.iter().enumerate() {
            self.value(get(schema, "items"), item, &place.index(index));
        }
        self.doubles(schema, list, place);
    }

    fn at_most(&mut self, limit: &Value, length: u64, place: &Place) {
        if let Some(most) = limit.as_u64().filter(|most| length > *most) {
            let unit = if most == 1 { "item" } else { "items" };
            let detail = format!("must have at most {most} {unit}");
            self.add(place, ErrorKind::TooMany, Some(length.into()), detail);
        }
    }

    /// Elements of sets, and keys of maps, are there once.
    fn doubles(&mut self, schema: &Value, list: &[Value], place: &Place) {
        let keys = items(schema, &["x-kubernetes-list-map-keys"]);
        let kind = text(schema, &["x-kubernetes-list-type"]);
        let key_of = |item: &Value| -> Value {
            if kind == "set" {
                return item.clone();
            }
            let names = keys.iter().filter_map(Value::as_str);
            let pairs = names.filter_map(|name| Some((name.to_owned(), item.get(name)?.clone())));
            Value::Object(pairs.collect())
        };
        if !matches!(kind, "set" | "map") {
            return;
        }
        let mut seen = HashSet::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            let key = key_of(item);
            // Members are written in their order, so that equal values are equal texts.
            if !seen.insert(key.to_string()) {
                self.add(&place.index(index), ErrorKind::Duplicate, Some(key), "");
            }
        }
    }

    fn object(
        &mut self,
        schema: &Value,
        map: &serde_json::Map<String, Value>,
        value: &Value,
        place: &Place,
    ) {
        let length = map.len() as u64;
        self.at_most(get(schema, "maxProperties"), length, place);
        if let Some(least) = get(schema, "minProperties")
            .as_u64()
            .filter(|least| length < *least)
        {
            self.invalid(
                place,
                value,
                &format!("should have at least {least} properties"),
            );
        }
        for name in items(schema, &["required"])
            .iter()
            .filter_map(Value::as_str)
        {
            if !map.contains_key(name) {
                let mut at = place.child(name);
                at.pointer.clone_from(&place.pointer);
                self.add(&at, ErrorKind::Required, None, "");
            }
        }
        let (properties, additional) = (
            get(schema, "properties"),
            get(schema, "additionalProperties"),
        );
        for (key, member) in map {
            if let Some(known) = properties.get(key.as_str()) {
                self.value(known, member, &place.child(key));
            } else if additional.is_object() {
                self.value(additional, member, &place.child(key));
            }
        }
    }

    fn fits(&self, schema: &Value, value: &Value) -> bool {
        let mut checker = Self::new("");
        checker.value(schema, value, &Place::default());
        checker.faults.is_empty()
    }

    fn combinations(&mut self, schema: &Value, value: &Value, place: &Place) {
        for part in items(schema, &["allOf"]) {
            self.value(part, value, place);
        }
        let count = |key: &str| {
            let list = items(schema, &[key]);
            (!list.is_empty()).then(|| list.iter().filter(|one| self.fits(one, value)).count())
        };
        let (any, one) = (count("anyOf"), count("oneOf"));
        let not = at(schema, &["not"]);
        let forbidden = not.is_object() && self.fits(not, value);
        let mut complain = |what: String| {
            let detail = format!("{:?} {what}", place.name);
            self.add(place, ErrorKind::Invalid, Some(shown(value)), detail);
        };
        if any == Some(0) {
            complain("must validate at least one schema (anyOf)".to_owned());
        }
        match one {
            Some(0) => complain(
                "must validate one and only one schema (oneOf). Found none valid".to_owned(),
            ),
            Some(number) if number > 1 => complain(format!(
                "must validate one and only one schema (oneOf). Found {number} valid alternatives"
            )),
            _ => {}
        }
        if forbidden {
            complain("must not validate the schema (not)".to_owned());
        }
    }
}

fn shown(value: &Value) -> Value {
    match value {
        Value::Object(_) | Value::Array(_) => Value::from(value.to_string()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["must"], "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 10},
            "name": {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
            "port": {"x-kubernetes-int-or-string": true},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "num": {"type": "number", "multipleOf": 0.5, "exclusiveMaximum": true, "maximum": 2},
            "or": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}}}})
    }

    fn faults(spec: Value) -> Vec<String> {
        let object = json!({"spec": spec});
        check(&schema(), &object, None)
            .into_iter()
            .map(|error| error.to_string())
            .collect()
    }

    #[test]
    fn words() {
        assert_eq!(
            faults(
                json!({"must": 1, "size": "3", "name": "A", "port": true, "set": ["x", "x"], "num": 2})
            ),
            [
                "spec.name: Invalid value: \"A\": spec.name in body should be at least 2 chars long",
                "spec.num: Invalid value: 2: spec.num in body should be less than 2",
                "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
                "spec.set[1]: Duplicate value: \"x\"",
                "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
            ]
        );
        assert_eq!(faults(json!({})), ["spec.must: Required value"]);
        assert_eq!(faults(json!({"must": 1, "or": {"a": 1, "b": 2}})).len(), 1);
    }

    #[test]
    fn long_sets_are_checked_in_one_pass() {
        let schema = json!({"type": "array", "x-kubernetes-list-type": "set"});
        let mut list: Vec<Value> = (0..200_000).map(Value::from).collect();
        list.push(json!(7));
        let found = check(&schema, &Value::from(list), None).0;
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn what_was_wrong_before_may_stay() {
        let old = json!({"spec": {"must": 1, "size": 11}});
        let mut new = old.clone();
        new["spec"]["name"] = json!("abc");
        assert!(check(&schema(), &new, Some(&old)).is_empty());
        new["spec"]["size"] = json!(12);
        assert_eq!(check(&schema(), &new, Some(&old)).len(), 1);
    }
}

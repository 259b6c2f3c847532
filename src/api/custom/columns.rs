//! Columns that a definition asks for: a path into the object, and how its value is shown.

use jiff::Timestamp;
use serde_json::Value;

use crate::meta::{get, integer, items, text};
use crate::table::human_duration;
use crate::time;

/// One column of `additionalPrinterColumns`.
#[derive(Debug, Clone, PartialEq)]
pub struct CustomColumn {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    path: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Member(String),
    /// Counted from the end if negative.
    Index(i64),
    All,
    /// Elements whose member has this value.
    Where(Vec<String>, String),
}

pub fn of_version(version: &Value) -> Vec<CustomColumn> {
    let columns = items(version, &["additionalPrinterColumns"]);
    columns
        .iter()
        .map(|column| CustomColumn {
            name: text(column, &["name"]).to_owned(),
            kind: text(column, &["type"]).to_owned(),
            format: text(column, &["format"]).to_owned(),
            description: text(column, &["description"]).to_owned(),
            priority: integer(column, &["priority"]).unwrap_or(0),
            path: parse(text(column, &["jsonPath"])),
        })
        .collect()
}

/// A simple JSON path: `.a.b[0].c[?(@.type=="Ready")].status`. What is beyond that finds nothing.
fn parse(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path.trim_start_matches('$');
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix('[') {
            let end = closing(tail);
            steps.extend(bracket(&tail[..end]));
            rest = tail.get(end + 1..).unwrap_or_default();
        } else {
            let tail = rest.strip_prefix('.').unwrap_or(rest);
            let (name, tail) = member(tail);
            if !name.is_empty() {
                steps.push(Step::Member(name));
            }
            rest = tail;
        }
    }
    steps
}

/// A name up to the next dot or bracket; a backslash takes the next character's meaning away.
fn member(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, character)| character)),
            '.' if at == 0 => {}
            '.' | '[' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

/// Where the bracket ends that was opened; quotes and inner brackets are skipped.
fn closing(text: &str) -> usize {
    let (mut depth, mut quote) = (0, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[' | '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, ']') if depth == 0 => return at,
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

fn bracket(inside: &str) -> Option<Step> {
    let inside = inside.trim();
    if inside == "*" {
        return Some(Step::All);
    }
    if let Ok(index) = inside.parse() {
        return Some(Step::Index(index));
    }
    if let Some(condition) = inside
        .strip_prefix("?(")
        .and_then(|text| text.strip_suffix(')'))
    {
        let (left, right) = condition.split_once("==")?;
        let path = left.trim().trim_start_matches('@').trim_start_matches('.');
        let path = path.split('.').map(|step| step.replace('\\', "")).collect();
        return Some(Step::Where(path, unquote(right.trim()).to_owned()));
    }
    Some(Step::Member(unquote(inside).to_owned()))
}

fn unquote(text: &str) -> &str {
    text.trim_matches(['\'', '"'])
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl CustomColumn {
    fn find<'v>(&self, object: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![object];
        for step in &self.path {
            found = found
                .into_iter()
                .flat_map(|value| follow(step, value))
                .collect();
        }
        found.into_iter().filter(|value| !value.is_null()).collect()
    }

    /// What the column shows of the object; null if there is nothing.
    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self.find(object);
        let Some(first) = found.first() else {
            return Value::Null;
        };
        match self.kind.as_str() {
            "integer" => match first {
                Value::Number(number) if number.is_f64() => number
                    .as_f64()
                    .map_or(Value::Null, |number| Value::from(number as i64)),
                Value::Number(_) => (*first).clone(),
                _ => Value::Null,
            },
            "number" if first.is_number() => (*first).clone(),
            "boolean" if first.is_boolean() => (*first).clone(),
            "date" => match first.as_str().and_then(time::parse) {
                Some(at) => human_duration(now.as_second() - at.as_second()).into(),
                None => "<invalid>".into(),
            },
            "string" => {
                let texts: Vec<String> = found.iter().map(|value| plain(value)).collect();
                texts.join(",").into()
            }
            _ => Value::Null,
        }
    }
}

fn follow<'v>(step: &Step, value: &'v Value) -> Vec<&'v Value> {
    match (step, value) {
        (Step::Member(name), Value::Object(map)) => map.get(name).into_iter().collect(),
        (Step::Index(index), Value::Array(list)) => {
            let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
            let index = if *index < 0 { length + index } else { *index };
            usize::try_from(index)
                .ok()
                .and_then(|index| list.get(index))
                .into_iter()
                .collect()
        }
        (Step::All, Value::Array(list)) => list.iter().collect(),
        (Step::All, Value::Object(map)) => map.values().collect(),
        (Step::Where(path, wanted), Value::Array(list)) => list
            .iter()
            .filter(|item| {
                let found = path.iter().fold(*item, |value, step| get(value, step));
                !found.is_null() && plain(found) == *wanted
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cell(kind: &str, path: &str, object: &Value) -> Value {
        let version =
            json!({"additionalPrinterColumns": [{"name": "X", "type": kind, "jsonPath": path}]});
        of_version(&version)[0].cell(object, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn paths() {
        let object = json!({"metadata": {"labels": {"a.b/c": "l"}}, "spec": {"n": 3, "list": [{"x": 1}, {"x": 2}]},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        assert_eq!(cell("integer", ".spec.n", &object), 3);
        assert_eq!(cell("string", ".spec.n", &object), "3");
        assert_eq!(
            cell(
                "string",
                ".status.conditions[?(@.type==\"Ready\")].status",
                &object
            ),
            "True"
        );
        assert_eq!(cell("string", ".spec.list[*].x", &object), "1,2");
        assert_eq!(cell("integer", ".spec.list[-1].x", &object), 2);
        assert_eq!(cell("string", ".metadata.labels.a\\.b/c", &object), "l");
        assert_eq!(cell("string", ".metadata.labels['a.b/c']", &object), "l");
        assert_eq!(cell("string", ".spec.none", &object), Value::Null);
    }
}

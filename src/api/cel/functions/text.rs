//! Strings.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::basic::shown;
use crate::cel::eval::{Outcome, error};
use crate::cel::value::{Key, Value};
use crate::custom::pattern;

pub(super) fn call(name: &str, values: &[Value]) -> Option<Outcome> {
    Some(match values {
        [Value::Text(text), rest @ ..] => return on_text(name, text, rest),
        [Value::List(items)] if name == "join" => return join(items, "").map(Ok),
        [Value::List(items), Value::Text(between)] if name == "join" => {
            return join(items, between).map(Ok);
        }
        [Value::Bytes(bytes)] if name == "base64.encode" => Ok(Value::from(STANDARD.encode(bytes))),
        _ => return None,
    })
}

fn join(items: &[Value], between: &str) -> Option<Value> {
    let texts: Option<Vec<&str>> = items
        .iter()
        .map(|item| match item {
            Value::Text(text) => Some(&**text),
            _ => None,
        })
        .collect();
    Some(Value::from(texts?.join(between)))
}

fn on_text(name: &str, text: &str, rest: &[Value]) -> Option<Outcome> {
    let truth = |value: bool| Ok(Value::Bool(value));
    Some(match (name, rest) {
        ("startsWith", [Value::Text(other)]) => truth(text.starts_with(&**other)),
        ("endsWith", [Value::Text(other)]) => truth(text.ends_with(&**other)),
        ("contains", [Value::Text(other)]) => truth(text.contains(&**other)),
        ("matches", [Value::Text(other)]) => match pattern::matches_called(other, text) {
            Some(found) => truth(found),
            None => error(format!("error parsing regexp: {other}")),
        },
        ("find", [Value::Text(other)]) => match pattern::find(other, text, 1) {
            Some(found) => Ok(Value::from(found.first().copied().unwrap_or_default())),
            None => error(format!("error parsing regexp: {other}")),
        },
        ("findAll", [Value::Text(other), limit @ ..]) => {
            match pattern::find(other, text, limit_of(limit)?) {
                Some(found) => Ok(Value::list(found.into_iter().map(Value::from).collect())),
                None => error(format!("error parsing regexp: {other}")),
            }
        }
        ("lowerAscii", []) => Ok(Value::from(text.to_ascii_lowercase())),
        ("upperAscii", []) => Ok(Value::from(text.to_ascii_uppercase())),
        ("trim", []) => Ok(Value::from(text.trim())),
        ("reverse", []) => Ok(Value::from(text.chars().rev().collect::<String>())),
        ("replace", [Value::Text(from), Value::Text(to), limit @ ..]) => {
            Ok(Value::from(text.replacen(&**from, to, limit_of(limit)?)))
        }
        ("split", [Value::Text(at), limit @ ..]) => Ok(split(text, at, limit_of(limit)?)),
        ("strings.quote", []) => Ok(Value::from(crate::field::go_quote(text))),
        ("base64.decode", []) => match STANDARD.decode(text) {
            Ok(bytes) => Ok(Value::Bytes(Arc::from(bytes))),
            Err(_) => error("illegal base64 data"),
        },
        ("format", [Value::List(arguments)]) => format(text, arguments),
        _ => return by_position(name, text, rest),
    })
}

/// A number of times; a negative one, or none, is no limit.
fn limit_of(rest: &[Value]) -> Option<usize> {
    match rest {
        [] => Some(usize::MAX),
        [Value::Int(limit)] => Some(usize::try_from(*limit).unwrap_or(usize::MAX)),
        _ => None,
    }
}

/// How heavy the result may become at most.
pub(super) fn most(name: &str, values: &[Value]) -> usize {
    let limit = |rest: &[Value]| limit_of(rest).unwrap_or(usize::MAX);
    match (name, values) {
        ("join", [Value::List(items), rest @ ..]) => {
            let between = match rest {
                [Value::Text(between)] => between.len(),
                _ => 0,
            };
            let texts = items.iter().map(|item| match item {
                Value::Text(text) => text.len(),
                _ => 0,
            });
            let texts: usize = texts.sum();
            texts.saturating_add(between.saturating_mul(items.len())) / 10
        }
        (
            "replace",
            [
                Value::Text(text),
                Value::Text(from),
                Value::Text(to),
                rest @ ..,
            ],
        ) => {
            let count = text.matches(&**from).take(limit(rest)).count();
            text.len().saturating_add(count.saturating_mul(to.len())) / 10
        }
        ("split", [Value::Text(text), Value::Text(at), rest @ ..]) => {
            // Between characters there is no limit.
            let limit = if at.is_empty() {
                usize::MAX
            } else {
                limit(rest)
            };
            let count = text.matches(&**at).take(limit).count();
            count.saturating_mul(2).saturating_add(text.len() / 10)
        }
        ("findAll", [Value::Text(text), Value::Text(_), rest @ ..]) => {
            let count = limit(rest).min(text.len().saturating_add(1));
            count.saturating_add(text.len() / 10)
        }
        ("format", [Value::Text(text), Value::List(arguments)]) => {
            let arguments = arguments.iter().map(longest);
            arguments.fold(text.len(), usize::saturating_add) / 10
        }
        _ => 0,
    }
}

/// No number is written with more letters, whatever the precision.
const NUMBER: usize = 450;

/// How long a value may become in a text.
fn longest(value: &Value) -> usize {
    let sum = |parts: &mut dyn Iterator<Item = usize>| {
        parts.fold(2, |sum: usize, part| sum.saturating_add(part + 4))
    };
    match value {
        Value::Text(text) => text.len().saturating_mul(2),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) => sum(&mut items.iter().map(longest)),
        Value::Map(map) => sum(&mut map.iter().map(|(key, value)| {
            let key = match key {
                Key::Text(text) => text.len(),
                _ => 40,
            };
            key.saturating_add(longest(value))
        })),
        Value::Double(_) => NUMBER,
        _ => 64,
    }
}

fn split(text: &str, at: &str, limit: usize) -> Value {
    let parts: Vec<Value> = if limit == 0 {
        Vec::new()
    } else if at.is_empty() {
        let characters = text.chars().map(|one| Value::from(one.to_string()));
        characters.collect()
    } else {
        text.splitn(limit, at).map(Value::from).collect()
    };
    Value::list(parts)
}

/// Where the character begins that is the n-th; the end of the text comes after the last one.
fn place(text: &str, nth: i64) -> Option<usize> {
    let nth = usize::try_from(nth).ok()?;
    let starts = text.char_indices().map(|(at, _)| at);
    starts.chain([text.len()]).nth(nth)
}

/// Positions count characters.
fn by_position(name: &str, text: &str, rest: &[Value]) -> Option<Outcome> {
    let out_of_range = |at: i64| error(format!("index out of range: {at}"));
    let count = |at: Option<usize>| found(at.map(|at| text[..at].chars().count()));
    Some(match (name, rest) {
        ("charAt", [Value::Int(at)]) => match place(text, *at) {
            Some(at) => Ok(Value::from(
                text[at..]
                    .chars()
                    .next()
                    .map_or(String::new(), String::from),
            )),
            None => out_of_range(*at),
        },
        ("substring", [Value::Int(from)]) => match place(text, *from) {
            Some(from) => Ok(Value::from(&text[from..])),
            None => out_of_range(*from),
        },
        ("substring", [Value::Int(from), Value::Int(to)]) => {
            match (place(text, *from), place(text, *to)) {
                (Some(from), Some(to)) if from <= to => Ok(Value::from(&text[from..to])),
                (None, _) => out_of_range(*from),
                (_, None) => out_of_range(*to),
                _ => error(format!("invalid substring range. start: {from}, end: {to}")),
            }
        }
        ("indexOf", [Value::Text(other), from @ ..]) => {
            let from = match from {
                [] => 0,
                [Value::Int(from)] => match place(text, *from) {
                    Some(from) => from,
                    None => return Some(out_of_range(*from)),
                },
                _ => return None,
            };
            Ok(count(text[from..].find(&**other).map(|at| from + at)))
        }
        ("lastIndexOf", [Value::Text(other), to @ ..]) => {
            let to = match to {
                [] => text.len(),
                [Value::Int(to)] => match place(text, *to) {
                    Some(to) => to,
                    None => return Some(out_of_range(*to)),
                },
                _ => return None,
            };
            // What begins there may end behind it.
            let end = to.saturating_add(other.len()).min(text.len());
            let end = text.floor_char_boundary(end);
            Ok(count(text[..end].rfind(&**other)))
        }
        _ => return None,
    })
}

fn found(at: Option<usize>) -> Value {
    Value::Int(at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}

/// `%s %d %f %e %x %X %o %b %%`, with a precision for the real ones.
fn format(text: &str, arguments: &[Value]) -> Outcome {
    let mut out = String::new();
    let mut arguments = arguments.iter();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut precision = None;
        if let Some(tail) = rest.strip_prefix('.') {
            let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
            precision = tail[..digits].parse::<usize>().ok();
            rest = &tail[digits..];
        }
        let Some(verb) = rest.chars().next() else {
            return error("could not parse formatting clause: unexpected end of string");
        };
        rest = &rest[verb.len_utf8()..];
        if verb == '%' {
            out.push('%');
            continue;
        }
        let Some(argument) = arguments.next() else {
            return error("index out of range while formatting");
        };
        match clause(verb, precision.map(|digits| digits.min(100)), argument) {
            Some(text) => out.push_str(&text),
            None => return error(format!("could not parse formatting clause: %{verb}")),
        }
    }
    out.push_str(rest);
    Ok(Value::from(out))
}

fn clause(verb: char, precision: Option<usize>, value: &Value) -> Option<String> {
    let digits = precision.unwrap_or(6);
    Some(match (verb, value) {
        ('s', value) => described(value),
        ('d', Value::Int(_) | Value::Uint(_)) => shown(value)?,
        ('f', Value::Double(value)) => format!("{value:.digits$}"),
        ('f', Value::Int(value)) => format!("{:.digits$}", *value as f64),
        ('e', Value::Double(value)) => format!("{value:.digits$e}"),
        ('x', Value::Int(value)) => format!("{value:x}"),
        ('X', Value::Int(value)) => format!("{value:X}"),
        ('o', Value::Int(value)) => format!("{value:o}"),
        ('b', Value::Int(value)) => format!("{value:b}"),
        ('b', Value::Bool(value)) => u8::from(*value).to_string(),
        ('x', Value::Text(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
        _ => return None,
    })
}

fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::List(items) => {
            let all: Vec<String> = items.iter().map(described).collect();
            format!("[{}]", all.join(", "))
        }
        Value::Map(map) => {
            let all: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{key}: {}", described(value)))
                .collect();
            format!("{{{}}}", all.join(", "))
        }
        Value::Type(name) => (*name).to_owned(),
        other => shown(other).unwrap_or_else(|| other.type_name().to_owned()),
    }
}

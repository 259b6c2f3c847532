//! Strings.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::basic::shown;
use crate::cel::eval::{Outcome, error};
use crate::cel::value::Value;
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
        ("matches", [Value::Text(other)]) => match pattern::matches(other, text) {
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
            replace(text, from, to, limit_of(limit)?)
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

/// The longest text that is made.
const LONGEST: usize = 10 << 20;

fn replace(text: &str, from: &str, to: &str, limit: usize) -> Outcome {
    let count = text.matches(from).take(limit).count();
    if count.saturating_mul(to.len()) > LONGEST {
        return error("the text is too long");
    }
    Ok(Value::from(text.replacen(from, to, limit)))
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

/// Positions count characters.
fn by_position(name: &str, text: &str, rest: &[Value]) -> Option<Outcome> {
    let characters: Vec<char> = text.chars().collect();
    let length = characters.len();
    let place = |at: i64| usize::try_from(at).ok().filter(|at| *at <= length);
    let out_of_range = |at: i64| error(format!("index out of range: {at}"));
    Some(match (name, rest) {
        ("charAt", [Value::Int(at)]) => match place(*at) {
            Some(at) => Ok(Value::from(
                characters.get(at).map_or(String::new(), char::to_string),
            )),
            None => out_of_range(*at),
        },
        ("substring", [Value::Int(from)]) => match place(*from) {
            Some(from) => Ok(Value::from(characters[from..].iter().collect::<String>())),
            None => out_of_range(*from),
        },
        ("substring", [Value::Int(from), Value::Int(to)]) => match (place(*from), place(*to)) {
            (Some(from), Some(to)) if from <= to => {
                Ok(Value::from(characters[from..to].iter().collect::<String>()))
            }
            (None, _) => out_of_range(*from),
            (_, None) => out_of_range(*to),
            _ => error(format!("invalid substring range. start: {from}, end: {to}")),
        },
        ("indexOf", [Value::Text(other), from @ ..]) => {
            let from = match from {
                [] => 0,
                [Value::Int(from)] => match place(*from) {
                    Some(from) => from,
                    None => return Some(out_of_range(*from)),
                },
                _ => return None,
            };
            let other: Vec<char> = other.chars().collect();
            Ok(found(
                (from..=length).find(|at| characters[*at..].starts_with(&other)),
            ))
        }
        ("lastIndexOf", [Value::Text(other), to @ ..]) => {
            let to = match to {
                [] => length,
                [Value::Int(to)] => match place(*to) {
                    Some(to) => to,
                    None => return Some(out_of_range(*to)),
                },
                _ => return None,
            };
            let other: Vec<char> = other.chars().collect();
            Ok(found(
                (0..=to)
                    .rev()
                    .find(|at| characters[*at..].starts_with(&other)),
            ))
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

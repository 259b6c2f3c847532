//! What the language itself brings: sizes, conversions, times, optional values.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cel::eval::{Outcome, error};
use crate::cel::value::Value;
use crate::time;

pub(super) fn call(name: &str, values: &[Value]) -> Option<Outcome> {
    Some(match (name, values) {
        ("size", [value]) => return size(value).map(|size| Ok(Value::Int(size))),
        ("type", [value]) => Ok(Value::Type(value.type_name())),
        ("dyn", [value]) => Ok(value.clone()),
        ("int", [value]) => return int(value),
        ("uint", [value]) => return uint(value),
        ("double", [value]) => return double(value),
        ("string", [value]) => return shown(value).map(|text| Ok(Value::from(text))),
        ("bytes", [Value::Text(text)]) => Ok(Value::Bytes(Arc::from(text.as_bytes()))),
        ("bytes" | "bool" | "duration" | "timestamp", [value]) if same(name, value) => {
            Ok(value.clone())
        }
        ("bool", [Value::Text(text)]) => match &**text {
            "true" | "TRUE" | "True" | "t" | "1" => Ok(Value::Bool(true)),
            "false" | "FALSE" | "False" | "f" | "0" => Ok(Value::Bool(false)),
            _ => error("type conversion error from 'string' to 'bool'"),
        },
        ("duration", [Value::Text(text)]) => match duration(text) {
            Some(nanos) => Ok(Value::Duration(nanos)),
            None => error("type conversion error from 'string' to 'google.protobuf.Duration'"),
        },
        ("timestamp", [Value::Text(text)]) => match time::parse(text) {
            Some(at) => Ok(Value::Time(at)),
            None => error("type conversion error from 'string' to 'google.protobuf.Timestamp'"),
        },
        ("timestamp", [Value::Int(seconds)]) => match Timestamp::from_second(*seconds) {
            Ok(at) => Ok(Value::Time(at)),
            Err(_) => error("timestamp overflow"),
        },
        ("optional.of", [value]) => Ok(Value::some(value.clone())),
        ("optional.ofNonZeroValue", [value]) => Ok(if is_zero(value) {
            Value::Optional(None)
        } else {
            Value::some(value.clone())
        }),
        ("optional.none", []) => Ok(Value::Optional(None)),
        ("hasValue", [Value::Optional(inner)]) => Ok(Value::Bool(inner.is_some())),
        ("value", [Value::Optional(inner)]) => match inner {
            Some(inner) => Ok((**inner).clone()),
            None => error("optional.none() dereference"),
        },
        (_, [Value::Duration(nanos)]) => return part_of_duration(name, *nanos),
        (_, [Value::Time(at)]) => return part_of_time(name, *at, "UTC"),
        (_, [Value::Time(at), Value::Text(zone)]) => return part_of_time(name, *at, zone),
        _ => return None,
    })
}

fn same(name: &str, value: &Value) -> bool {
    matches!(
        (name, value),
        ("bytes", Value::Bytes(_))
            | ("bool", Value::Bool(_))
            | ("duration", Value::Duration(_))
            | ("timestamp", Value::Time(_))
    )
}

fn size(value: &Value) -> Option<i64> {
    let size = match value {
        Value::Text(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) => items.len(),
        Value::Map(map) => map.len(),
        _ => return None,
    };
    i64::try_from(size).ok()
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        other => size(other) == Some(0),
    }
}

fn int(value: &Value) -> Option<Outcome> {
    let found = match value {
        Value::Int(value) => Some(*value),
        Value::Uint(value) => i64::try_from(*value).ok(),
        Value::Double(value) if value.abs() < 9.2e18 => Some(*value as i64),
        Value::Double(_) => None,
        Value::Text(text) => match text.parse() {
            Ok(value) => Some(value),
            Err(_) => return Some(error("type conversion error from 'string' to 'int'")),
        },
        Value::Time(at) => Some(at.as_second()),
        Value::Duration(nanos) => Some(*nanos),
        _ => return None,
    };
    Some(match found {
        Some(value) => Ok(Value::Int(value)),
        None => error("integer overflow"),
    })
}

fn uint(value: &Value) -> Option<Outcome> {
    let found = match value {
        Value::Int(value) => u64::try_from(*value).ok(),
        Value::Uint(value) => Some(*value),
        Value::Double(value) if (0.0..1.8e19).contains(value) => Some(*value as u64),
        Value::Double(_) => None,
        Value::Text(text) => match text.parse() {
            Ok(value) => Some(value),
            Err(_) => return Some(error("type conversion error from 'string' to 'uint'")),
        },
        _ => return None,
    };
    Some(match found {
        Some(value) => Ok(Value::Uint(value)),
        None => error("unsigned integer overflow"),
    })
}

fn double(value: &Value) -> Option<Outcome> {
    Some(match value {
        Value::Int(value) => Ok(Value::Double(*value as f64)),
        Value::Uint(value) => Ok(Value::Double(*value as f64)),
        Value::Double(value) => Ok(Value::Double(*value)),
        Value::Text(text) => match text.parse() {
            Ok(value) => Ok(Value::Double(value)),
            Err(_) => error("type conversion error from 'string' to 'double'"),
        },
        _ => return None,
    })
}

/// A scalar as `string()` writes it.
pub(super) fn shown(value: &Value) -> Option<String> {
    Some(match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => value.to_string(),
        Value::Text(text) => text.to_string(),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).ok()?,
        Value::Time(at) => at.to_string(),
        Value::Duration(nanos) => format!("{}s", *nanos as f64 / 1e9),
        Value::Ip(ip) => ip.to_string(),
        Value::Cidr(ip, bits) => format!("{ip}/{bits}"),
        Value::Quantity(quantity) => quantity.to_string(),
        _ => return None,
    })
}

/// `1h30m`, in nanoseconds; also the longer units that formats of schemas allow.
pub(crate) fn duration(text: &str) -> Option<i64> {
    let negative = text.starts_with('-');
    let mut rest = text.trim_start_matches(['-', '+']);
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0.0;
    let mut any = false;
    while !rest.is_empty() {
        let digits = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .count();
        let number: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let end = rest
            .find(|letter: char| letter.is_ascii_digit() || letter == '.')
            .unwrap_or(rest.len());
        total += number * unit(rest[..end].trim())?;
        rest = &rest[end..];
        any = true;
    }
    let total: f64 = if negative { -total } else { total };
    (any && total.abs() < 9.2e18).then_some(total as i64)
}

fn unit(name: &str) -> Option<f64> {
    const SECOND: f64 = 1e9;
    Some(match name {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => 60.0 * SECOND,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600.0 * SECOND,
        "d" | "day" | "days" => 86_400.0 * SECOND,
        "w" | "week" | "weeks" => 604_800.0 * SECOND,
        _ => return None,
    })
}

fn part_of_duration(name: &str, nanos: i64) -> Option<Outcome> {
    Some(Ok(Value::Int(match name {
        "getHours" => nanos / 3_600_000_000_000,
        "getMinutes" => nanos / 60_000_000_000,
        "getSeconds" => nanos / 1_000_000_000,
        "getMilliseconds" => nanos / 1_000_000 % 1_000,
        _ => return None,
    })))
}

fn part_of_time(name: &str, at: Timestamp, zone: &str) -> Option<Outcome> {
    if !name.starts_with("get") {
        return None;
    }
    let Ok(zone) = zone_named(zone) else {
        return Some(error("unknown time zone"));
    };
    let at = at.to_zoned(zone);
    Some(Ok(Value::Int(match name {
        "getFullYear" => at.year().into(),
        "getMonth" => i64::from(at.month()) - 1,
        "getDate" => at.day().into(),
        "getDayOfMonth" => i64::from(at.day()) - 1,
        "getDayOfWeek" => at.weekday().to_sunday_zero_offset().into(),
        "getDayOfYear" => i64::from(at.day_of_year()) - 1,
        "getHours" => at.hour().into(),
        "getMinutes" => at.minute().into(),
        "getSeconds" => at.second().into(),
        "getMilliseconds" => at.millisecond().into(),
        _ => return None,
    })))
}

/// A name of the database, or an offset such as `-08:00`.
fn zone_named(name: &str) -> Result<TimeZone, jiff::Error> {
    if let Some((hours, minutes)) = name.split_once(':')
        && let (Ok(hours), Ok(minutes)) = (hours.parse::<i32>(), minutes.parse::<i32>())
    {
        let minutes = if hours < 0 || name.starts_with('-') {
            -minutes
        } else {
            minutes
        };
        let seconds = hours
            .saturating_mul(3_600)
            .saturating_add(minutes.saturating_mul(60));
        return jiff::tz::Offset::from_seconds(seconds).map(TimeZone::fixed);
    }
    TimeZone::get(name)
}

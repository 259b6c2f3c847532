//! How long a request may take: what its client asks for (`?timeout=`), within our own bound.

use std::time::Duration;

use sampan_api::Status;

/// How long anything but watches and streams may take.
const LONGEST: Duration = Duration::from_secs(60);

/// The time for a request whose client wrote `asked`. Nothing, nothing positive and more than there is mean all there is.
pub fn of_request(asked: Option<&str>) -> Result<Duration, Status> {
    let asked = asked.unwrap_or_default();
    if asked.is_empty() {
        return Ok(LONGEST);
    }
    let nanos = parse(asked).map_err(|why| {
        Status::bad_request(format!(
            "invalid timeout specified in the request URL - {why}"
        ))
    })?;
    let asked = u64::try_from(nanos).map_or(Duration::ZERO, Duration::from_nanos);
    Ok(if asked.is_zero() {
        LONGEST
    } else {
        asked.min(LONGEST)
    })
}

/// Nanoseconds of a unit.
fn unit_of(name: &str) -> Option<f64> {
    Some(match name {
        "ns" => 1.0,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

/// Nanoseconds of a duration as Go writes it: `1h2m3.5s`, `-2s`, `0`.
fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quoted(text));
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned == "0" {
        return Ok(0);
    }
    if unsigned.is_empty() {
        return Err(invalid());
    }
    let (mut rest, mut sum) = (unsigned, 0.0);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, tail) = rest.split_at(end.unwrap_or(rest.len()));
        let is_number = number.bytes().any(|byte| byte.is_ascii_digit());
        if !is_number || number.matches('.').count() > 1 {
            return Err(invalid());
        }
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.');
        let (name, tail) = tail.split_at(end.unwrap_or(tail.len()));
        if name.is_empty() {
            return Err(format!("time: missing unit in duration {}", quoted(text)));
        }
        let unit = unit_of(name).ok_or_else(|| {
            let (name, text) = (quoted(name), quoted(text));
            format!("time: unknown unit {name} in duration {text}")
        })?;
        sum += number.parse::<f64>().map_err(|_| invalid())? * unit;
        rest = tail;
    }
    // More than 292 years are more than Go can say.
    if sum >= i64::MAX as f64 {
        return Err(invalid());
    }
    Ok(if text.starts_with('-') {
        -(sum as i64)
    } else {
        sum as i64
    })
}

/// As Go's parser quotes what it was given: bytes that are no printable ASCII in hexadecimal.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_clients_ask_for_is_kept_within_bounds() {
        for (asked, expected) in [
            (None, LONGEST),
            (Some(""), LONGEST),
            (Some("0"), LONGEST),
            (Some("0s"), LONGEST),
            (Some("-1s"), LONGEST),
            (Some("2h"), LONGEST),
            (Some("1000000h"), LONGEST),
            (Some("1s"), Duration::from_secs(1)),
            (Some("+1.5s"), Duration::from_millis(1500)),
            (Some("1s20ms"), Duration::from_millis(1020)),
            (Some(".5s"), Duration::from_millis(500)),
            (Some("3\u{b5}s"), Duration::from_micros(3)),
        ] {
            assert_eq!(of_request(asked).unwrap(), expected, "{asked:?}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_in_upstreams_words() {
        for (asked, why) in [
            ("abc", "time: invalid duration \"abc\""),
            ("-", "time: invalid duration \"-\""),
            (".s", "time: invalid duration \".s\""),
            ("1.2.3s", "time: invalid duration \"1.2.3s\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("1e9s", "time: unknown unit \"e\" in duration \"1e9s\""),
            ("10", "time: missing unit in duration \"10\""),
            ("1s1", "time: missing unit in duration \"1s1\""),
            ("10d", "time: unknown unit \"d\" in duration \"10d\""),
            ("\"", "time: invalid duration \"\\\"\""),
        ] {
            let refused = of_request(Some(asked)).unwrap_err();
            let expected = format!("invalid timeout specified in the request URL - {why}");
            assert_eq!((refused.code, refused.message), (400, expected));
        }
        let digits = format!("{}s", "9".repeat(10_000));
        assert!(of_request(Some(&digits)).is_err());
    }
}

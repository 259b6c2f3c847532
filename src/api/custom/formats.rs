//! The formats of strings that are checked.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;

use crate::{names, time};

/// All formats that are known for strings; others are warned of and ignored.
pub const STRING: &[&str] = &[
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "date-time",
    "k8s-short-name",
    "k8s-long-name",
];

/// Whether the text has the format; formats that are not checked fit everything.
pub fn fits(format: &str, text: &str) -> bool {
    match format {
        "byte" => base64::engine::general_purpose::STANDARD
            .decode(text)
            .is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "date-time" | "datetime" => time::parse(text).is_some(),
        "duration" => is_duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_network(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "uri" => text
            .split_once(':')
            .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()),
        "email" => text
            .split_once('@')
            .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()),
        "hostname" => names::dns1123_subdomain(&text.to_lowercase()).is_empty(),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        }
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "k8s-short-name" => names::dns1123_label(text).is_empty(),
        "k8s-long-name" => names::dns1123_subdomain(text).is_empty(),
        _ => true,
    }
}

fn is_network(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let most = match address.parse() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8)
        && parts
            .iter()
            .all(|part| part.len() == 2 && u8::from_str_radix(part, 16).is_ok())
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let digits: Vec<char> = text.chars().filter(|character| *character != '-').collect();
    digits.len() == 32
        && digits.iter().all(char::is_ascii_hexdigit)
        && version.is_none_or(|version| digits[12] == version)
}

/// Go's durations (`1h30m`, `-1.5s`), and the longer words that the format allows.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut any = false;
    while !rest.is_empty() {
        rest = rest.trim_start();
        let number = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .count();
        let (digits, tail) = rest.split_at(number);
        let tail = tail.trim_start();
        let letters: usize = tail
            .chars()
            .take_while(|c| c.is_alphabetic())
            .map(char::len_utf8)
            .sum();
        let (unit, tail) = tail.split_at(letters);
        let known = matches!(
            unit,
            "ns" | "us"
                | "µs"
                | "μs"
                | "ms"
                | "s"
                | "m"
                | "h"
                | "d"
                | "w"
                | "sec"
                | "secs"
                | "second"
                | "seconds"
                | "min"
                | "mins"
                | "minute"
                | "minutes"
                | "hr"
                | "hrs"
                | "hour"
                | "hours"
                | "day"
                | "days"
                | "wk"
                | "week"
                | "weeks"
                | "milli"
                | "millis"
                | "micro"
                | "micros"
                | "nano"
                | "nanos"
        );
        if digits.parse::<f64>().is_err() || !known {
            return false;
        }
        any = true;
        rest = tail;
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("byte", "YQ==", "!!!"),
            ("date", "2024-02-29", "2024-02-30"),
            ("date-time", "2024-02-29T00:00:00Z", "2024-02-29"),
            ("duration", "1h30m", "1x"),
            ("ipv4", "1.2.3.4", "1.2.3"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "00:11:22:33:44:55", "00:11"),
            (
                "uuid4",
                "123e4567-e89b-42d3-a456-426614174000",
                "123e4567-e89b-12d3-a456-426614174000",
            ),
        ] {
            assert!(fits(format, good) && !fits(format, bad), "{format}");
        }
    }
}

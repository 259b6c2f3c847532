//! Times as the API writes them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Reads RFC 3339, with or without a fraction and in any offset.
pub fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    // Stricter than the library: upper-case `T`, seconds, and an offset with a colon.
    let shaped = bytes.len() >= 20
        && bytes[4] == b'-'
        && bytes[10] == b'T'
        && bytes[13] == b':'
        && bytes[16] == b':'
        && (text.ends_with('Z') || bytes[bytes.len() - 3] == b':');
    if shaped { text.parse().ok() } else { None }
}

/// Reads the form of `metav1.MicroTime`, which has exactly six digits of a second's fraction.
pub fn parse_micro(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let fraction = bytes.get(20..26)?;
    let shaped = bytes[19] == b'.'
        && fraction.iter().all(u8::is_ascii_digit)
        && matches!(bytes.get(26), Some(b'Z' | b'+' | b'-'));
    if shaped { parse(text) } else { None }
}

/// `metav1.Time`: whole seconds, UTC.
pub fn format(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

/// `metav1.MicroTime`: microseconds, UTC.
pub fn format_micro(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn round_trips() {
        let at = parse("2024-02-29T10:00:00.123456+02:00").unwrap();
        assert_eq!(format(at), "2024-02-29T08:00:00Z");
        assert_eq!(format_micro(at), "2024-02-29T08:00:00.123456Z");
        assert_eq!(parse_micro("2024-02-29T10:00:00.123456+02:00"), Some(at));
        assert!(parse_micro("2024-02-29T10:00:00.1234567Z").is_none());
        assert!(parse_micro("2024-02-29T10:00:00Z").is_none());
        assert!(parse("2024-02-29").is_none());
        assert!(parse("2024-02-29 10:00:00Z").is_none());
    }
}

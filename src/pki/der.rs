//! The few DER encodings that certificates need.

use time::OffsetDateTime;

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
pub(crate) const UTF8_STRING: u8 = 0x0c;

pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 6);
    out.push(tag);
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let skip = bytes.iter().take_while(|byte| **byte == 0).count();
        out.push(0x80 | (bytes.len() - skip) as u8);
        out.extend_from_slice(&bytes[skip..]);
    }
    out.extend_from_slice(content);
    out
}

pub(crate) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

/// A non-negative integer from its big-endian bytes.
pub(crate) fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let skip = bytes.iter().take_while(|byte| **byte == 0).count();
    let mut content = Vec::with_capacity(bytes.len() + 1);
    if bytes.get(skip).is_none_or(|first| first & 0x80 != 0) {
        content.push(0);
    }
    content.extend_from_slice(&bytes[skip..]);
    tlv(0x02, &content)
}

pub(crate) fn boolean_true() -> Vec<u8> {
    vec![0x01, 0x01, 0xff]
}

pub(crate) fn octets(content: &[u8]) -> Vec<u8> {
    tlv(0x04, content)
}

pub(crate) fn bits(unused: u8, content: &[u8]) -> Vec<u8> {
    let mut inner = Vec::with_capacity(content.len() + 1);
    inner.push(unused);
    inner.extend_from_slice(content);
    tlv(0x03, &inner)
}

pub(crate) fn oid(arcs: &[u64]) -> Vec<u8> {
    let mut content = vec![(arcs[0] * 40 + arcs[1]) as u8];
    for arc in &arcs[2..] {
        let mut groups = vec![(arc & 0x7f) as u8];
        let mut rest = arc >> 7;
        while rest > 0 {
            groups.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        groups.reverse();
        content.extend_from_slice(&groups);
    }
    tlv(0x06, &content)
}

/// `[number]`, constructed (explicit tagging) or primitive (implicit tagging of a string).
pub(crate) fn context(number: u8, constructed: bool, content: &[u8]) -> Vec<u8> {
    tlv(0x80 | (u8::from(constructed) << 5) | number, content)
}

/// UTCTime up to 2049, GeneralizedTime from then on, as RFC 5280 demands.
pub(crate) fn time(at: OffsetDateTime) -> Vec<u8> {
    let at = at.to_offset(time::UtcOffset::UTC);
    let rest = format!(
        "{:02}{:02}{:02}{:02}{:02}Z",
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    );
    if (1950..2050).contains(&at.year()) {
        tlv(
            0x17,
            format!("{:02}{rest}", at.year().rem_euclid(100)).as_bytes(),
        )
    } else {
        tlv(0x18, format!("{:04}{rest}", at.year()).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_numbers() {
        assert_eq!(tlv(4, &[0; 127])[..2], [4, 127]);
        assert_eq!(tlv(4, &[0; 128])[..3], [4, 0x81, 128]);
        assert_eq!(tlv(4, &[0; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(unsigned(&[0, 0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0, 0]), [2, 1, 0]);
        assert_eq!(
            oid(&[1, 2, 840, 10045, 2, 1]),
            [6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1]
        );
    }
}

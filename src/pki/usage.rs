//! What a certificate may be used for, in the words of the CertificateSigningRequest API.

use crate::Error;
use crate::der;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// A bit of the key usage extension.
    Key(u8),
    /// An entry of the extended key usage extension.
    Extended(&'static [u64]),
}

impl Usage {
    pub const DIGITAL_SIGNATURE: Self = Self::Key(0);
    pub const KEY_ENCIPHERMENT: Self = Self::Key(2);
    pub const CERT_SIGN: Self = Self::Key(5);
    pub const CRL_SIGN: Self = Self::Key(6);
    pub const SERVER_AUTH: Self = Self::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 1]);
    pub const CLIENT_AUTH: Self = Self::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 2]);

    /// The usage that the API calls `name`.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, usage)| *usage)
            .ok_or_else(|| Error::UnknownUsage(name.to_owned()))
    }
}

const NAMES: &[(&str, Usage)] = &[
    ("signing", Usage::Key(0)),
    ("digital signature", Usage::Key(0)),
    ("content commitment", Usage::Key(1)),
    ("key encipherment", Usage::Key(2)),
    ("data encipherment", Usage::Key(3)),
    ("key agreement", Usage::Key(4)),
    ("cert sign", Usage::Key(5)),
    ("crl sign", Usage::Key(6)),
    ("encipher only", Usage::Key(7)),
    ("decipher only", Usage::Key(8)),
    ("any", Usage::Extended(&[2, 5, 29, 37, 0])),
    ("server auth", Usage::SERVER_AUTH),
    ("client auth", Usage::CLIENT_AUTH),
    (
        "code signing",
        Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 3]),
    ),
    (
        "email protection",
        Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ),
    ("s/mime", Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 4])),
    (
        "ipsec end system",
        Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 5]),
    ),
    (
        "ipsec tunnel",
        Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 6]),
    ),
    ("ipsec user", Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 7])),
    (
        "timestamping",
        Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 8]),
    ),
    (
        "ocsp signing",
        Usage::Extended(&[1, 3, 6, 1, 5, 5, 7, 3, 9]),
    ),
    (
        "microsoft sgc",
        Usage::Extended(&[1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
    ),
    (
        "netscape sgc",
        Usage::Extended(&[2, 16, 840, 1, 113_730, 4, 1]),
    ),
];

/// The BIT STRING of the key usage extension, `None` if no usage has a bit there.
pub(crate) fn key_usage(usages: &[Usage]) -> Option<Vec<u8>> {
    let mut flags = [0_u8; 2];
    let mut highest = None;
    for usage in usages {
        if let Usage::Key(bit) = usage {
            flags[usize::from(bit / 8)] |= 0x80 >> (bit % 8);
            highest = highest.max(Some(*bit));
        }
    }
    let highest = highest?;
    let length = usize::from(highest / 8) + 1;
    Some(der::bits(7 - highest % 8, &flags[..length]))
}

/// The SEQUENCE of the extended key usage extension, `None` if there is nothing in it.
pub(crate) fn extended_usage(usages: &[Usage]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    for (index, usage) in usages.iter().enumerate() {
        if let Usage::Extended(arcs) = usage
            && !usages[..index].contains(usage)
        {
            content.extend_from_slice(&der::oid(arcs));
        }
    }
    (!content.is_empty()).then(|| der::tlv(der::SEQUENCE, &content))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bits_are_trimmed() {
        let both = [Usage::DIGITAL_SIGNATURE, Usage::KEY_ENCIPHERMENT];
        assert_eq!(key_usage(&both).unwrap(), [3, 2, 5, 0xa0]);
        assert_eq!(key_usage(&[Usage::Key(8)]).unwrap(), [3, 3, 7, 0, 0x80]);
        assert_eq!(key_usage(&[Usage::SERVER_AUTH]), None);
        assert!(Usage::from_name("no such").is_err());
    }
}

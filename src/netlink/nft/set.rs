//! Sets and maps: what their keys are made of and what they hold.

use std::net::IpAddr;
use std::time::Duration;

use super::expr::Verdict;

/// A key or value's type: number and length are the kernel's and `nft`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyType {
    Ipv4,
    Ipv6,
    /// Protocol number (TCP 6, UDP 17, SCTP 132).
    Protocol,
    /// Port number.
    Port,
    Mark,
    /// Interface name.
    Interface,
    /// A number in host byte order, such as numgen's.
    Integer,
}

impl KeyType {
    /// (type number, length).
    pub(crate) fn row(self) -> (u32, u32) {
        match self {
            Self::Integer => (4, 4),
            Self::Ipv4 => (7, 4),
            Self::Ipv6 => (8, 16),
            Self::Protocol => (12, 1),
            Self::Port => (13, 2),
            Self::Mark => (19, 4),
            Self::Interface => (41, 16),
        }
    }

    pub fn address(is_ipv6: bool) -> Self {
        if is_ipv6 { Self::Ipv6 } else { Self::Ipv4 }
    }

    pub(crate) fn padded_len(self) -> u32 {
        self.row().1.next_multiple_of(4)
    }
}

/// Type number of a (concatenated) key: six bits a field.
pub(crate) fn type_number(fields: &[KeyType]) -> u32 {
    fields.iter().fold(0, |sum, field| sum << 6 | field.row().0)
}

/// A single field keeps its length; concatenated ones are padded to four bytes each.
pub(crate) fn total_len(fields: &[KeyType]) -> u32 {
    match fields {
        [single] => single.row().1,
        many => many.iter().map(|field| field.padded_len()).sum(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetData {
    Verdict,
    Value(Vec<KeyType>),
}

/// The definition of a named set or map (a map where `data` is given).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub key: Vec<KeyType>,
    pub data: Option<SetData>,
    /// Filled by rules (dynset) with elements that expire; its elements are no part of a ruleset.
    pub dynamic: bool,
    /// Default life of an element.
    pub timeout: Option<Duration>,
    /// Upper bound of elements.
    pub size: Option<u32>,
}

impl Set {
    pub fn new(key: impl Into<Vec<KeyType>>) -> Self {
        Self {
            key: key.into(),
            data: None,
            dynamic: false,
            timeout: None,
            size: None,
        }
    }

    #[must_use]
    pub fn mapping_to(mut self, data: SetData) -> Self {
        self.data = Some(data);
        self
    }

    #[must_use]
    pub fn dynamic(mut self, size: u32) -> Self {
        self.dynamic = true;
        self.size = Some(size);
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementData {
    Verdict(Verdict),
    Value(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    pub key: Vec<u8>,
    pub data: Option<ElementData>,
}

/// An element of a dynamic map as the kernel holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// Its whole life, and what is left of it.
    pub timeout: Duration,
    pub expires_in: Duration,
}

/// A constant set or map that belongs to the one rule that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnonymousSet {
    pub key: Vec<KeyType>,
    pub data: Option<SetData>,
    pub elements: Vec<Element>,
}

/// Builds a key or value field by field, each padded as in a concatenation.
#[derive(Debug, Clone, Default)]
pub struct Key(Vec<u8>);

impl Key {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.0.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => self.0.extend_from_slice(&v6.octets()),
        }
        self
    }

    #[must_use]
    pub fn protocol(mut self, number: u8) -> Self {
        self.0.extend_from_slice(&[number, 0, 0, 0]);
        self
    }

    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.0.extend_from_slice(&[high, low, 0, 0]);
        self
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn concatenations_number_and_pad_their_fields() {
        let fields = [KeyType::Ipv4, KeyType::Protocol, KeyType::Port];
        assert_eq!(type_number(&fields), (7 << 12) | (12 << 6) | 13);
        assert_eq!(total_len(&fields), 12);
        assert_eq!(total_len(&[KeyType::Port]), 2);
        let key = Key::new()
            .address(Ipv4Addr::new(10, 0, 0, 1).into())
            .protocol(6)
            .port(443)
            .bytes();
        assert_eq!(key, [10, 0, 0, 1, 6, 0, 0, 0, 1, 187, 0, 0]);
    }
}

//! Checksums against damage (not against forgery). Pure.
//!
//! Every row carries one over its content, and the meta table carries the exclusive or of those of
//! all rows. So a page that is old, torn or foreign is noticed: whatever opens is a state that
//! existed as a whole.

use crate::Revision;

/// A 64-bit checksum over pieces; where one piece ends and the next begins counts.
pub(super) struct Sum(u64);

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Sum {
    pub(super) fn new() -> Self {
        Self(FACTOR)
    }

    pub(super) fn number(mut self, number: u64) -> Self {
        let mixed = (self.0 ^ number).wrapping_mul(FACTOR);
        self.0 = mixed.rotate_left(29) ^ (mixed >> 32);
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self = self.number(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.number(u64::from_le_bytes(last))
            .number(bytes.len() as u64)
    }

    /// Never 0, so that absence can be told from presence.
    pub(super) fn finish(self) -> u64 {
        self.number(FACTOR).0 | 1
    }
}

pub(super) fn of_row(
    revision: Revision,
    key: &str,
    created: Revision,
    value: Option<&[u8]>,
) -> u64 {
    let sum = Sum::new()
        .number(revision)
        .number(created)
        .bytes(key.as_bytes());
    match value {
        Some(value) => sum.number(1).bytes(value),
        None => sum.number(0),
    }
    .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts() {
        let sums = [
            of_row(1, "/a", 1, Some(b"value")),
            of_row(2, "/a", 1, Some(b"value")),
            of_row(1, "/b", 1, Some(b"value")),
            of_row(1, "/a", 2, Some(b"value")),
            of_row(1, "/a", 1, Some(b"valuf")),
            of_row(1, "/a", 1, Some(b"value\0")),
            of_row(1, "/a", 1, Some(b"")),
            of_row(1, "/a", 1, None),
            of_row(1, "/av", 1, Some(b"alue")),
        ];
        for (at, sum) in sums.iter().enumerate() {
            assert!(!sums[..at].contains(sum), "{at}");
        }
    }

    #[test]
    fn single_bits_of_long_values_count() {
        let value = vec![0x5a; 100_000];
        let whole = of_row(1, "/a", 1, Some(&value));
        for at in (0..value.len()).step_by(997) {
            let mut damaged = value.clone();
            damaged[at] ^= 0x10;
            assert_ne!(whole, of_row(1, "/a", 1, Some(&damaged)), "{at}");
        }
    }
}

//! Tags, varints and lengths.

use super::Error;

/// A field's value as it stands on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Raw<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

impl<'a> Raw<'a> {
    pub(super) fn bytes(self, tag: u32) -> Result<&'a [u8], Error> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::WireType(tag)),
        }
    }

    pub(super) fn text(self, tag: u32) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes(tag)?).map_err(|_| Error::Text)
    }

    pub(super) fn varint(self, tag: u32) -> Result<u64, Error> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(Error::WireType(tag)),
        }
    }

    pub(super) fn double(self, tag: u32) -> Result<f64, Error> {
        match self {
            Self::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(Error::WireType(tag)),
        }
    }
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field, `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Raw<'a>)>, Error> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).map_err(|_| Error::Overflow)?;
        let value = match key & 7 {
            0 => Raw::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?;
                let bits = bytes
                    .iter()
                    .rev()
                    .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
                Raw::Fixed64(bits)
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Error::Overflow)?;
                Raw::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Raw::Fixed32
            }
            _ => return Err(Error::WireType(tag)),
        };
        Ok(Some((tag, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
            self.rest = rest;
            if shift == 63 && *byte > 1 {
                return Err(Error::Overflow);
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Error::Overflow)
    }
}

fn put_key(out: &mut Vec<u8>, tag: u32, wire_type: u32) {
    put_number(out, u64::from(tag << 3 | wire_type));
}

pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn put_varint(out: &mut Vec<u8>, tag: u32, number: u64) {
    put_key(out, tag, 0);
    put_number(out, number);
}

pub(super) fn put_double(out: &mut Vec<u8>, tag: u32, number: f64) {
    put_key(out, tag, 1);
    out.extend_from_slice(&number.to_bits().to_le_bytes());
}

pub(super) fn put_bytes(out: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    put_key(out, tag, 2);
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

//! Netlink messages and their attributes, written and read. Pure.

/// `nlmsghdr` is 16 bytes; everything is padded to 4.
pub const HEADER_LEN: usize = 16;
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = 0x3fff;

const fn align(len: usize) -> usize {
    (len + 3) & !3
}

/// Appends messages to one buffer. Lengths are filled in when a message or nest closes.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    buffer: Vec<u8>,
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.buffer
    }

    /// One whole message; `body` writes the family header and the attributes.
    pub fn message(&mut self, kind: u16, flags: u16, sequence: u32, body: impl FnOnce(&mut Self)) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&flags.to_ne_bytes());
        self.buffer.extend_from_slice(&sequence.to_ne_bytes());
        self.buffer.extend_from_slice(&[0; 4]);
        body(self);
        let length = (self.buffer.len() - start) as u32;
        self.buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Bytes as they are: fixed headers such as `ifinfomsg`.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.pad();
    }

    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = (4 + value.len()) as u16;
        self.buffer.extend_from_slice(&length.to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(value);
        self.pad();
    }

    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// Host byte order, as rtnetlink wants it.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Network byte order, as netfilter wants it.
    pub fn be16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn be32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn be64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// A string with its terminating zero.
    pub fn string(&mut self, kind: u16, value: &str) {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 2]);
        self.buffer
            .extend_from_slice(&(kind | NESTED).to_ne_bytes());
        body(self);
        let length = (self.buffer.len() - start) as u16;
        self.buffer[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.buffer.resize(align(self.buffer.len()), 0);
    }
}

/// One received message.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// What follows the netlink header: family header, then attributes.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes behind a family header of `header` bytes.
    pub fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes(self.payload.get(align(header)..).unwrap_or_default())
    }
}

/// The messages of one datagram. Stops at the first that is cut short.
#[derive(Debug, Clone, Copy)]
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let head = self.0.get(..HEADER_LEN)?;
        let length = read_u32(head, 0) as usize;
        let whole = self.0.get(..length).filter(|_| length >= HEADER_LEN)?;
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some(Message {
            kind: read_u16(whole, 4),
            flags: read_u16(whole, 6),
            sequence: read_u32(whole, 8),
            payload: &whole[HEADER_LEN..],
        })
    }
}

/// Attributes as (type without flags, value).
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    pub fn find(self, kind: u16) -> Option<&'a [u8]> {
        let mut all = self;
        all.find_map(|(k, value)| (k == kind).then_some(value))
    }

    pub fn nested(self, kind: u16) -> Attributes<'a> {
        Attributes(self.find(kind).unwrap_or_default())
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let head = self.0.get(..4)?;
        let length = read_u16(head, 0) as usize;
        let value = self.0.get(4..length)?;
        let kind = read_u16(head, 2) & TYPE_MASK;
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Host-order integer of an attribute; zero where it is too short.
pub fn u32_of(value: &[u8]) -> u32 {
    value
        .get(..4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_ne_bytes)
}

/// Network-order integer of an attribute; zero where it is too short.
pub fn be32_of(value: &[u8]) -> u32 {
    u32_of(value).to_be()
}

pub fn be16_of(value: &[u8]) -> u16 {
    value
        .get(..2)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u16::from_be_bytes)
}

pub fn be64_of(value: &[u8]) -> u64 {
    value
        .get(..8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_be_bytes)
}

/// A zero-terminated string attribute.
pub fn string_of(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new();
        writer.message(7, 5, 42, |w| {
            w.raw(&[1, 2, 3, 4]);
            w.string(1, "eth0");
            w.nest(2, |w| {
                w.u8(1, 9);
                w.be32(2, 0x0102_0304);
            });
        });
        writer.message(8, 0, 43, |w| w.raw(&[0; 4]));
        let messages: Vec<_> = Messages(writer.as_bytes()).collect();
        assert_eq!(messages.len(), 2);
        assert_eq!((messages[0].kind, messages[0].sequence), (7, 42));
        let attributes = messages[0].attributes(4);
        assert_eq!(string_of(attributes.find(1).unwrap()), "eth0");
        let inner = attributes.nested(2);
        assert_eq!(inner.find(1), Some(&[9u8][..]));
        assert_eq!(be32_of(inner.find(2).unwrap()), 0x0102_0304);
        assert_eq!(inner.find(3), None);
    }

    #[test]
    fn bytes_are_those_the_kernel_expects() {
        let mut writer = Writer::new();
        writer.message(0x10, 1, 2, |w| w.string(3, "ab"));
        let mut expected = vec![];
        expected.extend_from_slice(&24u32.to_ne_bytes());
        expected.extend_from_slice(&0x10u16.to_ne_bytes());
        expected.extend_from_slice(&1u16.to_ne_bytes());
        expected.extend_from_slice(&2u32.to_ne_bytes());
        expected.extend_from_slice(&[0; 4]);
        expected.extend_from_slice(&7u16.to_ne_bytes());
        expected.extend_from_slice(&3u16.to_ne_bytes());
        expected.extend_from_slice(b"ab\0\0");
        assert_eq!(writer.into_bytes(), expected);
    }

    #[test]
    fn a_cut_message_ends_the_iteration() {
        let mut writer = Writer::new();
        writer.message(7, 0, 1, |w| w.string(1, "long enough"));
        let bytes = writer.into_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(Messages(&bytes[..cut]).count(), 0);
        }
        assert_eq!(Attributes(&[200, 0, 1, 0]).count(), 0);
        assert_eq!(Attributes(&[2, 0, 1, 0]).count(), 0);
    }
}

//! As much of SPDY/3.1 as a client needs that opens some streams and hands their bytes on: what container runtimes
//! serve exec and attach by.
//!
//! Headers are sent in stored (not compressed) blocks, which every inflater takes, and those that arrive say nothing
//! that we need, so that no compression is done here. Runtimes do without flow control: TCP bounds what is on the way.

use std::io;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// A larger frame is an attack on our memory; what runtimes send is 32 KiB at most.
const MAX_FRAME: usize = 1024 * 1024;
/// Frames carry at most this much, so that a small stream beside gets its turn.
const CHUNK: usize = 64 * 1024;

const HEADER: usize = 8;
const CONTROL: u32 = 0x8000_0000;
const VERSION: u32 = 3;
const SYN_STREAM: u32 = 1;
const SYN_REPLY: u32 = 2;
const RST_STREAM: u32 = 3;
const PING: u32 = 6;
const GOAWAY: u32 = 7;
const FLAG_FIN: u8 = 1;

/// A ping of a server, which a client answers.
pub const QUESTION: [u8; 12] = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2];

/// What a server says.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    Data {
        stream: u32,
        content: Bytes,
        last: bool,
    },
    /// The server has taken this stream.
    Opened { stream: u32 },
    /// The server takes and sends no more on this stream.
    Reset { stream: u32 },
    /// To be sent back as it is.
    Ping { frame: Bytes },
    /// Nothing follows.
    GoAway,
    /// Of no interest.
    Other,
}

/// Writes frames; the headers of all streams of a connection are one compressed text, so there is one of these.
#[derive(Default)]
pub struct Encoder {
    streams: u32,
}

impl Encoder {
    /// Opens a stream; its number.
    pub fn open(&mut self, output: &mut BytesMut, headers: &[(&str, &str)]) -> u32 {
        let id = self.streams * 2 + 1;
        let text = header_text(headers);
        let mut block = BytesMut::with_capacity(text.len() + 16);
        if self.streams == 0 {
            // A text without a preset dictionary, in the window's usual size.
            block.put_slice(&[0x78, 0x01]);
        }
        self.streams += 1;
        for part in text.chunks(usize::from(u16::MAX)) {
            stored(&mut block, part);
        }
        // An empty block makes inflaters give out what they have.
        stored(&mut block, &[]);
        output.put_u32(CONTROL | VERSION << 16 | SYN_STREAM);
        output.put_u32(block.len() as u32 + 10);
        output.put_u32(id);
        // No stream that it belongs to, the highest priority.
        output.put_u32(0);
        output.put_u16(0);
        output.put_slice(&block);
        id
    }
}

fn stored(block: &mut BytesMut, content: &[u8]) {
    let length = content.len() as u16;
    block.put_u8(0);
    block.put_u16_le(length);
    block.put_u16_le(!length);
    block.put_slice(content);
}

fn header_text(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    text.put_u32(headers.len() as u32);
    for part in headers.iter().flat_map(|(name, value)| [name, value]) {
        text.put_u32(part.len() as u32);
        text.put_slice(part.as_bytes());
    }
    text
}

/// Data for a stream.
pub fn data(output: &mut BytesMut, stream: u32, content: &[u8]) {
    for part in content.chunks(CHUNK) {
        output.put_u32(stream);
        output.put_u32(part.len() as u32);
        output.put_slice(part);
    }
}

/// The end of what we send on a stream.
pub fn end(output: &mut BytesMut, stream: u32) {
    output.put_u32(stream);
    output.put_u32(u32::from(FLAG_FIN) << 24);
}

/// Reads frames. Waiting for one can be given up and begun again without a loss.
pub struct Reader<T> {
    inner: T,
    input: BytesMut,
}

impl<T: AsyncRead + Unpin> Reader<T> {
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            input: BytesMut::with_capacity(8192),
        }
    }

    pub fn into_inner(self) -> T {
        self.inner
    }

    /// The next frame; `None` at the end of the connection.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = parse(&mut self.input)? {
                return Ok(Some(frame));
            }
            if self.inner.read_buf(&mut self.input).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Counts the streams that are asked for or taken in one direction of a connection whose bytes pass by.
#[derive(Default)]
pub struct Tally {
    header: [u8; HEADER],
    have: usize,
    /// What is left of a frame's content.
    skip: usize,
    /// Streams that were asked for.
    pub asked: usize,
    /// Streams that were taken, or refused.
    pub answered: usize,
}

impl Tally {
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes.advance(skipped);
            let more = (HEADER - self.have).min(bytes.len());
            self.header[self.have..self.have + more].copy_from_slice(&bytes[..more]);
            self.have += more;
            bytes.advance(more);
            if self.have == HEADER {
                self.count();
            }
        }
    }

    /// Whether all that passed was whole frames.
    pub fn is_between_frames(&self) -> bool {
        self.have == 0 && self.skip == 0
    }

    fn count(&mut self) {
        let mut header = &self.header[..];
        let (first, second) = (header.get_u32(), header.get_u32());
        self.have = 0;
        self.skip = (second & 0x00ff_ffff) as usize;
        match first & 0xffff {
            _ if first & CONTROL == 0 => {}
            SYN_STREAM => self.asked += 1,
            SYN_REPLY | RST_STREAM => self.answered += 1,
            _ => {}
        }
    }
}

fn parse(input: &mut BytesMut) -> io::Result<Option<Frame>> {
    let Some(mut header) = input.get(..HEADER) else {
        return Ok(None);
    };
    let (first, second) = (header.get_u32(), header.get_u32());
    let length = (second & 0x00ff_ffff) as usize;
    if length > MAX_FRAME {
        let problem = "a frame of SPDY is too large";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    if input.len() < HEADER + length {
        return Ok(None);
    }
    let mut frame = input.split_to(HEADER + length).freeze();
    if first & CONTROL == 0 {
        return Ok(Some(Frame::Data {
            stream: first,
            content: frame.split_off(HEADER),
            last: (second >> 24) as u8 & FLAG_FIN != 0,
        }));
    }
    let mut content = &frame[HEADER..];
    Ok(Some(match first & 0xffff {
        SYN_REPLY if content.len() >= 4 => Frame::Opened {
            stream: content.get_u32() & !CONTROL,
        },
        RST_STREAM if content.len() >= 4 => Frame::Reset {
            stream: content.get_u32() & !CONTROL,
        },
        PING => Frame::Ping { frame },
        GOAWAY => Frame::GoAway,
        _ => Frame::Other,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    #[test]
    fn streams_have_odd_numbers_and_headers_an_inflater_reads() {
        let mut encoder = Encoder::default();
        let mut output = BytesMut::new();
        assert_eq!(encoder.open(&mut output, &[("streamtype", "stdin")]), 1);
        let first = output.split();
        let text = b"\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05stdin";
        assert_eq!(first[..4], [0x80, 3, 0, 1]);
        assert_eq!(first[4..8], (first.len() as u32 - 8).to_be_bytes());
        assert_eq!(first[8..18], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        let length = text.len() as u16;
        let mut expected = vec![0x78, 0x01, 0];
        expected.extend(length.to_le_bytes());
        expected.extend((!length).to_le_bytes());
        expected.extend(text);
        expected.extend([0, 0, 0, 0xff, 0xff]);
        assert_eq!(first[18..], expected);
        // The compressed text goes on: no second header.
        assert_eq!(encoder.open(&mut output, &[]), 3);
        assert_eq!(output[18], 0);
    }

    #[tokio::test]
    async fn frames_are_read_however_they_are_cut() {
        let mut sent = BytesMut::new();
        data(&mut sent, 3, b"hello");
        end(&mut sent, 3);
        sent.put_slice(&[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1]);
        sent.put_slice(&[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 5]);
        let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2];
        sent.put_slice(&ping);
        sent.put_slice(&[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        let (mut server, client) = duplex(3);
        let writing = tokio::spawn(async move { server.write_all(&sent).await.unwrap() });
        let mut reader = Reader::new(client);
        let mut frames = Vec::new();
        while let Some(frame) = reader.next().await.unwrap() {
            frames.push(frame);
        }
        writing.await.unwrap();
        let data = |content: &'static [u8], last| Frame::Data {
            stream: 3,
            content: Bytes::from_static(content),
            last,
        };
        let expected = [
            data(b"hello", false),
            data(b"", true),
            Frame::Opened { stream: 1 },
            Frame::Reset { stream: 5 },
            Frame::Ping {
                frame: Bytes::copy_from_slice(&ping),
            },
            Frame::GoAway,
        ];
        assert_eq!(frames, expected);
    }

    #[test]
    fn streams_are_counted_however_their_frames_are_cut() {
        let mut sent = BytesMut::new();
        let mut encoder = Encoder::default();
        encoder.open(&mut sent, &[("streamtype", "error")]);
        data(&mut sent, 1, &[0x80, 3, 0, 1, 0, 0, 0, 0]);
        encoder.open(&mut sent, &[]);
        sent.put_slice(&[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1]);
        end(&mut sent, 1);
        for size in [1, 3, 8, 1000] {
            let mut tally = Tally::default();
            for part in sent.chunks(size) {
                tally.pass(part);
            }
            assert_eq!((tally.asked, tally.answered), (2, 1), "parts of {size}");
        }
    }

    #[test]
    fn huge_frames_are_refused_before_they_are_read() {
        let mut input = BytesMut::from(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff][..]);
        assert!(parse(&mut input).is_err());
    }
}

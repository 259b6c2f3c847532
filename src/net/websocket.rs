//! As much of WebSocket (RFC 6455) as a byte tunnel needs: the server's handshake, and binary frames
//! seen as a byte stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, BytesMut};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use ring::digest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::io::{Body, empty};

const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Frames of relays are small; a larger one is an attack on our memory.
const MAX_FRAME: u64 = 1024 * 1024;

/// Answers to pings that may wait to be written.
const MAX_ANSWERS: usize = 16 * 1024;

pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// Normal closure.
pub(crate) const NORMAL: u16 = 1000;
/// The other side broke the rules.
const PROTOCOL_ERROR: u16 = 1002;
/// A frame is larger than we take.
const TOO_BIG: u16 = 1009;

/// What a client did that the standard forbids, and the code to close with.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Violation {
    code: u16,
    what: &'static str,
}

/// The code to close with if this was a client's violation.
pub fn violation(error: &io::Error) -> Option<u16> {
    let inner = error.get_ref()?.downcast_ref::<Violation>()?;
    Some(inner.code)
}

/// Whether the request asks for an upgrade to WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// The subprotocols that the client offers, in its order.
pub fn offered_protocols(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The answer that accepts the upgrade; `None` if the request has no key.
pub fn accept(headers: &HeaderMap, protocol: Option<&str>) -> Option<Response<Body>> {
    let key = headers.get(SEC_WEBSOCKET_KEY)?.to_str().ok()?;
    let proof = digest::digest(
        &digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{key}{GUID}").as_bytes(),
    );
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let fields = response.headers_mut();
    fields.insert(UPGRADE, HeaderValue::from_static("websocket"));
    fields.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let proof = HeaderValue::from_str(&STANDARD.encode(proof)).ok()?;
    fields.insert(SEC_WEBSOCKET_ACCEPT, proof);
    if let Some(protocol) = protocol {
        let value = HeaderValue::from_str(protocol).ok()?;
        fields.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
    Some(response)
}

/// The server's end of a WebSocket, read and written as plain bytes: what arrives in data frames is
/// read, each write becomes one binary frame.
pub struct ByteTunnel<T> {
    inner: T,
    /// What was read and not yet understood.
    input: BytesMut,
    /// What is left of the frame being read, and how it is masked.
    frame: Option<Payload>,
    /// Encoded frames that are not yet written.
    output: BytesMut,
    ended: bool,
    close_sent: bool,
    /// A message in parts has begun and not ended.
    in_parts: bool,
}

/// What follows a frame's header.
pub(crate) struct Payload {
    pub(crate) remaining: u64,
    pub(crate) mask: [u8; 4],
    position: usize,
    is_data: bool,
    /// Ends its message.
    pub(crate) last: bool,
    pub(crate) opcode: u8,
    /// Content of control frames (at most 125 bytes).
    control: Vec<u8>,
}

impl<T> ByteTunnel<T> {
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            input: BytesMut::with_capacity(4096),
            frame: None,
            output: BytesMut::new(),
            ended: false,
            close_sent: false,
            in_parts: false,
        }
    }

    /// The next frame begins, if all of its header is there.
    fn begin_frame(&mut self) -> io::Result<bool> {
        let Some((length, payload)) = parse_header(&self.input)? else {
            return Ok(false);
        };
        if payload.is_data {
            check_order(payload.opcode, self.in_parts)?;
            self.in_parts = !payload.last;
        }
        self.input.advance(length);
        self.frame = Some(payload);
        Ok(true)
    }

    /// Says goodbye, once; nothing is said or heard after it.
    fn end(&mut self, code: u16) {
        self.ended = true;
        if !self.close_sent {
            self.close_sent = true;
            encode(&mut self.output, CLOSE, &code.to_be_bytes());
        }
    }

    /// Takes payload out of `input`; true if `buf` got some or the stream has ended.
    fn decode(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<bool> {
        loop {
            if self.frame.is_none() && !self.begin_frame()? {
                return Ok(false);
            }
            let Some(frame) = &mut self.frame else {
                return Ok(false);
            };
            let room = if frame.is_data {
                buf.remaining()
            } else {
                usize::MAX
            };
            let available = (self.input.len() as u64).min(frame.remaining);
            let take = usize::try_from(available).unwrap_or(usize::MAX).min(room);
            if take == 0 && frame.remaining > 0 {
                return Ok(false);
            }
            let mut chunk = self.input.split_to(take);
            for byte in chunk.iter_mut() {
                *byte ^= frame.mask[frame.position % 4];
                frame.position += 1;
            }
            frame.remaining -= take as u64;
            let (is_data, finished) = (frame.is_data, frame.remaining == 0);
            if is_data {
                buf.put_slice(&chunk);
            } else {
                frame.control.extend_from_slice(&chunk);
            }
            if finished && let Some(frame) = self.frame.take() {
                self.finish(&frame)?;
            }
            if self.ended || (is_data && take > 0) {
                return Ok(true);
            }
        }
    }

    /// Reacts to control frames.
    fn finish(&mut self, frame: &Payload) -> io::Result<()> {
        match frame.opcode {
            CLOSE => self.end(close_code(&frame.control)?),
            // Who does not read its answers need not get all of them.
            PING if self.output.len() < MAX_ANSWERS => {
                encode(&mut self.output, PONG, &frame.control);
            }
            _ => {}
        }
        Ok(())
    }
}

/// What a client's goodbye is answered with.
pub(crate) fn close_code(content: &[u8]) -> io::Result<u16> {
    let code = match content {
        [] => return Ok(NORMAL),
        [high, low, ..] => u16::from_be_bytes([*high, *low]),
        [_] => return Err(invalid("half a code closes the connection")),
    };
    match code {
        1000..=1003 | 1007..=1014 | 3000..=4999 => Ok(code),
        _ => Err(invalid("a code closes the connection that none may send")),
    }
}

/// Parts follow a beginning, and a beginning follows an end.
pub(crate) fn check_order(opcode: u8, in_parts: bool) -> io::Result<()> {
    if (opcode == CONTINUATION) == in_parts {
        Ok(())
    } else {
        Err(invalid("a part of a message is out of place"))
    }
}

/// The header's length and what follows it; `None` if it is not complete.
pub(crate) fn parse_header(input: &[u8]) -> io::Result<Option<(usize, Payload)>> {
    let &[first, second, ..] = input else {
        return Ok(None);
    };
    let opcode = first & 0x0f;
    let last = first & 0x80 != 0;
    let is_data = matches!(opcode, CONTINUATION | TEXT | BINARY);
    if first & 0x70 != 0 {
        return Err(invalid("a frame uses an extension that was not agreed on"));
    }
    if !is_data && !matches!(opcode, CLOSE | PING | PONG) {
        return Err(invalid("a frame is of no known kind"));
    }
    if second & 0x80 == 0 {
        return Err(invalid("a client's frame is not masked"));
    }
    if !is_data && (!last || second & 0x7f > 125) {
        return Err(invalid("a control frame is in parts or too large"));
    }
    let extra = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let Some(mask) = input.get(2 + extra..6 + extra) else {
        return Ok(None);
    };
    let remaining = match extra {
        0 => u64::from(second & 0x7f),
        _ => input[2..2 + extra]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)),
    };
    if remaining > MAX_FRAME {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            Violation {
                code: TOO_BIG,
                what: "a frame is too large",
            },
        ));
    }
    let payload = Payload {
        remaining,
        mask: [mask[0], mask[1], mask[2], mask[3]],
        position: 0,
        is_data,
        last,
        opcode,
        control: Vec::new(),
    };
    Ok(Some((6 + extra, payload)))
}

pub(crate) fn encode(output: &mut BytesMut, opcode: u8, content: &[u8]) {
    output.extend_from_slice(&[0x80 | opcode]);
    match content.len() {
        length @ 0..=125 => output.extend_from_slice(&[length as u8]),
        length @ 126..=0xffff => {
            output.extend_from_slice(&[126]);
            output.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            output.extend_from_slice(&[127]);
            output.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    output.extend_from_slice(content);
}

pub(crate) fn invalid(what: &'static str) -> io::Error {
    let code = PROTOCOL_ERROR;
    io::Error::new(io::ErrorKind::InvalidData, Violation { code, what })
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for ByteTunnel<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let done = this.ended || this.decode_or_end(buf)?;
            // A tunnel is one task's, so that whoever waits to write is woken by this as well.
            if let Poll::Ready(Err(error)) = this.poll_drain(cx) {
                return Poll::Ready(Err(error));
            }
            if done {
                return Poll::Ready(Ok(()));
            }
            let mut space = [0_u8; 8192];
            let mut chunk = ReadBuf::new(&mut space);
            match Pin::new(&mut this.inner).poll_read(cx, &mut chunk) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => result?,
            }
            if chunk.filled().is_empty() {
                this.ended = true;
            }
            this.input.extend_from_slice(chunk.filled());
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> ByteTunnel<T> {
    /// A client that breaks the rules is told so, and is not listened to any more.
    fn decode_or_end(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<bool> {
        match self.decode(buf) {
            Err(error) => match violation(&error) {
                Some(code) => {
                    tracing::debug!(%error, "a WebSocket client broke the rules");
                    self.end(code);
                    Ok(true)
                }
                None => Err(error),
            },
            decoded => decoded,
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            match Pin::new(&mut self.inner).poll_write(cx, &self.output) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(written) => self.output.advance(written?),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ByteTunnel<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.poll_drain(cx) {
            Poll::Ready(Ok(())) => {}
            other => return other.map_ok(|()| 0),
        }
        if self.close_sent {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        encode(&mut self.output, BINARY, buf);
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(buf.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_drain(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.inner).poll_flush(cx),
            other => other,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.close_sent {
            self.close_sent = true;
            encode(&mut self.output, CLOSE, &NORMAL.to_be_bytes());
        }
        match self.poll_drain(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.inner).poll_shutdown(cx),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    fn masked(opcode: u8, content: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![0x80 | opcode, 0x80 | content.len() as u8];
        frame.extend_from_slice(&mask);
        frame.extend(content.iter().zip(mask.iter().cycle()).map(|(a, b)| a ^ b));
        frame
    }

    #[tokio::test]
    async fn frames_become_bytes() {
        let (mut client, server) = duplex(4096);
        let mut tunnel = ByteTunnel::new(server);
        client.write_all(&masked(BINARY, b"hello ")).await.unwrap();
        client.write_all(&masked(PING, b"p")).await.unwrap();
        client.write_all(&masked(BINARY, b"")).await.unwrap();
        client.write_all(&masked(BINARY, b"world")).await.unwrap();
        let mut text = [0; 11];
        tunnel.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"hello world");
        tunnel.write_all(b"answer").await.unwrap();
        tunnel.shutdown().await.unwrap();
        drop(tunnel);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer[..3], [0x8a, 1, b'p']);
        assert_eq!(answer[3..11], *b"\x82\x06answer");
        assert_eq!(answer[11..], [0x88, 2, 3, 232]);
    }

    #[tokio::test]
    async fn pings_are_answered_while_nothing_is_written() {
        let (mut client, server) = duplex(4096);
        let mut tunnel = ByteTunnel::new(server);
        client.write_all(&masked(PING, b"p")).await.unwrap();
        client.write_all(&masked(BINARY, b"x")).await.unwrap();
        assert_eq!(tunnel.read_u8().await.unwrap(), b'x');
        let mut answer = [0; 3];
        let answered = client.read_exact(&mut answer);
        let in_time = std::time::Duration::from_secs(5);
        tokio::time::timeout(in_time, answered)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(answer, [0x8a, 1, b'p']);
    }

    #[tokio::test]
    async fn answers_to_pings_do_not_fill_the_memory() {
        // The client sends pings and reads nothing.
        let (mut client, server) = duplex(1024);
        let mut tunnel = ByteTunnel::new(server);
        let ping = masked(PING, &[0; 125]);
        let flood = async {
            for _ in 0..10_000 {
                client.write_all(&ping).await.unwrap();
            }
            client.write_all(&masked(BINARY, b"x")).await.unwrap();
        };
        let (_, read) = tokio::join!(flood, tunnel.read_u8());
        assert_eq!(read.unwrap(), b'x');
        let waiting = tunnel.output.len();
        assert!(waiting < 2 * MAX_ANSWERS, "{waiting}");
    }

    /// What the tunnel understood of what a client said, and what it answered by itself.
    async fn conversation(said: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut client, server) = duplex(4096);
        client.write_all(said).await.unwrap();
        let mut tunnel = ByteTunnel::new(server);
        let mut heard = Vec::new();
        let reading = tunnel.read_to_end(&mut heard);
        let in_time = std::time::Duration::from_secs(5);
        tokio::time::timeout(in_time, reading)
            .await
            .unwrap()
            .unwrap();
        assert!(
            tunnel.write_all(b"late").await.is_err(),
            "after the goodbye"
        );
        tunnel.shutdown().await.unwrap();
        drop(tunnel);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        (heard, answer)
    }

    fn with_first(first: u8, content: &[u8]) -> Vec<u8> {
        let mut frame = masked(0, content);
        frame[0] = first;
        frame
    }

    #[tokio::test]
    async fn who_breaks_the_rules_is_told_so() {
        let long = [0x89, 0xfe, 0, 126, 0, 0, 0, 0].to_vec();
        let huge = [0x82, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
        let rows = [
            ("no mask", vec![0x82, 1, 0], 1002),
            ("RSV1", with_first(0xc2, b"x"), 1002),
            ("RSV2", with_first(0xa2, b"x"), 1002),
            ("RSV3", with_first(0x92, b"x"), 1002),
            ("RSV of a ping", with_first(0xc9, b""), 1002),
            ("data of no known kind", with_first(0x83, b"x"), 1002),
            ("control of no known kind", with_first(0x8b, b"x"), 1002),
            ("a ping in parts", with_first(0x09, b"x"), 1002),
            ("a close in parts", with_first(0x08, b""), 1002),
            ("a long ping", long, 1002),
            ("a part without a beginning", with_first(0x80, b"x"), 1002),
            (
                "a beginning within a message",
                [with_first(0x02, b""), with_first(0x82, b"x")].concat(),
                1002,
            ),
            ("half a code", masked(CLOSE, &[3]), 1002),
            ("a code none may send", masked(CLOSE, &[3, 237]), 1002),
            ("huge", huge, 1009),
        ];
        for (what, said, code) in rows {
            let said = [masked(BINARY, b"before"), said, masked(BINARY, b"after")].concat();
            let (heard, answer) = conversation(&said).await;
            assert_eq!(heard, b"before", "{what}");
            let [high, low] = u16::to_be_bytes(code);
            assert_eq!(answer, [0x88, 2, high, low], "{what}");
        }
    }

    #[tokio::test]
    async fn a_goodbye_is_answered_and_half_a_message_before_it_counts() {
        for (goodbye, answered) in [
            (masked(CLOSE, b""), [3, 232]),
            (masked(CLOSE, &[3, 233, b'b', b'y', b'e']), [3, 233]),
        ] {
            let said = [with_first(0x02, b"half"), goodbye].concat();
            let (heard, answer) = conversation(&said).await;
            assert_eq!(heard, b"half");
            assert_eq!(answer, [0x88, 2, answered[0], answered[1]]);
        }
        // The connection ends within a frame.
        let (mut client, server) = duplex(64);
        client
            .write_all(&masked(BINARY, b"whole")[..9])
            .await
            .unwrap();
        drop(client);
        let mut heard = Vec::new();
        let mut tunnel = ByteTunnel::new(server);
        tunnel.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"who");
    }

    #[test]
    fn accept_key_of_the_standard() {
        let mut headers = HeaderMap::new();
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        headers.insert(SEC_WEBSOCKET_KEY, key);
        let response = accept(&headers, None).unwrap();
        let proof = &response.headers()[SEC_WEBSOCKET_ACCEPT];
        assert_eq!(proof, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}

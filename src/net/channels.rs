//! Several streams in one WebSocket: each message begins with the number of its channel
//! (`v5.channel.k8s.io`: channel 255 says that the channel named by the byte behind it has ended).

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::websocket::{
    BINARY, CLOSE, NORMAL, PING, PONG, check_order, close_code, encode, invalid, parse_header,
};

/// The protocol's name in a handshake.
pub const PROTOCOL: &str = "v5.channel.k8s.io";
/// Says that another channel has ended.
const END: u8 = 255;
/// Closes because of an error of the server.
const BROKEN: u16 = 1011;

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Data {
        channel: u8,
        content: Bytes,
    },
    End {
        channel: u8,
    },
    Ping(Bytes),
    /// Goodbye, to be answered with this code.
    Close(u16),
}

/// Reads messages of a client. Waiting for one can be given up and begun again without a loss.
pub struct Reader<T> {
    inner: T,
    input: BytesMut,
    /// The channel of the message whose parts arrive.
    channel: Option<u8>,
}

impl<T: AsyncRead + Unpin> Reader<T> {
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            input: BytesMut::with_capacity(8192),
            channel: None,
        }
    }

    pub fn into_inner(self) -> T {
        self.inner
    }

    /// The next message, or part of one; `None` at the end of the connection.
    pub async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            while let Some(frame) = take_frame(&mut self.input)? {
                if let Some(message) = self.understand(frame)? {
                    return Ok(Some(message));
                }
            }
            if self.inner.read_buf(&mut self.input).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn understand(&mut self, mut frame: Frame) -> io::Result<Option<Message>> {
        let channel = match frame.opcode {
            PING => return Ok(Some(Message::Ping(frame.content))),
            CLOSE => return Ok(Some(Message::Close(close_code(&frame.content)?))),
            PONG => return Ok(None),
            opcode => {
                check_order(opcode, self.channel.is_some())?;
                self.channel
            }
        };
        let channel = match channel {
            Some(channel) => channel,
            // The first part of a message may be empty, and says nothing then.
            None if frame.content.is_empty() && frame.last => return Ok(None),
            None if frame.content.is_empty() => return Err(invalid("a message has no channel")),
            None => frame.content.get_u8(),
        };
        self.channel = (!frame.last).then_some(channel);
        Ok(match (channel, frame.content.first()) {
            (END, Some(&ended)) => Some(Message::End { channel: ended }),
            (_, None) => None,
            _ => Some(Message::Data {
                channel,
                content: frame.content,
            }),
        })
    }
}

struct Frame {
    opcode: u8,
    last: bool,
    content: Bytes,
}

fn take_frame(input: &mut BytesMut) -> io::Result<Option<Frame>> {
    let Some((length, payload)) = parse_header(input)? else {
        return Ok(None);
    };
    let size = payload.remaining as usize;
    if input.len() < length + size {
        return Ok(None);
    }
    input.advance(length);
    let mut content = input.split_to(size);
    for (byte, mask) in content.iter_mut().zip(payload.mask.iter().cycle()) {
        *byte ^= mask;
    }
    Ok(Some(Frame {
        opcode: payload.opcode,
        last: payload.last,
        content: content.freeze(),
    }))
}

/// Data of a channel, for the client.
pub fn data(output: &mut BytesMut, channel: u8, content: &[u8]) {
    let mut message = Vec::with_capacity(content.len() + 1);
    message.push(channel);
    message.extend_from_slice(content);
    encode(output, BINARY, &message);
}

/// The answer to a ping.
pub fn pong(output: &mut BytesMut, content: &[u8]) {
    encode(output, PONG, content);
}

/// Asks whether the client is there.
pub fn ping(output: &mut BytesMut) {
    encode(output, PING, &[]);
}

/// The last message: all was said, or something broke.
pub fn close(output: &mut BytesMut, complete: bool) {
    goodbye(output, if complete { NORMAL } else { BROKEN });
}

/// The last message, with its code.
pub fn goodbye(output: &mut BytesMut, code: u16) {
    encode(output, CLOSE, &code.to_be_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;
    use crate::websocket::violation;

    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let mask = [9, 8, 7, 6];
        let mut frame = vec![first, 0x80 | content.len() as u8];
        frame.extend_from_slice(&mask);
        frame.extend(content.iter().zip(mask.iter().cycle()).map(|(a, b)| a ^ b));
        frame
    }

    async fn read(sent: Vec<Vec<u8>>) -> io::Result<Vec<Message>> {
        let (mut client, server) = duplex(2);
        tokio::spawn(async move {
            // A reader that has refused something reads no more.
            let _ = client.write_all(&sent.concat()).await;
        });
        let mut reader = Reader::new(server);
        let mut messages = Vec::new();
        while let Some(message) = reader.next().await? {
            messages.push(message);
        }
        Ok(messages)
    }

    fn said(channel: u8, content: &'static [u8]) -> Message {
        Message::Data {
            channel,
            content: Bytes::from_static(content),
        }
    }

    #[tokio::test]
    async fn messages_in_parts_keep_their_channel() {
        let sent = vec![
            frame(0x82, b"\0one"),
            // In parts, with a ping between them.
            frame(0x02, b"\0tw"),
            frame(0x89, b"p"),
            frame(0x80, b"o"),
            frame(0x81, b"\x04{}"),
            frame(0x82, b""),
            frame(0x82, b"\xff\0"),
            frame(0x88, b""),
        ];
        let expected = [
            said(0, b"one"),
            said(0, b"tw"),
            Message::Ping(Bytes::from_static(b"p")),
            said(0, b"o"),
            said(4, b"{}"),
            Message::End { channel: 0 },
            Message::Close(1000),
        ];
        assert_eq!(read(sent).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn what_is_out_of_place_is_refused() {
        for sent in [
            vec![frame(0x80, b"no beginning")],
            vec![frame(0x02, b"\0a"), frame(0x82, b"\0b")],
            vec![frame(0x83, b"\0reserved")],
            vec![frame(0x02, b""), frame(0x80, b"\0a")],
            vec![vec![0x82, 2, 0, b'x']],
            vec![frame(0xc2, b"\0reserved bit")],
            vec![frame(0x09, b"a ping in parts")],
            vec![frame(0x88, b"1")],
        ] {
            let error = read(sent.clone()).await.unwrap_err();
            assert_eq!(violation(&error), Some(1002), "{sent:?}");
        }
    }

    #[test]
    fn what_is_sent() {
        let mut output = BytesMut::new();
        data(&mut output, 1, b"out");
        pong(&mut output, b"p");
        close(&mut output, true);
        close(&mut output, false);
        assert_eq!(
            output[..],
            *b"\x82\x04\x01out\x8a\x01p\x88\x02\x03\xe8\x88\x02\x03\xf3"
        );
    }
}

//! A watch's body: one JSON document a line.

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use sampan_api::Status;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::transport::{Error, EventKind, WatchEvent};

struct Lines {
    body: Incoming,
    buffer: BytesMut,
    /// So much of the buffer is known to hold no line end.
    scanned: usize,
    ended: bool,
}

/// The events of a watch; after an error there are no more.
pub(super) fn events(body: Incoming) -> impl Stream<Item = Result<WatchEvent, Error>> + Send {
    let lines = Lines {
        body,
        buffer: BytesMut::new(),
        scanned: 0,
        ended: false,
    };
    stream::unfold(lines, |mut lines| async move {
        let result = lines.next().await?;
        lines.ended = result.is_err();
        Some((result, lines))
    })
}

impl Lines {
    async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        loop {
            if let Some(line) = take_line(&mut self.buffer, &mut self.scanned) {
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Some(parse_event(&line));
            }
            if self.ended {
                return None;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Some(Err(Error::Unreachable(error.to_string()))),
                None => return None,
            }
        }
    }
}

fn take_line(buffer: &mut BytesMut, scanned: &mut usize) -> Option<Bytes> {
    match buffer[*scanned..].iter().position(|byte| *byte == b'\n') {
        Some(at) => {
            let line = buffer.split_to(*scanned + at + 1).freeze();
            *scanned = 0;
            Some(line)
        }
        None => {
            *scanned = buffer.len();
            None
        }
    }
}

#[derive(Deserialize)]
struct WireEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

fn parse_event(line: &[u8]) -> Result<WatchEvent, Error> {
    let event: WireEvent<'_> =
        serde_json::from_slice(line).map_err(|error| Error::Malformed(error.to_string()))?;
    let kind = match event.kind {
        "ADDED" => EventKind::Added,
        "MODIFIED" => EventKind::Modified,
        "DELETED" => EventKind::Deleted,
        "BOOKMARK" => EventKind::Bookmark,
        "ERROR" => {
            let status: Status = serde_json::from_str(event.object.get())
                .map_err(|error| Error::Malformed(error.to_string()))?;
            return Err(Error::Api(status));
        }
        other => return Err(Error::Malformed(format!("a watch event of type {other:?}"))),
    };
    Ok(WatchEvent {
        kind,
        object: Bytes::copy_from_slice(event.object.get().as_bytes()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_found_across_pieces() {
        let mut buffer = BytesMut::from(&b"ab"[..]);
        let mut scanned = 0;
        assert_eq!(take_line(&mut buffer, &mut scanned), None);
        assert_eq!(scanned, 2);
        buffer.extend_from_slice(b"c\nd\n");
        assert_eq!(take_line(&mut buffer, &mut scanned).unwrap(), "abc\n");
        assert_eq!(take_line(&mut buffer, &mut scanned).unwrap(), "d\n");
        assert_eq!(take_line(&mut buffer, &mut scanned), None);
    }

    #[test]
    fn an_error_event_is_an_error() {
        let line = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
        assert!(parse_event(line).unwrap_err().is_expired());
        let line = br#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#;
        let event = parse_event(line).unwrap();
        assert_eq!(event.kind, EventKind::Added);
        assert_eq!(event.object, r#"{"metadata":{"name":"a"}}"#);
    }
}

//! The body of a watch: one JSON line an event, until the client, the timeout or the server ends it.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http::Response;
use http::header::CONTENT_TYPE;
use sampan_api::{Status, protobuf};
use sampan_client::{Error, EventKind, WatchEvent, WatchStream};
use sampan_net::{Body, stream_body};

use super::negotiate::{MediaType, Transform};
use super::respond::{self, Form};
use super::table::{self, TableSource};
use super::wire;

/// Events that are ready together travel together.
const BATCH: usize = 64;
/// Watches without a timeout of their own end after this long, so that they spread over servers.
const MIN_SECONDS: u64 = 1800;

pub fn watch_timeout(asked_seconds: Option<u64>) -> Duration {
    match asked_seconds.filter(|seconds| *seconds > 0) {
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::from_secs(rand::random_range(MIN_SECONDS..=2 * MIN_SECONDS)),
    }
}

/// Renders events; owns what the stream needs.
pub struct WatchRenderer {
    pub form: Form,
    /// Which columns; the time in it is that of the first event.
    pub source: TableSource,
    pub first: bool,
}

/// The answer: headers at once, then events as they come.
pub fn watch_response(
    events: WatchStream,
    mut renderer: WatchRenderer,
    timeout: Duration,
    shutdown: sampan_util::Shutdown,
) -> Response<Body> {
    let end = async move {
        tokio::select! {
            () = tokio::time::sleep(timeout) => {}
            () = shutdown.wait() => {}
        }
    };
    let media = match renderer.form.negotiated.media {
        MediaType::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        MediaType::Json | MediaType::Yaml => MediaType::Json.as_str(),
    };
    let lines = until_error(events)
        .take_until(Box::pin(end))
        .ready_chunks(BATCH)
        .map(move |batch| {
            let mut out = BytesMut::new();
            for event in batch {
                renderer.append(&mut out, event);
            }
            Ok::<_, std::convert::Infallible>(out.freeze())
        });
    let mut response = Response::new(stream_body(lines));
    respond::set(&mut response, CONTENT_TYPE, media);
    response
}

/// An error is the last thing a watch says.
fn until_error(events: WatchStream) -> BoxStream<'static, Result<WatchEvent, Error>> {
    stream::unfold(Some(events), |state| async move {
        let mut events = state?;
        let event = events.next().await?;
        let rest = event.is_ok().then_some(events);
        Some((event, rest))
    })
    .boxed()
}

impl WatchRenderer {
    fn append(&mut self, out: &mut BytesMut, event: Result<WatchEvent, Error>) {
        let (name, object) = match event {
            Ok(event) => (name_of(event.kind), self.transform(event)),
            Err(error) => (
                "ERROR",
                Bytes::from(to_status(&error).to_json().to_string()),
            ),
        };
        if self.form.negotiated.media == MediaType::Protobuf {
            if let Some(document) = wire::document(&object) {
                out.extend_from_slice(&protobuf::watch_frame(name, &document));
            }
            return;
        }
        out.reserve(object.len() + 32);
        out.put_slice(b"{\"type\":\"");
        out.put_slice(name.as_bytes());
        out.put_slice(b"\",\"object\":");
        out.put_slice(&object);
        out.put_slice(b"}\n");
    }

    fn transform(&mut self, event: WatchEvent) -> Bytes {
        match self.form.negotiated.transform {
            None | Some(Transform::PartialObjectMetadataList) => event.object,
            Some(Transform::PartialObjectMetadata) => {
                respond::partial(&event.object, "meta.k8s.io/v1")
            }
            Some(Transform::Table) => {
                let source = self.source.at(jiff::Timestamp::now());
                let first = std::mem::take(&mut self.first);
                let items = std::slice::from_ref(&event.object);
                table::render(items, &source, &self.form, None, first).into()
            }
        }
    }
}

fn name_of(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Added => "ADDED",
        EventKind::Modified => "MODIFIED",
        EventKind::Deleted => "DELETED",
        EventKind::Bookmark => "BOOKMARK",
    }
}

fn to_status(error: &Error) -> Status {
    match error {
        Error::Api(status) => status.clone(),
        other => Status::internal(other),
    }
}

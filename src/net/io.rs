//! The few types that all of this crate speaks.

use bytes::Bytes;
use futures_util::Stream;
use futures_util::TryStreamExt as _;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use tokio::io::{AsyncRead, AsyncWrite};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's or response's body, whatever it is made of.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

pub type BoxedIo = Box<dyn Io>;

pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that is sent piece by piece as `stream` yields.
pub fn stream_body<S, E>(stream: S) -> Body
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    StreamBody::new(stream.map_ok(Frame::data).map_err(Into::into)).boxed_unsync()
}

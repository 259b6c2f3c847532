//! The seam between every component and the API server.
//!
//! A [`Transport`] belongs to one identity. The in-process one (made by the API server) enters the
//! same pipeline as HTTP does, below HTTP and JSON decoding; the HTTPS one (here) renders the same
//! request as HTTP. Nothing above this line can tell them apart.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sampan_api::resource::PatchType;
use sampan_api::{Options, Reason, Status, Target, Verb};
use serde_json::Value;

/// What a request carries.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    None,
    /// An object, or the options of a delete.
    Object(Value),
    Patch(PatchType, Value),
}

#[derive(Debug, Clone)]
pub struct Request {
    pub verb: Verb,
    pub target: Target,
    pub options: Options,
    pub body: Body,
}

/// A list as it came off the wire or out of the cache: items are not parsed.
#[derive(Debug, Clone, Default)]
pub struct List {
    pub resource_version: String,
    pub continue_token: Option<String>,
    pub remaining_item_count: Option<i64>,
    /// Each item is one object's JSON with `kind` and `apiVersion`.
    pub items: Vec<Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
}

#[derive(Debug, Clone)]
pub struct WatchEvent {
    pub kind: EventKind,
    /// The object's JSON; for a deletion its last state.
    pub object: Bytes,
}

/// A watch ends with `None` when the server closes it, or with an error (410 Expired among them).
pub type WatchStream = BoxStream<'static, Result<WatchEvent, Error>>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The API server answered, and the answer is a failure.
    #[error("{0}")]
    Api(#[from] Status),
    /// No answer arrived; whether the request took effect is unknown.
    #[error("cannot reach the API server: {0}")]
    Unreachable(String),
    /// An answer arrived that is not what was asked for.
    #[error("unexpected answer from the API server: {0}")]
    Malformed(String),
}

impl Error {
    /// The server's answer, if there was one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(status) => Some(status),
            Self::Unreachable(_) | Self::Malformed(_) => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.is(Reason::NotFound)
    }

    pub fn is_conflict(&self) -> bool {
        self.is(Reason::Conflict)
    }

    pub fn is_already_exists(&self) -> bool {
        self.is(Reason::AlreadyExists)
    }

    /// The resource version or the continue token is too old: list again.
    pub fn is_expired(&self) -> bool {
        self.is(Reason::Expired) || self.is(Reason::Gone)
    }

    /// Whether the request may have taken effect although it failed.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Api(status) => status.is(Reason::Timeout) || status.is(Reason::ServerTimeout),
            Self::Unreachable(_) | Self::Malformed(_) => true,
        }
    }

    fn is(&self, reason: Reason) -> bool {
        self.status().is_some_and(|status| status.is(reason))
    }
}

pub trait Transport: Send + Sync + 'static {
    /// Every verb but list and watch: the object (or Status) that the server answers.
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Bytes, Error>>;
    fn list(&self, request: Request) -> BoxFuture<'static, Result<List, Error>>;
    fn watch(&self, request: Request) -> BoxFuture<'static, Result<WatchStream, Error>>;
}

//! The revisioned key-value log with watch. Bytes only; it has never heard of Kubernetes.
//!
//! One global [`Revision`] numbers every change. A change names the revision it expects
//! ([`Expect`]), so concurrent writers cannot overwrite each other unseen. One writer takes all
//! waiting changes as one transaction (group commit: one fsync for all of them), hands them in
//! revision order to the [`Sink`], and only then answers the writers: a reader of what the sink
//! built sees every write that was acknowledged.
//!
//! Two classes of changes share the sequence. [`Class::Durable`] is on disk before it is answered.
//! [`Class::Volatile`] is applied in memory at once and flushed lazily; it costs no fsync of its
//! own. So that a crash never reuses a revision somebody has seen, the store keeps a *durable
//! ceiling* reserved ahead of the sequence and continues above it after an unclean end.
//!
//! Invariant: nothing above knows how a backend keeps its data; nothing here parses a value.

mod error;
pub mod sqlite;
mod types;

pub use error::Error;
pub use sqlite::{SqliteOptions, SqliteStore};
pub use types::{
    Attachment, Change, Class, Event, Expect, Key, Mutation, NoSink, Range, RangeQuery, Record,
    Revision, Sink, Status, Store, StoreFuture,
};

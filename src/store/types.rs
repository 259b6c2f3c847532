//! The vocabulary of the store and the trait that every backend implements.

use std::any::Any;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use crate::Error;

/// The position in the global sequence of changes; the first change has revision 1 or more.
pub type Revision = u64;

/// Keys are paths; their order is the order of their bytes.
pub type Key = Arc<str>;

/// What a writer already knows about its change and the sink would have to work out again.
/// Optional: a change that arrives from another server has none.
pub type Attachment = Arc<dyn Any + Send + Sync>;

pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'static>>;

/// What must be true of the key for a change to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Any,
    Absent,
    At(Revision),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(Bytes),
    Delete,
}

/// What an acknowledgement promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The change survives a crash and a loss of power.
    Durable,
    /// The change may be lost in a crash; its revision is never used again.
    Volatile,
}

#[derive(Clone)]
pub struct Mutation {
    pub key: Key,
    pub expect: Expect,
    pub change: Change,
    pub class: Class,
    pub attachment: Option<Attachment>,
}

/// A committed change, as the sink sees it.
#[derive(Clone)]
pub struct Event {
    pub revision: Revision,
    pub key: Key,
    /// `None` where the key was deleted.
    pub value: Option<Bytes>,
    /// The revision of the value that was replaced or deleted.
    pub previous: Option<Revision>,
    /// The revision at which the key came into being.
    pub created: Revision,
    pub attachment: Option<Attachment>,
}

/// A key's value at some revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: Key,
    pub value: Bytes,
    pub created: Revision,
    pub revision: Revision,
}

/// Receives the whole state once and then every change, without a gap and in order.
///
/// All calls come from the writer's thread, and writers wait for them: be quick.
pub trait Sink: Send + Sync + 'static {
    /// One live key of the initial state. The value is borrowed, so it is copied only once.
    fn record(&self, key: &Key, value: &[u8], created: Revision, revision: Revision);
    /// The initial state is complete. Nothing is known about revisions before `revision`.
    fn loaded(&self, revision: Revision);
    /// One committed batch, in revision order, before its writers are answered.
    fn committed(&self, batch: &[Event]);
}

/// For tools and tests that only use reads and writes.
pub struct NoSink;

impl Sink for NoSink {
    fn record(&self, _: &Key, _: &[u8], _: Revision, _: Revision) {}
    fn loaded(&self, _: Revision) {}
    fn committed(&self, _: &[Event]) {}
}

#[derive(Debug, Clone, Default)]
pub struct RangeQuery {
    pub prefix: String,
    /// Only keys after this one.
    pub after: Option<String>,
    /// The state at this revision instead of the newest.
    pub revision: Option<Revision>,
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, Default)]
pub struct Range {
    pub records: Vec<Record>,
    pub revision: Revision,
    /// The limit was reached and there are more keys.
    pub more: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub cluster_id: String,
    pub revision: Revision,
    pub compacted: Revision,
    pub keys: u64,
    pub size_bytes: u64,
    pub wal_bytes: u64,
    /// Why no changes are taken, if so.
    pub problem: Option<Error>,
}

pub trait Store: Send + Sync + 'static {
    /// Loads the state into `sink` and keeps feeding it. Blocks; must come before any change.
    /// Returns the newest revision.
    fn start(&self, sink: Arc<dyn Sink>) -> Result<Revision, Error>;
    /// The revision of the change. The sink has seen it when this is ready.
    fn commit(&self, mutation: Mutation) -> StoreFuture<Revision>;
    /// Keys under a prefix in order, at one revision.
    fn range(&self, query: RangeQuery) -> StoreFuture<Range>;
    /// Forgets history before `revision`, in slices between writes.
    fn compact(&self, revision: Revision) -> StoreFuture<()>;
    /// A consistent copy of everything in one file.
    fn backup(&self, to: PathBuf) -> StoreFuture<()>;
    /// Everything that was answered so far is on disk when this is ready.
    fn flush(&self) -> StoreFuture<()>;
    /// Ready when no more changes are taken, because the store was closed or because its writer failed.
    fn ended(&self) -> StoreFuture<()>;
    /// Flushes and stops; later changes are refused. Blocks.
    fn close(&self);
    fn status(&self) -> Status;
}

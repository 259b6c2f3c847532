//! The store as the rest of the process holds it: a queue to the writer and a reader.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, TrySendError, bounded};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use super::copy::Copier;
use super::place::Place;
use super::writer::{Command, Writer};
use super::{SqliteOptions, file, rows};
use crate::{Error, Mutation, Range, RangeQuery, Revision, Sink, Status, Store, StoreFuture};

/// Writers that may wait at a time; more are refused rather than queued without bound.
const QUEUE: usize = 8_192;

/// What the writer publishes.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) revision: AtomicU64,
    pub(super) compacted: AtomicU64,
    pub(super) keys: AtomicU64,
    /// The last transaction could not begin: another process holds the lock.
    pub(super) busy: AtomicBool,
    /// The writer's thread has ended, be it by a panic.
    ended: watch::Sender<bool>,
}

/// Says that the writer has ended, however that came about.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended.send_replace(true);
    }
}

pub struct SqliteStore {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    cluster_id: String,
    options: SqliteOptions,
    place: Place,
    reader: Arc<Mutex<Connection>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    copy: Mutex<Option<Copier>>,
    /// Held as long as the database is.
    _lock: File,
}

impl SqliteStore {
    /// Opens, checks and if need be repairs the database, and starts its writer.
    pub fn open(options: SqliteOptions) -> Result<Self, Error> {
        let opened = file::open(&options)?;
        let reader = file::connect(&options, &options.database(), true)?;
        let place = Place::of(&options.database());
        let copy = Copier::start(&options, place.clone())?;
        let shared = Arc::new(Shared::default());
        let (commands, queue) = bounded(QUEUE);
        let writer = Writer::new(
            opened.connection,
            queue,
            opened.meta.clone(),
            options.clone(),
            place.clone(),
            shared.clone(),
        );
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn({
                let ended = Ended(shared.clone());
                move || {
                    let _ended = ended;
                    writer.run();
                }
            })
            .map_err(|error| Error::io(&options.directory, error))?;
        Ok(Self {
            commands,
            shared,
            cluster_id: opened.meta.cluster_id,
            options,
            place,
            reader: Arc::new(Mutex::new(reader)),
            thread: Mutex::new(Some(thread)),
            copy: Mutex::new(Some(copy)),
            _lock: opened.lock,
        })
    }

    /// Sends what `command` makes of a reply channel and waits for the reply.
    fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Command,
    ) -> StoreFuture<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.try_send(command(reply));
        Box::pin(async move {
            match sent {
                Ok(()) => answer.await.unwrap_or(Err(Error::Unavailable)),
                Err(TrySendError::Full(_)) => Err(Error::Overloaded),
                Err(TrySendError::Disconnected(_)) => Err(Error::Unavailable),
            }
        })
    }

    /// Runs `read` on the reading connection after everything answered so far is on disk.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> StoreFuture<T> {
        let flushed = self.flush();
        let reader = self.reader.clone();
        Box::pin(async move {
            flushed.await?;
            tokio::task::spawn_blocking(move || {
                read(&reader.lock().unwrap_or_else(PoisonError::into_inner))
            })
            .await
            .unwrap_or(Err(Error::Unavailable))
        })
    }
}

impl Store for SqliteStore {
    fn start(&self, sink: Arc<dyn Sink>) -> Result<Revision, Error> {
        let (reply, answer) = bounded(1);
        self.commands
            .send(Command::Start(sink, reply))
            .map_err(|_| Error::Unavailable)?;
        answer.recv().unwrap_or(Err(Error::Unavailable))
    }

    fn commit(&self, mutation: Mutation) -> StoreFuture<Revision> {
        self.ask(|reply| Command::Commit(Box::new(mutation), reply))
    }

    fn range(&self, query: RangeQuery) -> StoreFuture<Range> {
        let shared = self.shared.clone();
        self.read(move |connection| {
            let current = shared.revision.load(Ordering::Acquire);
            let revision = query.revision.unwrap_or(current);
            if revision > current {
                return Err(Error::FutureRevision {
                    asked: revision,
                    current,
                });
            }
            let range = rows::range(connection, &query, revision)?;
            // Compaction may have run while reading, so this is checked afterwards.
            let oldest = shared.compacted.load(Ordering::Acquire);
            if revision < oldest {
                return Err(Error::Compacted { oldest });
            }
            Ok(range)
        })
    }

    fn compact(&self, revision: Revision) -> StoreFuture<()> {
        self.ask(|reply| Command::Compact(revision, reply))
    }

    fn backup(&self, to: PathBuf) -> StoreFuture<()> {
        self.read(move |connection| file::copy_to(connection, &to))
    }

    fn flush(&self) -> StoreFuture<()> {
        self.ask(Command::Flush)
    }

    fn ended(&self) -> StoreFuture<()> {
        let mut ended = self.shared.ended.subscribe();
        Box::pin(async move {
            let waited = ended.wait_for(|ended| *ended).await;
            waited.map(drop).map_err(|_| Error::Unavailable)
        })
    }

    fn close(&self) {
        let copy = self
            .copy
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(copy) = copy {
            copy.stop();
        }
        let _ = self.commands.send(Command::Stop);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the store's writer ended by a panic");
        }
    }

    fn status(&self) -> Status {
        let database = self.options.database();
        let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
        Status {
            cluster_id: self.cluster_id.clone(),
            revision: self.shared.revision.load(Ordering::Acquire),
            compacted: self.shared.compacted.load(Ordering::Acquire),
            keys: self.shared.keys.load(Ordering::Acquire),
            size_bytes: size(database.clone()),
            wal_bytes: size(PathBuf::from(format!("{}-wal", database.display()))),
            problem: match *self.shared.ended.borrow() {
                true => Some(Error::Unavailable),
                false => self.place.check().err().or_else(|| {
                    let busy = self.shared.busy.load(Ordering::Acquire);
                    busy.then_some(Error::Busy)
                }),
            },
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

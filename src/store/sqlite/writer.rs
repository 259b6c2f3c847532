//! The one thread that writes: it gathers what waits, writes it as one transaction, feeds the
//! sinks and answers. Between batches it does the put-off work: flushing volatile values,
//! compaction slices, writing back the log file.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::ballast::{Ballast, Space};
use super::file::{self, Meta};
use super::handle::Shared;
use super::ledger::{Ledger, Undo};
use super::place::Place;
use super::rewrite::rewrite_log;
use super::{SqliteOptions, rows};
use crate::{Change, Class, Error, Event, Mutation, Revision, Sink};

type Reply<T> = oneshot::Sender<Result<T, Error>>;
type Commit = (Box<Mutation>, Reply<Revision>);

pub(super) enum Command {
    Start(
        Arc<dyn Sink>,
        crossbeam_channel::Sender<Result<Revision, Error>>,
    ),
    Commit(Box<Mutation>, Reply<Revision>),
    Compact(Revision, Reply<()>),
    Flush(Reply<()>),
    Stop,
}

/// A transaction takes at most this many changes; the rest waits for the next.
const BATCH: usize = 1_024;

/// Rows removed in one slice of compaction.
const SLICE: usize = 512;

/// Pages given back in one go; more follow after the next pause.
const VACUUM: i64 = 4_096;

/// Beyond this many times what volatile values may take up in memory, there is no room for more: the disk has not taken
/// them for long.
const VOLATILE_LIMIT: usize = 4;

/// The log file is written back when idle only if it has grown beyond this.
const WAL_WORTH_IT: u64 = 256 << 10;

/// Pages in the log above which it is written back: not left to SQLite, which tells nobody of a sync that fails then.
const LOG_PAGES: i32 = 1_000;

/// How soon what could not be saved is tried again; the disk may have had no space.
const RESCUE_AGAIN: Duration = Duration::from_secs(5);

/// How soon a lock that others hold is tried again.
const BUSY_AGAIN: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    connection: Connection,
    queue: Receiver<Command>,
    options: SqliteOptions,
    place: Place,
    /// Of a database that is lost.
    rescue: Rescue,
    shared: Arc<Shared>,
    ledger: Ledger,
    sinks: Vec<Arc<dyn Sink>>,
    started: bool,
    /// As on disk.
    meta: Meta,
    ballast: Ballast,
    /// The disk failed: what was not synced may be lost although later syncs succeed.
    suspect: bool,
    /// Where an asked-for compaction wants to get to.
    compact_to: Revision,
    slice_was_full: bool,
    volatile_since: Option<Instant>,
    /// The last transaction, while the log file has not been written back since.
    unsettled_since: Option<Instant>,
    /// How the connection is set.
    sync: Sync,
    /// The last transaction was not synced.
    unsynced: bool,
    /// Others hold the lock of the database; this is when it is tried again.
    busy_again: Option<Instant>,
    /// Pages in the log after the last transaction.
    logged: Arc<AtomicI32>,
}

/// Whether what is in a database that is lost has been saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rescue {
    /// The files are in their place, as far as known.
    None,
    /// It could not be saved; this is when it is tried again.
    Failed(Instant),
    Saved,
}

impl Rescue {
    /// At the first look that fails, then now and then until it works.
    fn is_due(self, now: Instant) -> bool {
        match self {
            Self::None => true,
            Self::Failed(again) => now >= again,
            Self::Saved => false,
        }
    }

    fn again(self) -> Option<Instant> {
        match self {
            Self::Failed(again) => Some(again),
            Self::None | Self::Saved => None,
        }
    }
}

/// How a transaction reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    /// Before it is answered.
    Now,
    /// With the next one that is synced.
    Later,
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        queue: Receiver<Command>,
        meta: Meta,
        options: SqliteOptions,
        place: Place,
        shared: Arc<Shared>,
    ) -> Self {
        shared.compacted.store(meta.compacted, Ordering::Release);
        let mut ledger = Ledger::default();
        ledger.continue_at(meta.ceiling);
        Self {
            connection,
            queue,
            place,
            rescue: Rescue::None,
            shared,
            ledger,
            sinks: Vec::new(),
            started: false,
            compact_to: meta.compacted,
            slice_was_full: false,
            ballast: Ballast::new(options.ballast_file(), options.ballast),
            meta,
            suspect: false,
            volatile_since: None,
            unsettled_since: None,
            sync: Sync::Now,
            unsynced: false,
            busy_again: None,
            logged: Arc::default(),
            options,
        }
    }

    pub(super) fn run(mut self) {
        self.count_log();
        loop {
            match self.next() {
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(command) => {
                    if !self.take(command) {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.put_off_work();
        }
        self.finish();
    }

    fn count_log(&mut self) {
        let logged = self.logged.clone();
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            logged.store(pages, Ordering::Relaxed);
            Ok(())
        };
        if let Err(error) = self.connection.wal_hook(Some(hook)) {
            tracing::warn!(%error, "the log of the database is written back only when nobody writes");
        }
    }

    /// The next command, or a timeout when put-off work is due.
    fn next(&self) -> Result<Command, RecvTimeoutError> {
        if self.compacting() {
            return self.queue.recv_timeout(Duration::ZERO);
        }
        let volatile = self
            .volatile_since
            .map(|since| since + self.options.volatile_delay);
        let settle = self.unsettled_since.map(|since| since + self.options.idle);
        let again = self.rescue.again().into_iter().chain(self.busy_again);
        match volatile.into_iter().chain(settle).chain(again).min() {
            Some(due) => self.queue.recv_deadline(due),
            None => self
                .queue
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Handles one command and, if it is a change, all others that wait behind it.
    /// False when the store is to stop.
    fn take(&mut self, command: Command) -> bool {
        let mut batch: Vec<Commit> = Vec::new();
        let mut next = Some(command);
        let mut other = None;
        while let Some(command) = next {
            match command {
                Command::Commit(mutation, reply) => batch.push((mutation, reply)),
                command => {
                    other = Some(command);
                    break;
                }
            }
            next = if batch.len() < BATCH {
                self.queue.try_recv().ok()
            } else {
                None
            };
        }
        if !batch.is_empty() {
            self.commit(batch);
        }
        match other {
            None | Some(Command::Commit(..)) => {}
            Some(Command::Start(sink, reply)) => {
                let _ = reply.send(self.start(sink));
            }
            Some(Command::Compact(revision, reply)) => {
                let _ = reply.send(self.compact(revision));
            }
            Some(Command::Flush(reply)) => {
                let _ = reply.send(self.flush_now());
            }
            Some(Command::Stop) => return false,
        }
        true
    }

    /// Reads the state, feeds it to the sink, and attaches the sink to what follows.
    fn start(&mut self, sink: Arc<dyn Sink>) -> Result<Revision, Error> {
        if self.started {
            return Err(Error::Unavailable);
        }
        let ledger = &mut self.ledger;
        rows::scan_index(&self.connection, |key, revision| {
            ledger.found(key, revision)
        })?;
        rows::scan_log(&self.connection, |revision, key, created, value| {
            let live = ledger.loaded(revision, key, created, value.is_none());
            if let (Some(key), Some(value)) = (live, value) {
                sink.record(&key, value, created, revision);
            }
        })?;
        ledger.sort_garbage();
        let revision = ledger.revision();
        self.publish();
        sink.loaded(revision);
        self.sinks.push(sink);
        self.started = true;
        Ok(revision)
    }

    fn publish(&self) {
        let shared = &self.shared;
        shared
            .revision
            .store(self.ledger.revision(), Ordering::Release);
        shared
            .keys
            .store(self.ledger.keys() as u64, Ordering::Release);
    }

    fn commit(&mut self, batch: Vec<Commit>) {
        if !self.started {
            for (_, reply) in batch {
                let _ = reply.send(Err(Error::Unavailable));
            }
            return;
        }
        if self.ballast.space() != Space::Enough {
            self.ballast.take_back();
        }
        loop {
            let mut undo = Undo::default();
            let admitted: Vec<_> = batch
                .iter()
                .map(|(mutation, _)| self.admit(mutation, &mut undo))
                .collect();
            let durable = batch
                .iter()
                .zip(&admitted)
                .any(|((mutation, _), one)| one.is_ok() && mutation.class == Class::Durable);
            let events: Vec<Event> = admitted.iter().flatten().cloned().collect();
            let result = if durable {
                self.write(&events, Sync::Now)
            } else {
                self.defer(&events)
            };
            match result {
                Ok(()) => return self.committed(batch, admitted, &events),
                Err(error) => {
                    self.ledger.undo(undo);
                    if error == Error::NoSpace && self.make_room() {
                        continue;
                    }
                    tracing::error!(%error, "a transaction failed");
                    return answer(batch, |_| Err(error.clone()));
                }
            }
        }
    }

    /// Checks one change, also against what the disk still takes.
    fn admit(&mut self, mutation: &Mutation, undo: &mut Undo) -> Result<Event, Error> {
        let live = self.ledger.is_live(&mutation.key);
        let fits = match (self.ballast.space(), &mutation.change) {
            (Space::Enough, _) | (_, Change::Delete) => true,
            (Space::Low, Change::Put(_)) => live,
            (Space::Out, Change::Put(_)) => live && mutation.class == Class::Volatile,
        };
        match fits {
            true => self.ledger.admit(mutation, undo),
            false => Err(Error::NoSpace),
        }
    }

    /// Whether something was given free, so that the transaction may be tried again.
    fn make_room(&mut self) -> bool {
        if !self.ballast.release() {
            return false;
        }
        // The log's content fits into the database's free pages as a rule, and then its room is free.
        let _ = self.checkpoint();
        true
    }

    fn committed(
        &mut self,
        batch: Vec<Commit>,
        admitted: Vec<Result<Event, Error>>,
        events: &[Event],
    ) {
        self.publish();
        if !events.is_empty() {
            for sink in &self.sinks {
                sink.committed(events);
            }
        }
        let mut answers = admitted.into_iter();
        answer(batch, |_| {
            let admitted = answers.next().unwrap_or(Err(Error::Unavailable));
            admitted.map(|event| event.revision)
        });
    }

    /// Keeps a batch of volatile changes in memory, below a ceiling that is on disk.
    fn defer(&mut self, events: &[Event]) -> Result<(), Error> {
        if self.ledger.pending_bytes() > VOLATILE_LIMIT * self.options.volatile_bytes {
            return Err(Error::NoSpace);
        }
        if self.ledger.revision() > self.meta.ceiling {
            let meta = Meta {
                ceiling: self.ledger.revision() + self.options.reserve,
                ..self.meta.clone()
            };
            self.set_sync(Sync::Now)?;
            self.transaction(|connection, old| {
                file::write_meta(connection, old, &meta)?;
                Ok(meta)
            })?;
        }
        for event in events {
            self.ledger.defer(event);
        }
        if self.ledger.has_pending() && self.volatile_since.is_none() {
            self.volatile_since = Some(Instant::now());
        }
        Ok(())
    }

    /// One transaction: what was put off, the events, a share of compaction, the ceiling.
    fn write(&mut self, events: &[Event], sync: Sync) -> Result<(), Error> {
        let pending = self.ledger.pending_rows();
        let revision = self.ledger.revision();
        let oldest = revision
            .saturating_sub(self.options.history)
            .max(self.compact_to);
        let share = 2 * (events.len() + pending.len()) + 16;
        let garbage = self.ledger.removable(oldest, share);
        let mut meta = self.meta.clone();
        meta.compacted = garbage
            .last()
            .map_or(meta.compacted, |last| last.since.max(meta.compacted));
        if meta.ceiling < revision + self.options.reserve / 2 {
            meta.ceiling = revision + self.options.reserve;
        }

        // Readers must not trust what the transaction is about to remove.
        self.shared
            .compacted
            .fetch_max(meta.compacted, Ordering::AcqRel);
        self.set_sync(sync)?;
        self.transaction(|connection, old| {
            for row in &pending {
                meta.sum ^= rows::insert(connection, row)?;
            }
            for event in events {
                meta.sum ^= rows::insert(connection, &row_of(event))?;
            }
            for garbage in &garbage {
                meta.sum ^= rows::delete(connection, garbage.row)?;
            }
            file::write_meta(connection, old, &meta)?;
            Ok(meta)
        })?;

        self.ledger.pending_written();
        for event in events {
            self.ledger.written(event);
        }
        self.ledger.removed(garbage.len());
        self.volatile_since = None;
        Ok(())
    }

    fn set_sync(&mut self, sync: Sync) -> Result<(), Error> {
        if self.sync == sync {
            return Ok(());
        }
        let mode = match sync {
            Sync::Now => "FULL",
            Sync::Later => "NORMAL",
        };
        self.connection.pragma_update(None, "synchronous", mode)?;
        self.sync = sync;
        Ok(())
    }

    /// All or nothing. `work` gives what the meta table is then.
    fn transaction(
        &mut self,
        work: impl FnOnce(&Connection, &Meta) -> Result<Meta, rusqlite::Error>,
    ) -> Result<(), Error> {
        self.look()?;
        if self.is_still_locked() {
            return Err(Error::Busy);
        }
        let result = self.guarded(|this| this.transact(work));
        self.tell_busy(&result);
        if result.is_ok() {
            self.write_back();
        }
        result
    }

    /// Whatever writes the files: not before the log is sound again after a failure, and nobody takes what it cuts (the
    /// log, where it begins anew) for cut by others.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.heal()?;
        self.place.forget_lengths();
        let result = work(self);
        self.place.note();
        self.suspect |= matches!(result, Err(Error::Io { .. }));
        result
    }

    fn transact(
        &mut self,
        work: impl FnOnce(&Connection, &Meta) -> Result<Meta, rusqlite::Error>,
    ) -> Result<(), Error> {
        let run = |sql| -> Result<(), rusqlite::Error> {
            self.connection.prepare_cached(sql)?.execute([])?;
            Ok(())
        };
        run("BEGIN IMMEDIATE")?;
        let result = work(&self.connection, &self.meta).and_then(|meta| {
            run("COMMIT")?;
            Ok(meta)
        });
        match result {
            Ok(meta) => {
                self.meta = meta;
                self.unsettled_since = Some(Instant::now());
                self.unsynced = self.sync == Sync::Later;
                Ok(())
            }
            Err(error) => {
                if !self.connection.is_autocommit() {
                    let _ = run("ROLLBACK");
                }
                Err(error.into())
            }
        }
    }

    /// Keeps the log short. The transaction before it holds even if this fails; it is tried again after the next one.
    fn write_back(&mut self) {
        if self.logged.load(Ordering::Relaxed) < LOG_PAGES {
            return;
        }
        let pragma = "PRAGMA wal_checkpoint(PASSIVE)";
        let written = self.guarded(|this| Ok(this.connection.query_row(pragma, [], |_| Ok(()))?));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write back the log of the database");
        }
    }

    /// A lock of others is tried again by itself: nobody may write as long as this is told.
    fn tell_busy(&mut self, result: &Result<(), Error>) {
        let busy = *result == Err(Error::Busy);
        self.busy_again = busy.then(|| Instant::now() + BUSY_AGAIN);
        self.shared.busy.store(busy, Ordering::Release);
    }

    /// Asked for at most once a second, so that writers learn of it at once in place of waiting one after another.
    fn is_still_locked(&mut self) -> bool {
        if self.busy_again.is_some_and(|again| Instant::now() >= again) {
            self.try_lock();
        }
        self.busy_again.is_some()
    }

    /// Whether the lock can be had again.
    fn try_lock(&mut self) {
        let tried = self
            .connection
            .busy_timeout(Duration::ZERO)
            .and_then(|()| self.connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK"));
        let _ = self.connection.busy_timeout(file::BUSY_TIMEOUT);
        self.tell_busy(&tried.map_err(Error::from));
    }

    /// Refuses as long as the files are not where the next start looks for them.
    fn look(&mut self) -> Result<(), Error> {
        let mut found = self.place.check();
        // Others may have written the log back, or put the database in order.
        if matches!(found, Err(Error::Cut { .. })) && self.rescue == Rescue::None && self.is_whole()
        {
            tracing::warn!(
                "another process has made the files of the database shorter; nothing is missing"
            );
            self.place.note();
            found = Ok(());
        }
        match &found {
            Ok(()) => self.found_again(),
            // What is left of a file that was cut is no whole state; it stays for the next start as it is.
            Err(error @ Error::Cut { .. }) => {
                if std::mem::replace(&mut self.rescue, Rescue::Saved) == Rescue::None {
                    tracing::error!(%error, "the database was damaged");
                    self.mark_cut();
                }
            }
            Err(error) if self.rescue.is_due(Instant::now()) => self.save_lost(error),
            Err(_) => {}
        }
        found
    }

    /// Whether everything that was written can be read from the files, asked without what this connection remembers.
    fn is_whole(&self) -> bool {
        let path = self.options.database();
        let found = file::connect(&self.options, &path, true)
            .and_then(|connection| file::check(&connection, &path));
        found.is_ok_and(|meta| meta == self.meta)
    }

    fn mark_cut(&self) {
        let mark = self.options.cut_mark();
        if let Err(error) = std::fs::write(&mark, "") {
            tracing::error!(mark = %mark.display(), %error, "the next start will not be stopped");
        }
    }

    /// The files are back in their place (if they ever were away): they hold all that was saved, and soon more.
    fn found_again(&mut self) {
        if std::mem::replace(&mut self.rescue, Rescue::None) == Rescue::None {
            return;
        }
        // The next start would ask which of the two is wanted. Only this process can have made it: none starts with one.
        // It may be there although saving failed in its last step.
        let rescued = self.options.rescued();
        let _ = std::fs::remove_file(self.options.cut_mark());
        match std::fs::remove_file(&rescued) {
            Ok(()) => tracing::warn!(
                rescued = %rescued.display(),
                "the database is in its place again: what was saved of it is removed"
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                rescued = %rescued.display(),
                %error,
                "the database is in its place again; remove what was saved of it before the next start"
            ),
        }
    }

    /// What the lost files hold is written elsewhere: once, if that works.
    fn save_lost(&mut self, error: &Error) {
        let (database, rescued) = (self.options.database(), self.options.rescued());
        let path = database.display();
        // In a transaction that could not be ended there is no copying, and what it holds was never acknowledged.
        let saved = self
            .roll_back()
            .and_then(|()| file::copy_to(&self.connection, &rescued));
        self.rescue = match &saved {
            Ok(()) => Rescue::Saved,
            Err(_) => Rescue::Failed(Instant::now() + RESCUE_AGAIN),
        };
        match saved {
            Ok(()) => tracing::error!(
                %error,
                "everything that was acknowledged was saved in {rescued}; to go on with it: stop the server, remove \
                 {path}, {path}-wal and {path}-shm, rename {rescued} to {path}, start the server. If the file was \
                 only moved, moving it back is enough while the server runs; when it does not, remove {rescued} then",
                rescued = rescued.display(),
            ),
            Err(why) => tracing::error!(
                %error,
                %why,
                "what it held cannot be saved in {rescued} yet; this is tried again every few seconds and when the \
                 server stops, so make that possible (space, a writable disk) before you stop it. If it stays \
                 impossible: stop the server, put the file back as {path} (the newest copy that there is may be \
                 {path}.good), start the server",
                rescued = rescued.display(),
            ),
        }
    }

    /// After a failed sync the system may have dropped what it could not write, and the next sync succeeds without it.
    /// So the log is written again before anything more is promised, and before anything of it is written back: a power
    /// cut in the middle of that needs the log.
    fn heal(&mut self) -> Result<(), Error> {
        self.roll_back()?;
        if self.suspect {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            let rewritten = rewrite_log(&self.connection);
            self.roll_back()?;
            rewritten?;
            self.suspect = false;
            tracing::warn!("the disk takes writes again");
        }
        Ok(())
    }

    /// Ends a transaction whose own rollback failed.
    fn roll_back(&self) -> Result<(), Error> {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        Ok(())
    }

    /// Brings everything from the log into the database and empties the log.
    fn checkpoint(&mut self) -> Result<(), Error> {
        match self.try_checkpoint()? {
            true => Ok(()),
            false => Err(Error::Io {
                what: "the log cannot be written back while it is read".to_owned(),
            }),
        }
    }

    /// False if a reader held on to the log for longer than the connection waits.
    fn try_checkpoint(&mut self) -> Result<bool, Error> {
        let pragma = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.guarded(|this| {
            let busy: bool = this.connection.query_row(pragma, [], |row| row.get(0))?;
            Ok(!busy)
        })
    }

    /// Everything that was answered is on disk: also what went there without waiting.
    fn flush_now(&mut self) -> Result<(), Error> {
        self.flush(Sync::Now)?;
        if !self.unsynced {
            return Ok(());
        }
        // SQLite syncs with a change only, so something has to change.
        let meta = Meta {
            ceiling: self.meta.ceiling + 1,
            ..self.meta.clone()
        };
        self.set_sync(Sync::Now)?;
        self.transaction(|connection, old| {
            file::write_meta(connection, old, &meta)?;
            Ok(meta)
        })
    }

    fn flush(&mut self, sync: Sync) -> Result<(), Error> {
        if self.ledger.has_pending() {
            self.write(&[], sync)?;
        }
        Ok(())
    }

    fn compact(&mut self, revision: Revision) -> Result<(), Error> {
        let current = self.ledger.revision();
        if revision > current {
            return Err(Error::FutureRevision {
                asked: revision,
                current,
            });
        }
        self.compact_to = self.compact_to.max(revision);
        self.shared.compacted.fetch_max(revision, Ordering::AcqRel);
        Ok(())
    }

    fn compacting(&self) -> bool {
        self.slice_was_full || self.compact_to > self.meta.compacted
    }

    fn put_off_work(&mut self) {
        let now = Instant::now();
        if self.rescue.again().is_some_and(|again| now >= again) {
            // It tells of a failure itself.
            let _ = self.look();
        }
        if self.busy_again.is_some_and(|again| now >= again) {
            self.try_lock();
        }
        let due = self
            .volatile_since
            .is_some_and(|since| now >= since + self.options.volatile_delay);
        let many = self.ledger.pending_bytes() > self.options.volatile_bytes;
        if due || (many && self.ballast.space() == Space::Enough) {
            let flushed = self.flush(Sync::Later);
            if flushed == Err(Error::NoSpace) && self.ballast.space() == Space::Enough {
                self.make_room();
            }
            self.report("flush volatile values", flushed);
            // A failure is not repeated at once.
            self.volatile_since = self.ledger.has_pending().then_some(now);
        }
        if self.compacting() {
            let sliced = self.compact_slice();
            if sliced.is_err() {
                self.compact_to = self.meta.compacted;
                self.slice_was_full = false;
            }
            self.report("compact", sliced);
        }
        if self
            .unsettled_since
            .is_some_and(|since| now >= since + self.options.idle)
        {
            let settled = self.settle();
            self.report("write back the log file", settled);
        }
    }

    fn report(&self, what: &str, result: Result<(), Error>) {
        if let Err(error) = result {
            tracing::warn!(%error, "cannot {what}");
        }
    }

    fn compact_slice(&mut self) -> Result<(), Error> {
        let garbage = self.ledger.removable(self.compact_to, SLICE);
        let full = garbage.len() == SLICE;
        let mut meta = self.meta.clone();
        meta.compacted = match garbage.last() {
            Some(last) if full => meta.compacted.max(last.since),
            _ => self.compact_to,
        };
        self.set_sync(Sync::Later)?;
        self.transaction(|connection, old| {
            for garbage in &garbage {
                meta.sum ^= rows::delete(connection, garbage.row)?;
            }
            file::write_meta(connection, old, &meta)?;
            Ok(meta)
        })?;
        self.ledger.removed(garbage.len());
        // More rows may share the last one's revision: not done before a slice comes up short.
        self.slice_was_full = full;
        Ok(())
    }

    /// Gives pages back and empties the log file, if that is worth the writing.
    fn settle(&mut self) -> Result<(), Error> {
        self.unsettled_since = None;
        self.look()?;
        let wal = format!("{}-wal", self.options.database().display());
        if std::fs::metadata(wal).map_or(0, |meta| meta.len()) < WAL_WORTH_IT {
            return Ok(());
        }
        let count = |pragma: &str| -> Result<i64, rusqlite::Error> {
            self.connection.query_row(pragma, [], |row| row.get(0))
        };
        let free = count("PRAGMA freelist_count")?;
        if free > 256 && free > count("PRAGMA page_count")? / 4 {
            self.guarded(|this| Ok(this.give_back((free / 2).min(VACUUM))?))?;
        }
        // Writers must not wait for readers: what these keep in the log goes next time.
        self.connection.busy_timeout(Duration::ZERO)?;
        let emptied = self.try_checkpoint();
        self.connection.busy_timeout(file::BUSY_TIMEOUT)?;
        if !emptied? {
            self.unsettled_since = Some(Instant::now());
        }
        Ok(())
    }

    /// The pragma frees one page with each row that is read of it.
    fn give_back(&self, pages: i64) -> Result<(), rusqlite::Error> {
        let pragma = format!("PRAGMA incremental_vacuum({pages})");
        let mut statement = self.connection.prepare(&pragma)?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// The clean end: everything on disk, and nothing reserved above what was used.
    fn finish(mut self) {
        if !self.started {
            return;
        }
        // The last chance to save what a lost database holds, however lately that failed.
        if let Rescue::Failed(again) = &mut self.rescue {
            *again = Instant::now();
        }
        let _ = self.look();
        let flushed = self.flush(Sync::Now).and_then(|()| {
            self.set_sync(Sync::Now)?;
            let meta = Meta {
                ceiling: self.ledger.revision(),
                ..self.meta.clone()
            };
            self.transaction(|connection, old| {
                file::write_meta(connection, old, &meta)?;
                Ok(meta)
            })?;
            self.checkpoint()
        });
        self.report("close cleanly", flushed);
    }
}

fn answer(batch: Vec<Commit>, mut to: impl FnMut(&Mutation) -> Result<Revision, Error>) {
    for (mutation, reply) in batch {
        let _ = reply.send(to(&mutation));
    }
}

fn row_of(event: &Event) -> rows::Row {
    rows::Row {
        revision: event.revision,
        key: event.key.clone(),
        created: event.created,
        value: event.value.clone(),
    }
}

#[cfg(test)]
mod tests;

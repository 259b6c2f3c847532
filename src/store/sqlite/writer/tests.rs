#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use bytes::Bytes;

use super::*;
use crate::{Change, Expect, NoSink};

struct Bed {
    directory: PathBuf,
    writer: Writer,
    _lock: std::fs::File,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A writer without its thread: what it does, it does when it is told.
fn bed(name: &str) -> Bed {
    let directory =
        std::env::temp_dir().join(format!("sampan-writer-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let mut options = SqliteOptions::new(&directory);
    options.volatile_bytes = 1_000;
    let opened = file::open(&options).unwrap();
    let (_, queue) = crossbeam_channel::bounded(1);
    let mut writer = Writer::new(
        opened.connection,
        queue,
        opened.meta,
        options,
        Place::default(),
        Arc::default(),
    );
    writer.start(Arc::new(NoSink)).unwrap();
    Bed {
        directory,
        writer,
        _lock: opened.lock,
    }
}

impl Bed {
    fn commit(&mut self, key: &str, change: Change, class: Class) -> Result<Revision, Error> {
        let (reply, mut answer) = oneshot::channel();
        let expect = match change {
            Change::Put(_) => Expect::Absent,
            Change::Delete => Expect::Any,
        };
        let mutation = Mutation {
            key: key.into(),
            expect,
            change,
            class,
            attachment: None,
        };
        self.writer.commit(vec![(Box::new(mutation), reply)]);
        answer.try_recv().unwrap()
    }

    fn put(&mut self, key: &str, bytes: usize, class: Class) -> Result<Revision, Error> {
        self.commit(key, Change::Put(Bytes::from(vec![b'x'; bytes])), class)
    }

    fn pragma(&self, name: &str) -> i64 {
        let pragma = format!("PRAGMA {name}");
        let connection = &self.writer.connection;
        connection.query_row(&pragma, [], |row| row.get(0)).unwrap()
    }
}

#[test]
fn a_flush_syncs_what_went_out_unsynced_before() {
    let mut bed = bed("flush");
    bed.put("/e", 10, Class::Volatile).unwrap();
    bed.writer.flush(Sync::Later).unwrap();
    assert!(bed.writer.unsynced && !bed.writer.ledger.has_pending());
    let before = bed.writer.connection.total_changes();
    bed.writer.flush_now().unwrap();
    assert!(!bed.writer.unsynced);
    assert_eq!(bed.pragma("synchronous"), 2, "FULL");
    assert!(bed.writer.connection.total_changes() > before);
    let after = bed.writer.connection.total_changes();
    bed.writer.flush_now().unwrap();
    assert_eq!(bed.writer.connection.total_changes(), after, "nothing left");
}

#[test]
fn free_pages_are_given_back_and_a_reader_does_not_stop_the_writer() {
    let mut bed = bed("settle");
    for number in 0..20 {
        bed.put(&format!("/k{number}"), 200_000, Class::Durable)
            .unwrap();
    }
    for number in 0..20 {
        bed.commit(&format!("/k{number}"), Change::Delete, Class::Durable)
            .unwrap();
    }
    let revision = bed.writer.ledger.revision();
    bed.writer.compact(revision).unwrap();
    while bed.writer.compacting() {
        bed.writer.compact_slice().unwrap();
    }
    let free = bed.pragma("freelist_count");
    assert!(free > 500, "{free}");
    // A reader that holds on to an old state.
    let options = bed.writer.options.clone();
    let reader = file::connect(&options, &options.database(), true).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = |reader: &Connection| -> i64 {
        reader
            .query_row("SELECT count(*) FROM log", [], |row| row.get(0))
            .unwrap()
    };
    count(&reader);
    bed.put("/after", 10, Class::Durable).unwrap();
    let started = Instant::now();
    bed.writer.settle().unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(bed.writer.unsettled_since.is_some(), "it is tried again");
    let left = bed.pragma("freelist_count");
    assert!(left <= free / 2 + 2, "{left} of {free}");
    reader.execute_batch("COMMIT").unwrap();
    bed.writer.settle().unwrap();
    assert!(bed.writer.unsettled_since.is_none());
    let wal = format!("{}-wal", options.database().display());
    assert_eq!(std::fs::metadata(wal).unwrap().len(), 0);
}

#[test]
fn volatile_values_that_the_disk_does_not_take_are_refused_in_the_end() {
    let mut bed = bed("volatile");
    let mut taken = 0;
    let refused = (0..100).find_map(|number| {
        let put = bed.put(&format!("/e{number}"), 500, Class::Volatile);
        taken += usize::from(put.is_ok());
        put.err()
    });
    assert_eq!(refused, Some(Error::NoSpace));
    assert!((8..12).contains(&taken), "{taken}");
    bed.writer.flush(Sync::Later).unwrap();
    bed.put("/again", 500, Class::Volatile).unwrap();
}

impl Bed {
    /// Removes the database under the writer.
    fn lose(&mut self) -> PathBuf {
        let options = &self.writer.options;
        self.writer.place = Place::of(&options.database());
        std::fs::remove_file(options.database()).unwrap();
        options.rescued()
    }

    /// The time of the next try is now.
    fn hurry(&mut self) {
        assert!(matches!(self.writer.rescue, Rescue::Failed(_)));
        self.writer.rescue = Rescue::Failed(Instant::now());
    }
}

#[test]
fn a_rescue_is_due_at_once_and_again_until_it_works() {
    let now = Instant::now();
    assert!(Rescue::None.is_due(now));
    assert!(Rescue::None.again().is_none());
    let failed = Rescue::Failed(now + RESCUE_AGAIN);
    assert!(!failed.is_due(now));
    assert!(failed.is_due(now + RESCUE_AGAIN));
    assert_eq!(failed.again(), Some(now + RESCUE_AGAIN));
    assert!(!Rescue::Saved.is_due(now + RESCUE_AGAIN));
    assert!(Rescue::Saved.again().is_none());
}

#[test]
fn a_rescue_that_failed_is_tried_again() {
    let mut bed = bed("rescue");
    bed.put("/a", 10, Class::Durable).unwrap();
    let rescued = bed.lose();
    // Nothing can be renamed to a folder that is not empty.
    std::fs::create_dir_all(rescued.join("in-the-way")).unwrap();
    assert!(bed.writer.look().is_err());
    assert!(bed.writer.rescue.again().is_some(), "not at once");
    bed.hurry();
    bed.writer.put_off_work();
    assert!(bed.writer.rescue.again().is_some());
    std::fs::remove_dir_all(&rescued).unwrap();
    assert!(bed.writer.look().is_err());
    assert!(!rescued.exists(), "not so soon");
    bed.hurry();
    bed.writer.put_off_work();
    assert_eq!(bed.writer.rescue, Rescue::Saved);
    assert!(rescued.is_file());
    // Once is enough.
    std::fs::remove_file(&rescued).unwrap();
    assert!(bed.writer.look().is_err());
    assert!(!rescued.exists());
}

#[test]
fn a_transaction_that_hangs_does_not_stop_a_rescue() {
    let mut bed = bed("hangs");
    bed.put("/a", 10, Class::Durable).unwrap();
    bed.writer
        .connection
        .execute_batch("BEGIN IMMEDIATE; DELETE FROM log")
        .unwrap();
    let rescued = bed.lose();
    assert!(bed.writer.look().is_err());
    assert_eq!(bed.writer.rescue, Rescue::Saved);
    let saved = Connection::open(&rescued).unwrap();
    let rows: i64 = saved
        .query_row("SELECT count(*) FROM log", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 1, "what was acknowledged, not what hung");
}

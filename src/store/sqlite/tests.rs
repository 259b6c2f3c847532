#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::*;
use std::sync::Arc;

/// A directory of its own that is removed in the end.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sampan-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Default)]
struct Recorder {
    state: Mutex<std::collections::BTreeMap<String, (Revision, Vec<u8>)>>,
    revisions: Mutex<Vec<Revision>>,
    loaded: Mutex<Revision>,
}

impl Sink for Recorder {
    fn record(&self, key: &Key, value: &[u8], _: Revision, revision: Revision) {
        let mut state = self.state.lock().unwrap();
        assert!(
            state
                .insert(key.to_string(), (revision, value.to_vec()))
                .is_none()
        );
    }

    fn loaded(&self, revision: Revision) {
        *self.loaded.lock().unwrap() = revision;
    }

    fn committed(&self, batch: &[Event]) {
        let mut state = self.state.lock().unwrap();
        for event in batch {
            self.revisions.lock().unwrap().push(event.revision);
            let old = match &event.value {
                Some(value) => {
                    state.insert(event.key.to_string(), (event.revision, value.to_vec()))
                }
                None => state.remove(&*event.key),
            };
            assert_eq!(event.previous, old.map(|(revision, _)| revision));
        }
    }
}

fn open(directory: &Path, change: impl FnOnce(&mut SqliteOptions)) -> (SqliteStore, Arc<Recorder>) {
    let mut options = SqliteOptions::new(directory);
    change(&mut options);
    let store = SqliteStore::open(options).unwrap();
    let sink = Arc::new(Recorder::default());
    store.start(sink.clone()).unwrap();
    (store, sink)
}

fn put(key: &str, expect: Expect, value: &str, class: Class) -> Mutation {
    Mutation {
        key: key.into(),
        expect,
        change: Change::Put(Bytes::copy_from_slice(value.as_bytes())),
        class,
        attachment: None,
    }
}

fn delete(key: &str, expect: Expect, class: Class) -> Mutation {
    Mutation {
        key: key.into(),
        expect,
        change: Change::Delete,
        class,
        attachment: None,
    }
}

#[tokio::test]
async fn compares_and_sets() {
    let directory = Directory::new("cas");
    let (store, _) = open(&directory.0, |_| {});
    let first = store
        .commit(put("/a", Expect::Absent, "1", Class::Durable))
        .await
        .unwrap();
    let exists = store
        .commit(put("/a", Expect::Absent, "2", Class::Durable))
        .await;
    assert_eq!(exists, Err(Error::KeyExists { revision: first }));
    let second = store
        .commit(put("/a", Expect::At(first), "2", Class::Durable))
        .await
        .unwrap();
    assert!(second > first);
    let lost = store
        .commit(put("/a", Expect::At(first), "3", Class::Durable))
        .await;
    assert_eq!(
        lost,
        Err(Error::RevisionMismatch {
            current: Some(second)
        })
    );
    store
        .commit(delete("/a", Expect::At(second), Class::Durable))
        .await
        .unwrap();
    let gone = store
        .commit(delete("/a", Expect::Any, Class::Durable))
        .await;
    assert_eq!(gone, Err(Error::RevisionMismatch { current: None }));
}

#[tokio::test]
async fn a_second_opener_is_refused_and_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new("lock");
    let (store, _) = open(&directory.0, |_| {});
    let second = SqliteStore::open(SqliteOptions::new(&directory.0)).map(|_| ());
    assert!(matches!(second, Err(Error::Locked { .. })));
    for entry in std::fs::read_dir(&directory.0).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().permissions().mode() & 0o077,
            0,
            "{entry:?}"
        );
    }
    drop(store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_get_one_order_and_nothing_is_lost() {
    let directory = Directory::new("order");
    let (store, sink) = open(&directory.0, |_| {});
    let store = Arc::new(store);
    let mut tasks = Vec::new();
    for task in 0..8 {
        let store = store.clone();
        let sink = sink.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..50 {
                let key = format!("/k/{}", (task + round) % 5);
                let class = if round % 3 == 0 {
                    Class::Volatile
                } else {
                    Class::Durable
                };
                let expect = match sink.state.lock().unwrap().get(&key) {
                    Some((revision, _)) => Expect::At(*revision),
                    None => Expect::Absent,
                };
                let change = if round % 7 == 6 {
                    delete(&key, expect, class)
                } else {
                    put(&key, expect, &format!("{task}-{round}"), class)
                };
                if let Ok(revision) = store.commit(change).await {
                    assert!(sink.revisions.lock().unwrap().contains(&revision));
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let revisions = sink.revisions.lock().unwrap().clone();
    assert!(revisions.windows(2).all(|pair| pair[1] == pair[0] + 1));
    let before = sink.state.lock().unwrap().clone();
    let range = store
        .range(RangeQuery {
            prefix: "/k/".into(),
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(range.records.len(), before.len());
    store.close();
    drop(store);
    let (store, sink) = open(&directory.0, |_| {});
    assert_eq!(*sink.state.lock().unwrap(), before);
    assert_eq!(
        store.status().revision,
        *revisions.last().unwrap(),
        "a clean end skips nothing"
    );
}

/// Copies the files as a crash would leave them.
fn crash_copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in ["state.db", "state.db-wal"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[tokio::test]
async fn a_crash_loses_volatile_values_but_never_reuses_revisions() {
    let directory = Directory::new("crash");
    let after = Directory::new("crash-after");
    let (store, _) = open(&directory.0, |_| {});
    store
        .commit(put("/d", Expect::Absent, "1", Class::Durable))
        .await
        .unwrap();
    let mut shown = 0;
    for round in 0..25_000 {
        shown = store
            .commit(put("/v", Expect::Any, &round.to_string(), Class::Volatile))
            .await
            .unwrap();
    }
    crash_copy(&directory.0, &after.0);
    let (reopened, sink) = open(&after.0, |_| {});
    assert!(*sink.loaded.lock().unwrap() >= shown);
    assert_eq!(
        sink.state.lock().unwrap().keys().collect::<Vec<_>>(),
        ["/d"]
    );
    let next = reopened
        .commit(put("/e", Expect::Absent, "", Class::Durable))
        .await
        .unwrap();
    assert!(next > shown);
}

#[tokio::test]
async fn volatile_values_reach_the_disk_lazily_and_with_durable_ones() {
    let directory = Directory::new("lazy");
    let after = Directory::new("lazy-after");
    let (store, _) = open(&directory.0, |options| {
        options.volatile_delay = Duration::from_millis(20)
    });
    store
        .commit(put("/v", Expect::Absent, "1", Class::Volatile))
        .await
        .unwrap();
    store
        .commit(put("/gone", Expect::Absent, "1", Class::Volatile))
        .await
        .unwrap();
    store
        .commit(delete("/gone", Expect::Any, Class::Volatile))
        .await
        .unwrap();
    let written = || {
        let connection = rusqlite::Connection::open(directory.0.join("state.db")).unwrap();
        connection
            .query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    for _ in 0..500 {
        if written() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(written(), 1);
    store
        .commit(put("/v", Expect::Any, "2", Class::Volatile))
        .await
        .unwrap();
    store
        .commit(put("/d", Expect::Absent, "1", Class::Durable))
        .await
        .unwrap();
    crash_copy(&directory.0, &after.0);
    let (_reopened, sink) = open(&after.0, |_| {});
    assert_eq!(sink.state.lock().unwrap()["/v"].1, b"2");
}

#[tokio::test]
async fn reads_at_a_revision_until_it_is_compacted() {
    let directory = Directory::new("compact");
    let (store, _) = open(&directory.0, |_| {});
    let mut revisions = Vec::new();
    for round in 0..1_500 {
        let key = format!("/p/{}", round % 10);
        revisions.push(
            store
                .commit(put(&key, Expect::Any, &round.to_string(), Class::Volatile))
                .await
                .unwrap(),
        );
        if round % 3 == 0 {
            store.flush().await.unwrap();
        }
    }
    store
        .commit(delete("/p/0", Expect::Any, Class::Durable))
        .await
        .unwrap();
    let read = |revision, limit| {
        store.range(RangeQuery {
            prefix: "/p/".into(),
            revision: Some(revision),
            limit,
            ..Default::default()
        })
    };
    let newest = store.status().revision;
    let range = read(newest - 1, Some(3)).await.unwrap();
    assert_eq!(range.records.len(), 3);
    assert!(range.more);
    assert_eq!(read(newest, None).await.unwrap().records.len(), 9);
    assert_eq!(read(newest - 1, None).await.unwrap().records.len(), 10);
    store.compact(newest).await.unwrap();
    store
        .commit(put("/x", Expect::Any, "", Class::Durable))
        .await
        .unwrap();
    assert_eq!(
        read(newest - 1, None).await.unwrap_err(),
        Error::Compacted { oldest: newest }
    );
    assert!(matches!(
        read(newest + 50, None).await,
        Err(Error::FutureRevision { .. })
    ));
    for _ in 0..500 {
        store.flush().await.unwrap();
        let connection = rusqlite::Connection::open(directory.0.join("state.db")).unwrap();
        let rows: i64 = connection
            .query_row("SELECT count(*) FROM log", [], |row| row.get(0))
            .unwrap();
        if rows == 10 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("compaction leaves rows behind");
}

#[tokio::test]
async fn history_stays_short_without_being_asked() {
    let directory = Directory::new("history");
    let (store, _) = open(&directory.0, |options| options.history = 50);
    for round in 0..400 {
        store
            .commit(put("/p", Expect::Any, &round.to_string(), Class::Durable))
            .await
            .unwrap();
    }
    let connection = rusqlite::Connection::open(directory.0.join("state.db")).unwrap();
    let rows: i64 = connection
        .query_row("SELECT count(*) FROM log", [], |row| row.get(0))
        .unwrap();
    assert!(rows < 60, "{rows}");
    drop(store);
    let (store, _) = open(&directory.0, |options| options.history = 50);
    for round in 0..20 {
        store
            .commit(put("/p", Expect::Any, &round.to_string(), Class::Durable))
            .await
            .unwrap();
    }
    let rows: i64 = connection
        .query_row("SELECT count(*) FROM log", [], |row| row.get(0))
        .unwrap();
    assert!(rows < 60, "{rows} after a restart");
}

#[tokio::test]
async fn damage_falls_back_to_the_last_good_copy() {
    let directory = Directory::new("damage");
    let (store, _) = open(&directory.0, |_| {});
    let mut shown = store
        .commit(put("/a", Expect::Absent, "old", Class::Durable))
        .await
        .unwrap();
    store.close();
    drop(store);
    let (store, _) = open(&directory.0, |_| {});
    // The copy is made beside everything else.
    while !directory.0.join("state.db.good").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    shown = shown.max(
        store
            .commit(put("/b", Expect::Absent, "new", Class::Durable))
            .await
            .unwrap(),
    );
    store.close();
    drop(store);
    let path = directory.0.join("state.db");
    let size = std::fs::metadata(&path).unwrap().len();
    std::fs::write(&path, vec![0x55; usize::try_from(size).unwrap()]).unwrap();
    let (store, sink) = open(&directory.0, |_| {});
    assert_eq!(
        sink.state.lock().unwrap().keys().collect::<Vec<_>>(),
        ["/a"]
    );
    assert!(store.status().revision > shown);
    assert!(std::fs::read_dir(&directory.0).unwrap().any(|entry| {
        entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("damaged")
    }));
}

#[tokio::test]
async fn a_backup_opens_as_a_store() {
    let directory = Directory::new("backup");
    let restored = Directory::new("backup-restored");
    let (store, _) = open(&directory.0, |_| {});
    store
        .commit(put("/a", Expect::Absent, "1", Class::Volatile))
        .await
        .unwrap();
    std::fs::create_dir_all(&restored.0).unwrap();
    store.backup(restored.0.join("state.db")).await.unwrap();
    let cluster = store.status().cluster_id;
    let (restored, sink) = open(&restored.0, |_| {});
    assert_eq!(sink.state.lock().unwrap().len(), 1);
    assert_eq!(restored.status().cluster_id, cluster);
}

/// A sink with a bug: the thread that writes ends in it.
struct Panics;

impl Sink for Panics {
    fn record(&self, _: &Key, _: &[u8], _: Revision, _: Revision) {}
    fn loaded(&self, _: Revision) {}
    fn committed(&self, _: &[Event]) {
        panic!("a bug");
    }
}

#[tokio::test]
async fn a_writer_that_has_ended_is_seen() {
    let directory = Directory::new("ended");
    let store = SqliteStore::open(SqliteOptions::new(&directory.0)).unwrap();
    store.start(Arc::new(Panics)).unwrap();
    assert_eq!(store.status().problem, None);
    let ended = store.ended();
    let lost = store
        .commit(put("/a", Expect::Absent, "1", Class::Durable))
        .await;
    assert_eq!(lost, Err(Error::Unavailable));
    ended.await.unwrap();
    assert_eq!(store.status().problem, Some(Error::Unavailable));
    store.ended().await.unwrap();
}

#[tokio::test]
async fn nothing_is_acknowledged_into_a_file_that_is_gone() {
    let directory = Directory::new("lost");
    let (store, _) = open(&directory.0, |_| {});
    let database = directory.0.join("state.db");
    let aside = directory.0.join("aside");
    let commit = |key: &'static str| store.commit(put(key, Expect::Absent, "1", Class::Durable));
    commit("/before").await.unwrap();
    assert_eq!(store.status().problem, None);
    let is_lost = |answer: Result<Revision, Error>, file: &Path| {
        let path = file.display().to_string();
        assert_eq!(answer, Err(Error::Lost { path }));
    };
    // Moved away, then another one in its place.
    std::fs::rename(&database, &aside).unwrap();
    is_lost(commit("/while-away").await, &database);
    assert!(matches!(store.status().problem, Some(Error::Lost { .. })));
    std::fs::write(&database, "another").unwrap();
    is_lost(commit("/replaced").await, &database);
    // Back again: it goes on.
    std::fs::rename(&aside, &database).unwrap();
    commit("/back").await.unwrap();
    assert_eq!(store.status().problem, None);
    let rescued = directory.0.join("state.db.rescued");
    assert!(!rescued.exists(), "it is older now than the database");
    let log = directory.0.join("state.db-wal");
    std::fs::remove_file(&log).unwrap();
    is_lost(commit("/without-log").await, &log);
    store.close();
    drop(store);
    // No start goes on without it, whatever else is there.
    let refused = SqliteStore::open(SqliteOptions::new(&directory.0)).err();
    let names = Error::Rescued {
        path: database.display().to_string(),
        rescued: rescued.display().to_string(),
    };
    assert_eq!(refused, Some(names));
    std::fs::remove_file(&database).unwrap();
    let refused = SqliteStore::open(SqliteOptions::new(&directory.0)).err();
    assert!(matches!(refused, Some(Error::Rescued { .. })));
    assert!(!database.exists(), "nor makes an empty one");
    // What was saved has all that was acknowledged before the first look that failed.
    let saved = directory.0.join("saved");
    std::fs::create_dir(&saved).unwrap();
    std::fs::rename(&rescued, saved.join("state.db")).unwrap();
    let (_store, sink) = open(&saved, |_| {});
    let keys: Vec<String> = sink.state.lock().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["/back", "/before"]);
}

#[tokio::test]
async fn a_log_that_is_cut_is_noticed_and_the_next_start_goes_on_with_the_rest() {
    let directory = Directory::new("cut");
    let (store, _) = open(&directory.0, |_| {});
    let log = directory.0.join("state.db-wal");
    let commit = |key: String| store.commit(put(&key, Expect::Absent, "1", Class::Durable));
    let mut lengths = Vec::new();
    for number in 0..20 {
        commit(format!("/{number:02}")).await.unwrap();
        lengths.push(std::fs::metadata(&log).unwrap().len());
    }
    let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
    file.set_len(lengths[9]).unwrap();
    let cut = Error::Cut {
        path: log.display().to_string(),
    };
    assert_eq!(commit("/after".to_owned()).await, Err(cut.clone()));
    assert_eq!(store.status().problem, Some(cut));
    store.close();
    drop(store);
    let refused = SqliteStore::open(SqliteOptions::new(&directory.0)).err();
    let Some(Error::WasCut { mark, .. }) = refused else {
        panic!("{refused:?}");
    };
    std::fs::remove_file(mark).unwrap();
    let (_store, sink) = open(&directory.0, |_| {});
    let keys = sink.state.lock().unwrap().len();
    assert_eq!(keys, 10, "what stands in the part that is left is there");
}

#[tokio::test]
async fn what_others_write_back_is_not_missing() {
    let directory = Directory::new("tidied");
    let (store, _) = open(&directory.0, |_| {});
    let commit = |key: &'static str| store.commit(put(key, Expect::Absent, "1", Class::Durable));
    commit("/a").await.unwrap();
    let other = rusqlite::Connection::open(directory.0.join("state.db")).unwrap();
    let tidy = "PRAGMA wal_checkpoint(TRUNCATE)";
    other.query_row(tidy, [], |_| Ok(())).unwrap();
    let log = std::fs::metadata(directory.0.join("state.db-wal")).unwrap();
    assert_eq!(log.len(), 0);
    commit("/b").await.unwrap();
    assert_eq!(store.status().problem, None);
}

#[tokio::test]
async fn a_log_that_leads_elsewhere_is_another_one() {
    let directory = Directory::new("led");
    let (store, _) = open(&directory.0, |_| {});
    let (log, aside) = (directory.0.join("state.db-wal"), directory.0.join("aside"));
    std::fs::rename(&log, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &log).unwrap();
    let path = log.display().to_string();
    let answer = store.commit(put("/a", Expect::Absent, "1", Class::Durable));
    assert_eq!(answer.await, Err(Error::Lost { path }));
}

#[tokio::test]
async fn a_lock_of_others_is_told_until_it_ends() {
    let directory = Directory::new("busy");
    let (store, _) = open(&directory.0, |_| {});
    let other = rusqlite::Connection::open(directory.0.join("state.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let commit = |key: &'static str| store.commit(put(key, Expect::Absent, "1", Class::Durable));
    assert_eq!(commit("/locked").await, Err(Error::Busy));
    assert_eq!(store.status().problem, Some(Error::Busy));
    other.execute_batch("ROLLBACK").unwrap();
    // Nobody has to write for it to be seen.
    let free = async {
        while store.status().problem.is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let limit = std::time::Duration::from_secs(20);
    tokio::time::timeout(limit, free).await.unwrap();
    commit("/free").await.unwrap();
}

//! The database file: creation, settings, format, integrity, last good copy.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::sum::Sum;
use super::{SqliteOptions, rows};
use crate::{Error, Revision};

/// 2: rows and meta table have checksums.
const FORMAT: i64 = 2;

/// How long a connection waits for the other one.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Revisions skipped when the newest state is lost and an older copy takes its place: far more
/// than can have been handed out since the copy was made.
const RESTORE_SKIP: Revision = 100_000_000;

/// What the first commit of a database records, and what later ones keep current.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) cluster_id: String,
    /// No revision above this one was ever shown.
    pub(super) ceiling: Revision,
    pub(super) compacted: Revision,
    /// The exclusive or of the checksums of all rows.
    pub(super) sum: u64,
}

impl Meta {
    /// Over everything that the table holds.
    fn check(&self) -> u64 {
        Sum::new()
            .bytes(self.cluster_id.as_bytes())
            .number(self.ceiling)
            .number(self.compacted)
            .number(self.sum)
            .finish()
    }
}

/// The opened file and the lock that keeps other processes out.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) meta: Meta,
    pub(super) lock: File,
}

pub(super) fn open(options: &SqliteOptions) -> Result<Opened, Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&options.directory)
        .map_err(|error| Error::io(&options.directory, error))?;
    let lock = lock(&options.directory)?;
    refuse_cut(options)?;
    refuse_rescued(options)?;
    let path = options.database();
    let opened = match is_missing(&path) && options.good_copy().exists() {
        true => Err(Error::Corrupt {
            path: path.display().to_string(),
            what: "the file is missing or empty".to_owned(),
        }),
        false => open_checked(options, &path),
    };
    let opened = match opened {
        // Opening needs a little space of its own.
        Err(Error::NoSpace) if fs::remove_file(options.ballast_file()).is_ok() => {
            open_checked(options, &path)
        }
        other => other,
    };
    let (connection, meta) = match opened {
        Err(Error::Corrupt { what, .. }) => recover(options, &path, &what)?,
        other => other?,
    };
    Ok(Opened {
        connection,
        meta,
        lock,
    })
}

/// What is left of a database that was cut short can be any earlier state of it, or nothing.
fn refuse_cut(options: &SqliteOptions) -> Result<(), Error> {
    let mark = options.cut_mark();
    match mark.exists() {
        true => Err(Error::WasCut {
            path: options.database().display().to_string(),
            mark: mark.display().to_string(),
        }),
        false => Ok(()),
    }
}

/// What was saved from a database that was removed or replaced is newer than whatever lies in its place, unless that was
/// put there on purpose. To go on without asking could lose acknowledged changes, or undo the restore of a backup.
fn refuse_rescued(options: &SqliteOptions) -> Result<(), Error> {
    let rescued = options.rescued();
    // What cannot be looked at may be there.
    match rescued.try_exists() {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::Rescued {
            path: options.database().display().to_string(),
            rescued: rescued.display().to_string(),
        }),
        Err(error) => Err(Error::io(&rescued, error)),
    }
}

/// Not there, or made but never written.
fn is_missing(path: &Path) -> bool {
    let empty = |path: &Path| fs::metadata(path).map_or(true, |meta| meta.len() == 0);
    empty(path) && empty(&beside(path, "-wal"))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join("lock");
    let file = private_file(&path)?;
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => Error::Locked {
            path: directory.display().to_string(),
        },
        fs::TryLockError::Error(error) => Error::io(&path, error),
    })?;
    Ok(file)
}

/// Creates the file with mode 0600 where it does not exist yet.
fn private_file(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::io(path, error))
}

fn open_checked(options: &SqliteOptions, path: &Path) -> Result<(Connection, Meta), Error> {
    let connection = connect(options, path, false)?;
    prepare(&connection)?;
    let meta = check(&connection, path)?;
    Ok((connection, meta))
}

/// Reads everything: structure, the checksum of every row, of all rows together, of the meta table.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<Meta, Error> {
    let corrupt = |what: String| Error::Corrupt {
        path: path.display().to_string(),
        what,
    };
    let answer: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if answer != "ok" {
        return Err(corrupt(answer));
    }
    let meta = read_meta(connection)?.map_err(corrupt)?;
    match rows::verify(connection)? {
        Ok(sum) if sum == meta.sum => Ok(meta),
        Ok(_) => Err(corrupt("rows are missing or too many".to_owned())),
        Err(what) => Err(corrupt(what)),
    }
}

pub(super) fn connect(
    options: &SqliteOptions,
    path: &Path,
    read_only: bool,
) -> Result<Connection, Error> {
    let mut flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if read_only {
        flags |= OpenFlags::SQLITE_OPEN_READ_ONLY;
    } else {
        private_file(path)?;
        flags |= OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = match &options.vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs.as_str())?,
        None => Connection::open_with_flags(path, flags)?,
    };
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // What is written back, and when, is the writer's decision: not into a database whose log was cut.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.execute_batch("PRAGMA temp_store=MEMORY; PRAGMA cache_size=-2000;")?;
    if !read_only {
        // Sizes and vacuum mode only take effect before the first table.
        connection.execute_batch(
            "PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;
             PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0;
             PRAGMA journal_size_limit=4194304;",
        )?;
    }
    Ok(connection)
}

/// Makes the tables in one first commit, or brings those of an older format up to date.
fn prepare(connection: &Connection) -> Result<(), Error> {
    let exists: Option<i64> = connection
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type='table' AND name='meta'",
            [],
            |row| row.get(0),
        )
        .optional()?;
    let transaction = connection.unchecked_transaction()?;
    if exists.is_none() {
        transaction.execute_batch(&format!(
            "CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
             CREATE TABLE log(revision INTEGER PRIMARY KEY, key TEXT NOT NULL,
                              created INTEGER NOT NULL, value BLOB, sum INTEGER);
             CREATE UNIQUE INDEX log_key ON log(key, revision);
             INSERT INTO meta VALUES ('format', {FORMAT}), ('ceiling', 0), ('compacted', 0),
                                     ('cluster_id', lower(hex(randomblob(16)))),
                                     ('sum', 0), ('check', 0);"
        ))?;
        seal_meta(&transaction)?;
    } else if format(connection)? == 1 {
        transaction.execute_batch(&format!(
            "ALTER TABLE log ADD COLUMN sum INTEGER;
             INSERT INTO meta VALUES ('sum', 0), ('check', 0);
             UPDATE meta SET value={FORMAT} WHERE name='format';"
        ))?;
        seal_meta(&transaction)?;
    }
    Ok(transaction.commit()?)
}

fn number(connection: &Connection, name: &str) -> Result<i64, rusqlite::Error> {
    connection.query_row("SELECT value FROM meta WHERE name=?1", [name], |row| {
        row.get(0)
    })
}

fn format(connection: &Connection) -> Result<i64, Error> {
    let found = number(connection, "format")?;
    if found > FORMAT {
        return Err(Error::Format {
            found,
            known: FORMAT,
        });
    }
    Ok(found)
}

/// What the meta table holds, and whether that is what was written.
fn read_meta(connection: &Connection) -> Result<Result<Meta, String>, Error> {
    format(connection)?;
    let meta = recorded(connection)?;
    if number(connection, "check")?.cast_unsigned() != meta.check() {
        return Ok(Err("the checksum of the meta table is wrong".to_owned()));
    }
    Ok(Ok(meta))
}

fn recorded(connection: &Connection) -> Result<Meta, rusqlite::Error> {
    let read = |name| number(connection, name).map(i64::cast_unsigned);
    Ok(Meta {
        cluster_id: connection.query_row(
            "SELECT value FROM meta WHERE name='cluster_id'",
            [],
            |row| row.get(0),
        )?,
        ceiling: read("ceiling")?,
        compacted: read("compacted")?,
        sum: read("sum")?,
    })
}

/// Writes the checksum of a meta table that was made or changed by SQL.
fn seal_meta(connection: &Connection) -> Result<(), Error> {
    let meta = recorded(connection)?;
    set(connection, "check", meta.check())?;
    Ok(())
}

fn set(connection: &Connection, name: &str, value: u64) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("UPDATE meta SET value=?2 WHERE name=?1")?
        .execute((name, value.cast_signed()))?;
    Ok(())
}

/// Writes what differs.
pub(super) fn write_meta(
    connection: &Connection,
    old: &Meta,
    new: &Meta,
) -> Result<(), rusqlite::Error> {
    for (name, old, new) in [
        ("ceiling", old.ceiling, new.ceiling),
        ("compacted", old.compacted, new.compacted),
        ("sum", old.sum, new.sum),
        ("check", old.check(), new.check()),
    ] {
        if old != new {
            set(connection, name, new)?;
        }
    }
    Ok(())
}

/// Sets the damaged file aside and continues from the last good copy. Every step can be the last
/// one before a crash: the copy is tried first, and a missing database is restored like a damaged one.
fn recover(options: &SqliteOptions, path: &Path, what: &str) -> Result<(Connection, Meta), Error> {
    let copy = options.good_copy();
    tracing::error!(path = %path.display(), what, "the database is damaged");
    let refuse = |why: String| Error::Corrupt {
        path: path.display().to_string(),
        what: format!(
            "{what}; {why}. Restore a backup as {}, or move {} away to begin with an empty cluster",
            path.display(),
            options.directory.display()
        ),
    };
    if !copy.exists() {
        return Err(refuse("there is no earlier copy".to_owned()));
    }
    let fresh = beside(path, ".restored");
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(beside(&fresh, suffix));
    }
    private_file(&fresh)?;
    fs::copy(&copy, &fresh).map_err(|error| Error::io(&fresh, error))?;
    match open_checked(options, &fresh).and_then(|(connection, meta)| skip(&connection, meta)) {
        Ok(()) => {}
        Err(Error::Corrupt { what, .. }) => {
            return Err(refuse(format!(
                "the copy {} is damaged too ({what})",
                copy.display()
            )));
        }
        Err(error) => return Err(error),
    }
    let aside = set_aside(path)?;
    fs::rename(&fresh, path).map_err(|error| Error::io(path, error))?;
    sync_directory(&options.directory)?;
    tracing::error!(copy = %copy.display(), aside = %aside.display(),
        "continuing from the last good copy; changes made after it are lost");
    open_checked(options, path)
}

/// Revisions go on above everything that can have been shown since the copy was made. Closes the
/// connection, so that the whole state is in the one file.
fn skip(connection: &Connection, copied: Meta) -> Result<(), Error> {
    let newest = newest_row(connection)?;
    let mut meta = copied.clone();
    meta.ceiling = meta.ceiling.max(newest) + RESTORE_SKIP;
    let transaction = connection.unchecked_transaction()?;
    write_meta(&transaction, &copied, &meta)?;
    transaction.commit()?;
    Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
}

/// The log goes first: it must never meet another database of the same name.
fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let stamp = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let aside = beside(path, &format!(".damaged-{stamp}"));
    for suffix in ["-wal", "-shm", ""] {
        let from = beside(path, suffix);
        if from.exists() {
            fs::rename(&from, beside(&aside, suffix)).map_err(|error| Error::io(&from, error))?;
        }
        if let Some(directory) = path.parent() {
            sync_directory(directory)?;
        }
    }
    Ok(aside)
}

fn sync_directory(directory: &Path) -> Result<(), Error> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| Error::io(directory, error))
}

pub(super) fn newest_row(connection: &Connection) -> Result<Revision, Error> {
    let newest: Option<i64> =
        connection.query_row("SELECT max(revision) FROM log", [], |row| row.get(0))?;
    Ok(newest.unwrap_or(0).cast_unsigned())
}

/// A consistent copy by way of a temporary file, so that the target is old or new, never half.
pub(super) fn copy_to(connection: &Connection, target: &Path) -> Result<(), Error> {
    let temporary = PathBuf::from(format!("{}.tmp", target.display()));
    let _ = fs::remove_file(&temporary);
    let file = private_file(&temporary)?;
    connection.execute("VACUUM INTO ?1", [temporary.to_string_lossy().as_ref()])?;
    file.sync_all()
        .map_err(|error| Error::io(&temporary, error))?;
    fs::rename(&temporary, target).map_err(|error| Error::io(target, error))?;
    target.parent().map_or(Ok(()), sync_directory)
}

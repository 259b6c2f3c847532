//! The database file: creation, settings, format, integrity, last good copy.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::SqliteOptions;
use crate::{Error, Revision};

const FORMAT: i64 = 1;

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
    let path = options.database();
    let (connection, meta) = match open_checked(options, &path) {
        Err(Error::Corrupt { what, .. }) => recover(options, &path, &what)?,
        other => other?,
    };
    Ok(Opened {
        connection,
        meta,
        lock,
    })
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
    let corrupt = |what: String| Error::Corrupt {
        path: path.display().to_string(),
        what,
    };
    let connection = connect(options, path, false)?;
    let meta = prepare(&connection)?;
    let answer: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if answer != "ok" {
        return Err(corrupt(answer));
    }
    Ok((connection, meta))
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
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.execute_batch("PRAGMA temp_store=MEMORY; PRAGMA cache_size=-2000;")?;
    if !read_only {
        // Sizes and vacuum mode only take effect before the first table.
        connection.execute_batch(
            "PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;
             PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=1000;
             PRAGMA journal_size_limit=4194304;",
        )?;
    }
    Ok(connection)
}

/// Makes the tables in one first commit, or reads what that commit recorded.
fn prepare(connection: &Connection) -> Result<Meta, Error> {
    let exists: Option<i64> = connection
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type='table' AND name='meta'",
            [],
            |row| row.get(0),
        )
        .optional()?;
    if exists.is_none() {
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE;
             CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
             CREATE TABLE log(revision INTEGER PRIMARY KEY, key TEXT NOT NULL,
                              created INTEGER NOT NULL, value BLOB);
             CREATE UNIQUE INDEX log_key ON log(key, revision);
             INSERT INTO meta VALUES ('format', {FORMAT}), ('ceiling', 0), ('compacted', 0),
                                     ('cluster_id', lower(hex(randomblob(16))));
             COMMIT;"
        ))?;
    }
    read_meta(connection)
}

fn read_meta(connection: &Connection) -> Result<Meta, Error> {
    let number = |name: &str| -> Result<i64, Error> {
        Ok(
            connection.query_row("SELECT value FROM meta WHERE name=?1", [name], |row| {
                row.get(0)
            })?,
        )
    };
    let found = number("format")?;
    if found > FORMAT {
        return Err(Error::Format {
            found,
            known: FORMAT,
        });
    }
    Ok(Meta {
        cluster_id: connection.query_row(
            "SELECT value FROM meta WHERE name='cluster_id'",
            [],
            |row| row.get(0),
        )?,
        ceiling: number("ceiling")?.cast_unsigned(),
        compacted: number("compacted")?.cast_unsigned(),
    })
}

pub(super) fn write_meta(
    connection: &Connection,
    name: &str,
    value: Revision,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("UPDATE meta SET value=?2 WHERE name=?1")?
        .execute((name, value.cast_signed()))?;
    Ok(())
}

/// Sets the damaged file aside and continues from the last good copy.
fn recover(options: &SqliteOptions, path: &Path, what: &str) -> Result<(Connection, Meta), Error> {
    let copy = options.good_copy();
    tracing::error!(path = %path.display(), what, "the database is damaged");
    if !copy.exists() {
        return Err(Error::Corrupt {
            path: path.display().to_string(),
            what: format!("{what}; there is no earlier copy, restore a backup"),
        });
    }
    let aside = set_aside(path)?;
    fs::copy(&copy, path).map_err(|error| Error::io(path, error))?;
    tracing::error!(copy = %copy.display(), aside = %aside.display(),
        "continuing from the last good copy; changes made after it are lost");
    let (connection, mut meta) = open_checked(options, path)?;
    let newest = newest_row(&connection)?;
    meta.ceiling = meta.ceiling.max(newest) + RESTORE_SKIP;
    write_meta(&connection, "ceiling", meta.ceiling)?;
    Ok((connection, meta))
}

fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let stamp = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let aside = PathBuf::from(format!("{}.damaged-{stamp}", path.display()));
    fs::rename(path, &aside).map_err(|error| Error::io(path, error))?;
    for suffix in ["-wal", "-shm"] {
        let side = PathBuf::from(format!("{}{suffix}", path.display()));
        if side.exists() {
            let target = PathBuf::from(format!("{}{suffix}", aside.display()));
            fs::rename(&side, target).map_err(|error| Error::io(&side, error))?;
        }
    }
    Ok(aside)
}

pub(super) fn newest_row(connection: &Connection) -> Result<Revision, Error> {
    let newest: Option<i64> =
        connection.query_row("SELECT max(revision) FROM log", [], |row| row.get(0))?;
    Ok(newest.unwrap_or(0).cast_unsigned())
}

/// Renews the last good copy of a database that was checked, if it has become old. Failing to is
/// worth a warning only.
pub(super) fn refresh_copy(options: &SqliteOptions, connection: &Connection) {
    let copy = options.good_copy();
    let fresh = fs::metadata(&copy)
        .and_then(|meta| meta.modified())
        .ok()
        .and_then(|time| time.elapsed().ok())
        .is_some_and(|age| age < options.copy_age);
    let empty = newest_row(connection).is_ok_and(|newest| newest == 0);
    if fresh || empty {
        return;
    }
    if let Err(error) = copy_to(connection, &copy) {
        tracing::warn!(%error, "cannot renew the last good copy of the database");
    }
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
    if let Some(directory) = target.parent() {
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| Error::io(directory, error))?;
    }
    Ok(())
}

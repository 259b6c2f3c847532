//! The store on one SQLite file in WAL mode.
//!
//! A dedicated thread (`writer`) owns the only connection that writes. Reads of history use a
//! second connection. The key index (key → revision) is held in memory, so that a
//! compare-and-set needs no query.

mod ballast;
mod copy;
mod file;
mod handle;
mod ledger;
mod place;
mod rewrite;
mod rows;
mod sum;
#[cfg(test)]
mod tests;
mod writer;

pub use handle::SqliteStore;

use std::path::PathBuf;
use std::time::Duration;

/// Where the database lives and how much it may put off.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// The directory of the database and its last good copy; made with mode 0700.
    pub directory: PathBuf,
    /// How many revisions of history to keep. Watches are served from memory, so this only has
    /// to cover reads at an exact revision.
    pub history: u64,
    /// How long volatile changes may stay in memory only.
    pub volatile_delay: Duration,
    /// How many bytes of volatile values may stay in memory only.
    pub volatile_bytes: usize,
    /// How far ahead revisions are reserved.
    pub reserve: u64,
    /// After this long without writes the log file is written back and emptied.
    pub idle: Duration,
    /// The age at which the last good copy is made anew.
    pub copy_age: Duration,
    /// Disk space held back for deletions on a full disk.
    pub ballast: u64,
    /// Another SQLite file layer, for fault injection.
    pub vfs: Option<String>,
}

impl SqliteOptions {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            history: 1_000,
            volatile_delay: Duration::from_secs(300),
            volatile_bytes: 4 << 20,
            reserve: 10_000,
            idle: Duration::from_secs(10),
            copy_age: Duration::from_secs(24 * 3600),
            ballast: 16 << 20,
            vfs: None,
        }
    }

    fn database(&self) -> PathBuf {
        self.directory.join("state.db")
    }

    fn ballast_file(&self) -> PathBuf {
        self.directory.join("ballast")
    }

    /// Where the content goes if the database was removed or replaced while it was in use. No start as long as it is there.
    fn rescued(&self) -> PathBuf {
        self.directory.join("state.db.rescued")
    }

    /// Says that the database was cut short while it was in use. No start as long as it is there.
    fn cut_mark(&self) -> PathBuf {
        self.directory.join("state.db.cut")
    }

    fn good_copy(&self) -> PathBuf {
        self.directory.join("state.db.good")
    }
}

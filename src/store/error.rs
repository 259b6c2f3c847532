//! How the store fails.

use crate::Revision;

/// Cloneable, because one failed transaction answers every writer that took part in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The change expected the key to be absent.
    #[error("the key exists at revision {revision}")]
    KeyExists { revision: Revision },
    /// The change expected another revision; `current` is `None` where the key does not exist.
    #[error("the key is at revision {current:?}, not at the expected one")]
    RevisionMismatch { current: Option<Revision> },
    /// The revision's history is gone; `oldest` is the first one that can still be read.
    #[error("the revision has been compacted; the oldest one kept is {oldest}")]
    Compacted { oldest: Revision },
    #[error("revision {asked} is in the future; the newest one is {current}")]
    FutureRevision { asked: Revision, current: Revision },
    /// Deletions go on, updates of what is there as long as they fit.
    #[error(
        "the disk of the database is full: delete objects or files; creating goes on by itself when there is space"
    )]
    NoSpace,
    #[error("the database can only be read: make its disk writable again")]
    ReadOnly,
    /// Whatever were written there would be lost.
    #[error(
        "the database file {path} was removed or replaced while it was in use: nothing is written any more"
    )]
    Lost { path: String },
    /// What was cut off cannot be had back, and what were written after it would not be found.
    #[error(
        "the database file {path} was cut short by something else while it was in use: nothing is written any more, and \
         no start goes on by itself with what is left"
    )]
    Cut { path: String },
    /// What is left can be anything, down to an empty cluster: somebody has to want it.
    #[error(
        "the database {path} was cut short by something else while it was in use, and changes that were acknowledged are \
         gone. To go on with a backup: put it in the place of {path}, remove {path}-wal, {path}-shm and {mark}. To go on \
         with what is left, which may be nothing: remove {mark}. Then start again. {path}.good, if it is there, is an earlier copy"
    )]
    WasCut { path: String, mark: String },
    /// Another process holds the database's own lock.
    #[error(
        "another process keeps the database locked (a shell of SQLite, or a copy being made?): nothing can be written \
         until it ends"
    )]
    Busy,
    /// Somebody has to say which of the two the cluster goes on with.
    #[error(
        "the database file {path} was removed or replaced while it was in use, and everything that was acknowledged until \
         then was saved in {rescued}. To go on with what was saved (recommended): remove {path}, {path}-wal and \
         {path}-shm where they exist, then rename {rescued} to {path}. To go on with {path} as it is now (it was moved \
         back, or a backup was restored): remove {rescued}. Then start again"
    )]
    Rescued { path: String, rescued: String },
    /// Too many writers wait already.
    #[error("too many writes are waiting")]
    Overloaded,
    /// The store is not started, or shuts down.
    #[error("the store is not available")]
    Unavailable,
    #[error("the database at {path} is damaged: {what}")]
    Corrupt { path: String, what: String },
    /// The file was written by a newer program.
    #[error(
        "the database has format {found}, this program reads up to {known}; use a newer program or a backup"
    )]
    Format { found: i64, known: i64 },
    /// Another process has the database open.
    #[error("the database at {path} is in use by another process")]
    Locked { path: String },
    #[error("database input/output: {what}")]
    Io { what: String },
}

impl Error {
    pub(crate) fn io(path: &std::path::Path, error: std::io::Error) -> Self {
        Self::Io {
            what: format!("{}: {error}", path.display()),
        }
    }
}

/// The statements never change, so that it is the file that lacks what they name. SQLite has no code for this.
fn is_of_another_form(error: &rusqlite::Error) -> bool {
    let text = error.to_string();
    let forms = [
        "unsupported file format",
        "no such table",
        "no such column",
        "malformed",
    ];
    forms.iter().any(|form| text.contains(form))
}

fn is_misread(error: &rusqlite::Error) -> bool {
    use rusqlite::Error as E;
    matches!(
        error,
        E::FromSqlConversionFailure(..)
            | E::QueryReturnedNoRows
            | E::InvalidColumnType(..)
            | E::IntegralValueOutOfRange(..)
            | E::Utf8Error(..)
    )
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;
        match error.sqlite_error_code() {
            Some(Code::DiskFull) => Self::NoSpace,
            Some(Code::ReadOnly) => Self::ReadOnly,
            Some(Code::DatabaseBusy) => Self::Busy,
            Some(Code::DatabaseCorrupt | Code::NotADatabase) => Self::Corrupt {
                path: String::new(),
                what: error.to_string(),
            },
            Some(Code::Unknown) if is_of_another_form(&error) => Self::Corrupt {
                path: String::new(),
                what: error.to_string(),
            },
            // What was read is not what can have been written.
            None if is_misread(&error) => Self::Corrupt {
                path: String::new(),
                what: error.to_string(),
            },
            _ => Self::Io {
                what: error.to_string(),
            },
        }
    }
}

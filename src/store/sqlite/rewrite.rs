//! Writes the log once more, where it stands.
//!
//! When a sync fails, Linux counts what it could not write as written: the next sync succeeds without it, and whatever
//! is built on the log then stands on nothing. Written again, the same bytes wait for a sync as if they were new. The
//! log's file is reached through SQLite's file layer, so that this works whatever lies below.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use rusqlite::{Connection, ffi};

use crate::Error;

/// Bytes read and written in one go.
const PIECE: usize = 64 << 10;

/// Everything in the log is on disk when this has succeeded. Nobody else may write meanwhile: the caller holds the lock.
pub(super) fn rewrite_log(connection: &Connection) -> Result<(), Error> {
    let log = log_file(connection)?;
    let size = log.size()?;
    let mut buffer = vec![0_u8; PIECE];
    let mut offset = 0;
    while offset < size {
        let rest = usize::try_from(size - offset).unwrap_or(PIECE);
        let piece = &mut buffer[..rest.min(PIECE)];
        log.read(piece, offset)?;
        log.write(piece, offset)?;
        offset += piece.len() as i64;
    }
    log.sync()
}

/// A file that SQLite has open, for as long as the connection is borrowed.
struct LogFile<'a> {
    file: *mut ffi::sqlite3_file,
    methods: &'a ffi::sqlite3_io_methods,
}

fn log_file(connection: &Connection) -> Result<LogFile<'_>, Error> {
    let mut file: *mut ffi::sqlite3_file = null_mut();
    // SAFETY: the connection is open, and this operation stores a pointer where its last argument points.
    let code = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_JOURNAL_POINTER,
            (&raw mut file).cast::<c_void>(),
        )
    };
    done(code)?;
    // SAFETY: SQLite's own file object, which lives as long as the connection; its methods are set while it is open.
    let methods = unsafe { file.as_ref().and_then(|file| file.pMethods.as_ref()) };
    let methods = methods.ok_or_else(|| missing("the log of the database is not open"))?;
    Ok(LogFile { file, methods })
}

impl LogFile<'_> {
    fn size(&self) -> Result<i64, Error> {
        let mut size = 0;
        // SAFETY: a method of the open file, called with that file.
        self.call(self.methods.xFileSize, |method| unsafe {
            method(self.file, &raw mut size)
        })?;
        Ok(size)
    }

    fn read(&self, to: &mut [u8], offset: i64) -> Result<(), Error> {
        // SAFETY: as above; the buffer has the length that is told.
        self.call(self.methods.xRead, |method| unsafe {
            method(self.file, to.as_mut_ptr().cast(), length(to), offset)
        })
    }

    fn write(&self, from: &[u8], offset: i64) -> Result<(), Error> {
        // SAFETY: as above.
        self.call(self.methods.xWrite, |method| unsafe {
            method(self.file, from.as_ptr().cast(), length(from), offset)
        })
    }

    fn sync(&self) -> Result<(), Error> {
        // SAFETY: as above.
        self.call(self.methods.xSync, |method| unsafe {
            method(self.file, ffi::SQLITE_SYNC_NORMAL)
        })
    }

    fn call<M: Copy>(&self, method: Option<M>, run: impl FnOnce(M) -> c_int) -> Result<(), Error> {
        let method = method.ok_or_else(|| missing("the file layer lacks a method"))?;
        done(run(method))
    }
}

/// Of a piece.
fn length(piece: &[u8]) -> c_int {
    c_int::try_from(piece.len()).unwrap_or(c_int::MAX)
}

fn missing(what: &str) -> Error {
    Error::Io {
        what: what.to_owned(),
    }
}

fn done(code: c_int) -> Result<(), Error> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()),
    }
}

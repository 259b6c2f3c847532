//! Whether the files that are written still are those that the next start would find.
//!
//! A file that was removed or replaced can be written on, and whatever goes there is lost when it is closed. A look
//! costs two questions to the kernel (about a microsecond) beside a sync that takes a hundred times that, so that
//! there is one before each transaction.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// The database and its log as they were opened.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(Vec<(PathBuf, (u64, u64))>);

impl Place {
    /// What lies there now. What cannot be seen there (another file layer may keep it elsewhere) is not looked for.
    pub(super) fn of(database: &Path) -> Self {
        let log = PathBuf::from(format!("{}-wal", database.display()));
        let seen = [database.to_owned(), log].into_iter();
        Self(
            seen.filter_map(|path| Some((identity(&path)?, path)))
                .map(|(identity, path)| (path, identity))
                .collect(),
        )
    }

    /// Refuses if a file is not there any more, or another one in its place.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self
            .0
            .iter()
            .find(|(path, known)| identity(path) != Some(*known))
        {
            None => Ok(()),
            Some((path, _)) => Err(Error::Lost {
                path: path.display().to_string(),
            }),
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

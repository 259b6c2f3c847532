//! Whether the files that are written still are those that the next start would find.
//!
//! A file that was removed or replaced can be written on, and whatever goes there is lost when it is closed; one that was
//! cut has lost what stood there. A look costs two questions to the kernel a file (about a microsecond) beside a sync
//! that takes a hundred times that, so that there is one before each transaction.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// The database and its log as they were opened.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(Arc<[Known]>);

#[derive(Debug)]
struct Known {
    path: PathBuf,
    identity: Identity,
    /// As the last transaction left it.
    length: AtomicU64,
}

/// The entry of the directory, and what it leads to: the log stands beside that.
type Identity = [(u64, u64); 2];

impl Place {
    /// What lies there now. What cannot be seen there (another file layer may keep it elsewhere) is not looked for.
    pub(super) fn of(database: &Path) -> Self {
        let log = PathBuf::from(format!("{}-wal", database.display()));
        let known = [database.to_owned(), log].into_iter().filter_map(|path| {
            let (identity, meta) = seen(&path)?;
            let length = AtomicU64::new(meta.len());
            Some(Known {
                path,
                identity,
                length,
            })
        });
        Self(known.collect())
    }

    /// Refuses if a file is not there any more, another one in its place, or shorter than it was left.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(|known| {
            let path = || known.path.display().to_string();
            // A transaction may end between two looks: what held before it is as good as what holds after it.
            let before = known.length.load(Ordering::Acquire);
            match seen(&known.path) {
                Some((identity, meta)) if identity == known.identity => {
                    let after = known.length.load(Ordering::Acquire);
                    match meta.len() < before.min(after) {
                        true => Err(Error::Cut { path: path() }),
                        false => Ok(()),
                    }
                }
                Some(_) | None => Err(Error::Lost { path: path() }),
            }
        })
    }

    /// After a change of our own: the lengths are what they are now.
    pub(super) fn note(&self) {
        for known in self.0.iter() {
            if let Some((_, meta)) = seen(&known.path) {
                known.length.store(meta.len(), Ordering::Release);
            }
        }
    }

    /// Before a change of our own that may cut the files.
    pub(super) fn forget_lengths(&self) {
        for known in self.0.iter() {
            known.length.store(0, Ordering::Release);
        }
    }
}

fn seen(path: &Path) -> Option<(Identity, Metadata)> {
    let identity = |meta: &Metadata| (meta.dev(), meta.ino());
    let entry = fs::symlink_metadata(path).ok()?;
    let file = fs::metadata(path).ok()?;
    Some(([identity(&entry), identity(&file)], file))
}

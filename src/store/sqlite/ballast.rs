//! A file that holds disk space back, so that a full disk can be cleared by deleting objects.
//!
//! When the disk is full the first half is given free for deletions and for updates of what is
//! there (finalizers, status, renewals), the second half for deletions alone. Creations are refused
//! until all of it can be held back again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// What the disk still takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Space {
    /// Everything.
    Enough,
    /// Deletions and updates.
    Low,
    /// Deletions.
    Out,
}

pub(super) struct Ballast {
    path: PathBuf,
    size: u64,
    space: Space,
    /// That space is low has been told.
    warned: bool,
}

/// So much more than the ballast itself must be free before it is taken back.
const MARGIN: u64 = 1 << 20;

impl Ballast {
    /// Takes the ballast if there is room for it.
    pub(super) fn new(path: PathBuf, size: u64) -> Self {
        let mut ballast = Self {
            path,
            size,
            space: Space::Low,
            warned: false,
        };
        ballast.take_back();
        if ballast.space != Space::Enough {
            ballast.warn();
        }
        ballast
    }

    fn warn(&mut self) {
        self.warned = true;
        tracing::error!(
            ballast = %self.path.display(),
            "the disk is full: objects can be deleted and updated but not created until there is space again"
        );
    }

    pub(super) fn space(&self) -> Space {
        self.space
    }

    /// Gives the next half free; false if there is none left.
    pub(super) fn release(&mut self) -> bool {
        let (space, size) = match self.space {
            Space::Enough => (Space::Low, self.size / 2),
            Space::Low => (Space::Out, 0),
            Space::Out => return false,
        };
        if self.space == Space::Enough {
            self.warn();
        }
        self.space = space;
        let shrunk = self.file().and_then(|file| match file.metadata()?.len() {
            length if length > size => file.set_len(size),
            _ => Ok(()),
        });
        if let Err(error) = shrunk {
            tracing::warn!(%error, path = %self.path.display(), "cannot give disk space free");
        }
        true
    }

    /// Holds all of it back again if the disk has the room.
    pub(super) fn take_back(&mut self) {
        let Ok(file) = self.file() else {
            // Not for want of space; what is wrong will be told by the first transaction.
            self.space = Space::Enough;
            return;
        };
        let length = file.metadata().map_or(0, |meta| meta.len());
        if length < self.size && !self.grow(&file, length) {
            return;
        }
        if self.space != Space::Enough && self.warned {
            tracing::info!("the disk has space for the database again");
        }
        self.warned = false;
        self.space = Space::Enough;
    }

    fn grow(&self, file: &File, length: u64) -> bool {
        let free = rustix::fs::fstatvfs(file).map_or(0, |disk| disk.f_bavail * disk.f_frsize);
        if free < self.size - length + MARGIN {
            return false;
        }
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(file, flags, 0, self.size) {
            Ok(()) => true,
            // File systems that cannot reserve: all their room is shared, nothing to hold back.
            Err(rustix::io::Errno::OPNOTSUPP) => true,
            Err(_) => {
                // What was taken before the room ended.
                let _ = file.set_len(length);
                false
            }
        }
    }

    fn file(&self) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&self.path)
    }
}

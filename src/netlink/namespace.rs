//! Sockets and work in another network namespace.
//!
//! `setns` moves the calling thread, so it never happens on a thread that somebody else uses: each
//! call makes a thread of its own. A socket stays in the namespace it was opened in, which is why
//! most callers need only [`crate::Socket::open_in`].

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// An open network namespace; it lives at least as long as this handle.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    path: PathBuf,
}

impl Namespace {
    /// The namespace that a path such as `/run/netns/x` or `/proc/PID/ns/net` stands for.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_path_buf();
        let file = File::open(&path).map_err(|source| Error::Namespace {
            path: path.display().to_string(),
            source,
        })?;
        if !is_namespace_file(&file) {
            return Err(Error::Namespace {
                path: path.display().to_string(),
                source: io::Error::new(io::ErrorKind::NotFound, "not a namespace"),
            });
        }
        Ok(Self { file, path })
    }

    /// The calling thread's own.
    pub fn current() -> Result<Self, Error> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// A fresh one that nothing else refers to.
    pub fn create() -> Result<Self, Error> {
        let work = || {
            // SAFETY: no memory is involved; only this short-lived thread changes its namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(Error::Namespace {
                    path: "(new)".into(),
                    source: io::Error::last_os_error(),
                });
            }
            Self::current()
        };
        on_own_thread(work)?
    }

    /// The number that identifies it while it lives.
    pub fn inode(&self) -> Result<u64, Error> {
        self.file
            .metadata()
            .map(|m| m.ino())
            .map_err(|source| Error::Namespace {
                path: self.path.display().to_string(),
                source,
            })
    }

    /// Runs `work` on a thread of its own inside this namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        run_in(self.file.as_fd(), &self.path, work)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether `path` is a live namespace: a leftover mount point is an ordinary empty file.
pub fn is_namespace(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| is_namespace_file(&file))
}

fn is_namespace_file(file: &File) -> bool {
    const NSFS_MAGIC: u64 = 0x6e73_6673;
    rustix::fs::fstatfs(file).is_ok_and(|s| s.f_type as u64 == NSFS_MAGIC)
}

pub(crate) fn run_in<T: Send>(
    namespace: BorrowedFd<'_>,
    path: &Path,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    on_own_thread(|| {
        // SAFETY: the descriptor is open for the whole call; only this thread moves.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(Error::Namespace {
                path: path.display().to_string(),
                source: io::Error::last_os_error(),
            });
        }
        Ok(work())
    })?
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, work)
            .map_err(|source| Error::Socket {
                what: "starting a thread",
                source,
            })?
            .join()
            .map_err(|_| Error::Malformed("a panic while in another namespace"))
    })
}

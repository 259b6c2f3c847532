//! What can go wrong between us and the kernel.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused one message; `what` says which, `detail` is the kernel's own text, if any.
    #[error("{what}: {errno}{}", .detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Refused {
        what: String,
        errno: io::Error,
        detail: Option<String>,
    },
    #[error("netlink socket, {what}: {source}")]
    Socket {
        what: &'static str,
        source: io::Error,
    },
    #[error("network namespace {path}: {source}")]
    Namespace { path: String, source: io::Error },
    /// The kernel dropped answers because our buffer was full; the outcome is not known.
    #[error("the kernel's answers overran the receive buffer")]
    Overrun,
    #[error("unexpected answer from the kernel: {0}")]
    Malformed(&'static str),
    #[error("no link named {0}")]
    NoSuchLink(String),
    /// A caller's mistake that the kernel would report less clearly.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn socket(what: &'static str) -> Self {
        Self::Socket {
            what,
            source: io::Error::last_os_error(),
        }
    }

    /// The kernel's error number, where it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { errno, .. } => errno.raw_os_error(),
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoSuchLink(_))
            || matches!(
                self.errno(),
                Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::EADDRNOTAVAIL)
            )
    }

    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }
}

/// Turns "already there" into success: for things whose presence is all that matters.
pub fn allow_exists(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_exists() => Ok(()),
        other => other,
    }
}

/// Turns "not there" into success: for things whose absence is all that matters.
pub fn allow_missing(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

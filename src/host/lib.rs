//! The journal of every change made to the host, each with its inverse.
//!
//! Whoever is about to change something outside the data directory (a sysctl, a link, a route, an
//! nf_tables table, a mount, a cgroup, a file) records it first; [`Journal::undo_all`] takes
//! everything back, newest first, and leaves alone what it did not make. The journal is one file of
//! JSON lines that is only appended to: a line is on disk before the change is made, so a crash at
//! any moment leaves at worst an entry for a change that never happened, which undoes to nothing.
//!
//! Network changes are undone through [`NetworkUndo`], which a crate that speaks netlink implements.

pub mod change;
pub mod journal;
pub mod sysctl;
pub mod undo;

pub use change::Change;
pub use journal::{Entry, EntryId, Journal};
pub use undo::{NetworkUndo, Outcome, Undone, unmount};

/// What can go wrong with the journal or a change made through it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} the host journal {path}: {source}")]
    Journal {
        what: &'static str,
        path: String,
        source: std::io::Error,
    },
    #[error("cannot set {key} to {value:?}: {source}")]
    Sysctl {
        key: String,
        value: String,
        source: std::io::Error,
    },
}

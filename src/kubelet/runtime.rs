//! The container runtime below the pod workers.
//!
//! [`supervisor`] keeps a containerd of our own running (or connects to one given by `--container-runtime-endpoint`),
//! [`config`] renders its configuration, [`pause`] makes the sandbox image, [`images`] imports archives from
//! `<data-dir>/agent/images/`.

pub mod binaries;
pub mod config;
pub mod images;
mod log;
pub mod pause;
mod process;
pub mod registries;
pub mod supervisor;

pub use supervisor::{RuntimeHandle, RuntimeSettings, start};

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{name} was not found on PATH, in {} or in {}: install containerd and runc, or give a running runtime's socket with --container-runtime-endpoint", own.display(), binaries::USUAL_PLACES.join(", "))]
    NotInstalled { name: &'static str, own: PathBuf },
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start containerd")]
    Spawn(#[source] std::io::Error),
    #[error("the containerd of an earlier run (process {pid}) does not end")]
    Leftover { pid: i32 },
    #[error("containerd did not become ready within {seconds} s, see {}", log.display())]
    NotReady { seconds: u64, log: PathBuf },
    #[error("containerd ended ({status}), see {}", log.display())]
    Ended { status: String, log: PathBuf },
    #[error(transparent)]
    Connection(#[from] sampan_cri::Error),
    #[error(transparent)]
    Import(#[from] sampan_cri::import::Error),
    #[error("{}: {problem}", path.display())]
    Registries { path: PathBuf, problem: String },
    #[error("cannot watch {}", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

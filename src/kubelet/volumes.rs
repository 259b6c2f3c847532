//! Volumes of a pod: resolved to plain work, then applied to the file system.
//!
//! [`resolve`] turns a volume's source into [`Work`] without touching the disk (tokens are asked
//! for on the way); [`apply`] carries it out and is idempotent: it runs again whenever an object
//! that a volume shows has changed, and after a restart of the agent.

pub mod atomic;
pub mod mount;
pub mod owner;
pub mod payload;
pub mod resolve;
pub mod subpath;
pub mod token;

mod host_path;

use crate::dirs::PodDirs;
use payload::Payload;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

pub use resolve::{Resolved, Sources, resolve_all};

/// What is to be done for one volume.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    EmptyDir {
        /// Kept in memory, up to this many bytes.
        memory: Option<Option<i64>>,
    },
    HostPath {
        path: PathBuf,
        kind: String,
    },
    /// Files that we write.
    Files {
        payload: Payload,
        /// Secrets are kept off the disk.
        in_memory: bool,
        plugin: &'static str,
    },
    /// A directory that belongs to a persistent volume.
    Existing {
        path: PathBuf,
        read_only: bool,
    },
}

impl Work {
    fn plugin(&self) -> &'static str {
        match self {
            Self::EmptyDir { .. } => "kubernetes.io~empty-dir",
            Self::HostPath { .. } => "kubernetes.io~host-path",
            Self::Files { plugin, .. } => plugin,
            Self::Existing { .. } => "kubernetes.io~local-volume",
        }
    }
}

/// A volume that containers can mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub path: PathBuf,
    pub read_only: bool,
    /// Sub paths of it are resolved with care.
    pub is_ours: bool,
}

pub type MountedVolumes = HashMap<String, Mounted>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{0}")]
    Source(String),
}

impl Error {
    pub(crate) fn file(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

/// Carries out the work of one volume. Blocking.
pub fn apply(
    dirs: &PodDirs,
    name: &str,
    work: &Work,
    fs_group: Option<u32>,
) -> Result<Mounted, Error> {
    let own = dirs.volume(work.plugin(), name);
    match work {
        Work::EmptyDir { memory } => {
            make_dir(&own, 0o777)?;
            if let Some(limit) = memory {
                mount::tmpfs(&own, *limit).map_err(Error::file("cannot mount tmpfs on", &own))?;
            }
            owner::set(&own, fs_group, false)?;
            Ok(ours(own, false))
        }
        Work::Files {
            payload, in_memory, ..
        } => {
            make_dir(&own, 0o777)?;
            if *in_memory {
                mount::tmpfs(&own, None).map_err(Error::file("cannot mount tmpfs on", &own))?;
            }
            let finish = |dir: &Path| owner::set(dir, fs_group, true);
            atomic::write(&own, payload, finish)?;
            Ok(ours(own, true))
        }
        Work::HostPath { path, kind } => {
            host_path::check(path, kind)?;
            Ok(Mounted {
                path: path.clone(),
                read_only: false,
                is_ours: false,
            })
        }
        Work::Existing { path, read_only } => {
            if !path.exists() {
                let message = format!("path {:?} does not exist", path.display().to_string());
                return Err(Error::Source(message));
            }
            Ok(Mounted {
                path: path.clone(),
                read_only: *read_only,
                is_ours: false,
            })
        }
    }
}

fn ours(path: PathBuf, read_only: bool) -> Mounted {
    Mounted {
        path,
        read_only,
        is_ours: true,
    }
}

/// Makes a directory with exactly this mode, whatever the process's umask.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path).map_err(Error::file("cannot create", path))?;
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).map_err(Error::file("cannot set the mode of", path))
}

/// Unmounts everything below the pod's directory and removes it. Blocking.
pub fn release(dirs: &PodDirs) -> Result<(), Error> {
    mount::unmount_below(&dirs.root).map_err(Error::file("cannot unmount below", &dirs.root))?;
    for part in ["volumes", "volume-subpaths"] {
        let path = dirs.root.join(part);
        remove(&path)?;
    }
    Ok(())
}

pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file("cannot remove", path)(error))
        }
        _ => Ok(()),
    }
}

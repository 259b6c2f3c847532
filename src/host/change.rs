//! What can be changed, and what takes it back.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One change; everything its inverse needs is in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Change {
    /// Inverse: the old value, unless somebody has set yet another one since.
    Sysctl {
        key: String,
        old: String,
        new: String,
        /// Whether the key belongs to a network namespace (`net.*`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        namespace: Option<u64>,
    },
    /// A link that was created. Inverse: delete it.
    Link { name: String, namespace: u64 },
    /// Inverse: remove it from its link.
    Address {
        link: String,
        address: String,
        namespace: u64,
    },
    /// Inverse: delete it, if it still leads the same way.
    Route {
        destination: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gateway: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        link: Option<String>,
        namespace: u64,
    },
    /// Inverse: delete the table with everything in it.
    NftTable {
        family: String,
        name: String,
        namespace: u64,
    },
    /// Inverse: unmount.
    Mount { target: PathBuf },
    /// A control group directory. Inverse: remove it and its (empty) children.
    Cgroup { path: PathBuf },
    /// A file or symbolic link that was created. Inverse: remove it.
    File { path: PathBuf },
    /// A directory that was created. Inverse: remove it if empty, or with all it holds.
    Directory {
        path: PathBuf,
        #[serde(default)]
        recursive: bool,
    },
}

impl Change {
    /// Whether the change is gone after the machine has been started anew.
    pub fn ends_with_boot(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::Directory { .. })
    }

    /// The network namespace the change belongs to, by the number that `/proc/self/ns/net` shows.
    pub fn namespace(&self) -> Option<u64> {
        match self {
            Self::Sysctl { namespace, .. } => *namespace,
            Self::Link { namespace, .. }
            | Self::Address { namespace, .. }
            | Self::Route { namespace, .. }
            | Self::NftTable { namespace, .. } => Some(*namespace),
            _ => None,
        }
    }
}

/// The number of the calling thread's network namespace.
pub fn current_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino())
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl { key, old, new, .. } => write!(f, "sysctl {key}: {old} -> {new}"),
            Self::Link { name, .. } => write!(f, "link {name}"),
            Self::Address { link, address, .. } => write!(f, "address {address} on {link}"),
            Self::Route {
                destination,
                gateway,
                link,
                ..
            } => {
                write!(f, "route to {destination}")?;
                if let Some(gateway) = gateway {
                    write!(f, " via {gateway}")?;
                }
                if let Some(link) = link {
                    write!(f, " on {link}")?;
                }
                Ok(())
            }
            Self::NftTable { family, name, .. } => write!(f, "nftables table {family} {name}"),
            Self::Mount { target } => write!(f, "mount at {}", target.display()),
            Self::Cgroup { path } => write!(f, "control group {}", path.display()),
            Self::File { path } => write!(f, "file {}", path.display()),
            Self::Directory { path, recursive } => {
                let with = if *recursive { " and what is in it" } else { "" };
                write!(f, "directory {}{with}", path.display())
            }
        }
    }
}

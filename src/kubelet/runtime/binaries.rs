//! Where the runtime's programs are.

use super::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Searched after PATH: service managers often hand down a short one.
pub const USUAL_PLACES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    pub containerd: PathBuf,
    pub runc: PathBuf,
    /// What containerd gets as PATH, so that it finds its shim and the mount helpers.
    pub search_path: String,
}

/// Finds containerd, its shim and runc: first in `own`, then on PATH, then in the usual places.
pub fn find(own: &Path, path: &str) -> Result<Binaries, Error> {
    let mut folders = vec![own.to_owned()];
    let listed = path.split(':').filter(|folder| !folder.is_empty());
    for folder in listed.chain(USUAL_PLACES) {
        let folder = PathBuf::from(folder);
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    let locate = |name: &'static str| {
        folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|candidate| is_executable(candidate))
            .ok_or_else(|| Error::NotInstalled {
                name,
                own: own.to_owned(),
            })
    };
    let containerd = locate("containerd")?;
    locate("containerd-shim-runc-v2")?;
    let runc = locate("runc")?;
    let search_path: Vec<String> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    Ok(Binaries {
        containerd,
        runc,
        search_path: search_path.join(":"),
    })
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn our_own_folder_comes_first_and_all_are_searched() {
        let own = std::env::temp_dir().join(format!("sampan-binaries-{}", std::process::id()));
        std::fs::create_dir_all(&own).unwrap();
        for name in ["containerd", "containerd-shim-runc-v2", "runc"] {
            let path = own.join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let found = find(&own, "/opt/x").unwrap();
        assert_eq!(found.runc, own.join("runc"));
        assert!(found.search_path.contains(":/opt/x:/usr/local/sbin:"));
        std::fs::remove_dir_all(&own).unwrap();
    }
}

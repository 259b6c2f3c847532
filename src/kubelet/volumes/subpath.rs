//! Mounting a part of a volume without ever leaving it.
//!
//! The content of a volume belongs to containers, which may plant links. So the path is opened
//! with the kernel's own check that it stays beneath the volume, and what was opened is bound to a
//! place of ours, which the runtime then mounts.

use super::{Error, mount};
use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

/// Binds `volume/sub` to `target`; directories that are missing are made like the volume's root.
pub fn prepare(volume: &Path, sub: &str, target: &Path) -> Result<(), Error> {
    let refused = |error: io::Error| Error::Source(format!("cannot use sub path {sub:?}: {error}"));
    let root: OwnedFd = fs::File::open(volume)
        .map_err(Error::file("cannot open", volume))?
        .into();
    let opened = match open_beneath(&root, sub) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mode = fs::metadata(volume)
                .map_err(Error::file("cannot read", volume))?
                .permissions()
                .mode();
            make_dirs(&root, sub, mode & 0o7777).map_err(refused)?
        }
        other => other.map_err(refused)?,
    };
    let is_dir = rustix::fs::fstat(&opened)
        .map(|s| rustix::fs::FileType::from_raw_mode(s.st_mode).is_dir())
        .map_err(|error| refused(error.into()))?;
    make_target(target, is_dir)?;
    use std::os::fd::AsFd;
    mount::bind_open(opened.as_fd(), target).map_err(Error::file("cannot bind to", target))
}

/// Checks the form of a sub path before anything is opened.
pub fn validate(sub: &str) -> Result<(), String> {
    let path = Path::new(sub);
    if path.is_absolute() {
        return Err(format!(
            "error SubPath `{sub}` must not be an absolute path"
        ));
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(format!(
            "unable to provision SubPath `{sub}`: must not contain '..'"
        ));
    }
    Ok(())
}

fn open_beneath(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), resolve)?)
}

fn make_dirs(root: &OwnedFd, path: &str, mode: u32) -> io::Result<OwnedFd> {
    let mut at = open_beneath(root, ".")?;
    for part in Path::new(path).components() {
        let Component::Normal(name) = part else {
            continue;
        };
        let name = name.to_string_lossy();
        match mkdirat(&at, &*name, Mode::from_raw_mode(mode)) {
            Ok(()) => {
                let made = open_beneath(&at, &name)?;
                // The umask took part of the mode away.
                let proc_path = {
                    use std::os::fd::AsRawFd;
                    format!("/proc/self/fd/{}", made.as_raw_fd())
                };
                fs::set_permissions(proc_path, fs::Permissions::from_mode(mode))?;
                at = made;
            }
            Err(rustix::io::Errno::EXIST) => at = open_beneath(&at, &name)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(at)
}

fn make_target(target: &Path, is_dir: bool) -> Result<(), Error> {
    // A restarted container may find the bind of its last run.
    let stale = mount::is_mount_point(target).map_err(Error::file("cannot read", target))?;
    if stale {
        rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH)
            .map_err(|e| Error::file("cannot unmount", target)(e.into()))?;
    }
    if is_dir {
        return fs::create_dir_all(target).map_err(Error::file("cannot create", target));
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(Error::file("cannot create", parent))?;
    }
    let file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(target);
    file.map(|_| ())
        .map_err(Error::file("cannot create", target))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        assert!(validate("/etc").is_err());
        assert!(validate("a/../../b").is_err());
        assert!(validate("a/b").is_ok());
        let dir = std::env::temp_dir().join(format!("sampan-sub-{}", rand::random::<u64>()));
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink("/etc", dir.join("out")).unwrap();
        fs::create_dir(dir.join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("in")).unwrap();
        let root: OwnedFd = fs::File::open(&dir).unwrap().into();
        assert!(open_beneath(&root, "out/passwd").is_err());
        assert!(open_beneath(&root, "in").is_ok());
        make_dirs(&root, "new/deep", 0o777).unwrap();
        let mode = fs::metadata(dir.join("new/deep"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o777);
        fs::remove_dir_all(&dir).unwrap();
    }
}

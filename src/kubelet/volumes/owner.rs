//! Gives a volume to the pod's group, as `fsGroup` asks.

use super::Error;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const ENTER: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// Everything below `root` gets the group and its access; without a group nothing changes.
pub fn set(root: &Path, group: Option<u32>, read_only: bool) -> Result<(), Error> {
    let Some(group) = group else {
        return Ok(());
    };
    let kind = fs::symlink_metadata(root).map_err(Error::file("cannot read", root))?;
    lchown(root, None, Some(group)).map_err(Error::file("cannot change the group of", root))?;
    if kind.is_symlink() {
        return Ok(());
    }
    let mut mode = kind.permissions().mode() & 0o7777;
    mode |= if read_only { READ_ONLY } else { READ_WRITE };
    if kind.is_dir() {
        mode |= SETGID | ENTER;
    }
    fs::set_permissions(root, fs::Permissions::from_mode(mode))
        .map_err(Error::file("cannot set the mode of", root))?;
    if kind.is_dir() {
        let entries = fs::read_dir(root).map_err(Error::file("cannot read", root))?;
        for entry in entries.flatten() {
            set(&entry.path(), Some(group), read_only)?;
        }
    }
    Ok(())
}

//! Removing a data directory: everything in it, and nothing behind a mount.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::observe::mounts_below;

/// Refuses as long as something is mounted inside; never crosses into another file system.
pub(super) fn purge(folder: &Path) -> Result<(), String> {
    if let Some(mount) = mounts_below(&[folder]).first() {
        return Err(format!(
            "something is still mounted at {}; its content would be lost",
            mount.display()
        ));
    }
    match fs::symlink_metadata(folder) {
        Ok(found) => match remove(folder, found.dev()) {
            // The directory is a mount point itself, and empty now.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            result => result.map_err(|error| error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn remove(folder: &Path, device: u64) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let found = fs::symlink_metadata(&path)?;
        if !found.is_dir() {
            fs::remove_file(&path)?;
        } else if found.dev() == device {
            remove(&path, device)?;
        } else {
            let text = format!("{} is another file system", path.display());
            return Err(io::Error::other(text));
        }
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn links_are_removed_and_not_followed() {
        let base = std::env::temp_dir().join(format!("sampan-purge-{}", std::process::id()));
        let (inside, outside) = (base.join("data"), base.join("theirs"));
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("a/link")).unwrap();
        purge(&inside).unwrap();
        purge(&inside).unwrap();
        assert!(!inside.exists() && outside.join("kept").exists());
        fs::remove_dir_all(base).unwrap();
    }
}

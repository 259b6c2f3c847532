//! Replaces all files of a volume at once, as containers see it.
//!
//! The files lie in a time-stamped directory; `..data` points to it and every visible name points
//! through `..data`. One rename of that link switches all files. The layout is upstream's, which
//! programs that watch their configuration rely on.

use super::Error;
use super::payload::Payload;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Makes the volume show exactly `payload`; false if it already did. `finish` sees the new
/// directory before it becomes visible.
pub fn write(
    target: &Path,
    payload: &Payload,
    finish: impl Fn(&Path) -> Result<(), Error>,
) -> Result<bool, Error> {
    let data = target.join(DATA);
    let current = fs::read_link(&data).ok().map(|name| target.join(name));
    let mut changed = false;
    if current.as_deref().is_none_or(|dir| !shows(dir, payload)) {
        let fresh = write_files(target, payload)?;
        finish(&fresh)?;
        let next = target.join(NEXT);
        let name = fresh.file_name().unwrap_or_default();
        remove_link(&next)?;
        symlink(name, &next).map_err(Error::file("cannot create", &next))?;
        fs::rename(&next, &data).map_err(Error::file("cannot replace", &data))?;
        changed = true;
    }
    link_names(target, payload)?;
    if let Some(old) = current.filter(|_| changed) {
        super::remove(&old)?;
    }
    Ok(changed)
}

/// Whether the directory holds these files with this content and mode, and no other.
fn shows(dir: &Path, payload: &Payload) -> bool {
    let same = payload.iter().all(|(name, file)| {
        let path = dir.join(name);
        let mode = fs::metadata(&path).map(|m| m.permissions().mode() & 0o777);
        // The group may have been given more than was asked for.
        mode.is_ok_and(|mode| mode & file.mode == file.mode & 0o777)
            && fs::read(&path).is_ok_and(|data| data == file.data)
    });
    same && count_files(dir) == payload.len()
}

fn count_files(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => count_files(&entry.path()),
            _ => 1,
        })
        .sum()
}

fn write_files(target: &Path, payload: &Payload) -> Result<PathBuf, Error> {
    let stamp = jiff::Zoned::now().strftime("..%Y_%m_%d_%H_%M_%S");
    let dir = target.join(format!("{stamp}.{}", rand::random::<u32>()));
    fs::create_dir(&dir).map_err(Error::file("cannot create", &dir))?;
    set_mode(&dir, 0o755)?;
    for (name, file) in payload {
        let path = dir.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::file("cannot create", parent))?;
        }
        fs::write(&path, &file.data).map_err(Error::file("cannot write", &path))?;
        set_mode(&path, file.mode)?;
        if let Some(uid) = file.uid {
            std::os::unix::fs::chown(&path, Some(uid), None)
                .map_err(Error::file("cannot change the owner of", &path))?;
        }
    }
    Ok(dir)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::file("cannot set the mode of", path))
}

/// Links the first component of every path, and removes links that lead nowhere any more.
fn link_names(target: &Path, payload: &Payload) -> Result<(), Error> {
    let wanted: BTreeSet<&str> = payload
        .keys()
        .filter_map(|path| path.split('/').next())
        .collect();
    let entries = fs::read_dir(target).map_err(Error::file("cannot read", target))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !wanted.contains(name.as_ref()) {
            remove_link(&entry.path())?;
        }
    }
    for name in wanted {
        let link = target.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)
                .map_err(Error::file("cannot create", &link))?;
        }
    }
    Ok(())
}

fn remove_link(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("cannot remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::volumes::payload::File;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(name, text)| {
                (
                    (*name).to_owned(),
                    File::new(text.as_bytes().to_vec(), 0o644),
                )
            })
            .collect()
    }

    fn put(dir: &Path, files: &[(&str, &str)]) -> bool {
        write(dir, &payload(files), |_| Ok(())).unwrap()
    }

    #[test]
    fn files_switch_at_once_and_stale_names_go() {
        let dir = std::env::temp_dir().join(format!("sampan-atomic-{}", rand::random::<u64>()));
        fs::create_dir(&dir).unwrap();
        assert!(put(&dir, &[("a", "1"), ("sub/b", "2")]));
        assert!(!put(&dir, &[("a", "1"), ("sub/b", "2")]));
        assert_eq!(fs::read_to_string(dir.join("sub/b")).unwrap(), "2");
        assert_eq!(
            fs::read_link(dir.join("sub")).unwrap(),
            Path::new("..data/sub")
        );
        let before = fs::read_link(dir.join(DATA)).unwrap();
        assert!(put(&dir, &[("a", "3")]));
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "3");
        assert!(!dir.join("sub").exists());
        assert!(!dir.join(before).exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}

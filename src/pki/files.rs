//! Atomic writing of certificates and keys.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sampan_util::file;

use crate::Error;

pub const PRIVATE: u32 = 0o600;
pub const PUBLIC: u32 = 0o644;

/// More symbolic links in a row are a circle (as for the kernel).
const MOST_LINKS: usize = 40;

/// Writes `content` so that a reader, or a machine that loses power, sees the old or the new file.
/// A file that is right already is left alone, so that a full disk does not stop a restart. A symbolic link stays, and what
/// it leads to is written; what is no regular file is left as it is.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let failed = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    let target = target_of(path).map_err(failed)?;
    if is_right(&target, content, mode) {
        return Ok(());
    }
    if let Some(parent) = target.parent() {
        create_private_dir(parent)?;
    }
    replace(&target, content, mode).map_err(failed)
}

/// Why a file of this name cannot be written, if something else is there.
pub fn refuse_other_than_file(path: &Path) -> Result<(), Error> {
    let refused = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    match target_of(path) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Err(refused(error)),
        // Whether it can be written is seen when it is.
        _ => Ok(()),
    }
}

/// The file that a path leads to, whether it exists or not.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let metadata = match fs::symlink_metadata(&target) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(target),
            metadata => metadata?,
        };
        if metadata.is_file() {
            return Ok(target);
        }
        if !metadata.is_symlink() {
            let what = file::what_is(&metadata);
            let text = format!("it is {what}, and only a file is replaced");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        // Relative to the link's folder; an absolute one takes the whole path's place.
        let link = fs::read_link(&target)?;
        target = target.parent().map_or(link.clone(), |dir| dir.join(&link));
    }
    let text = "its symbolic links lead in a circle";
    Err(io::Error::new(ErrorKind::InvalidInput, text))
}

fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let (mut file, temporary) = Temporary::beside(path)?;
    file.write_all(content)?;
    // Nobody else reads it before it is whole, and the mode is the one asked for whatever the umask is.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()?;
    temporary.become_file(path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// A file that goes away unless it becomes the one that is wanted.
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn become_file(mut self, path: &Path) -> io::Result<()> {
        let Some(own) = &self.0 else { return Ok(()) };
        fs::rename(own, path)?;
        self.0 = None;
        Ok(())
    }

    fn beside(path: &Path) -> io::Result<(File, Self)> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}-{count}.new", std::process::id()));
        let own = path.with_file_name(name);
        let create = || {
            let mut options = File::options();
            options.write(true).create_new(true).mode(PRIVATE);
            options.open(&own)
        };
        let file = match create() {
            // Left by a process that had this number and was killed.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(&own)?;
                create()?
            }
            file => file?,
        };
        Ok((file, Self(Some(own))))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(own) = &self.0
            && let Err(error) = fs::remove_file(own)
        {
            tracing::warn!(path = %own.display(), %error, "cannot remove a file that was not written to its end");
        }
    }
}

fn is_right(path: &Path, content: &[u8], mode: u32) -> bool {
    let meta = fs::symlink_metadata(path);
    let mode_fits = meta.is_ok_and(|meta| meta.is_file() && meta.mode() & 0o7777 == mode);
    mode_fits && file::read_bytes(path).is_ok_and(|found| found == content)
}

/// Creates a directory (and its parents) that only its owner may enter; an existing one stays as it is.
pub fn create_private_dir(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| Error::Write {
            path: path.to_owned(),
            source,
        })
}

/// The file's text, `None` if there is no such file.
pub fn read_optional(path: &Path) -> Result<Option<String>, Error> {
    match file::read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sampan-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn links_stay_and_lead_to_the_new_file() {
        let folder = folder("links");
        symlink("real", folder.join("link")).unwrap();
        symlink(folder.join("link"), folder.join("second")).unwrap();
        for text in ["one", "two"] {
            write_atomic(&folder.join("second"), text.as_bytes(), 0o640).unwrap();
            assert_eq!(fs::read_to_string(folder.join("real")).unwrap(), text);
        }
        assert!(folder.join("second").is_symlink() && folder.join("link").is_symlink());
        assert_eq!(mode(&folder.join("real")), 0o640);
        symlink("circle", folder.join("circle")).unwrap();
        let error = write_atomic(&folder.join("circle"), b"x", PRIVATE).unwrap_err();
        assert!(error.to_string().contains("circle"), "{error}");
        assert_eq!(names(&folder), ["circle", "link", "real", "second"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_file_is_left_alone() {
        let folder = folder("kinds");
        fs::create_dir(folder.join("dir")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        for (path, what) in [
            (folder.join("dir"), "a folder"),
            (folder.join("socket"), "a socket"),
            (PathBuf::from("/dev/null"), "a device"),
        ] {
            let error = write_atomic(&path, b"key", PRIVATE).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
            assert!(refuse_other_than_file(&path).is_err());
        }
        assert!(refuse_other_than_file(&folder.join("new")).is_ok());
        assert_eq!(names(&folder), ["dir", "socket"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_was_not_written_leaves_nothing_behind() {
        let folder = folder("full");
        let path = folder.join("file");
        fs::write(&path, "old").unwrap();
        let (file, temporary) = Temporary::beside(&path).unwrap();
        assert_eq!(mode(temporary.0.as_ref().unwrap()), PRIVATE);
        assert_eq!(names(&folder).len(), 2);
        drop((file, temporary));
        // A folder cannot be replaced by a file, which only the last step finds out.
        fs::create_dir(folder.join("dir")).unwrap();
        assert!(replace(&folder.join("dir"), b"key", PRIVATE).is_err());
        assert_eq!(names(&folder), ["dir", "file"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        fs::remove_dir_all(folder).unwrap();
    }
}

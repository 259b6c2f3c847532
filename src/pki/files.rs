//! Atomic writing of certificates and keys.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

pub const PRIVATE: u32 = 0o600;
pub const PUBLIC: u32 = 0o644;

/// Writes `content` so that a reader, or a machine that loses power, sees the old or the new file.
/// A file that is right already is left alone, so that a full disk does not stop a restart.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let failed = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    if is_right(path, content, mode) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_private_dir(parent)?;
    }
    let temporary = temporary_beside(path);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)?;
    if let Some(parent) = path.parent() {
        fs::File::open(parent)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)?;
    }
    Ok(())
}

fn is_right(path: &Path, content: &[u8], mode: u32) -> bool {
    let meta = fs::symlink_metadata(path);
    let mode_fits = meta.is_ok_and(|meta| meta.is_file() && meta.mode() & 0o7777 == mode);
    mode_fits && fs::read(path).is_ok_and(|found| found == content)
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
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    path.with_file_name(name)
}

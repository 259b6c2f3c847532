//! A path of the node: what it must be, and what is made where it may be missing.

use super::Error;
use std::fs::{self, FileType};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub(super) fn check(path: &Path, kind: &str) -> Result<(), Error> {
    match kind {
        "" => Ok(()),
        "DirectoryOrCreate" => {
            if !path.exists() {
                super::make_dir(path, 0o755)?;
            }
            demand(path, "directory", FileType::is_dir)
        }
        "FileOrCreate" => {
            if !path.exists() {
                fs::File::create(path).map_err(Error::file("cannot create", path))?;
            }
            demand(path, "file", FileType::is_file)
        }
        "Directory" => demand(path, "directory", FileType::is_dir),
        "File" => demand(path, "file", FileType::is_file),
        "Socket" => demand(path, "socket file", FileTypeExt::is_socket),
        "CharDevice" => demand(path, "character device", FileTypeExt::is_char_device),
        "BlockDevice" => demand(path, "block device", FileTypeExt::is_block_device),
        other => Err(Error::Source(format!("{other} is an invalid volume type"))),
    }
}

fn demand(path: &Path, what: &str, is: impl Fn(&FileType) -> bool) -> Result<(), Error> {
    let kind = fs::metadata(path).map(|m| m.file_type());
    if kind.is_ok_and(|kind| is(&kind)) {
        return Ok(());
    }
    Err(Error::Source(format!(
        "hostPath type check failed: {} is not a {what}",
        path.display()
    )))
}

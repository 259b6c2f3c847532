//! A Unix socket at any path: the kernel takes at most 107 bytes, a data directory may be deeper.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LONGEST_PATH: usize = 107;

/// Calls `work` with a path to the same file that is short enough: through a handle on its
/// directory, where necessary.
pub fn with_short_path<T>(path: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= LONGEST_PATH {
        return work(path);
    }
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let directory = File::open(path.parent().ok_or_else(invalid)?)?;
    let name = path.file_name().ok_or_else(invalid)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    work(&short)
}

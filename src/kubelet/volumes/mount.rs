//! Mounts below the agent's directory.

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    unmount,
};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    point: PathBuf,
    is_shared: bool,
}

fn mounts() -> io::Result<Vec<Row>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Row> {
    let mut fields = line.split(' ');
    let point = fields.nth(4)?;
    let _options = fields.next()?;
    let is_shared = fields
        .take_while(|f| *f != "-")
        .any(|f| f.starts_with("shared:"));
    Some(Row {
        point: PathBuf::from(unescape(point)),
        is_shared,
    })
}

/// Blanks and the like are written as three octal digits.
fn unescape(text: &str) -> String {
    let mut output = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut index = 0;
    while index < bytes.len() {
        let code = text
            .get(index + 1..index + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if bytes[index] == b'\\' => {
                output.push(code);
                index += 4;
            }
            _ => {
                output.push(bytes[index]);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&output).into_owned()
}

pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    Ok(mounts()?.iter().any(|row| row.point == path))
}

/// Mounts a file system in memory, unless there is one already.
pub fn tmpfs(path: &Path, limit: Option<i64>) -> io::Result<()> {
    if is_mount_point(path)? {
        return Ok(());
    }
    let options = limit.filter(|l| *l > 0).map(|l| format!("size={l}"));
    let options = CString::new(options.unwrap_or_default()).unwrap_or_default();
    mount("tmpfs", path, "tmpfs", MountFlags::empty(), Some(&*options))?;
    Ok(())
}

/// Binds what is open to `target`, whatever happens to its name meanwhile.
pub fn bind_open(source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", source.as_raw_fd());
    rustix::mount::mount_bind(path, target)?;
    Ok(())
}

/// Makes `path` a mount of its own whose later mounts reach the containers; true if it was made.
pub fn ensure_shared(path: &Path) -> io::Result<bool> {
    let rows = mounts()?;
    let own = rows.iter().rfind(|row| row.point == path);
    if own.is_some_and(|row| row.is_shared) {
        return Ok(false);
    }
    let nearest = rows
        .iter()
        .filter(|row| path.starts_with(&row.point))
        .max_by_key(|row| row.point.components().count());
    if own.is_none() && nearest.is_some_and(|row| row.is_shared) {
        return Ok(false);
    }
    if own.is_none() {
        mount_bind_recursive(path, path)?;
    }
    mount_change(
        path,
        MountPropagationFlags::SHARED | MountPropagationFlags::REC,
    )?;
    Ok(own.is_none())
}

/// Unmounts everything below `root`, the deepest first; not `root` itself.
pub fn unmount_below(root: &Path) -> io::Result<()> {
    let mut points: Vec<PathBuf> = mounts()?
        .into_iter()
        .map(|row| row.point)
        .filter(|point| point.starts_with(root) && point != root)
        .collect();
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    for point in points {
        if unmount(&point, UnmountFlags::NOFOLLOW).is_err() {
            unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mountinfo_lines() {
        let line =
            "36 35 98:0 /a /mnt/with\\040blank rw,noatime master:1 shared:7 - ext3 /dev/root rw";
        assert_eq!(
            parse(line).unwrap(),
            Row {
                point: "/mnt/with blank".into(),
                is_shared: true
            }
        );
        let private = "36 35 98:0 / /x rw - ext3 /dev/root rw";
        assert!(!parse(private).unwrap().is_shared);
    }
}

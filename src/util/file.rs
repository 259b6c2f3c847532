//! Files whose names come from outside: read with a limit, and only where reading ends.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

/// More than any file of settings, keys or tokens holds.
pub const LIMIT: u64 = 1 << 20;
/// How long somebody may take to write into a pipe that is read.
const PATIENCE: Duration = Duration::from_secs(10);

/// The text of a regular file or a pipe (as of a shell's `<(command)`). `/dev/null` is empty; other devices, sockets and
/// folders are refused, as is what is longer than [`LIMIT`].
pub fn read_text(path: &Path) -> io::Result<String> {
    read_text_within(path, LIMIT, PATIENCE)
}

fn read_text_within(path: &Path, limit: u64, patience: Duration) -> io::Result<String> {
    let bytes = read(path, limit, patience)?;
    String::from_utf8(bytes).map_err(|_| refused("it is not text in UTF-8".to_owned()))
}

/// Like [`read_text`], of any content.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    read(path, LIMIT, PATIENCE)
}

fn read(path: &Path, limit: u64, patience: Duration) -> io::Result<Vec<u8>> {
    // Looked at before it is opened: opening a device may do something.
    let Some(kind) = kind_of(&std::fs::metadata(path)?)? else {
        return Ok(Vec::new());
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if kind_of(&file.metadata()?)? != Some(kind) {
        return Err(refused("it has become something else meanwhile".to_owned()));
    }
    let mut bytes = Vec::new();
    match kind {
        Kind::Regular => {
            (&file).take(limit + 1).read_to_end(&mut bytes)?;
        }
        Kind::Pipe => read_pipe(&mut file, limit, Instant::now() + patience, &mut bytes)?,
    }
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= limit) {
        return Ok(bytes);
    }
    Err(refused(format!(
        "it is longer than {} KiB",
        limit.div_ceil(1024)
    )))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Regular,
    Pipe,
}

/// Nothing for `/dev/null`, which many give for an empty file.
fn kind_of(metadata: &Metadata) -> io::Result<Option<Kind>> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(Some(Kind::Regular));
    }
    if kind.is_fifo() {
        return Ok(Some(Kind::Pipe));
    }
    if kind.is_char_device() && metadata.rdev() == rustix::fs::makedev(1, 3) {
        return Ok(None);
    }
    Err(refused(format!(
        "it is {}, and a file is wanted",
        what_is(metadata)
    )))
}

/// What stands in the place of a file, as an error calls it.
pub fn what_is(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    let names = [
        (kind.is_file(), "a file"),
        (kind.is_dir(), "a folder"),
        (kind.is_symlink(), "a symbolic link"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
    ];
    let found = names.into_iter().find(|(is, _)| *is);
    found.map_or("a device", |(_, name)| name)
}

/// Until its last writer has closed it. A pipe that nobody ever writes into would be waited for without end.
fn read_pipe(pipe: &mut File, limit: u64, until: Instant, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0_u8; 4096];
    while u64::try_from(bytes.len()).is_ok_and(|length| length <= limit) {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| ErrorKind::InvalidInput)?;
        let ready = match poll(&mut [PollFd::new(&*pipe, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            ready => ready?,
        };
        if ready == 0 {
            let text = "it is a pipe, and nobody has written into it and closed it in time";
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        match pipe.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn refused(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

/// Whether a write failed for want of room, or of a disk that can be written: which may come back.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sampan-file-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn told(path: &Path) -> String {
        let soon = Duration::from_millis(50);
        read_text_within(path, 16, soon).unwrap_err().to_string()
    }

    #[test]
    fn only_what_ends_is_read() {
        let folder = folder("kinds");
        let file = folder.join("file");
        std::fs::write(&file, "exactly sixteen!").unwrap();
        assert_eq!(
            read_text_within(&file, 16, PATIENCE).unwrap(),
            "exactly sixteen!"
        );
        std::fs::write(&file, "seventeen is more").unwrap();
        assert!(told(&file).contains("longer than"));
        std::fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(told(&file).contains("UTF-8"));
        assert_eq!(read_text(Path::new("/dev/null")).unwrap(), "");
        assert!(told(Path::new("/dev/zero")).contains("a device"));
        assert!(told(&folder).contains("a folder"));
        let socket = folder.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(told(&socket).contains("a socket"));
        let missing = read_text(&folder.join("missing")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn pipes_are_read_to_their_end_and_no_further_than_the_limit() {
        let folder = folder("pipes");
        let pipe = folder.join("pipe");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(told(&pipe).contains("nobody has written"));
        for (text, fits) in [("a token", true), ("far more than sixteen bytes", false)] {
            let path = pipe.clone();
            let writer = std::thread::spawn(move || {
                let mut pipe = File::options().write(true).open(path).unwrap();
                // Who reads may have heard enough.
                let _ = pipe.write_all(text.as_bytes());
            });
            let read = read_text_within(&pipe, 16, PATIENCE);
            writer.join().unwrap();
            assert_eq!(read.is_ok_and(|read| read == text), fits);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_shells_pipe_is_read_by_its_number() {
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"secret").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read_text(Path::new(&path)).unwrap(), "secret");
    }
}

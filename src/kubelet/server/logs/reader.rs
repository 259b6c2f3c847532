//! Walks a log file from its tail, and follows it while its container runs.
//!
//! Following needs no polling: writes are file events, and so is the end: when a container exits (and when its log is
//! rotated) the runtime closes the file. Only then the runtime is asked what happened.

use super::select::Selection;
use crate::inotify::{FileWatch, FileWatcher};
use bytes::Bytes;
use sampan_cri::Runtime;
use sampan_cri::runtime::v1::{ContainerState, ContainerStatusRequest};
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

const STEP: usize = 32 << 10;
/// A line longer than this is none of the runtime's (it cuts at 16 KiB).
const LINE_LIMIT: usize = 4 << 20;
/// The runtime may close a log a little before it knows that the container has ended.
const SETTLE: Duration = Duration::from_secs(5);

pub type Sender = mpsc::Sender<io::Result<Bytes>>;

/// A log, and how to know that more will come.
pub struct LogSource {
    pub path: PathBuf,
    pub follow: Option<Follow>,
}

pub struct Follow {
    pub container_id: String,
    pub runtime: Runtime,
    pub watcher: FileWatcher,
}

/// Why a log was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// The container goes on in this file after all.
    Not,
    Rotated,
    Ended,
}

impl LogSource {
    pub async fn open(&self) -> io::Result<File> {
        File::open(&self.path).await
    }

    /// Sends the selected lines until the end, or until nobody listens any more.
    pub async fn read(
        self,
        mut file: File,
        tail: Option<u64>,
        selection: Selection,
        sender: &Sender,
    ) -> io::Result<()> {
        if let Some(lines) = tail {
            let start = tail_start(&mut file, lines).await?;
            file.seek(SeekFrom::Start(start)).await?;
        }
        let mut lines = Lines {
            selection,
            rest: Vec::new(),
        };
        match &self.follow {
            None => {
                lines.drain(&mut file, sender).await?;
                lines.finish(sender).await;
                Ok(())
            }
            Some(follow) => self.follow(follow, file, lines, sender).await,
        }
    }

    async fn follow(
        &self,
        follow: &Follow,
        mut file: File,
        mut lines: Lines,
        sender: &Sender,
    ) -> io::Result<()> {
        let mut watch = follow.watcher.watch(&self.path)?;
        // It may have ended before we began to watch.
        let mut ended = !follow.is_running().await;
        loop {
            if !lines.drain(&mut file, sender).await? {
                return Ok(());
            }
            if ended {
                lines.finish(sender).await;
                return Ok(());
            }
            match self.next_change(follow, &watch, &file, sender).await? {
                None => return Ok(()),
                Some(Closed::Not) => {}
                Some(Closed::Ended) => ended = true,
                Some(Closed::Rotated) => {
                    if !lines.drain(&mut file, sender).await? {
                        return Ok(());
                    }
                    watch = follow.watcher.watch(&self.path)?;
                    file = self.open().await?;
                }
            }
        }
    }

    /// Waits until there is something to do; `None` if the client is gone.
    async fn next_change(
        &self,
        follow: &Follow,
        watch: &FileWatch,
        file: &File,
        sender: &Sender,
    ) -> io::Result<Option<Closed>> {
        tokio::select! {
            () = sender.closed() => Ok(None),
            changed = watch.changed() => match changed.closed {
                true => self.settle(follow, file).await.map(Some),
                false => Ok(Some(Closed::Not)),
            },
        }
    }

    async fn settle(&self, follow: &Follow, file: &File) -> io::Result<Closed> {
        let mut delay = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        loop {
            if !follow.is_running().await {
                return Ok(Closed::Ended);
            }
            if is_other_file(&self.path, file).await? {
                return Ok(Closed::Rotated);
            }
            if waited >= SETTLE {
                return Ok(Closed::Not);
            }
            tokio::time::sleep(delay).await;
            waited += delay;
            delay = (delay * 2).min(Duration::from_secs(1));
        }
    }
}

impl Follow {
    /// Counts as running while the runtime does not answer: it writes on when it is back.
    async fn is_running(&self) -> bool {
        let request = ContainerStatusRequest {
            container_id: self.container_id.clone(),
            verbose: false,
        };
        match self.runtime.container_status(request).await {
            Ok(reply) => reply.status.is_some_and(|status| {
                let ended = [
                    ContainerState::ContainerExited,
                    ContainerState::ContainerUnknown,
                ];
                !ended.contains(&status.state())
            }),
            Err(error) => !error.is_not_found(),
        }
    }
}

async fn is_other_file(path: &Path, file: &File) -> io::Result<bool> {
    match tokio::fs::metadata(path).await {
        Ok(now) => Ok(now.ino() != file.metadata().await?.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Cuts what is read into lines.
struct Lines {
    selection: Selection,
    rest: Vec<u8>,
}

impl Lines {
    /// Reads to the present end; false if nothing more is wanted.
    async fn drain(&mut self, file: &mut File, sender: &Sender) -> io::Result<bool> {
        loop {
            let filled = self.rest.len();
            self.rest.resize(filled + STEP, 0);
            let read = file.read(&mut self.rest[filled..]).await?;
            self.rest.truncate(filled + read);
            if read == 0 {
                return Ok(true);
            }
            let Some(end) = self.rest[filled..].iter().rposition(|byte| *byte == b'\n') else {
                if self.rest.len() > LINE_LIMIT {
                    self.rest.clear();
                }
                continue;
            };
            let complete = filled + end + 1;
            if !self.show(complete, sender).await {
                return Ok(false);
            }
        }
    }

    /// What stands behind the last newline when nothing more will come.
    async fn finish(&mut self, sender: &Sender) {
        let all = self.rest.len();
        if all > 0 {
            self.show(all, sender).await;
        }
    }

    async fn show(&mut self, complete: usize, sender: &Sender) -> bool {
        let mut out = Vec::new();
        for line in self.rest[..complete].split_inclusive(|byte| *byte == b'\n') {
            self.selection.add(line, &mut out);
        }
        self.rest.drain(..complete);
        let heard = out.is_empty() || sender.send(Ok(out.into())).await.is_ok();
        heard && !self.selection.is_full()
    }
}

/// Where the last `lines` lines begin.
async fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let end = file.seek(SeekFrom::End(0)).await?;
    if lines == 0 {
        return Ok(end);
    }
    let mut buffer = vec![0; STEP];
    let mut position = end;
    // The newline at the very end closes the last line and begins none.
    let mut wanted = lines + 1;
    while position > 0 {
        let step = position.min(STEP as u64);
        position -= step;
        let chunk = &mut buffer[..step as usize];
        file.seek(SeekFrom::Start(position)).await?;
        file.read_exact(chunk).await?;
        if position + step == end && chunk.last() != Some(&b'\n') {
            wanted -= 1;
        }
        for (at, byte) in chunk.iter().enumerate().rev() {
            if *byte == b'\n' {
                wanted -= 1;
                if wanted == 0 {
                    return Ok(position + at as u64 + 1);
                }
            }
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::LogOptions;
    use super::*;

    async fn read(content: &str, tail: Option<u64>) -> String {
        let name = format!("sampan-log-{}-{content:p}-{tail:?}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        let source = LogSource {
            path: path.clone(),
            follow: None,
        };
        let file = source.open().await.unwrap();
        let (sender, mut receiver) = mpsc::channel(100);
        let selection = Selection::new(&LogOptions::default());
        source.read(file, tail, selection, &sender).await.unwrap();
        drop(sender);
        std::fs::remove_file(&path).unwrap();
        let mut text = String::new();
        while let Some(piece) = receiver.recv().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        text
    }

    #[tokio::test]
    async fn tails_count_lines() {
        let line = |text: &str| format!("2026-01-01T00:00:01Z stdout F {text}\n");
        let log = line("a") + &line("b") + &line("c");
        assert_eq!(read(&log, None).await, "a\nb\nc\n");
        assert_eq!(read(&log, Some(2)).await, "b\nc\n");
        assert_eq!(read(&log, Some(9)).await, "a\nb\nc\n");
        assert_eq!(read(&log, Some(0)).await, "");
        let cut = log.trim_end();
        assert_eq!(read(cut, Some(1)).await, "c");
        let long = line(&"x".repeat(2 * STEP)) + &line("end");
        assert_eq!(read(&long, Some(2)).await.len(), 2 * STEP + 5);
    }
}

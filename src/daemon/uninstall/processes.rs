//! Processes by what they were called with, and their end.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    arguments: Vec<Vec<u8>>,
}

impl Process {
    #[cfg(test)]
    pub(super) fn new(pid: i32, arguments: &[&str]) -> Self {
        let bytes = |text: &&str| text.as_bytes().to_vec();
        Self {
            pid,
            arguments: arguments.iter().map(bytes).collect(),
        }
    }

    pub(super) fn has_argument(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_encoded_bytes();
        self.arguments.iter().any(|argument| argument == path)
    }

    /// Whether the program's file name begins so.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let program = self
            .arguments
            .first()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let file = program.rsplit(|byte| *byte == b'/').next();
        file.is_some_and(|file| file.starts_with(name.as_bytes()))
    }
}

pub(super) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let words = line.split(|byte| *byte == 0);
            Some(Process {
                pid,
                arguments: words.map(<[u8]>::to_vec).collect(),
            })
        })
        .collect()
}

/// The children of a process: for a shim, its containers' first processes.
pub(super) fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let numbers = list.split_whitespace().filter_map(|word| word.parse().ok());
            numbers.collect::<Vec<i32>>()
        })
        .collect()
}

/// A process that is watched, so that its number cannot come to mean another one.
#[derive(Debug)]
pub(super) struct Handle(OwnedFd);

impl Handle {
    /// `None` if it is gone.
    pub(super) fn open(pid: i32) -> Option<Self> {
        let pid = Pid::from_raw(pid)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.0, signal) {
            tracing::debug!(%error, "cannot signal a process");
        }
    }

    /// Whether it has ended by then.
    fn ended_by(&self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut waited = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut waited, Some(&timeout)) {
                Ok(count) => return count > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Asks all of them to end, waits, makes the others end. `false` if one is left all the same.
pub(super) fn end(pids: &[i32], grace: Duration) -> bool {
    let handles: Vec<Handle> = pids.iter().copied().filter_map(Handle::open).collect();
    for (signal, grace) in [
        (Signal::TERM, grace),
        (Signal::KILL, Duration::from_secs(10)),
    ] {
        let deadline = Instant::now() + grace;
        let left: Vec<&Handle> = handles
            .iter()
            .filter(|handle| !handle.ended_by(Instant::now()))
            .collect();
        left.iter().for_each(|handle| handle.signal(signal));
        if left.iter().all(|handle| handle.ended_by(deadline)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_stubborn_process_ends_too() {
        let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(all().iter().any(|p| p.pid == pid && p.is_named("sh")));
        assert!(end(&[pid], Duration::from_millis(100)));
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn programs_are_known_by_their_file_names() {
        let shim = Process::new(
            1,
            &["/usr/bin/containerd-shim-runc-v2", "-address", "/run/x"],
        );
        assert!(shim.is_named("containerd-shim") && !shim.is_named("runc"));
        assert!(shim.has_argument(Path::new("/run/x")) && !shim.has_argument(Path::new("/run")));
    }
}

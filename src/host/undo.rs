//! Taking changes back.

use std::fs;
use std::io;
use std::path::Path;

use crate::change::current_namespace;
use crate::{Change, Entry, Error, Journal, sysctl};

/// Takes back what only netlink can. What is not there any more counts as taken back.
pub trait NetworkUndo {
    /// `change` is a link, address, route or table of the calling thread's network namespace.
    fn undo(&self, change: &Change) -> Result<(), String>;
}

/// What became of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Taken back, or there was nothing left to take back.
    Undone,
    /// A dry run: this would be taken back.
    WouldUndo,
    /// Left alone, and why.
    Skipped(String),
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    pub change: Change,
    pub outcome: Outcome,
}

impl Journal {
    /// Takes back everything, newest first. One failure does not stop the rest; what failed or was
    /// skipped because somebody else may need it stays in the journal.
    pub fn undo_all(&self, network: &dyn NetworkUndo, dry_run: bool) -> Result<Vec<Undone>, Error> {
        let mut report = Vec::new();
        for entry in self.entries().into_iter().rev() {
            let outcome = if dry_run {
                preview(&entry.change)
            } else {
                undo(&entry.change, network)
            };
            if outcome == Outcome::Undone {
                self.forget_entry(entry.id)?;
            }
            let Entry { change, .. } = entry;
            report.push(Undone { change, outcome });
        }
        Ok(report)
    }

    /// Takes back one change and forgets it.
    pub fn undo_one(&self, change: &Change, network: &dyn NetworkUndo) -> Result<Outcome, Error> {
        let outcome = undo(change, network);
        if outcome == Outcome::Undone {
            self.forget(change)?;
        }
        Ok(outcome)
    }

    /// Takes back a change of which there is no record (any more).
    pub fn undo_unrecorded(change: &Change, network: &dyn NetworkUndo) -> Result<Outcome, Error> {
        Ok(undo(change, network))
    }
}

/// A namespace that is not ours to look into, or is gone with all it held.
fn elsewhere(change: &Change) -> Option<Outcome> {
    let made_in = change.namespace()?;
    if made_in == current_namespace() {
        return None;
    }
    Some(if namespace_exists(made_in) {
        Outcome::Skipped("made in another network namespace: run this there".into())
    } else {
        Outcome::Undone
    })
}

/// Whether a process is in the network namespace, or something is mounted that keeps it.
fn namespace_exists(number: u64) -> bool {
    use std::os::unix::fs::MetadataExt;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if mounts.contains(&format!("net:[{number}]")) {
        return true;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| fs::metadata(entry.path().join("ns/net")).ok())
        .any(|namespace| namespace.ino() == number)
}

fn preview(change: &Change) -> Outcome {
    match elsewhere(change) {
        Some(Outcome::Undone) | None => Outcome::WouldUndo,
        Some(other) => other,
    }
}

fn undo(change: &Change, network: &dyn NetworkUndo) -> Outcome {
    if let Some(skipped) = elsewhere(change) {
        return skipped;
    }
    let result = match change {
        Change::Sysctl { key, old, new, .. } => return undo_sysctl(key, old, new),
        Change::Link { .. }
        | Change::Address { .. }
        | Change::Route { .. }
        | Change::NftTable { .. } => network.undo(change),
        Change::Mount { target } => unmount(target),
        Change::Cgroup { path } => remove_cgroup(path).map_err(|e| e.to_string()),
        Change::File { path } => missing_is_fine(fs::remove_file(path)),
        Change::Directory { path, recursive } => match remove_directory(path, *recursive) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                return Outcome::Skipped("others have put something into it".into());
            }
            result => missing_is_fine(result),
        },
    };
    result.map_or_else(Outcome::Failed, |()| Outcome::Undone)
}

/// A value that is neither ours nor the old one was set by somebody who wants it.
fn undo_sysctl(key: &str, old: &str, new: &str) -> Outcome {
    match sysctl::read(key) {
        Ok(now) if now == new => match sysctl::write(key, old) {
            Ok(()) => Outcome::Undone,
            Err(error) => Outcome::Failed(error.to_string()),
        },
        Ok(now) if now == old => Outcome::Undone,
        Ok(now) => Outcome::Skipped(format!("somebody has set it to {now} since")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Outcome::Undone,
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn remove_directory(path: &Path, recursive: bool) -> io::Result<()> {
    if !recursive {
        return fs::remove_dir(path);
    }
    // What is mounted below is not ours to empty.
    if let Some(mount) = mount_below(path) {
        let text = format!("something is mounted at {mount}");
        return Err(io::Error::other(text));
    }
    fs::remove_dir_all(path)
}

fn mount_below(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let below = points.find(|point| Path::new(point).starts_with(path));
    below.map(str::to_owned)
}

/// Mounts may lie on top of each other; all of them go. One that somebody still looks into is gone from the tree at
/// once, and for good when they look elsewhere.
pub fn unmount(target: &Path) -> Result<(), String> {
    use rustix::io::Errno;
    use rustix::mount::{UnmountFlags, unmount};
    let mut flags = UnmountFlags::NOFOLLOW;
    loop {
        match unmount(target, flags) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if !flags.contains(UnmountFlags::DETACH) => {
                flags |= UnmountFlags::DETACH;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Control groups cannot be removed with their files, only directory by directory.
fn remove_cgroup(path: &Path) -> io::Result<()> {
    let listing = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for child in listing {
        let child = child?;
        if child.file_type()?.is_dir() {
            remove_cgroup(&child.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn missing_is_fine(result: io::Result<()>) -> Result<(), String> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::PathBuf;
    use std::sync::Mutex;

    /// A directory of the test's own.
    pub(crate) fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sampan-host-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[derive(Default)]
    struct Recorded(Mutex<Vec<Change>>);

    impl NetworkUndo for Recorded {
        fn undo(&self, change: &Change) -> Result<(), String> {
            if matches!(change, Change::Link { name, .. } if name == "stuck") {
                return Err("busy".into());
            }
            self.0.lock().unwrap().push(change.clone());
            Ok(())
        }
    }

    #[test]
    fn changes_are_taken_back_newest_first_and_failures_stay() {
        let dir = scratch("undo");
        let namespace = current_namespace();
        let journal = Journal::open(dir.join("host-journal")).unwrap();
        let link = |name: &str, namespace| Change::Link {
            name: name.into(),
            namespace,
        };
        let file = dir.join("made");
        fs::write(&file, "x").unwrap();
        let made = dir.join("dir");
        fs::create_dir(&made).unwrap();
        let changes = [
            link("first", namespace),
            link("stuck", namespace),
            link("gone", u64::MAX),
            Change::File { path: file.clone() },
            Change::Directory {
                path: made.clone(),
                recursive: false,
            },
            Change::File {
                path: dir.join("never-made"),
            },
        ];
        for change in &changes {
            journal.record(change.clone()).unwrap();
        }
        let network = Recorded::default();
        let dry = journal.undo_all(&network, true).unwrap();
        assert_eq!(dry.len(), changes.len());
        assert!(file.exists() && network.0.lock().unwrap().is_empty());

        let report = journal.undo_all(&network, false).unwrap();
        let order: Vec<_> = report.iter().map(|u| u.change.clone()).collect();
        assert!(order.iter().eq(changes.iter().rev()));
        assert!(!file.exists() && !made.exists());
        assert_eq!(*network.0.lock().unwrap(), [changes[0].clone()]);
        let left: Vec<_> = journal.entries().into_iter().map(|e| e.change).collect();
        assert_eq!(
            left,
            changes[1..2],
            "a namespace that is gone took all with it"
        );
    }

    #[test]
    fn a_directory_that_others_filled_is_left_alone() {
        let dir = scratch("filled");
        let journal = Journal::open(dir.join("host-journal")).unwrap();
        let path = dir.join("shared");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("theirs"), "x").unwrap();
        journal
            .record(Change::Directory {
                path: path.clone(),
                recursive: false,
            })
            .unwrap();
        let report = journal.undo_all(&Recorded::default(), false).unwrap();
        assert!(matches!(report[0].outcome, Outcome::Skipped(_)));
        assert!(path.join("theirs").exists());
    }
}

//! The file: one JSON line for a change, one for its end.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use crate::{Change, Error};

/// Number of an entry, unique within its journal.
pub type EntryId = u64;

/// A change that has not been taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    pub change: Change,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Made {
        id: EntryId,
        change: Change,
    },
    Gone {
        gone: EntryId,
    },
    /// The following was written while the machine was up under this id.
    Boot {
        boot: String,
    },
}

/// Changes from all boots but the last one cannot be told apart from it by their names alone.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Dead lines are dropped once there are this many of them and more than live ones.
const COMPACT_AT: usize = 512;

/// Cloned into every component that changes the host.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    path: PathBuf,
    file: File,
    live: BTreeMap<EntryId, Change>,
    by_change: HashMap<Change, EntryId>,
    next: EntryId,
    dead_lines: usize,
    boot: Option<String>,
}

impl Journal {
    /// Opens or creates `<data-dir>/agent/host-journal`. A last line cut short by a crash is dropped, and so is what
    /// ended when the machine was started anew.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let boot = fs::read_to_string(BOOT_ID).ok();
        Self::open_in_boot(path, boot.as_deref().map(str::trim))
    }

    fn open_in_boot(path: impl Into<PathBuf>, boot: Option<&str>) -> Result<Self, Error> {
        let path = path.into();
        let fail = |what| fail(what, &path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(fail("create the directory of"))?;
        }
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(fail("read")(error)),
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .map_err(fail("open"))?;
        let whole_len = content
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |i| i + 1);
        if whole_len < content.len() {
            file.set_len(whole_len as u64).map_err(fail("repair"))?;
        }
        let mut state = State {
            path: path.clone(),
            file,
            live: BTreeMap::new(),
            by_change: HashMap::new(),
            next: 1,
            dead_lines: 0,
            boot: None,
        };
        content[..whole_len]
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .for_each(|line| state.replay(line));
        state.enter_boot(boot)?;
        sync_directory(&path);
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// Records a change that is about to be made; on disk when this returns. The same change
    /// recorded again keeps its first entry.
    pub fn record(&self, change: Change) -> Result<EntryId, Error> {
        let mut state = self.lock();
        let (id, is_new) = state.note(change)?;
        if is_new {
            state.sync()?;
        }
        Ok(id)
    }

    /// Several changes, for the price of one write to the disk.
    pub fn record_all(&self, changes: impl IntoIterator<Item = Change>) -> Result<(), Error> {
        let mut state = self.lock();
        let mut any = false;
        for change in changes {
            let (_, is_new) = state.note(change)?;
            any |= is_new;
        }
        if any { state.sync() } else { Ok(()) }
    }

    /// Notes that the change is no more (its link is deleted, its mount gone).
    pub fn forget(&self, change: &Change) -> Result<(), Error> {
        let mut state = self.lock();
        match state.by_change.get(change).copied() {
            Some(id) => state.end(id),
            None => Ok(()),
        }
    }

    pub fn forget_entry(&self, id: EntryId) -> Result<(), Error> {
        self.lock().end(id)
    }

    /// What is in force, oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        let state = self.lock();
        let entry = |(id, change): (&EntryId, &Change)| Entry {
            id: *id,
            change: change.clone(),
        };
        state.live.iter().map(entry).collect()
    }

    pub fn contains(&self, change: &Change) -> bool {
        self.lock().by_change.contains_key(change)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock cannot leave the maps half changed in a harmful way.
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn replay(&mut self, line: &[u8]) {
        match serde_json::from_slice(line) {
            Ok(Line::Made { id, change }) => self.insert(id, change),
            Ok(Line::Gone { gone }) => self.remove(gone),
            Ok(Line::Boot { boot }) => self.boot = Some(boot),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "unreadable line in the host journal");
            }
        }
    }

    /// Network, mounts, control groups and kernel settings do not outlive the kernel that they were made in.
    fn enter_boot(&mut self, boot: Option<&str>) -> Result<(), Error> {
        if boot.is_none() || self.boot.as_deref() == boot {
            return Ok(());
        }
        if self.boot.is_some() {
            let ended = |(id, change): (&EntryId, &Change)| change.ends_with_boot().then_some(*id);
            let ended: Vec<EntryId> = self.live.iter().filter_map(ended).collect();
            for id in ended {
                self.end(id)?;
            }
        }
        self.boot = boot.map(str::to_owned);
        match self.boot.clone() {
            Some(boot) => self.append(&Line::Boot { boot }),
            None => Ok(()),
        }
    }

    /// The entry of a change, and whether it is new (and not on disk yet).
    fn note(&mut self, change: Change) -> Result<(EntryId, bool), Error> {
        if let Some(id) = self.by_change.get(&change) {
            return Ok((*id, false));
        }
        let id = self.next;
        self.append(&Line::Made {
            id,
            change: change.clone(),
        })?;
        self.insert(id, change);
        Ok((id, true))
    }

    /// The end of a change may be lost in a crash: it then undoes to nothing. Its making may not.
    fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(fail("sync", &self.path))
    }

    fn insert(&mut self, id: EntryId, change: Change) {
        self.next = self.next.max(id + 1);
        self.by_change.insert(change.clone(), id);
        self.live.insert(id, change);
    }

    fn remove(&mut self, id: EntryId) {
        if let Some(change) = self.live.remove(&id) {
            self.by_change.remove(&change);
            self.dead_lines += 2;
        }
    }

    fn end(&mut self, id: EntryId) -> Result<(), Error> {
        if !self.live.contains_key(&id) {
            return Ok(());
        }
        self.append(&Line::Gone { gone: id })?;
        self.remove(id);
        if self.dead_lines >= COMPACT_AT && self.dead_lines > self.live.len() {
            self.compact()?;
        }
        Ok(())
    }

    fn append(&mut self, line: &Line) -> Result<(), Error> {
        let path = self.path.clone();
        let bytes = encode(line).map_err(fail("encode a line of", &path))?;
        let end = self.file.seek(io::SeekFrom::End(0)).unwrap_or_default();
        if let Err(error) = self.file.write_all(&bytes) {
            // A half-written line would swallow the next one.
            if let Err(repair) = self.file.set_len(end) {
                tracing::error!(path = %path.display(), error = %repair, "cannot cut the host journal");
            }
            return Err(fail("write", &path)(error));
        }
        Ok(())
    }

    /// Writes the live entries to a new file and puts it in the old one's place.
    fn compact(&mut self) -> Result<(), Error> {
        let path = self.path.clone();
        let new_path = path.with_extension("new");
        let mut bytes = Vec::new();
        if let Some(boot) = self.boot.clone() {
            bytes.extend(encode(&Line::Boot { boot }).map_err(fail("encode a line of", &path))?);
        }
        for (id, change) in &self.live {
            let line = Line::Made {
                id: *id,
                change: change.clone(),
            };
            bytes.extend(encode(&line).map_err(fail("encode a line of", &path))?);
        }
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let mut new = options
            .open(&new_path)
            .map_err(fail("compact", &new_path))?;
        new.write_all(&bytes).map_err(fail("compact", &new_path))?;
        new.sync_all().map_err(fail("compact", &new_path))?;
        fs::rename(&new_path, &path).map_err(fail("compact", &path))?;
        sync_directory(&path);
        self.file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(fail("open", &path))?;
        self.dead_lines = 0;
        Ok(())
    }
}

fn encode(line: &Line) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Makes a creation or rename durable; a file system that cannot is no reason to stop.
fn sync_directory(path: &Path) {
    let Some(parent) = path.parent() else { return };
    if let Err(error) = File::open(parent).and_then(|d| d.sync_all()) {
        tracing::debug!(path = %parent.display(), %error, "cannot sync directory");
    }
}

fn fail(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |source| Error::Journal { what, path, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn link(name: &str) -> Change {
        Change::Link {
            name: name.into(),
            namespace: 7,
        }
    }

    fn changes(journal: &Journal) -> Vec<Change> {
        journal.entries().into_iter().map(|e| e.change).collect()
    }

    #[test]
    fn what_was_recorded_survives_and_what_ended_does_not() {
        let dir = crate::undo::tests::scratch("journal");
        let path = dir.join("host-journal");
        let journal = Journal::open(&path).unwrap();
        let first = journal.record(link("a")).unwrap();
        assert_eq!(journal.record(link("a")).unwrap(), first);
        journal.record(link("b")).unwrap();
        journal.forget(&link("a")).unwrap();
        drop(journal);
        let journal = Journal::open(&path).unwrap();
        assert_eq!(changes(&journal), [link("b")]);
        assert!(journal.record(link("a")).unwrap() > first);
    }

    #[test]
    fn a_torn_last_line_is_dropped_at_every_length() {
        let dir = crate::undo::tests::scratch("torn");
        let path = dir.join("host-journal");
        let journal = Journal::open(&path).unwrap();
        journal.record(link("a")).unwrap();
        let whole = fs::read(&path).unwrap();
        journal.record(link("b")).unwrap();
        let both = fs::read(&path).unwrap();
        for cut in whole.len()..both.len() {
            fs::write(&path, &both[..cut]).unwrap();
            let journal = Journal::open(&path).unwrap();
            assert_eq!(changes(&journal), [link("a")], "cut at {cut}");
            journal.record(link("c")).unwrap();
            let again = Journal::open(&path).unwrap();
            assert_eq!(changes(&again), [link("a"), link("c")]);
        }
    }

    #[test]
    fn a_new_boot_ends_what_the_kernel_held_and_keeps_files() {
        let path = crate::undo::tests::scratch("boot").join("host-journal");
        let file = Change::File { path: "/x".into() };
        let journal = Journal::open_in_boot(&path, Some("one")).unwrap();
        journal.record(link("a")).unwrap();
        journal.record(file.clone()).unwrap();
        let journal = Journal::open_in_boot(&path, Some("one")).unwrap();
        assert_eq!(changes(&journal), [link("a"), file.clone()]);
        let journal = Journal::open_in_boot(&path, Some("two")).unwrap();
        assert_eq!(changes(&journal).as_slice(), std::slice::from_ref(&file));
        journal.record(link("b")).unwrap();
        let journal = Journal::open_in_boot(&path, Some("two")).unwrap();
        assert_eq!(changes(&journal), [file, link("b")]);
    }

    #[test]
    fn churn_does_not_let_the_file_grow() {
        let dir = crate::undo::tests::scratch("churn");
        let path = dir.join("host-journal");
        let journal = Journal::open(&path).unwrap();
        journal.record(link("stays")).unwrap();
        for i in 0..COMPACT_AT {
            let change = link(&format!("veth{i}"));
            journal.record(change.clone()).unwrap();
            journal.forget(&change).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= COMPACT_AT, "{lines} lines");
        assert_eq!(changes(&Journal::open(&path).unwrap()), [link("stays")]);
    }
}

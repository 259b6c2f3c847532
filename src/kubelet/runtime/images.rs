//! Image archives of the folder `<data-dir>/agent/images/`: imported at start and when they appear.

use super::Error;
use crate::inotify::{FileWatch, FileWatcher, Names};
use sampan_cri::import::{self, Importer};
use sampan_util::{Shutdown, chain};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::Instant;

const ENDINGS: [&str; 6] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.zstd"];

/// A file that nobody was seen to close is whole when nothing has happened to it for so long.
const SETTLED: Duration = Duration::from_secs(2);

/// One folder and what was imported from it.
#[derive(Debug)]
pub struct ImageFolder {
    folder: PathBuf,
    /// Remembers what was imported, so that a restart does not read gigabytes again.
    record: PathBuf,
    scratch: PathBuf,
    importer: Importer,
    watcher: FileWatcher,
    seen: BTreeMap<String, Seen>,
    imported: watch::Sender<Imported>,
}

/// Names of all images that came from archives; `None` until all archives have been looked at once.
pub type Imported = Option<BTreeSet<String>>;

/// An archive as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    size: u64,
    modified_nanos: i128,
    /// Empty if the import failed: not tried again until the file changes, or we start again.
    images: Vec<String>,
}

impl ImageFolder {
    /// `state` is where the record and expanded archives go.
    /// What is imported is told by `imported` after every look at the folder.
    pub fn new(
        folder: PathBuf,
        state: &Path,
        (importer, watcher): (Importer, FileWatcher),
        imported: watch::Sender<Imported>,
    ) -> Self {
        let record = state.join("imported.json");
        let seen = read_record(&record);
        Self {
            folder,
            record,
            scratch: state.to_owned(),
            importer,
            watcher,
            seen,
            imported,
        }
    }

    /// Names of all images that came from the folder: image garbage collection must spare them.
    pub fn pinned(&self) -> BTreeSet<String> {
        let images = self.seen.values().flat_map(|seen| &seen.images);
        images.cloned().collect()
    }

    /// Imports what is new. Bad archives are named in the log and do not stop the others.
    pub async fn import_new(&mut self) -> Result<(), Error> {
        let names = Names::default();
        self.look(&names, SystemTime::now()).await.map(|_| ())
    }

    /// Imports what is new and whole; returns after which time to look again at what is not.
    async fn look(&mut self, names: &Names, now: SystemTime) -> Result<Option<Duration>, Error> {
        std::fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let archives = list(&self.folder).map_err(Error::file("read", &self.folder))?;
        let mut again = None;
        for (name, archive) in archives {
            let known = self.seen.get(&name);
            let unchanged = known
                .filter(|seen| archive.is(seen))
                .map(|seen| seen.images.clone());
            if let Some(images) = unchanged
                && self.importer.has_all(&images).await?
            {
                continue;
            }
            match archive.readiness(&name, names, now) {
                Readiness::Whole => self.import_as(name, &archive).await,
                Readiness::After(time) => again = again.max(Some(time)),
                Readiness::WhenClosed => {}
            }
        }
        Ok(again)
    }

    async fn import_as(&mut self, name: String, archive: &Archive) {
        let images = self.import(&name).await;
        let failed = images.is_empty();
        let seen = Seen {
            size: archive.size,
            modified_nanos: archive.modified_nanos,
            images,
        };
        self.seen.insert(name, seen);
        if !failed {
            self.write_record();
        }
    }

    /// Imports until shutdown whatever appears.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), Error> {
        std::fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let watched = self.watcher.watch_names(&self.folder);
        let watch = watched.map_err(|source| Error::Watch {
            path: self.folder.clone(),
            source,
        })?;
        let mut is_first = true;
        loop {
            let again = match self.look(&watch.names(), SystemTime::now()).await {
                Ok(again) => again,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "cannot import image archives now");
                    None
                }
            };
            // Pods that start meanwhile wait a moment for what had just been copied, but not for what never ends.
            if again.is_none() || !is_first {
                self.imported.send_replace(Some(self.pinned()));
            }
            is_first = false;
            tokio::select! {
                () = shutdown.wait() => return Ok(()),
                () = reason_to_look(&watch, again) => {}
            }
        }
    }

    async fn import(&self, name: &str) -> Vec<String> {
        let path = self.folder.join(name);
        match self.import_file(&path).await {
            Ok(images) => {
                tracing::info!(
                    archive = name,
                    images = images.join(", "),
                    "images imported"
                );
                images
            }
            Err(error) => {
                tracing::warn!(archive = name, error = %chain(&error), "cannot import images");
                Vec::new()
            }
        }
    }

    async fn import_file(&self, path: &Path) -> Result<Vec<String>, Error> {
        let (archive, scratch) = (path.to_owned(), self.scratch.clone());
        let reading = tokio::task::spawn_blocking(move || import::layout::read(&archive, &scratch));
        let bundle = match reading.await {
            Ok(bundle) => bundle?,
            Err(error) => return Err(Error::file("read", path)(std::io::Error::other(error))),
        };
        Ok(self.importer.import(&bundle).await?)
    }

    fn write_record(&self) {
        let imported: BTreeMap<&String, &Seen> = self
            .seen
            .iter()
            .filter(|(_, seen)| !seen.images.is_empty())
            .collect();
        let written = serde_json::to_vec(&imported)
            .map_err(std::io::Error::other)
            .and_then(|bytes| std::fs::write(&self.record, bytes));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot record which archives were imported");
        }
    }
}

fn read_record(path: &Path) -> BTreeMap<String, Seen> {
    // Missing or damaged: everything is imported again, which is harmless.
    std::fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Returns when a file was closed, some time after anything else has happened, or after the time given.
async fn reason_to_look(watch: &FileWatch, after: Option<Duration>) {
    let mut until = after.map(|time| Instant::now() + time);
    loop {
        let time = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = watch.changed() => {
                if changed.closed {
                    return;
                }
                until = until.or_else(|| Some(Instant::now() + SETTLED));
            }
            () = time => return,
        }
    }
}

/// A file of the folder as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Archive {
    size: u64,
    modified_nanos: i128,
    /// When anything happened to it, since the epoch.
    touched: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum Readiness {
    Whole,
    /// Nobody was seen to write it; after this time it is whole if nothing happens.
    After(Duration),
    WhenClosed,
}

impl Archive {
    fn is(&self, seen: &Seen) -> bool {
        seen.size == self.size && seen.modified_nanos == self.modified_nanos
    }

    fn readiness(&self, name: &str, names: &Names, now: SystemTime) -> Readiness {
        if names.writing.contains(name) {
            return Readiness::WhenClosed;
        }
        if names.closed.contains(name) {
            return Readiness::Whole;
        }
        // In the future it was touched if the clock has been set back; that says nothing.
        let age = now
            .duration_since(SystemTime::UNIX_EPOCH + self.touched)
            .unwrap_or(SETTLED);
        match SETTLED.checked_sub(age) {
            None | Some(Duration::ZERO) => Readiness::Whole,
            Some(left) => Readiness::After(left),
        }
    }
}

fn list(folder: &Path) -> std::io::Result<BTreeMap<String, Archive>> {
    let mut archives = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let wanted = !name.starts_with('.') && ENDINGS.iter().any(|ending| name.ends_with(ending));
        let Ok(meta) = std::fs::metadata(entry.path()) else {
            continue;
        };
        if wanted && meta.is_file() && meta.len() > 0 {
            let nanos = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
            let seconds = u64::try_from(meta.ctime()).unwrap_or_default();
            let fraction = u32::try_from(meta.ctime_nsec()).unwrap_or_default();
            let archive = Archive {
                size: meta.len(),
                modified_nanos: nanos,
                touched: Duration::new(seconds, fraction),
            };
            archives.insert(name, archive);
        }
    }
    Ok(archives)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_read_when_its_writer_is_done() {
        let archive = Archive {
            size: 1,
            modified_nanos: 0,
            touched: Duration::from_secs(100),
        };
        let names = |writing: &[&str], closed: &[&str]| {
            let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            Names {
                writing: set(writing),
                closed: set(closed),
            }
        };
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let ask = |names: &Names, millis| archive.readiness("a.tar", names, at(millis));
        let silent = names(&[], &["b.tar"]);
        assert_eq!(
            ask(&silent, 100_500),
            Readiness::After(Duration::from_millis(1500))
        );
        assert_eq!(ask(&silent, 102_000), Readiness::Whole);
        assert_eq!(ask(&silent, 99_000), Readiness::Whole);
        assert_eq!(ask(&names(&[], &["a.tar"]), 100_000), Readiness::Whole);
        assert_eq!(ask(&names(&["a.tar"], &[]), 900_000), Readiness::WhenClosed);
    }

    #[test]
    fn only_whole_archives_are_listed() {
        let folder = std::env::temp_dir().join(format!("sampan-images-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, body) in [
            ("a.tar", "x"),
            ("b.tar.zst", "x"),
            (".hidden.tar", "x"),
            ("notes.txt", "x"),
            ("empty.tar", ""),
        ] {
            std::fs::write(folder.join(name), body).unwrap();
        }
        let names: Vec<String> = list(&folder).unwrap().into_keys().collect();
        assert_eq!(names, ["a.tar", "b.tar.zst"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

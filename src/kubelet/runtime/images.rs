//! Image archives of the folder `<data-dir>/agent/images/`: imported at start and when they appear.

use super::Error;
use crate::inotify::FileWatcher;
use sampan_cri::import::{self, Importer};
use sampan_util::{Shutdown, chain};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::sync::watch;

const ENDINGS: [&str; 6] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.zstd"];

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
        std::fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let archives = list(&self.folder).map_err(Error::file("read", &self.folder))?;
        for (name, (size, modified_nanos)) in archives {
            let known = self.seen.get(&name);
            let unchanged = known
                .filter(|seen| seen.size == size && seen.modified_nanos == modified_nanos)
                .map(|seen| seen.images.clone());
            if let Some(images) = unchanged
                && self.importer.has_all(&images).await?
            {
                continue;
            }
            let images = self.import(&name).await;
            let failed = images.is_empty();
            let seen = Seen {
                size,
                modified_nanos,
                images,
            };
            self.seen.insert(name, seen);
            if !failed {
                self.write_record();
            }
        }
        Ok(())
    }

    /// Imports until shutdown whatever appears.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), Error> {
        std::fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let watched = self.watcher.watch(&self.folder);
        let watch = watched.map_err(|source| Error::Watch {
            path: self.folder.clone(),
            source,
        })?;
        loop {
            if let Err(error) = self.import_new().await {
                tracing::warn!(error = %chain(&error), "cannot import image archives now");
            }
            self.imported.send_replace(Some(self.pinned()));
            tokio::select! {
                () = shutdown.wait() => return Ok(()),
                _ = watch.changed() => {}
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

type Identity = (u64, i128);

fn list(folder: &Path) -> std::io::Result<BTreeMap<String, Identity>> {
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
            archives.insert(name, (meta.len(), nanos));
        }
    }
    Ok(archives)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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

//! Pods that run because a file says so, whether or not the API server is there.
//!
//! [`Source`] follows a folder of manifests ([`manifest`] reads one). The manager runs the pods; so that
//! the API shows them, [`mirrors`] keeps a copy of each there. Upstream counterparts: `config/file`,
//! `pod/mirror_client`.

pub mod manifest;
pub mod mirrors;

use crate::inotify::FileWatcher;
use crate::manager::{Note, Notes};
use crate::node::node_reference;
use crate::pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use sampan_client::Recorder;
use sampan_util::{Shutdown, file};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// What of a file changes when its content does.
type Stamp = (u64, u64, i64, i64);

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub path: PathBuf,
    pub message: String,
}

/// A folder of manifests (or one file), as last read.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    node_name: String,
    files: BTreeMap<PathBuf, Seen>,
}

#[derive(Debug)]
struct Seen {
    stamp: Stamp,
    /// Of the newest content that made sense.
    pod: Option<Arc<Pod>>,
}

impl Source {
    pub fn new(path: PathBuf, node_name: &str) -> Self {
        Self {
            path,
            node_name: node_name.to_owned(),
            files: BTreeMap::new(),
        }
    }

    /// Reads what has changed; a file that makes no sense leaves its pod as it was.
    pub fn look(&mut self, now: Timestamp) -> Vec<Problem> {
        let listed = match list(&self.path) {
            Ok(listed) => listed,
            // A folder that cannot be read says nothing about its files.
            Err(error) => return vec![problem(&self.path, format!("cannot be read: {error}"))],
        };
        self.files.retain(|path, _| listed.contains_key(path));
        let mut problems = Vec::new();
        for (path, stamp) in listed {
            let known = self.files.get(&path);
            if known.is_some_and(|seen| seen.stamp == stamp) {
                continue;
            }
            let before = known.and_then(|seen| seen.pod.clone());
            let read = file::read_bytes(&path).map_err(|error| format!("cannot be read: {error}"));
            let parsed = read.and_then(|text| manifest::parse(&text, &path, &self.node_name, now));
            let pod = match parsed {
                Ok(pod) => Some(Arc::new(pod)),
                Err(message) => {
                    problems.push(problem(&path, message));
                    before
                }
            };
            self.files.insert(path, Seen { stamp, pod });
        }
        problems.extend(self.twins());
        problems
    }

    /// Forgets files that are gone and reads nothing: others may be half written.
    pub fn look_for_gone(&mut self) {
        if let Ok(listed) = list(&self.path) {
            self.files.retain(|path, _| listed.contains_key(path));
        }
    }

    /// The pods; of two with one name the first file's.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        let mut pods: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
        for pod in self.files.values().filter_map(|seen| seen.pod.as_ref()) {
            pods.entry(pod::key(pod)).or_insert_with(|| Arc::clone(pod));
        }
        pods.into_values().collect()
    }

    fn twins(&self) -> Vec<Problem> {
        let mut first: BTreeMap<String, &Path> = BTreeMap::new();
        let mut problems = Vec::new();
        for (path, seen) in &self.files {
            let Some(pod) = &seen.pod else { continue };
            match first.get(&pod::key(pod)) {
                None => {
                    first.insert(pod::key(pod), path);
                }
                Some(other) => problems.push(problem(
                    path,
                    format!(
                        "holds a pod of the same name as {}, which is used",
                        other.display()
                    ),
                )),
            }
        }
        problems
    }
}

fn problem(path: &Path, message: String) -> Problem {
    Problem {
        path: path.to_owned(),
        message,
    }
}

/// The manifests with what tells one content from another. Hidden files and folders are none.
fn list(path: &Path) -> io::Result<BTreeMap<PathBuf, Stamp>> {
    let stamp = |path: &Path| {
        let about = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
    };
    if let Some(own) = stamp(path) {
        return Ok(BTreeMap::from([(path.to_owned(), own)]));
    }
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if let Some(stamp) = stamp(&entry.path()) {
            files.insert(entry.path(), stamp);
        }
    }
    Ok(files)
}

/// Keeps the manager told of what the files say.
pub struct Follower {
    pub source: Source,
    pub watcher: FileWatcher,
    pub recorder: Recorder,
    pub notes: Arc<Notes>,
}

impl Follower {
    pub async fn run(mut self, shutdown: Shutdown) {
        let watched = match self.source.path.parent() {
            Some(parent) if self.source.path.is_file() => parent.to_owned(),
            _ => self.source.path.clone(),
        };
        if let Err(error) = fs::create_dir_all(&watched) {
            self.complain(&problem(&watched, format!("cannot be made: {error}")));
        }
        // Watched first: what changes while it is read is then read again.
        let watch = match self.watcher.watch(&watched) {
            Ok(watch) => watch,
            Err(error) => {
                self.complain(&problem(&watched, format!("cannot be watched: {error}")));
                self.look();
                return;
            }
        };
        self.look();
        loop {
            let changed = tokio::select! {
                changed = watch.changed() => changed,
                () = shutdown.wait() => return,
            };
            if changed.closed {
                self.look();
            } else {
                self.source.look_for_gone();
                self.tell();
            }
        }
    }

    fn look(&mut self) {
        for problem in self.source.look(Timestamp::now()) {
            self.complain(&problem);
        }
        self.tell();
    }

    fn tell(&self) {
        self.notes.send(Note::Static(self.source.pods()));
    }

    fn complain(&self, problem: &Problem) {
        let (path, message) = (problem.path.display(), &problem.message);
        tracing::warn!(%path, %message, "a static pod's manifest is not used");
        let about = node_reference(&self.source.node_name);
        let message = format!("Static pod manifest {path}: {message}");
        self.recorder
            .record(about, true, "InvalidStaticPod", message);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: a, image: '{image}'}}]}}\n"
        )
    }

    fn images(source: &Source) -> String {
        let images = source
            .pods()
            .iter()
            .map(|pod| {
                let image = pod::spec(pod).containers[0].image.clone().unwrap();
                format!("{}={image}", pod::name(pod))
            })
            .collect::<Vec<_>>();
        images.join(" ")
    }

    #[test]
    fn files_come_change_break_and_go() {
        let dir = std::env::temp_dir().join(format!("sampan-static-{}", rand::random::<u64>()));
        let mut source = Source::new(dir.clone(), "N1");
        assert_eq!(source.look(Timestamp::UNIX_EPOCH), []);
        fs::create_dir_all(dir.join("folder")).unwrap();
        fs::write(dir.join("a.yaml"), text("a", "x:1")).unwrap();
        fs::write(dir.join(".hidden"), text("h", "x:1")).unwrap();
        assert_eq!(source.look(Timestamp::UNIX_EPOCH), []);
        assert_eq!(images(&source), "a-n1=x:1");
        let uid = pod::uid(&source.pods()[0]).to_owned();
        fs::write(dir.join("a.yaml"), text("a", "x:22")).unwrap();
        source.look(Timestamp::UNIX_EPOCH);
        assert_eq!(images(&source), "a-n1=x:22");
        assert_ne!(pod::uid(&source.pods()[0]), uid);
        // Broken: told once, and the old pod stays.
        fs::write(dir.join("a.yaml"), "apiVersion: v1\nkind: Pod\nmeta").unwrap();
        assert_eq!(source.look(Timestamp::UNIX_EPOCH).len(), 1);
        assert_eq!(source.look(Timestamp::UNIX_EPOCH), []);
        assert_eq!(images(&source), "a-n1=x:22");
        fs::write(dir.join("b.yaml"), text("a", "x:333")).unwrap();
        let problems = source.look(Timestamp::UNIX_EPOCH);
        assert!(problems[0].message.contains("same name"), "{problems:?}");
        assert_eq!(images(&source), "a-n1=x:22");
        fs::remove_file(dir.join("a.yaml")).unwrap();
        source.look_for_gone();
        assert_eq!(images(&source), "a-n1=x:333");
        fs::remove_dir_all(&dir).unwrap();
        source.look(Timestamp::UNIX_EPOCH);
        assert_eq!(images(&source), "");
    }
}

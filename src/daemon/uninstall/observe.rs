//! What there is of sampan on this machine.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sampan_host::{Change, Journal};
use sampan_kubelet::cgroup::Cgroups;
use sampan_kubelet::dirs::Dirs;
use sampan_kubelet::runtime::supervisor::RuntimeSettings;

use super::INSTALLED;
use super::processes::{self, Process};

/// Who starts and stops the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manager {
    Systemd,
    OpenRc,
    /// A background process.
    None,
}

/// The installer's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installed {
    pub(super) manager: Manager,
    pub(super) data_dir: PathBuf,
    pub(super) files: Vec<PathBuf>,
    pub(super) directories: Vec<PathBuf>,
    pub(super) packages: Vec<String>,
}

impl Installed {
    pub(super) fn read() -> anyhow::Result<Option<Self>> {
        match fs::read_to_string(INSTALLED) {
            Ok(text) => Ok(Some(Self::parse(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {INSTALLED}")),
        }
    }

    /// Lines of a word and a value; a word that is not known is from a newer installer and no harm.
    fn parse(text: &str) -> Self {
        let mut list = Self {
            manager: Manager::None,
            data_dir: super::DEFAULT_DATA_DIR.into(),
            files: Vec::new(),
            directories: Vec::new(),
            packages: Vec::new(),
        };
        for (word, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            match word {
                "service" => {
                    list.manager = match value {
                        "systemd" => Manager::Systemd,
                        "openrc" => Manager::OpenRc,
                        _ => Manager::None,
                    };
                }
                "data-dir" => list.data_dir = value.into(),
                "file" => list.files.push(value.into()),
                "directory" => list.directories.push(value.into()),
                "package" => list.packages.push(value.to_owned()),
                _ => {}
            }
        }
        list
    }
}

/// Everything that was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) data_dir: PathBuf,
    pub(super) installed: Option<Installed>,
    /// The process that works on the data directory.
    pub(super) sampan: Option<i32>,
    /// containerd without its sampan.
    pub(super) runtime: Vec<Process>,
    pub(super) shims: Vec<Process>,
    /// Control groups whose processes are containers'.
    pub(super) cgroups: Vec<PathBuf>,
    /// Of pods and containers, deepest first.
    pub(super) mounts: Vec<PathBuf>,
    /// What shims and network calls leave behind in folders that all containerds share.
    pub(super) leftovers: Vec<PathBuf>,
    pub(super) journal: Option<Journal>,
    pub(super) data: bool,
}

impl Found {
    pub(super) fn changes(&self) -> Vec<Change> {
        let journal = self.journal.as_ref();
        let entries = journal.map(Journal::entries).unwrap_or_default();
        entries
            .into_iter()
            .rev()
            .map(|entry| entry.change)
            .collect()
    }
}

pub(super) fn look(data_dir: &Path, installed: Option<Installed>) -> anyhow::Result<Found> {
    let agent_dir = data_dir.join("agent");
    let runtime = RuntimeSettings::new(agent_dir.clone(), PathBuf::new(), PathBuf::new());
    let state = runtime.state_dir();
    let config = runtime.containerd_dir().join("config.toml");
    let address = state.join("containerd.sock");
    let (mut containerds, mut shims) = (Vec::new(), Vec::new());
    for process in processes::all() {
        if process.has_argument(&config) {
            containerds.push(process);
        } else if process.has_argument(&address) && process.is_named("containerd-shim") {
            shims.push(process);
        }
    }
    let journal_path = agent_dir.join("host-journal");
    let journal = journal_path.exists().then(|| Journal::open(journal_path));
    let journal = journal.transpose()?;
    let cgroups = Cgroups::detect(&agent_dir).map(|cgroups| cgroups.folders());
    let cgroups = cgroups.unwrap_or_default();
    Ok(Found {
        sampan: holder(data_dir),
        runtime: containerds,
        shims,
        cgroups: cgroups.into_iter().filter(|path| path.exists()).collect(),
        // A disk that somebody mounted elsewhere in the data directory is not ours to unmount.
        mounts: mounts_below(&[
            &state,
            &Dirs::new(&agent_dir).pods,
            &runtime.containerd_dir(),
        ]),
        leftovers: [shim_sockets(&state), network_results(&state)].concat(),
        journal,
        data: data_dir.exists(),
        data_dir: data_dir.to_owned(),
        installed,
    })
}

/// The process that holds the lock of a data directory.
fn holder(data_dir: &Path) -> Option<i32> {
    let path = data_dir.join("lock");
    let file = File::open(&path).ok()?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let text = fs::read_to_string(&path).ok()?;
            let pid = text.trim().parse().unwrap_or(0);
            (pid != std::process::id().cast_signed()).then_some(pid)
        }
        _ => None,
    }
}

pub(super) fn mounts_below(folders: &[&Path]) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|field| PathBuf::from(unescape(field)))
        .filter(|path| {
            let below = |folder: &&Path| path.starts_with(folder) && path != *folder;
            folders.iter().any(below)
        })
        .collect();
    mounts.sort_unstable();
    mounts.dedup();
    mounts.reverse();
    mounts
}

/// The kernel writes blanks and the like in paths as `\040`.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Each task's folder names the socket of its shim, which lies in a folder shared by all containerds.
fn shim_sockets(state: &Path) -> Vec<PathBuf> {
    let tasks = state.join("io.containerd.runtime.v2.task/k8s.io");
    let folders = fs::read_dir(tasks).into_iter().flatten().flatten();
    let mut sockets: Vec<PathBuf> = folders
        .filter_map(|folder| fs::read_to_string(folder.path().join("address")).ok())
        .filter_map(|text| {
            let path = text.trim().strip_prefix("unix://")?;
            Some(PathBuf::from(path))
        })
        .filter(|path| path.exists())
        .collect();
    sockets.sort_unstable();
    sockets.dedup();
    sockets
}

/// The runtime notes what a network plugin answered; what names our state is of our sandboxes.
fn network_results(state: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir("/var/lib/cni/results").into_iter().flatten();
    let state = state.display().to_string();
    let mut found: Vec<PathBuf> = files
        .flatten()
        .map(|file| file.path())
        .filter(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(&state)))
        .collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installers_list_is_read() {
        let text = "service systemd\ndata-dir /srv/s\nfile /usr/local/bin/sampan\nfuture thing\npackage runc\n";
        let list = Installed::parse(text);
        assert_eq!(list.manager, Manager::Systemd);
        assert_eq!(list.data_dir, Path::new("/srv/s"));
        assert_eq!(list.files, [Path::new("/usr/local/bin/sampan")]);
        assert_eq!(list.packages, ["runc"]);
    }

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape("/a\\040b\\134"), "/a b\\");
        assert_eq!(unescape("/plain\\9"), "/plain\\9");
    }
}

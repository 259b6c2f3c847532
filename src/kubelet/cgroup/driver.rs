//! Making, changing and removing cgroups in either version of the kernel's interface.
//!
//! Version 1 has a hierarchy of folders for each controller (or group of controllers), version 2 has one for all.

use super::Error;
use super::resources::{Resources, shares_of_weight, weight};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// Where the hierarchies are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    V1 { mounts: Vec<Mount> },
    V2 { root: PathBuf },
}

/// One mounted version 1 hierarchy, or the version 2 one beside them that only helps systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub path: PathBuf,
    pub controllers: Vec<String>,
}

/// In version 1 our cgroups are made only where we set or read something.
const USED: [&str; 5] = ["cpu", "cpuacct", "cpuset", "memory", "pids"];
const NEEDED: [&str; 2] = ["cpu", "memory"];
/// What a version 2 cgroup passes on to its children, as far as the kernel has it.
const DELEGATED: [&str; 6] = ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];

/// One file of a cgroup: controller (which decides where it lies in version 1), name, content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    controller: &'static str,
    file: String,
    value: String,
    /// Not every kernel has it.
    optional: bool,
}

impl Hierarchy {
    pub fn detect() -> Result<Self, Error> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(file_error("read", path))?;
        Self::from_mountinfo(&text)
    }

    pub(super) fn from_mountinfo(text: &str) -> Result<Self, Error> {
        let mut v1: Vec<Mount> = Vec::new();
        let mut v2: Vec<PathBuf> = Vec::new();
        for line in text.lines() {
            let Some((mount, file_system, options)) = parse_mount(line) else {
                continue;
            };
            match file_system {
                "cgroup2" => v2.push(mount),
                "cgroup" if !v1.iter().any(|known| known.path == mount) => v1.push(Mount {
                    path: mount,
                    controllers: options.split(',').map(str::to_owned).collect(),
                }),
                _ => {}
            }
        }
        let main = Path::new("/sys/fs/cgroup");
        if let Some(root) = v2.iter().find(|path| *path == main) {
            return Ok(Self::V2 { root: root.clone() });
        }
        let missing: Vec<&'static str> = NEEDED
            .into_iter()
            .filter(|name| !v1.iter().any(|mount| mount.has(name)))
            .collect();
        if !missing.is_empty() {
            return match v2.into_iter().next() {
                Some(root) if v1.is_empty() => Ok(Self::V2 { root }),
                _ => Err(Error::NotMounted { missing }),
            };
        }
        v1.extend(v2.into_iter().map(|path| Mount {
            path,
            controllers: Vec::new(),
        }));
        Ok(Self::V1 { mounts: v1 })
    }

    pub fn version(&self) -> Version {
        match self {
            Self::V1 { .. } => Version::V1,
            Self::V2 { .. } => Version::V2,
        }
    }

    /// Makes a cgroup and those above it, ready to hold processes.
    pub(super) fn create(&self, path: &str) -> Result<(), Error> {
        match self {
            Self::V1 { mounts } => {
                for mount in mounts.iter().filter(|mount| mount.is_used()) {
                    for folder in steps(&mount.path, path) {
                        make(&folder)?;
                        if mount.has("cpuset") {
                            inherit_cpuset(&folder)?;
                        }
                    }
                }
                Ok(())
            }
            Self::V2 { root } => {
                let mut above = root.clone();
                for folder in steps(root, path) {
                    delegate(&above)?;
                    make(&folder)?;
                    above = folder;
                }
                delegate(&above)
            }
        }
    }

    /// Sets what `resources` names and leaves the rest.
    pub(super) fn apply(&self, path: &str, resources: &Resources) -> Result<(), Error> {
        for setting in settings(self.version(), resources) {
            let Some(folder) = self.folder(setting.controller, path) else {
                continue;
            };
            let file = folder.join(&setting.file);
            if setting.optional && !file.exists() {
                continue;
            }
            fs::write(&file, &setting.value).map_err(file_error("write", &file))?;
        }
        Ok(())
    }

    /// Kills the processes in a cgroup and below, and removes it from all hierarchies.
    pub(super) fn remove(&self, path: &str) -> Result<(), Error> {
        let mut delay = Duration::from_millis(1);
        let mut last = None;
        // Dead processes leave their cgroup a moment later than they die.
        while delay < Duration::from_secs(2) {
            last = None;
            for folder in self.folders(path) {
                if let Err(error) = remove_tree(&folder) {
                    last = Some(file_error("remove", &folder)(error));
                }
            }
            if last.is_none() {
                return Ok(());
            }
            std::thread::sleep(delay);
            delay *= 2;
        }
        last.map_or(Ok(()), Err)
    }

    /// Names of the cgroups directly below.
    pub(super) fn children(&self, path: &str) -> BTreeSet<String> {
        self.folders(path)
            .iter()
            .flat_map(|folder| subfolders(folder))
            .filter_map(|folder| folder.file_name()?.to_str().map(str::to_owned))
            .collect()
    }

    /// A cgroup's weight in version 1's measure.
    pub(super) fn cpu_shares(&self, path: &str) -> Option<u64> {
        let folder = self.folder("cpu", path)?;
        let number = |name: &str| {
            fs::read_to_string(folder.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        match self.version() {
            Version::V1 => number("cpu.shares"),
            Version::V2 => number("cpu.weight").map(shares_of_weight),
        }
    }

    /// What a container's own cgroup at `path` gets in files that the runtime knows no field for (version 2 only): all
    /// its processes die together when its memory runs out, and none of it is swapped out.
    pub fn container_files(&self, path: &str) -> HashMap<String, String> {
        let Self::V2 { root } = self else {
            return HashMap::new();
        };
        // A neighbour tells what this kernel has; the container's own folder is made later.
        let folder = root.join(path.trim_start_matches('/'));
        [("memory.oom.group", "1"), ("memory.swap.max", "0")]
            .into_iter()
            .filter(|(name, _)| folder.join(name).exists())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// The folder that holds a controller's files of a cgroup.
    pub(super) fn folder(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let root = match self {
            Self::V2 { root } => root,
            Self::V1 { mounts } => &mounts.iter().find(|mount| mount.has(controller))?.path,
        };
        Some(root.join(path.trim_start_matches('/')))
    }

    fn folders(&self, path: &str) -> Vec<PathBuf> {
        let path = path.trim_start_matches('/');
        match self {
            Self::V2 { root } => vec![root.join(path)],
            Self::V1 { mounts } => mounts.iter().map(|mount| mount.path.join(path)).collect(),
        }
    }
}

impl Mount {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|own| own == controller)
    }

    fn is_used(&self) -> bool {
        USED.iter().any(|name| self.has(name))
    }
}

/// Mount point, file system type and super options of one line.
fn parse_mount(line: &str) -> Option<(PathBuf, &str, &str)> {
    let (front, back) = line.split_once(" - ")?;
    let mount = front.split(' ').nth(4)?;
    let mut back = back.split(' ');
    let file_system = back.next()?;
    let options = back.nth(1)?;
    Some((PathBuf::from(mount), file_system, options))
}

/// The folders from the one below `root` to the last of `path`.
fn steps(root: &Path, path: &str) -> Vec<PathBuf> {
    let mut folder = root.to_owned();
    path.split('/')
        .filter(|part| !part.is_empty())
        .map(|part| {
            folder.push(part);
            folder.clone()
        })
        .collect()
}

fn make(folder: &Path) -> Result<(), Error> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(file_error("create", folder)(error))
        }
        _ => Ok(()),
    }
}

/// A new version 1 cpuset is empty, and nothing may run in an empty one.
fn inherit_cpuset(folder: &Path) -> Result<(), Error> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = folder.join(name);
        let own = fs::read_to_string(&file).map_err(file_error("read", &file))?;
        if !own.trim().is_empty() {
            continue;
        }
        let Some(above) = folder.parent().map(|parent| parent.join(name)) else {
            continue;
        };
        let value = fs::read_to_string(&above).map_err(file_error("read", &above))?;
        fs::write(&file, value.trim()).map_err(file_error("write", &file))?;
    }
    Ok(())
}

/// Lets children of a version 2 cgroup be limited. Each controller alone: one that is missing must not stop the others.
fn delegate(folder: &Path) -> Result<(), Error> {
    let available = folder.join("cgroup.controllers");
    let available = fs::read_to_string(&available).map_err(file_error("read", &available))?;
    let control = folder.join("cgroup.subtree_control");
    for name in DELEGATED {
        if available.split_whitespace().any(|own| own == name)
            && let Err(error) = fs::write(&control, format!("+{name}"))
        {
            tracing::debug!(controller = name, folder = %folder.display(), %error, "controller cannot be passed on");
        }
    }
    Ok(())
}

fn remove_tree(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for child in subfolders(folder) {
        remove_tree(&child)?;
    }
    kill_all(folder);
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn kill_all(folder: &Path) {
    let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|line| line.parse().ok()) {
        let Some(pid) = rustix::process::Pid::from_raw(pid) else {
            continue;
        };
        if let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
            tracing::trace!(%error, "a process was gone before it was killed");
        }
    }
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// What to write for `resources`, in order.
pub(super) fn settings(version: Version, resources: &Resources) -> Vec<Setting> {
    let mut list = Vec::new();
    let mut set = |controller, file: &str, value: String, optional| {
        list.push(Setting {
            controller,
            file: file.to_owned(),
            value,
            optional,
        });
    };
    let or_max = |value: i64| match value {
        value if value > 0 => value.to_string(),
        _ => "max".to_owned(),
    };
    match version {
        Version::V1 => {
            if let Some(shares) = resources.cpu_shares {
                set("cpu", "cpu.shares", shares.to_string(), false);
            }
            if let Some(quota) = resources.cpu_quota {
                let period = resources.cpu_period.to_string();
                set("cpu", "cpu.cfs_period_us", period, true);
                let quota = if quota > 0 { quota } else { -1 };
                set("cpu", "cpu.cfs_quota_us", quota.to_string(), true);
            }
            if let Some(limit) = resources.memory_limit {
                let limit = if limit > 0 { limit } else { -1 };
                set("memory", "memory.limit_in_bytes", limit.to_string(), false);
            }
        }
        Version::V2 => {
            if let Some(shares) = resources.cpu_shares {
                set("cpu", "cpu.weight", weight(shares).to_string(), false);
            }
            if let Some(quota) = resources.cpu_quota {
                let value = format!("{} {}", or_max(quota), resources.cpu_period);
                set("cpu", "cpu.max", value, true);
            }
            if let Some(limit) = resources.memory_limit {
                set("memory", "memory.max", or_max(limit), false);
            }
        }
    }
    if let Some(limit) = resources.pids_limit {
        set("pids", "pids.max", or_max(limit), true);
    }
    for (size, limit) in &resources.huge_pages {
        let file = match version {
            Version::V1 => format!("hugetlb.{size}.limit_in_bytes"),
            Version::V2 => format!("hugetlb.{size}.max"),
        };
        set("hugetlb", &file, limit.to_string(), true);
    }
    list
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SEPARATE: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn both_versions_are_recognised() {
        let v1 = Hierarchy::from_mountinfo(SEPARATE).unwrap();
        assert_eq!(v1.version(), Version::V1);
        assert_eq!(
            v1.folder("cpuacct", "/a/b").unwrap(),
            Path::new("/sys/fs/cgroup/cpu,cpuacct/a/b")
        );
        assert_eq!(v1.folder("pids", "/a"), None);
        assert_eq!(v1.folders("/a").len(), 4);
        let v2 = "24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            Hierarchy::from_mountinfo(v2).unwrap().version(),
            Version::V2
        );
        assert!(Hierarchy::from_mountinfo("").is_err());
    }

    fn texts(version: Version, resources: &Resources) -> Vec<String> {
        settings(version, resources)
            .iter()
            .map(|setting| format!("{}={}", setting.file, setting.value))
            .collect()
    }

    #[test]
    fn the_same_limits_in_both_forms() {
        let resources = Resources {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            memory_limit: Some(1 << 20),
            pids_limit: Some(-1),
            ..Resources::default()
        };
        assert_eq!(
            texts(Version::V1, &resources),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "memory.limit_in_bytes=1048576",
                "pids.max=max",
            ]
        );
        assert_eq!(
            texts(Version::V2, &resources),
            [
                "cpu.weight=100",
                "cpu.max=50000 100000",
                "memory.max=1048576",
                "pids.max=max",
            ]
        );
    }

    #[test]
    fn containers_die_whole_and_are_not_swapped_out_where_the_kernel_can() {
        let root = std::env::temp_dir().join(format!("sampan-files-{}", std::process::id()));
        fs::create_dir_all(root.join("pods")).unwrap();
        fs::write(root.join("pods/memory.oom.group"), "0\n").unwrap();
        let v2 = Hierarchy::V2 { root: root.clone() };
        let expected = HashMap::from([("memory.oom.group".to_owned(), "1".to_owned())]);
        assert_eq!(v2.container_files("/pods"), expected);
        let v1 = Hierarchy::from_mountinfo(SEPARATE).unwrap();
        assert_eq!(v1.container_files("/pods"), HashMap::new());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn version_2_passes_controllers_on_at_each_level() {
        let root = std::env::temp_dir().join(format!("sampan-cgroup-{}", std::process::id()));
        for folder in ["", "a", "a/b"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.controllers"), "cpu memory\n").unwrap();
        }
        let hierarchy = Hierarchy::V2 { root: root.clone() };
        hierarchy.create("/a/b").unwrap();
        for folder in ["", "a", "a/b"] {
            let control = root.join(folder).join("cgroup.subtree_control");
            assert_eq!(fs::read_to_string(control).unwrap(), "+memory");
        }
        assert_eq!(hierarchy.children("/a"), BTreeSet::from(["b".to_owned()]));
        fs::remove_dir_all(&root).unwrap();
    }
}

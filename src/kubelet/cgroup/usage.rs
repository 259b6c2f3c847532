//! Figures of a cgroup.

use super::driver::{Hierarchy, Version};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What a cgroup has used and uses; `None` where the kernel does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanos: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Without what could be dropped at once.
    pub working_set_bytes: Option<u64>,
    pub rss_bytes: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub processes: Option<u64>,
}

pub(super) fn read(hierarchy: &Hierarchy, path: &str) -> Usage {
    let folder = |controller: &str| hierarchy.folder(controller, path).unwrap_or_default();
    let mut usage = match hierarchy.version() {
        Version::V1 => v1(&folder("cpuacct"), &folder("memory")),
        Version::V2 => v2(&folder("cpu")),
    };
    usage.processes = number(&folder("pids").join("pids.current"));
    usage
}

/// How many processes of a cgroup the kernel has killed for want of memory. In version 2 that counts those of the
/// cgroups below too.
pub(super) fn out_of_memory(hierarchy: &Hierarchy, path: &str) -> Option<u64> {
    let file = match hierarchy.version() {
        Version::V1 => "memory.oom_control",
        Version::V2 => "memory.events",
    };
    let folder = hierarchy.folder("memory", path)?;
    table(&folder.join(file)).get("oom_kill").copied()
}

fn v1(cpu: &Path, memory: &Path) -> Usage {
    let stat = table(&memory.join("memory.stat"));
    let get = |name: &str| stat.get(name).copied();
    let used = number(&memory.join("memory.usage_in_bytes"));
    Usage {
        cpu_nanos: number(&cpu.join("cpuacct.usage")),
        memory_bytes: used,
        working_set_bytes: working_set(used, get("total_inactive_file")),
        rss_bytes: get("total_rss"),
        page_faults: get("total_pgfault"),
        major_page_faults: get("total_pgmajfault"),
        memory_limit_bytes: number(&memory.join("memory.limit_in_bytes")).and_then(bounded),
        swap_bytes: get("total_swap"),
        processes: None,
    }
}

fn v2(folder: &Path) -> Usage {
    let stat = table(&folder.join("memory.stat"));
    let get = |name: &str| stat.get(name).copied();
    let used = number(&folder.join("memory.current")).or_else(|| {
        // The root has no such file.
        Some(get("anon")? + get("file")?)
    });
    Usage {
        cpu_nanos: table(&folder.join("cpu.stat"))
            .get("usage_usec")
            .map(|micros| micros * 1000),
        memory_bytes: used,
        working_set_bytes: working_set(used, get("inactive_file")),
        rss_bytes: get("anon"),
        page_faults: get("pgfault"),
        major_page_faults: get("pgmajfault"),
        memory_limit_bytes: number(&folder.join("memory.max")),
        swap_bytes: number(&folder.join("memory.swap.current")),
        processes: None,
    }
}

fn working_set(used: Option<u64>, inactive_file: Option<u64>) -> Option<u64> {
    Some(used?.saturating_sub(inactive_file.unwrap_or(0)))
}

/// Version 1 says "no limit" with a number near the largest one.
fn bounded(limit: u64) -> Option<u64> {
    (limit < 1 << 62).then_some(limit)
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// `key value` lines.
fn table(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            Some((key.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn version_2_files() {
        let root = std::env::temp_dir().join(format!("sampan-usage-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        for (name, text) in [
            ("cpu.stat", "usage_usec 5\nuser_usec 1\n"),
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 300\ninactive_file 400\npgfault 7\n"),
            ("memory.max", "max\n"),
            ("pids.current", "3\n"),
        ] {
            fs::write(root.join(name), text).unwrap();
        }
        let usage = read(&Hierarchy::V2 { root: root.clone() }, "/");
        assert_eq!(usage.cpu_nanos, Some(5000));
        assert_eq!(usage.working_set_bytes, Some(600));
        assert_eq!(usage.rss_bytes, Some(300));
        assert_eq!(usage.memory_limit_bytes, None);
        assert_eq!(usage.processes, Some(3));
        let hierarchy = Hierarchy::V2 { root: root.clone() };
        assert_eq!(out_of_memory(&hierarchy, "/"), None);
        fs::write(root.join("memory.events"), "oom 3\noom_kill 2\n").unwrap();
        assert_eq!(out_of_memory(&hierarchy, "/"), Some(2));
        fs::remove_dir_all(&root).unwrap();
    }
}

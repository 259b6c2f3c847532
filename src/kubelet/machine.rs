//! Facts about the machine that a node reports.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineInfo {
    pub cpus: u64,
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    /// The most processes there may be.
    pub max_pids: u64,
    /// (page size in bytes, pages reserved).
    pub huge_pages: Vec<(u64, u64)>,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    /// In Go's words (`amd64`).
    pub architecture: &'static str,
    pub booted: SystemTime,
}

/// Space on a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Totals of the whole machine that have no cgroup in version 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub total_bytes: u64,
    pub available_bytes: u64,
    pub swap_total_bytes: u64,
    pub swap_free_bytes: u64,
}

impl MachineInfo {
    /// Reads what does not change while the machine runs.
    pub fn read() -> Self {
        let memory = Memory::read();
        let machine_id = first_line(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
        let system_uuid = first_line(&[
            "/sys/class/dmi/id/product_uuid",
            "/proc/device-tree/vm,uuid",
            "/etc/machine-id",
        ]);
        Self {
            cpus: online_cpus(&read("/sys/devices/system/cpu/online")),
            memory_bytes: memory.total_bytes,
            swap_bytes: memory.swap_total_bytes,
            max_pids: read("/proc/sys/kernel/pid_max")
                .trim()
                .parse()
                .unwrap_or(32_768),
            huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
            machine_id,
            system_uuid,
            boot_id: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
            kernel_version: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            os_image: os_image(&read("/etc/os-release")),
            architecture: sampan_cri::import::oci::host_architecture(),
            booted: booted(&read("/proc/stat")),
        }
    }
}

impl Memory {
    pub fn read() -> Self {
        Self::parse(&read("/proc/meminfo"))
    }

    fn parse(text: &str) -> Self {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next());
            kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        Self {
            total_bytes: bytes("MemTotal"),
            available_bytes: bytes("MemAvailable"),
            swap_total_bytes: bytes("SwapTotal"),
            swap_free_bytes: bytes("SwapFree"),
        }
    }
}

impl Disk {
    /// Of the file system that holds `path`.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Self {
            capacity_bytes: found.f_blocks * found.f_frsize,
            available_bytes: found.f_bavail * found.f_frsize,
            used_bytes: (found.f_blocks - found.f_bfree) * found.f_frsize,
            inodes: found.f_files,
            inodes_free: found.f_ffree,
        })
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn first_line(paths: &[&str]) -> String {
    let texts = paths.iter().map(|path| read(path));
    let mut lines = texts.map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned());
    lines.find(|line| !line.is_empty()).unwrap_or_default()
}

/// `0-3,6` are five.
fn online_cpus(list: &str) -> u64 {
    let count = list
        .trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            Some(last.checked_sub(first)? + 1)
        })
        .sum();
    match count {
        0 => std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
        count => count,
    }
}

fn os_image(release: &str) -> String {
    let value = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name))?;
        Some(
            line.trim_start_matches('=')
                .trim_matches(['"', '\''])
                .to_owned(),
        )
    };
    value("PRETTY_NAME")
        .or_else(|| value("NAME"))
        .unwrap_or_else(|| "Linux".to_owned())
}

fn booted(stat: &str) -> SystemTime {
    let seconds = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))
        .and_then(|seconds| seconds.trim().parse().ok())
        .unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn huge_pages(folder: &Path) -> Vec<(u64, u64)> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut sizes: Vec<(u64, u64)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let pages = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            Some((kib * 1024, pages.trim().parse().ok()?))
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_files_are_read() {
        assert_eq!(online_cpus("0-3,6\n"), 5);
        assert_eq!(online_cpus("0"), 1);
        assert_eq!(os_image("NAME=x\nPRETTY_NAME=\"A B\"\n"), "A B");
        let memory = Memory::parse("MemTotal:  2 kB\nMemAvailable: 1 kB\n");
        assert_eq!((memory.total_bytes, memory.available_bytes), (2048, 1024));
        assert_eq!(
            booted("cpu 1\nbtime 5\n")
                .duration_since(SystemTime::UNIX_EPOCH)
                .ok(),
            Some(Duration::from_secs(5))
        );
    }

    #[test]
    fn this_machine_has_the_facts() {
        let machine = MachineInfo::read();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && machine.max_pids > 0);
        assert!(!machine.boot_id.is_empty() && !machine.kernel_version.is_empty());
    }
}

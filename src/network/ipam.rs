//! Addresses of the node's pods: one file for each that is given out.
//!
//! An address is taken before anyone hears of it and given back after its link is gone, so neither
//! a crash nor a kill can hand it out twice. Files are renamed into place but not synced: after a
//! power cut there are no pods either, and what is left over is collected. Addresses are given out
//! round robin, so that one just freed is the last to be used again.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// What an address is given to: an interface of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attachment {
    pub sandbox: String,
    pub interface: String,
}

impl Attachment {
    /// Refuses what cannot be part of a file name.
    pub fn new(sandbox: &str, interface: &str) -> Result<Self, Error> {
        let legal = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !text.is_empty()
                && text.len() <= 200
                && text.chars().all(allowed)
                && !text.starts_with('.')
        };
        if !legal(sandbox) || !legal(interface) || interface.len() > 15 {
            return Err(Error::IllegalName {
                sandbox: sandbox.to_owned(),
                interface: interface.to_owned(),
            });
        }
        Ok(Self {
            sandbox: sandbox.to_owned(),
            interface: interface.to_owned(),
        })
    }

    fn file_name(&self) -> String {
        format!("{}_{}.json", self.sandbox, self.interface)
    }
}

/// A port of the node that leads to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Empty or `0.0.0.0`: every address of the node.
    #[serde(default, rename = "hostIP")]
    pub host_ip: String,
}

/// All there is to know about an attachment: what DEL, CHECK and a restart need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    #[serde(flatten)]
    pub attachment: Attachment,
    pub addresses: Vec<IpAddr>,
    /// The host's end of the link.
    pub host_link: String,
    /// Where the sandbox's network namespace was.
    pub namespace: PathBuf,
    /// `namespace/name`, for people.
    #[serde(default)]
    pub pod: String,
    #[serde(default)]
    pub port_mappings: Vec<PortMapping>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no free address in {0}: every one belongs to a pod")]
    Full(IpNet),
    #[error("the node has no pod range yet")]
    NoRange,
    #[error("{sandbox:?} and {interface:?} cannot name an attachment")]
    IllegalName { sandbox: String, interface: String },
    #[error("cannot {what} {path}: {source}")]
    File {
        what: &'static str,
        path: String,
        source: io::Error,
    },
}

/// The addresses of one node. One process owns the directory.
#[derive(Debug)]
pub struct Ipam {
    directory: PathBuf,
    ranges: Vec<Range>,
    allocations: HashMap<Attachment, Allocation>,
    used: HashSet<IpAddr>,
}

#[derive(Debug)]
struct Range {
    network: IpNet,
    last: Option<IpAddr>,
}

impl Ipam {
    /// Reads what was given out before. Unreadable files (from a power cut) are removed.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(fail("create", &directory))?;
        let mut ipam = Self {
            directory: directory.clone(),
            ranges: Vec::new(),
            allocations: HashMap::new(),
            used: HashSet::new(),
        };
        let listing = fs::read_dir(&directory).map_err(fail("read", &directory))?;
        for entry in listing {
            let path = entry.map_err(fail("read", &directory))?.path();
            ipam.load(&path);
        }
        Ok(ipam)
    }

    fn load(&mut self, path: &Path) {
        if path.extension().is_none_or(|e| e != "json") {
            return;
        }
        let read = fs::read(path).ok();
        let parsed = read.and_then(|bytes| serde_json::from_slice::<Allocation>(&bytes).ok());
        match parsed {
            Some(allocation) => self.insert(allocation),
            None => {
                tracing::warn!(path = %path.display(), "removing an unreadable address file");
                remove(path);
            }
        }
    }

    fn insert(&mut self, allocation: Allocation) {
        self.used.extend(allocation.addresses.iter().copied());
        self.allocations
            .insert(allocation.attachment.clone(), allocation);
    }

    /// The node's pod ranges; allocations outside of them stay until they end.
    pub fn set_ranges(&mut self, networks: &[IpNet]) {
        let same = self
            .ranges
            .iter()
            .map(|r| r.network)
            .eq(networks.iter().copied());
        if same {
            return;
        }
        let range = |network: &IpNet| Range {
            network: *network,
            last: self.read_last(*network),
        };
        self.ranges = networks.iter().map(range).collect();
    }

    pub fn ranges(&self) -> Vec<IpNet> {
        self.ranges.iter().map(|range| range.network).collect()
    }

    /// One address of each range. `describe` completes what is written down with them. An
    /// attachment that has addresses already keeps them.
    pub fn allocate(
        &mut self,
        attachment: &Attachment,
        describe: impl FnOnce(Vec<IpAddr>) -> Allocation,
    ) -> Result<Allocation, Error> {
        if let Some(known) = self.allocations.get(attachment) {
            return Ok(known.clone());
        }
        if self.ranges.is_empty() {
            return Err(Error::NoRange);
        }
        let mut addresses = Vec::new();
        for range in &self.ranges {
            let free = next_free(range, &self.used).ok_or(Error::Full(range.network))?;
            addresses.push(free);
        }
        let allocation = describe(addresses.clone());
        self.write(&allocation)?;
        for (range, address) in self.ranges.iter_mut().zip(&addresses) {
            range.last = Some(*address);
        }
        self.write_last();
        self.insert(allocation.clone());
        Ok(allocation)
    }

    pub fn get(&self, attachment: &Attachment) -> Option<&Allocation> {
        self.allocations.get(attachment)
    }

    pub fn all(&self) -> impl Iterator<Item = &Allocation> {
        self.allocations.values()
    }

    /// Gives the addresses back. Nothing to give back is fine.
    pub fn release(&mut self, attachment: &Attachment) -> Result<(), Error> {
        let path = self.directory.join(attachment.file_name());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(fail("remove", &path)(error));
            }
            _ => {}
        }
        if let Some(allocation) = self.allocations.remove(attachment) {
            for address in &allocation.addresses {
                self.used.remove(address);
            }
        }
        Ok(())
    }

    fn write(&self, allocation: &Allocation) -> Result<(), Error> {
        let path = self.directory.join(allocation.attachment.file_name());
        let bytes = serde_json::to_vec(allocation)
            .map_err(io::Error::from)
            .map_err(fail("encode", &path))?;
        replace_file(&path, &bytes).map_err(fail("write", &path))
    }

    fn last_path(&self) -> PathBuf {
        self.directory.join("last")
    }

    /// Losing this costs only the delay before an address is used again.
    fn write_last(&self) {
        let last: Vec<_> = self.ranges.iter().filter_map(|range| range.last).collect();
        let written = serde_json::to_vec(&last)
            .map_err(io::Error::from)
            .and_then(|bytes| replace_file(&self.last_path(), &bytes));
        if let Err(error) = written {
            tracing::debug!(%error, "cannot note the last address given out");
        }
    }

    fn read_last(&self, network: IpNet) -> Option<IpAddr> {
        let bytes = fs::read(self.last_path()).ok()?;
        let all: Vec<IpAddr> = serde_json::from_slice(&bytes).ok()?;
        all.into_iter().find(|address| network.contains(address))
    }
}

/// The range's own address, the gateway's (the first) and the last are not for pods.
fn next_free(range: &Range, used: &HashSet<IpAddr>) -> Option<IpAddr> {
    let first = offset(range.network, 2)?;
    let end = number(range.network.broadcast());
    let size = end.saturating_sub(number(first));
    let start = range.last.map_or(number(first), |last| number(last) + 1);
    let candidate = |i: u128| {
        let wrapped = (start.wrapping_sub(number(first)).wrapping_add(i)) % size;
        address(number(first) + wrapped, range.network.addr().is_ipv6())
    };
    // As many tries as there are used addresses, and one more, must meet a free one.
    let tries = size.min(used.len() as u128 + 1);
    (0..tries)
        .map(candidate)
        .find(|address| !used.contains(address))
}

/// The address by its place in the range: 1 is the node's own.
pub fn offset(network: IpNet, place: u128) -> Option<IpAddr> {
    let value = number(network.network()).checked_add(place)?;
    let address = address(value, network.addr().is_ipv6());
    network.contains(&address).then_some(address)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn address(number: u128, is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        std::net::Ipv6Addr::from(number).into()
    } else {
        std::net::Ipv4Addr::from(number as u32).into()
    }
}

/// Writes beside the target and renames, so that a reader sees the old content or the new.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, bytes)?;
    fs::rename(&new, path)
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove");
    }
}

fn fail(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |source| Error::File { what, path, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sampan-ipam-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        path
    }

    fn open(directory: &Path, network: &str) -> Ipam {
        let mut ipam = Ipam::open(directory).unwrap();
        ipam.set_ranges(&[network.parse().unwrap()]);
        ipam
    }

    fn attachment(sandbox: &str) -> Attachment {
        Attachment::new(sandbox, "eth0").unwrap()
    }

    fn take(ipam: &mut Ipam, sandbox: &str) -> Result<String, Error> {
        let attachment = attachment(sandbox);
        let describe = |addresses| Allocation {
            attachment: attachment.clone(),
            addresses,
            host_link: "sp0".into(),
            namespace: "/none".into(),
            pod: String::new(),
            port_mappings: vec![],
        };
        let allocation = ipam.allocate(&attachment, describe)?;
        Ok(allocation.addresses[0].to_string())
    }

    #[test]
    fn addresses_are_unique_until_none_is_left_and_come_back() {
        let directory = scratch("full");
        let mut ipam = open(&directory, "10.42.0.0/29");
        let all: Vec<_> = (0..5)
            .map(|i| take(&mut ipam, &format!("s{i}")).unwrap())
            .collect();
        let expected = [
            "10.42.0.2",
            "10.42.0.3",
            "10.42.0.4",
            "10.42.0.5",
            "10.42.0.6",
        ];
        assert_eq!(all, expected);
        assert!(matches!(take(&mut ipam, "more"), Err(Error::Full(_))));
        assert_eq!(
            take(&mut ipam, "s3").unwrap(),
            "10.42.0.5",
            "a repeated ADD gets the same"
        );
        ipam.release(&attachment("s1")).unwrap();
        ipam.release(&attachment("s1")).unwrap();
        assert_eq!(take(&mut ipam, "more").unwrap(), "10.42.0.3");
    }

    #[test]
    fn a_freed_address_is_the_last_to_be_used_again_even_after_a_restart() {
        let directory = scratch("robin");
        let mut ipam = open(&directory, "10.42.0.0/28");
        assert_eq!(take(&mut ipam, "a").unwrap(), "10.42.0.2");
        ipam.release(&attachment("a")).unwrap();
        assert_eq!(take(&mut ipam, "b").unwrap(), "10.42.0.3");
        let mut ipam = open(&directory, "10.42.0.0/28");
        ipam.release(&attachment("b")).unwrap();
        assert_eq!(take(&mut ipam, "c").unwrap(), "10.42.0.4");
    }

    #[test]
    fn what_was_given_out_survives_a_kill_and_garbage_does_not() {
        let directory = scratch("kill");
        let mut ipam = open(&directory, "10.42.0.0/24");
        let kept = take(&mut ipam, "kept").unwrap();
        fs::write(directory.join("torn_eth0.json"), b"{\"sandbox\":").unwrap();
        fs::remove_file(directory.join("last")).unwrap();
        let mut ipam = open(&directory, "10.42.0.0/24");
        assert_eq!(ipam.all().count(), 1);
        assert_ne!(take(&mut ipam, "other").unwrap(), kept);
        assert!(!directory.join("torn_eth0.json").exists());
    }

    #[test]
    fn ipv6_ranges_count_too() {
        let directory = scratch("six");
        let mut ipam = open(&directory, "fd00:42::/64");
        assert_eq!(take(&mut ipam, "a").unwrap(), "fd00:42::2");
        assert_eq!(take(&mut ipam, "b").unwrap(), "fd00:42::3");
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for bad in ["", "../x", "a/b", ".hidden", "a b"] {
            assert!(Attachment::new(bad, "eth0").is_err(), "{bad:?}");
            assert!(Attachment::new("ok", bad).is_err(), "{bad:?}");
        }
    }
}

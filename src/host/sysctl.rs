//! Kernel settings under `/proc/sys`.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::change::current_namespace;
use crate::{Change, Error, Journal};

/// `net/ipv4/ip_forward` for `net.ipv4.ip_forward`; a `/` in the key stands for a dot in a name,
/// as with `sysctl` (`net.ipv4.conf.eth0/1.rp_filter`).
fn path_of(key: &str) -> PathBuf {
    let swapped: String = key
        .chars()
        .map(|c| match c {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect();
    PathBuf::from("/proc/sys").join(swapped)
}

pub fn read(key: &str) -> io::Result<String> {
    fs::read_to_string(path_of(key)).map(|value| value.trim_end().to_owned())
}

/// Sets `key` for the calling thread's namespaces, without a journal entry: for namespaces and
/// links that are ours alone and vanish with their settings.
pub fn write(key: &str, value: &str) -> io::Result<()> {
    if read(key).is_ok_and(|old| old == value) {
        return Ok(());
    }
    fs::write(path_of(key), value)
}

/// Sets `key`, recording the old value first. Nothing is written or recorded where it is so already.
pub fn set(journal: &Journal, key: &str, value: &str) -> Result<(), Error> {
    let fail = |source| Error::Sysctl {
        key: key.to_owned(),
        value: value.to_owned(),
        source,
    };
    let old = read(key).map_err(fail)?;
    if old == value {
        return Ok(());
    }
    let in_network = key.starts_with("net.");
    journal.record(Change::Sysctl {
        key: key.to_owned(),
        old,
        new: value.to_owned(),
        namespace: in_network.then(current_namespace),
    })?;
    fs::write(path_of(key), value).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_paths() {
        let path = |key| path_of(key).display().to_string();
        assert_eq!(path("net.ipv4.ip_forward"), "/proc/sys/net/ipv4/ip_forward");
        assert_eq!(
            path("net.ipv4.conf.eth0/1.rp_filter"),
            "/proc/sys/net/ipv4/conf/eth0.1/rp_filter"
        );
    }
}

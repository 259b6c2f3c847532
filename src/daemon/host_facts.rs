//! What this machine says of itself where the settings are silent: its name and its addresses.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use anyhow::Context;

/// The host name as a node name: lower case, nothing illegal.
pub(crate) fn node_name() -> anyhow::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("cannot read the host name")?;
    let name = legal_name(text.trim());
    if name.is_empty() {
        anyhow::bail!(
            "the host name {:?} is no legal node name; give one with --node-name",
            text.trim()
        );
    }
    Ok(name)
}

fn legal_name(host: &str) -> String {
    let lower = host.to_lowercase().replace('_', "-");
    let legal: String = lower
        .chars()
        .filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
        .collect();
    legal.trim_matches(|c| c == '-' || c == '.').to_owned()
}

/// The address that the default route leaves from, else the first one that is not loopback.
pub(crate) fn node_address() -> Option<IpAddr> {
    routed_address().or_else(first_address)
}

/// Connecting a UDP socket sends nothing: the kernel only chooses a route, and with it our address.
fn routed_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // 192.0.2.0/24 is reserved for documentation: only a default route leads there.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

fn first_address() -> Option<IpAddr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").ok()?;
    local_addresses(&table)
        .into_iter()
        .find(|address| !address.is_loopback())
        .map(IpAddr::V4)
}

/// The host's own addresses in the kernel's dump of its routing trie.
fn local_addresses(table: &str) -> Vec<Ipv4Addr> {
    let lines: Vec<&str> = table.lines().map(str::trim).collect();
    lines
        .windows(2)
        .filter(|pair| pair[1].starts_with("/32 host LOCAL"))
        .filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_legal() {
        assert_eq!(legal_name("Pi_4.Home"), "pi-4.home");
        assert_eq!(legal_name("-ä-"), "");
    }

    #[test]
    fn local_addresses_are_read_from_the_trie() {
        let table = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.99.1.1\n        /32 host LOCAL\n     |-- 10.99.1.0\n        /24 link UNICAST\n";
        assert_eq!(local_addresses(table), [Ipv4Addr::new(10, 99, 1, 1)]);
    }
}

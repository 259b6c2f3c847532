//! What this machine says of itself where the settings are silent: its name and its addresses.

use std::net::{IpAddr, UdpSocket};

use anyhow::Context;
use sampan_netlink::route::{Address, Connection, Link};
use sampan_network::names::is_host_link;
use sampan_network::settings::{NODE_LINK, NODE_LINK_PEER};

/// The host name as a node name: lower case, nothing illegal.
pub(crate) fn node_name() -> anyhow::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("cannot read the host name")?;
    let name = legal_name(text.trim());
    if !sampan_config::values::is_node_name(&name) {
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

/// Without a default route: the address of the first link that leads out.
fn first_address() -> Option<IpAddr> {
    let read = || -> Result<_, sampan_netlink::Error> {
        let mut kernel = Connection::open()?;
        Ok((kernel.links()?, kernel.addresses()?))
    };
    match read() {
        Ok((links, addresses)) => choose_address(&links, &addresses),
        Err(error) => {
            tracing::warn!(%error, "cannot read this machine's addresses");
            None
        }
    }
}

/// The new address of a node whose addresses are all gone from this machine; as long as it has one of them, and while
/// it has none that leads out, nothing has changed.
pub(crate) fn moved_address(known: &[IpAddr]) -> Option<IpAddr> {
    let mut kernel = Connection::open().ok()?;
    let (mut links, addresses) = (kernel.links().ok()?, kernel.addresses().ok()?);
    let is_known = |address: &Address| known.contains(&address.network.addr());
    if addresses.iter().any(is_known) {
        return None;
    }
    // A bridge of containers is what is left when the cable is out.
    links.retain(|link| link.kind.as_deref() != Some("bridge"));
    routed_address().or_else(|| choose_address(&links, &addresses))
}

/// IPv4 before IPv6, links to the outside before bridges (those of containers and virtual machines), never loopback,
/// and never what the pod network has made.
fn choose_address(links: &[Link], addresses: &[Address]) -> Option<IpAddr> {
    let usable = |link: &&Link| {
        let ours = [NODE_LINK, NODE_LINK_PEER].contains(&link.name.as_str());
        link.up && !link.loopback && !ours && !is_host_link(&link.name)
    };
    let mut candidates: Vec<(bool, bool, u32, IpAddr)> = Vec::new();
    for link in links.iter().filter(usable) {
        let is_bridge = link.kind.as_deref() == Some("bridge");
        for address in addresses.iter().filter(|a| a.link == link.index) {
            let ip = address.network.addr();
            let is_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            if !is_local && !ip.is_loopback() {
                candidates.push((ip.is_ipv6(), is_bridge, link.index, ip));
            }
        }
    }
    candidates.into_iter().min().map(|(.., ip)| ip)
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
    fn the_pod_network_is_no_address_of_the_node() {
        let link = |index, name: &str, kind: Option<&str>| Link {
            index,
            name: name.to_owned(),
            mtu: 1500,
            mac: None,
            up: true,
            loopback: name == "lo",
            kind: kind.map(str::to_owned),
            master: None,
        };
        let links = [
            link(1, "lo", None),
            link(2, "sampan0", Some("veth")),
            link(3, "docker0", Some("bridge")),
            link(4, "sp0123456789abc", Some("veth")),
            link(5, "eth0", Some("veth")),
        ];
        let address = |link, text: &str| Address {
            link,
            network: text.parse().expect("an address"),
        };
        let all = [
            address(1, "127.0.0.1/8"),
            address(2, "10.42.0.1/32"),
            address(3, "172.17.0.1/16"),
            address(5, "fe80::1/64"),
            address(5, "192.0.2.7/24"),
        ];
        let chosen = |addresses: &[Address]| choose_address(&links, addresses);
        assert_eq!(chosen(&all), Some(IpAddr::from([192, 0, 2, 7])));
        assert_eq!(chosen(&all[..3]), Some(IpAddr::from([172, 17, 0, 1])));
        assert_eq!(chosen(&all[..2]), None);
    }
}

//! Names and link addresses that follow from what they stand for. Pure.

use std::net::IpAddr;

use sampan_netlink::route::MacAddress;

/// The host's end of a pod's link: 15 bytes are all the kernel allows.
pub fn host_link(sandbox: &str, interface: &str) -> String {
    let hash = fnv1a(format!("{sandbox}/{interface}").as_bytes());
    format!("sp{:013x}", hash & 0x000f_ffff_ffff_ffff)
}

/// Whether a link is a pod's.
pub fn is_host_link(name: &str) -> bool {
    let hash = name.strip_prefix("sp").unwrap_or_default();
    hash.len() == 13 && hash.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A locally administered address made from the pod's own; unique on its link in any case.
pub fn pod_mac(address: IpAddr) -> MacAddress {
    let octets = match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [a, b, c, d]
        }
    };
    let [a, b, c, d] = octets;
    MacAddress([0x0a, 0x58, a, b, c, d])
}

/// The gateway that pods see: the same on every link, answered by a permanent neighbour entry.
pub const GATEWAY_MAC: MacAddress = MacAddress([0x0a, 0x58, 169, 254, 1, 1]);

pub fn gateway(is_ipv6: bool) -> IpAddr {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if is_ipv6 {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0858, 0xa9ff, 0xfefe, 0x0101).into()
    } else {
        Ipv4Addr::new(169, 254, 1, 1).into()
    }
}

/// A hash whose value never changes between versions: names of links outlive the program.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_stable_and_apart() {
        let name = host_link("0123456789abcdef", "eth0");
        assert_eq!(name.len(), 15);
        assert!(is_host_link(&name) && !is_host_link("sampan0") && !is_host_link("eth0"));
        assert_eq!(name, host_link("0123456789abcdef", "eth0"));
        assert_ne!(name, host_link("0123456789abcdef", "eth1"));
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

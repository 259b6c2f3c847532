//! What a single value may be: from its text to its meaning. The errors say what is allowed; who calls names the option.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use crate::settings::{Component, Taint};

/// The authorities of a cluster live so long, and no certificate outlives the one that signed it.
const LONGEST_LIFE: Duration = Duration::from_secs(3650 * 86_400);
const SHORTEST_LIFE: Duration = Duration::from_secs(10);
/// `kubernetes.io/hostname` is a label, whose value holds no more.
const LONGEST_NODE_NAME: usize = 63;
/// A name in the DNS has 253 characters, of which a Service's own name and its namespace take up to 132.
const LONGEST_DOMAIN: usize = 120;
/// Of names in the DNS.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;
/// With less there is no room for the Service `kubernetes`, the cluster's DNS and one more.
const FEWEST_HOST_BITS: u8 = 3;

/// Ranges of which no Pod, Service or machine has an address.
const UNUSABLE: &[(&str, &str)] = &[
    ("0.0.0.0/8", "this network"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/127", "unspecified and loopback"),
    ("::ffff:0:0/96", "IPv4 written as IPv6"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast"),
];

/// Ports that the parts of a node and of a server listen on themselves.
const OWN_PORTS: &[(u16, &str)] = &[
    (10248, "the kubelet's health"),
    (10250, "the kubelet"),
    (10256, "the service proxy"),
    (10257, "the controllers"),
    (10259, "the scheduler"),
];

pub(crate) fn set(field: &mut PathBuf, value: &str) -> Result<(), String> {
    *field = PathBuf::from(non_empty(value)?);
    Ok(())
}

pub(crate) fn non_empty(value: &str) -> Result<String, String> {
    if value.is_empty() {
        return Err("expected a value, got an empty one".to_owned());
    }
    Ok(value.to_owned())
}

fn parse<T: FromStr>(value: &str, expected: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("expected {expected}"))
}

/// A folder of our own: everything in it is ours to remove.
pub(crate) fn data_dir(value: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(non_empty(value)?);
    match path.file_name() {
        Some(_) => Ok(path),
        None => Err("expected a folder of its own, such as /var/lib/sampan".to_owned()),
    }
}

// === addresses and ports ===

/// What one can listen on.
pub(crate) fn any_address(value: &str) -> Result<IpAddr, String> {
    let address: IpAddr = parse(value, "an IP address")?;
    if address.is_unspecified() {
        return Ok(address);
    }
    reached_address(value)
}

/// What others can send to.
pub(crate) fn reached_address(value: &str) -> Result<IpAddr, String> {
    let address: IpAddr = parse(value, "an IP address")?;
    let plain = address.to_canonical();
    let what = if plain.is_unspecified() {
        "the address of no machine"
    } else if plain.is_multicast() {
        "a multicast address"
    } else if plain == Ipv4Addr::BROADCAST {
        "the broadcast address"
    } else if plain != address {
        return Err(format!("expected an IP address in plain form: {plain}"));
    } else {
        return Ok(address);
    };
    Err(format!(
        "this is {what}; expected an IP address of one machine"
    ))
}

/// What other nodes and Pods reach a node by.
pub(crate) fn node_address(value: &str) -> Result<IpAddr, String> {
    let address = reached_address(value)?;
    let what = if address.is_loopback() {
        "a loopback address"
    } else if is_link_local(address) {
        "a link-local address"
    } else {
        return Ok(address);
    };
    Err(format!(
        "this is {what}, which other machines cannot reach; expected an address of this machine in your network"
    ))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// A range for Pods or Services.
pub(crate) fn net(value: &str) -> Result<IpNet, String> {
    let range: IpNet = parse(value, "a range such as 10.42.0.0/16")?;
    let host_bits = range.max_prefix_len() - range.prefix_len();
    if host_bits < FEWEST_HOST_BITS {
        let longest = range.max_prefix_len() - FEWEST_HOST_BITS;
        return Err(format!(
            "the range leaves no room; expected a prefix of at most /{longest}"
        ));
    }
    for (text, what) in UNUSABLE {
        let Ok(other) = text.parse::<IpNet>() else {
            continue;
        };
        if range.contains(&other.network()) || other.contains(&range.network()) {
            return Err(format!(
                "it has addresses in common with {text} ({what}), which Pods and Services cannot have; expected a range \
                 such as 10.42.0.0/16"
            ));
        }
    }
    Ok(range)
}

pub(crate) fn port(value: &str) -> Result<u16, String> {
    let port: u16 = parse(value, "a port number from 1 to 65535")?;
    if port == 0 {
        return Err("expected a port number from 1 to 65535".to_owned());
    }
    match OWN_PORTS.iter().find(|(own, _)| *own == port) {
        None => Ok(port),
        Some((_, who)) => {
            let all: Vec<String> = OWN_PORTS.iter().map(|(own, _)| own.to_string()).collect();
            Err(format!(
                "that is the port of {who}; expected another one than {}",
                all.join(", ")
            ))
        }
    }
}

pub(crate) fn port_range(value: &str) -> Result<(u16, u16), String> {
    const EXPECTED: &str = "expected a range of ports such as 30000-32767";
    let expected = || EXPECTED.to_owned();
    let (first, last) = value.split_once('-').ok_or_else(expected)?;
    let number = |text: &str| text.parse::<u16>().map_err(|_| expected());
    let range = (number(first)?, number(last)?);
    if range.0 == 0 || range.0 > range.1 {
        return Err(expected());
    }
    Ok(range)
}

/// `https://` with a host and perhaps a port, and nothing else.
pub(crate) fn server_url(value: &str) -> Result<String, String> {
    let expected = || "expected a URL such as https://192.168.1.10:6443".to_owned();
    let rest = value.strip_prefix("https://").ok_or_else(expected)?;
    let place = rest.trim_end_matches('/');
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(expected)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| expected())?;
            (
                None,
                rest.strip_prefix(':').or((!rest.is_empty()).then_some("")),
            )
        }
        None => match place.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(place), None),
        },
    };
    let host_fits = host.is_none_or(|host| is_host_name(host) || host.parse::<IpAddr>().is_ok());
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if host_fits && port_fits {
        Ok(format!("https://{place}"))
    } else {
        Err(expected())
    }
}

// === names ===

/// Labels of the DNS with dots between, each of letters, digits and `-` inside.
fn is_name(value: &str, longest: usize, letter: fn(u8) -> bool) -> bool {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = |byte: Option<&u8>| byte.is_some_and(|byte| letter(*byte));
        ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|byte| letter(*byte) || *byte == b'-')
            && bytes.len() <= LONGEST_LABEL
    };
    value.len() <= longest && value.split('.').all(is_label)
}

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Names of machines may have `_`, which the DNS does not forbid.
fn is_host_name(value: &str) -> bool {
    is_name(value, LONGEST_NAME, |byte| {
        byte.is_ascii_alphanumeric() || byte == b'_'
    })
}

/// Whether a node can have this name.
pub fn is_node_name(value: &str) -> bool {
    is_name(value, LONGEST_NODE_NAME, lower_or_digit)
}

pub(crate) fn node_name(value: &str) -> Result<String, String> {
    if is_node_name(value) {
        return Ok(value.to_owned());
    }
    Err(format!(
        "expected lower-case letters, digits, '-' and '.', such as node-1, at most {LONGEST_NODE_NAME} characters"
    ))
}

pub(crate) fn domain(value: &str) -> Result<String, String> {
    if is_name(value, LONGEST_DOMAIN, lower_or_digit) {
        return Ok(value.to_owned());
    }
    Err(format!(
        "expected a domain such as cluster.local: lower-case letters, digits and '-', with single dots between, at most \
         {LONGEST_LABEL} characters between two dots and {LONGEST_DOMAIN} in all"
    ))
}

/// A name or an address in a certificate.
pub(crate) fn subject_name(value: &str) -> Result<String, String> {
    let name = value.strip_prefix("*.").unwrap_or(value);
    if is_name(name, LONGEST_NAME, |byte| byte.is_ascii_alphanumeric())
        || value.parse::<IpAddr>().is_ok()
    {
        return Ok(value.to_owned());
    }
    Err(
        "expected an IP address or a host name such as node-1.example.org or *.example.org"
            .to_owned(),
    )
}

// === everything else ===

/// A whole number of seconds, minutes, hours or days.
pub(crate) fn lifetime(value: &str) -> Result<Duration, String> {
    const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let expected =
        || "expected a duration such as 12h or 365d, at least 10s and at most 3650d".to_owned();
    let split = UNITS
        .into_iter()
        .find_map(|(name, seconds)| Some((value.strip_suffix(name)?, seconds)));
    let (number, seconds) = split.ok_or_else(expected)?;
    let number: u64 = number.parse().map_err(|_| expected())?;
    let found = number.checked_mul(seconds).map(Duration::from_secs);
    found
        .filter(|life| (SHORTEST_LIFE..=LONGEST_LIFE).contains(life))
        .ok_or_else(expected)
}

pub(crate) fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

pub(crate) fn key_value(value: &str) -> Result<(String, String), String> {
    match value.split_once('=') {
        Some((key, rest)) if !key.is_empty() => {
            Ok((key.trim_start_matches("--").to_owned(), rest.to_owned()))
        }
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

pub(crate) fn taint(value: &str) -> Result<Taint, String> {
    const EXPECTED: &str =
        "expected KEY=VALUE:EFFECT with effect NoSchedule, PreferNoSchedule or NoExecute";
    let (pair, effect) = value.rsplit_once(':').ok_or(EXPECTED)?;
    let (key, text) = pair.split_once('=').unwrap_or((pair, ""));
    if key.is_empty() || !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(EXPECTED.to_owned());
    }
    Ok(Taint {
        key: key.to_owned(),
        value: text.to_owned(),
        effect: effect.to_owned(),
    })
}

pub(crate) fn file_mode(value: &str) -> Result<u32, String> {
    let digits = value.strip_prefix("0o").unwrap_or(value);
    u32::from_str_radix(digits, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "expected an octal file mode such as 600 or 644".to_owned())
}

pub(crate) fn component(value: &str) -> Result<Component, String> {
    let known = Component::ALL;
    known
        .iter()
        .find(|(name, _)| *name == value)
        .map(|(_, component)| *component)
        .ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            format!("expected one of {}", names.join(", "))
        })
}

pub(crate) fn socket_path(value: &str) -> Result<PathBuf, String> {
    let path = value.strip_prefix("unix://").unwrap_or(value);
    if !path.starts_with('/') {
        return Err("expected the absolute path of a socket".to_owned());
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `check` accepts all of the first and none of the second.
    fn hold<T: std::fmt::Debug>(check: fn(&str) -> Result<T, String>, good: &[&str], bad: &[&str]) {
        for value in good {
            assert!(check(value).is_ok(), "{value}: {:?}", check(value));
        }
        for value in bad {
            let told = check(value).unwrap_err();
            assert!(told.contains("expected"), "{value}: {told}");
        }
    }

    #[test]
    fn addresses() {
        let never = [
            "",
            "host",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "::ffff:10.0.0.1",
        ];
        hold(
            any_address,
            &["0.0.0.0", "::", "127.0.0.1", "10.0.0.1"],
            &never,
        );
        let nobody = [&never[..], &["0.0.0.0", "::", "::ffff:0.0.0.0"]].concat();
        hold(
            reached_address,
            &["127.0.0.1", "10.0.0.1", "fd00::1"],
            &nobody,
        );
        let far = [&nobody[..], &["127.0.0.1", "::1", "169.254.1.1", "fe80::1"]].concat();
        hold(node_address, &["10.0.0.1", "192.0.2.1", "fd00::1"], &far);
    }

    #[test]
    fn ranges() {
        hold(
            net,
            &[
                "10.42.0.0/16",
                "10.0.0.0/8",
                "fd42::/48",
                "10.43.0.0/29",
                "192.168.1.7/24",
            ],
            &[
                "10.42.0.0",
                "127.0.0.0/8",
                "127.1.0.0/16",
                "224.0.0.0/4",
                "239.1.0.0/16",
                "250.0.0.0/8",
                "169.254.1.0/24",
                "0.0.0.0/0",
                "::/0",
                "fe80::/64",
                "ff00::/16",
                "::ffff:10.0.0.0/112",
                "10.43.0.0/30",
                "10.43.0.0/32",
                "fd43::/126",
            ],
        );
        for (text, _) in UNUSABLE {
            assert!(text.parse::<IpNet>().is_ok(), "{text}");
        }
    }

    #[test]
    fn ports_and_urls() {
        hold(
            port,
            &["1", "443", "6443", "65535"],
            &["0", "65536", "-1", "x", "10250", "10256", "10257", "10259"],
        );
        assert!(port("10250").unwrap_err().contains("the kubelet;"));
        hold(
            port_range,
            &["30000-32767", "1-1"],
            &["200-100", "0-5", "5", "a-b"],
        );
        hold(
            server_url,
            &[
                "https://10.0.0.1:6443",
                "https://host/",
                "https://my_host.lan:1",
                "https://[fd00::1]:6443",
                "https://[::1]",
            ],
            &[
                "http://x",
                "https://",
                "https://a b",
                "https://:6443",
                "https://x:0",
                "https://x:y",
                "https://x/path",
                "https://[x]:1",
                "https://[::1]x",
            ],
        );
        assert_eq!(server_url("https://a:1//").unwrap(), "https://a:1");
    }

    #[test]
    fn names() {
        let long = |label: usize, count: usize| vec!["a".repeat(label); count].join(".");
        hold(
            domain,
            &["cluster.local", "1.10", "a", "x-y.z", &long(59, 2)],
            &[
                "",
                ".",
                "a..b",
                "a b",
                "Cluster.Local",
                "a.",
                ".a",
                "-a",
                "a-",
                "a_b",
                &long(64, 1),
                &long(60, 2),
            ],
        );
        hold(
            node_name,
            &["node-1", "pi.home", "007", &long(63, 1)],
            &[
                "",
                "Upper",
                "a..b",
                "a b",
                "a_b",
                "-a",
                &long(31, 2).repeat(2),
                &long(64, 1),
            ],
        );
        hold(
            subject_name,
            &[
                "a",
                "Node-1.Example.org",
                "*.example.org",
                "10.0.0.1",
                "fd00::1",
                "1e3",
            ],
            &[
                "",
                " ",
                "a b",
                "*",
                "*.",
                "a.*.b",
                "https://a",
                "a:6443",
                "a/b",
                "a..b",
                "a.",
            ],
        );
    }

    #[test]
    fn the_rest() {
        hold(
            lifetime,
            &["10s", "12h", "365d", "3650d"],
            &[
                "",
                "d",
                "9s",
                "3651d",
                "3000000d",
                "99999999999999999999d",
                "5",
                "1dd",
                "-1d",
                "long",
            ],
        );
        hold(
            data_dir,
            &["/var/lib/sampan", "relative", "/a/"],
            &["", "/", "..", "/a/.."],
        );
        hold(file_mode, &["600", "0644", "0o640"], &["999", "1777", ""]);
        hold(
            taint,
            &["a=b:NoSchedule", "a:NoExecute"],
            &["a=b:Nonsense", "a", ":NoSchedule"],
        );
    }
}

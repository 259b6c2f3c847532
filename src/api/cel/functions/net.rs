//! Addresses: URLs, IP addresses and networks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cel::eval::{Outcome, error};
use crate::cel::value::{Key, Value};

pub(super) fn call(name: &str, receiver: bool, values: &[Value]) -> Option<Outcome> {
    let truth = |value: bool| Ok(Value::Bool(value));
    Some(match (name, values) {
        ("isURL", [Value::Text(text)]) => truth(Url::parse(text).is_some()),
        ("url", [Value::Text(text)]) => match Url::parse(text) {
            Some(_) => Ok(Value::Url(text.clone())),
            None => error(format!(
                "URL parse error during conversion from string: parse {text:?}: invalid URI for request"
            )),
        },
        (_, [Value::Url(text)]) => return on_url(name, &Url::parse(text)?),
        ("isIP", [Value::Text(text)]) => truth(ip(text).is_some()),
        ("ip", [Value::Text(text)]) if !receiver => match ip(text) {
            Some(ip) => Ok(Value::Ip(ip)),
            None => error(format!(
                "IP Address {text:?} parse error during conversion from string"
            )),
        },
        ("ip.isCanonical", [Value::Text(text)]) => match ip(text) {
            Some(ip) => truth(ip.to_string() == **text),
            None => error(format!(
                "IP Address {text:?} parse error during conversion from string"
            )),
        },
        (_, [Value::Ip(ip)]) => return on_ip(name, *ip),
        ("isCIDR", [Value::Text(text)]) => truth(network(text).is_some()),
        ("cidr", [Value::Text(text)]) => match network(text) {
            Some((ip, bits)) => Ok(Value::Cidr(ip, bits)),
            None => error(format!(
                "network address parse error during conversion from string: {text:?}"
            )),
        },
        (_, [Value::Cidr(ip, bits), rest @ ..]) => return on_network(name, *ip, *bits, rest),
        _ => return None,
    })
}

struct Url<'a> {
    scheme: &'a str,
    host: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Url<'a> {
    /// An absolute URI or an absolute path.
    fn parse(text: &'a str) -> Option<Self> {
        if text.is_empty() || text.chars().any(|one| one.is_control() || one == ' ') {
            return None;
        }
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
            _ => ("", text),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if scheme.is_empty() && !rest.starts_with('/') {
            return None;
        }
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) if !scheme.is_empty() => {
                let end = rest.find('/').unwrap_or(rest.len());
                rest.split_at(end)
            }
            _ => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let port = port_of(host);
        let fine = port.bytes().all(|byte| byte.is_ascii_digit())
            && !host.contains(['<', '>', '"', '\\', '^', '`', '{', '}', '|']);
        fine.then_some(Self {
            scheme,
            host,
            path,
            query,
        })
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|one: char| one.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn port_of(host: &str) -> &str {
    let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
    after.rsplit_once(':').map_or("", |(_, port)| port)
}

fn on_url(name: &str, url: &Url<'_>) -> Option<Outcome> {
    let port = port_of(url.host);
    Some(Ok(match name {
        "getScheme" => Value::from(url.scheme),
        "getHost" => Value::from(url.host),
        "getHostname" => {
            let host = url.host.strip_suffix(port).unwrap_or(url.host);
            let host = host.strip_suffix(':').unwrap_or(host);
            Value::from(host.trim_matches(['[', ']']))
        }
        "getPort" => Value::from(port),
        "getEscapedPath" => Value::from(url.path),
        "getQuery" => query(url.query),
        _ => return None,
    }))
}

fn query(text: &str) -> Value {
    let mut all: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let list = all.entry(Key::text(key)).or_default();
        list.push(Value::from(value));
    }
    let all = all.into_iter().map(|(key, list)| (key, Value::list(list)));
    Value::Map(Arc::new(all.collect()))
}

/// IPv4 written as IPv6 is refused.
fn ip(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    match ip {
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => None,
        ip => Some(ip),
    }
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let (address, most) = (ip(address)?, bits);
    let plain = !most.is_empty() && (most == "0" || !most.starts_with('0'));
    let bits: u8 = most.parse().ok().filter(|_| plain)?;
    (bits <= width(address)).then_some((address, bits))
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn on_ip(name: &str, ip: IpAddr) -> Option<Outcome> {
    let link_local_multicast = match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    };
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    Some(Ok(match name {
        "family" => Value::Int(if ip.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => Value::Bool(ip.is_unspecified()),
        "isLoopback" => Value::Bool(ip.is_loopback()),
        "isLinkLocalMulticast" => Value::Bool(link_local_multicast),
        "isLinkLocalUnicast" => Value::Bool(link_local),
        "isGlobalUnicast" => Value::Bool(
            !broadcast
                && !ip.is_unspecified()
                && !ip.is_loopback()
                && !ip.is_multicast()
                && !link_local,
        ),
        _ => return None,
    }))
}

/// The bits of an address that belong to its network.
fn masked(ip: IpAddr, bits: u8) -> u128 {
    let value = match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
        IpAddr::V6(ip) => u128::from(ip),
    };
    match bits {
        0 => 0,
        bits => value & (u128::MAX << (128 - u32::from(bits))),
    }
}

fn holds(ip: IpAddr, bits: u8, other: IpAddr) -> bool {
    ip.is_ipv4() == other.is_ipv4() && masked(ip, bits) == masked(other, bits)
}

fn on_network(name: &str, ip: IpAddr, bits: u8, rest: &[Value]) -> Option<Outcome> {
    Some(Ok(match (name, rest) {
        ("ip", []) => Value::Ip(ip),
        ("prefixLength", []) => Value::Int(bits.into()),
        ("masked", []) => {
            let value = masked(ip, bits);
            let first = match ip {
                IpAddr::V4(_) => IpAddr::from(((value >> 96) as u32).to_be_bytes()),
                IpAddr::V6(_) => IpAddr::from(value.to_be_bytes()),
            };
            Value::Cidr(first, bits)
        }
        ("containsIP", [Value::Ip(other)]) => Value::Bool(holds(ip, bits, *other)),
        ("containsIP", [Value::Text(text)]) => match self::ip(text) {
            Some(other) => Value::Bool(holds(ip, bits, other)),
            None => {
                return Some(error(
                    "IP Address parse error during conversion from string",
                ));
            }
        },
        ("containsCIDR", [other]) => {
            let (other, inner) = match other {
                Value::Cidr(other, inner) => (*other, *inner),
                Value::Text(text) => match network(text) {
                    Some(found) => found,
                    None => {
                        return Some(error(
                            "network address parse error during conversion from string",
                        ));
                    }
                },
                _ => return None,
            };
            Value::Bool(inner >= bits && holds(ip, bits, other))
        }
        _ => return None,
    }))
}

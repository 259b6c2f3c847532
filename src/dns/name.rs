//! What a name below the cluster's domain asks about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;
use sampan_client::ObjectKey;

/// The meaning of a name, by the schema of the DNS specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The domain itself.
    Apex,
    /// `dns-version`
    Version,
    /// `ns.dns`, the server's own name.
    NameServer,
    /// `svc`, `pod`, `dns`: names that only have names below them.
    Branch,
    /// `<namespace>.svc` or `<namespace>.pod`
    Namespace(String),
    /// `<service>.<namespace>.svc`
    Service(ObjectKey),
    /// `<endpoint>.<service>.<namespace>.svc`
    Endpoint(ObjectKey, String),
    /// `_<protocol>.<service>.<namespace>.svc`
    Protocol(ObjectKey, String),
    /// `_<port>._<protocol>.<service>.<namespace>.svc`
    Port {
        service: ObjectKey,
        port: String,
        protocol: String,
    },
    /// `<address with dashes>.<namespace>.pod`
    Pod {
        namespace: String,
        address: IpAddr,
    },
    Unknown,
}

/// The labels of `name` below `domain`, lower case; `None` for a name of somebody else.
pub fn below(domain: &Name, name: &Name) -> Option<Vec<String>> {
    if !domain.zone_of(name) {
        return None;
    }
    let count = usize::from(name.num_labels().saturating_sub(domain.num_labels()));
    Some(
        name.iter()
            .take(count)
            .map(|label| String::from_utf8_lossy(label).to_ascii_lowercase())
            .collect(),
    )
}

pub fn subject(labels: &[String]) -> Subject {
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    match labels.as_slice() {
        [] => Subject::Apex,
        ["dns-version"] => Subject::Version,
        ["ns", "dns"] => Subject::NameServer,
        ["svc" | "pod" | "dns"] => Subject::Branch,
        [namespace, "svc" | "pod"] => Subject::Namespace((*namespace).to_owned()),
        [service, namespace, "svc"] => Subject::Service(ObjectKey::new(*namespace, *service)),
        [address, namespace, "pod"] => match pod_address(address) {
            Some(address) => Subject::Pod {
                namespace: (*namespace).to_owned(),
                address,
            },
            None => Subject::Unknown,
        },
        [endpoint, service, namespace, "svc"] => {
            let service = ObjectKey::new(*namespace, *service);
            match endpoint.strip_prefix('_') {
                Some(protocol) => Subject::Protocol(service, protocol.to_owned()),
                None => Subject::Endpoint(service, (*endpoint).to_owned()),
            }
        }
        [port, protocol, service, namespace, "svc"] => {
            port_subject(port, protocol, service, namespace)
        }
        _ => Subject::Unknown,
    }
}

fn port_subject(port: &str, protocol: &str, service: &str, namespace: &str) -> Subject {
    match (port.strip_prefix('_'), protocol.strip_prefix('_')) {
        (Some(port), Some(protocol)) => Subject::Port {
            service: ObjectKey::new(namespace, service),
            port: port.to_owned(),
            protocol: protocol.to_owned(),
        },
        _ => Subject::Unknown,
    }
}

/// An address written as a label: `10-0-0-1`, `fd00--1`.
fn pod_address(label: &str) -> Option<IpAddr> {
    let v4 = || {
        label
            .replace('-', ".")
            .parse::<Ipv4Addr>()
            .ok()
            .map(IpAddr::V4)
    };
    let v6 = || {
        label
            .replace('-', ":")
            .parse::<Ipv6Addr>()
            .ok()
            .map(IpAddr::V6)
    };
    v4().or_else(v6)
}

/// An address as a label, for endpoints without a hostname.
pub fn address_label(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string().replace('.', "-"),
        IpAddr::V6(address) => {
            let text = address.to_string().replace(':', "-");
            // A label neither starts nor ends with a dash.
            let front = if text.starts_with('-') { "0" } else { "" };
            let back = if text.ends_with('-') { "0" } else { "" };
            format!("{front}{text}{back}")
        }
    }
}

/// The address that a complete reverse name stands for.
pub fn reverse_address(name: &Name) -> Option<IpAddr> {
    let labels: Vec<String> = name
        .iter()
        .map(|label| String::from_utf8_lossy(label).to_ascii_lowercase())
        .collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    match labels.as_slice() {
        [octets @ .., "in-addr", "arpa"] if octets.len() == 4 => {
            let text: Vec<&str> = octets.iter().rev().copied().collect();
            text.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4)
        }
        [nibbles @ .., "ip6", "arpa"] if nibbles.len() == 32 => {
            let mut bits: u128 = 0;
            for nibble in nibbles.iter().rev() {
                let digit = u128::from_str_radix(nibble, 16)
                    .ok()
                    .filter(|digit| *digit < 16 && nibble.len() == 1)?;
                bits = (bits << 4) | digit;
            }
            Some(IpAddr::V6(Ipv6Addr::from(bits)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(name: &str) -> Subject {
        let domain = Name::from_ascii("cluster.local.").unwrap();
        subject(&below(&domain, &Name::from_ascii(name).unwrap()).unwrap())
    }

    #[test]
    fn every_form_of_name() {
        let web = || ObjectKey::new("shop", "web");
        assert_eq!(parse("CLUSTER.local."), Subject::Apex);
        assert_eq!(
            parse("Web.SHOP.svc.cluster.local."),
            Subject::Service(web())
        );
        assert_eq!(
            parse("db-0.web.shop.svc.cluster.local."),
            Subject::Endpoint(web(), "db-0".to_owned())
        );
        assert_eq!(
            parse("_tcp.web.shop.svc.cluster.local."),
            Subject::Protocol(web(), "tcp".to_owned())
        );
        assert_eq!(
            parse("_http._tcp.web.shop.svc.cluster.local."),
            Subject::Port {
                service: web(),
                port: "http".to_owned(),
                protocol: "tcp".to_owned()
            }
        );
        assert_eq!(
            parse("10-1-2-3.shop.pod.cluster.local."),
            Subject::Pod {
                namespace: "shop".to_owned(),
                address: "10.1.2.3".parse().unwrap()
            }
        );
        assert_eq!(
            parse("fd00--5.shop.pod.cluster.local."),
            Subject::Pod {
                namespace: "shop".to_owned(),
                address: "fd00::5".parse().unwrap()
            }
        );
        assert_eq!(
            parse("web.pod.cluster.local."),
            Subject::Namespace("web".to_owned())
        );
        assert_eq!(parse("nothing.cluster.local."), Subject::Unknown);
        assert_eq!(parse("a.b.c.web.shop.svc.cluster.local."), Subject::Unknown);
    }

    #[test]
    fn other_domains_are_not_ours() {
        let domain = Name::from_ascii("cluster.local.").unwrap();
        assert_eq!(
            below(&domain, &Name::from_ascii("notcluster.local.").unwrap()),
            None
        );
        assert_eq!(below(&domain, &Name::from_ascii("local.").unwrap()), None);
    }

    #[test]
    fn reverse_names() {
        let address = |name: &str| reverse_address(&Name::from_ascii(name).unwrap());
        assert_eq!(
            address("4.3.2.1.in-addr.arpa."),
            Some("1.2.3.4".parse().unwrap())
        );
        assert_eq!(address("3.2.1.in-addr.arpa."), None);
        let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.";
        assert_eq!(address(v6), Some("fd00::1".parse().unwrap()));
    }

    #[test]
    fn addresses_as_labels() {
        assert_eq!(address_label("10.0.0.1".parse().unwrap()), "10-0-0-1");
        assert_eq!(address_label("fd00::1".parse().unwrap()), "fd00--1");
        assert_eq!(address_label("::1".parse().unwrap()), "0--1");
    }
}

//! Settings that are right one by one and impossible together. Pure: what the machine itself has is an argument.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::settings::{Component, NODE_PREFIX_V4, NODE_PREFIX_V6, Settings, nth_address};

/// Two values that exclude each other, both named, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error(
        "{first} and {second} overlap: pods, Services and machines need addresses of their own, so choose ranges \
         that have none in common"
    )]
    Overlap { first: String, second: String },
    #[error(
        "{first} and {second} are of one address family: give one range of each family at most"
    )]
    SameFamily { first: String, second: String },
    #[error("{range} is smaller than the /{prefix} that each node gets of it: make it larger")]
    TooSmall { range: String, prefix: u8 },
    #[error("{address} lies outside of {range}: choose an address of that range")]
    OutsideOf { address: String, range: String },
    #[error("{address} is taken in {range} (by {holder}): choose another address of that range")]
    Taken {
        address: String,
        range: String,
        holder: &'static str,
    },
    #[error(
        "{range} has no tenth address for the cluster's DNS: make it larger, or give --cluster-dns"
    )]
    NoDns { range: String },
    #[error(
        "{range} holds {address}, an address of this machine: pods and machines need addresses of their own, so choose \
         another range"
    )]
    HoldsNode { range: String, address: IpAddr },
}

/// An option with one of its ranges, as the user would write it.
struct Given<'a> {
    option: &'static str,
    range: &'a IpNet,
}

impl Given<'_> {
    fn text(&self) -> String {
        format!("--{}={}", self.option, self.range)
    }
}

fn ranges(settings: &Settings) -> Vec<Given<'_>> {
    let mut all = given("cluster-cidr", &settings.cluster_cidrs);
    all.extend(given("service-cidr", &settings.service_cidrs));
    all
}

fn given<'a>(option: &'static str, ranges: &'a [IpNet]) -> Vec<Given<'a>> {
    let each = ranges.iter();
    each.map(|range| Given { option, range }).collect()
}

/// What is wrong with a server's settings.
pub fn of_settings(settings: &Settings) -> Vec<Conflict> {
    let mut found = of_ranges(&ranges(settings));
    found.extend(of_dns(settings));
    found.extend(with_machine(settings, &settings.node_ips));
    found
}

fn of_ranges(all: &[Given<'_>]) -> Vec<Conflict> {
    let mut found = Vec::new();
    for (index, second) in all.iter().enumerate() {
        for first in &all[..index] {
            let texts = (first.text(), second.text());
            let is_v6 = |given: &Given<'_>| given.range.addr().is_ipv6();
            if overlap(first.range, second.range) {
                let (first, second) = texts;
                found.push(Conflict::Overlap { first, second });
            } else if first.option == second.option && is_v6(first) == is_v6(second) {
                let (first, second) = texts;
                found.push(Conflict::SameFamily { first, second });
            }
        }
        let prefix = match second.range {
            IpNet::V4(_) => NODE_PREFIX_V4,
            IpNet::V6(_) => NODE_PREFIX_V6,
        };
        if second.option == "cluster-cidr" && second.range.prefix_len() > prefix {
            let range = second.text();
            found.push(Conflict::TooSmall { range, prefix });
        }
    }
    found
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

fn of_dns(settings: &Settings) -> Vec<Conflict> {
    if settings.is_disabled(Component::Dns) {
        return Vec::new();
    }
    let services = given("service-cidr", &settings.service_cidrs);
    let Some(first) = services.first() else {
        return Vec::new();
    };
    if settings.cluster_dns_address().is_none() {
        let range = first.text();
        return vec![Conflict::NoDns { range }];
    }
    let each = settings.cluster_dns.iter();
    each.filter_map(|address| of_dns_address(*address, &services))
        .collect()
}

fn of_dns_address(address: IpAddr, services: &[Given<'_>]) -> Option<Conflict> {
    let text = format!("--cluster-dns={address}");
    let Some(range) = services.iter().find(|given| given.range.contains(&address)) else {
        let all: Vec<String> = services.iter().map(Given::text).collect();
        return Some(Conflict::OutsideOf {
            address: text,
            range: all.join(" and "),
        });
    };
    let holder = if address == range.range.network() {
        "the network itself"
    } else if nth_address(range.range, 1) == Some(address) {
        "the Service kubernetes"
    } else {
        return None;
    };
    Some(Conflict::Taken {
        address: text,
        range: range.text(),
        holder,
    })
}

/// What is wrong with the ranges on a machine that has these addresses.
pub fn with_machine(settings: &Settings, addresses: &[IpAddr]) -> Vec<Conflict> {
    let mut found = Vec::new();
    for given in ranges(settings) {
        let held = addresses.iter().filter(|ip| given.range.contains(*ip));
        found.extend(held.map(|address| Conflict::HoldsNode {
            range: given.text(),
            address: *address,
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn settings(cluster: &str, service: &str, dns: &[&str]) -> Settings {
        let ranges = |text: &str| text.split(',').map(|one| one.parse().unwrap()).collect();
        Settings {
            cluster_cidrs: ranges(cluster),
            service_cidrs: ranges(service),
            cluster_dns: dns.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..Settings::default()
        }
    }

    fn said(settings: &Settings) -> Vec<String> {
        let all = of_settings(settings);
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_cannot_be_is_named_with_both_values() {
        let rows: &[(&str, &str, &[&str], &[&str])] = &[
            ("10.42.0.0/16", "10.43.0.0/16", &[], &[]),
            ("10.42.0.0/16", "10.43.0.0/16", &["10.43.0.53"], &[]),
            (
                "10.42.0.0/16,fd42::/48",
                "10.43.0.0/16,fd43::/112",
                &[],
                &[],
            ),
            (
                "10.0.0.0/8",
                "10.43.0.0/16",
                &[],
                &[
                    "--cluster-cidr=10.0.0.0/8",
                    "--service-cidr=10.43.0.0/16",
                    "overlap",
                ],
            ),
            (
                "10.42.0.0/16",
                "10.42.128.0/17",
                &[],
                &[
                    "--cluster-cidr=10.42.0.0/16",
                    "--service-cidr=10.42.128.0/17",
                ],
            ),
            (
                "10.42.0.0/16,10.44.0.0/16",
                "10.43.0.0/16",
                &[],
                &[
                    "--cluster-cidr=10.42.0.0/16",
                    "--cluster-cidr=10.44.0.0/16",
                    "one address family",
                ],
            ),
            (
                "10.42.0.0/28",
                "10.43.0.0/16",
                &[],
                &["--cluster-cidr=10.42.0.0/28", "/24"],
            ),
            (
                "10.42.0.0/16",
                "10.43.0.0/16",
                &["10.44.0.10"],
                &[
                    "--cluster-dns=10.44.0.10",
                    "outside of --service-cidr=10.43.0.0/16",
                ],
            ),
            (
                "10.42.0.0/16",
                "10.43.0.0/16",
                &["10.43.0.1"],
                &[
                    "--cluster-dns=10.43.0.1",
                    "--service-cidr=10.43.0.0/16",
                    "kubernetes",
                ],
            ),
            (
                "10.42.0.0/16",
                "10.43.0.0/29",
                &[],
                &["--service-cidr=10.43.0.0/29", "tenth"],
            ),
        ];
        for (cluster, service, dns, expected) in rows {
            let told = said(&settings(cluster, service, dns));
            assert_eq!(told.len(), usize::from(!expected.is_empty()), "{told:?}");
            for part in *expected {
                assert!(told[0].contains(part), "{part}: {told:?}");
            }
        }
    }

    #[test]
    fn a_machine_in_one_of_the_ranges_is_named() {
        let mut settings = settings("10.42.0.0/16", "10.43.0.0/16", &[]);
        let told = with_machine(&settings, &["10.42.7.8".parse().unwrap()]);
        assert_eq!(told.len(), 1);
        let text = told[0].to_string();
        assert!(
            text.contains("--cluster-cidr=10.42.0.0/16 holds 10.42.7.8"),
            "{text}"
        );
        assert!(with_machine(&settings, &["192.0.2.1".parse().unwrap()]).is_empty());
        settings.node_ips = vec!["10.43.0.9".parse().unwrap()];
        assert_eq!(said(&settings).len(), 1);
    }
}

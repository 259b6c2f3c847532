//! Whether another program's rules drop what we forward.
//!
//! Docker, ufw and firewalld set the policy of a forward chain to drop. We never change others'
//! rules; we say what stands in the way and how to let pods through.

use std::fmt;

use ipnet::IpNet;
use sampan_netlink::nft::{ChainInfo, Connection, Family};

const HOOK_FORWARD: u32 = 2;

/// A chain that drops forwarded packets unless one of its rules accepts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    pub family: String,
    pub table: String,
    pub chain: String,
    /// What lets pods through.
    pub commands: Vec<String>,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "chain {} {} {} drops forwarded packets by default; if pods cannot reach each other or the outside, run: {}",
            self.family,
            self.table,
            self.chain,
            self.commands.join("; ")
        )
    }
}

/// All obstacles in the calling thread's network namespace.
pub fn obstacles(cluster_cidrs: &[IpNet]) -> Result<Vec<Obstacle>, sampan_netlink::Error> {
    Ok(find(&Connection::open()?.chains()?, cluster_cidrs))
}

fn find(chains: &[ChainInfo], cluster_cidrs: &[IpNet]) -> Vec<Obstacle> {
    let in_the_way = |c: &&ChainInfo| c.hook == Some(HOOK_FORWARD) && c.drops;
    let describe = |chain: &ChainInfo| {
        let family = Family::from_number(chain.family)?;
        Some(Obstacle {
            family: family.as_str().to_owned(),
            table: chain.table.clone(),
            chain: chain.name.clone(),
            commands: commands(chain, family, cluster_cidrs),
        })
    };
    chains
        .iter()
        .filter(in_the_way)
        .filter_map(describe)
        .collect()
}

/// The chain `FORWARD` of table `filter` belongs to the iptables program, which wants its own words.
fn commands(chain: &ChainInfo, family: Family, cluster_cidrs: &[IpNet]) -> Vec<String> {
    let iptables = chain.table == "filter" && chain.name == "FORWARD" && family != Family::Inet;
    let fits = |cidr: &&IpNet| match family {
        Family::Inet => true,
        Family::Ip => !cidr.addr().is_ipv6(),
        Family::Ip6 => cidr.addr().is_ipv6(),
    };
    let pair = |cidr: &IpNet| {
        let six = if cidr.addr().is_ipv6() { "6" } else { "" };
        let (table, name) = (&chain.table, &chain.name);
        if iptables {
            return [
                format!("ip{six}tables -I FORWARD -s {cidr} -j ACCEPT"),
                format!("ip{six}tables -I FORWARD -d {cidr} -j ACCEPT"),
            ];
        }
        let rule = format!("nft insert rule {} {table} {name} ip{six}", family.as_str());
        [
            format!("{rule} saddr {cidr} accept"),
            format!("{rule} daddr {cidr} accept"),
        ]
    };
    cluster_cidrs.iter().filter(fits).flat_map(pair).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chain(table: &str, name: &str, hook: u32, drops: bool) -> ChainInfo {
        ChainInfo {
            family: 2,
            table: table.into(),
            name: name.into(),
            hook: Some(hook),
            drops,
        }
    }

    #[test]
    fn only_forward_chains_that_drop_are_reported_with_the_right_command() {
        let chains = [
            chain("filter", "FORWARD", 2, true),
            chain("filter", "INPUT", 1, true),
            chain("other", "forward", 2, false),
            chain("fw", "fwd", 2, true),
        ];
        let cidrs = [
            "10.42.0.0/16".parse().unwrap(),
            "fd00::/64".parse().unwrap(),
        ];
        let found = find(&chains, &cidrs);
        let first = |i: usize| found[i].commands[0].as_str();
        assert_eq!(found.len(), 2);
        assert_eq!(first(0), "iptables -I FORWARD -s 10.42.0.0/16 -j ACCEPT");
        assert_eq!(
            first(1),
            "nft insert rule ip fw fwd ip saddr 10.42.0.0/16 accept"
        );
        assert_eq!(found[0].commands.len(), 2);
    }
}

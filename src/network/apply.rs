//! Makes the kernel match a node's plan: link, addresses, routes, table.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use sampan_host::change::current_namespace;
use sampan_host::{Change as HostChange, Journal, sysctl};
use sampan_netlink::error::allow_missing;
use sampan_netlink::nft::{self, Family, Fingerprint, Ruleset};
use sampan_netlink::route::{Address, Connection, Link, Route, Veth, VethPeer};
use sampan_netlink::{Error as NetlinkError, nft::Table};

use crate::ipam::Allocation;
use crate::plan::NodePlan;
use crate::rules;
use crate::settings::{NODE_LINK, NODE_LINK_PEER, ROUTE_PROTOCOL, Settings, TABLE_NAME, table};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Host(#[from] sampan_host::Error),
}

/// Something that could not be done but keeps nothing else from working.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint(pub String);

/// The node's links and routes.
#[derive(Debug)]
pub struct Links {
    kernel: Connection,
    journal: Journal,
    namespace: u64,
}

impl Links {
    pub fn open(journal: &Journal) -> Result<Self, Error> {
        Ok(Self {
            kernel: Connection::open()?,
            journal: journal.clone(),
            namespace: current_namespace(),
        })
    }

    /// Applies the plan; routes that the kernel refuses are complaints, as the rest still helps.
    pub fn apply(&mut self, plan: &NodePlan) -> Result<Vec<Complaint>, Error> {
        self.forwarding(plan)?;
        let link = self.node_link()?;
        self.node_addresses(&link, plan)?;
        let wanted = wanted_routes(plan, &link);
        self.remove_stale_routes(&wanted)?;
        let mut complaints = Vec::new();
        for (route, change) in self.describe(wanted) {
            self.journal.record(change)?;
            if let Err(error) = self.kernel.replace_route(&route) {
                complaints.push(Complaint(error.to_string()));
            }
        }
        Ok(complaints)
    }

    /// Whether link, addresses and routes are as the plan in place wants them.
    pub fn is_intact(&mut self, plan: &NodePlan) -> Result<bool, Error> {
        for name in [NODE_LINK_PEER, NODE_LINK] {
            if !self.kernel.find_link(name)?.is_some_and(|link| link.up) {
                return Ok(false);
            }
        }
        let link = self.kernel.link(NODE_LINK)?;
        let addresses = self.kernel.addresses()?;
        let held = |gateway: &IpAddr| {
            let is_it = |a: &Address| a.link == link.index && a.network.addr() == *gateway;
            addresses.iter().any(is_it)
        };
        let routes = self.kernel.routes()?;
        let wanted = wanted_routes(plan, &link);
        Ok(plan.gateways.iter().all(held) && wanted.iter().all(|route| is_among(route, &routes)))
    }

    fn forwarding(&self, plan: &NodePlan) -> Result<(), Error> {
        let any = |ipv6: bool| plan.gateways.iter().any(|g| g.is_ipv6() == ipv6);
        if any(false) {
            sysctl::set(&self.journal, "net.ipv4.ip_forward", "1")?;
        }
        if any(true) {
            sysctl::set(&self.journal, "net.ipv6.conf.all.forwarding", "1")?;
        }
        Ok(())
    }

    fn node_link(&mut self) -> Result<Link, Error> {
        if self.kernel.find_link(NODE_LINK)?.is_none() {
            self.journal.record(HostChange::Link {
                name: NODE_LINK.to_owned(),
                namespace: self.namespace,
            })?;
            self.kernel.create_veth(&Veth {
                name: NODE_LINK,
                mac: None,
                mtu: None,
                peer: VethPeer {
                    name: NODE_LINK_PEER,
                    mac: None,
                    namespace: None,
                },
            })?;
        }
        for name in [NODE_LINK_PEER, NODE_LINK] {
            let link = self.kernel.link(name)?;
            // Nothing ever arrives on these: no link-local addresses, no neighbour discovery.
            let key = format!("net.ipv6.conf.{name}.addr_gen_mode");
            if let Err(error) = sysctl::write(&key, "1") {
                tracing::debug!(%key, %error, "cannot set");
            }
            if !link.up {
                self.kernel.set_up(link.index)?;
            }
        }
        Ok(self.kernel.link(NODE_LINK)?)
    }

    fn node_addresses(&mut self, link: &Link, plan: &NodePlan) -> Result<(), Error> {
        let wanted: Vec<_> = plan.gateways.iter().map(|g| IpNet::from(*g)).collect();
        for address in self.kernel.addresses()? {
            let stale = address.link == link.index && !wanted.contains(&address.network);
            if stale && !is_link_local(address.network.addr()) {
                allow_missing(self.kernel.delete_address(&address))?;
            }
        }
        for network in wanted {
            let index = link.index;
            self.kernel.add_address(&Address {
                link: index,
                network,
            })?;
        }
        Ok(())
    }

    /// Our routes that nobody wants any more; those of pods' links are not ours to judge.
    fn remove_stale_routes(&mut self, wanted: &[Route]) -> Result<(), Error> {
        let links = self.kernel.links()?;
        let node_link = links.iter().find(|l| l.name == NODE_LINK).map(|l| l.index);
        for route in self.kernel.routes()? {
            let judged = route.gateway.is_some() || route.link == node_link;
            if route.protocol != ROUTE_PROTOCOL || !judged {
                continue;
            }
            let same =
                |w: &&Route| w.destination == route.destination && w.gateway == route.gateway;
            if wanted.iter().any(|w| same(&w)) {
                continue;
            }
            allow_missing(self.kernel.delete_route(&route))?;
            self.journal.forget(&self.route_change(&route))?;
        }
        Ok(())
    }

    fn describe(&self, routes: Vec<Route>) -> Vec<(Route, HostChange)> {
        let with_change = |route: Route| (route, self.route_change(&route));
        routes.into_iter().map(with_change).collect()
    }

    fn route_change(&self, route: &Route) -> HostChange {
        HostChange::Route {
            destination: route.destination.to_string(),
            gateway: route.gateway.map(|g| g.to_string()),
            link: route.gateway.is_none().then(|| NODE_LINK.to_owned()),
            namespace: self.namespace,
        }
    }

    /// The MTU of the link that holds one of the node's addresses, or of the default route's.
    pub fn uplink_mtu(&mut self, settings: &Settings) -> Result<Option<u32>, Error> {
        let addresses = self.kernel.addresses()?;
        let holds = |a: &&Address| settings.node_ips.contains(&a.network.addr());
        let by_address = addresses.iter().find(holds).map(|a| a.link);
        let routes = self.kernel.routes()?;
        let default = || routes.iter().find(|r| r.destination.prefix_len() == 0);
        let index = by_address.or_else(|| default().and_then(|r| r.link));
        let links = self.kernel.links()?;
        let link = links
            .into_iter()
            .find(|l| Some(l.index) == index && !l.loopback);
        Ok(link.map(|l| l.mtu))
    }
}

/// What the kernel adds by itself (the link that leads to a gateway) is no difference.
fn is_among(wanted: &Route, routes: &[Route]) -> bool {
    let same = |route: &Route| {
        let link = wanted.link.is_none() || wanted.link == route.link;
        let source = wanted.source.is_none() || wanted.source == route.source;
        wanted.destination == route.destination && wanted.gateway == route.gateway && link && source
    };
    routes.iter().any(same)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn wanted_routes(plan: &NodePlan, link: &Link) -> Vec<Route> {
    let to_peer =
        |(cidr, via): (&IpNet, &IpAddr)| Route::to(*cidr).via(*via).protocol(ROUTE_PROTOCOL);
    let to_services = |cidr: &IpNet| {
        let source = plan.gateway(cidr.addr().is_ipv6())?;
        let route = Route::to(*cidr).on_link(link.index).from_source(source);
        Some(route.protocol(ROUTE_PROTOCOL))
    };
    let services = plan.service_cidrs.iter().filter_map(to_services);
    services.chain(plan.peers.iter().map(to_peer)).collect()
}

/// The node's nftables tables.
#[derive(Debug)]
pub struct Tables {
    kernel: nft::Connection,
    journal: Journal,
    namespace: u64,
    /// What the kernel holds, and what that looked like; nothing known: replace it all.
    applied: BTreeMap<Family, (Ruleset, Option<Fingerprint>)>,
}

impl Tables {
    pub fn open(journal: &Journal) -> Result<Self, Error> {
        Ok(Self {
            kernel: nft::Connection::open()?,
            journal: journal.clone(),
            namespace: current_namespace(),
            applied: BTreeMap::new(),
        })
    }

    /// Makes the tables hold what plan and allocations ask for, each in one step.
    pub fn apply<'a>(
        &mut self,
        families: &[Family],
        plan: &NodePlan,
        allocations: impl Iterator<Item = &'a Allocation> + Clone,
    ) -> Result<(), Error> {
        for family in families {
            let wanted = rules::render(plan, allocations.clone(), *family);
            self.commit(*family, wanted)?;
        }
        Ok(())
    }

    /// Whether the tables are still those that we left.
    pub fn is_intact(&mut self) -> Result<bool, Error> {
        for (family, (_, left)) in &self.applied {
            if self.kernel.fingerprint(&table(*family))? != *left {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Nothing is known of the kernel's state any more: the next change replaces it all.
    pub fn forget(&mut self) {
        self.applied.clear();
    }

    fn commit(&mut self, family: Family, wanted: Ruleset) -> Result<(), Error> {
        let table: Table = table(family);
        match self.applied.remove(&family) {
            None => {
                self.journal.record(HostChange::NftTable {
                    family: family.as_str().to_owned(),
                    name: TABLE_NAME.to_owned(),
                    namespace: self.namespace,
                })?;
                self.kernel.commit(&wanted.replace(&table))?;
            }
            Some((old, left)) => {
                let change = old.diff(&wanted, &table);
                if change.main.is_empty() {
                    self.applied.insert(family, (wanted, left));
                    return Ok(());
                }
                if let Err(error) = self.kernel.commit(&change.main) {
                    // Somebody has changed or removed the table: put it in place as a whole.
                    tracing::warn!(%error, "nftables table {TABLE_NAME} was not as we left it");
                    self.kernel.commit(&wanted.replace(&table))?;
                }
            }
        }
        let left = self.kernel.fingerprint(&table)?;
        self.applied.insert(family, (wanted, left));
        Ok(())
    }
}

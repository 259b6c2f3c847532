//! A pod's link: made, checked, taken away.
//!
//! ```text
//! pod                                     node
//! eth0 10.42.0.5/32                       spXXXXXXXXXXXXX (no address)
//!   169.254.1.1 permanent neighbour         10.42.0.5 permanent neighbour
//!   default via 169.254.1.1                 10.42.0.5/32 dev spXXXXXXXXXXXXX src 10.42.0.1
//! ```
//! Nobody ever asks for a link address: no ARP, nothing to answer or to spoof.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use sampan_host::{Change as HostChange, Journal, sysctl};
use sampan_netlink::error::allow_missing;
use sampan_netlink::route::{Address, Connection, Link, Neighbour, Route, Veth, VethPeer};
use sampan_netlink::{Error, Namespace};

use crate::ipam::Allocation;
use crate::names::{GATEWAY_MAC, gateway, pod_mac};
use crate::settings::ROUTE_PROTOCOL;

/// What a link takes from its node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSide {
    /// The node's addresses among its pods: where its own connections to pods come from.
    pub gateways: Vec<IpAddr>,
    pub mtu: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Netlink(#[from] Error),
    #[error(transparent)]
    Journal(#[from] sampan_host::Error),
    #[error("{0}")]
    Broken(String),
}

/// Makes the link; on failure nothing of it is left.
pub fn attach(
    allocation: &Allocation,
    node: &NodeSide,
    journal: &Journal,
) -> Result<(), AttachError> {
    let namespace = Namespace::open(&allocation.namespace)?;
    let mut host = Connection::open()?;
    journal.record(change_of(allocation))?;
    let result = create(allocation, node, &namespace, &mut host);
    if result.is_err()
        && let Err(error) = detach(allocation, journal)
    {
        tracing::warn!(link = %allocation.host_link, %error, "cannot remove a half-made link");
    }
    Ok(result?)
}

/// Takes the link away, both ends; one that is gone already is fine.
pub fn detach(allocation: &Allocation, journal: &Journal) -> Result<(), AttachError> {
    let mut host = Connection::open()?;
    allow_missing(host.delete_link(&allocation.host_link))?;
    journal.forget(&change_of(allocation))?;
    Ok(())
}

/// Finds out whether the link is still as it was made.
pub fn check(allocation: &Allocation) -> Result<(), AttachError> {
    let mut host = Connection::open()?;
    let near = host.link(&allocation.host_link)?;
    let namespace = Namespace::open(&allocation.namespace)?;
    let mut pod = Connection::open_in(&namespace)?;
    let far = pod.link(&allocation.attachment.interface)?;
    let (routes, addresses) = (host.routes()?, pod.addresses()?);
    for address in &allocation.addresses {
        let network = IpNet::from(*address);
        let led = |r: &Route| r.destination == network && r.link == Some(near.index);
        if !routes.iter().any(led) {
            return Err(AttachError::Broken(format!(
                "the route to {address} is gone"
            )));
        }
        if !addresses.contains(&Address {
            link: far.index,
            network,
        }) {
            return Err(AttachError::Broken(format!(
                "the pod has lost its address {address}"
            )));
        }
    }
    if !near.up || !far.up {
        return Err(AttachError::Broken("the pod's link is down".into()));
    }
    Ok(())
}

/// The pod's end, as CNI results report it.
pub fn pod_link_mac(allocation: &Allocation) -> String {
    let first = allocation.addresses.first();
    first.map_or_else(String::new, |address| pod_mac(*address).to_string())
}

fn change_of(allocation: &Allocation) -> HostChange {
    HostChange::Link {
        name: allocation.host_link.clone(),
        namespace: sampan_host::change::current_namespace(),
    }
}

fn create(
    allocation: &Allocation,
    node: &NodeSide,
    namespace: &Namespace,
    host: &mut Connection,
) -> Result<(), Error> {
    let mac = allocation
        .addresses
        .first()
        .map(|address| pod_mac(*address));
    // A left-over of a sandbox that was never taken down, or of an attempt cut short.
    allow_missing(host.delete_link(&allocation.host_link))?;
    host.create_veth(&Veth {
        name: &allocation.host_link,
        mac: Some(GATEWAY_MAC),
        mtu: node.mtu,
        peer: VethPeer {
            name: &allocation.attachment.interface,
            mac,
            namespace: Some(namespace),
        },
    })?;
    let near = host.link(&allocation.host_link)?;
    set_up_host(host, &near, allocation, node)?;
    set_up_pod(namespace, allocation)
}

fn set_up_host(
    host: &mut Connection,
    near: &Link,
    allocation: &Allocation,
    node: &NodeSide,
) -> Result<(), Error> {
    link_settings(&near.name, allocation);
    host.set_up(near.index)?;
    for address in &allocation.addresses {
        host.replace_neighbour(&Neighbour {
            link: near.index,
            address: *address,
            mac: pod_mac(allocation.addresses[0]),
        })?;
        let mut route = Route::to(IpNet::from(*address))
            .on_link(near.index)
            .protocol(ROUTE_PROTOCOL);
        let same_family = |g: &&IpAddr| g.is_ipv6() == address.is_ipv6();
        route.source = node.gateways.iter().find(same_family).copied();
        host.replace_route(&route)?;
    }
    Ok(())
}

/// Settings that vanish with the link, so the journal need not know them. None is worth failing for:
/// each only narrows what the link can do.
fn link_settings(link: &str, allocation: &Allocation) {
    let mut settings = vec![(format!("net.ipv4.conf.{link}.rp_filter"), "1")];
    if !allocation.port_mappings.is_empty() {
        settings.push((format!("net.ipv4.conf.{link}.route_localnet"), "1"));
    }
    if !allocation.addresses.iter().any(IpAddr::is_ipv6) {
        settings.push((format!("net.ipv6.conf.{link}.disable_ipv6"), "1"));
    }
    for (key, value) in settings {
        if let Err(error) = sysctl::write(&key, value) {
            tracing::debug!(%key, %error, "cannot set");
        }
    }
}

fn set_up_pod(namespace: &Namespace, allocation: &Allocation) -> Result<(), Error> {
    let mut pod = Connection::open_in(namespace)?;
    let loopback = pod.link("lo")?;
    pod.set_up(loopback.index)?;
    let far = pod.link(&allocation.attachment.interface)?;
    pod.set_up(far.index)?;
    for address in &allocation.addresses {
        let gateway = gateway(address.is_ipv6());
        pod.add_address(&Address {
            link: far.index,
            network: IpNet::from(*address),
        })?;
        pod.replace_neighbour(&Neighbour {
            link: far.index,
            address: gateway,
            mac: GATEWAY_MAC,
        })?;
        pod.replace_route(&Route::to(IpNet::from(gateway)).on_link(far.index))?;
        let default = Route::to(everything(address.is_ipv6()));
        pod.replace_route(&default.via(gateway).on_link(far.index).onlink())?;
    }
    Ok(())
}

fn everything(is_ipv6: bool) -> IpNet {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if is_ipv6 {
        IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0)
    } else {
        IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0)
    }
}

/// Whether the sandbox an allocation belongs to still exists.
pub fn is_alive(namespace: &Path) -> bool {
    sampan_netlink::namespace::is_namespace(namespace)
}

//! Takes network changes back for the host journal.

use sampan_host::{Change, NetworkUndo};
use sampan_netlink::error::allow_missing;
use sampan_netlink::nft::{self, Family, Table};
use sampan_netlink::route::{Address, Connection, Route};
use sampan_netlink::{Error, IpNet};

use crate::settings::ROUTE_PROTOCOL;

/// The calling thread's network namespace.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostNetwork;

impl NetworkUndo for HostNetwork {
    fn undo(&self, change: &Change) -> Result<(), String> {
        undo(change).map_err(|error| error.to_string())
    }
}

fn undo(change: &Change) -> Result<(), Error> {
    match change {
        Change::Link { name, .. } => allow_missing(Connection::open()?.delete_link(name)),
        Change::Address { link, address, .. } => undo_address(link, address),
        Change::Route {
            destination,
            gateway,
            ..
        } => undo_route(destination, gateway.as_deref()),
        Change::NftTable { family, name, .. } => {
            let family = Family::parse(family)
                .ok_or_else(|| Error::Invalid(format!("unknown address family {family:?}")))?;
            nft::Connection::open()?.delete_table(&Table::new(family, name.clone()))
        }
        other => Err(Error::Invalid(format!("{other} is no network change"))),
    }
}

fn undo_address(link: &str, address: &str) -> Result<(), Error> {
    let network = parse(address)?;
    let mut kernel = Connection::open()?;
    match kernel.find_link(link)? {
        Some(link) => allow_missing(kernel.delete_address(&Address {
            link: link.index,
            network,
        })),
        None => Ok(()),
    }
}

/// Only a route that still leads the way we made it, and still bears our mark.
fn undo_route(destination: &str, gateway: Option<&str>) -> Result<(), Error> {
    let destination = parse(destination)?;
    let mut kernel = Connection::open()?;
    let ours = |route: &Route| {
        route.protocol == ROUTE_PROTOCOL
            && route.destination == destination
            && route.gateway.map(|g| g.to_string()).as_deref() == gateway
    };
    let found = kernel.routes()?.into_iter().find(ours);
    found.map_or(Ok(()), |route| allow_missing(kernel.delete_route(&route)))
}

fn parse(text: &str) -> Result<IpNet, Error> {
    text.parse()
        .map_err(|_| Error::Invalid(format!("{text:?} is no network")))
}

//! Links, addresses, routes and neighbours (`NETLINK_ROUTE`).

mod address;
mod encode;
mod event;
mod link;
mod neighbour;
mod routes;

pub use address::Address;
pub use event::Event;
pub use link::{Link, LinkChange, MacAddress, Veth, VethPeer};
pub use neighbour::Neighbour;
pub use routes::{Route, Scope};

use crate::{Error, Namespace, Protocol, Socket};

/// A rtnetlink socket; its methods are with the things they handle.
#[derive(Debug)]
pub struct Connection {
    pub(crate) socket: Socket,
}

impl Connection {
    pub fn open() -> Result<Self, Error> {
        Socket::open(Protocol::Route).map(|socket| Self { socket })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Socket::open_in(namespace, Protocol::Route).map(|socket| Self { socket })
    }
}

#[cfg(test)]
mod tests;

//! What a subscription to links, addresses and routes reports. Pure.

use super::encode::{DEL_ADDRESS, DEL_LINK, DEL_ROUTE, NEW_ADDRESS, NEW_LINK, NEW_ROUTE};
use super::{Address, Link, Route, address, link, routes};
use crate::message::Message;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A link as it is now.
    Link(Link),
    LinkGone(Link),
    Address(Address),
    AddressGone(Address),
    /// Of the main table.
    Route(Route),
    RouteGone(Route),
}

impl Event {
    /// `None` for messages of other kinds.
    pub fn of(message: &Message<'_>) -> Option<Self> {
        match message.kind {
            NEW_LINK => link::read(message).map(Self::Link),
            DEL_LINK => link::read(message).map(Self::LinkGone),
            NEW_ADDRESS => address::read(message).map(Self::Address),
            DEL_ADDRESS => address::read(message).map(Self::AddressGone),
            NEW_ROUTE => routes::read(message).map(Self::Route),
            DEL_ROUTE => routes::read(message).map(Self::RouteGone),
            _ => None,
        }
    }
}

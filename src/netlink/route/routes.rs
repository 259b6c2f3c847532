//! Routes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Connection;
use super::encode::{DEL_ROUTE, GET_ROUTE, NEW_ROUTE, family_of, put_address, read_address};
use crate::error::Error;
use crate::message::{Message, Writer, u32_of};
use crate::socket::{CREATE, REPLACE};

const DESTINATION: u16 = 1;
const OUTPUT_LINK: u16 = 4;
const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;
const PREFERRED_SOURCE: u16 = 7;
const METRICS: u16 = 8;
const METRIC_MTU: u16 = 2;
const TABLE: u16 = 15;
const TABLE_MAIN: u8 = 254;
const UNICAST: u8 = 1;
const FLAG_ONLINK: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Through a gateway.
    Universe,
    /// Directly on the link.
    Link,
}

impl Scope {
    fn number(self) -> u8 {
        match self {
            Self::Universe => 0,
            Self::Link => 253,
        }
    }
}

/// A unicast route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    pub destination: IpNet,
    pub gateway: Option<IpAddr>,
    pub link: Option<u32>,
    pub scope: Scope,
    /// The source that locally made connections take.
    pub source: Option<IpAddr>,
    /// The gateway is on the link even if no address says so.
    pub onlink: bool,
    /// Who made it (`rtm_protocol`): lets a program tell its own routes from others'.
    pub protocol: u8,
    pub metric: Option<u32>,
    pub mtu: Option<u32>,
}

impl Route {
    pub fn to(destination: IpNet) -> Self {
        Self {
            destination: destination.trunc(),
            gateway: None,
            link: None,
            scope: Scope::Universe,
            source: None,
            onlink: false,
            protocol: libc::RTPROT_STATIC,
            metric: None,
            mtu: None,
        }
    }

    #[must_use]
    pub fn via(self, gateway: IpAddr) -> Self {
        Self {
            gateway: Some(gateway),
            ..self
        }
    }

    #[must_use]
    pub fn on_link(self, link: u32) -> Self {
        let scope = if self.gateway.is_none() {
            Scope::Link
        } else {
            self.scope
        };
        Self {
            link: Some(link),
            scope,
            ..self
        }
    }

    #[must_use]
    pub fn from_source(self, source: IpAddr) -> Self {
        Self {
            source: Some(source),
            ..self
        }
    }

    #[must_use]
    pub fn onlink(self) -> Self {
        Self {
            onlink: true,
            ..self
        }
    }

    #[must_use]
    pub fn protocol(self, protocol: u8) -> Self {
        Self { protocol, ..self }
    }
}

impl Connection {
    /// The unicast routes of the main table, both families.
    pub fn routes(&mut self) -> Result<Vec<Route>, Error> {
        let mut all = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            self.socket.dump(
                GET_ROUTE,
                || "list routes".into(),
                |w| w.raw(&header(family, 0, 0, 0, 0)),
                |message| all.extend(read(message)),
            )?;
        }
        Ok(all)
    }

    /// Adds the route, in place of one to the same destination with the same metric.
    pub fn replace_route(&mut self, route: &Route) -> Result<(), Error> {
        self.socket.request(
            NEW_ROUTE,
            CREATE | REPLACE,
            || format!("route to {}", route.destination),
            |w| encode(w, route),
        )
    }

    pub fn delete_route(&mut self, route: &Route) -> Result<(), Error> {
        self.socket.request(
            DEL_ROUTE,
            0,
            || format!("delete route to {}", route.destination),
            |w| encode(w, route),
        )
    }
}

fn header(family: u8, prefix_len: u8, protocol: u8, scope: u8, flags: u32) -> [u8; 12] {
    let kind = if protocol == 0 { 0 } else { UNICAST };
    let table = TABLE_MAIN;
    let mut header = [
        family, prefix_len, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0,
    ];
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn encode(w: &mut Writer, route: &Route) {
    let flags = if route.onlink { FLAG_ONLINK } else { 0 };
    let family = family_of(route.destination.addr());
    w.raw(&header(
        family,
        route.destination.prefix_len(),
        route.protocol,
        route.scope.number(),
        flags,
    ));
    put_address(w, DESTINATION, route.destination.addr());
    if let Some(gateway) = route.gateway {
        put_address(w, GATEWAY, gateway);
    }
    if let Some(link) = route.link {
        w.u32(OUTPUT_LINK, link);
    }
    if let Some(source) = route.source {
        put_address(w, PREFERRED_SOURCE, source);
    }
    if let Some(metric) = route.metric {
        w.u32(PRIORITY, metric);
    }
    if let Some(mtu) = route.mtu {
        w.nest(METRICS, |w| w.u32(METRIC_MTU, mtu));
    }
}

pub(super) fn read(message: &Message<'_>) -> Option<Route> {
    let fixed = message.payload.get(..12)?;
    let attributes = message.attributes(12);
    let table = attributes.find(TABLE).map_or(u32::from(fixed[4]), u32_of);
    let ours = message.kind == NEW_ROUTE || message.kind == DEL_ROUTE;
    if !ours || table != u32::from(TABLE_MAIN) || fixed[7] != UNICAST {
        return None;
    }
    let any: IpAddr = if fixed[0] == libc::AF_INET as u8 {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    };
    let address = |kind| attributes.find(kind).and_then(read_address);
    let destination = address(DESTINATION).unwrap_or(any);
    Some(Route {
        destination: IpNet::new(destination, fixed[1]).ok()?,
        gateway: address(GATEWAY),
        link: attributes.find(OUTPUT_LINK).map(u32_of),
        scope: if fixed[6] == Scope::Link.number() {
            Scope::Link
        } else {
            Scope::Universe
        },
        source: address(PREFERRED_SOURCE),
        onlink: u32_of(&fixed[8..12]) & FLAG_ONLINK != 0,
        protocol: fixed[5],
        metric: attributes.find(PRIORITY).map(u32_of),
        mtu: attributes.nested(METRICS).find(METRIC_MTU).map(u32_of),
    })
}

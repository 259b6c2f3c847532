//! Tracked connections: list them, delete single ones.
//!
//! Needed where a redirection changes under a connectionless protocol: the kernel keeps sending a
//! UDP flow to the endpoint it was first redirected to until the flow falls silent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::message::{Attributes, Message, Writer, be16_of};
use crate::socket::Socket;
use crate::{Error, Namespace, Protocol};

const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ZONE: u16 = 18;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// As the client sent it.
    pub original: Tuple,
    /// As answers arrive: its source is where the packets really go.
    pub reply: Tuple,
    pub zone: u16,
}

#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    pub fn open() -> Result<Self, Error> {
        Socket::open(Protocol::Netfilter).map(|socket| Self { socket })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Socket::open_in(namespace, Protocol::Netfilter).map(|socket| Self { socket })
    }

    /// The flows that `wanted` accepts.
    pub fn flows(
        &mut self,
        is_ipv6: bool,
        mut wanted: impl FnMut(&Flow) -> bool,
    ) -> Result<Vec<Flow>, Error> {
        let mut found = Vec::new();
        self.socket.dump(
            GET,
            || "list tracked connections".into(),
            |w| w.raw(&[family(is_ipv6), 0, 0, 0]),
            |message| found.extend(read_flow(message).filter(|flow| wanted(flow))),
        )?;
        Ok(found)
    }

    /// Forgets one flow; one that ended by itself is fine.
    pub fn delete(&mut self, flow: &Flow) -> Result<(), Error> {
        let deleted = self.socket.request(
            DELETE,
            0,
            || format!("delete tracked connection to {}", flow.original.destination),
            |w| encode_delete(w, flow),
        );
        crate::error::allow_missing(deleted)
    }
}

fn family(is_ipv6: bool) -> u8 {
    (if is_ipv6 {
        libc::AF_INET6
    } else {
        libc::AF_INET
    }) as u8
}

fn encode_delete(w: &mut Writer, flow: &Flow) {
    w.raw(&[family(flow.original.source.is_ipv6()), 0, 0, 0]);
    w.nest(TUPLE_ORIGINAL, |w| encode_tuple(w, &flow.original));
    if flow.zone != 0 {
        w.be16(ZONE, flow.zone);
    }
}

fn encode_tuple(w: &mut Writer, tuple: &Tuple) {
    w.nest(1, |w| match (tuple.source, tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            w.bytes(1, &source.octets());
            w.bytes(2, &destination.octets());
        }
        (source, destination) => {
            w.bytes(3, &v6(source).octets());
            w.bytes(4, &v6(destination).octets());
        }
    });
    w.nest(2, |w| {
        w.u8(1, tuple.protocol);
        w.be16(2, tuple.source_port);
        w.be16(3, tuple.destination_port);
    });
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn read_flow(message: &Message<'_>) -> Option<Flow> {
    let attributes = message.attributes(4);
    Some(Flow {
        original: read_tuple(attributes.nested(TUPLE_ORIGINAL))?,
        reply: read_tuple(attributes.nested(TUPLE_REPLY))?,
        zone: attributes.find(ZONE).map_or(0, be16_of),
    })
}

fn read_tuple(tuple: Attributes<'_>) -> Option<Tuple> {
    let (ip, proto) = (tuple.nested(1), tuple.nested(2));
    let address = |v4_kind, v6_kind| {
        let v4 = ip.find(v4_kind).and_then(read_v4);
        v4.or_else(|| ip.find(v6_kind).and_then(read_v6))
    };
    Some(Tuple {
        source: address(1, 3)?,
        destination: address(2, 4)?,
        protocol: *proto.find(1)?.first()?,
        source_port: proto.find(2).map_or(0, be16_of),
        destination_port: proto.find(3).map_or(0, be16_of),
    })
}

fn read_v4(bytes: &[u8]) -> Option<IpAddr> {
    let octets: [u8; 4] = bytes.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn read_v6(bytes: &[u8]) -> Option<IpAddr> {
    let octets: [u8; 16] = bytes.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

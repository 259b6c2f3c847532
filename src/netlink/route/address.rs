//! Addresses of links.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Connection;
use super::encode::{DEL_ADDRESS, GET_ADDRESS, NEW_ADDRESS, family_of, put_address, read_address};
use crate::error::{Error, allow_exists};
use crate::message::{Message, Writer, u32_of};
use crate::socket::{CREATE, EXCLUSIVE};

const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// No duplicate address detection: an IPv6 address is usable at once.
const FLAG_NODAD: u8 = 0x02;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub link: u32,
    /// The address with its prefix length (host bits kept).
    pub network: IpNet,
}

impl Connection {
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let mut all = Vec::new();
        self.socket.dump(
            GET_ADDRESS,
            || "list addresses".into(),
            |w| w.raw(&[0; 8]),
            |message| all.extend(read(message)),
        )?;
        Ok(all)
    }

    /// An address that is there already is fine.
    pub fn add_address(&mut self, address: &Address) -> Result<(), Error> {
        allow_exists(self.socket.request(
            NEW_ADDRESS,
            CREATE | EXCLUSIVE,
            || format!("add address {} to link {}", address.network, address.link),
            |w| encode(w, address),
        ))
    }

    pub fn delete_address(&mut self, address: &Address) -> Result<(), Error> {
        self.socket.request(
            DEL_ADDRESS,
            0,
            || format!("delete address {}", address.network),
            |w| encode(w, address),
        )
    }
}

fn encode(w: &mut Writer, address: &Address) {
    let ip = address.network.addr();
    let flags = if ip.is_ipv6() { FLAG_NODAD } else { 0 };
    let mut header = [
        family_of(ip),
        address.network.prefix_len(),
        flags,
        0,
        0,
        0,
        0,
        0,
    ];
    header[4..8].copy_from_slice(&address.link.to_ne_bytes());
    w.raw(&header);
    put_address(w, LOCAL, ip);
    put_address(w, ADDRESS, ip);
}

pub(super) fn read(message: &Message<'_>) -> Option<Address> {
    if message.kind != NEW_ADDRESS && message.kind != DEL_ADDRESS {
        return None;
    }
    let prefix_len = *message.payload.get(1)?;
    let attributes = message.attributes(8);
    let bytes = attributes
        .find(LOCAL)
        .or_else(|| attributes.find(ADDRESS))?;
    let address: IpAddr = read_address(bytes)?;
    Some(Address {
        link: u32_of(message.payload.get(4..)?),
        network: IpNet::new(address, prefix_len).ok()?,
    })
}

//! Neighbour entries (ARP and NDP), permanent ones.

use std::net::IpAddr;

use super::encode::{
    DEL_NEIGHBOUR, GET_NEIGHBOUR, NEW_NEIGHBOUR, family_of, put_address, read_address,
};
use super::{Connection, MacAddress};
use crate::error::Error;
use crate::message::{Message, Writer, u32_of};
use crate::socket::{CREATE, REPLACE};

const DESTINATION: u16 = 1;
const LINK_ADDRESS: u16 = 2;
const STATE_PERMANENT: u16 = 0x80;

/// A permanent entry: the kernel never asks for the address and never forgets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    pub link: u32,
    pub address: IpAddr,
    pub mac: MacAddress,
}

impl Connection {
    /// The permanent entries of both families.
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, Error> {
        let mut all = Vec::new();
        self.socket.dump(
            GET_NEIGHBOUR,
            || "list neighbours".into(),
            |w| w.raw(&[0; 12]),
            |message| all.extend(read(message)),
        )?;
        Ok(all)
    }

    pub fn replace_neighbour(&mut self, neighbour: &Neighbour) -> Result<(), Error> {
        self.socket.request(
            NEW_NEIGHBOUR,
            CREATE | REPLACE,
            || format!("neighbour {}", neighbour.address),
            |w| encode(w, neighbour),
        )
    }

    pub fn delete_neighbour(&mut self, neighbour: &Neighbour) -> Result<(), Error> {
        self.socket.request(
            DEL_NEIGHBOUR,
            0,
            || format!("delete neighbour {}", neighbour.address),
            |w| encode(w, neighbour),
        )
    }
}

fn encode(w: &mut Writer, neighbour: &Neighbour) {
    let mut header = [0; 12];
    header[0] = family_of(neighbour.address);
    header[4..8].copy_from_slice(&neighbour.link.to_ne_bytes());
    header[8..10].copy_from_slice(&STATE_PERMANENT.to_ne_bytes());
    w.raw(&header);
    put_address(w, DESTINATION, neighbour.address);
    w.bytes(LINK_ADDRESS, &neighbour.mac.0);
}

fn read(message: &Message<'_>) -> Option<Neighbour> {
    let fixed = message.payload.get(..12)?;
    let state = u16::from_ne_bytes([fixed[8], fixed[9]]);
    if message.kind != NEW_NEIGHBOUR || state & STATE_PERMANENT == 0 {
        return None;
    }
    let attributes = message.attributes(12);
    Some(Neighbour {
        link: u32_of(&fixed[4..8]),
        address: attributes.find(DESTINATION).and_then(read_address)?,
        mac: MacAddress(attributes.find(LINK_ADDRESS)?.try_into().ok()?),
    })
}

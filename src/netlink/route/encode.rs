//! What the four kinds of rtnetlink messages share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Writer;

pub(crate) const NEW_LINK: u16 = 16;
pub(crate) const DEL_LINK: u16 = 17;
pub(crate) const GET_LINK: u16 = 18;
pub(crate) const SET_LINK: u16 = 19;
pub(crate) const NEW_ADDRESS: u16 = 20;
pub(crate) const DEL_ADDRESS: u16 = 21;
pub(crate) const GET_ADDRESS: u16 = 22;
pub(crate) const NEW_ROUTE: u16 = 24;
pub(crate) const DEL_ROUTE: u16 = 25;
pub(crate) const GET_ROUTE: u16 = 26;
pub(crate) const NEW_NEIGHBOUR: u16 = 28;
pub(crate) const DEL_NEIGHBOUR: u16 = 29;
pub(crate) const GET_NEIGHBOUR: u16 = 30;

pub(crate) fn family_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

pub(crate) fn put_address(w: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => w.bytes(kind, &v4.octets()),
        IpAddr::V6(v6) => w.bytes(kind, &v6.octets()),
    }
}

pub(crate) fn read_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(bytes).ok()?;
    Some(Ipv6Addr::from(octets).into())
}

/// `ifinfomsg`: family, padding, type, index, flags, mask of changed flags.
pub(crate) fn link_header(index: u32, flags: u32, changed: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&changed.to_ne_bytes());
    header
}

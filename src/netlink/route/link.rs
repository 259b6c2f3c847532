//! Network links.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use super::Connection;
use super::encode::{DEL_LINK, GET_LINK, NEW_LINK, SET_LINK, link_header};
use crate::Namespace;
use crate::error::Error;
use crate::message::{Message, Writer, string_of, u32_of};
use crate::socket::{CREATE, EXCLUSIVE};

const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const NAMESPACE_FD: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const UP: u32 = libc::IFF_UP as u32;
/// The kernel's limit, without the terminating zero.
pub const MAX_NAME_LEN: usize = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    pub mac: Option<MacAddress>,
    pub up: bool,
    pub loopback: bool,
    /// Driver, such as `veth`, for links made by software.
    pub kind: Option<String>,
    /// Index of the bridge or bond it belongs to.
    pub master: Option<u32>,
}

/// What of a link shall change.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkChange<'a> {
    pub up: Option<bool>,
    pub mtu: Option<u32>,
    pub name: Option<&'a str>,
    pub mac: Option<MacAddress>,
    /// Moves the link there.
    pub namespace: Option<&'a Namespace>,
}

/// The far end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethPeer<'a> {
    pub name: &'a str,
    pub mac: Option<MacAddress>,
    /// Where it shall be born; `None`: beside the near end.
    pub namespace: Option<&'a Namespace>,
}

#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    pub name: &'a str,
    pub mac: Option<MacAddress>,
    /// Of both ends.
    pub mtu: Option<u32>,
    pub peer: VethPeer<'a>,
}

impl Connection {
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut all = Vec::new();
        self.socket.dump(
            GET_LINK,
            || "list links".into(),
            |w| w.raw(&link_header(0, 0, 0)),
            |message| all.extend(read(message)),
        )?;
        Ok(all)
    }

    pub fn find_link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        check_name(name)?;
        let found = self.socket.fetch(
            GET_LINK,
            || format!("look up link {name}"),
            |w| {
                w.raw(&link_header(0, 0, 0));
                w.string(NAME, name);
            },
            read,
        );
        match found {
            Err(error) if error.is_not_found() => Ok(None),
            other => other,
        }
    }

    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        self.find_link(name)?
            .ok_or_else(|| Error::NoSuchLink(name.to_owned()))
    }

    /// Creates both ends at once; fails if either name is taken.
    pub fn create_veth(&mut self, veth: &Veth<'_>) -> Result<(), Error> {
        check_name(veth.name)?;
        check_name(veth.peer.name)?;
        self.socket.request(
            NEW_LINK,
            CREATE | EXCLUSIVE,
            || format!("create veth pair {} and {}", veth.name, veth.peer.name),
            |w| encode_veth(w, veth),
        )
    }

    pub fn change_link(&mut self, index: u32, change: &LinkChange<'_>) -> Result<(), Error> {
        change.name.map_or(Ok(()), check_name)?;
        self.socket.request(
            SET_LINK,
            0,
            || format!("change link {index}"),
            |w| {
                let flags = if change.up == Some(true) { UP } else { 0 };
                let changed = if change.up.is_some() { UP } else { 0 };
                w.raw(&link_header(index, flags, changed));
                encode_common(w, change.name, change.mac, change.mtu);
                if let Some(namespace) = change.namespace {
                    w.u32(NAMESPACE_FD, namespace.as_fd().as_raw_fd() as u32);
                }
            },
        )
    }

    pub fn set_up(&mut self, index: u32) -> Result<(), Error> {
        let up = LinkChange {
            up: Some(true),
            ..LinkChange::default()
        };
        self.change_link(index, &up)
    }

    /// Deletes a link by name (and with it its peer, if it has one).
    pub fn delete_link(&mut self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        self.socket.request(
            DEL_LINK,
            0,
            || format!("delete link {name}"),
            |w| {
                w.raw(&link_header(0, 0, 0));
                w.string(NAME, name);
            },
        )
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let legal = !name.is_empty()
        && name.len() <= MAX_NAME_LEN
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0');
    if legal {
        return Ok(());
    }
    Err(Error::Invalid(format!("{name:?} cannot name a link")))
}

fn encode_common(w: &mut Writer, name: Option<&str>, mac: Option<MacAddress>, mtu: Option<u32>) {
    if let Some(name) = name {
        w.string(NAME, name);
    }
    if let Some(mac) = mac {
        w.bytes(ADDRESS, &mac.0);
    }
    if let Some(mtu) = mtu {
        w.u32(MTU, mtu);
    }
}

fn encode_veth(w: &mut Writer, veth: &Veth<'_>) {
    w.raw(&link_header(0, 0, 0));
    encode_common(w, Some(veth.name), veth.mac, veth.mtu);
    w.nest(LINK_INFO, |w| {
        w.string(INFO_KIND, "veth");
        w.nest(INFO_DATA, |w| {
            w.nest(VETH_PEER, |w| {
                w.raw(&link_header(0, 0, 0));
                encode_common(w, Some(veth.peer.name), veth.peer.mac, veth.mtu);
                if let Some(namespace) = veth.peer.namespace {
                    w.u32(NAMESPACE_FD, namespace.as_fd().as_raw_fd() as u32);
                }
            });
        });
    });
}

pub(super) fn read(message: &Message<'_>) -> Option<Link> {
    if message.kind != NEW_LINK && message.kind != DEL_LINK {
        return None;
    }
    let flags = u32_of(message.payload.get(8..)?);
    let attributes = message.attributes(16);
    let mac = |bytes: &[u8]| bytes.try_into().ok().map(MacAddress);
    Some(Link {
        index: u32_of(message.payload.get(4..)?),
        name: attributes.find(NAME).map(string_of)?,
        mtu: attributes.find(MTU).map_or(0, u32_of),
        mac: attributes.find(ADDRESS).and_then(mac),
        up: flags & UP != 0,
        loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
        kind: attributes.nested(LINK_INFO).find(INFO_KIND).map(string_of),
        master: attributes.find(MASTER).map(u32_of),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_kernel_would_refuse_are_refused_here() {
        for bad in ["", ".", "..", "a/b", "a b", "a:b", "sixteen-letters-"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("fifteen-letters").is_ok());
        assert!(check_name("eth0").is_ok());
    }
}

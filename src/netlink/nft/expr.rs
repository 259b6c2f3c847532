//! Expressions of a rule and their encoding. Attribute numbers are the kernel's (`nf_tables.h`).

use std::time::Duration;

use super::Family;
use super::set::AnonymousSet;
use crate::message::Writer;

/// A 32-bit register; concatenated keys take consecutive ones from [`FIRST_REGISTER`].
pub type Register = u32;
pub const VERDICT_REGISTER: Register = 0;
pub const FIRST_REGISTER: Register = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKey {
    Mark = 3,
    InputInterface = 6,
    OutputInterface = 7,
    NetworkFamily = 15,
    TransportProtocol = 16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadBase {
    Network = 1,
    Transport = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareOp {
    Equal = 0,
    NotEqual = 1,
    Less = 2,
    LessOrEqual = 3,
    Greater = 4,
    GreaterOrEqual = 5,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtKey {
    State = 0,
    Direction = 1,
    Status = 2,
    Mark = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatKind {
    Source = 0,
    Destination = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectWith {
    /// ICMP (or ICMPv6) port unreachable.
    PortUnreachable,
    TcpReset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DynsetOp {
    Add = 0,
    Update = 1,
    Delete = 2,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetRef {
    Named(String),
    Anonymous(Box<AnonymousSet>),
}

pub const NAT_RANDOM_FULLY: u32 = 1 << 4;
pub const FIB_SOURCE: u32 = 1;
pub const FIB_DESTINATION: u32 = 1 << 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    Meta {
        key: MetaKey,
        to: Register,
    },
    MetaSet {
        key: MetaKey,
        from: Register,
    },
    Payload {
        base: PayloadBase,
        offset: u32,
        len: u32,
        to: Register,
    },
    Compare {
        from: Register,
        op: CompareOp,
        data: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`
    Bitwise {
        from: Register,
        to: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Without `to` a condition; with it a map look-up (a verdict map into [`VERDICT_REGISTER`]).
    Lookup {
        set: SetRef,
        from: Register,
        to: Option<Register>,
        invert: bool,
    },
    Random {
        modulus: u32,
        to: Register,
    },
    Nat {
        kind: NatKind,
        family: Family,
        address: Register,
        port: Option<Register>,
        flags: u32,
    },
    Masquerade {
        flags: u32,
    },
    Redirect {
        port: Option<Register>,
    },
    /// Type of an address by the routing table (`fib daddr type`).
    FibType {
        flags: u32,
        to: Register,
    },
    Ct {
        key: CtKey,
        to: Register,
    },
    Reject(RejectWith),
    Immediate {
        to: Register,
        data: Vec<u8>,
    },
    Dynset {
        set: String,
        op: DynsetOp,
        key: Register,
        data: Option<Register>,
        timeout: Option<Duration>,
    },
    Counter,
    Limit {
        rate: u64,
        per: Duration,
        burst: u32,
    },
    Verdict(Verdict),
}

/// How a set is named in a message: anonymous ones by the number they have within the batch.
pub(crate) struct SetName<'a> {
    pub name: &'a str,
    pub id: Option<u32>,
}

impl Verdict {
    /// As an nft data attribute's content.
    pub(crate) fn encode(&self, w: &mut Writer) {
        const DATA_VERDICT: u16 = 2;
        let (code, chain) = match self {
            Self::Drop => (0i32, None),
            Self::Accept => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
            Self::Return => (-5, None),
        };
        w.nest(DATA_VERDICT, |w| {
            w.be32(1, code as u32);
            if let Some(chain) = chain {
                w.string(2, chain);
            }
        });
    }
}

pub(crate) fn encode_value(w: &mut Writer, kind: u16, value: &[u8]) {
    const DATA_VALUE: u16 = 1;
    w.nest(kind, |w| w.bytes(DATA_VALUE, value));
}

impl Expr {
    fn name(&self) -> &'static str {
        match self {
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Compare { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Random { .. } => "numgen",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Redirect { .. } => "redir",
            Self::FibType { .. } => "fib",
            Self::Ct { .. } => "ct",
            Self::Reject(_) => "reject",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Dynset { .. } => "dynset",
            Self::Counter => "counter",
            Self::Limit { .. } => "limit",
        }
    }

    /// One element of a rule's expression list. `set` names the set of a look-up.
    pub(crate) fn encode(&self, w: &mut Writer, set: Option<&SetName<'_>>) {
        const LIST_ELEM: u16 = 1;
        w.nest(LIST_ELEM, |w| {
            w.string(1, self.name());
            w.nest(2, |w| self.encode_data(w, set));
        });
    }

    fn encode_data(&self, w: &mut Writer, set: Option<&SetName<'_>>) {
        match self {
            Self::Meta { key, to } => {
                w.be32(1, *to);
                w.be32(2, *key as u32);
            }
            Self::MetaSet { key, from } => {
                w.be32(2, *key as u32);
                w.be32(3, *from);
            }
            Self::Payload {
                base,
                offset,
                len,
                to,
            } => {
                w.be32(1, *to);
                w.be32(2, *base as u32);
                w.be32(3, *offset);
                w.be32(4, *len);
            }
            Self::Compare { from, op, data } => {
                w.be32(1, *from);
                w.be32(2, *op as u32);
                encode_value(w, 3, data);
            }
            Self::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                w.be32(1, *from);
                w.be32(2, *to);
                w.be32(3, mask.len() as u32);
                encode_value(w, 4, mask);
                encode_value(w, 5, xor);
            }
            Self::Lookup {
                from, to, invert, ..
            } => encode_lookup(w, set, *from, *to, *invert),
            Self::Dynset {
                set,
                op,
                key,
                data,
                timeout,
            } => {
                w.string(1, set);
                w.be32(3, *op as u32);
                w.be32(4, *key);
                if let Some(data) = data {
                    w.be32(5, *data);
                }
                if let Some(timeout) = timeout {
                    w.be64(6, timeout.as_millis() as u64);
                }
            }
            other => other.encode_rest(w),
        }
    }

    /// The expressions that only load, count or act.
    fn encode_rest(&self, w: &mut Writer) {
        match self {
            Self::Random { modulus, to } => {
                w.be32(1, *to);
                w.be32(2, *modulus);
                w.be32(3, 1);
                w.be32(4, 0);
            }
            Self::Nat {
                kind,
                family,
                address,
                port,
                flags,
            } => {
                w.be32(1, *kind as u32);
                w.be32(2, u32::from(family.number()));
                w.be32(3, *address);
                if let Some(port) = port {
                    w.be32(5, *port);
                }
                if *flags != 0 {
                    w.be32(7, *flags);
                }
            }
            Self::Masquerade { flags } => optional(w, 1, (*flags != 0).then_some(*flags)),
            Self::Redirect { port } => optional(w, 1, *port),
            Self::FibType { flags, to } => {
                w.be32(1, *to);
                w.be32(2, 3);
                w.be32(3, *flags);
            }
            Self::Ct { key, to } => {
                w.be32(1, *to);
                w.be32(2, *key as u32);
            }
            Self::Reject(with) => match with {
                RejectWith::TcpReset => w.be32(1, 1),
                RejectWith::PortUnreachable => {
                    w.be32(1, 2);
                    w.u8(2, 1);
                }
            },
            Self::Immediate { to, data } => {
                w.be32(1, *to);
                encode_value(w, 2, data);
            }
            Self::Verdict(verdict) => {
                w.be32(1, VERDICT_REGISTER);
                w.nest(2, |w| verdict.encode(w));
            }
            Self::Counter => {
                w.be64(1, 0);
                w.be64(2, 0);
            }
            Self::Limit { rate, per, burst } => {
                w.be64(1, *rate);
                w.be64(2, per.as_secs());
                w.be32(3, *burst);
                w.be32(4, 0);
            }
            _ => {}
        }
    }
}

fn optional(w: &mut Writer, kind: u16, value: Option<u32>) {
    if let Some(value) = value {
        w.be32(kind, value);
    }
}

fn encode_lookup(
    w: &mut Writer,
    set: Option<&SetName<'_>>,
    from: Register,
    to: Option<Register>,
    invert: bool,
) {
    if let Some(set) = set {
        w.string(1, set.name);
        if let Some(id) = set.id {
            w.be32(4, id);
        }
    }
    w.be32(2, from);
    if let Some(to) = to {
        w.be32(3, to);
    }
    if invert {
        w.be32(5, 1);
    }
}

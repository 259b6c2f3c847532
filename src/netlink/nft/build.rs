//! The expressions that rules are made of, as small functions named after what they test or do.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::Family;
use super::expr::{
    CompareOp, CtKey, DynsetOp, Expr, FIB_DESTINATION, FIB_SOURCE, FIRST_REGISTER, MetaKey,
    NAT_RANDOM_FULLY, NatKind, PayloadBase, Register, RejectWith, SetRef, VERDICT_REGISTER,
};
use super::set::{AnonymousSet, KeyType};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const SCTP: u8 = 132;

const RTN_LOCAL: u32 = 2;
const CT_NEW: u32 = 1 << 3;
const CT_STATUS_DNAT: u32 = 1 << 5;

/// One field of a packet that can be loaded into a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    SourceAddress(Family),
    DestinationAddress(Family),
    Protocol,
    DestinationPort,
    InputInterface,
    OutputInterface,
}

impl Field {
    pub fn key_type(self) -> KeyType {
        match self {
            Self::SourceAddress(family) | Self::DestinationAddress(family) => {
                KeyType::address(family == Family::Ip6)
            }
            Self::Protocol => KeyType::Protocol,
            Self::DestinationPort => KeyType::Port,
            Self::InputInterface | Self::OutputInterface => KeyType::Interface,
        }
    }

    pub fn load(self, to: Register) -> Expr {
        let payload = |base, offset, len| Expr::Payload {
            base,
            offset,
            len,
            to,
        };
        let meta = |key| Expr::Meta { key, to };
        match self {
            Self::SourceAddress(Family::Ip6) => payload(PayloadBase::Network, 8, 16),
            Self::SourceAddress(_) => payload(PayloadBase::Network, 12, 4),
            Self::DestinationAddress(Family::Ip6) => payload(PayloadBase::Network, 24, 16),
            Self::DestinationAddress(_) => payload(PayloadBase::Network, 16, 4),
            Self::DestinationPort => payload(PayloadBase::Transport, 2, 2),
            Self::Protocol => meta(MetaKey::TransportProtocol),
            Self::InputInterface => meta(MetaKey::InputInterface),
            Self::OutputInterface => meta(MetaKey::OutputInterface),
        }
    }
}

/// Loads fields side by side, as the key of a concatenation.
pub fn load_all(fields: &[Field]) -> Vec<Expr> {
    let mut register = FIRST_REGISTER;
    fields
        .iter()
        .map(|field| {
            let expr = field.load(register);
            register += field.key_type().padded_len() / 4;
            expr
        })
        .collect()
}

fn compare(op: CompareOp, data: Vec<u8>) -> Expr {
    Expr::Compare {
        from: FIRST_REGISTER,
        op,
        data,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// `ip saddr 10.0.0.0/8` (or `!=`).
pub fn in_network(field: Field, network: IpNet, inside: bool) -> Vec<Expr> {
    let op = if inside {
        CompareOp::Equal
    } else {
        CompareOp::NotEqual
    };
    let mask = octets(network.netmask());
    let xor = vec![0; mask.len()];
    let masked = Expr::Bitwise {
        from: FIRST_REGISTER,
        to: FIRST_REGISTER,
        mask,
        xor,
    };
    let mut all = vec![field.load(FIRST_REGISTER)];
    if network.prefix_len() < network.max_prefix_len() {
        all.push(masked);
    }
    all.push(compare(op, octets(network.network())));
    all
}

/// `meta l4proto tcp`
pub fn protocol(number: u8) -> Vec<Expr> {
    vec![
        Field::Protocol.load(FIRST_REGISTER),
        compare(CompareOp::Equal, vec![number]),
    ]
}

/// `th dport 53`
pub fn destination_port(port: u16) -> Vec<Expr> {
    vec![
        Field::DestinationPort.load(FIRST_REGISTER),
        compare(CompareOp::Equal, port.to_be_bytes().to_vec()),
    ]
}

/// `iifname "eth0"` / `oifname`, or its negation.
pub fn interface(field: Field, name: &str, equal: bool) -> Vec<Expr> {
    let op = if equal {
        CompareOp::Equal
    } else {
        CompareOp::NotEqual
    };
    let mut data = name.as_bytes().to_vec();
    data.resize(16, 0);
    vec![field.load(FIRST_REGISTER), compare(op, data)]
}

/// `ct state new`
pub fn new_connection() -> Vec<Expr> {
    ct_bits(CtKey::State, CT_NEW)
}

/// `ct status dnat`
pub fn was_redirected() -> Vec<Expr> {
    ct_bits(CtKey::Status, CT_STATUS_DNAT)
}

fn ct_bits(key: CtKey, bits: u32) -> Vec<Expr> {
    let load = Expr::Ct {
        key,
        to: FIRST_REGISTER,
    };
    vec![load, masked(bits), compare(CompareOp::NotEqual, vec![0; 4])]
}

fn masked(bits: u32) -> Expr {
    Expr::Bitwise {
        from: FIRST_REGISTER,
        to: FIRST_REGISTER,
        mask: bits.to_ne_bytes().to_vec(),
        xor: vec![0; 4],
    }
}

/// `fib daddr type local`
pub fn to_local_address() -> Vec<Expr> {
    fib_local(FIB_DESTINATION)
}

/// `fib saddr type local`
pub fn from_local_address() -> Vec<Expr> {
    fib_local(FIB_SOURCE)
}

fn fib_local(flags: u32) -> Vec<Expr> {
    let load = Expr::FibType {
        flags,
        to: FIRST_REGISTER,
    };
    let local = RTN_LOCAL.to_ne_bytes().to_vec();
    vec![load, compare(CompareOp::Equal, local)]
}

/// `meta mark & bit != 0`
pub fn has_mark(bit: u32) -> Vec<Expr> {
    let load = Expr::Meta {
        key: MetaKey::Mark,
        to: FIRST_REGISTER,
    };
    vec![load, masked(bit), compare(CompareOp::NotEqual, vec![0; 4])]
}

/// `meta mark set meta mark | bit`
pub fn set_mark(bit: u32) -> Vec<Expr> {
    change_mark(!bit, bit)
}

/// `meta mark set meta mark & ~bit`
pub fn clear_mark(bit: u32) -> Vec<Expr> {
    change_mark(!bit, 0)
}

fn change_mark(mask: u32, xor: u32) -> Vec<Expr> {
    vec![
        Expr::Meta {
            key: MetaKey::Mark,
            to: FIRST_REGISTER,
        },
        Expr::Bitwise {
            from: FIRST_REGISTER,
            to: FIRST_REGISTER,
            mask: mask.to_ne_bytes().to_vec(),
            xor: xor.to_ne_bytes().to_vec(),
        },
        Expr::MetaSet {
            key: MetaKey::Mark,
            from: FIRST_REGISTER,
        },
    ]
}

/// `field . field @set`
pub fn in_set(fields: &[Field], set: &str) -> Vec<Expr> {
    lookup(fields, set, None)
}

/// `field . field vmap @map`
pub fn verdict_map(fields: &[Field], map: &str) -> Vec<Expr> {
    lookup(fields, map, Some(VERDICT_REGISTER))
}

/// Loads `fields`, looks them up in `map`; the value lands in [`FIRST_REGISTER`].
pub fn value_map(fields: &[Field], map: &str) -> Vec<Expr> {
    lookup(fields, map, Some(FIRST_REGISTER))
}

fn lookup(fields: &[Field], set: &str, to: Option<Register>) -> Vec<Expr> {
    let mut all = load_all(fields);
    all.push(Expr::Lookup {
        set: SetRef::Named(set.to_owned()),
        from: FIRST_REGISTER,
        to,
        invert: false,
    });
    all
}

/// Whether what lies at `from` is in a constant set.
pub fn in_anonymous(from: Register, set: AnonymousSet) -> Expr {
    Expr::Lookup {
        set: SetRef::Anonymous(Box::new(set)),
        from,
        to: None,
        invert: false,
    }
}

/// `numgen random mod N map { 0 : value, … }`: one of the values, into `to`.
pub fn pick_random(values: &[Vec<u8>], types: &[KeyType], to: Register) -> Vec<Expr> {
    use super::set::{Element, ElementData, SetData};
    if let [only] = values {
        return constants(only, types, to);
    }
    let elements = values.iter().enumerate().map(|(i, value)| Element {
        key: (i as u32).to_ne_bytes().to_vec(),
        data: Some(ElementData::Value(value.clone())),
    });
    let map = AnonymousSet {
        key: vec![KeyType::Integer],
        data: Some(SetData::Value(types.to_vec())),
        elements: elements.collect(),
    };
    vec![
        Expr::Random {
            modulus: values.len() as u32,
            to,
        },
        Expr::Lookup {
            set: SetRef::Anonymous(Box::new(map)),
            from: to,
            to: Some(to),
            invert: false,
        },
    ]
}

/// A concatenated constant, field by field: `nft list` would not recognise it otherwise.
fn constants(value: &[u8], types: &[KeyType], to: Register) -> Vec<Expr> {
    let mut at = 0;
    let mut field = |kind: &KeyType| {
        let (start, register) = (at, to + at as u32 / 4);
        at += kind.padded_len() as usize;
        let end = start + kind.row().1 as usize;
        let data = value.get(start..end).unwrap_or_default().to_vec();
        Expr::Immediate { to: register, data }
    };
    types.iter().map(&mut field).collect()
}

/// `dnat to ADDR . PORT`, both taken from registers that hold them side by side.
pub fn dnat(family: Family, from: Register) -> Expr {
    let address_words = if family == Family::Ip6 { 4 } else { 1 };
    Expr::Nat {
        kind: NatKind::Destination,
        family,
        address: from,
        port: Some(from + address_words),
        flags: 0,
    }
}

/// `masquerade fully-random`
pub fn masquerade() -> Expr {
    Expr::Masquerade {
        flags: NAT_RANDOM_FULLY,
    }
}

/// `reject` (port unreachable): allowed in input, forward and output.
pub fn reject() -> Expr {
    Expr::Reject(RejectWith::PortUnreachable)
}

/// `reject with tcp reset`: unlike an ICMP error this also ends a connection attempt whose first
/// packet is still being sent, as it is for a process on this machine.
pub fn reset() -> Expr {
    Expr::Reject(RejectWith::TcpReset)
}

/// `update @map { key : data timeout … }`
pub fn remember(set: &str, key: Register, data: Option<Register>, timeout: Duration) -> Expr {
    Expr::Dynset {
        set: set.to_owned(),
        op: DynsetOp::Update,
        key,
        data,
        timeout: Some(timeout),
    }
}

/// `delete @map { key }`
pub fn forget(set: &str, key: Register, data: Option<Register>) -> Expr {
    Expr::Dynset {
        set: set.to_owned(),
        op: DynsetOp::Delete,
        key,
        data,
        timeout: None,
    }
}

//! Encoders for nf_tables, conntrack, links and routes, and the one socket they are sent through.
//!
//! Everything that decides what bytes are sent is pure ([`Writer`], [`nft::Batch`], the `encode_*`
//! functions); everything that talks to the kernel goes through [`Socket`]. The crate knows nothing
//! of Kubernetes: services, pods and nodes are its callers' words.
//!
//! | module | what |
//! |---|---|
//! | [`message`] | netlink messages and attributes, written and read |
//! | [`socket`] | one request, one dump, one batch |
//! | [`namespace`] | sockets and work in another network namespace |
//! | [`nft`] | tables, chains, sets, rules, and how one rule set becomes another |
//! | [`conntrack`] | tracked connections: list, delete |
//! | [`route`] | links, addresses, routes, neighbours |
//! | [`monitor`] | news of other programs' changes |

pub mod conntrack;
pub mod error;
pub mod message;
pub mod monitor;
pub mod namespace;
pub mod nft;
pub mod route;
pub mod socket;

pub use error::Error;
pub use ipnet::IpNet;
pub use message::{Attributes, Message, Writer};
pub use monitor::{Group, Monitor};
pub use namespace::Namespace;
pub use socket::{Protocol, Socket};

//! Services to nftables rules.
//!
//! Observe → plan → execute: [`model`] reads Services and EndpointSlices into plain data,
//! [`topology`] decides which endpoints a node uses, [`render`] turns one Service into a piece of a
//! rule set, [`table`] puts the pieces together and computes what to change, [`run`](run()) commits
//! the change to our own nftables table whenever an informer reports one.
//!
//! Other programs' tables are never touched. While the API is away the rules stay as they are; a
//! fresh start puts the whole table in place in one atomic step. Upstream counterpart:
//! `pkg/proxy/nftables`.

pub mod conntrack;
pub mod health;
pub mod model;
pub mod render;
mod run;
pub mod settings;
pub mod table;
pub mod topology;

pub use health::Health;
pub use render::{render, render_base, render_service};
pub use run::{Error, run};
pub use settings::Settings;

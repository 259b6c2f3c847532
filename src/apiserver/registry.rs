//! The generic registry: every resource goes through this one implementation.
//!
//! Reads come out of the watch cache ([`cache`]) as bytes; writes walk one path ([`mod@write`]):
//! authorize → decode and default → mutating admission → prepare and validate → validating
//! admission → compare-and-set in the store. Invariant: nothing here names a kind. Differences
//! between kinds are fields of a row (`sampan_api::registry`), a row's strategy, or a hook
//! ([`hooks`]).

pub mod cache;
pub mod call;
pub mod codec;
pub mod expiry;
pub mod filter;
mod generate;
pub mod hooks;
pub mod map;
pub mod metadata;
pub mod object;
pub mod patching;
pub mod server;
pub mod storage;
#[cfg(test)]
mod tests;
pub mod token;
pub mod verbs;
pub mod write;

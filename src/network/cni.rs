//! The agent's side of the CNI plugin.

pub mod protocol;
pub mod server;
pub mod socket;

pub use server::{Server, serve};

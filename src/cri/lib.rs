//! The container runtime's protocols: CRI v1 and the parts of containerd's own API that image import needs.
//!
//! The code under `generated/` is made from the definitions under `proto/` and is committed, so that building
//! needs no protocol compiler. After changing a definition run
//! `cargo run --manifest-path src/cri/generate/Cargo.toml`.
//!
//! This crate knows the wire, not Kubernetes: [`connect`] opens a channel, [`Runtime`] and [`Images`] are the two
//! CRI services with deadlines and one error type, [`Containerd`] bundles the native services.

#[allow(clippy::all, clippy::pedantic, dead_code, unreachable_pub)]
#[path = "generated/generated.rs"]
#[rustfmt::skip]
mod generated;

mod clients;
mod connect;
mod error;
pub mod import;

pub use clients::{Containerd, Images, Runtime};
pub use connect::{connect, connect_lazy};
pub use error::Error;
pub use generated::{containerd, runtime};
pub use prost_types;
pub use tonic::transport::Channel;

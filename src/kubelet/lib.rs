//! Pods to containers: planner, workers, volumes, probes, status, node registration, streaming server.

pub mod lookup;

pub use lookup::{ContainerRef, Lookup, LookupError, SandboxRef};

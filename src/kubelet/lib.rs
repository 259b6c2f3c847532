//! Pods to containers: planner, workers, volumes, probes, status, node registration, streaming server.

pub mod admission;
pub mod backoff;
pub mod cgroup;
pub mod config;
pub mod context;
pub mod dirs;
pub mod env;
pub mod events;
pub mod expand;
pub mod fields;
pub mod handlers;
pub mod hooks;
pub mod hosts;
pub mod images;
pub mod inotify;
mod kubelet;
pub mod lookup;
pub mod machine;
pub mod manager;
pub mod mounts;
pub mod node;
pub mod objects;
pub mod observe;
pub mod plan;
pub mod pod;
pub mod probes;
pub mod qos;
pub mod relist;
pub mod resolv;
pub mod runtime;
pub mod server;
pub mod settings;
pub mod start;
pub mod state;
pub mod status;
pub mod text;
pub mod volumes;
pub mod worker;

#[cfg(test)]
mod fixture;

pub use kubelet::{Error, Kubelet, Parts};
pub use lookup::{ContainerRef, Lookup, LookupError, SandboxRef};
pub use settings::Settings;

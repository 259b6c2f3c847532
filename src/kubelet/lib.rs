//! Pods to containers: planner, workers, volumes, probes, status, node registration, streaming server.
//!
//! # How a pod is run
//!
//! [`manager`] hears of pods from the API and of containers from the runtime ([`relist`]) and keeps one
//! [`worker`] per pod uid. A worker does three things over and over: it *observes* (the object, what the
//! runtime holds: [`observe`], what the probes say: [`probes`]), asks the *planner* ([`plan::plan_pod`], a
//! pure function that also renders the [`status`]), and *executes* the actions that come back. Nothing polls:
//! a worker sleeps until a change arrives, a job of its own ends or the time comes that the planner named.
//!
//! Pure, and tested without a runtime: [`plan`], [`status`], [`config`] (what the runtime is told), [`env`],
//! [`resolv`], [`hosts`], [`fields`], [`admission`], [`backoff`], [`qos`], [`node::status`],
//! [`volumes::payload`]. Effects: [`worker`], [`start`], [`mounts`], [`volumes`], [`images`], [`handlers`],
//! [`objects`], [`node`], [`log_rotation`].
//!
//! # Where to change what
//!
//! - when a container starts, stops or restarts: `plan/containers.rs`; the way down: `plan/stop.rs`
//! - what a pod's status says: `status/`; what the node's says: `node/status.rs`
//! - a kind of volume: a variant of [`volumes::Work`] and a branch in `volumes/resolve.rs`
//! - what a container is started with: `config/` and `start.rs`
//!
//! [`runtime`] supervises containerd, [`cgroup`] and [`machine`] deal with the kernel, [`server`] answers on
//! port 10250 and sees pods through [`lookup`] only.

pub mod admission;
pub mod arguments;
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
pub mod image_gc;
pub mod images;
pub mod inotify;
mod kubelet;
pub mod log_rotation;
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
pub mod static_pods;
pub mod status;
pub mod storage_limits;
pub mod text;
pub mod volumes;
pub mod worker;

#[cfg(test)]
mod fixture;

pub use kubelet::{Error, Kubelet, Parts};
pub use lookup::{ContainerRef, Lookup, LookupError, SandboxRef};
pub use settings::Settings;

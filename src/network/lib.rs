//! Pod network: CNI plugin, addresses, routes, masquerade.
//!
//! The agent's process does all the work. The runtime calls our executable as a CNI plugin, which
//! passes the call on through a private socket ([`shim`] → [`cni`]): [`ipam`] gives the pod an
//! address, [`attach`] makes its link. [`plan`] says what a node needs (addresses, routes to other
//! nodes), [`rules`] what its nftables table holds, [`apply`] makes it so, [`run`](run()) does that
//! whenever the API reports a change.
//!
//! A pod has a point-to-point link to its node and a route through it; there is no bridge, so all
//! traffic between pods is routed and meets the service rules. Every change outside the data
//! directory is in the host journal; [`undo`] takes it back.

pub mod apply;
pub mod attach;
pub mod cni;
pub mod forwarding;
pub mod install;
pub mod ipam;
pub mod names;
pub mod plan;
pub mod rules;
mod run;
pub mod settings;
pub mod shim;
pub mod undo;
mod watch;

pub use install::install;
pub use run::{Error, Health, Network, run};
pub use settings::{Paths, Settings};
pub use undo::HostNetwork;

#[cfg(test)]
mod tests;

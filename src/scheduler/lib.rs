//! Decides on which node each pod runs.
//!
//! [`decide`](decide::decide) is pure: a pod and a [`Snapshot`](snapshot::Snapshot) in, a node or the
//! reasons for none out. [`plugins`] judge and score; each is a row of one table.
//! [`scheduler`] keeps the snapshot from the informers, takes pods from the [`queue`] and carries
//! out what was decided; a pod that got no node waits there until an event could change that.
//! Upstream counterpart: `pkg/scheduler`.

pub mod decide;
pub mod diagnosis;
mod effects;
mod facts;
pub mod node_info;
pub mod plugins;
pub mod pod_info;
pub mod preemption;
pub mod queue;
pub mod resources;
pub mod scheduler;
pub mod selector;
pub mod snapshot;
pub mod volumes;

pub use scheduler::{Settings, run};

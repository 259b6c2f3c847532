//! The Kubernetes vocabulary, pure: registry table, schemas, objects, status, selectors, quantities,
//! patches, defaulting, validation, codecs, table columns.
//!
//! Invariant: no `async`, no clock, no randomness, no I/O. Time and seeds are arguments.

pub mod options;
pub mod resource;
pub mod status;
pub mod user;

pub use options::Options;
pub use resource::{GroupVersionKind, GroupVersionResource, Target, Verb};
pub use status::{Reason, Status};
pub use user::UserInfo;

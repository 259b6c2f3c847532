//! The Kubernetes vocabulary, pure: registry table, schemas, objects, status, selectors, quantities,
//! patches, defaulting, validation, codecs, table columns.
//!
//! Invariant: no `async`, no clock, no randomness, no I/O. Time and seeds are arguments.

pub mod cel;
pub mod convert;
pub mod custom;
pub mod defaults;
pub mod field;
pub mod kinds;
pub mod managed;
pub mod meta;
pub mod names;
pub mod options;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod registry;
pub mod resource;
pub mod schema;
pub mod selector;
pub mod status;
pub mod strategy;
pub mod table;
pub mod time;
pub mod user;
pub(crate) mod validate;

pub use field::{ErrorList, FieldError, Path};
pub use meta::Meta;
pub use options::Options;
pub use quantity::Quantity;
pub use registry::{Registry, ResourceDef, Scope};
pub use resource::{GroupVersionKind, GroupVersionResource, Target, Verb};
pub use selector::{FieldSelector, Selector};
pub use status::{Reason, Status};
pub use strategy::Strategy;
pub use user::UserInfo;

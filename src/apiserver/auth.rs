//! Who makes a request, and whether they may: authentication and authorization.
//!
//! [`authenticator`] turns credentials into a `UserInfo`; [`rbac`], [`node`] and [`union`] decide.
//! Both answer from memory. [`bootstrap`] holds the default roles and keeps them in place.

pub mod bootstrap;
pub mod node;
pub mod rbac;
pub mod source;
pub mod union;

pub use source::{ChangeHandler, ObjectChange, ObjectSource};

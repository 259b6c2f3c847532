//! Who makes a request, and whether they may: authentication and authorization.

pub mod source;

pub use source::{ChangeHandler, ObjectChange, ObjectSource};

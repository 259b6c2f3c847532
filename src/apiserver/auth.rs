//! Who makes a request, and whether they may: authentication and authorization.
//!
//! [`authenticator`] turns credentials into a `UserInfo`; [`rbac`], [`node`] and [`union`] decide.
//! Both answer from memory. [`bootstrap`] holds the default roles and keeps them in place.

pub mod authenticator;
pub mod bootstrap;
pub mod impersonation;
pub mod node;
pub mod rbac;
pub mod service_account;
pub mod source;
pub mod token_file;
pub mod union;

pub use authenticator::{Authenticator, FrontProxy};
pub use service_account::ServiceAccountTokens;
pub use source::{ChangeHandler, ObjectChange, ObjectSource};
pub use token_file::StaticTokens;

//! The API server: filters, generic registry, admission, watch cache, discovery, subresources.

pub mod auth;
pub mod encryption;
pub mod inprocess;
pub mod registry;
pub mod request;

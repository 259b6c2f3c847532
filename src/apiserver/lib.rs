//! The API server: filters, generic registry, admission, watch cache, discovery, subresources.

pub mod admission;
mod again;
pub mod allocate;
pub mod auth;
pub mod bootstrap;
pub(crate) mod conditions;
pub(crate) mod custom;
pub mod discovery;
pub mod encryption;
pub mod health;
pub mod http;
pub mod inprocess;
pub mod metrics;
pub mod openapi;
pub mod plain;
pub mod registry;
pub mod request;
pub mod streams;
pub mod version;

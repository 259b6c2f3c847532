//! The one integration-test binary: modules by behaviour.
#![allow(clippy::unwrap_used)]

mod layers;
mod licences;
mod support;
mod two_nodes;

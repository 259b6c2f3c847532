//! The one integration-test binary: modules by behaviour.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod abuse;
mod crash;
mod faults;
mod fuzz;
mod layers;
mod licences;
mod rolling;
mod rows;
mod support;
mod two_nodes;

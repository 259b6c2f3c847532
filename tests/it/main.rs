//! The one integration-test binary: modules by behaviour.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod abuse;
mod churn;
mod clients;
mod crash;
mod custom;
mod faults;
mod fuzz;
mod install;
mod join;
mod layers;
mod licences;
mod node;
mod node_churn;
mod rolling;
mod rows;
mod support;
mod symptoms;
mod two_nodes;
mod workloads;

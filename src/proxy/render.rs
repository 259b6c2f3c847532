//! Services to rules. Pure.
//!
//! The table's fixed part ([`render_base`]) finds out by look-ups in maps which Service a packet is
//! for, so the number of Services does not slow packets down; each Service adds elements to those
//! maps and chains of its own ([`render_service`]).
//!
//! ```text
//! nat prerouting/output → services: ClusterIP from outside the cluster → mark
//!                          address . protocol . port → @service-ips → Service's chain
//!                          protocol . port (local address) → @service-nodeports → external chain
//!   external chain: mark (or, for policy Local: pods and this node as if inside) → Service's chain
//!   Service's chain: pick an endpoint, dnat
//! filter input/forward/output → @no-endpoint-*: reject or drop; other ports of a ClusterIP: reject
//! nat postrouting → masquerade what is marked, and pods that reach themselves
//! ```

mod base;
mod names;
mod service;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_netlink::nft::Ruleset;

pub use base::render_base;
pub use service::render_service;

use crate::model::ServiceName;
use crate::settings::Node;
use crate::table::Assembly;

/// A Service's slices, by Service.
pub type Slices = BTreeMap<ServiceName, Vec<Arc<EndpointSlice>>>;

/// The whole table for these Services.
pub fn render(services: &[Arc<Service>], slices: &Slices, node: &Node) -> Ruleset {
    let mut assembly = Assembly::default();
    let none = Vec::new();
    let fragments = services.iter().map(|service| {
        let name = ServiceName::of(&service.metadata);
        let slices = slices.get(&name).unwrap_or(&none);
        (name, render_service(service, slices, node))
    });
    assembly.update(fragments.collect());
    let mut whole = render_base(node);
    assembly.add_to(&mut whole);
    whole
}

#[cfg(test)]
mod tests;

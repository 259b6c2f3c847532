//! Which tracked UDP flows a change of Services has made stale. Pure, but for the deleting itself.
//!
//! TCP notices by itself that its peer is gone; a UDP client that keeps sending would be sent to a
//! vanished endpoint, or past the Service, for as long as it does not pause.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use sampan_netlink::conntrack::{Conntrack, Flow};
use sampan_netlink::nft::Family;
use sampan_netlink::nft::build::UDP;

use crate::model::{Endpoint, ServicePort};

type Target = (IpAddr, u16);

/// Where UDP flows to changed Services may go now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UdpServices {
    addresses: HashMap<Target, HashSet<Target>>,
    node_ports: HashMap<u16, HashSet<Target>>,
}

impl UdpServices {
    /// Adds a changed port with its endpoints. One without endpoints is left alone: its flows are
    /// refused by the filter rules, and it may come back.
    pub fn add(&mut self, port: &ServicePort, endpoints: &[Endpoint]) {
        let serving = endpoints.iter().filter(|e| e.ready || e.serving);
        let targets: HashSet<_> = serving.map(|e| (e.address, e.port)).collect();
        if port.protocol != UDP || targets.is_empty() {
            return;
        }
        let own = [port.cluster_ip];
        let addresses = own
            .iter()
            .chain(&port.external_ips)
            .chain(&port.load_balancer_ips);
        for address in addresses {
            self.addresses
                .insert((*address, port.port), targets.clone());
        }
        if let Some(node_port) = port.node_port {
            self.node_ports.insert(node_port, targets);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// A flow to a Service whose answers come from something that is no endpoint of it.
    pub fn is_stale(&self, flow: &Flow, node_addresses: &[IpAddr]) -> bool {
        if flow.original.protocol != UDP {
            return false;
        }
        let asked = (flow.original.destination, flow.original.destination_port);
        let answers = (flow.reply.source, flow.reply.source_port);
        if let Some(targets) = self.addresses.get(&asked) {
            return !targets.contains(&answers);
        }
        let redirected = answers != asked;
        let here = node_addresses.contains(&asked.0);
        let targets = self.node_ports.get(&asked.1);
        (redirected || here) && targets.is_some_and(|targets| !targets.contains(&answers))
    }
}

/// Deletes the stale flows; returns how many there were.
pub fn clean(
    kernel: &mut Conntrack,
    family: Family,
    services: &UdpServices,
    node_addresses: &[IpAddr],
) -> Result<usize, sampan_netlink::Error> {
    if services.is_empty() {
        return Ok(0);
    }
    let stale = kernel.flows(family == Family::Ip6, |flow| {
        services.is_stale(flow, node_addresses)
    })?;
    for flow in &stale {
        kernel.delete(flow)?;
    }
    Ok(stale.len())
}

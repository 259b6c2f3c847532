//! Gives each node its part of the cluster's pod addresses.
//!
//! One worker, which waits until the cache shows what it gave before it gives again: two nodes never
//! get the same range.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use sampan_client::{Lister, ObjectKey};
use serde_json::json;

use crate::runtime::{Action, Controller, EventNote, Form, Plan, Watches};
use crate::{Settings, owner};

pub struct NodeIpamController {
    nodes: Lister<Node>,
    ranges: Vec<(IpNet, u8)>,
}

pub struct Observed {
    node: Arc<Node>,
    used: Vec<IpNet>,
    /// Ranges of the cluster with the prefix length of a node's part.
    ranges: Vec<(IpNet, u8)>,
}

impl Controller for NodeIpamController {
    const NAME: &'static str = "node-ipam-controller";
    const IDENTITY: &'static str = "node-controller";
    const COMPONENT: &'static str = "cidrAllocator";
    const WORKERS: usize = 1;

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self {
        let mask = |range: &IpNet| match range {
            IpNet::V4(_) => settings.node_mask_v4,
            IpNet::V6(_) => settings.node_mask_v6,
        };
        let ranges = settings.cluster_cidrs.iter();
        Self {
            nodes: watches.primary::<Node>(),
            ranges: ranges.map(|range| (*range, mask(range))).collect(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let node = self.nodes.get_key(key)?;
        if self.ranges.is_empty() || owner::is_deleting(&node.metadata) || has_ranges(&node) {
            return None;
        }
        let used = self
            .nodes
            .list(None)
            .iter()
            .flat_map(|node| ranges_of(node))
            .collect();
        Some(Observed {
            node,
            used,
            ranges: self.ranges.clone(),
        })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let node = &*observed.node;
        let parts: Option<Vec<IpNet>> = observed
            .ranges
            .iter()
            .map(|(range, mask)| first_free(*range, *mask, &observed.used))
            .collect();
        let Some(parts) = parts else {
            let name = owner::name(&node.metadata);
            let message = format!("Node {name} status is now: CIDRNotAvailable");
            plan.events
                .push(EventNote::normal(node, "CIDRNotAvailable", message));
            return plan;
        };
        let texts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        let change = json!({"spec": {"podCIDR": texts[0], "podCIDRs": texts}});
        let key = ObjectKey::of(&node.metadata);
        plan.push(Action::write::<Node>(&key, Form::Strategic, change));
        plan
    }
}

fn has_ranges(node: &Node) -> bool {
    !ranges_of(node).is_empty()
}

fn ranges_of(node: &Node) -> Vec<IpNet> {
    let Some(spec) = &node.spec else {
        return Vec::new();
    };
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    all.filter_map(|text| text.parse().ok()).collect()
}

/// The first part of the range that overlaps none of the used ones.
fn first_free(range: IpNet, mask: u8, used: &[IpNet]) -> Option<IpNet> {
    let mut candidate = part(range, range.network(), mask)?;
    loop {
        let overlaps = |taken: &&IpNet| candidate.contains(*taken) || taken.contains(&candidate);
        let Some(taken) = used.iter().find(overlaps) else {
            return Some(candidate);
        };
        let last = candidate.broadcast().max(taken.broadcast());
        candidate = part(range, next(last)?, mask)?;
    }
}

/// The part that begins at this address, if it lies within the range.
fn part(range: IpNet, start: IpAddr, mask: u8) -> Option<IpNet> {
    let part = match start {
        IpAddr::V4(start) => IpNet::V4(Ipv4Net::new(start, mask).ok()?.trunc()),
        IpAddr::V6(start) => IpNet::V6(Ipv6Net::new(start, mask).ok()?.trunc()),
    };
    range.contains(&part).then_some(part)
}

fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            let next = u32::from(address).checked_add(1)?;
            Some(Ipv4Addr::from(next).into())
        }
        IpAddr::V6(address) => {
            let next = u128::from(address).checked_add(1)?;
            Some(Ipv6Addr::from(next).into())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_gap_is_taken() {
        let range = net("10.42.0.0/16");
        let used = [
            net("10.42.0.0/24"),
            net("10.42.2.0/24"),
            net("10.42.1.128/25"),
        ];
        assert_eq!(first_free(range, 24, &[]), Some(net("10.42.0.0/24")));
        assert_eq!(first_free(range, 24, &used), Some(net("10.42.3.0/24")));
        assert_eq!(first_free(range, 24, &used[..2]), Some(net("10.42.1.0/24")));
        let all = [range];
        assert_eq!(first_free(range, 24, &all), None);
        let range = net("fd00::/56");
        let used = [net("fd00::/64")];
        assert_eq!(first_free(range, 64, &used), Some(net("fd00:0:0:1::/64")));
    }
}

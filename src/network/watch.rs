//! News of what other programs do to the network that pods rely on.

use sampan_netlink::route::Event;
use sampan_netlink::{Group, Monitor, Protocol};

use crate::names::is_host_link;
use crate::plan::NodePlan;
use crate::run::Wake;
use crate::settings::{NODE_LINK, NODE_LINK_PEER, ROUTE_PROTOCOL};

const LINK_GROUPS: &[Group] = &[
    Group::Link,
    Group::Ipv4Address,
    Group::Ipv4Route,
    Group::Ipv6Address,
    Group::Ipv6Route,
];

/// Without it the network is right until somebody else breaks it.
pub(crate) struct Watch {
    links: Option<Monitor>,
    tables: Option<Monitor>,
}

impl Watch {
    pub(crate) fn open() -> Self {
        let open = |protocol, groups: &[Group]| {
            Monitor::open(protocol, groups)
                .inspect_err(|error| {
                    tracing::warn!(%error, "cannot watch for other programs' changes of the network");
                })
                .ok()
        };
        Self {
            links: open(Protocol::Route, LINK_GROUPS),
            tables: open(Protocol::Netfilter, &[Group::Nftables]),
        }
    }

    /// Returns when something has changed that the plan in place relies on.
    pub(crate) async fn changed(&mut self, plan: Option<&NodePlan>) -> Wake {
        loop {
            let (failed, wake) = tokio::select! {
                failed = changed(&mut self.links, plan, true) => (failed, Wake::Links),
                failed = changed(&mut self.tables, plan, false) => (failed, Wake::Tables),
            };
            if !failed {
                return wake;
            }
            match wake {
                Wake::Tables => self.tables = None,
                _ => self.links = None,
            }
        }
    }
}

/// Whether the subscription broke.
async fn changed(monitor: &mut Option<Monitor>, plan: Option<&NodePlan>, links: bool) -> bool {
    let Some(open) = monitor else {
        return std::future::pending().await;
    };
    let interesting = |message: &sampan_netlink::Message<'_>| {
        let Some(plan) = plan else { return false };
        !links || Event::of(message).is_some_and(|event| matters(&event, plan))
    };
    open.changed(interesting).await.is_err()
}

/// Pods' own links come and go all the time and are the plugin's business. Of others' links those
/// that (re)appear matter: routes through them have vanished without a word.
fn matters(event: &Event, plan: &NodePlan) -> bool {
    let ours = |name: &str| name == NODE_LINK || name == NODE_LINK_PEER;
    match event {
        Event::LinkGone(link) => ours(&link.name),
        Event::Link(link) if ours(&link.name) => !link.up,
        Event::Link(link) => link.up && !link.loopback && !is_host_link(&link.name),
        Event::AddressGone(address) => plan.gateways.contains(&address.network.addr()),
        Event::RouteGone(route) => {
            let wanted = plan.peers.get(&route.destination).copied() == route.gateway;
            let services = plan.service_cidrs.contains(&route.destination);
            route.protocol == ROUTE_PROTOCOL && (wanted && route.gateway.is_some() || services)
        }
        Event::Address(_) | Event::Route(_) => false,
    }
}

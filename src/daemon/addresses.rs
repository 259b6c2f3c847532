//! The node's addresses while it runs: a lease that is renewed with another address, a cable in another network.

use std::net::IpAddr;
use std::time::Duration;

use sampan_netlink::{Group, Monitor, Protocol};

use crate::host_facts;

/// Changes come in bursts: the old address goes, the new one comes, then its routes.
const SETTLE: Duration = Duration::from_millis(500);

/// News of this machine's addresses.
pub(crate) struct Addresses(Option<Monitor>);

impl Addresses {
    /// Addresses that were given in the settings do not change.
    pub(crate) fn follow(are_given: bool) -> Self {
        if are_given {
            return Self(None);
        }
        let groups = [
            Group::Link,
            Group::Ipv4Address,
            Group::Ipv4Route,
            Group::Ipv6Address,
        ];
        match Monitor::open(Protocol::Route, &groups) {
            Ok(monitor) => Self(Some(monitor)),
            Err(error) => {
                tracing::warn!(%error, "a change of this machine's address will not be noticed");
                Self(None)
            }
        }
    }

    /// Returns the new addresses once those that are known are no longer this machine's.
    pub(crate) async fn changed(&mut self, known: &[IpAddr]) -> Vec<IpAddr> {
        let Some(monitor) = &mut self.0 else {
            return std::future::pending().await;
        };
        loop {
            if let Err(error) = monitor.changed(|_| true).await {
                tracing::warn!(%error, "cannot hear of changes of this machine's address");
                return std::future::pending().await;
            }
            tokio::time::sleep(SETTLE).await;
            if let Some(address) = host_facts::moved_address(known) {
                return vec![address];
            }
        }
    }
}

//! The cluster's DNS server, one on every node, in-process.
//!
//! [`answer`](answer::answer) is pure: a question and the [`Records`](records::Records) in, a reply
//! out. [`records`] are kept from the informers, [`server`] speaks UDP and TCP, [`forward`] relays
//! what is not the cluster's to the host's resolvers, [`publish`] makes this server an endpoint of
//! the `kube-dns` Service. The names are those of the Kubernetes DNS specification 1.1.0, replies
//! look like CoreDNS's.

pub mod answer;
pub mod forward;
pub mod message;
pub mod name;
pub mod publish;
pub mod records;
pub mod server;

use std::net::SocketAddr;
use std::sync::{Arc, RwLock};

use sampan_client::{Client, Informers};
use sampan_util::{Shutdown, task};

use crate::forward::{Forwarder, Upstreams};
use crate::records::Records;
use crate::server::Server;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to answer; the addresses may appear later.
    pub listen: Vec<SocketAddr>,
    /// The cluster's domain, `cluster.local`.
    pub domain: String,
    /// Who is asked about everything else.
    pub upstreams: Upstreams,
    /// Addresses under which queries come back to us (the Service's); never asked as upstreams.
    pub own_addresses: Vec<std::net::IpAddr>,
    pub node_name: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{domain}` is no domain name: {reason}")]
    Domain { domain: String, reason: String },
}

/// Answers queries until shutdown.
pub async fn run(
    informers: Informers,
    client: Client,
    settings: Settings,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let records = Records::new(&settings.domain).map_err(|reason| Error::Domain {
        domain: settings.domain.clone(),
        reason: reason.to_string(),
    })?;
    let records = Arc::new(RwLock::new(records));
    records::follow(&informers, &records);
    let mut own = settings.own_addresses.clone();
    own.extend(settings.listen.iter().map(SocketAddr::ip));
    let forwarder = Forwarder::new(settings.upstreams.clone(), own);
    let server = Arc::new(Server::new(records.clone(), forwarder));
    tokio::select! {
        () = informers.synced() => {}
        () = shutdown.wait() => return Ok(()),
    }
    let tasks: Vec<_> = settings
        .listen
        .iter()
        .map(|address| {
            let (server, address, shutdown) = (server.clone(), *address, shutdown.clone());
            task::spawn("dns-server", async move {
                server.serve(address, shutdown).await
            })
        })
        .collect();
    tokio::select! {
        () = server.serving(settings.listen.len()) => {
            publish::run(&informers, &client, &settings, &shutdown).await;
        }
        () = shutdown.wait() => {}
    }
    for task in tasks {
        if let Err(error) = task.await {
            tracing::debug!(%error, "a DNS listener did not end by itself");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

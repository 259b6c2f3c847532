//! Makes the server of this node an endpoint of the `kube-dns` Service.
//!
//! One EndpointSlice per node and address family, written by the node's own server and owned by its
//! Node object. Its hint names the node, so that pods ask the server beside them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sampan_client::{Client, Error, Informers, Lister};
use sampan_util::{Backoff, Shutdown};
use tokio::sync::Notify;

use crate::Settings;

pub const NAMESPACE: &str = "kube-system";
pub const SERVICE: &str = "kube-dns";
const MANAGER: &str = "sampan-dns";
/// How long saying goodbye may take.
const FAREWELL: Duration = Duration::from_secs(2);
const PORTS: [(&str, &str); 2] = [("dns", "UDP"), ("dns-tcp", "TCP")];

/// Keeps the slices as they should be until shutdown, then takes the endpoint out.
pub async fn run(informers: &Informers, client: &Client, settings: &Settings, shutdown: &Shutdown) {
    let publisher = Publisher {
        client,
        slices: informers.lister(),
        settings,
    };
    let changed = Arc::new(Notify::new());
    let (notify, node) = (changed.clone(), settings.node_name.clone());
    publisher.slices.on_change(move |change| {
        let metadata = &change.object().metadata;
        let ours = metadata
            .name
            .as_deref()
            .is_some_and(|name| name.starts_with(&slice_prefix(&node)));
        if ours && metadata.namespace.as_deref() == Some(NAMESPACE) {
            notify.notify_one();
        }
    });
    tokio::select! {
        () = publisher.keep(&changed) => {}
        () = shutdown.wait() => {}
    }
    if tokio::time::timeout(FAREWELL, publisher.withdraw())
        .await
        .is_err()
    {
        tracing::debug!("no time to take this node's DNS out of its Service");
    }
}

fn slice_prefix(node: &str) -> String {
    format!("{SERVICE}-{node}")
}

struct Publisher<'a> {
    client: &'a Client,
    slices: Lister<EndpointSlice>,
    settings: &'a Settings,
}

impl Publisher<'_> {
    async fn keep(&self, changed: &Notify) {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        let mut failures = 0;
        loop {
            match self.publish(true).await {
                Ok(()) => {
                    failures = 0;
                    changed.notified().await;
                }
                Err(error) => {
                    // At the very start the Node may not be registered yet.
                    tracing::debug!(%error, "cannot publish this node's DNS yet");
                    tokio::time::sleep(backoff.delay(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    async fn withdraw(&self) {
        if let Err(error) = self.publish(false).await {
            tracing::debug!(%error, "cannot take this node's DNS out of its Service");
        }
    }

    async fn publish(&self, ready: bool) -> Result<(), Error> {
        let mut uid = None;
        for ipv6 in [false, true] {
            let addresses = self.addresses(ipv6);
            if addresses.is_empty() {
                continue;
            }
            let name = slice_name(&self.settings.node_name, ipv6);
            let current = self.slices.get(Some(NAMESPACE), &name);
            let owner = match uid.clone() {
                Some(uid) => uid,
                None => self.node_uid(current.as_deref()).await?,
            };
            uid = Some(owner.clone());
            let wanted = slice(&self.settings.node_name, &owner, &addresses, ipv6, ready);
            self.write(current, wanted).await?;
        }
        Ok(())
    }

    fn addresses(&self, ipv6: bool) -> Vec<SocketAddr> {
        self.settings
            .listen
            .iter()
            .filter(|address| address.is_ipv6() == ipv6)
            .copied()
            .collect()
    }

    /// The uid of the Node; a slice that has it already saves the question.
    async fn node_uid(&self, current: Option<&EndpointSlice>) -> Result<String, Error> {
        let owners = current.and_then(|slice| slice.metadata.owner_references.as_ref());
        if let Some(owner) = owners.and_then(|owners| owners.first()) {
            return Ok(owner.uid.clone());
        }
        let node = self
            .client
            .get::<Node>(None, &self.settings.node_name)
            .await?;
        Ok(node.metadata.uid.unwrap_or_default())
    }

    async fn write(
        &self,
        current: Option<Arc<EndpointSlice>>,
        mut wanted: EndpointSlice,
    ) -> Result<(), Error> {
        match current {
            Some(current) if says_the_same(&current, &wanted) => Ok(()),
            Some(current) => {
                wanted
                    .metadata
                    .resource_version
                    .clone_from(&current.metadata.resource_version);
                self.client.update(&wanted).await.map(drop)
            }
            None => self.client.create(&wanted).await.map(drop),
        }
    }
}

fn slice_name(node: &str, ipv6: bool) -> String {
    let suffix = if ipv6 { "-ipv6" } else { "" };
    format!("{}{suffix}", slice_prefix(node))
}

fn says_the_same(current: &EndpointSlice, wanted: &EndpointSlice) -> bool {
    let labels = |slice: &EndpointSlice| slice.metadata.labels.clone().unwrap_or_default();
    current.endpoints == wanted.endpoints
        && current.ports == wanted.ports
        && labels(current) == labels(wanted)
        && current.metadata.owner_references == wanted.metadata.owner_references
}

fn slice(
    node: &str,
    uid: &str,
    addresses: &[SocketAddr],
    ipv6: bool,
    ready: bool,
) -> EndpointSlice {
    let endpoints = addresses.iter().map(|address| Endpoint {
        addresses: vec![address.ip().to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(ready),
            terminating: Some(!ready),
        }),
        hints: Some(EndpointHints {
            for_nodes: Some(vec![ForNode {
                name: node.to_owned(),
            }]),
            ..EndpointHints::default()
        }),
        node_name: Some(node.to_owned()),
        ..Endpoint::default()
    });
    let port = addresses.first().map_or(53, SocketAddr::port);
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(node, ipv6)),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(BTreeMap::from([
                ("kubernetes.io/service-name".to_owned(), SERVICE.to_owned()),
                (
                    "endpointslice.kubernetes.io/managed-by".to_owned(),
                    MANAGER.to_owned(),
                ),
                ("k8s-app".to_owned(), SERVICE.to_owned()),
            ])),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.to_owned(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        address_type: if ipv6 { "IPv6" } else { "IPv4" }.to_owned(),
        endpoints: Some(endpoints.collect()),
        ports: Some(
            PORTS
                .iter()
                .map(|(name, protocol)| EndpointPort {
                    name: Some((*name).to_owned()),
                    port: Some(i32::from(port)),
                    protocol: Some((*protocol).to_owned()),
                    ..EndpointPort::default()
                })
                .collect(),
        ),
    }
}

/// Makes the Service if it is not there. Called where the cluster is set up.
pub async fn ensure_service(client: &Client, cluster_ips: &[IpAddr]) -> Result<(), Error> {
    match client.get::<Service>(Some(NAMESPACE), SERVICE).await {
        Ok(_) => return Ok(()),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    match client.create(&service(cluster_ips)).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// No selector: the slices come from the servers themselves.
pub fn service(cluster_ips: &[IpAddr]) -> Service {
    let addresses: Vec<String> = cluster_ips.iter().map(IpAddr::to_string).collect();
    let ports = PORTS.iter().map(|(name, protocol)| ServicePort {
        name: Some((*name).to_owned()),
        port: 53,
        protocol: Some((*protocol).to_owned()),
        target_port: Some(IntOrString::Int(53)),
        ..ServicePort::default()
    });
    Service {
        metadata: ObjectMeta {
            name: Some(SERVICE.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(BTreeMap::from([
                ("k8s-app".to_owned(), SERVICE.to_owned()),
                (
                    "kubernetes.io/cluster-service".to_owned(),
                    "true".to_owned(),
                ),
                ("kubernetes.io/name".to_owned(), "CoreDNS".to_owned()),
            ])),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: addresses.first().cloned(),
            cluster_ips: (!addresses.is_empty()).then_some(addresses),
            ports: Some(ports.collect()),
            traffic_distribution: Some("PreferSameNode".to_owned()),
            type_: Some("ClusterIP".to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

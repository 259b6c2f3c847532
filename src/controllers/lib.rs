//! The controllers, one file each, on one runtime.
//!
//! To add a controller: one file with a [`runtime::Controller`] and one line in [`CONTROLLERS`].
//! [`runtime`] is the loop, [`runtime::plan`] what a reconcile may ask for; [`owner`], [`labels`] and
//! [`json`] are what several controllers need.

mod affinity;
pub mod aggregation;
mod backends;
pub mod cronjob;
pub mod csr;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod endpoints;
pub mod endpointslice;
#[cfg(test)]
mod fixtures;
pub mod garbage;
mod history;
pub mod job;
pub mod json;
pub mod labels;
pub mod mirroring;
pub mod namespace;
pub mod nodeipam;
pub mod nodelifecycle;
pub mod nodename;
pub mod noderole;
pub mod owner;
pub mod podgc;
pub mod pods;
pub mod protection;
pub mod replicaset;
pub mod rootca;
pub mod runtime;
pub mod serviceaccount;
pub mod statefulset;
pub mod tainteviction;
pub mod ttl;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ipnet::IpNet;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;
use sampan_api::Registry;
use sampan_client::{Client, Informers};
use sampan_util::{Clock, Shutdown, task};

use aggregation::AggregationController;
use cronjob::CronJobController;
use daemonset::DaemonSetController;
use deployment::DeploymentController;
use disruption::DisruptionController;
use endpoints::EndpointsController;
use endpointslice::EndpointSliceController;
use job::JobController;
use mirroring::MirroringController;
use nodeipam::NodeIpamController;
use nodelifecycle::NodeLifecycleController;
use nodename::NodeNameController;
use noderole::NodeRoleController;
use podgc::PodGarbageCollector;
use protection::{ClaimProtection, ClassProtection, VolumeProtection};
use replicaset::PodSetController;
use rootca::RootCaPublisher;
use runtime::metrics::Metrics;
use runtime::{Context, Entry, entry};
use serviceaccount::ServiceAccountController;
use statefulset::StatefulSetController;
use tainteviction::TaintEvictionController;
use ttl::TtlController;

/// Every controller, in the order in which they start.
pub const CONTROLLERS: &[Entry] = &[
    Entry {
        name: namespace::NAME,
        run: |context| namespace::run(context).boxed(),
    },
    Entry {
        name: garbage::NAME,
        run: |context| garbage::run(context).boxed(),
    },
    entry::<ServiceAccountController>(),
    entry::<RootCaPublisher>(),
    entry::<NodeIpamController>(),
    entry::<NodeLifecycleController>(),
    entry::<TaintEvictionController>(),
    entry::<PodGarbageCollector>(),
    entry::<AggregationController>(),
    entry::<csr::CertificateController>(),
    entry::<NodeNameController>(),
    entry::<NodeRoleController>(),
    entry::<DeploymentController>(),
    entry::<PodSetController<ReplicaSet>>(),
    entry::<PodSetController<ReplicationController>>(),
    entry::<DaemonSetController>(),
    entry::<StatefulSetController>(),
    entry::<JobController>(),
    entry::<CronJobController>(),
    entry::<TtlController>(),
    entry::<DisruptionController>(),
    entry::<ClaimProtection>(),
    entry::<VolumeProtection>(),
    entry::<ClassProtection>(),
    entry::<EndpointSliceController>(),
    entry::<EndpointsController>(),
    entry::<MirroringController>(),
];

/// What controllers need to know about the cluster.
#[derive(Clone)]
pub struct Settings {
    /// Where the figures of all controllers go.
    pub metrics: Metrics,
    /// Names of controllers that are not to run.
    pub disabled: Vec<String>,
    /// The API server's rows; those of custom resources come and go in it.
    pub registry: Arc<Registry>,
    /// The certificate by which pods know the API server.
    pub root_ca_pem: String,
    /// Address ranges of pods, at most one of each family.
    pub cluster_cidrs: Vec<IpNet>,
    /// Lengths of the prefixes that nodes get of them.
    pub node_mask_v4: u8,
    pub node_mask_v6: u8,
    /// The wall clock; tests set it.
    pub clock: Clock,
    /// What certificate signing requests are signed with.
    pub authorities: Option<csr::Authorities>,
    /// Names of the nodes that run a control plane.
    pub control_plane_nodes: Vec<String>,
    /// A node that was silent for so long is no longer Ready.
    pub node_grace_period: Duration,
}

impl Settings {
    pub fn new(registry: Arc<Registry>, root_ca_pem: String, cluster_cidrs: Vec<IpNet>) -> Self {
        Self {
            metrics: Metrics::default(),
            disabled: Vec::new(),
            authorities: None,
            control_plane_nodes: Vec::new(),
            clock: Clock::system(),
            registry,
            root_ca_pem,
            cluster_cidrs,
            node_mask_v4: 24,
            node_mask_v6: 64,
            node_grace_period: Duration::from_secs(50),
        }
    }
}

/// Runs all controllers until shutdown. `shared` (system:kube-controller-manager) reads for all;
/// `client_of` makes the client of each one's service account in `kube-system` from its name.
pub async fn run(
    shared: Client,
    client_of: impl Fn(&str) -> Client + Send + Sync + 'static,
    settings: Settings,
    shutdown: Shutdown,
) {
    let context = Arc::new(Context {
        informers: Informers::new(shared.clone(), shutdown.clone()),
        shared,
        client_of: Arc::new(client_of),
        settings,
        shutdown,
        departures: garbage::Departures::default(),
    });
    let running = CONTROLLERS
        .iter()
        .filter(|entry| {
            !context
                .settings
                .disabled
                .iter()
                .any(|name| name == entry.name)
        })
        .map(|entry| {
            let context = Arc::clone(&context);
            let shutdown = context.shutdown.clone();
            let start = entry.run;
            task::supervise(entry.name, shutdown, move || start(Arc::clone(&context)))
        });
    join_all(running).await;
}

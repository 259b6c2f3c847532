//! The loop: informers say which Services changed, the kernel gets the difference.
//!
//! After a change the next one is handled at once; only while the kernel needs long for a change
//! (thousands of Services) do more of them share a transaction.

mod kernel;
mod observe;

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node as ApiNode, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_client::{Informers, Lister};
use sampan_host::{Change as HostChange, Journal};
use sampan_netlink::{Group, Monitor, Protocol};
use sampan_util::{Backoff, Shutdown};

use crate::health::{self, Checks, Health};
use crate::settings::Settings;
use kernel::Kernel;
use observe::{Observed, Pending, Work};

const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// Set by autoscalers before they remove a node.
const TAINT_LEAVING: &str = "ToBeDeletedByClusterAutoscaler";
/// While changes never stop, the proxy works at most a quarter of the time.
const REST_PER_WORK: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(2);
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot speak to nf_tables: {0}; the service proxy needs root (CAP_NET_ADMIN) and a kernel with nf_tables"
    )]
    Kernel(#[from] sampan_netlink::Error),
    #[error(transparent)]
    Journal(#[from] sampan_host::Error),
    #[error("the rules could not be computed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Keeps the node's rules true to the API until shutdown. The rules stay when it ends.
pub async fn run(
    settings: Settings,
    informers: &Informers,
    journal: &Journal,
    health: Health,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let observed = Observed::new(
        informers.lister::<Service>(),
        informers.lister::<EndpointSlice>(),
    );
    let pending = observed.subscribe();
    let node = own_node(informers, &settings, &pending, &health);
    let first = async {
        observed.synced().await;
        node.synced().await;
    };
    tokio::select! {
        () = first => {}
        () = shutdown.wait() => return Ok(()),
    }
    record_tables(&settings, journal)?;
    let checks = health::serve_checks(health.clone(), shutdown.clone());
    sampan_util::task::spawn("health-check-ports", checks);
    Loop {
        kernel: Some(Kernel::open(&settings)?),
        monitor: open_monitor(),
        settings,
        observed,
        pending,
        node,
        health,
        failures: 0,
    }
    .run(&shutdown)
    .await
}

struct Loop {
    settings: Settings,
    observed: Observed,
    pending: Pending,
    node: Lister<ApiNode>,
    health: Health,
    kernel: Option<Kernel>,
    monitor: Option<Monitor>,
    failures: u32,
}

impl Loop {
    async fn run(mut self, shutdown: &Shutdown) -> Result<(), Error> {
        loop {
            let rest = tokio::select! {
                work = self.pending.next() => self.work(work).await,
                () = foreign_change(&mut self.monitor) => self.verify().await,
                () = shutdown.wait() => return Ok(()),
            };
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = shutdown.wait() => return Ok(()),
            }
        }
    }

    /// Brings the kernel up to date; returns how long to rest.
    async fn work(&mut self, work: Work) -> Duration {
        let started = Instant::now();
        let zone = zone_of(&self.node, &self.settings.node_name);
        let result = self.sync(work, zone).await;
        match result {
            Ok(checks) => {
                self.health.succeeded(checks);
                self.failures = 0;
                (started.elapsed() * REST_PER_WORK).min(LONGEST_REST)
            }
            Err(error) => {
                tracing::error!(%error, "cannot update the service rules; the old ones stay");
                self.health.failed();
                self.pending.add_all();
                self.failures += 1;
                RETRY.delay(self.failures - 1)
            }
        }
    }

    /// Somebody has changed some rules: were ours among them?
    async fn verify(&mut self) -> Duration {
        let intact = self.with_kernel(Kernel::is_intact).await;
        if !matches!(intact, Ok(true)) {
            tracing::warn!(
                "another program has changed or removed our nftables table; putting it back"
            );
            self.pending.add_all();
        }
        Duration::ZERO
    }

    async fn sync(&mut self, work: Work, zone: Option<String>) -> Result<Checks, Error> {
        let observed = self.observed.clone();
        quietly(&self.monitor, Monitor::pause);
        let synced = self.with_kernel(move |kernel| kernel.sync(&observed, work, zone));
        let result = synced.await;
        quietly(&self.monitor, Monitor::resume);
        result
    }

    /// Rendering and committing block for as long as the kernel needs, so they leave the async
    /// threads. After a failure nobody knows what the kernel has: the next call starts anew.
    async fn with_kernel<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Kernel) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let mut kernel = match self.kernel.take() {
            Some(kernel) => kernel,
            None => Kernel::open(&self.settings)?,
        };
        let task = tokio::task::spawn_blocking(move || {
            let result = work(&mut kernel);
            (kernel, result)
        });
        let (kernel, result) = task.await?;
        if result.is_ok() {
            self.kernel = Some(kernel);
        }
        result
    }
}

/// Without news of others' changes the rules are right until somebody removes them.
fn open_monitor() -> Option<Monitor> {
    match Monitor::open(Protocol::Netfilter, &[Group::Nftables]) {
        Ok(monitor) => Some(monitor),
        Err(error) => {
            tracing::warn!(%error, "cannot watch for other programs' changes of nftables");
            None
        }
    }
}

async fn foreign_change(monitor: &mut Option<Monitor>) {
    let failed = match monitor {
        Some(open) => open.changed(|_| true).await.is_err(),
        None => std::future::pending().await,
    };
    if failed {
        *monitor = None;
    }
}

fn quietly(monitor: &Option<Monitor>, change: fn(&Monitor) -> Result<(), sampan_netlink::Error>) {
    if let Some(Err(error)) = monitor.as_ref().map(change) {
        tracing::debug!(%error, "cannot change the subscription to nftables");
    }
}

fn record_tables(settings: &Settings, journal: &Journal) -> Result<(), Error> {
    let namespace = sampan_host::change::current_namespace();
    for family in settings.families() {
        journal.record(HostChange::NftTable {
            family: family.as_str().to_owned(),
            name: settings.table_name.clone(),
            namespace,
        })?;
    }
    Ok(())
}

/// Watches this node: its zone decides which endpoints are near, its end where traffic should go.
/// All nodes, as the pod network needs them anyway.
fn own_node(
    informers: &Informers,
    settings: &Settings,
    pending: &Pending,
    health: &Health,
) -> Lister<ApiNode> {
    let lister = informers.lister::<ApiNode>();
    let (pending, health) = (pending.clone(), health.clone());
    let name = settings.node_name.clone();
    lister.on_change(move |change| {
        if change.object().metadata.name.as_ref() != Some(&name) {
            return;
        }
        health.set_leaving(is_leaving(change.object()));
        let mut zones = change.states().map(|node| zone(node));
        let first = zones.next();
        if zones.any(|zone| Some(zone) != first) {
            pending.add_all();
        }
    });
    lister
}

fn is_leaving(node: &ApiNode) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let mut all = taints.into_iter().flatten();
    node.metadata.deletion_timestamp.is_some() || all.any(|taint| taint.key == TAINT_LEAVING)
}

fn zone(node: &ApiNode) -> Option<String> {
    node.metadata.labels.as_ref()?.get(LABEL_ZONE).cloned()
}

fn zone_of(lister: &Lister<ApiNode>, name: &str) -> Option<String> {
    zone(lister.get(None, name)?.as_ref())
}

#[cfg(test)]
mod tests;

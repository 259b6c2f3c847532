//! A server: the control plane, its actors, and (unless switched off) an agent in the same process.

use std::path::Path;
use std::sync::Arc;

use sampan_api::UserInfo;
use sampan_apiserver::metrics::Extra;
use sampan_client::Informers;
use sampan_config::Settings;
use sampan_controllers::csr::Authorities;
use sampan_controllers::runtime::Context as Shared;
use sampan_controllers::runtime::metrics::Metrics;
use sampan_host::{Change, Journal};
use sampan_util::Shutdown;
use tokio::task::JoinSet;

use crate::certificates;
use crate::component::{self, Running};
use crate::controlplane::ControlPlane;
use crate::node::NodeIdentity;
use crate::notify;

const CONTROLLER_NAMESPACE: &str = "kube-system";

pub(crate) async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let node = if settings.disable_agent {
        None
    } else {
        Some(NodeIdentity::of(&settings)?)
    };
    // The API goes last: the others say goodbye through it.
    let serving = Shutdown::new();
    let plane = ControlPlane::start(&settings, node.as_ref(), &serving).await?;
    let journal = match &node {
        Some(_) => Some(crate::agent::open_journal(&settings)?),
        None => None,
    };
    if let Some(journal) = &journal {
        record_kubeconfig(&settings.write_kubeconfig, journal)?;
    }
    certificates::write_kubeconfig(&settings, &plane.pki)?;
    let mut actors = JoinSet::new();
    let kept = vec![plane.certificates.kept(&plane.pki)];
    actors.spawn(sampan_cluster::renew::keep(kept, shutdown.clone()));
    if !settings.disable_controller_manager {
        controllers(&settings, &plane, &shutdown, &mut actors);
    }
    if !settings.disable_scheduler {
        scheduler(&plane, &shutdown, &mut actors);
    }
    tracing::info!(url = %plane.local_url, "the API is ready");
    notify::notify("READY=1");
    let store_ended = plane.store_ended();
    let mut node = Box::pin(async {
        match node.zip(journal) {
            Some((node, journal)) => {
                let stop = shutdown.clone();
                crate::agent::run_beside(&settings, &plane, node, journal, stop).await
            }
            None => {
                shutdown.wait().await;
                Ok(())
            }
        }
    });
    let ended = tokio::select! {
        ended = &mut node => ended,
        // Nothing can go on without it; whoever started us starts us again.
        () = store_ended => {
            shutdown.trigger();
            if let Err(error) = (&mut node).await {
                tracing::warn!(%error, "the node ended");
            }
            Err(anyhow::anyhow!("the store has ended; the log says why"))
        }
    };
    drop(node);
    shutdown.trigger();
    while actors.join_next().await.is_some() {}
    serving.trigger();
    plane.close().await;
    ended
}

/// The controllers, which answer for themselves from now on.
fn controllers(
    settings: &Settings,
    plane: &ControlPlane,
    shutdown: &Shutdown,
    actors: &mut JoinSet<()>,
) {
    let mut own = sampan_controllers::Settings::new(
        plane.server.core().registry.clone(),
        plane.pki.server_ca.certificate_pem().to_owned(),
        settings.cluster_cidrs.clone(),
    );
    own.authorities = Some(Authorities {
        client: plane.pki.client_ca.clone(),
        serving: plane.pki.server_ca.clone(),
    });
    let shared = plane.client(UserInfo::authenticated(
        "system:kube-controller-manager",
        &[],
    ));
    let server = plane.server.clone();
    let client_of = move |name: &str| {
        let user = UserInfo::service_account(CONTROLLER_NAMESPACE, name, "");
        sampan_client::Client::new(server.transport(user))
    };
    let context = Arc::new(Shared {
        informers: Informers::new(shared.clone(), shutdown.clone()),
        shared,
        client_of: Arc::new(client_of),
        settings: own,
        shutdown: shutdown.clone(),
        metrics: Metrics::default(),
        departures: sampan_controllers::garbage::Departures::default(),
    });
    let running = Running::default();
    let counted = Arc::clone(&context);
    let pages = (
        running.health("controllers"),
        Arc::new(move |text: &mut String| text.push_str(&counted.metrics.render())) as Extra,
    );
    let port = component::CONTROLLERS_PORT;
    let (gate, stop) = (plane.gate.clone(), shutdown.clone());
    actors.spawn(component::serve_component(
        "controllers",
        port,
        pages,
        gate,
        stop,
    ));
    actors.spawn(async move {
        let _entered = running.enter();
        sampan_controllers::run_all(context).await;
    });
}

fn scheduler(plane: &ControlPlane, shutdown: &Shutdown, actors: &mut JoinSet<()>) {
    let running = Running::default();
    let pages = (
        running.health("scheduling"),
        Arc::new(|_: &mut String| {}) as Extra,
    );
    let (gate, stop) = (plane.gate.clone(), shutdown.clone());
    let port = component::SCHEDULER_PORT;
    actors.spawn(component::serve_component(
        "scheduler",
        port,
        pages,
        gate,
        stop,
    ));
    let client = plane.client(UserInfo::authenticated("system:kube-scheduler", &[]));
    let stop = shutdown.child();
    actors.spawn(async move {
        let _entered = running.enter();
        let informers = Informers::new(client.clone(), stop.clone());
        let settings = sampan_scheduler::Settings::default();
        sampan_scheduler::run(client, informers, settings, stop).await;
    });
}

/// A file that lies outside the data directory is a change to the host.
fn record_kubeconfig(path: &Path, journal: &Journal) -> anyhow::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        journal.record(Change::Directory {
            path: folder.to_owned(),
            recursive: false,
        })?;
    }
    if !path.exists() {
        journal.record(Change::File {
            path: path.to_owned(),
        })?;
    }
    Ok(())
}

//! A server: the control plane, its actors, and (unless switched off) an agent in the same process.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sampan_api::UserInfo;
use sampan_apiserver::metrics::Extra;
use sampan_client::Informers;
use sampan_cluster::node_name::{self, NodeNameError};
use sampan_cluster::renew::Kept;
use sampan_config::Settings;
use sampan_config::settings::{NODE_PREFIX_V4, NODE_PREFIX_V6};
use sampan_controllers::csr::Authorities;
use sampan_host::{Change, Journal};
use sampan_pki::authority;
use sampan_pki::server::ServerPki;
use sampan_util::{Parts, Shutdown};
use tokio::task::JoinSet;

use crate::certificates;
use crate::component;
use crate::controlplane::ControlPlane;
use crate::node::NodeIdentity;
use crate::{notify, parts};

const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
const CONTROLLER_NAMESPACE: &str = "kube-system";

pub(crate) async fn run(
    settings: Settings,
    node: Option<NodeIdentity>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    // The API goes last: the others say goodbye through it.
    let serving = Shutdown::new();
    let parts = Parts::default();
    parts::follow(&parts, &settings.data_dir, &shutdown)?;
    let plane = ControlPlane::start(&settings, node.as_ref(), &parts, &serving).await?;
    let mut actors = JoinSet::new();
    if let Some(node) = &node {
        let folder = settings.server_dir().join("tls");
        take_name(&plane, &node.name, folder, &shutdown, &mut actors).await?;
    }
    let own_name = node.as_ref().map(|node| node.name.as_str());
    let reporter = plane.client(UserInfo::authenticated(CONTROLLER_MANAGER, &[]));
    parts::record_failures(&parts, reporter, own_name);
    let journal = match &node {
        Some(_) => Some(crate::agent::open_journal(&settings)?),
        None => None,
    };
    let mut kept = vec![plane.certificates.kept(&plane.pki)];
    kept.extend(first_kubeconfig(&settings, &plane, journal.as_ref())?);
    actors.spawn(sampan_cluster::renew::keep(kept, shutdown.clone()));
    if !settings.disable_controller_manager {
        let own = controller_settings(&settings, &plane, own_name);
        controllers(own, &plane, &parts, &shutdown, &mut actors);
    }
    if !settings.disable_scheduler {
        scheduler(&plane, &parts, &shutdown, &mut actors);
    }
    tracing::info!(url = %plane.local_url, "the API is ready");
    notify::notify("READY=1");
    let node = node.zip(journal);
    let ended = until_end(&settings, &plane, node, parts, &shutdown).await;
    shutdown.trigger();
    while actors.join_next().await.is_some() {}
    serving.trigger();
    plane.close().await;
    ended
}

/// Runs the node, if there is one, until shutdown or until the store ends.
async fn until_end(
    settings: &Settings,
    plane: &ControlPlane,
    node: Option<(NodeIdentity, Journal)>,
    parts: Parts,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let store_ended = plane.store_ended();
    let mut node = Box::pin(async {
        match node {
            Some((node, journal)) => {
                let stop = shutdown.clone();
                crate::agent::run_beside(settings, plane, node, journal, parts, stop).await
            }
            None => {
                shutdown.wait().await;
                Ok(())
            }
        }
    });
    tokio::select! {
        ended = &mut node => ended,
        // Nothing can go on without it; whoever started us starts us again.
        () = store_ended => {
            shutdown.trigger();
            if let Err(error) = (&mut node).await {
                tracing::warn!(%error, "the node ended");
            }
            Err(anyhow::anyhow!("the store has ended; the log says why"))
        }
    }
}

/// Writes the administrator's kubeconfig, its place in the journal first. A disk that is full keeps no server from starting: the API is
/// what makes room on it. Then it is tried again while the server runs.
fn first_kubeconfig(
    settings: &Settings,
    plane: &ControlPlane,
    journal: Option<&Journal>,
) -> anyhow::Result<Option<Kept>> {
    match recorded_kubeconfig(settings, &plane.pki, journal) {
        Ok(()) => return Ok(None),
        Err(error) if certificates::is_disk_full(&error) => {
            let path = settings.write_kubeconfig.display();
            tracing::error!(%path, error = sampan_util::chain(&*error),
                "the kubeconfig is not written, and will be once there is room for it");
        }
        Err(error) => return Err(error),
    }
    let (settings, pki) = (settings.clone(), Arc::clone(&plane.pki));
    let journal = journal.cloned();
    let renew = move || {
        let done = recorded_kubeconfig(&settings, &pki, journal.as_ref());
        // From then on it is kept with the certificates.
        let done = done.map(|()| SystemTime::now() + authority::AUTHORITY_LIFETIME);
        let done = done.map_err(|error| sampan_util::chain(&*error));
        Box::pin(std::future::ready(done)) as _
    };
    Ok(Some(Kept {
        name: "kubeconfig",
        due: SystemTime::UNIX_EPOCH,
        renew: Box::new(renew),
    }))
}

fn recorded_kubeconfig(
    settings: &Settings,
    pki: &ServerPki,
    journal: Option<&Journal>,
) -> anyhow::Result<()> {
    if let Some(journal) = journal {
        record_kubeconfig(&settings.write_kubeconfig, journal)?;
    }
    certificates::write_kubeconfig(settings, pki)
}

/// Takes the name of this server's node, before anybody approves requests. Only another machine's name is a reason not to
/// start: a server whose disk is full cannot write, and must serve all the same, so that what fills it can be deleted.
async fn take_name(
    plane: &ControlPlane,
    node: &str,
    folder: PathBuf,
    shutdown: &Shutdown,
    actors: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let client = plane.setup_client();
    match node_name::take(&client, node, &folder).await {
        Ok(()) => return Ok(()),
        Err(error @ NodeNameError::Taken(_)) => return Err(error.into()),
        Err(error) => tracing::warn!(%error, "starting without; trying again"),
    }
    let (node, stop) = (node.to_owned(), shutdown.clone());
    actors.spawn(node_name::take_later(client, node, folder, stop));
    Ok(())
}

fn controller_settings(
    settings: &Settings,
    plane: &ControlPlane,
    own_node: Option<&str>,
) -> sampan_controllers::Settings {
    let mut own = sampan_controllers::Settings::new(
        plane.server.core().registry.clone(),
        plane.pki.server_ca.certificate_pem().to_owned(),
        settings.cluster_cidrs.clone(),
    );
    own.node_mask_v4 = NODE_PREFIX_V4;
    own.node_mask_v6 = NODE_PREFIX_V6;
    own.control_plane_nodes = own_node.map(str::to_owned).into_iter().collect();
    own.authorities = Some(Authorities {
        client: plane.pki.client_ca.clone(),
        kubelet_serving: plane.pki.kubelet_ca.clone(),
        serving: plane.pki.server_ca.clone(),
    });
    own
}

/// The controllers, which answer for themselves from now on.
fn controllers(
    own: sampan_controllers::Settings,
    plane: &ControlPlane,
    parts: &Parts,
    shutdown: &Shutdown,
    actors: &mut JoinSet<()>,
) {
    let counted = own.metrics.clone();
    let figures: Extra = Arc::new(move |text: &mut String| text.push_str(&counted.render()));
    plane.add_metrics(Arc::clone(&figures));
    let pages = (
        component::health(parts, parts::CONTROLLERS, "controllers"),
        figures,
    );
    let (gate, stop) = (plane.gate.clone(), shutdown.clone());
    actors.spawn(component::serve_component(
        "controllers",
        component::CONTROLLERS_PORT,
        pages,
        gate,
        stop,
    ));
    let shared = plane.client(UserInfo::authenticated(CONTROLLER_MANAGER, &[]));
    let server = plane.server.clone();
    let make = move |stop| {
        let (shared, server, own) = (shared.clone(), server.clone(), own.clone());
        let client_of = move |name: &str| {
            let user = UserInfo::service_account(CONTROLLER_NAMESPACE, name, "");
            sampan_client::Client::new(server.transport(user))
        };
        async move {
            sampan_controllers::run(shared, client_of, own, stop).await;
            Ok(())
        }
    };
    spawn_part(parts::CONTROLLERS, parts, shutdown, actors, make);
}

fn scheduler(plane: &ControlPlane, parts: &Parts, shutdown: &Shutdown, actors: &mut JoinSet<()>) {
    let pages = (
        component::health(parts, parts::SCHEDULER, "scheduling"),
        Arc::new(|_: &mut String| {}) as Extra,
    );
    let (gate, stop) = (plane.gate.clone(), shutdown.clone());
    actors.spawn(component::serve_component(
        "scheduler",
        component::SCHEDULER_PORT,
        pages,
        gate,
        stop,
    ));
    let client = plane.client(UserInfo::authenticated("system:kube-scheduler", &[]));
    let make = move |stop: Shutdown| {
        let client = client.clone();
        async move {
            let informers = Informers::new(client.clone(), stop.clone());
            let settings = sampan_scheduler::Settings::default();
            sampan_scheduler::run(client, informers, settings, stop).await;
            Ok(())
        }
    };
    spawn_part(parts::SCHEDULER, parts, shutdown, actors, make);
}

/// A part that cannot fail to start.
fn spawn_part<M, F>(
    name: &'static str,
    parts: &Parts,
    shutdown: &Shutdown,
    actors: &mut JoinSet<()>,
    make: M,
) where
    M: FnMut(Shutdown) -> F + Send + 'static,
    F: Future<Output = Result<(), Infallible>> + Send + 'static,
{
    let (parts, shutdown) = (parts.clone(), shutdown.clone());
    actors.spawn(async move {
        match parts.run(name, shutdown, make).await {
            Ok(()) => {}
            Err(never) => match never {},
        }
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

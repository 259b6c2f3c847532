//! A server: the control plane, its actors, and (unless switched off) an agent in the same process.

use std::future::Future;

use anyhow::Context;
use sampan_api::UserInfo;
use sampan_client::Informers;
use sampan_config::Settings;
use sampan_controllers::csr::Authorities;
use sampan_pki::files;
use sampan_pki::kubeconfig::{Credentials, Kubeconfig};
use sampan_util::Shutdown;
use tokio::task::JoinSet;

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
    write_kubeconfig(&settings, &plane)?;
    let mut actors = JoinSet::new();
    if !settings.disable_controller_manager {
        actors.spawn(controllers(&settings, &plane, &shutdown));
    }
    if !settings.disable_scheduler {
        actors.spawn(scheduler(&plane, &shutdown));
    }
    tracing::info!(url = %plane.local_url, "the API is ready");
    notify::notify("READY=1");
    let store_ended = plane.store_ended();
    let mut node = Box::pin(async {
        match node {
            Some(node) => crate::agent::run_beside(&settings, &plane, node, shutdown.clone()).await,
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

fn controllers(
    settings: &Settings,
    plane: &ControlPlane,
    shutdown: &Shutdown,
) -> impl Future<Output = ()> + use<> {
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
    let shutdown = shutdown.clone();
    async move {
        sampan_controllers::run(shared, client_of, own, shutdown).await;
    }
}

fn scheduler(plane: &ControlPlane, shutdown: &Shutdown) -> impl Future<Output = ()> + use<> {
    let client = plane.client(UserInfo::authenticated("system:kube-scheduler", &[]));
    let shutdown = shutdown.clone();
    async move {
        let run = move || {
            let stop = shutdown.child();
            let informers = Informers::new(client.clone(), stop.clone());
            let settings = sampan_scheduler::Settings::default();
            sampan_scheduler::run(client.clone(), informers, settings, stop)
        };
        run().await;
    }
}

fn write_kubeconfig(settings: &Settings, plane: &ControlPlane) -> anyhow::Result<()> {
    let text = Kubeconfig {
        name: "default",
        server: &plane.local_url,
        authority_pem: plane.pki.server_ca.certificate_pem(),
        credentials: Credentials::Certificate(&plane.pki.admin),
    }
    .render();
    let path = &settings.write_kubeconfig;
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .context("cannot make its folder")
        .and_then(|()| {
            Ok(files::write_atomic(
                path,
                text.as_bytes(),
                settings.write_kubeconfig_mode,
            )?)
        });
    match written {
        Ok(()) => Ok(()),
        // Without root the default place cannot be written; the control plane works all the same.
        Err(error) if settings.disable_agent => {
            tracing::warn!(path = %path.display(), error = format!("{error:#}"),
                "the kubeconfig was not written; choose another place with --write-kubeconfig");
            Ok(())
        }
        Err(error) => Err(error.context(format!("cannot write the kubeconfig {}", path.display()))),
    }
}

//! A node: runtime, kubelet, pod network, service proxy and DNS, in this order of need.
//!
//! The same parts serve a node that joined a server elsewhere and the node of a server; they differ only in the
//! transports by which they reach the API.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use sampan_api::UserInfo;
use sampan_client::{Client, Informers};
use sampan_cluster::info::{self, ClusterInfo};
use sampan_cluster::join::Newcomer;
use sampan_config::Settings;
use sampan_config::settings::Component;
use sampan_dns::forward::Upstreams;
use sampan_host::Journal;
use sampan_kubelet::cgroup::Cgroups;
use sampan_kubelet::inotify::FileWatcher;
use sampan_kubelet::machine::MachineInfo;
use sampan_kubelet::runtime::images::ImageFolder;
use sampan_kubelet::runtime::supervisor::{self, RuntimeHandle, RuntimeSettings};
use sampan_kubelet::server::{self, Access, ServerState};
use sampan_kubelet::{Kubelet, Parts};
use sampan_net::{CertificateChecker, ServerIdentity};
use sampan_pki::Identity;
use sampan_pki::authority::LeafSpec;
use sampan_util::Shutdown;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::controlplane::ControlPlane;
use crate::node::NodeIdentity;
use crate::notify;

const DNS_PORT: u16 = 53;
const DEFAULT_RESOLV_CONF: &str = "/etc/resolv.conf";

/// How a node reaches the API, and what it shows to those who reach it.
struct Membership {
    kubelet: Client,
    /// The identity of the service proxy, which the pod network and DNS share.
    proxy: Client,
    serving: Identity,
    cluster: ClusterInfo,
}

/// A node that joins a server elsewhere.
pub(crate) async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let node = NodeIdentity::of(&settings)?;
    let newcomer = Newcomer {
        server: settings
            .server
            .clone()
            .context("an agent needs --server, the URL of a server to join")?,
        token: sampan_cluster::token::given(&settings)?,
        node_name: node.name.clone(),
        node_ips: node.ips.clone(),
        dir: settings.agent_dir().join("tls"),
    };
    let joined = tokio::select! {
        joined = newcomer.join() => joined?,
        () = shutdown.wait() => return Ok(()),
    };
    let kubelet = Client::new(Arc::new(joined.kubelet));
    let cluster = info::read(&kubelet).await?;
    let membership = Membership {
        kubelet,
        proxy: Client::new(Arc::new(joined.proxy)),
        serving: joined.serving,
        cluster,
    };
    tracing::info!(server = %joined.server, node = %node.name, "joined");
    notify::notify("READY=1");
    run_node(&settings, node, membership, shutdown).await
}

/// The node of a server, in the same process.
pub(crate) async fn run_beside(
    settings: &Settings,
    plane: &ControlPlane,
    node: NodeIdentity,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let user = UserInfo::authenticated(format!("system:node:{}", node.name), &["system:nodes"]);
    let spec = LeafSpec::server(
        &format!("system:node:{}", node.name),
        vec![node.name.clone()],
        node.ips.clone(),
    );
    let membership = Membership {
        kubelet: plane.client(user),
        proxy: plane.client(UserInfo::authenticated("system:kube-proxy", &[])),
        serving: plane
            .pki
            .server_ca
            .ensure_leaf(
                &settings.agent_dir().join("tls"),
                "serving-kubelet",
                &spec,
                sampan_util::clock::plausible_now(),
            )
            .context("cannot make the kubelet's certificate")?,
        cluster: crate::controlplane::cluster_info(settings, &plane.pki),
    };
    run_node(settings, node, membership, shutdown).await
}

/// What all parts of a node share.
struct Node<'a> {
    settings: &'a Settings,
    identity: NodeIdentity,
    membership: Membership,
    journal: Journal,
    watcher: FileWatcher,
    /// Informers of the proxy's identity.
    informers: Informers,
    /// Tells the kubelet that something which makes the node ready has changed.
    nudge: Arc<Notify>,
    shutdown: Shutdown,
}

async fn run_node(
    settings: &Settings,
    identity: NodeIdentity,
    membership: Membership,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let agent_dir = settings.agent_dir();
    sampan_pki::files::create_private_dir(&agent_dir)?;
    let node = Node {
        settings,
        journal: Journal::open(agent_dir.join("host-journal"))?,
        watcher: FileWatcher::new().context("cannot watch files")?,
        informers: Informers::new(membership.proxy.clone(), shutdown.clone()),
        nudge: Arc::default(),
        identity,
        membership,
        shutdown: shutdown.clone(),
    };
    let network = node.network_settings()?;
    // containerd reads the plugin's folders when it starts.
    for folder in [&network.paths.cni_bin, &network.paths.cni_conf] {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut parts = JoinSet::new();
    node.announce(&mut parts);
    node.spawn_network(network, &mut parts);
    node.spawn_proxy(&mut parts)?;
    let mut runtime = tokio::select! {
        started = node.start_runtime() => started?,
        () = shutdown.wait() => return Ok(()),
    };
    node.spawn_images(&runtime, &mut parts);
    node.spawn_kubelet(&runtime, &mut parts).await?;
    while let Some(ended) = parts.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) if shutdown.is_triggered() => tracing::debug!(%error, "ended with"),
            Ok(Err(error)) => {
                shutdown.trigger();
                runtime.ended().await;
                return Err(error);
            }
            Err(error) => tracing::error!(%error, "a part of the node ended"),
        }
    }
    runtime.ended().await;
    Ok(())
}

impl Node<'_> {
    fn name(&self) -> &str {
        &self.identity.name
    }

    fn network_settings(&self) -> anyhow::Result<sampan_network::settings::Settings> {
        let executable = std::env::current_exe().context("cannot find our own executable")?;
        let agent_dir = self.settings.agent_dir();
        let mut settings =
            sampan_network::settings::Settings::new(&agent_dir, self.name(), executable);
        settings.node_ips = self.identity.ips.clone();
        settings.cluster_cidrs = ranges(&self.membership.cluster.cluster_cidrs)?;
        settings.service_cidrs = ranges(&self.membership.cluster.service_cidrs)?;
        Ok(settings)
    }

    /// Makes the node known at once: its pods' range is assigned while the runtime starts.
    fn announce(&self, parts: &mut JoinSet<anyhow::Result<()>>) {
        let (client, settings) = (self.membership.kubelet.clone(), self.kubelet_settings());
        parts.spawn(async move {
            // The kubelet registers the node in any case, a little later.
            if let Err(error) = sampan_kubelet::node::announce(&client, &settings).await {
                tracing::debug!(%error, "the node cannot be announced yet");
            }
            Ok(())
        });
    }

    fn spawn_network(
        &self,
        settings: sampan_network::settings::Settings,
        parts: &mut JoinSet<anyhow::Result<()>>,
    ) {
        if self.settings.is_disabled(Component::Network) {
            return;
        }
        let health = sampan_network::Health::default();
        let (informers, journal) = (self.informers.clone(), self.journal.clone());
        let (shutdown, own) = (self.shutdown.clone(), health.clone());
        parts.spawn(async move {
            let run = sampan_network::run(settings, &informers, &journal, own, shutdown);
            run.await.context("pod network")
        });
        let nudge = Arc::clone(&self.nudge);
        let dns = self.dns_settings();
        let (informers, client) = (self.informers.clone(), self.membership.proxy.clone());
        let shutdown = self.shutdown.clone();
        parts.spawn(async move {
            let state = tokio::select! {
                state = health.ready() => state,
                () = shutdown.wait() => return Ok(()),
            };
            nudge.notify_one();
            let Some(mut settings) = dns else {
                return Ok(());
            };
            settings.listen = state
                .gateways
                .iter()
                .map(|address| SocketAddr::new(*address, DNS_PORT))
                .collect();
            let run = sampan_dns::run(informers, client, settings, shutdown);
            run.await.context("DNS")
        });
    }

    fn dns_settings(&self) -> Option<sampan_dns::Settings> {
        if self.settings.is_disabled(Component::Dns) {
            return None;
        }
        Some(sampan_dns::Settings {
            listen: Vec::new(),
            domain: self.membership.cluster.cluster_domain.clone(),
            upstreams: Upstreams::File(self.resolv_conf()),
            own_addresses: addresses(&self.membership.cluster.cluster_dns),
            node_name: self.name().to_owned(),
        })
    }

    fn resolv_conf(&self) -> PathBuf {
        let given = self.settings.resolv_conf.clone();
        given.unwrap_or_else(|| PathBuf::from(DEFAULT_RESOLV_CONF))
    }

    fn spawn_proxy(&self, parts: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
        if self.settings.is_disabled(Component::KubeProxy) {
            return Ok(());
        }
        let mut settings = sampan_proxy::Settings::new(self.name());
        settings.node_ips = self.identity.ips.clone();
        settings.cluster_cidrs = ranges(&self.membership.cluster.cluster_cidrs)?;
        settings.service_cidrs = ranges(&self.membership.cluster.service_cidrs)?;
        let (informers, journal) = (self.informers.clone(), self.journal.clone());
        let shutdown = self.shutdown.clone();
        parts.spawn(async move {
            let health = sampan_proxy::Health::default();
            let run = sampan_proxy::run(settings, &informers, &journal, health, shutdown);
            run.await.context("service proxy")
        });
        Ok(())
    }

    /// Archives in `<data-dir>/agent/images` become images, at start and when they appear.
    fn spawn_images(&self, runtime: &RuntimeHandle, parts: &mut JoinSet<anyhow::Result<()>>) {
        if self.settings.container_runtime_endpoint.is_some() {
            return;
        }
        let settings = self.runtime_settings();
        let folder = ImageFolder::new(
            settings.images_dir(),
            &settings.containerd_dir(),
            runtime.importer(),
            self.watcher.clone(),
        );
        let shutdown = self.shutdown.clone();
        parts.spawn(async move { folder.run(shutdown).await.context("image folder") });
    }

    fn runtime_settings(&self) -> RuntimeSettings {
        let agent_dir = self.settings.agent_dir();
        let paths = sampan_network::Paths::new(&agent_dir);
        let mut settings = RuntimeSettings::new(agent_dir, paths.cni_bin, paths.cni_conf);
        settings.endpoint = self.settings.container_runtime_endpoint.clone();
        settings.pause_image = self.settings.pause_image.clone();
        settings.debug = self.settings.debug;
        settings
    }

    async fn start_runtime(&self) -> anyhow::Result<RuntimeHandle> {
        let settings = self.runtime_settings();
        supervisor::start(&settings, &self.watcher, &self.shutdown)
            .await
            .context("container runtime")
    }

    async fn spawn_kubelet(
        &self,
        runtime: &RuntimeHandle,
        parts: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let agent_dir = self.settings.agent_dir();
        let settings = self.kubelet_settings();
        let port = settings.port;
        let cgroups = match Cgroups::detect(&agent_dir) {
            Ok(cgroups) => Some(cgroups),
            Err(error) => {
                tracing::warn!(%error, "Pods run without cgroups of their own");
                None
            }
        };
        let client = self.membership.kubelet.clone();
        let kubelet = Kubelet::new(
            settings,
            Parts {
                informers: Informers::new(client.clone(), self.shutdown.clone()),
                client: client.clone(),
                channel: runtime.channel.clone(),
                runtime_up: runtime.up(),
                cgroups: cgroups.clone(),
                journal: Some(self.journal.clone()),
                nudge: Arc::clone(&self.nudge),
            },
        );
        let checker = CertificateChecker::new(&self.membership.cluster.client_authority)?;
        let state = ServerState {
            node_name: self.name().to_owned(),
            lookup: kubelet.lookup(),
            runtime: runtime.runtime(),
            images: runtime.images(),
            watcher: self.watcher.clone(),
            access: Access::new(self.name(), client, checker),
            cgroups,
            machine: MachineInfo::read(),
            data_dir: agent_dir,
            config: serde_json::json!({}),
            metrics: Vec::new(),
        };
        self.spawn_kubelet_server(port, state, parts).await?;
        let shutdown = self.shutdown.clone();
        parts.spawn(async move { kubelet.run(shutdown).await.context("kubelet") });
        Ok(())
    }

    async fn spawn_kubelet_server(
        &self,
        port: u16,
        state: ServerState,
        parts: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let address = SocketAddr::from(([0, 0, 0, 0], port));
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address} (the kubelet's port); is another kubelet running?")
        })?;
        let identity = ServerIdentity::new(&self.membership.serving)?;
        let shutdown = self.shutdown.clone();
        parts.spawn(async move {
            let serve = server::serve(listener, identity, state, shutdown);
            serve.await.context("kubelet server")
        });
        Ok(())
    }

    fn kubelet_settings(&self) -> sampan_kubelet::Settings {
        let agent_dir = self.settings.agent_dir();
        let mut settings = sampan_kubelet::Settings::new(self.name(), agent_dir);
        settings.node_ips = self.identity.ips.clone();
        settings.cluster_dns = addresses(&self.membership.cluster.cluster_dns);
        settings.cluster_domain = self.membership.cluster.cluster_domain.clone();
        let labels: BTreeMap<String, String> = self.settings.node_labels.iter().cloned().collect();
        settings.labels = labels;
        settings.taints = self.settings.node_taints.iter().map(taint).collect();
        settings.resolv_conf = Some(self.resolv_conf());
        settings
    }
}

fn taint(given: &sampan_config::settings::Taint) -> Taint {
    Taint {
        key: given.key.clone(),
        value: Some(given.value.clone()).filter(|value| !value.is_empty()),
        effect: given.effect.clone(),
        time_added: None,
    }
}

fn ranges(texts: &[String]) -> anyhow::Result<Vec<IpNet>> {
    texts
        .iter()
        .map(|text| {
            text.parse()
                .with_context(|| format!("{text} is no address range"))
        })
        .collect()
}

fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

//! A node: runtime, kubelet, pod network, service proxy and DNS, in this order of need.
//!
//! The same parts serve a node that joined a server elsewhere and the node of a server; they differ only in the
//! transports by which they reach the API. Each part that fails is started again alone (decision record 50).

mod kubelet;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_api::UserInfo;
use sampan_client::{Client, Informers};
use sampan_cluster::info::{self, ClusterInfo};
use sampan_cluster::join::{Membership as Joined, Newcomer};
use sampan_cluster::renew::Kept;
use sampan_config::Settings;
use sampan_config::settings::Component;
use sampan_cri::runtime::v1::ListPodSandboxRequest;
use sampan_dns::forward::Upstreams;
use sampan_host::{Change, Journal};
use sampan_kubelet::cgroup::Cgroups;
use sampan_kubelet::inotify::FileWatcher;
use sampan_kubelet::runtime::images::{ImageFolder, Imported};
use sampan_kubelet::runtime::supervisor::{self, RuntimeHandle, RuntimeSettings};
use sampan_net::ServerIdentity;
use sampan_network::Network;
use sampan_pki::authority::LeafSpec;
use sampan_pki::server::ServerPki;
use sampan_pki::{CertificateInfo, Identity};
use sampan_util::{Parts, Shutdown};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::addresses::Addresses;
use crate::component;
use crate::controlplane::ControlPlane;
use crate::node::NodeIdentity;
use crate::{notify, parts};

const DNS_PORT: u16 = 53;
/// How long a node's parts may take to end when its address has changed.
const ROUND_END: Duration = Duration::from_secs(5);
/// What the agent remembers of the cluster, below its data.
pub(crate) const CLUSTER_FILE: &str = "cluster.json";
/// Made by the first containerd or shim on a machine wherever its own state is; one that comes later uses them too.
const SHARED_FOLDERS: [&str; 4] = [
    "/run/containerd",
    "/run/containerd/s",
    "/var/lib/cni",
    "/var/lib/cni/results",
];
const DEFAULT_RESOLV_CONF: &str = "/etc/resolv.conf";

/// The one journal of this process.
pub(crate) fn open_journal(settings: &Settings) -> anyhow::Result<Journal> {
    let agent_dir = settings.agent_dir();
    sampan_pki::files::create_private_dir(&agent_dir)?;
    Ok(Journal::open(agent_dir.join("host-journal"))?)
}

/// How a node reaches the API, and what it shows to those who reach it.
struct Membership<'a> {
    kubelet: Client,
    /// The identity of the service proxy, which the pod network and DNS share.
    proxy: Client,
    serving: Arc<ServerIdentity>,
    cluster: ClusterInfo,
    place: Place<'a>,
}

/// Where the server is.
enum Place<'a> {
    Elsewhere(Box<Joined>),
    Here(&'a ControlPlane),
}

impl Membership<'_> {
    /// What is to be kept fresh while the node has these addresses.
    fn renewals(&self, settings: &Settings, node: &NodeIdentity) -> anyhow::Result<Vec<Kept>> {
        match &self.place {
            Place::Elsewhere(joined) => Ok(joined.renewals(&node.ips)),
            Place::Here(plane) => {
                let leaf = ensure_leaf(settings, &plane.pki, node)?;
                self.serving.replace(&leaf)?;
                let (settings, node) = (settings.clone(), node.clone());
                let (pki, serving) = (Arc::clone(&plane.pki), Arc::clone(&self.serving));
                let ensure = move || -> anyhow::Result<SystemTime> {
                    let leaf = ensure_leaf(&settings, &pki, &node)?;
                    serving.replace(&leaf)?;
                    Ok(CertificateInfo::from_pem(&leaf.certificate_pem)?.due_at())
                };
                Ok(vec![Kept {
                    name: "serving-kubelet",
                    due: CertificateInfo::from_pem(&leaf.certificate_pem)?.due_at(),
                    renew: Box::new(move || {
                        let made = ensure().map_err(|error| sampan_util::chain(&*error));
                        Box::pin(std::future::ready(made))
                    }),
                }])
            }
        }
    }
}

/// The kubelet's serving certificate, signed by the server in this process.
fn ensure_leaf(
    settings: &Settings,
    pki: &ServerPki,
    node: &NodeIdentity,
) -> anyhow::Result<Identity> {
    let spec = LeafSpec::server(
        &format!("system:node:{}", node.name),
        vec![node.name.clone()],
        node.ips.clone(),
    );
    let folder = settings.agent_dir().join("tls");
    let now = sampan_util::clock::plausible_now();
    pki.kubelet_ca
        .ensure_leaf(&folder, "serving-kubelet", &spec, now)
        .context("cannot make the kubelet's certificate")
}

/// A node that joins a server elsewhere.
pub(crate) async fn run(
    settings: Settings,
    node: NodeIdentity,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let parts = Parts::default();
    parts::follow(&parts, &settings.data_dir, &shutdown)?;
    let newcomer = Newcomer {
        server: settings
            .server
            .clone()
            .context("an agent needs --server, the URL of a server to join")?,
        token: sampan_cluster::token::given(&settings)?,
        node_name: node.name.clone(),
        dir: settings.agent_dir().join("tls"),
    };
    let joined = tokio::select! {
        joined = newcomer.join() => joined?,
        () = shutdown.wait() => return Ok(()),
    };
    let kubelet = Client::new(Arc::new(joined.kubelet.clone()));
    let kept = settings.agent_dir().join(CLUSTER_FILE);
    let cluster = tokio::select! {
        learned = info::learn(&kubelet, &kept) => learned?,
        () = shutdown.wait() => return Ok(()),
    };
    tracing::info!(server = %joined.newcomer.server, node = %node.name, "joined");
    parts::record_failures(&parts, kubelet.clone(), Some(&node.name));
    let membership = Membership {
        kubelet,
        proxy: Client::new(Arc::new(joined.proxy.clone())),
        serving: Arc::clone(&joined.serving),
        cluster,
        place: Place::Elsewhere(Box::new(joined)),
    };
    notify::notify("READY=1");
    let journal = open_journal(&settings)?;
    run_node(&settings, node, membership, (journal, parts), shutdown).await
}

/// The node of a server, in the same process.
pub(crate) async fn run_beside(
    settings: &Settings,
    plane: &ControlPlane,
    node: NodeIdentity,
    journal: Journal,
    parts: Parts,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let user = UserInfo::authenticated(format!("system:node:{}", node.name), &["system:nodes"]);
    let membership = Membership {
        kubelet: plane.client(user),
        proxy: plane.client(UserInfo::authenticated("system:kube-proxy", &[])),
        serving: ServerIdentity::new(&ensure_leaf(settings, &plane.pki, &node)?)?,
        cluster: crate::controlplane::cluster_info(
            settings,
            plane.pki.client_ca.certificate_pem().to_owned(),
        ),
        place: Place::Here(plane),
    };
    run_node(settings, node, membership, (journal, parts), shutdown).await
}

/// The parts of a node, until one of them cannot even start.
type Running = JoinSet<anyhow::Result<()>>;

/// What all parts of a node share.
struct Node<'a> {
    settings: &'a Settings,
    identity: NodeIdentity,
    membership: &'a Membership<'a>,
    journal: Journal,
    /// How the parts of this process are doing.
    parts: Parts,
    watcher: FileWatcher,
    /// Informers of the proxy's identity.
    informers: Informers,
    /// Tells the kubelet that something which makes the node ready has changed.
    nudge: Arc<Notify>,
    /// Of this round: the node's addresses may change.
    shutdown: Shutdown,
    /// Of the process.
    whole: Shutdown,
}

/// Runs the node until shutdown. When its addresses change, everything that stands on them is set up anew: kubelet,
/// network, proxy, DNS; the runtime and all containers go on.
async fn run_node(
    settings: &Settings,
    mut identity: NodeIdentity,
    membership: Membership<'_>,
    (journal, parts): (Journal, Parts),
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let watcher = FileWatcher::new().context("cannot watch files")?;
    let mut addresses = Addresses::follow(!settings.node_ips.is_empty());
    let mut runtime = None;
    let result = loop {
        let round = shutdown.child();
        let node = Node {
            settings,
            journal: journal.clone(),
            parts: parts.clone(),
            watcher: watcher.clone(),
            informers: Informers::new(membership.proxy.clone(), round.clone()),
            nudge: Arc::default(),
            identity: identity.clone(),
            membership: &membership,
            shutdown: round.clone(),
            whole: shutdown.clone(),
        };
        let mut work = std::pin::pin!(node.run(&mut runtime));
        let ips = tokio::select! {
            ended = &mut work => break ended,
            ips = addresses.changed(&identity.ips) => ips,
        };
        tracing::info!(from = ?identity.ips, to = ?ips, "this machine's address has changed");
        identity.ips = ips;
        if let Place::Elsewhere(joined) = &membership.place {
            joined.kubelet.reconnect()?;
            joined.proxy.reconnect()?;
        }
        round.trigger();
        // A request whose answer goes to the old address never ends by itself.
        match tokio::time::timeout(ROUND_END, &mut work).await {
            Ok(ended) => ended?,
            Err(_) => tracing::info!("what still waits for answers to the old address is dropped"),
        }
        if let Place::Here(plane) = &membership.place {
            plane.moved(settings, &identity).await?;
        }
    };
    shutdown.trigger();
    if let Some(mut runtime) = runtime {
        runtime.ended().await;
    }
    result
}

impl Node<'_> {
    /// All parts, in the order of need, until shutdown or until one of them fails.
    async fn run(&self, runtime: &mut Option<RuntimeHandle>) -> anyhow::Result<()> {
        let network = self.network_settings()?;
        // containerd reads the plugin's folders when it starts.
        for folder in [&network.paths.cni_bin, &network.paths.cni_conf] {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut running = Running::new();
        self.announce(&mut running)?;
        let network = self.spawn_network(network, &mut running)?;
        self.spawn_dns(network.as_ref(), &mut running);
        let network = network.map(|(network, _)| network);
        self.spawn_proxy(&mut running)?;
        let runtime = match runtime {
            Some(running) => running,
            None => {
                let started = tokio::select! {
                    started = self.start_runtime() => started?,
                    () = self.whole.wait() => return Ok(()),
                };
                self.release_leaked_addresses(network, &started).await;
                self.follow_runtime(&started);
                runtime.insert(started)
            }
        };
        let imported = self.spawn_images(runtime, &mut running);
        self.spawn_kubelet(runtime, imported, &mut running)?;
        self.spawn_membership(&mut running)?;
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) if self.shutdown.is_triggered() => {
                    tracing::debug!(%error, "ended with");
                }
                Ok(Err(error)) => return Err(error),
                Err(error) => tracing::error!(%error, "a part of the node ended"),
            }
        }
        Ok(())
    }

    /// Certificates are kept fresh, and the cluster's servers known.
    fn spawn_membership(&self, running: &mut Running) -> anyhow::Result<()> {
        let kept = self.membership.renewals(self.settings, &self.identity)?;
        let shutdown = self.shutdown.clone();
        running.spawn(async move {
            sampan_cluster::renew::keep(kept, shutdown).await;
            Ok(())
        });
        if let Place::Elsewhere(joined) = &self.membership.place {
            let slices = self.informers.lister::<EndpointSlice>();
            let (known, joined) = (slices.clone(), joined.clone());
            slices.on_change(move |_| {
                let transports = [joined.kubelet.clone(), joined.proxy.clone()];
                let all = known.list(None);
                joined
                    .servers
                    .learn(all.iter().map(Arc::as_ref), &transports);
            });
        }
        Ok(())
    }

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
    fn announce(&self, running: &mut Running) -> anyhow::Result<()> {
        let (client, settings) = (self.membership.kubelet.clone(), self.kubelet_settings()?);
        running.spawn(async move {
            // The kubelet registers the node in any case, a little later.
            if let Err(error) = sampan_kubelet::node::announce(&client, &settings).await {
                tracing::debug!(%error, "the node cannot be announced yet");
            }
            Ok(())
        });
        Ok(())
    }

    /// Runs a part of the node until the round ends, again and again; `make` gets the shutdown of one run.
    fn spawn_part<M, F>(&self, name: &'static str, running: &mut Running, make: M)
    where
        M: FnMut(Shutdown) -> F + Send + 'static,
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let (parts, shutdown) = (self.parts.clone(), self.shutdown.clone());
        running.spawn(async move { parts.run(name, shutdown, make).await });
    }

    fn spawn_network(
        &self,
        settings: sampan_network::settings::Settings,
        running: &mut Running,
    ) -> anyhow::Result<Option<(Network, sampan_network::Health)>> {
        if self.settings.is_disabled(Component::Network) {
            return Ok(None);
        }
        let network = Network::open(settings, &self.journal).context("pod network")?;
        let health = sampan_network::Health::default();
        let (ready, nudge) = (health.clone(), Arc::clone(&self.nudge));
        let shutdown = self.shutdown.clone();
        running.spawn(async move {
            tokio::select! {
                _ = ready.ready() => nudge.notify_one(),
                () = shutdown.wait() => {}
            }
            Ok(())
        });
        let (own, told, informers) = (network.clone(), health.clone(), self.informers.clone());
        self.spawn_part(parts::NETWORK, running, move |stop| {
            let (own, told) = (own.clone(), told.clone());
            let informers = informers.scoped(stop.clone());
            async move { own.run(&informers, told, stop).await.context("pod network") }
        });
        Ok(Some((network, health)))
    }

    /// DNS answers at the node's addresses among its pods, which the pod network knows.
    fn spawn_dns(
        &self,
        network: Option<&(Network, sampan_network::Health)>,
        running: &mut Running,
    ) {
        let (Some((_, network)), Some(settings)) = (network, self.dns_settings()) else {
            return;
        };
        let network = network.clone();
        let (informers, client) = (self.informers.clone(), self.membership.proxy.clone());
        self.spawn_part(parts::DNS, running, move |stop| {
            let (network, mut settings) = (network.clone(), settings.clone());
            let (informers, client) = (informers.scoped(stop.clone()), client.clone());
            async move {
                let state = tokio::select! {
                    state = network.ready() => state,
                    () = stop.wait() => return Ok(()),
                };
                let gateways = state.gateways.iter();
                settings.listen = gateways
                    .map(|address| SocketAddr::new(*address, DNS_PORT))
                    .collect();
                let run = sampan_dns::run(informers, client, settings, stop);
                run.await.context("DNS")
            }
        });
    }

    /// containerd is a process of its own, which its supervision starts again: told like the other parts.
    fn follow_runtime(&self, runtime: &RuntimeHandle) {
        let (mut up, parts, shutdown) = (runtime.up(), self.parts.clone(), self.whole.clone());
        drop(sampan_util::task::spawn("runtime-state", async move {
            loop {
                let state = up.borrow_and_update().clone();
                parts.tell(parts::RUNTIME, state);
                tokio::select! {
                    changed = up.changed() => if changed.is_err() { return },
                    () = shutdown.wait() => return,
                }
            }
        }));
    }

    /// Compares the addresses given out with the runtime's sandboxes, before the kubelet makes new ones.
    async fn release_leaked_addresses(&self, network: Option<Network>, runtime: &RuntimeHandle) {
        let Some(network) = network else { return };
        let all = ListPodSandboxRequest::default();
        let live = match runtime.runtime().list_pod_sandbox(all).await {
            Ok(reply) => reply.items.into_iter().map(|sandbox| sandbox.id).collect(),
            Err(error) => {
                tracing::warn!(%error, "cannot compare pod addresses with the runtime's sandboxes");
                return;
            }
        };
        match network.release_unknown(live).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "released pod addresses that no sandbox holds"),
            Err(error) => tracing::warn!("{error}"),
        }
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

    fn spawn_proxy(&self, running: &mut Running) -> anyhow::Result<()> {
        if self.settings.is_disabled(Component::KubeProxy) {
            return Ok(());
        }
        let mut settings = sampan_proxy::Settings::new(self.name());
        settings.node_ips = self.identity.ips.clone();
        settings.cluster_cidrs = ranges(&self.membership.cluster.cluster_cidrs)?;
        settings.service_cidrs = ranges(&self.membership.cluster.service_cidrs)?;
        let (informers, journal) = (self.informers.clone(), self.journal.clone());
        self.spawn_part(parts::PROXY, running, move |stop| {
            let (settings, journal) = (settings.clone(), journal.clone());
            let informers = informers.scoped(stop.clone());
            let health = sampan_proxy::Health::default();
            let (told, last) = (health.clone(), stop.clone());
            async move {
                let run = sampan_proxy::run(settings, &informers, &journal, health, stop.clone());
                let run = async { run.await.context("service proxy") };
                let serve = async {
                    let port = component::PROXY_PORT;
                    if let Some(listener) = component::listen("service proxy", port).await {
                        sampan_proxy::health::serve(listener, told, last).await;
                    } else {
                        last.wait().await;
                    }
                    Ok(())
                };
                component::together(&stop, run, serve).await
            }
        });
        Ok(())
    }

    /// Archives in `<data-dir>/agent/images` become images, at start and when they appear.
    /// Answers what is imported.
    fn spawn_images(
        &self,
        runtime: &RuntimeHandle,
        running: &mut Running,
    ) -> watch::Receiver<Imported> {
        if self.settings.container_runtime_endpoint.is_some() {
            return watch::channel(Some(Default::default())).1;
        }
        let settings = self.runtime_settings();
        let (tell, imported) = watch::channel(None);
        let (importer, watcher) = (runtime.importer(), self.watcher.clone());
        self.spawn_part(parts::IMAGES, running, move |stop| {
            let folder = ImageFolder::new(
                settings.images_dir(),
                &settings.containerd_dir(),
                (importer.clone(), watcher.clone()),
                tell.clone(),
            );
            async move { folder.run(stop).await.context("image folder") }
        });
        imported
    }

    fn runtime_settings(&self) -> RuntimeSettings {
        let agent_dir = self.settings.agent_dir();
        let paths = sampan_network::Paths::new(&agent_dir);
        let mut settings = RuntimeSettings::new(agent_dir, paths.cni_bin, paths.cni_conf);
        settings.endpoint = self.settings.container_runtime_endpoint.clone();
        settings.pause_image = self.settings.pause_image.clone();
        settings.registries = Some(self.settings.private_registry.clone());
        settings.debug = self.settings.debug;
        settings
    }

    async fn start_runtime(&self) -> anyhow::Result<RuntimeHandle> {
        let settings = self.runtime_settings();
        if settings.endpoint.is_none() {
            self.record_runtime_folders(&settings.state_dir())?;
        }
        supervisor::start(&settings, &self.watcher, &self.whole)
            .await
            .context("container runtime")
    }

    /// The runtime's state, and what containerds share.
    fn record_runtime_folders(&self, state: &Path) -> anyhow::Result<()> {
        let shared = SHARED_FOLDERS.into_iter().map(Path::new);
        let folders = shared
            .filter(|path| !path.exists())
            .chain(state.parent())
            .chain([state]);
        Ok(self
            .journal
            .record_all(folders.map(|path| Change::Directory {
                path: path.to_owned(),
                recursive: path == state,
            }))?)
    }

    /// Control groups for pods, known to the journal before there is one.
    fn cgroups(&self) -> anyhow::Result<Option<Cgroups>> {
        let cgroups = match Cgroups::detect(&self.settings.agent_dir()) {
            Ok(cgroups) => cgroups,
            Err(error) => {
                tracing::warn!(%error, "Pods run without cgroups of their own");
                return Ok(None);
            }
        };
        let folders = cgroups.folders().into_iter();
        self.journal
            .record_all(folders.map(|path| Change::Cgroup { path }))?;
        Ok(Some(cgroups))
    }

    fn spawn_kubelet(
        &self,
        runtime: &RuntimeHandle,
        imported: watch::Receiver<Imported>,
        running: &mut Running,
    ) -> anyhow::Result<()> {
        let part = Arc::new(kubelet::Part {
            settings: self.kubelet_settings()?,
            client: self.membership.kubelet.clone(),
            serving: Arc::clone(&self.membership.serving),
            client_authority: self.membership.cluster.client_authority.clone(),
            channel: runtime.channel.clone(),
            runtime_up: runtime.up(),
            cgroups: self.cgroups()?,
            journal: self.journal.clone(),
            nudge: Arc::clone(&self.nudge),
            watcher: self.watcher.clone(),
            imported,
            parts: self.parts.clone(),
        });
        let health = component::health(&self.parts, parts::KUBELET, "syncloop");
        let port = component::KUBELET_PORT;
        let serving = component::serve_health("kubelet", port, health, self.shutdown.clone());
        running.spawn(async move {
            serving.await;
            Ok(())
        });
        self.spawn_part(parts::KUBELET, running, move |stop| {
            let part = Arc::clone(&part);
            async move { part.run(stop).await }
        });
        Ok(())
    }

    fn kubelet_settings(&self) -> anyhow::Result<sampan_kubelet::Settings> {
        let agent_dir = self.settings.agent_dir();
        let mut settings = sampan_kubelet::Settings::new(self.name(), agent_dir);
        settings.node_ips = self.identity.ips.clone();
        settings.cluster_dns = addresses(&self.membership.cluster.cluster_dns);
        settings.cluster_domain = self.membership.cluster.cluster_domain.clone();
        let labels: BTreeMap<String, String> = self.settings.node_labels.iter().cloned().collect();
        settings.labels = labels;
        settings.taints = self.settings.node_taints.iter().map(taint).collect();
        settings.resolv_conf = Some(self.resolv_conf());
        settings.pause_image = self.settings.pause_image.clone();
        sampan_kubelet::arguments::apply(&mut settings, &self.settings.kubelet_args)?;
        Ok(settings)
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

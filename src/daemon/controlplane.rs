//! The control plane: store, API server, and what is written into it at every start.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use sampan_api::user::well_known;
use sampan_api::{Registry, UserInfo};
use sampan_apiserver::allocate::{Range, ServiceReserve};
use sampan_apiserver::auth::node::NodeAuthorizer;
use sampan_apiserver::auth::rbac::Rbac;
use sampan_apiserver::auth::union::{Masters, Union};
use sampan_apiserver::auth::{
    Authenticator, FrontProxy, ObjectSource, ServiceAccountTokens, StaticTokens, bootstrap,
};
use sampan_apiserver::discovery;
use sampan_apiserver::encryption::Keyring;
use sampan_apiserver::health::{Check, Health, Scope};
use sampan_apiserver::http::{ApiFront, FrontConfig};
use sampan_apiserver::metrics::{Extra, Metrics};
use sampan_apiserver::registry::hooks::Hooks;
use sampan_apiserver::registry::server::{ApiServer, Core};
use sampan_apiserver::request::Authorizer;
use sampan_apiserver::streams::{Relay, RelayConfig};
use sampan_apiserver::{admission, plain};
use sampan_client::Client;
use sampan_cluster::info::ClusterInfo;
use sampan_config::Settings;
use sampan_config::settings::Component;
use sampan_net::{CertificateChecker, ServerIdentity, TcpDialer};
use sampan_pki::server::ServerPki;
use sampan_store::Store as _;
use sampan_store::sqlite::{SqliteOptions, SqliteStore};
use sampan_util::{Parts, Shutdown, task};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::certificates::{self, Certificates};
use crate::component::Gate;
use crate::host_facts;
use crate::node::NodeIdentity;
use crate::parts;
use crate::preflight;

/// Who the server is when it prepares the cluster; nothing that serves requests acts as this.
const SETUP_USER: &str = "system:apiserver";
/// A little longer than the front gives running requests to end.
const LAST_ANSWERS: Duration = Duration::from_secs(12);
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// A control plane that serves.
pub(crate) struct ControlPlane {
    pub(crate) server: ApiServer,
    pub(crate) pki: Arc<ServerPki>,
    /// Where clients on this machine reach it.
    pub(crate) local_url: String,
    /// What the control plane's components let in.
    pub(crate) gate: Gate,
    pub(crate) certificates: Certificates,
    metrics: Arc<Metrics>,
    store: Arc<SqliteStore>,
    /// Ends when the last request was answered.
    serving: JoinHandle<Option<()>>,
}

impl ControlPlane {
    /// Opens the store, serves the API, and brings what every cluster has into place.
    pub(crate) async fn start(
        settings: &Settings,
        node: Option<&NodeIdentity>,
        parts: &Parts,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Self> {
        let advertise = advertised(settings, node);
        let listener = bind(settings).await?;
        let pki = Arc::new(certificates::ensure(settings, node)?);
        let password = sampan_cluster::token::ensure(settings, pki.server_ca.certificate_pem())?;
        let store = Arc::new(open_store(settings)?);
        let keys = Keyring::load_or_create(&settings.server_dir().join("cred"))?;
        let core = Core::open(store.clone(), Arc::new(Registry::builtin()), keys)
            .context("cannot load the store")?;
        let front = Front::new(settings, core, &pki, &password)?;
        front
            .health
            .add("etcd", Scope::LiveAndReady, store_check(store.clone()));
        parts::expose(parts, &front.health, &front.metrics);
        let server = front.server.clone();
        let metrics = Arc::clone(&front.metrics);
        let health = front.health.clone();
        let gate = Gate {
            authenticator: Arc::clone(&front.authenticator),
            authorizer: Arc::clone(&front.authorizer),
            identity: ServerIdentity::new(&pki.serving)?,
        };
        let prepared = ready_when_set(&health);
        let own_node = node.map(|node| node.name.clone());
        let relay = Arc::new(relay(&server, &pki, own_node)?);
        let certificates = Certificates::new(settings, node, &gate.identity, &relay);
        let shown = (Arc::clone(&gate.identity), relay);
        let serving = front.serve(listener, &pki, shown, &advertise, settings, shutdown)?;
        let plane = Self {
            certificates,
            server,
            gate,
            local_url: settings.local_url(),
            pki,
            metrics,
            store,
            serving,
        };
        plane.server.start_background(shutdown);
        plane.prepare(settings, &advertise).await?;
        prepared.store(true, Ordering::Release);
        Ok(plane)
    }

    /// A client with an identity of its own, inside this process.
    pub(crate) fn client(&self, user: UserInfo) -> Client {
        Client::new(self.server.transport(user))
    }

    /// Lines that `/metrics` shows beside the API server's own.
    pub(crate) fn add_metrics(&self, extra: Extra) {
        self.metrics.add_extra(extra);
    }

    pub(crate) fn setup_client(&self) -> Client {
        self.client(UserInfo::authenticated(SETUP_USER, &[well_known::MASTERS]))
    }

    /// Default roles, namespaces, the `kubernetes` Service, and what joining nodes read.
    async fn prepare(&self, settings: &Settings, advertise: &[IpAddr]) -> anyhow::Result<()> {
        let info = cluster_info(settings, self.pki.client_ca.certificate_pem().to_owned());
        // Data from before the file was written, or a store that came from elsewhere.
        if let Ok(before) = sampan_cluster::info::read(&self.setup_client()).await {
            preflight::refuse_change(&before, &info)?;
        }
        let user = UserInfo::authenticated(SETUP_USER, &[well_known::MASTERS]);
        let transport = self.server.transport(user);
        let objects = common_objects(settings, advertise);
        sampan_apiserver::bootstrap::ensure(&self.server, &objects)
            .await
            .context("cannot make the objects that every cluster has")?;
        bootstrap::reconcile(&*transport)
            .await
            .context("cannot bring the default roles into place")?;
        let rows = self.server.core().registry.snapshot();
        discovery::services::publish(&*transport, &rows, self.server.core().now())
            .await
            .context("cannot publish the API's groups")?;
        let authorities = bootstrap::published::Authorities {
            clients: self.pki.client_ca.certificate_pem(),
            request_headers: self.pki.request_header_ca.certificate_pem(),
            proxies: &["system:auth-proxy"],
        };
        bootstrap::published::publish(&*transport, &authorities)
            .await
            .context("cannot publish how requests are authenticated")?;
        if !settings.is_disabled(Component::Dns) {
            let addresses: Vec<IpAddr> = settings.cluster_dns_address().into_iter().collect();
            sampan_dns::publish::ensure_service(&self.setup_client(), &addresses)
                .await
                .context("cannot make the Service of DNS")?;
        }
        sampan_cluster::info::publish(&self.setup_client(), &info)
            .await
            .context("cannot publish the cluster's settings")?;
        sampan_cluster::info::keep(&cluster_file(settings), &info);
        Ok(())
    }

    /// The node has other addresses: certificate and endpoints follow.
    pub(crate) async fn moved(
        &self,
        settings: &Settings,
        node: &NodeIdentity,
    ) -> anyhow::Result<()> {
        self.certificates.follow(node)?;
        let objects = common_objects(settings, &advertised(settings, Some(node)));
        sampan_apiserver::bootstrap::ensure(&self.server, &objects)
            .await
            .context("cannot change the endpoints of the API")
    }

    /// Ready when nothing can be written any more.
    pub(crate) fn store_ended(&self) -> impl Future<Output = ()> + use<> {
        let ended = self.store.ended();
        async move {
            // That nobody is left to tell of the end is an end as well.
            let _ = ended.await;
        }
    }

    /// Waits for the last answers, writes what is still only in memory, and closes the store. The
    /// signal to stop serving must have been given.
    pub(crate) async fn close(self) {
        if tokio::time::timeout(LAST_ANSWERS, self.serving)
            .await
            .is_err()
        {
            tracing::warn!("requests that did not end in time are cut");
        }
        let store = self.store;
        let closed = tokio::task::spawn_blocking(move || store.close());
        if let Err(error) = closed.await {
            tracing::error!(%error, "the store could not be closed");
        }
    }
}

/// `/readyz` fails until this is set.
fn ready_when_set(health: &Health) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let prepared = flag.clone();
    let check = move || match prepared.load(Ordering::Acquire) {
        true => Ok(()),
        false => Err("the cluster's first objects are being made".to_owned()),
    };
    let name = "poststarthook/rbac/bootstrap-roles";
    health.add(name, Scope::ReadyOnly, Arc::new(check));
    flag
}

/// The API server before it listens.
struct Front {
    server: ApiServer,
    health: Health,
    metrics: Arc<Metrics>,
    authenticator: Arc<Authenticator>,
    authorizer: Arc<dyn Authorizer>,
}

impl Front {
    fn new(
        settings: &Settings,
        core: Arc<Core>,
        pki: &ServerPki,
        password: &str,
    ) -> anyhow::Result<Self> {
        let source: Arc<dyn ObjectSource> = core.clone();
        let rbac = Rbac::follow(&*source);
        let authorizer: Arc<dyn Authorizer> = Arc::new(Union(vec![
            Arc::new(Masters),
            NodeAuthorizer::follow(&*source, bootstrap::node_rules()),
            rbac.clone(),
        ]));
        let authenticator = Arc::new(authenticator(settings, pki, source, password)?);
        let health = Health::new();
        let hooks = Hooks {
            admission: admission::chain(&admission::Parts {
                core: &core,
                authorizer: &authorizer,
                rbac: &rbac,
            }),
            subresources: plain::subresources(authenticator.service_accounts().cloned()),
            virtuals: plain::virtuals(rbac.clone(), authenticator.clone(), health.clone()),
            reserves: vec![Arc::new(service_reserve(settings, &core))],
        };
        let server = ApiServer::new(core, authorizer.clone(), hooks);
        Ok(Self {
            server,
            health,
            metrics: Arc::new(Metrics::default()),
            authenticator,
            authorizer,
        })
    }

    /// Listens from now on; `/readyz` turns green when `prepare` is done.
    fn serve(
        self,
        listener: TcpListener,
        pki: &ServerPki,
        (identity, relay): (Arc<ServerIdentity>, Arc<Relay>),
        advertise: &[IpAddr],
        settings: &Settings,
        shutdown: &Shutdown,
    ) -> anyhow::Result<JoinHandle<Option<()>>> {
        let tls = sampan_net::tls::server_config(identity, &[b"h2", b"http/1.1"])?;
        let public = advertise.first().map_or_else(
            || format!("localhost:{}", settings.https_listen_port),
            |ip| SocketAddr::new(*ip, settings.https_listen_port).to_string(),
        );
        let front = ApiFront::new(FrontConfig {
            registry: self.server.core().registry.clone(),
            pipeline: Arc::new(self.server.clone()),
            authenticator: self.authenticator,
            authorizer: self.authorizer,
            health: self.health,
            metrics: self.metrics,
            relay,
            authorities_pem: pki.server_ca.certificate_pem().to_owned(),
            public_address: public,
            shutdown: shutdown.clone(),
        });
        let shutdown = shutdown.clone();
        Ok(task::spawn("apiserver", async move {
            front.serve(listener, tls, shutdown).await;
        }))
    }
}

/// The store lives in this process; what can fail by itself is the thread that writes.
fn store_check(store: Arc<SqliteStore>) -> Check {
    Arc::new(move || match store.status().problem {
        None => Ok(()),
        Some(problem) => Err(format!("the store takes no changes any more: {problem}")),
    })
}

fn relay(server: &ApiServer, pki: &ServerPki, own_node: Option<String>) -> anyhow::Result<Relay> {
    Ok(Relay::new(RelayConfig {
        objects: server.core().clone(),
        kubelet_client: pki.kubelet_client.clone(),
        kubelet_authorities: pki.kubelet_authorities(sampan_util::clock::plausible_now())?,
        own_node,
        dialer: Arc::new(TcpDialer),
    })?)
}

fn service_reserve(settings: &Settings, core: &Arc<Core>) -> ServiceReserve {
    ServiceReserve::new(core, &service_ranges(settings), settings.service_node_ports)
}

fn authenticator(
    settings: &Settings,
    pki: &ServerPki,
    source: Arc<dyn ObjectSource>,
    password: &str,
) -> anyhow::Result<Authenticator> {
    let mut tokens = static_tokens(settings)?;
    tokens.insert(
        password,
        UserInfo::authenticated("system:bootstrap:node-token", &[BOOTSTRAPPERS]),
    );
    let issuer = format!("https://kubernetes.default.svc.{}", settings.cluster_domain);
    let accounts = ServiceAccountTokens::new(
        pki.token_signer.clone(),
        pki.token_signer.verifier(),
        &issuer,
        source,
    );
    let front_proxy = FrontProxy {
        checker: CertificateChecker::new(pki.request_header_ca.certificate_pem())?,
        allowed_names: vec!["system:auth-proxy".to_owned()],
    };
    Ok(
        Authenticator::new(CertificateChecker::new(pki.client_ca.certificate_pem())?)
            .with_front_proxy(front_proxy)
            .with_static_tokens(tokens)
            .with_service_accounts(Arc::new(accounts)),
    )
}

pub(crate) fn static_tokens(settings: &Settings) -> anyhow::Result<StaticTokens> {
    match settings.apiserver_arg("token-auth-file") {
        Some(path) => read_tokens(Path::new(path)),
        None => Ok(StaticTokens::default()),
    }
}

fn read_tokens(path: &Path) -> anyhow::Result<StaticTokens> {
    let context = || format!("token-auth-file {}", path.display());
    let text = sampan_util::file::read_text(path).with_context(context)?;
    StaticTokens::parse(&text).with_context(context)
}

async fn bind(settings: &Settings) -> anyhow::Result<TcpListener> {
    let address = settings
        .bind_addresses
        .first()
        .copied()
        .unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let address = SocketAddr::new(address, settings.https_listen_port);
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address}; is something else there? Choose another port with --https-listen-port"
        )
    })
}

fn open_store(settings: &Settings) -> anyhow::Result<SqliteStore> {
    let directory = settings.server_dir().join("db");
    SqliteStore::open(SqliteOptions::new(&directory))
        .with_context(|| format!("cannot open the store in {}", directory.display()))
}

fn common_objects(
    settings: &Settings,
    advertise: &[IpAddr],
) -> sampan_apiserver::bootstrap::Settings {
    sampan_apiserver::bootstrap::Settings {
        // A loopback address, even one that was asked for, is no endpoint: pods would take it for their own.
        advertise: advertise
            .iter()
            .copied()
            .filter(|address| !address.is_loopback())
            .collect(),
        port: settings.https_listen_port,
        service_ranges: service_ranges(settings),
    }
}

/// As given, else where the API listens, else the node's address.
pub(crate) fn advertised(settings: &Settings, node: Option<&NodeIdentity>) -> Vec<IpAddr> {
    if !settings.advertise_addresses.is_empty() {
        return settings.advertise_addresses.clone();
    }
    let bound = settings.bind_addresses.iter().copied();
    // Endpoints must not be loopback addresses: pods would take them for their own.
    let bound: Vec<IpAddr> = bound
        .filter(|address| !address.is_unspecified() && !address.is_loopback())
        .collect();
    if !bound.is_empty() {
        return bound;
    }
    match node {
        Some(node) => node.ips.clone(),
        None => host_facts::node_address().into_iter().collect(),
    }
}

/// What the cluster was made with, readable without its store.
pub(crate) fn cluster_file(settings: &Settings) -> PathBuf {
    settings.server_dir().join("cluster.json")
}

pub(crate) fn cluster_info(settings: &Settings, client_authority: String) -> ClusterInfo {
    let texts = |ranges: &[ipnet::IpNet]| ranges.iter().map(ToString::to_string).collect();
    ClusterInfo {
        cluster_cidrs: texts(&settings.cluster_cidrs),
        service_cidrs: texts(&settings.service_cidrs),
        cluster_dns: settings
            .cluster_dns_address()
            .iter()
            .map(ToString::to_string)
            .collect(),
        cluster_domain: settings.cluster_domain.clone(),
        client_authority,
    }
}

fn service_ranges(settings: &Settings) -> Vec<Range> {
    settings
        .service_cidrs
        .iter()
        .map(|range| Range {
            network: range.network(),
            prefix: range.prefix_len(),
        })
        .collect()
}

//! The loop: the API says which nodes there are, the kernel gets links, routes and rules.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use sampan_client::{Informers, Lister};
use sampan_host::Journal;
use sampan_util::{Backoff, Shutdown};
use tokio::sync::{Notify, watch};

use crate::apply::{Complaint, Links, Tables};
use crate::attach::NodeSide;
use crate::cni::{self, Server};
use crate::ipam::{self, Ipam, replace_file};
use crate::plan::{NodeFacts, NodePlan, plan_node};
use crate::settings::Settings;
use crate::watch::Watch;
use crate::{apply, forwarding, install};

const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

const SETTLE: Duration = Duration::from_millis(300);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}; the pod network needs root (CAP_NET_ADMIN) and a kernel with nf_tables and veth")]
    Kernel(#[from] apply::Error),
    #[error(transparent)]
    Addresses(#[from] ipam::Error),
    #[error(transparent)]
    Install(#[from] install::Error),
    #[error("cannot serve the network plugin at {path}: {source}")]
    Socket {
        path: String,
        source: std::io::Error,
    },
    #[error("cannot release the addresses of sandboxes that are gone: {0}")]
    Release(String),
    #[error("the network could not be set up: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// How the pod network is doing; cloned to whoever reports it.
#[derive(Debug, Clone)]
pub struct Health(Arc<watch::Sender<State>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Pods can be attached.
    pub ready: bool,
    /// The node's own addresses among its pods (where its DNS listens).
    pub gateways: Vec<std::net::IpAddr>,
    /// What stands in the way, for people.
    pub complaints: Vec<String>,
}

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(watch::channel(State::default()).0))
    }
}

impl Health {
    pub fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Returns once pods can be attached.
    pub async fn ready(&self) -> State {
        self.wait_until(|state| state.ready).await
    }

    /// Returns once the state is as asked for.
    pub async fn wait_until(&self, condition: impl FnMut(&State) -> bool) -> State {
        let mut receiver = self.0.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let found = receiver
            .wait_for(condition)
            .await
            .map(|state| state.clone());
        found.unwrap_or_default()
    }

    pub fn subscribe(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }
}

/// Serves the plugin and follows the cluster's nodes until shutdown. Links, routes and rules stay
/// when it ends: pods go on.
pub async fn run(
    settings: Settings,
    informers: &Informers,
    journal: &Journal,
    health: Health,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let network = Network::open(settings, journal)?;
    network.run(informers, health, shutdown).await
}

/// The pod network of one node; copies are the same one.
#[derive(Clone)]
pub struct Network {
    settings: Arc<Settings>,
    journal: Journal,
    server: Server,
}

impl Network {
    /// Reads what was given out before; nothing on the host is changed yet.
    pub fn open(settings: Settings, journal: &Journal) -> Result<Self, Error> {
        Ok(Self {
            server: start(&settings, journal)?,
            settings: Arc::new(settings),
            journal: journal.clone(),
        })
    }

    /// See [`run`].
    pub async fn run(
        self,
        informers: &Informers,
        health: Health,
        shutdown: Shutdown,
    ) -> Result<(), Error> {
        let Self {
            settings,
            journal,
            server,
        } = &self;
        let serving = serve(server.clone(), settings, shutdown.clone());
        let following = follow(settings, informers, journal, server, &health, &shutdown);
        tokio::select! {
            result = serving => result,
            result = following => result,
        }
    }

    /// Gives back the addresses of sandboxes that the runtime does not know (any more): what a crash, or a runtime
    /// that lost its state, left behind. To be called while no sandbox is being made. Returns how many there were.
    pub async fn release_unknown(&self, live: HashSet<String>) -> Result<usize, Error> {
        let server = self.server.clone();
        let released = tokio::task::spawn_blocking(move || server.release_unknown(&live)).await?;
        released.map_err(|failure| Error::Release(failure.to_string()))
    }
}

fn start(settings: &Settings, journal: &Journal) -> Result<Server, Error> {
    let ipam = Ipam::open(settings.paths.addresses())?;
    let tables = Tables::open(journal)?;
    Ok(Server::new(
        ipam,
        tables,
        settings.families(),
        journal.clone(),
    ))
}

async fn serve(server: Server, settings: &Settings, shutdown: Shutdown) -> Result<(), Error> {
    let path = settings.paths.socket();
    let served = cni::serve(server, &path, shutdown).await;
    served.map_err(|source| Error::Socket {
        path: path.display().to_string(),
        source,
    })
}

/// Why the loop woke up.
pub(crate) enum Wake {
    Nodes,
    Retry,
    /// Somebody has changed links, addresses or routes that we rely on.
    Links,
    Tables,
}

struct Follower<'a> {
    settings: &'a Settings,
    journal: &'a Journal,
    server: &'a Server,
    health: &'a Health,
    nodes: Lister<Node>,
    changed: Arc<Notify>,
    watch: Watch,
    /// What is in place.
    applied: Option<NodePlan>,
    failures: u32,
}

async fn follow(
    settings: &Settings,
    informers: &Informers,
    journal: &Journal,
    server: &Server,
    health: &Health,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let nodes = informers.lister::<Node>();
    let changed = Arc::new(Notify::new());
    let wake = Arc::clone(&changed);
    nodes.on_change(move |_| wake.notify_one());
    let follower = Follower {
        settings,
        journal,
        server,
        health,
        nodes,
        changed,
        watch: Watch::open(),
        applied: None,
        failures: 0,
    };
    follower.run(shutdown).await
}

impl Follower<'_> {
    async fn run(mut self, shutdown: &Shutdown) -> Result<(), Error> {
        // Without the API the network comes up as it was; with it, whatever has changed follows.
        let mut wanted = read_last(self.settings);
        loop {
            if let Some(plan) = wanted {
                self.apply(plan).await;
            }
            let wake = tokio::select! {
                wake = self.wake() => wake,
                () = shutdown.wait() => return Ok(()),
            };
            wanted = match wake {
                Wake::Nodes | Wake::Retry => self.wanted(),
                // News of our own changes come late, and others' changes need not concern us.
                Wake::Links => {
                    let intact = self.links_are_intact();
                    self.again_unless(intact)
                }
                Wake::Tables => {
                    let intact = self.server.tables_are_intact();
                    self.again_unless(intact)
                }
            };
        }
    }

    async fn wake(&mut self) -> Wake {
        let retry = async {
            match self.failures {
                0 => std::future::pending().await,
                n => tokio::time::sleep(RETRY.delay(n - 1)).await,
            }
        };
        let plan = self.applied.as_ref();
        tokio::select! {
            () = self.changed.notified() => Wake::Nodes,
            () = retry => Wake::Retry,
            wake = self.watch.changed(plan) => {
                // Links come and go in bursts; once is enough for all of them.
                tokio::time::sleep(SETTLE).await;
                wake
            }
        }
    }

    /// The plan, if it is another than the one in place.
    fn wanted(&self) -> Option<NodePlan> {
        if !self.nodes.is_synced() {
            return read_last(self.settings).filter(|_| self.applied.is_none());
        }
        let nodes = self.nodes.list(None);
        let facts: Vec<_> = nodes.iter().map(|n| NodeFacts::of(n)).collect();
        let plan = plan_node(self.settings, &facts)?;
        write_last(self.settings, &facts);
        (self.applied.as_ref() != Some(&plan)).then_some(plan)
    }

    fn links_are_intact(&self) -> Result<bool, Error> {
        // What never was in place is not put back: the next attempt has its own time.
        let Some(plan) = &self.applied else {
            return Ok(true);
        };
        Ok(Links::open(self.journal)?.is_intact(plan)?)
    }

    /// The plan that was in place, to be put in place anew if it is not, or if nobody can tell.
    fn again_unless(&mut self, intact: Result<bool, impl std::fmt::Display>) -> Option<NodePlan> {
        match intact {
            Ok(true) => return None,
            Ok(false) => {
                tracing::info!("another program has changed the pod network; putting it back");
            }
            Err(error) => {
                tracing::warn!(%error, "cannot see whether the pod network is in place; putting it there anew");
            }
        }
        self.applied.take()
    }

    async fn apply(&mut self, plan: NodePlan) {
        let result = execute(self.settings, self.journal, self.server, &plan).await;
        report(self.health, &plan, &result);
        if result.is_ok_and(|complaints| complaints.is_empty()) {
            self.applied = Some(plan);
            self.failures = 0;
        } else {
            self.applied = None;
            self.failures += 1;
        }
    }
}

async fn execute(
    settings: &Settings,
    journal: &Journal,
    server: &Server,
    plan: &NodePlan,
) -> Result<Vec<Complaint>, Error> {
    let (settings, journal) = (settings.clone(), journal.clone());
    let (server, plan) = (server.clone(), plan.clone());
    let task = tokio::task::spawn_blocking(move || {
        let mut links = Links::open(&journal)?;
        let complaints = links.apply(&plan)?;
        let mtu = match settings.mtu {
            Some(mtu) => Some(mtu),
            None => links.uplink_mtu(&settings)?,
        };
        let side = NodeSide {
            gateways: plan.gateways.clone(),
            mtu,
        };
        server.set_node(&plan, side)?;
        if let Err(failure) = server.release_dead() {
            tracing::warn!(error = %failure, "cannot release the addresses of sandboxes that are gone");
        }
        install::install(&settings.paths, &settings.executable)?;
        Ok(complaints)
    });
    task.await?
}

fn report(health: &Health, plan: &NodePlan, result: &Result<Vec<Complaint>, Error>) {
    match result {
        Ok(complaints) => {
            let mut texts: Vec<_> = complaints.iter().map(|c| c.0.clone()).collect();
            for text in &texts {
                tracing::warn!("{text}");
            }
            let obstacles = forwarding::obstacles(&plan.cluster_cidrs).unwrap_or_default();
            for obstacle in obstacles {
                tracing::warn!("{obstacle}");
                texts.push(obstacle.to_string());
            }
            tracing::info!(ranges = ?plan.pod_cidrs, peers = plan.peers.len(), "pod network in place");
            health.0.send_modify(|state| {
                state.ready = true;
                state.gateways = plan.gateways.clone();
                state.complaints = texts;
            });
        }
        Err(error) => {
            tracing::error!(%error, "cannot set up the pod network");
            health
                .0
                .send_modify(|state| state.complaints = vec![error.to_string()]);
        }
    }
}

/// What the cluster looked like when the API was last seen.
fn read_last(settings: &Settings) -> Option<NodePlan> {
    let bytes = fs::read(settings.paths.last_node()).ok()?;
    let facts: Vec<NodeFacts> = serde_json::from_slice(&bytes).ok()?;
    plan_node(settings, &facts)
}

/// Losing this costs only a start without the API.
fn write_last(settings: &Settings, facts: &[NodeFacts]) {
    let path = settings.paths.last_node();
    let written = serde_json::to_vec(facts)
        .map_err(std::io::Error::from)
        .and_then(|bytes| {
            if fs::read(&path).is_ok_and(|old| old == bytes) {
                return Ok(());
            }
            replace_file(&path, &bytes)
        });
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "cannot note the cluster's nodes");
    }
}

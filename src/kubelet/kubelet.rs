//! Puts the parts together: what a kubelet is made of, and its start order.

use crate::cgroup::{Cgroups, Resources};
use crate::context::Context;
use crate::dirs::Dirs;
use crate::fields::Surroundings;
use crate::handlers::Handlers;
use crate::images::Puller;
use crate::inotify::FileWatcher;
use crate::lookup::Lookup;
use crate::machine::{Disk, MachineInfo};
use crate::manager::{Manager, Note, Notes, Views};
use crate::node::{NodeLoop, status};
use crate::objects::ObjectCache;
use crate::relist::Watch;
use crate::resolv::{self, Names};
use crate::runtime::images::Imported;
use crate::runtime::supervisor::Up;
use crate::settings::Settings;
use crate::static_pods;
use crate::volumes::mount;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use sampan_client::{Client, Informers, ListParams, Lister, Recorder};
use sampan_cri::{Channel, Containerd, Images, Runtime};
use sampan_host::Journal;
use sampan_util::{Shutdown, task};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write the journal of host changes")]
    Journal(#[source] sampan_host::Error),
    #[error("cannot set up the client of probes")]
    Client(#[from] sampan_net::client::ClientError),
}

/// What the kubelet works with.
pub struct Parts {
    /// Acts as `system:node:NAME`.
    pub client: Client,
    /// Informers of the same identity.
    pub informers: Informers,
    pub channel: Channel,
    /// Whether the runtime's process is up.
    pub runtime_up: watch::Receiver<Up>,
    /// `None` leaves pods where the runtime puts them: for machines without cgroups.
    pub cgroups: Option<Cgroups>,
    pub journal: Option<Journal>,
    /// Notified when something changes that makes the node ready, such as the pod network.
    pub nudge: Arc<Notify>,
    pub watcher: FileWatcher,
    /// What came from archives.
    pub imported: watch::Receiver<Imported>,
}

/// A kubelet that is ready to run.
pub struct Kubelet {
    settings: Arc<Settings>,
    parts: Parts,
    machine: MachineInfo,
    recorder: Recorder,
    views: Arc<Views>,
}

impl Kubelet {
    /// Must be called within a tokio runtime.
    pub fn new(settings: Settings, parts: Parts) -> Self {
        let recorder = Recorder::new(parts.client.clone(), "kubelet", &settings.node_name);
        Self {
            settings: Arc::new(settings),
            parts,
            machine: MachineInfo::read(),
            recorder,
            views: Arc::default(),
        }
    }

    /// For the server on 10250.
    pub fn lookup(&self) -> Arc<dyn Lookup> {
        Arc::clone(&self.views) as Arc<dyn Lookup>
    }

    /// Runs until shutdown; containers keep running.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), Error> {
        let dirs = self.prepare_host()?;
        let (network, network_state) = watch::channel(Err(
            "container runtime status check may not have completed yet".to_owned(),
        ));
        let node = task::spawn("node", self.node_loop(network).run(shutdown.clone()));
        let pods = self.run_pods(dirs, network_state, shutdown).await;
        // The loop ends with the shutdown that ended the pods.
        let _ended = node.await;
        pods
    }

    /// Directories, mounts and cgroups that pods stand on.
    fn prepare_host(&self) -> Result<Dirs, Error> {
        let dirs = Dirs::new(&self.settings.agent_dir);
        for path in [&dirs.pods, &dirs.logs, &dirs.seccomp] {
            std::fs::create_dir_all(path).map_err(|source| Error::File {
                action: "create",
                path: path.clone(),
                source,
            })?;
        }
        let shared = mount::ensure_shared(&dirs.pods).map_err(|source| Error::File {
            action: "make a shared mount of",
            path: dirs.pods.clone(),
            source,
        })?;
        if let Some(journal) = self.parts.journal.as_ref().filter(|_| shared) {
            let target = dirs.pods.clone();
            journal
                .record(sampan_host::Change::Mount { target })
                .map_err(Error::Journal)?;
        }
        if let Some(cgroups) = &self.parts.cgroups
            && let Err(error) = cgroups.prepare_node(&self.node_limits())
        {
            tracing::warn!(%error, "pods cannot be bounded together");
        }
        Ok(dirs)
    }

    /// All pods together may use what is allocatable.
    fn node_limits(&self) -> Resources {
        Resources {
            cpu_shares: Some(self.machine.cpus * 1024),
            ..Resources::default()
        }
    }

    fn node_loop(&self, network: watch::Sender<Result<(), String>>) -> NodeLoop {
        let channel = &self.parts.channel;
        NodeLoop {
            settings: Arc::clone(&self.settings),
            client: self.parts.client.clone(),
            recorder: self.recorder.clone(),
            runtime: Runtime::new(channel.clone()),
            images: Images::new(channel.clone()),
            machine: self.machine.clone(),
            data_dir: self.settings.agent_dir.clone(),
            nudge: Arc::clone(&self.parts.nudge),
            up: self.parts.runtime_up.clone(),
            network,
        }
    }

    fn names(&self) -> Names {
        let path = self.settings.resolv_conf.as_ref();
        let host = path.and_then(|path| sampan_util::file::read_text(path).ok());
        let dns = self.settings.cluster_dns.iter();
        Names {
            cluster_dns: dns.map(ToString::to_string).collect(),
            cluster_domain: self.settings.cluster_domain.clone(),
            host: host.as_deref().map(resolv::parse).unwrap_or_default(),
        }
    }

    fn around(&self) -> Surroundings {
        let disk = Disk::read(&self.settings.agent_dir).unwrap_or_default();
        let ips = self.settings.node_ips.iter();
        Surroundings {
            host_ips: ips.map(ToString::to_string).collect(),
            pod_ips: Vec::new(),
            allocatable: status::allocatable(&self.settings, &self.machine, &disk),
        }
    }

    pub(crate) fn context(
        &self,
        dirs: Dirs,
        network: watch::Receiver<Result<(), String>>,
        shutdown: &Shutdown,
    ) -> Result<Arc<Context>, Error> {
        let client = self.parts.client.clone();
        let runtime = Runtime::new(self.parts.channel.clone());
        let images = Images::new(self.parts.channel.clone());
        Ok(Arc::new(Context {
            settings: Arc::clone(&self.settings),
            node_name: self.settings.node_name.clone(),
            recorder: self.recorder.clone(),
            puller: Puller::new(
                images,
                client.clone(),
                self.recorder.clone(),
                self.settings.parallel_pulls,
                self.parts.imported.clone(),
            ),
            handlers: Handlers::new(runtime.clone())?,
            objects: ObjectCache::new(client.clone(), shutdown.clone()),
            services: self.parts.informers.lister::<Service>(),
            cgroups: self.parts.cgroups.clone(),
            names: self.names(),
            relister: Arc::clone(&self.views.relister),
            around: self.around(),
            node_memory: i64::try_from(self.machine.memory_bytes).unwrap_or(i64::MAX),
            client,
            runtime,
            dirs,
            network,
        }))
    }

    async fn run_pods(
        &self,
        dirs: Dirs,
        network: watch::Receiver<Result<(), String>>,
        shutdown: Shutdown,
    ) -> Result<(), Error> {
        let context = self.context(dirs, network, &shutdown)?;
        let name = &self.settings.node_name;
        let informers = &self.parts.informers;
        let on_node = ListParams::fields(format!("spec.nodeName={name}"));
        let pods = informers.lister_with::<Pod>(None, on_node);
        let itself = ListParams::fields(format!("metadata.name={name}"));
        let node = informers.lister_with::<Node>(None, itself);
        let notes: Arc<Notes> = Arc::default();
        Manager::listen(&pods, &notes);
        let shown = self.follow_static_pods(&notes, &pods, &node, &shutdown);
        let watching = task::spawn("relist", {
            let shutdown = shutdown.clone();
            let watch = self.watch(&context, &notes);
            // The manager looks at them once it knows which pods are whose.
            notes.send(Note::Runtime(Manager::find_leftovers(&context)));
            async move { watch.run(shutdown).await }
        });
        let rotation = crate::log_rotation::run(
            Arc::clone(&self.settings),
            Arc::clone(&self.views),
            context.runtime.clone(),
            shutdown.clone(),
        );
        task::spawn("log-rotation", rotation);
        let images = crate::image_gc::Collector {
            settings: Arc::clone(&self.settings),
            runtime: context.runtime.clone(),
            images: Images::new(self.parts.channel.clone()),
            recorder: self.recorder.clone(),
            imported: self.parts.imported.clone(),
        };
        task::spawn("image-gc", images.run(shutdown.clone()));
        let limits = crate::storage_limits::Watch {
            views: Arc::clone(&self.views),
            dirs: context.dirs.clone(),
            runtime: context.runtime.clone(),
            notes: notes.clone(),
        };
        task::spawn("storage-limits", limits.run(shutdown.clone()));
        let manager = Manager::new(
            context,
            Arc::clone(&self.views),
            node,
            pods,
            notes,
            shown,
            shutdown,
        );
        manager.run().await;
        let _ended = watching.await;
        Ok(())
    }

    /// Follows the folder of manifests; answers where to say which pods the API is to show.
    fn follow_static_pods(
        &self,
        notes: &Arc<Notes>,
        pods: &Lister<Pod>,
        node: &Lister<Node>,
        shutdown: &Shutdown,
    ) -> watch::Sender<Vec<Arc<Pod>>> {
        let name = &self.settings.node_name;
        let follower = static_pods::Follower {
            source: static_pods::Source::new(self.settings.static_pods.clone(), name),
            watcher: self.parts.watcher.clone(),
            recorder: self.recorder.clone(),
            notes: notes.clone(),
        };
        task::spawn("static-pods", follower.run(shutdown.clone()));
        let (shown, wanted) = watch::channel(Vec::new());
        let mirrors = static_pods::mirrors::Mirrors {
            client: self.parts.client.clone(),
            node_name: name.clone(),
            node: node.clone(),
            pods: pods.clone(),
            wanted,
        };
        task::spawn("mirror-pods", mirrors.run(shutdown.clone()));
        shown
    }

    fn watch(
        &self,
        context: &Context,
        notes: &Arc<Notes>,
    ) -> Watch<impl Fn(Vec<crate::relist::SeenPod>) + Send + Sync + use<>> {
        let notes = notes.clone();
        Watch {
            runtime: context.runtime.clone(),
            containerd: Containerd::new(self.parts.channel.clone()),
            relister: Arc::clone(&context.relister),
            report: move |seen| notes.send(Note::Runtime(seen)),
        }
    }
}

//! Keeps a container runtime at hand: our own containerd, or a given one.
//!
//! Our containerd is a child in its own process group. It is started again with back-off when it dies and is stopped
//! with us; the shims, and with them all containers, live on and are found again by the next one.

use super::binaries;
use super::config::{ContainerdConfig, render_config};
use super::process::{self, Launch, Process};
use super::registries::Registries;
use super::{Error, pause};
use crate::inotify::{FileWatch, FileWatcher};
use sampan_cri::import::{Importer, oci};
use sampan_cri::runtime::v1::{StatusRequest, VersionRequest};
use sampan_cri::{Channel, Containerd, Images, Runtime};
use sampan_util::{Backoff, Shutdown};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const START_DEADLINE: Duration = Duration::from_secs(60);
/// A run that lasted so long makes earlier failures forgotten.
const STABLE: Duration = Duration::from_secs(60);
const DEFAULT_SNAPSHOTTER: &str = "overlayfs";

#[derive(Debug, Clone)]
pub struct RuntimeSettings {
    /// `<data-dir>/agent`.
    pub agent_dir: PathBuf,
    /// Where our CNI plugins and their configuration are, for our own containerd.
    pub cni_bin: PathBuf,
    pub cni_conf: PathBuf,
    /// `--container-runtime-endpoint`: use this socket and start nothing.
    pub endpoint: Option<PathBuf>,
    /// `--pause-image`: not made by us then, but pulled or imported.
    pub pause_image: Option<String>,
    /// Mirrors, certificates and logins of registries, if the file is there.
    pub registries: Option<PathBuf>,
    pub max_concurrent_downloads: u32,
    pub debug: bool,
}

impl RuntimeSettings {
    pub fn new(agent_dir: PathBuf, cni_bin: PathBuf, cni_conf: PathBuf) -> Self {
        Self {
            agent_dir,
            cni_bin,
            cni_conf,
            endpoint: None,
            pause_image: None,
            registries: None,
            max_concurrent_downloads: 3,
            debug: false,
        }
    }

    /// Sockets have short names only, so they cannot lie below a data directory of any length. Gone after a reboot.
    pub fn state_dir(&self) -> PathBuf {
        let digest = oci::digest(self.agent_dir.as_os_str().as_encoded_bytes());
        let hex = digest.trim_start_matches("sha256:");
        Path::new("/run/sampan").join(&hex[..12])
    }

    pub fn images_dir(&self) -> PathBuf {
        self.agent_dir.join("images")
    }

    /// What containerd and image import keep.
    pub fn containerd_dir(&self) -> PathBuf {
        self.agent_dir.join("containerd")
    }
}

/// Whether the runtime's process is up; else why not.
pub type Up = Result<(), String>;

/// A runtime that answered. The channel outlives restarts of the runtime.
#[derive(Debug)]
pub struct RuntimeHandle {
    pub channel: Channel,
    pub socket: PathBuf,
    /// For pods' sandboxes; images of this name must never be collected.
    pub pause_image: String,
    snapshotter: String,
    up: watch::Receiver<Up>,
    supervision: Option<JoinHandle<()>>,
}

impl RuntimeHandle {
    pub fn runtime(&self) -> Runtime {
        Runtime::new(self.channel.clone())
    }

    pub fn images(&self) -> Images {
        Images::new(self.channel.clone())
    }

    pub fn containerd(&self) -> Containerd {
        Containerd::new(self.channel.clone())
    }

    pub fn importer(&self) -> Importer {
        Importer::new(self.channel.clone(), &self.snapshotter)
    }

    /// Whether our containerd is running; a runtime that is not ours counts as up.
    pub fn up(&self) -> watch::Receiver<Up> {
        self.up.clone()
    }

    /// Returns when our containerd has ended after shutdown.
    pub async fn ended(&mut self) {
        if let Some(supervision) = self.supervision.take()
            && let Err(error) = supervision.await
        {
            tracing::error!(%error, "the supervision of containerd failed");
        }
    }
}

/// Starts or connects, and returns when the runtime answers and the sandbox image is there.
pub async fn start(
    settings: &RuntimeSettings,
    watcher: &FileWatcher,
    shutdown: &Shutdown,
) -> Result<RuntimeHandle, Error> {
    match &settings.endpoint {
        Some(endpoint) => connect(settings, endpoint).await,
        None => supervise(settings, watcher, shutdown).await,
    }
}

async fn connect(settings: &RuntimeSettings, endpoint: &Path) -> Result<RuntimeHandle, Error> {
    let text = endpoint.to_string_lossy();
    let socket = PathBuf::from(text.strip_prefix("unix://").unwrap_or(&text));
    let channel = sampan_cri::connect(&socket).await?;
    let runtime = Runtime::new(channel.clone());
    runtime.version(VersionRequest::default()).await?;
    let told = Told::ask(&runtime).await;
    let (_, up) = watch::channel(Ok(()));
    Ok(RuntimeHandle {
        channel,
        socket,
        pause_image: settings
            .pause_image
            .clone()
            .or(told.sandbox_image)
            .unwrap_or_else(|| pause::NAME.to_owned()),
        snapshotter: told
            .snapshotter
            .unwrap_or_else(|| DEFAULT_SNAPSHOTTER.to_owned()),
        up,
        supervision: None,
    })
}

/// What containerd says about its configuration (CRI-O says nothing, which is fine).
#[derive(Debug, Default)]
struct Told {
    snapshotter: Option<String>,
    sandbox_image: Option<String>,
}

impl Told {
    async fn ask(runtime: &Runtime) -> Self {
        let request = StatusRequest { verbose: true };
        let info = match runtime.status(request).await {
            Ok(reply) => reply.info,
            Err(_) => return Self::default(),
        };
        let config: serde_json::Value = info
            .get("config")
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let text = |pointer: &str| {
            let value = config.pointer(pointer)?.as_str()?;
            Some(value.to_owned())
        };
        Self {
            snapshotter: text("/containerd/snapshotter"),
            sandbox_image: text("/sandboxImage"),
        }
    }
}

async fn supervise(
    settings: &RuntimeSettings,
    watcher: &FileWatcher,
    shutdown: &Shutdown,
) -> Result<RuntimeHandle, Error> {
    let plan = Plan::prepare(settings)?;
    process::end_leftover(&plan.launch.pid_file, &plan.launch.config).await?;
    let watched = watcher.watch(&plan.state);
    let sockets = watched.map_err(|source| Error::Watch {
        path: plan.state.clone(),
        source,
    })?;
    let (mut process, channel) = plan.start(&sockets).await?;

    let handle = RuntimeHandle {
        channel: channel.clone(),
        socket: plan.socket.clone(),
        pause_image: plan.pause_image.clone(),
        snapshotter: plan.snapshotter.clone(),
        up: watch::channel(Ok(())).1,
        supervision: None,
    };
    let imported = tokio::select! {
        imported = import_pause(settings, &handle) => imported,
        status = &mut process.exited => Err(plan.ended(status)),
    };
    if let Err(error) = imported {
        process.stop().await;
        return Err(error);
    }
    let (tell, up) = watch::channel(Ok(()));
    let supervision = tokio::spawn(keep(plan, process, sockets, tell, shutdown.clone()));
    Ok(RuntimeHandle {
        up,
        supervision: Some(supervision),
        ..handle
    })
}

async fn import_pause(settings: &RuntimeSettings, handle: &RuntimeHandle) -> Result<(), Error> {
    if settings.pause_image.is_some() {
        return Ok(());
    }
    let importer = handle.importer();
    if importer.has_all(&[pause::NAME.to_owned()]).await? {
        return Ok(());
    }
    if let Some(bundle) = pause::bundle() {
        importer.import(&bundle).await?;
    } else {
        tracing::warn!("no sandbox image for this architecture: give one with --pause-image");
    }
    Ok(())
}

/// The loop of supervision: waits for the end of one process, starts the next.
async fn keep(
    plan: Plan,
    mut process: Process,
    sockets: FileWatch,
    up: watch::Sender<Up>,
    shutdown: Shutdown,
) {
    let tell = |state: Up| up.send_modify(|up| *up = state);
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
    let mut failures = 0;
    loop {
        let started = Instant::now();
        // Whoever follows `up` tells people.
        tokio::select! {
            () = shutdown.wait() => {
                process.stop().await;
                return;
            }
            status = &mut process.exited => {
                tell(Err(plan.ended(status).to_string()));
            }
        }
        if started.elapsed() > STABLE {
            failures = 0;
        }
        process = loop {
            let delay = backoff.delay(failures);
            failures += 1;
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(delay) => {}
            }
            tokio::select! {
                // Dropping the start leaves a child that ends with our thread, at the latest with us.
                () = shutdown.wait() => return,
                started = plan.start(&sockets) => match started {
                    Ok((process, _)) => break process,
                    Err(error) => {
                        tell(Err(format!("it does not start: {error}")));
                    }
                },
            }
        };
        tell(Ok(()));
    }
}

/// Everything needed to start a containerd, again and again.
#[derive(Debug)]
struct Plan {
    launch: Launch,
    state: PathBuf,
    socket: PathBuf,
    pause_image: String,
    snapshotter: String,
}

impl Plan {
    fn prepare(settings: &RuntimeSettings) -> Result<Self, Error> {
        let home = settings.containerd_dir();
        let own = settings.agent_dir.join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let binaries = binaries::find(&own, &path)?;
        let state = settings.state_dir();
        let socket = state.join("containerd.sock");
        let root = home.join("root");
        let registry = home.join("certs.d");
        for folder in [&home, &root, &state, &registry] {
            make_private(folder)?;
        }
        for folder in [&settings.cni_bin, &settings.cni_conf] {
            fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        }
        let registries = settings.registries.as_deref().map(Registries::read);
        let registries = registries.transpose()?.unwrap_or_default();
        registries.write(&registry)?;
        let logins = registries.logins();
        let pause_image = settings.pause_image.as_deref().unwrap_or(pause::NAME);
        let snapshotter = snapshotter(&root);
        let config = ContainerdConfig {
            root,
            state: state.clone(),
            socket: socket.clone(),
            opt: home.join("opt"),
            runc: binaries.runc.clone(),
            cni_bin: settings.cni_bin.clone(),
            cni_conf: settings.cni_conf.clone(),
            registry,
            sandbox_image: pause_image.to_owned(),
            snapshotter: snapshotter.to_owned(),
            max_concurrent_downloads: settings.max_concurrent_downloads,
            may_lower_oom_score: may_lower_oom_score(),
            logins: logins
                .map(|(host, login)| (host.to_owned(), login.clone()))
                .collect(),
        };
        let launch = Launch {
            binaries,
            config: home.join("config.toml"),
            log: home.join("containerd.log"),
            pid_file: home.join("containerd.pid"),
            level: if settings.debug { "info" } else { "warn" },
        };
        // It may hold passwords.
        sampan_pki::files::write_atomic(
            &launch.config,
            render_config(&config).as_bytes(),
            sampan_pki::files::PRIVATE,
        )
        .map_err(|error| Error::file("write", &launch.config)(std::io::Error::other(error)))?;
        Ok(Self {
            launch,
            state,
            socket,
            pause_image: pause_image.to_owned(),
            snapshotter: snapshotter.to_owned(),
        })
    }

    /// Starts a process and waits until it answers CRI calls.
    async fn start(&self, sockets: &FileWatch) -> Result<(Process, Channel), Error> {
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("remove", &self.socket)(error));
            }
            _ => {}
        }
        let mut process = Process::spawn(&self.launch)?;
        let answered = tokio::select! {
            answered = tokio::time::timeout(START_DEADLINE, self.answered(sockets)) => answered,
            status = &mut process.exited => return Err(self.ended(status)),
        };
        match answered {
            Ok(channel) => Ok((process, channel)),
            Err(_) => {
                process.stop().await;
                Err(Error::NotReady {
                    seconds: START_DEADLINE.as_secs(),
                    log: self.launch.log.clone(),
                })
            }
        }
    }

    /// The socket's appearance is an event; between that and the first answer lie a few milliseconds without one.
    async fn answered(&self, sockets: &FileWatch) -> Channel {
        while !self.socket.exists() {
            sockets.changed().await;
        }
        let mut delay = Duration::from_millis(2);
        loop {
            if let Ok(channel) = sampan_cri::connect(&self.socket).await {
                let runtime = Runtime::new(channel.clone());
                match runtime.version(VersionRequest::default()).await {
                    Ok(_) => return channel,
                    Err(error) => tracing::debug!(%error, "containerd is not ready yet"),
                }
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(Duration::from_millis(100));
        }
    }

    fn ended(
        &self,
        status: Result<std::io::Result<std::process::ExitStatus>, impl std::fmt::Display>,
    ) -> Error {
        let status = match status {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        Error::Ended {
            status,
            log: self.launch.log.clone(),
        }
    }
}

fn make_private(folder: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(folder)
        .map_err(Error::file("create", folder))
}

/// overlayfs cannot lie on overlayfs: in a container whose disk is one, layers are copied.
fn snapshotter(root: &Path) -> &'static str {
    const OVERLAYFS_MAGIC: u64 = 0x794c_7630;
    match rustix::fs::statfs(root) {
        #[allow(clippy::unnecessary_cast)] // The field's type differs between architectures.
        Ok(found) if found.f_type as u64 == OVERLAYFS_MAGIC => "native",
        _ => DEFAULT_SNAPSHOTTER,
    }
}

fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & CAP_SYS_RESOURCE != 0)
}

//! What the container runtime holds for one pod, as plain data.

use jiff::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// The user a container runs as, where the runtime reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunUser {
    pub uid: i64,
    pub gid: i64,
    pub groups: Vec<i64>,
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    /// Hash of the container's definition when it was created.
    pub hash: u64,
    pub restart_count: u32,
    pub state: RunState,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub image: String,
    pub image_ref: String,
    pub user: Option<RunUser>,
}

impl Instance {
    pub fn is_live(&self) -> bool {
        matches!(self.state, RunState::Running | RunState::Unknown)
    }

    pub fn has_failed(&self) -> bool {
        self.state == RunState::Exited && self.exit_code != 0
    }

    pub fn has_succeeded(&self) -> bool {
        self.state == RunState::Exited && self.exit_code == 0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: Timestamp,
    pub ips: Vec<String>,
    pub host_network: bool,
}

/// Sandboxes and containers of one pod, newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodRuntime {
    pub sandboxes: Vec<Sandbox>,
    pub instances: Vec<Instance>,
}

impl PodRuntime {
    /// The newest run of a container.
    pub fn latest(&self, container: &str) -> Option<&Instance> {
        self.instances.iter().find(|i| i.name == container)
    }

    pub fn runs<'a>(&'a self, container: &'a str) -> impl Iterator<Item = &'a Instance> {
        self.instances.iter().filter(move |i| i.name == container)
    }

    pub fn live(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(|i| i.is_live())
    }

    pub fn ready_sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandboxes.iter().filter(|s| s.ready)
    }

    /// The sandbox in use: the newest, if it is ready.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    pub fn ips(&self) -> &[String] {
        self.sandbox().map_or(&[], |s| s.ips.as_slice())
    }

    /// Whether any of `containers` was ever created.
    pub fn any_created<'a>(&self, mut containers: impl Iterator<Item = &'a str>) -> bool {
        containers.any(|name| {
            self.latest(name)
                .is_some_and(|i| i.state != RunState::Unknown)
        })
    }
}

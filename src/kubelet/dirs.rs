//! Where the files of a pod lie: everything below the agent's data directory.

use crate::pod;
use k8s_openapi::api::core::v1::Pod;
use std::path::{Path, PathBuf};

/// The directories of the kubelet.
#[derive(Debug, Clone)]
pub struct Dirs {
    /// One directory per pod uid.
    pub pods: PathBuf,
    pub logs: PathBuf,
    pub seccomp: PathBuf,
}

impl Dirs {
    pub fn new(agent_dir: &Path) -> Self {
        Self {
            pods: agent_dir.join("pods"),
            logs: agent_dir.join("logs"),
            seccomp: agent_dir.join("seccomp"),
        }
    }

    pub fn of(&self, pod: &Pod) -> PodDirs {
        let uid = pod::uid(pod);
        let log = format!("{}_{}_{uid}", pod::namespace(pod), pod::name(pod));
        PodDirs {
            root: self.pods.join(uid),
            logs: self.logs.join(log),
        }
    }
}

#[derive(Debug, Clone)]
pub struct PodDirs {
    pub root: PathBuf,
    pub logs: PathBuf,
}

impl PodDirs {
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.root.join("volumes").join(plugin).join(name)
    }

    pub fn subpath(&self, volume: &str, container: &str, index: usize) -> PathBuf {
        let base = self.root.join("volume-subpaths");
        base.join(volume).join(container).join(index.to_string())
    }

    pub fn hosts(&self) -> PathBuf {
        self.root.join("etc-hosts")
    }

    /// Where one run of a container leaves its last words.
    pub fn message(&self, container: &str, run: &str) -> PathBuf {
        self.root.join("containers").join(container).join(run)
    }

    pub fn container_logs(&self, container: &str) -> PathBuf {
        self.logs.join(container)
    }
}

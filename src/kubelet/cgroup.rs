//! The cgroups above the containers': one for all pods of this node, one for each class of service, one for each pod.
//!
//! Everything lies under a parent named after the data directory, so that two nodes on one kernel do not meet:
//! `/sampan-<id>/kubepods/{,burstable/,besteffort/}pod<uid>`. The runtime makes the containers' own cgroups below a
//! pod's. [`driver`] writes files, [`resources`] computes what to write from a pod, [`usage`] reads figures back.

pub mod driver;
pub mod kernel_log;
pub mod resources;
pub mod usage;

pub use driver::{Hierarchy, Version};
pub use resources::{Resources, pod_resources};
pub use usage::Usage;

use crate::qos;
use sampan_cri::import::oci;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no cgroup hierarchy with the controllers {missing:?} is mounted: mount cgroup2 on /sys/fs/cgroup"
    )]
    NotMounted { missing: Vec<&'static str> },
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The cgroups of one node. Calls write to the kernel and return quickly, save [`Cgroups::remove_pod`].
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    kubepods: String,
}

/// Pods of these classes have a cgroup of their class between their own and the node's.
const CLASS_FOLDERS: [(&str, &str); 2] = [
    (qos::BURSTABLE, "burstable"),
    (qos::BEST_EFFORT, "besteffort"),
];

impl Cgroups {
    /// Looks at what is mounted.
    pub fn detect(agent_dir: &Path) -> Result<Self, Error> {
        Ok(Self::new(Hierarchy::detect()?, agent_dir))
    }

    pub fn new(hierarchy: Hierarchy, agent_dir: &Path) -> Self {
        let digest = oci::digest(agent_dir.as_os_str().as_encoded_bytes());
        let id = &digest.trim_start_matches("sha256:")[..12];
        Self {
            hierarchy,
            kubepods: format!("/sampan-{id}/kubepods"),
        }
    }

    pub fn version(&self) -> Version {
        self.hierarchy.version()
    }

    /// The cgroup of all pods.
    pub fn kubepods(&self) -> &str {
        &self.kubepods
    }

    /// Where pods of a class (`Guaranteed`, `Burstable`, `BestEffort`) lie.
    pub fn class_path(&self, class: &str) -> String {
        match CLASS_FOLDERS.iter().find(|(name, _)| *name == class) {
            Some((_, folder)) => format!("{}/{folder}", self.kubepods),
            None => self.kubepods.clone(),
        }
    }

    /// A pod's cgroup; what the sandbox's configuration calls the parent.
    pub fn pod_path(&self, class: &str, uid: &str) -> String {
        format!("{}/pod{uid}", self.class_path(class))
    }

    /// Makes the cgroups that hold pods; `node` bounds all pods together.
    pub fn prepare_node(&self, node: &Resources) -> Result<(), Error> {
        self.hierarchy.create(&self.kubepods)?;
        self.hierarchy.apply(&self.kubepods, node)?;
        for (class, _) in CLASS_FOLDERS {
            self.hierarchy.create(&self.class_path(class))?;
        }
        self.set_class_shares(qos::BEST_EFFORT, resources::MIN_SHARES)?;
        self.weigh_burstable()
    }

    /// The burstable pods together weigh what they asked for; their own cgroups say how much that is.
    fn weigh_burstable(&self) -> Result<(), Error> {
        let class = self.class_path(qos::BURSTABLE);
        let pods = self.hierarchy.children(&class);
        let shares = pods
            .iter()
            .filter_map(|pod| self.hierarchy.cpu_shares(&format!("{class}/{pod}")));
        let sum: u64 = shares.sum();
        let sum = sum.clamp(resources::MIN_SHARES, resources::MAX_SHARES);
        self.set_class_shares(qos::BURSTABLE, sum)
    }

    fn set_class_shares(&self, class: &str, cpu_shares: u64) -> Result<(), Error> {
        let weight = Resources {
            cpu_shares: Some(cpu_shares),
            ..Resources::default()
        };
        self.hierarchy.apply(&self.class_path(class), &weight)
    }

    /// Makes a pod's cgroup, or changes its limits.
    pub fn apply_pod(&self, class: &str, uid: &str, resources: &Resources) -> Result<(), Error> {
        let path = self.pod_path(class, uid);
        self.hierarchy.create(&path)?;
        self.hierarchy.apply(&path, resources)?;
        self.class_changed(class)
    }

    /// Kills what is left in a pod's cgroup and removes it. Blocks until the processes are gone.
    pub fn remove_pod(&self, class: &str, uid: &str) -> Result<(), Error> {
        self.hierarchy.remove(&self.pod_path(class, uid))?;
        self.class_changed(class)
    }

    fn class_changed(&self, class: &str) -> Result<(), Error> {
        match class {
            qos::BURSTABLE => self.weigh_burstable(),
            _ => Ok(()),
        }
    }

    /// All pods that have a cgroup, as (class, uid): what the workers do not know is to be removed.
    pub fn pods(&self) -> BTreeSet<(&'static str, String)> {
        let mut pods = BTreeSet::new();
        for class in [qos::GUARANTEED, qos::BURSTABLE, qos::BEST_EFFORT] {
            for name in self.hierarchy.children(&self.class_path(class)) {
                if let Some(uid) = name.strip_prefix("pod") {
                    pods.insert((class, uid.to_owned()));
                }
            }
        }
        pods
    }

    /// The folders that hold everything of this node, also what the runtime makes where we set nothing.
    pub fn folders(&self) -> Vec<PathBuf> {
        let parent = self.kubepods.trim_end_matches("/kubepods");
        let parent = parent.trim_start_matches('/');
        match &self.hierarchy {
            Hierarchy::V1 { mounts } => mounts.iter().map(|m| m.path.join(parent)).collect(),
            Hierarchy::V2 { root } => vec![root.join(parent)],
        }
    }

    /// Removes everything of this node, for an uninstall or a test.
    pub fn remove_all(&self) -> Result<(), Error> {
        let parent = self.kubepods.trim_end_matches("/kubepods");
        self.hierarchy.remove(parent)
    }

    /// Figures of a cgroup by its path; `/` is the whole machine's.
    pub fn usage(&self, path: &str) -> Usage {
        usage::read(&self.hierarchy, path)
    }

    /// Whether a container that was killed lacked memory, as far as the kernel still tells: its cgroup may be gone by
    /// now, and that of its pod counts in version 2 only, and all of its containers.
    pub fn lacked_memory(&self, pod_path: &str, container_id: &str) -> Option<bool> {
        let kills = |path: &str| usage::out_of_memory(&self.hierarchy, path);
        if let Some(kills) = kills(&format!("{pod_path}/{container_id}")) {
            return Some(kills > 0);
        }
        let is_exact = self.version() == Version::V2 && kills(pod_path) == Some(0);
        is_exact.then_some(false)
    }

    pub fn pod_usage(&self, class: &str, uid: &str) -> Usage {
        self.usage(&self.pod_path(class, uid))
    }

    /// See [`Hierarchy::container_files`].
    pub fn container_files(&self) -> HashMap<String, String> {
        self.hierarchy.container_files(&self.kubepods)
    }

    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }
}

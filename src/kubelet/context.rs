//! What all pod workers of a node share.

use crate::cgroup::Cgroups;
use crate::dirs::Dirs;
use crate::fields::Surroundings;
use crate::handlers::Handlers;
use crate::images::Puller;
use crate::objects::ObjectCache;
use crate::relist::Relister;
use crate::resolv::Names;
use crate::settings::Settings;
use k8s_openapi::api::core::v1::Service;
use sampan_client::{Client, Lister, Recorder};
use sampan_cri::Runtime;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

pub struct Context {
    pub settings: Arc<Settings>,
    pub node_name: String,
    pub client: Client,
    pub recorder: Recorder,
    pub runtime: Runtime,
    pub puller: Puller,
    pub handlers: Handlers,
    pub objects: Arc<ObjectCache>,
    pub services: Lister<Service>,
    pub cgroups: Option<Cgroups>,
    pub dirs: Dirs,
    pub names: Names,
    pub relister: Arc<Relister>,
    /// Addresses and capacity of the node; pod addresses are filled in per pod.
    pub around: Surroundings,
    pub node_memory: i64,
    /// Why the pod network cannot be used yet.
    pub network: watch::Receiver<Result<(), String>>,
}

impl Context {
    pub fn network_ready(&self) -> bool {
        self.network.borrow().is_ok()
    }

    /// What each container's cgroup gets beside its limits.
    pub fn container_files(&self) -> HashMap<String, String> {
        let cgroups = self.cgroups.as_ref();
        cgroups.map(Cgroups::container_files).unwrap_or_default()
    }

    /// The surroundings of a pod with these addresses.
    pub fn around(&self, pod_ips: &[String]) -> Surroundings {
        Surroundings {
            pod_ips: pod_ips.to_vec(),
            ..self.around.clone()
        }
    }
}

//! A node with everything that sits on it, summed up.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};

use crate::pod_info::{HostPort, PodInfo, normalize_image};
use crate::resources::{Resources, allowed_pods};
use crate::selector::Labels;

#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    pub name: Arc<str>,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    pub allowed_pods: i64,
    /// What its pods ask for.
    pub requested: Resources,
    /// The same with the defaults for containers that ask for nothing.
    pub requested_for_scoring: Resources,
    pub pods: Vec<Arc<PodInfo>>,
    pub ports: Vec<HostPort>,
    /// Size of every image on the node by normalised name.
    pub images: HashMap<String, i64>,
    pub pods_with_affinity: usize,
    pub pods_with_required_anti_affinity: usize,
}

impl NodeInfo {
    pub fn new(node: &Node) -> Self {
        let mut info = Self {
            name: Arc::from(node.metadata.name.as_deref().unwrap_or_default()),
            ..Self::default()
        };
        info.set_node(node);
        info
    }

    pub fn set_node(&mut self, node: &Node) {
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        self.labels = node.metadata.labels.clone().unwrap_or_default();
        self.taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        self.unschedulable = node
            .spec
            .as_ref()
            .and_then(|spec| spec.unschedulable)
            .unwrap_or(false);
        self.allocatable = allocatable
            .map(Resources::from_quantities)
            .unwrap_or_default();
        self.allowed_pods = allocatable.map_or(0, allowed_pods);
        self.images = status
            .and_then(|status| status.images.as_ref())
            .into_iter()
            .flatten()
            .flat_map(|image| {
                let size = image.size_bytes.unwrap_or(0);
                image
                    .names
                    .iter()
                    .flatten()
                    .map(move |name| (normalize_image(name), size))
            })
            .collect();
    }

    /// The node without its pods.
    pub fn bare(&self) -> Self {
        Self {
            name: self.name.clone(),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
            unschedulable: self.unschedulable,
            allocatable: self.allocatable.clone(),
            allowed_pods: self.allowed_pods,
            ..Self::default()
        }
    }

    /// Whether a pod could be judged differently on this node than on the other state of it.
    pub fn schedules_differently(&self, other: &Self) -> bool {
        self.allocatable != other.allocatable
            || self.allowed_pods != other.allowed_pods
            || self.unschedulable != other.unschedulable
            || self.taints != other.taints
            || self.labels != other.labels
    }

    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests.exact);
        self.requested_for_scoring.add(&pod.requests.for_scoring);
        self.ports.extend(pod.ports.iter().cloned());
        self.pods_with_affinity += usize::from(pod.has_affinity());
        self.pods_with_required_anti_affinity +=
            usize::from(!pod.anti_affinity.required.is_empty());
        self.pods.push(pod);
    }

    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let at = self.pods.iter().position(|pod| &*pod.uid == uid)?;
        let pod = self.pods.swap_remove(at);
        self.requested.subtract(&pod.requests.exact);
        self.requested_for_scoring
            .subtract(&pod.requests.for_scoring);
        for port in &pod.ports {
            if let Some(at) = self.ports.iter().position(|known| known == port) {
                self.ports.swap_remove(at);
            }
        }
        self.pods_with_affinity -= usize::from(pod.has_affinity());
        self.pods_with_required_anti_affinity -=
            usize::from(!pod.anti_affinity.required.is_empty());
        Some(pod)
    }
}

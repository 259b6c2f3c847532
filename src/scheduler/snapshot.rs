//! What the scheduler knows of the cluster, kept up to date change by change.
//!
//! A pod sits on a node as soon as the scheduler has decided so ([`Snapshot::assume`]); the informer
//! confirms it later. Pods may arrive before their node does: they wait in `homeless`.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::node_info::NodeInfo;
use crate::pod_info::{NO_LABELS, PodInfo};
use crate::selector::Labels;
use crate::volumes::Volumes;

#[derive(Debug, Clone)]
struct Placed {
    node: Arc<str>,
    info: Arc<PodInfo>,
    assumed: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    nodes: Vec<NodeInfo>,
    index: HashMap<Arc<str>, usize>,
    placed: HashMap<Arc<str>, Placed>,
    homeless: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    /// On how many nodes an image is.
    image_nodes: HashMap<String, usize>,
    namespaces: HashMap<String, Labels>,
    volumes: Volumes,
    /// Pods that wait for their victims to leave a node, by that node.
    nominated: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    pods_with_affinity: usize,
    pods_with_required_anti_affinity: usize,
}

impl Snapshot {
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.index_of(name).map(|at| &self.nodes[at])
    }

    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    pub fn namespace_labels(&self, name: &str) -> &Labels {
        self.namespaces.get(name).unwrap_or(&NO_LABELS)
    }

    pub fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    pub fn volumes_mut(&mut self) -> &mut Volumes {
        &mut self.volumes
    }

    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.image_nodes.get(image).copied().unwrap_or(0)
    }

    pub fn has_affinity(&self) -> bool {
        self.pods_with_affinity > 0
    }

    pub fn has_required_anti_affinity(&self) -> bool {
        self.pods_with_required_anti_affinity > 0
    }

    /// Where a pod sits, and whether only the scheduler knows so far.
    pub fn placement(&self, uid: &str) -> Option<(&Arc<str>, bool)> {
        self.placed
            .get(uid)
            .map(|placed| (&placed.node, placed.assumed))
    }

    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.placed.get(uid).map(|placed| &placed.info)
    }

    pub fn pods(&self) -> usize {
        self.placed.len()
    }

    // === nodes ===

    pub fn set_node(&mut self, node: &Node) {
        let name: Arc<str> = Arc::from(node.metadata.name.as_deref().unwrap_or_default());
        if let Some(at) = self.index_of(&name) {
            self.count_images(at, false);
            self.nodes[at].set_node(node);
            self.count_images(at, true);
            return;
        }
        let mut info = NodeInfo::new(node);
        for pod in self.homeless.remove(&name).unwrap_or_default() {
            self.count_affinity(&pod, true);
            info.add_pod(pod);
        }
        self.index.insert(name, self.nodes.len());
        self.nodes.push(info);
        self.count_images(self.nodes.len() - 1, true);
    }

    pub fn remove_node(&mut self, name: &str) -> Option<NodeInfo> {
        let at = self.index_of(name)?;
        self.count_images(at, false);
        self.index.remove(name);
        let info = self.nodes.swap_remove(at);
        if let Some(moved) = self.nodes.get(at) {
            self.index.insert(moved.name.clone(), at);
        }
        for pod in &info.pods {
            self.count_affinity(pod, false);
        }
        if !info.pods.is_empty() {
            self.homeless.insert(info.name.clone(), info.pods.clone());
        }
        Some(info)
    }

    fn count_images(&mut self, at: usize, present: bool) {
        for image in self.nodes[at].images.keys() {
            if present {
                *self.image_nodes.entry(image.clone()).or_default() += 1;
            } else if let Some(count) = self.image_nodes.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.image_nodes.remove(image);
                }
            }
        }
    }

    fn count_affinity(&mut self, pod: &PodInfo, present: bool) {
        let step = |count: &mut usize, concerned: bool| match (concerned, present) {
            (false, _) => {}
            (true, true) => *count += 1,
            (true, false) => *count -= 1,
        };
        step(&mut self.pods_with_affinity, pod.has_affinity());
        step(
            &mut self.pods_with_required_anti_affinity,
            !pod.anti_affinity.required.is_empty(),
        );
    }

    // === pods ===

    /// A pod that the API server says is on a node; replaces what was known of it.
    pub fn set_pod(&mut self, info: Arc<PodInfo>) {
        let Some(node) = info.node_name.clone() else {
            return;
        };
        self.place(info, node, false);
    }

    /// A pod that was just given a node, before the API server says so.
    pub fn assume(&mut self, info: Arc<PodInfo>, node: Arc<str>) {
        self.place(info, node, true);
    }

    fn place(&mut self, info: Arc<PodInfo>, node: Arc<str>, assumed: bool) {
        self.remove_pod(&info.uid);
        self.clear_nomination(&info.uid);
        if let Some(at) = self.index_of(&node) {
            self.count_affinity(&info, true);
            self.nodes[at].add_pod(info.clone());
        } else {
            self.homeless
                .entry(node.clone())
                .or_default()
                .push(info.clone());
        }
        self.placed.insert(
            info.uid.clone(),
            Placed {
                node,
                info,
                assumed,
            },
        );
    }

    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let placed = self.placed.remove(uid)?;
        if let Some(at) = self.index_of(&placed.node) {
            self.nodes[at].remove_pod(uid);
            self.count_affinity(&placed.info, false);
        } else if let Some(waiting) = self.homeless.get_mut(&placed.node) {
            waiting.retain(|pod| &*pod.uid != uid);
            if waiting.is_empty() {
                self.homeless.remove(&placed.node);
            }
        }
        Some(placed.info)
    }

    // === nominations ===

    pub fn nominate(&mut self, info: Arc<PodInfo>, node: &str) {
        self.clear_nomination(&info.uid);
        self.nominated
            .entry(Arc::from(node))
            .or_default()
            .push(info);
    }

    pub fn clear_nomination(&mut self, uid: &str) {
        if self.nominated.is_empty() {
            return;
        }
        self.nominated.retain(|_, pods| {
            pods.retain(|pod| &*pod.uid != uid);
            !pods.is_empty()
        });
    }

    pub fn nominated(&self, node: &str) -> &[Arc<PodInfo>] {
        if self.nominated.is_empty() {
            return &[];
        }
        self.nominated
            .get(node)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    // === namespaces ===

    /// Returns whether the labels changed.
    pub fn set_namespace(&mut self, name: &str, labels: Labels) -> bool {
        self.namespaces.insert(name.to_owned(), labels.clone()) != Some(labels)
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }
}

#[cfg(test)]
mod tests;

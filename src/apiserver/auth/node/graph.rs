//! Which node needs which object.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use sampan_api::meta::{self, fields};
use serde_json::Value;

use super::references::{self, Reference};
use crate::auth::ObjectChange;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    Pod,
    Secret,
    ConfigMap,
    Claim,
    Volume,
    ServiceAccount,
    ResourceClaim,
    Attachment,
    ResourceSlice,
}

/// Kind, namespace (empty for cluster-scoped ones) and name.
pub type ObjectId = (ObjectKind, String, String);

#[derive(Default)]
struct Inner {
    /// How many pods of each node refer to the object.
    nodes_of: HashMap<ObjectId, HashMap<String, usize>>,
    /// What each pod has put into `nodes_of`.
    pods: HashMap<(String, String), PodEntry>,
    /// The claim that each volume is bound to, and the secrets it needs.
    volumes: HashMap<String, VolumeEntry>,
    /// Volumes that need a secret.
    secret_volumes: HashMap<(String, String), Vec<String>>,
}

struct PodEntry {
    node: String,
    objects: Vec<ObjectId>,
}

struct VolumeEntry {
    claim: Option<(String, String)>,
    secrets: Vec<(String, String)>,
}

#[derive(Default)]
pub struct Graph(RwLock<Inner>);

impl Graph {
    pub fn is_related(&self, node: &str, kind: ObjectKind, namespace: &str, name: &str) -> bool {
        let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let direct = |kind: ObjectKind, namespace: &str, name: &str| {
            inner
                .nodes_of
                .get(&(kind, namespace.to_owned(), name.to_owned()))
                .is_some_and(|nodes| nodes.contains_key(node))
        };
        let through_volume = |volume: &str| {
            inner
                .volumes
                .get(volume)
                .and_then(|entry| entry.claim.as_ref())
                .is_some_and(|(namespace, name)| direct(ObjectKind::Claim, namespace, name))
        };
        match kind {
            ObjectKind::Volume => through_volume(name),
            ObjectKind::Secret => {
                direct(kind, namespace, name)
                    || inner
                        .secret_volumes
                        .get(&(namespace.to_owned(), name.to_owned()))
                        .is_some_and(|volumes| volumes.iter().any(|one| through_volume(one)))
            }
            _ => direct(kind, namespace, name),
        }
    }

    pub fn pod_changed(&self, change: &ObjectChange) {
        if is_unimportant(change) {
            return;
        }
        let key = (change.namespace.clone(), change.name.clone());
        let entry = change.new.as_deref().and_then(|pod| {
            let pod: Value = serde_json::from_slice(pod).ok()?;
            pod_entry(&key, &pod)
        });
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = inner.pods.remove(&key) {
            for object in old.objects {
                inner.release(&object, &old.node);
            }
        }
        if let Some(entry) = entry {
            for object in &entry.objects {
                inner.hold(object.clone(), &entry.node);
            }
            inner.pods.insert(key, entry);
        }
    }

    pub fn volume_changed(&self, change: &ObjectChange) {
        let entry = change.new.as_deref().and_then(|volume| {
            let volume: Value = serde_json::from_slice(volume).ok()?;
            Some(volume_entry(&volume))
        });
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = inner.volumes.remove(&change.name) {
            for secret in old.secrets {
                if let Some(volumes) = inner.secret_volumes.get_mut(&secret) {
                    volumes.retain(|volume| *volume != change.name);
                    if volumes.is_empty() {
                        inner.secret_volumes.remove(&secret);
                    }
                }
            }
        }
        if let Some(entry) = entry {
            for secret in &entry.secrets {
                let volumes = inner.secret_volumes.entry(secret.clone()).or_default();
                volumes.push(change.name.clone());
            }
            inner.volumes.insert(change.name.clone(), entry);
        }
    }

    pub fn attachment_changed(&self, change: &ObjectChange) {
        self.own_changed(ObjectKind::Attachment, "spec.nodeName", change);
    }

    pub fn slice_changed(&self, change: &ObjectChange) {
        self.own_changed(ObjectKind::ResourceSlice, "spec.nodeName", change);
    }

    /// An object that names its node itself.
    fn own_changed(&self, kind: ObjectKind, path: &str, change: &ObjectChange) {
        let node_in = |object: &[u8]| {
            fields(object, &[path])
                .ok()
                .and_then(|mut found| found.pop())
                .filter(|node| !node.is_empty())
        };
        let id = (kind, String::new(), change.name.clone());
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inner.nodes_of.remove(&id);
        if let Some(node) = change.new.as_deref().and_then(node_in) {
            inner.hold(id, &node);
        }
    }
}

impl Inner {
    fn hold(&mut self, object: ObjectId, node: &str) {
        let nodes = self.nodes_of.entry(object).or_default();
        *nodes.entry(node.to_owned()).or_default() += 1;
    }

    fn release(&mut self, object: &ObjectId, node: &str) {
        let Some(nodes) = self.nodes_of.get_mut(object) else {
            return;
        };
        if let Some(count) = nodes.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.nodes_of.remove(object);
        }
    }
}

/// References stand in parts of a pod that do not change: most updates are of its status.
fn is_unimportant(change: &ObjectChange) -> bool {
    const PATHS: &[&str] = &["metadata.uid", "spec.nodeName", "metadata.generation"];
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return false;
    };
    let (Ok(before), Ok(after)) = (fields(old, PATHS), fields(new, PATHS)) else {
        return false;
    };
    before == after && !contains(new, b"resourceClaimStatuses")
}

fn contains(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}

fn pod_entry(key: &(String, String), pod: &Value) -> Option<PodEntry> {
    let node = meta::text(pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return None;
    }
    let mut objects = vec![(ObjectKind::Pod, key.0.clone(), key.1.clone())];
    // A node must not gain rights through mirror pods that it makes itself.
    let mirror = meta::at(pod, &["metadata", "annotations"])
        .get("kubernetes.io/config.mirror")
        .is_some();
    if !mirror {
        for Reference { kind, name } in references::of_pod(&key.1, pod) {
            let object = (kind, key.0.clone(), name);
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
    }
    Some(PodEntry {
        node: node.to_owned(),
        objects,
    })
}

fn volume_entry(volume: &Value) -> VolumeEntry {
    let claim = meta::at(volume, &["spec", "claimRef"]);
    let name = meta::text(claim, &["name"]);
    VolumeEntry {
        claim: (!name.is_empty()).then(|| {
            (
                meta::text(claim, &["namespace"]).to_owned(),
                name.to_owned(),
            )
        }),
        secrets: references::secrets_of_volume(volume),
    }
}

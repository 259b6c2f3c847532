//! Who owns whom, and whom a change makes doubtful. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sampan_api::meta::OwnerReference;
use sampan_api::{GroupVersionResource, Meta};
use sampan_client::ObjectKey;

pub(crate) type Uid = Arc<str>;

pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";

/// A followed resource.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) resource: GroupVersionResource,
    pub(crate) kind: String,
}

/// Which way an object is going.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Going {
    #[default]
    Staying,
    Deleting,
    /// Waits for the dependents that block it.
    Foreground,
    /// Waits until its dependents are let go.
    Orphaning,
}

impl Going {
    pub(crate) fn of(meta: &Meta) -> Self {
        let has = |name: &str| meta.finalizers.iter().any(|finalizer| finalizer == name);
        if !meta.is_deleting() {
            Self::Staying
        } else if has(ORPHAN) {
            Self::Orphaning
        } else if has(FOREGROUND) {
            Self::Foreground
        } else {
            Self::Deleting
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) row: Arc<Row>,
    pub(crate) key: ObjectKey,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) going: Going,
}

impl Node {
    pub(crate) fn blocks(&self, owner: &str) -> bool {
        self.owners
            .iter()
            .any(|reference| reference.uid == owner && reference.block_owner_deletion == Some(true))
    }
}

#[derive(Default)]
pub(crate) struct Graph {
    nodes: HashMap<Uid, Node>,
    /// By the owner's uid, whether the owner is known or not.
    dependents: HashMap<String, HashSet<Uid>>,
}

impl Graph {
    pub(crate) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub(crate) fn dependents(&self, uid: &str) -> Vec<(Uid, Node)> {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        dependents
            .filter_map(|uid| Some((Arc::clone(uid), self.nodes.get(uid)?.clone())))
            .collect()
    }

    fn dependent_uids(&self, uid: &str) -> Vec<Uid> {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        dependents.cloned().collect()
    }

    /// An object as it is now; returns whom this makes doubtful.
    pub(crate) fn apply(&mut self, row: &Arc<Row>, meta: Meta) -> Vec<Uid> {
        let uid: Uid = meta.uid.as_str().into();
        let going = Going::of(&meta);
        let node = Node {
            row: Arc::clone(row),
            key: ObjectKey::new(meta.namespace, meta.name),
            owners: meta.owner_references,
            going,
        };
        let old = self.unlink(&uid);
        for owner in &node.owners {
            let dependents = self.dependents.entry(owner.uid.clone()).or_default();
            dependents.insert(Arc::clone(&uid));
        }
        let mut doubtful = Vec::new();
        if self.is_doubtful(&node) {
            doubtful.push(Arc::clone(&uid));
        }
        // Owners that wait for this one to stop blocking them.
        for owner in old.iter().flat_map(|old| &old.owners) {
            if old.as_ref().is_some_and(|old| old.blocks(&owner.uid)) && !node.blocks(&owner.uid) {
                doubtful.extend(self.waiting_owner(&owner.uid));
            }
        }
        // An owner that has just begun to wait for its dependents.
        let began = old.as_ref().is_none_or(|old| old.going != going);
        if going == Going::Foreground && began {
            doubtful.extend(self.dependent_uids(&uid));
        }
        self.nodes.insert(uid, node);
        doubtful
    }

    /// An object is gone; returns whom this makes doubtful.
    pub(crate) fn delete(&mut self, uid: &str) -> Vec<Uid> {
        let Some(node) = self.unlink(uid) else {
            return Vec::new();
        };
        let mut doubtful = self.dependent_uids(uid);
        for owner in &node.owners {
            doubtful.extend(self.waiting_owner(&owner.uid));
        }
        doubtful
    }

    /// The whole of one resource as it is now.
    pub(crate) fn replace(&mut self, row: &Arc<Row>, metas: Vec<Meta>) -> Vec<Uid> {
        let listed: HashSet<&str> = metas.iter().map(|meta| meta.uid.as_str()).collect();
        let gone: Vec<Uid> = self
            .nodes
            .iter()
            .filter(|(uid, node)| node.row == *row && !listed.contains(&***uid))
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        let mut doubtful = Vec::new();
        for uid in gone {
            doubtful.extend(self.delete(&uid));
        }
        for meta in metas {
            doubtful.extend(self.apply(row, meta));
        }
        doubtful
    }

    /// A resource is no longer followed.
    pub(crate) fn forget(&mut self, resource: &GroupVersionResource) {
        let gone: Vec<Uid> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.row.resource == *resource)
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in gone {
            self.unlink(&uid);
        }
    }

    /// Everybody who has to be looked at when all resources are known.
    pub(crate) fn doubtful(&self) -> Vec<Uid> {
        let doubtful = self.nodes.iter().filter(|(_, node)| self.is_doubtful(node));
        doubtful.map(|(uid, _)| Arc::clone(uid)).collect()
    }

    fn is_doubtful(&self, node: &Node) -> bool {
        let owner_is_doubtful = |owner: &OwnerReference| {
            self.nodes
                .get(owner.uid.as_str())
                .is_none_or(|known| known.going == Going::Foreground || !fits(owner, known, node))
        };
        match node.going {
            Going::Foreground | Going::Orphaning => true,
            Going::Deleting => false,
            Going::Staying => node.owners.iter().any(owner_is_doubtful),
        }
    }

    fn waiting_owner(&self, uid: &str) -> Option<Uid> {
        let (uid, owner) = self.nodes.get_key_value(uid)?;
        (owner.going == Going::Foreground).then(|| Arc::clone(uid))
    }

    fn unlink(&mut self, uid: &str) -> Option<Node> {
        let node = self.nodes.remove(uid)?;
        for owner in &node.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        Some(node)
    }
}

/// Whether a reference names the known object rightly: kind, name, and a namespace that the
/// dependent may refer to.
pub(crate) fn fits(reference: &OwnerReference, owner: &Node, dependent: &Node) -> bool {
    let group = reference
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group);
    let namespace = &owner.key.namespace;
    owner.row.kind == reference.kind
        && (owner.row.resource.group == group || group == "extensions")
        && owner.key.name == reference.name
        && (namespace.is_empty() || *namespace == dependent.key.namespace)
}

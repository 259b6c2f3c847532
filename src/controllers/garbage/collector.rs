//! What is done about one doubtful object.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sampan_api::meta::OwnerReference;
use sampan_api::{Meta, Registry, Target};
use sampan_client::{Client, DeleteOptions, Error, Patch, Propagation};
use serde_json::{Value, json};

use super::Shared;
use super::graph::{FOREGROUND, Going, Node, ORPHAN, Uid, fits};

pub(super) struct Collector {
    pub(super) client: Client,
    pub(super) registry: Arc<Registry>,
    pub(super) shared: Arc<Shared>,
}

/// What became of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Solid,
    /// Exists, but only until its blocking dependents are gone.
    Waiting,
    Absent,
}

impl Collector {
    pub(super) async fn attend(&self, uid: &Uid) -> Result<Option<Duration>, Error> {
        let Some(node) = self.shared.graph().get(uid).cloned() else {
            return Ok(None);
        };
        match node.going {
            Going::Deleting => Ok(None),
            Going::Orphaning => self.orphan(uid, &node).await,
            Going::Foreground => self.end_foreground(uid, &node).await,
            Going::Staying if node.owners.is_empty() => Ok(None),
            Going::Staying => self.judge(uid, &node).await,
        }
    }

    /// Lets all dependents go, then the object.
    async fn orphan(&self, uid: &Uid, node: &Node) -> Result<Option<Duration>, Error> {
        let dependents = self.shared.graph().dependents(uid);
        for (dependent_uid, dependent) in dependents {
            if let Some((_, meta)) = self.read(&dependent_uid, &dependent).await? {
                self.drop_owners(&dependent, &meta, &[uid.to_string()])
                    .await?;
            }
        }
        self.drop_finalizer(uid, node, ORPHAN).await
    }

    /// Goes on when no dependent blocks any more; until then those are looked after.
    async fn end_foreground(&self, uid: &Uid, node: &Node) -> Result<Option<Duration>, Error> {
        let dependents = self.shared.graph().dependents(uid);
        let blocking: Vec<(Uid, Node)> = dependents
            .into_iter()
            .filter(|(_, dependent)| dependent.blocks(uid))
            .collect();
        if blocking.is_empty() {
            return self.drop_finalizer(uid, node, FOREGROUND).await;
        }
        for (dependent, state) in blocking {
            if state.going == Going::Staying {
                self.shared.queue.add(dependent);
            }
        }
        Ok(None)
    }

    /// Decides about an object by its owners.
    async fn judge(&self, uid: &Uid, node: &Node) -> Result<Option<Duration>, Error> {
        let Some((_, meta)) = self.read(uid, node).await? else {
            return Ok(None);
        };
        if meta.is_deleting() || meta.owner_references.is_empty() {
            return Ok(None);
        }
        let mut solid = false;
        let mut waiting = false;
        let mut useless = Vec::new();
        for reference in &meta.owner_references {
            let owner = self.state_of(reference, node).await?;
            solid |= owner == Owner::Solid;
            waiting |= owner == Owner::Waiting;
            if owner != Owner::Solid {
                useless.push(reference.uid.clone());
            }
        }
        if solid {
            if !useless.is_empty() {
                self.drop_owners(node, &meta, &useless).await?;
            }
            return Ok(None);
        }
        let has = |name: &str| meta.finalizers.iter().any(|finalizer| finalizer == name);
        let propagation = if waiting && !self.shared.graph().dependents(uid).is_empty() {
            self.unblock_cycle(uid, node, &meta).await?;
            Propagation::Foreground
        } else if has(ORPHAN) {
            Propagation::Orphan
        } else if has(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        self.delete(node, &meta, propagation).await?;
        Ok(None)
    }

    async fn delete(&self, node: &Node, meta: &Meta, how: Propagation) -> Result<(), Error> {
        let options = DeleteOptions::uid(&meta.uid)
            .resource_version(&meta.resource_version)
            .propagation(how);
        tracing::debug!(resource = %node.row.resource, object = %node.key, ?how, "its owners are gone");
        match self.client.delete_raw(&target_of(node), &options).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// An object that waits for its dependents while one of them waits for it would wait forever.
    async fn unblock_cycle(&self, uid: &Uid, node: &Node, meta: &Meta) -> Result<(), Error> {
        let dependents = self.shared.graph().dependents(uid);
        let waits = |(_, dependent): &(Uid, Node)| dependent.going == Going::Foreground;
        let blocks = meta
            .owner_references
            .iter()
            .any(|owner| owner.block_owner_deletion == Some(true));
        if !blocks || !dependents.iter().any(waits) {
            return Ok(());
        }
        let owners = meta.owner_references.iter().map(|owner| {
            let mut owner = reference_value(owner);
            owner["blockOwnerDeletion"] = json!(false);
            owner
        });
        self.write_owners(node, meta, owners.collect()).await
    }

    async fn state_of(&self, reference: &OwnerReference, dependent: &Node) -> Result<Owner, Error> {
        let known = self.shared.graph().get(&reference.uid).cloned();
        if let Some(owner) = known.filter(|owner| fits(reference, owner, dependent)) {
            return Ok(match owner.going {
                Going::Foreground => Owner::Waiting,
                _ => Owner::Solid,
            });
        }
        self.read_owner(reference, dependent).await
    }

    /// Asks the server about an owner that the graph does not show.
    async fn read_owner(
        &self,
        reference: &OwnerReference,
        dependent: &Node,
    ) -> Result<Owner, Error> {
        let (group, version) = reference
            .api_version
            .split_once('/')
            .unwrap_or(("", &reference.api_version));
        let rows = self.registry.snapshot();
        let Some(row) = rows.by_kind(group, version, &reference.kind) else {
            let kind = format!("{} {}", reference.api_version, reference.kind);
            return Err(Error::Malformed(format!(
                "an owner's kind is not known: {kind}"
            )));
        };
        let namespace = dependent.key.namespace();
        if row.is_namespaced() && namespace.is_none() {
            // Nothing can be said about such an owner; the dependent is left alone.
            return Ok(Owner::Solid);
        }
        let target = Target {
            resource: row.storage_gvr(),
            namespace: namespace.filter(|_| row.is_namespaced()).map(str::to_owned),
            name: Some(reference.name.clone()),
            subresource: None,
        };
        match self.client.get_raw(&target).await {
            Err(error) if error.is_not_found() => Ok(Owner::Absent),
            Err(error) => Err(error),
            Ok(bytes) => {
                let meta = parse(&bytes)?;
                Ok(match Going::of(&meta) {
                    _ if meta.uid != reference.uid => Owner::Absent,
                    Going::Foreground => Owner::Waiting,
                    _ => Owner::Solid,
                })
            }
        }
    }

    /// The object as the server has it; `None` if it is gone or another.
    async fn read(&self, uid: &str, node: &Node) -> Result<Option<(Bytes, Meta)>, Error> {
        match self.client.get_raw(&target_of(node)).await {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
            Ok(bytes) => {
                let meta = parse(&bytes)?;
                Ok((meta.uid == uid).then_some((bytes, meta)))
            }
        }
    }

    async fn drop_owners(&self, node: &Node, meta: &Meta, uids: &[String]) -> Result<(), Error> {
        let (gone, kept): (Vec<_>, Vec<_>) = meta
            .owner_references
            .iter()
            .partition(|owner| uids.contains(&owner.uid));
        if gone.is_empty() {
            return Ok(());
        }
        let kept = kept.into_iter().map(reference_value).collect();
        self.write_owners(node, meta, kept).await
    }

    async fn write_owners(
        &self,
        node: &Node,
        meta: &Meta,
        owners: Vec<Value>,
    ) -> Result<(), Error> {
        let owners = if owners.is_empty() {
            Value::Null
        } else {
            json!(owners)
        };
        self.patch(node, meta, json!({"ownerReferences": owners}))
            .await
    }

    async fn drop_finalizer(
        &self,
        uid: &Uid,
        node: &Node,
        name: &str,
    ) -> Result<Option<Duration>, Error> {
        let Some((_, meta)) = self.read(uid, node).await? else {
            return Ok(None);
        };
        let kept: Vec<&String> = meta.finalizers.iter().filter(|one| *one != name).collect();
        if kept.len() == meta.finalizers.len() {
            return Ok(None);
        }
        let kept = if kept.is_empty() {
            Value::Null
        } else {
            json!(kept)
        };
        self.patch(node, &meta, json!({"finalizers": kept})).await?;
        Ok(None)
    }

    /// Changes the metadata if the object is still as it was read.
    async fn patch(&self, node: &Node, meta: &Meta, mut change: Value) -> Result<(), Error> {
        change["uid"] = json!(meta.uid);
        change["resourceVersion"] = json!(meta.resource_version);
        let patch = Patch::Merge(json!({"metadata": change}));
        match self.client.patch_raw(&target_of(node), &patch).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

fn parse(bytes: &Bytes) -> Result<Meta, Error> {
    Meta::from_bytes(bytes).map_err(|error| Error::Malformed(error.to_string()))
}

fn target_of(node: &Node) -> Target {
    Target {
        resource: node.row.resource.clone(),
        namespace: node.key.namespace().map(str::to_owned),
        name: Some(node.key.name.clone()),
        subresource: None,
    }
}

fn reference_value(owner: &OwnerReference) -> Value {
    let mut value = json!({
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
    });
    if let Some(controller) = owner.controller {
        value["controller"] = json!(controller);
    }
    if let Some(block) = owner.block_owner_deletion {
        value["blockOwnerDeletion"] = json!(block);
    }
    value
}

//! Claims and volumes, as far as they decide where a pod can run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use sampan_client::ObjectKey;

use crate::selector::{NodeTerm, RequiredNodes, Selector};

/// Set by the binder when both sides name each other.
const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// A claim that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRef {
    pub name: String,
    /// Made from the pod's own template, and so only for this pod.
    pub ephemeral: Option<PodRef>,
}

/// Whose an ephemeral volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    pub name: String,
    pub uid: String,
}

/// The claims of a pod: by name, and those made for its ephemeral volumes.
pub fn claims_of(pod: &Pod) -> Vec<ClaimRef> {
    let owner = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(
            |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => Some(ClaimRef {
                    name: source.claim_name.clone(),
                    ephemeral: None,
                }),
                (None, Some(_)) => Some(ClaimRef {
                    name: format!("{owner}-{}", volume.name),
                    ephemeral: Some(PodRef {
                        name: owner.to_owned(),
                        uid: pod.metadata.uid.clone().unwrap_or_default(),
                    }),
                }),
                (None, None) => None,
            },
        )
        .collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    volume: Option<String>,
    class: Option<String>,
    bound: bool,
    lost: bool,
    deleted: bool,
    /// The uid of its controller.
    controller: Option<String>,
}

impl Claim {
    fn new(claim: &PersistentVolumeClaim) -> Self {
        let spec = claim.spec.as_ref();
        let phase = claim.status.as_ref().and_then(|it| it.phase.as_deref());
        let annotations = claim.metadata.annotations.as_ref();
        let volume = spec
            .and_then(|spec| spec.volume_name.clone())
            .filter(|name| !name.is_empty());
        let complete = annotations.is_some_and(|all| all.contains_key(BOUND));
        Self {
            bound: volume.is_some() && (complete || phase == Some("Bound")),
            volume,
            class: spec.and_then(|spec| spec.storage_class_name.clone()),
            lost: phase == Some("Lost"),
            deleted: claim.metadata.deletion_timestamp.is_some(),
            controller: claim
                .metadata
                .owner_references
                .iter()
                .flatten()
                .find(|owner| owner.controller == Some(true))
                .map(|owner| owner.uid.clone()),
        }
    }
}

/// What the claims of a pod ask of its node.
#[derive(Debug, Default, PartialEq)]
pub struct Needs<'a> {
    /// Where the volumes that are bound can be reached.
    pub nodes: Vec<&'a RequiredNodes>,
    /// A claim is bound to a volume that is not there.
    pub missing: bool,
    /// A claim waits for a node before it gets a volume.
    pub waits: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Volumes {
    claims: HashMap<ObjectKey, Claim>,
    volumes: HashMap<String, RequiredNodes>,
    /// Classes whose volumes are bound only once a pod wants them.
    late: HashSet<String>,
}

impl Volumes {
    /// Each of these returns whether anything changed that counts.
    pub fn set_claim(&mut self, claim: &PersistentVolumeClaim) -> bool {
        let known = Claim::new(claim);
        self.claims
            .insert(ObjectKey::of(&claim.metadata), known.clone())
            != Some(known)
    }

    pub fn remove_claim(&mut self, claim: &PersistentVolumeClaim) -> bool {
        self.claims
            .remove(&ObjectKey::of(&claim.metadata))
            .is_some()
    }

    pub fn set_volume(&mut self, volume: &PersistentVolume) -> bool {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let affinity = volume
            .spec
            .as_ref()
            .and_then(|it| it.node_affinity.as_ref());
        let reach = RequiredNodes {
            labels: Selector::default(),
            terms: affinity
                .and_then(|affinity| affinity.required.as_ref())
                .map(|selector| {
                    selector
                        .node_selector_terms
                        .iter()
                        .map(NodeTerm::new)
                        .collect()
                }),
        };
        self.volumes.insert(name, reach.clone()) != Some(reach)
    }

    pub fn remove_volume(&mut self, volume: &PersistentVolume) -> bool {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        self.volumes.remove(name).is_some()
    }

    pub fn set_class(&mut self, class: &StorageClass) -> bool {
        let name = class.metadata.name.clone().unwrap_or_default();
        match class.volume_binding_mode.as_deref() {
            Some("WaitForFirstConsumer") => self.late.insert(name),
            _ => self.late.remove(&name),
        }
    }

    pub fn remove_class(&mut self, class: &StorageClass) -> bool {
        let name = class.metadata.name.as_deref().unwrap_or_default();
        self.late.remove(name)
    }

    /// Or why no node will do, in upstream's words.
    pub fn needs(&self, namespace: &str, claims: &[ClaimRef]) -> Result<Needs<'_>, Arc<str>> {
        let mut needs = Needs::default();
        let mut unbound = false;
        for wanted in claims {
            let claim = self.usable(namespace, wanted)?;
            match &claim.volume {
                Some(volume) if claim.bound => match self.volumes.get(volume) {
                    Some(nodes) => needs.nodes.push(nodes),
                    None => needs.missing = true,
                },
                None if self.is_late(claim) => needs.waits = true,
                Some(_) | None => unbound = true,
            }
        }
        match unbound {
            true => Err("pod has unbound immediate PersistentVolumeClaims".into()),
            false => Ok(needs),
        }
    }

    fn is_late(&self, claim: &Claim) -> bool {
        let class = claim.class.as_deref();
        class.is_some_and(|class| self.late.contains(class))
    }

    fn usable(&self, namespace: &str, wanted: &ClaimRef) -> Result<&Claim, Arc<str>> {
        let name = &wanted.name;
        let key = ObjectKey {
            namespace: namespace.to_owned(),
            name: name.clone(),
        };
        match self.claims.get(&key) {
            None if wanted.ephemeral.is_some() => Err(format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
            )
            .into()),
            None => Err(format!("persistentvolumeclaim {name:?} not found").into()),
            Some(claim) if claim.lost => {
                let volume = claim.volume.as_deref().unwrap_or_default();
                Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                )
                .into())
            }
            Some(claim) if claim.deleted => {
                Err(format!("persistentvolumeclaim {name:?} is being deleted").into())
            }
            Some(claim) => match &wanted.ephemeral {
                Some(pod) if claim.controller.as_ref() != Some(&pod.uid) => Err(format!(
                    "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
                    pod.name
                )
                .into()),
                _ => Ok(claim),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, from_value, json};

    #[test]
    fn an_ephemeral_volume_takes_only_the_claim_made_for_its_pod() {
        let pod: Pod = from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "volumes": [{"name": "v", "ephemeral": {}}]}}))
        .unwrap();
        let owned = |uid: &str, controller: bool| {
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid,
                "controller": controller}])
        };
        let needs = |owners: Value| {
            let mut volumes = Volumes::default();
            volumes.set_claim(
                &from_value(json!({
                    "metadata": {"name": "p-v", "namespace": "ns", "ownerReferences": owners},
                    "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}))
                .unwrap(),
            );
            volumes
                .needs("ns", &claims_of(&pod))
                .map(|needs| needs.missing)
        };
        assert_eq!(needs(owned("u", true)), Ok(true));
        for other in [json!([]), owned("older", true), owned("u", false)] {
            assert_eq!(
                &*needs(other).unwrap_err(),
                "PVC ns/p-v was not created for pod ns/p (pod is not owner)"
            );
        }
    }
}

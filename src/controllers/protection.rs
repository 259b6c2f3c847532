//! Storage that is in use outlives its deletion: finalizers are taken away when nobody needs it.
//!
//! Claims wait for the pods that mount them, volumes for the claim they are bound to, attribute classes for the claims
//! and volumes that name them. The finalizers are given by admission.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use sampan_client::{Lister, ObjectKey, Resource};
use serde_json::json;

use crate::runtime::{Action, Controller, Form, Plan, Watches};
use crate::{Settings, owner, pods};

/// Lets the object go if it is being deleted and unused.
fn release<K: Resource>(object: &K, finalizer: &str, used: bool) -> Plan {
    let mut plan = Plan::default();
    let metadata = object.metadata();
    let held = metadata.finalizers.as_deref().unwrap_or_default();
    if used || !owner::is_deleting(metadata) || !held.iter().any(|one| one == finalizer) {
        return plan;
    }
    let rest: Vec<&String> = held.iter().filter(|one| *one != finalizer).collect();
    let change = json!({"metadata": {"finalizers": rest}});
    plan.push(Action::write::<K>(
        &ObjectKey::of(metadata),
        Form::Put,
        change,
    ));
    plan
}

pub struct ClaimProtection {
    claims: Lister<PersistentVolumeClaim>,
    pods: Lister<Pod>,
}

/// An object, and whether something needs it.
pub struct Protected<K> {
    object: Arc<K>,
    used: bool,
}

/// Names of the claims that a pod mounts.
fn claims_of(pod: &Pod) -> Vec<String> {
    let name = owner::name(&pod.metadata);
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let claims = volumes.unwrap_or_default().iter().filter_map(|volume| {
        let claim = volume
            .persistent_volume_claim
            .as_ref()
            .map(|claim| claim.claim_name.clone());
        claim.or_else(|| {
            volume
                .ephemeral
                .as_ref()
                .map(|_| format!("{name}-{}", volume.name))
        })
    });
    claims.collect()
}

/// A pod that has not ended, and has or may get a node.
fn mounts(pod: &Pod, claim: &str) -> bool {
    !pods::is_finished(pod) && claims_of(pod).iter().any(|name| name == claim)
}

impl Controller for ClaimProtection {
    const NAME: &'static str = "persistentvolumeclaim-protection-controller";
    const IDENTITY: &'static str = "pvc-protection-controller";
    const WORKERS: usize = 1;

    type Observed = Protected<PersistentVolumeClaim>;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        Self {
            claims: watches.primary::<PersistentVolumeClaim>(),
            pods: watches.mapped::<Pod>(|change| {
                let mut keys = Vec::new();
                for pod in change.states() {
                    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                    let claims = claims_of(pod).into_iter();
                    keys.extend(claims.map(|claim| ObjectKey::new(namespace.clone(), claim)));
                }
                keys
            }),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed> {
        let object = self.claims.get_key(key)?;
        let used = self
            .pods
            .list(key.namespace())
            .iter()
            .any(|pod| mounts(pod, &key.name));
        Some(Protected { object, used })
    }

    fn reconcile(observed: &Self::Observed, _: Timestamp) -> Plan {
        release(
            &*observed.object,
            "kubernetes.io/pvc-protection",
            observed.used,
        )
    }
}

pub struct VolumeProtection {
    volumes: Lister<PersistentVolume>,
}

impl Controller for VolumeProtection {
    const NAME: &'static str = "persistentvolume-protection-controller";
    const IDENTITY: &'static str = "pv-protection-controller";
    const WORKERS: usize = 1;

    type Observed = Protected<PersistentVolume>;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        Self {
            volumes: watches.primary::<PersistentVolume>(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed> {
        let object = self.volumes.get_key(key)?;
        let phase = object
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let used = phase == Some("Bound");
        Some(Protected { object, used })
    }

    fn reconcile(observed: &Self::Observed, _: Timestamp) -> Plan {
        release(
            &*observed.object,
            "kubernetes.io/pv-protection",
            observed.used,
        )
    }
}

pub struct ClassProtection {
    classes: Lister<VolumeAttributesClass>,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
}

fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let spec = claim.spec.as_ref();
    let status = claim.status.as_ref();
    let target = status.and_then(|status| status.modify_volume_status.as_ref());
    [
        spec.and_then(|spec| spec.volume_attributes_class_name.clone()),
        status.and_then(|status| status.current_volume_attributes_class_name.clone()),
        target.and_then(|target| target.target_volume_attributes_class_name.clone()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn class_of_volume(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.volume_attributes_class_name.clone()
}

impl Controller for ClassProtection {
    const NAME: &'static str = "volumeattributesclass-protection-controller";
    const WORKERS: usize = 1;

    type Observed = Protected<VolumeAttributesClass>;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        Self {
            classes: watches.primary::<VolumeAttributesClass>(),
            claims: watches.mapped::<PersistentVolumeClaim>(|change| {
                let names = change.states().flat_map(|claim| classes_of_claim(claim));
                names.map(ObjectKey::cluster).collect()
            }),
            volumes: watches.mapped::<PersistentVolume>(|change| {
                let names = change.states().filter_map(|volume| class_of_volume(volume));
                names.map(ObjectKey::cluster).collect()
            }),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed> {
        let object = self.classes.get_key(key)?;
        let claims = self.claims.list(None);
        let volumes = self.volumes.list(None);
        let used = claims
            .iter()
            .any(|claim| classes_of_claim(claim).contains(&key.name))
            || volumes
                .iter()
                .any(|volume| class_of_volume(volume).as_ref() == Some(&key.name));
        Some(Protected { object, used })
    }

    fn reconcile(observed: &Self::Observed, _: Timestamp) -> Plan {
        release(
            &*observed.object,
            "kubernetes.io/vac-protection",
            observed.used,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, object};

    #[test]
    fn what_is_deleted_and_unused_is_let_go() {
        let claim = |deleting: bool| -> Arc<PersistentVolumeClaim> {
            let mut value = json!({"metadata": {"namespace": "n", "name": "c", "uid": "u", "resourceVersion": "1",
                "finalizers": ["kubernetes.io/pvc-protection", "x/y"]}});
            if deleting {
                value["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
            }
            Arc::new(object(value))
        };
        let plan = |deleting, used| {
            let object = claim(deleting);
            ClaimProtection::reconcile(&Protected { object, used }, at(0))
                .lines()
                .len()
        };
        assert_eq!(plan(true, false), 1);
        assert_eq!(plan(true, true) + plan(false, false), 0);
    }

    #[test]
    fn pods_that_have_ended_need_no_claim() {
        let mut pod: Pod = object(json!({"metadata": {"namespace": "n", "name": "p"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "ephemeral": {}}]}}));
        assert!(mounts(&pod, "c") && mounts(&pod, "p-b") && !mounts(&pod, "d"));
        pod.status = Some(object(json!({"phase": "Succeeded"})));
        assert!(!mounts(&pod, "c"));
    }
}

//! How many pods a budget's pods should be.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::PodDisruptionBudgetSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sampan_client::Lister;

use crate::deployment::scaled;
use crate::owner;

/// Where wanted sizes are looked up.
pub(super) struct Scales {
    pub(super) deployments: Lister<Deployment>,
    pub(super) replica_sets: Lister<ReplicaSet>,
    pub(super) controllers: Lister<ReplicationController>,
    pub(super) stateful_sets: Lister<StatefulSet>,
}

impl Scales {
    /// The sum over the different owners of these pods.
    pub(super) fn of(&self, pods: &[Arc<Pod>]) -> Result<i32, String> {
        let mut sizes: BTreeMap<String, i32> = BTreeMap::new();
        for pod in pods {
            let name = owner::name(&pod.metadata);
            let Some(reference) = owner::controller_of(&pod.metadata) else {
                return Err(format!("found no controller ref for pod \"{name}\""));
            };
            let namespace = pod.metadata.namespace.as_deref();
            let Some((uid, size)) = self.size(namespace, reference) else {
                return Err(format!("found no controllers for pod \"{name}\""));
            };
            sizes.insert(uid, size);
        }
        Ok(sizes.into_values().sum())
    }

    /// The uid and size of the topmost owner that has a size.
    fn size(&self, namespace: Option<&str>, reference: &OwnerReference) -> Option<(String, i32)> {
        let uid = reference.uid.clone();
        let name = &reference.name;
        match reference.kind.as_str() {
            "ReplicaSet" => {
                let set = self.replica_sets.get(namespace, name)?;
                let parent = owner::controller_of(&set.metadata);
                if let Some(parent) = parent.filter(|parent| owner::refers_to::<Deployment>(parent))
                {
                    let deployment = self.deployments.get(namespace, &parent.name)?;
                    let size = deployment.spec.as_ref()?.replicas.unwrap_or(1);
                    return Some((parent.uid.clone(), size));
                }
                Some((uid, set.spec.as_ref()?.replicas.unwrap_or(1)))
            }
            "ReplicationController" => {
                let controller = self.controllers.get(namespace, name)?;
                Some((uid, controller.spec.as_ref()?.replicas.unwrap_or(1)))
            }
            "StatefulSet" => {
                let set = self.stateful_sets.get(namespace, name)?;
                Some((uid, set.spec.as_ref()?.replicas.unwrap_or(1)))
            }
            _ => None,
        }
    }
}

pub(super) struct Counts {
    pub(super) pods: i32,
    pub(super) desired: i32,
}

/// A plain number of available pods needs no owners; everything else is a share of what they want.
pub(super) fn counts(
    spec: &PodDisruptionBudgetSpec,
    present: i32,
    wanted: &Result<i32, String>,
) -> Result<Counts, String> {
    if let Some(most) = &spec.max_unavailable {
        let pods = wanted.clone()?;
        let desired = (pods - scaled(most, pods, true)).max(0);
        return Ok(Counts { pods, desired });
    }
    match &spec.min_available {
        Some(IntOrString::Int(desired)) => Ok(Counts {
            pods: present,
            desired: *desired,
        }),
        Some(share) => {
            let pods = wanted.clone()?;
            let desired = scaled(share, pods, true);
            Ok(Counts { pods, desired })
        }
        None => Ok(Counts {
            pods: present,
            desired: 0,
        }),
    }
}

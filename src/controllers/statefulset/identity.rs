//! Names, storage and the pods made of them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{REVISION_LABEL, Scene};
use crate::{owner, pods};

pub(super) const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The ordinal of a pod that bears the set's name.
pub(super) fn ordinal_of(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let (parent, ordinal) = owner::name(&pod.metadata).rsplit_once('-')?;
    if parent != owner::name(&set.metadata) {
        return None;
    }
    ordinal.parse().ok().filter(|ordinal| *ordinal >= 0)
}

pub(super) fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", owner::name(&set.metadata))
}

fn claim_name(template: &PersistentVolumeClaim, pod: &str) -> String {
    format!("{}-{pod}", owner::name(&template.metadata))
}

/// The template that a revision keeps.
fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0["spec"]["template"].clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// The revision that a pod made now belongs to: below the partition the current one.
fn revision_for<'a>(scene: &'a Scene<'_>, ordinal: i32) -> &'a ControllerRevision {
    let strategy = scene.spec.update_strategy.as_ref();
    let is_rolling = super::steps::is_rolling(scene.spec);
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let status = scene.set.status.as_ref();
    let kept = match rolling {
        None if is_rolling => status
            .and_then(|status| status.current_replicas)
            .unwrap_or(0),
        None => 0,
        Some(rolling) => rolling.partition.unwrap_or(0),
    };
    if ordinal < scene.start() + kept {
        &scene.revisions.current
    } else {
        &scene.revisions.update
    }
}

/// The pod of an ordinal.
pub(super) fn pod_for(scene: &Scene<'_>, ordinal: i32) -> Pod {
    let revision = revision_for(scene, ordinal);
    let template = template_of(revision).unwrap_or_else(|| scene.spec.template.clone());
    let mut pod = pods::from_template(&template, scene.set);
    let name = pod_name(scene.set, ordinal);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME_LABEL.to_owned(), name.clone());
    labels.insert(INDEX_LABEL.to_owned(), ordinal.to_string());
    let revision = owner::name(&revision.metadata);
    labels.insert(REVISION_LABEL.to_owned(), revision.to_owned());
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(name.clone());
        spec.subdomain = scene.spec.service_name.clone();
        let mut volumes = claim_volumes(scene, &name);
        let others = spec.volumes.take().unwrap_or_default().into_iter();
        let claimed: Vec<String> = volumes.iter().map(|volume| volume.name.clone()).collect();
        volumes.extend(others.filter(|volume| !claimed.contains(&volume.name)));
        spec.volumes = (!volumes.is_empty()).then_some(volumes);
    }
    pod
}

fn claim_volumes(scene: &Scene<'_>, pod: &str) -> Vec<Volume> {
    let templates = scene.spec.volume_claim_templates.iter().flatten();
    templates
        .map(|template| Volume {
            name: owner::name(&template.metadata).to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(template, pod),
                read_only: Some(false),
            }),
            ..Volume::default()
        })
        .collect()
}

/// The claims of an ordinal, as they are made if they are missing.
pub(super) fn claims_for(scene: &Scene<'_>, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let pod = pod_name(scene.set, ordinal);
    let templates = scene.spec.volume_claim_templates.iter().flatten();
    let selector = scene.spec.selector.match_labels.clone().unwrap_or_default();
    templates
        .map(|template| {
            let mut claim = template.clone();
            claim.metadata.name = Some(claim_name(template, &pod));
            claim.metadata.namespace = scene.set.metadata.namespace.clone();
            let labels: &mut BTreeMap<_, _> = claim.metadata.labels.get_or_insert_default();
            labels.extend(selector.clone());
            claim.metadata.owner_references = retention(scene, ordinal, None).map(|one| vec![one]);
            claim.status = None;
            claim
        })
        .collect()
}

/// Who owns an ordinal's claims by the retention policy: the set, the pod that is to go for good,
/// or nobody.
pub(super) fn retention(
    scene: &Scene<'_>,
    ordinal: i32,
    pod: Option<&Pod>,
) -> Option<OwnerReference> {
    let policy = scene.spec.persistent_volume_claim_retention_policy.as_ref();
    let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
    let when_scaled = deletes(policy.and_then(|policy| policy.when_scaled.as_ref()));
    let when_deleted = deletes(policy.and_then(|policy| policy.when_deleted.as_ref()));
    let reference = |mut reference: OwnerReference| {
        reference.controller = None;
        reference.block_owner_deletion = None;
        reference
    };
    if when_scaled && !scene.wants(ordinal) {
        return pod.map(|pod| reference(owner::controller_reference(pod)));
    }
    when_deleted.then(|| reference(owner::controller_reference(scene.set)))
}

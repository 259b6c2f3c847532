//! Volumes, claims and storage classes.

use serde_json::{Value, json};

use super::Rule;
use crate::meta::{default, default_text, get, text};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("core.v1.Volume", volume),
    ("core.v1.SecretVolumeSource", default_mode),
    ("core.v1.ConfigMapVolumeSource", default_mode),
    ("core.v1.DownwardAPIVolumeSource", default_mode),
    ("core.v1.ProjectedVolumeSource", default_mode),
    ("core.v1.ServiceAccountTokenProjection", token),
    ("core.v1.HostPathVolumeSource", host_path),
    ("core.v1.PersistentVolume", persistent_volume),
    ("core.v1.PersistentVolumeClaim", claim),
    ("core.v1.PersistentVolumeClaimSpec", claim_spec),
    ("storage.v1.StorageClass", storage_class),
    ("storage.v1.CSIDriverSpec", csi_driver),
];

fn volume(volume: &mut Value) {
    let sourceless = volume.as_object().is_some_and(|map| {
        map.iter()
            .all(|(key, value)| key == "name" || value.is_null())
    });
    if sourceless {
        volume["emptyDir"] = json!({});
    }
    if let Some(image) = volume.get_mut("image").filter(|image| image.is_object()) {
        let policy = super::pod::pull_policy(text(image, &["reference"]));
        default_text(image, "pullPolicy", policy);
    }
}

fn default_mode(source: &mut Value) {
    default(source, "defaultMode", 0o644);
}

fn token(source: &mut Value) {
    default(source, "expirationSeconds", 3600);
}

fn host_path(source: &mut Value) {
    default(source, "type", "");
}

fn persistent_volume(volume: &mut Value) {
    default(volume, "status", json!({}));
    default_text(&mut volume["status"], "phase", "Pending");
    default(volume, "spec", json!({}));
    let spec = &mut volume["spec"];
    default_text(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
    if let Some(capacity) = spec.get_mut("capacity") {
        super::pod::round_to_milli(capacity);
    }
}

fn claim(claim: &mut Value) {
    default(claim, "status", json!({}));
    default_text(&mut claim["status"], "phase", "Pending");
}

fn claim_spec(spec: &mut Value) {
    default(spec, "volumeMode", "Filesystem");
}

fn storage_class(class: &mut Value) {
    default(class, "reclaimPolicy", "Delete");
    default(class, "volumeBindingMode", "Immediate");
}

fn csi_driver(spec: &mut Value) {
    default(spec, "attachRequired", true);
    default(spec, "podInfoOnMount", false);
    default(spec, "storageCapacity", false);
    default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if get(spec, "volumeLifecycleModes")
        .as_array()
        .is_none_or(Vec::is_empty)
    {
        spec["volumeLifecycleModes"] = json!(["Persistent"]);
    }
    default(spec, "requiresRepublish", false);
    default(spec, "seLinuxMount", false);
}

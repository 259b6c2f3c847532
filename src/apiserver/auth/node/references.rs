//! The objects that a pod or a volume names in its spec.

use sampan_api::meta;
use serde_json::Value;

use super::graph::ObjectKind;

#[derive(Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: ObjectKind,
    pub name: String,
}

/// Everything in the pod's own namespace that its node must be able to read.
pub fn of_pod(pod_name: &str, pod: &Value) -> Vec<Reference> {
    let mut found = Vec::new();
    let mut add = |kind, name: &str| {
        if !name.is_empty() {
            found.push(Reference {
                kind,
                name: name.to_owned(),
            });
        }
    };
    add(
        ObjectKind::ServiceAccount,
        meta::text(pod, &["spec", "serviceAccountName"]),
    );
    for secret in meta::items(pod, &["spec", "imagePullSecrets"]) {
        add(ObjectKind::Secret, meta::text(secret, &["name"]));
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in meta::items(pod, &["spec", list]) {
            of_container(container, &mut add);
        }
    }
    for volume in meta::items(pod, &["spec", "volumes"]) {
        of_pod_volume(pod_name, volume, &mut add);
    }
    for claim in meta::items(pod, &["spec", "resourceClaims"]) {
        add(
            ObjectKind::ResourceClaim,
            meta::text(claim, &["resourceClaimName"]),
        );
    }
    for claim in meta::items(pod, &["status", "resourceClaimStatuses"]) {
        add(
            ObjectKind::ResourceClaim,
            meta::text(claim, &["resourceClaimName"]),
        );
    }
    found
}

fn of_container(container: &Value, add: &mut impl FnMut(ObjectKind, &str)) {
    for source in meta::items(container, &["envFrom"]) {
        add(
            ObjectKind::Secret,
            meta::text(source, &["secretRef", "name"]),
        );
        add(
            ObjectKind::ConfigMap,
            meta::text(source, &["configMapRef", "name"]),
        );
    }
    for variable in meta::items(container, &["env"]) {
        let from = meta::get(variable, "valueFrom");
        add(
            ObjectKind::Secret,
            meta::text(from, &["secretKeyRef", "name"]),
        );
        add(
            ObjectKind::ConfigMap,
            meta::text(from, &["configMapKeyRef", "name"]),
        );
    }
}

/// Where volume sources of pods name a secret.
const SECRET_PATHS: &[&[&str]] = &[
    &["secret", "secretName"],
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["scaleIO", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["storageos", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
];

fn of_pod_volume(pod_name: &str, volume: &Value, add: &mut impl FnMut(ObjectKind, &str)) {
    for path in SECRET_PATHS {
        add(ObjectKind::Secret, meta::text(volume, path));
    }
    add(
        ObjectKind::ConfigMap,
        meta::text(volume, &["configMap", "name"]),
    );
    add(
        ObjectKind::Claim,
        meta::text(volume, &["persistentVolumeClaim", "claimName"]),
    );
    if volume.get("ephemeral").is_some_and(Value::is_object) {
        let name = format!("{pod_name}-{}", meta::text(volume, &["name"]));
        add(ObjectKind::Claim, &name);
    }
    for source in meta::items(volume, &["projected", "sources"]) {
        add(ObjectKind::Secret, meta::text(source, &["secret", "name"]));
        add(
            ObjectKind::ConfigMap,
            meta::text(source, &["configMap", "name"]),
        );
    }
}

/// Where a persistent volume names a secret.
const VOLUME_SECRET_PATHS: &[&[&str]] = &[
    &["cephfs", "secretRef"],
    &["cinder", "secretRef"],
    &["flexVolume", "secretRef"],
    &["rbd", "secretRef"],
    &["scaleIO", "secretRef"],
    &["iscsi", "secretRef"],
    &["storageos", "secretRef"],
    &["csi", "nodePublishSecretRef"],
    &["csi", "nodeStageSecretRef"],
    &["csi", "nodeExpandSecretRef"],
];

/// Namespace and name of the secrets that a node needs for a persistent volume.
pub fn secrets_of_volume(volume: &Value) -> Vec<(String, String)> {
    let spec = meta::get(volume, "spec");
    let claim_namespace = meta::text(spec, &["claimRef", "namespace"]);
    let mut found = Vec::new();
    for path in VOLUME_SECRET_PATHS {
        let secret = meta::at(spec, path);
        let namespace = match meta::text(secret, &["namespace"]) {
            "" => claim_namespace,
            own => own,
        };
        found.push((namespace, meta::text(secret, &["name"])));
    }
    let azure = meta::get(spec, "azureFile");
    let namespace = match meta::text(azure, &["secretNamespace"]) {
        "" => claim_namespace,
        own => own,
    };
    found.push((namespace, meta::text(azure, &["secretName"])));
    found
        .into_iter()
        .filter(|(_, name)| !name.is_empty())
        .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
        .collect()
}

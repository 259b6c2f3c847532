//! Which API objects a pod reads. A mirror pod may read none: a kubelet that has been taken over could give itself
//! what it names there.

use sampan_api::meta::{at, get, items, text};
use serde_json::Value;

/// Sources of volumes that read no API object beside the secret that some of them may name.
const HARMLESS: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// Sources of volumes that read something.
const READING: &[(&str, &str)] = &[
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    (
        "ephemeral",
        "persistentvolumeclaims (via ephemeral volumes)",
    ),
    ("azureFile", "secrets (via azureFile volumes)"),
];

const PROJECTED: &[(&str, &str)] = &[
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    (
        "serviceAccountToken",
        "serviceaccounts (via projected volumes)",
    ),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// Where volumes name a secret.
const VOLUME_SECRETS: &[&[&str]] = &[
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["secret", "secretName"],
    &["scaleIO", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["storageos", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
];

/// A pod reads something, or something that nobody knows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reference {
    To(&'static str),
    Unknown(String),
}

/// What the pod reads, if anything.
pub(super) fn find(pod: &Value) -> Option<Reference> {
    let spec = get(pod, "spec");
    // Both names of one field.
    let accounts = ["serviceAccountName", "serviceAccount"];
    if accounts.iter().any(|field| is_named(spec, &[field])) {
        return Some(Reference::To("serviceaccounts"));
    }
    if reads_secrets(spec) {
        return Some(Reference::To("secrets"));
    }
    if reads_config_maps(spec) {
        return Some(Reference::To("configmaps"));
    }
    if !items(spec, &["resourceClaims"]).is_empty() {
        return Some(Reference::To("resourceclaims"));
    }
    items(spec, &["volumes"]).iter().find_map(of_volume)
}

fn is_named(object: &Value, path: &[&str]) -> bool {
    !text(object, path).is_empty()
}

fn reads_secrets(spec: &Value) -> bool {
    let mut pulls = items(spec, &["imagePullSecrets"]).iter();
    pulls.any(|secret| is_named(secret, &["name"]))
        || is_in_environment(spec, "secretRef", "secretKeyRef")
        || items(spec, &["volumes"]).iter().any(|volume| {
            VOLUME_SECRETS.iter().any(|path| is_named(volume, path))
                || is_projected(volume, "secret")
        })
}

fn reads_config_maps(spec: &Value) -> bool {
    is_in_environment(spec, "configMapRef", "configMapKeyRef")
        || items(spec, &["volumes"]).iter().any(|volume| {
            is_named(volume, &["configMap", "name"]) || is_projected(volume, "configMap")
        })
}

fn is_projected(volume: &Value, source: &str) -> bool {
    let mut sources = items(volume, &["projected", "sources"]).iter();
    sources.any(|entry| is_named(entry, &[source, "name"]))
}

fn is_in_environment(spec: &Value, whole: &str, key: &str) -> bool {
    ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| items(spec, &[list]))
        .any(|container| {
            let mut from = items(container, &["envFrom"]).iter();
            let mut single = items(container, &["env"]).iter();
            from.any(|source| is_named(source, &[whole, "name"]))
                || single.any(|variable| is_named(variable, &["valueFrom", key, "name"]))
        })
}

fn of_volume(volume: &Value) -> Option<Reference> {
    let has = |name: &str| !get(volume, name).is_null();
    if HARMLESS.iter().any(|source| has(source)) {
        return None;
    }
    if let Some((_, what)) = READING.iter().find(|(source, _)| has(source)) {
        return Some(Reference::To(what));
    }
    let name = text(volume, &["name"]);
    if has("projected") {
        let sources = items(volume, &["projected", "sources"]);
        return sources.iter().find_map(|source| of_source(source, name));
    }
    Some(Reference::Unknown(format!(
        "unknown volume type for volume  {name:?}"
    )))
}

fn of_source(source: &Value, volume: &str) -> Option<Reference> {
    let has = |name: &str| !at(source, &[name]).is_null();
    if let Some((_, what)) = PROJECTED.iter().find(|(name, _)| has(name)) {
        return Some(Reference::To(what));
    }
    if has("downwardAPI") {
        return None;
    }
    Some(Reference::Unknown(format!(
        "unknown source for projected volume {volume:?}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(spec: Value) -> Option<Reference> {
        find(&json!({"spec": spec}))
    }

    #[test]
    fn whatever_a_mirror_pod_could_read_is_found() {
        let volume = |source: Value| json!({"volumes": [source]});
        let projected =
            |source: Value| json!({"volumes": [{"name": "v", "projected": {"sources": [source]}}]});
        let container = |list: &str, content: Value| json!({list: [content]});
        let rows = [
            (json!({"serviceAccountName": "a"}), "serviceaccounts"),
            (json!({"serviceAccount": "a"}), "serviceaccounts"),
            (json!({"imagePullSecrets": [{"name": "s"}]}), "secrets"),
            (
                container(
                    "containers",
                    json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                ),
                "secrets",
            ),
            (
                container(
                    "initContainers",
                    json!({"envFrom": [{"secretRef": {"name": "s"}}]}),
                ),
                "secrets",
            ),
            (
                container(
                    "ephemeralContainers",
                    json!({"envFrom": [{"configMapRef": {"name": "c"}}]}),
                ),
                "configmaps",
            ),
            (
                container(
                    "containers",
                    json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}),
                ),
                "configmaps",
            ),
            (
                json!({"resourceClaims": [{"name": "r", "resourceClaimName": "c"}]}),
                "resourceclaims",
            ),
            (volume(json!({"secret": {"secretName": "s"}})), "secrets"),
            (
                volume(json!({"secret": {}})),
                "secrets (via secret volumes)",
            ),
            (volume(json!({"configMap": {"name": "c"}})), "configmaps"),
            (
                volume(json!({"configMap": {}})),
                "configmaps (via configmap volumes)",
            ),
            (
                volume(json!({"csi": {"driver": "d"}})),
                "csidrivers (via CSI volumes)",
            ),
            (
                volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}})),
                "secrets",
            ),
            (
                volume(json!({"glusterfs": {"endpoints": "e"}})),
                "endpoints (via glusterFS volumes)",
            ),
            (
                volume(json!({"persistentVolumeClaim": {"claimName": "p"}})),
                "persistentvolumeclaims",
            ),
            (
                volume(json!({"ephemeral": {"volumeClaimTemplate": {}}})),
                "persistentvolumeclaims (via ephemeral volumes)",
            ),
            (
                volume(json!({"azureFile": {"shareName": "x"}})),
                "secrets (via azureFile volumes)",
            ),
            (
                volume(json!({"iscsi": {"secretRef": {"name": "s"}}})),
                "secrets",
            ),
            (projected(json!({"secret": {"name": "s"}})), "secrets"),
            (
                projected(json!({"secret": {}})),
                "secrets (via projected volumes)",
            ),
            (projected(json!({"configMap": {"name": "c"}})), "configmaps"),
            (
                projected(json!({"serviceAccountToken": {"path": "t"}})),
                "serviceaccounts (via projected volumes)",
            ),
            (
                projected(json!({"clusterTrustBundle": {"path": "t"}})),
                "clustertrustbundles",
            ),
            (
                projected(json!({"podCertificate": {"signerName": "s"}})),
                "podcertificates",
            ),
        ];
        for (spec, what) in rows {
            assert_eq!(found(spec.clone()), Some(Reference::To(what)), "{spec}");
        }
    }

    #[test]
    fn what_reads_nothing_is_let_in_and_what_nobody_knows_is_not() {
        for source in HARMLESS {
            let spec = json!({"volumes": [{"name": "v", *source: {}}]});
            assert_eq!(found(spec), None, "{source}");
        }
        let own = json!({"volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {}}]}}],
            "containers": [{"env": [{"name": "A", "value": "1"}]}]});
        assert_eq!(found(own), None);
        let unknown = |text: &str| Some(Reference::Unknown(text.to_owned()));
        assert_eq!(
            found(json!({"volumes": [{"name": "v", "newest": {}}]})),
            unknown("unknown volume type for volume  \"v\"")
        );
        assert_eq!(
            found(json!({"volumes": [{"name": "v", "projected": {"sources": [{"newest": {}}]}}]})),
            unknown("unknown source for projected volume \"v\"")
        );
    }
}

//! One manifest: a pod as a file describes it, completed as the API server would.

use crate::pod::{self, CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Toleration, Volume};
use sampan_api::strategy::Context;
use sampan_api::{Registry, names};
use serde_json::Value;
use std::path::Path;
use std::sync::LazyLock;

/// Made when the first manifest is read: most nodes have none.
static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::builtin);

/// The pod that the text describes, or why it describes none.
pub fn parse(text: &[u8], path: &Path, node: &str, now: Timestamp) -> Result<Pod, String> {
    let text = std::str::from_utf8(text).map_err(|_| "is no text".to_owned())?;
    let mut options = serde_saphyr::Options::default();
    options.legacy_octal_numbers = true;
    let mut value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    })?;
    let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    if (field("apiVersion"), field("kind")) != ("v1", "Pod") {
        return Err(format!(
            "is no Pod of v1 but kind {:?} of {:?}",
            field("kind"),
            field("apiVersion")
        ));
    }
    complete(&mut value, now)?;
    let mut pod: Pod = serde_json::from_value(value).map_err(|error| error.to_string())?;
    if let Some(what) = reference(&pod) {
        return Err(format!("static pods may not reference {what}"));
    }
    settle(&mut pod, path, node, now);
    Ok(pod)
}

/// Decodes, applies defaults and validates, as for a pod that is created through the API.
fn complete(value: &mut Value, now: Timestamp) -> Result<(), String> {
    let snapshot = REGISTRY.snapshot();
    let def = snapshot
        .by_kind("", "v1", "Pod")
        .ok_or("the kind Pod is not known")?;
    let version = def.storage_version().clone();
    let unknown = def
        .decode(&version, value)
        .map_err(|error| error.to_string())?;
    if let Some(first) = unknown.first() {
        tracing::warn!(field = %first, "a static pod's manifest has fields that nobody knows");
    }
    def.strategy.default(value);
    let name = value.pointer("/metadata/name").and_then(Value::as_str);
    let name = name.unwrap_or_default();
    if name.is_empty() {
        return Err("invalid pod: name is needed for the pod".to_owned());
    }
    if let Some(problem) = names::dns1123_subdomain(name).first() {
        return Err(format!("metadata.name: Invalid value: {name:?}: {problem}"));
    }
    let context = Context {
        def: &def,
        group: "",
        subresource: "",
        user: None,
        now,
    };
    let errors = def.strategy.validate(&context, value);
    let words: Vec<String> = errors.into_iter().map(|error| error.to_string()).collect();
    if words.is_empty() {
        Ok(())
    } else {
        Err(words.join(", "))
    }
}

/// What a static pod must not use, since it exists without the API.
fn reference(pod: &Pod) -> Option<&'static str> {
    let spec = pod::spec(pod);
    let account = spec.service_account_name.as_deref().unwrap_or_default();
    if !account.is_empty() {
        return Some("serviceaccounts");
    }
    if spec.image_pull_secrets.iter().flatten().next().is_some() {
        return Some("secrets");
    }
    let references = crate::objects::references(pod);
    if let Some(what) = spec.volumes.iter().flatten().find_map(of_volume) {
        return Some(what);
    }
    if !references.secrets.is_empty() {
        return Some("secrets");
    }
    if !references.config_maps.is_empty() {
        return Some("configmaps");
    }
    let claims = spec.resource_claims.iter().flatten().next();
    claims.map(|_| "resourceclaims")
}

fn of_volume(volume: &Volume) -> Option<&'static str> {
    if volume.config_map.is_some() {
        return Some("configmaps (via configmap volumes)");
    }
    if volume.secret.is_some() {
        return Some("secrets (via secret volumes)");
    }
    if volume.persistent_volume_claim.is_some() {
        return Some("persistentvolumeclaims");
    }
    if volume.ephemeral.is_some() {
        return Some("persistentvolumeclaims (via ephemeral volumes)");
    }
    if volume.csi.is_some() {
        return Some("csidrivers (via CSI volumes)");
    }
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter());
    sources.flatten().find_map(|source| {
        if source.config_map.is_some() {
            Some("configmaps (via projected volumes)")
        } else if source.secret.is_some() {
            Some("secrets (via projected volumes)")
        } else if source.service_account_token.is_some() {
            Some("serviceaccounts (via projected volumes)")
        } else {
            source
                .cluster_trust_bundle
                .as_ref()
                .map(|_| "clustertrustbundles")
        }
    })
}

/// Name, identity and marks of a pod that belongs to this node.
fn settle(pod: &mut Pod, path: &Path, node: &str, now: Timestamp) {
    let uid = match pod.metadata.uid.take().filter(|uid| !uid.is_empty()) {
        Some(uid) => uid,
        None => hash(pod, path, node),
    };
    let metadata = &mut pod.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    metadata.name = Some(format!("{name}-{}", node.to_lowercase()));
    if metadata.namespace.as_deref().unwrap_or_default().is_empty() {
        metadata.namespace = Some("default".to_owned());
    }
    let marks = [
        (CONFIG_HASH, uid.clone()),
        (CONFIG_SEEN, now.to_string()),
        (CONFIG_SOURCE, "file".to_owned()),
    ];
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.extend(marks.map(|(name, value)| (name.to_owned(), value)));
    metadata.uid = Some(uid);
    metadata.resource_version = None;
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    // Troubles of the node are no reason to leave it.
    spec.tolerations.get_or_insert_default().push(Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    });
    pod.status.get_or_insert_default().phase = Some("Pending".to_owned());
}

/// Another content, file or node makes another pod.
fn hash(pod: &Pod, path: &Path, node: &str) -> String {
    let text = serde_json::to_string(pod).unwrap_or_default();
    let text = format!("{text}host:{node}file:{}", path.display());
    let first = pod::fnv1a(text.as_bytes());
    let second = pod::fnv1a(format!("{first:016x}{text}").as_bytes());
    format!("{first:016x}{second:016x}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(spec: &str) -> Result<Pod, String> {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {spec}\n");
        parse(
            text.as_bytes(),
            Path::new("/m/web.yaml"),
            "Node-1",
            Timestamp::UNIX_EPOCH,
        )
    }

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node() {
        let pod = parsed("{containers: [{name: a, image: x}]}").unwrap();
        assert_eq!(pod::name(&pod), "web-node-1");
        assert_eq!(pod::namespace(&pod), "default");
        assert_eq!(pod::uid(&pod).len(), 32);
        let annotations = pod.metadata.annotations.clone().unwrap();
        assert_eq!(annotations[CONFIG_HASH], pod::uid(&pod));
        assert_eq!(annotations[CONFIG_SOURCE], "file");
        let spec = pod::spec(&pod);
        assert_eq!(spec.node_name.as_deref(), Some("Node-1"));
        // Defaults are in place.
        assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
        assert_eq!(
            spec.containers[0].image_pull_policy.as_deref(),
            Some("Always")
        );
        assert_eq!(spec.termination_grace_period_seconds, Some(30));
        assert!(pod::is_static(&pod) && !pod::is_mirror(&pod));
        assert_eq!(
            pod::uid(&parsed("{containers: [{name: a, image: x}]}").unwrap()),
            pod::uid(&pod)
        );
    }

    #[test]
    fn what_is_no_pod_is_named() {
        for (spec, words) in [
            ("{containers: []}", "spec.containers: Required value"),
            (
                "{containers: [{name: A, image: x}]}",
                "spec.containers[0].name",
            ),
            ("{containers: 3}", "containers"),
            (
                "{serviceAccountName: x, containers: [{name: a, image: x}]}",
                "may not reference serviceaccounts",
            ),
            (
                "{volumes: [{name: v, secret: {secretName: s}}], containers: [{name: a, image: x}]}",
                "may not reference secrets (via secret volumes)",
            ),
            (
                "{containers: [{name: a, image: x, envFrom: [{configMapRef: {name: c}}]}]}",
                "may not reference configmaps",
            ),
        ] {
            let problem = parsed(spec).unwrap_err();
            assert!(problem.contains(words), "{spec}: {problem}");
        }
        let now = Timestamp::UNIX_EPOCH;
        let problem =
            parse(b"kind: List\napiVersion: v1\n", Path::new("/x"), "n", now).unwrap_err();
        assert!(problem.contains("\"List\""), "{problem}");
        assert!(parse(b"a: [", Path::new("/x"), "n", now).is_err());
        assert!(parse(b"\xff", Path::new("/x"), "n", now).is_err());
    }
}

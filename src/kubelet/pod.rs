//! Reading a Pod: the accessors that the rest of the kubelet is written in.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec};
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

static EMPTY_SPEC: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContainerKind {
    Init,
    Regular,
    Ephemeral,
}

pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&EMPTY_SPEC)
}

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// `name_namespace(uid)`, the form upstream uses in messages.
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// Of a static pod: which content it is, when it was read, and where from.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Of a copy in the API: the static pod it is the copy of.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

pub fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

/// `namespace/name`.
pub fn key(pod: &Pod) -> String {
    format!("{}/{}", namespace(pod), name(pod))
}

/// The copy of a static pod that the API shows.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// It comes from a file of this node.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api") && !is_mirror(pod)
}

/// A pod of the API never counts as static, whatever its annotations claim.
pub fn of_api(mut pod: Arc<Pod>) -> Arc<Pod> {
    if is_static(&pod)
        && let Some(annotations) = &mut Arc::make_mut(&mut pod).metadata.annotations
    {
        annotations.insert(CONFIG_SOURCE.to_owned(), "api".to_owned());
    }
    pod
}

pub fn is_host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or(false)
}

pub fn is_being_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .unwrap_or_default()
}

pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// An init container that keeps running beside the regular ones.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// All containers in the order in which they start.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (ContainerKind, Cow<'_, Container>)> {
    let spec = spec(pod);
    let ephemeral = spec.ephemeral_containers.as_deref().unwrap_or_default();
    init_containers(pod)
        .iter()
        .map(|c| (ContainerKind::Init, Cow::Borrowed(c)))
        .chain(
            spec.containers
                .iter()
                .map(|c| (ContainerKind::Regular, Cow::Borrowed(c))),
        )
        .chain(
            ephemeral
                .iter()
                .map(|c| (ContainerKind::Ephemeral, Cow::Owned(from_ephemeral(c)))),
        )
}

pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<(ContainerKind, Cow<'a, Container>)> {
    containers(pod).find(|(_, c)| c.name == name)
}

/// An ephemeral container has all fields of a container, as a type of its own.
pub fn from_ephemeral(container: &EphemeralContainer) -> Container {
    let c = container.clone();
    Container {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        liveness_probe: c.liveness_probe,
        name: c.name,
        ports: c.ports,
        readiness_probe: c.readiness_probe,
        resize_policy: c.resize_policy,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        security_context: c.security_context,
        startup_probe: c.startup_probe,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
    }
}

/// Whether the policies ask for another run after an exit with `exit_code`.
pub fn restarts_after(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    for rule in container
        .restart_policy_rules
        .as_deref()
        .unwrap_or_default()
    {
        let Some(codes) = &rule.exit_codes else {
            continue;
        };
        let listed = codes
            .values
            .as_deref()
            .unwrap_or_default()
            .contains(&exit_code);
        let matches = match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        if matches && rule.action.starts_with("Restart") {
            return true;
        }
    }
    let policy = container
        .restart_policy
        .as_deref()
        .or(spec.restart_policy.as_deref())
        .unwrap_or("Always");
    match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Whether a container that we kill for a failed probe is started again.
pub fn restarts_after_kill(container: &Container, spec: &PodSpec) -> bool {
    let policy = container
        .restart_policy
        .as_deref()
        .or(spec.restart_policy.as_deref());
    policy != Some("Never")
}

/// Identifies the part of a container whose change asks for a restart (upstream: name and image).
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    let text = format!("{{\"name\":{:?},\"image\":{:?}}}", container.name, image);
    fnv1a(text.as_bytes())
}

/// The 64-bit FNV-1a hash: stable across versions, which `DefaultHasher` does not promise.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn container(value: serde_json::Value) -> Container {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_of_the_api_is_never_static() {
        let metadata = json!({"name": "a", "annotations": {CONFIG_SOURCE: "file"}});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        assert!(is_static(&pod));
        assert!(!is_static(&of_api(Arc::new(pod))));
    }

    #[test]
    fn restart_follows_pod_then_container_then_rules() {
        let spec = PodSpec {
            restart_policy: Some("Never".into()),
            ..PodSpec::default()
        };
        let plain = container(json!({"name": "a"}));
        assert!(!restarts_after(&plain, &spec, 1));
        let own = container(json!({"name": "a", "restartPolicy": "OnFailure"}));
        assert!(restarts_after(&own, &spec, 1));
        assert!(!restarts_after(&own, &spec, 0));
        let ruled = container(
            json!({"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}),
        );
        assert!(restarts_after(&ruled, &spec, 42));
        assert!(!restarts_after(&ruled, &spec, 1));
    }

    #[test]
    fn hash_changes_with_the_image_only() {
        let a = container(json!({"name": "a", "image": "x:1"}));
        let env = container(json!({"name": "a", "image": "x:1", "env": [{"name": "A"}]}));
        let newer = container(json!({"name": "a", "image": "x:2"}));
        assert_eq!(container_hash(&a), container_hash(&env));
        assert_ne!(container_hash(&a), container_hash(&newer));
    }
}

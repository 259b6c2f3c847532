//! Pods and templates of pods.

use std::collections::BTreeSet;

use serde_json::Value;

use super::container::{self, PodContext};
use super::{dns_label, dns_subdomain, label_name, legacy_ip, one_of, required_one_of};
use super::{scheduling, security, volume};
use crate::field::{ErrorList, Path};
use crate::meta::{at, boolean, entries, get, integer, items, text};
use crate::names;

pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What holds for a pod at any time.
pub(crate) fn pod(pod: &Value, errors: &mut ErrorList) {
    annotations(pod, errors);
    let path = Path::new("spec");
    let spec = get(pod, "spec");
    pod_spec(spec, Some(get(pod, "metadata")), true, &path, errors);
    if text(spec, &["serviceAccountName"]).is_empty() {
        unowned_tokens(spec, &path, errors);
    }
    for list in ["containers", "initContainers"] {
        let list_path = path.child(list);
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            image_whitespace(container, &list_path.index(index), errors);
        }
    }
}

fn unowned_tokens(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let volumes = path.child("volumes");
    for (index, volume) in items(spec, &["volumes"]).iter().enumerate() {
        let volume_path = volumes.index(index);
        let projected = volume_path.child("projected");
        let list = projected.child("sources");
        for (index, source) in items(volume, &["projected", "sources"]).iter().enumerate() {
            if !get(source, "serviceAccountToken").is_null() {
                let why = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&list.index(index).child("serviceAccountToken"), why);
            }
        }
    }
}

fn image_whitespace(container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let image = text(container, &["image"]);
    if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        errors.invalid(&path.child("image"), image, why);
    }
}

fn annotations(pod: &Value, errors: &mut ErrorList) {
    let all = at(pod, &["metadata", "annotations"]);
    let path = Path::new("metadata.annotations");
    if let Some(value) = get(all, MIRROR).as_str()
        && text(pod, &["spec", "nodeName"]).is_empty()
    {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        errors.invalid(&path.key(MIRROR), value, why);
    }
    if let Some(cost) = get(all, DELETION_COST).as_str() {
        let canonical = cost.parse::<i32>().is_ok()
            && !cost.starts_with('+')
            && (cost == "0" || !cost.starts_with('0'));
        if !canonical {
            errors.invalid(&path.key(DELETION_COST), cost, "must be a 32bit integer");
        }
    }
}

pub(crate) fn create(object: &Value, errors: &mut ErrorList) {
    pod(object, errors);
    let path = Path::new("spec");
    if !items(object, &["spec", "ephemeralContainers"]).is_empty() {
        errors.forbidden(
            &path.child("ephemeralContainers"),
            "cannot be set on create",
        );
    }
    let named = !text(object, &["spec", "nodeName"]).is_empty();
    if named && !items(object, &["spec", "schedulingGates"]).is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        errors.forbidden(&path.child("nodeName"), why);
    }
}

/// A template in a workload.
pub(crate) fn template(template: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    super::labels(
        at(template, &["metadata", "labels"]),
        &path.child("labels"),
        errors,
    );
    annotation_keys(
        at(template, &["metadata", "annotations"]),
        &path.child("annotations"),
        errors,
    );
    let spec_path = path.child("spec");
    let spec = get(template, "spec");
    pod_spec(spec, None, false, &spec_path, errors);
    if !items(spec, &["ephemeralContainers"]).is_empty() {
        let why = "ephemeral containers not allowed in pod template";
        errors.forbidden(&spec_path.child("ephemeralContainers"), why);
    }
}

/// Names of annotations are compared in lower case.
pub(crate) fn annotation_keys(annotations: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (key, _) in annotations.as_object().into_iter().flatten() {
        errors.invalid_each(path, key, names::label_key(&key.to_lowercase()));
    }
}

/// The spec of a pod; `metadata` is there if it is a real pod's.
pub(crate) fn pod_spec(
    spec: &Value,
    metadata: Option<&Value>,
    is_pod: bool,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let pod_name = metadata.map_or("", |metadata| text(metadata, &["name"]));
    let volumes = volume::volumes(
        items(spec, &["volumes"]),
        pod_name,
        &path.child("volumes"),
        errors,
    );
    let claims = resource_claims(
        items(spec, &["resourceClaims"]),
        &path.child("resourceClaims"),
        errors,
    );
    let context = PodContext {
        spec,
        volumes,
        claims,
    };
    containers(&context, path, errors);
    init_containers(&context, path, errors);
    ephemeral_containers(&context, path, errors);
    host_network_ports(spec, is_pod, path, errors);
    policies(spec, path, errors);
    super::labels(
        get(spec, "nodeSelector"),
        &path.child("nodeSelector"),
        errors,
    );
    security::pod_context(
        get(spec, "securityContext"),
        spec,
        &path.child("securityContext"),
        errors,
    );
    scheduling::affinity(get(spec, "affinity"), &path.child("affinity"), errors);
    dns_config(spec, &path.child("dnsConfig"), errors);
    gates(spec, path, errors);
    scheduling::spread_constraints(
        items(spec, &["topologySpreadConstraints"]),
        &path.child("topologySpreadConstraints"),
        errors,
    );
    host_users(spec, path, errors);
    spec_names(spec, path, errors);
    host_aliases(spec, &path.child("hostAliases"), errors);
    rest(spec, path, errors);
}

fn policies(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_one_of(
        text(spec, &["restartPolicy"]),
        &["Always", "OnFailure", "Never"],
        &path.child("restartPolicy"),
        errors,
    );
    required_one_of(
        text(spec, &["dnsPolicy"]),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        &path.child("dnsPolicy"),
        errors,
    );
}

fn resource_claims<'v>(
    list: &'v [Value],
    path: &Path<'_>,
    errors: &mut ErrorList,
) -> BTreeSet<&'v str> {
    let mut names = BTreeSet::new();
    for (index, claim) in list.iter().enumerate() {
        let at = path.index(index);
        let name = text(claim, &["name"]);
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if !names.insert(name) {
            errors.duplicate(&at.child("name"), name);
        } else {
            dns_label(name, &at.child("name"), errors);
        }
        let direct = get(claim, "resourceClaimName");
        let template = get(claim, "resourceClaimTemplateName");
        if !direct.is_null() && !template.is_null() {
            let why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
            errors.invalid(&at, claim.clone(), why);
        }
        if direct.is_null() && template.is_null() {
            let why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errors.invalid(&at, claim.clone(), why);
        }
        for key in ["resourceClaimName", "resourceClaimTemplateName"] {
            if let Some(name) = get(claim, key).as_str() {
                dns_subdomain(name, &at.child(key), errors);
            }
        }
    }
    names
}

fn containers(context: &PodContext<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let list = items(context.spec, &["containers"]);
    let path = path.child("containers");
    if list.is_empty() {
        errors.required(&path, "");
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, one) in list.iter().enumerate() {
        let at = path.index(index);
        container::common(one, context, &at, errors);
        let name = text(one, &["name"]);
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        container::hooks_and_probes(one, context, &at, errors);
        container::restart_policy(one, &at, errors);
    }
    container::host_ports(list, &path, errors);
}

const NOT_IN_INIT: &str = "may not be set for init containers without restartPolicy=Always";

fn init_containers(context: &PodContext<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let mut seen: BTreeSet<&str> = items(context.spec, &["containers"])
        .iter()
        .map(|one| text(one, &["name"]))
        .collect();
    let path = path.child("initContainers");
    let list = items(context.spec, &["initContainers"]);
    for (index, one) in list.iter().enumerate() {
        let at = path.index(index);
        container::common(one, context, &at, errors);
        container::restart_policy(one, &at, errors);
        let name = text(one, &["name"]);
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        container::host_ports(&list[index..=index], &path, errors);
        if text(one, &["restartPolicy"]) == "Always" {
            container::hooks_and_probes(one, context, &at, errors);
            continue;
        }
        for key in [
            "lifecycle",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
        ] {
            if !get(one, key).is_null() {
                errors.forbidden(&at.child(key), NOT_IN_INIT);
            }
        }
        let policies = at.child("resizePolicy");
        for (index, policy) in items(one, &["resizePolicy"]).iter().enumerate() {
            let restart = text(policy, &["restartPolicy"]);
            if restart == "RestartContainer" {
                let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.invalid(&policies.index(index).child("restartPolicy"), restart, why);
            }
        }
    }
}

const NOT_IN_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

/// Fields that an ephemeral container must leave alone.
const EPHEMERAL_FORBIDDEN: &[&str] = &[
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    }
}

fn ephemeral_containers(context: &PodContext<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let list = items(context.spec, &["ephemeralContainers"]);
    let others: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(context.spec, &[list]))
        .map(|one| text(one, &["name"]))
        .collect();
    let mut seen = others.clone();
    let path = path.child("ephemeralContainers");
    for (index, one) in list.iter().enumerate() {
        let at = path.index(index);
        container::common(one, context, &at, errors);
        image_whitespace(one, &at, errors);
        let name = text(one, &["name"]);
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        let target = text(one, &["targetContainerName"]);
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&at.child("targetContainerName"), target);
        }
        for key in EPHEMERAL_FORBIDDEN {
            if is_set(get(one, key)) {
                errors.forbidden(&at.child(key), NOT_IN_EPHEMERAL);
            }
        }
        let mounts = at.child("volumeMounts");
        for (index, mount) in items(one, &["volumeMounts"]).iter().enumerate() {
            for key in ["subPath", "subPathExpr"] {
                if !text(mount, &[key]).is_empty() {
                    errors.forbidden(&mounts.index(index).child(key), NOT_IN_EPHEMERAL);
                }
            }
        }
    }
}

fn host_network_ports(spec: &Value, is_pod: bool, path: &Path<'_>, errors: &mut ErrorList) {
    if !boolean(spec, &["hostNetwork"]) {
        return;
    }
    let list = path.child("containers");
    for (index, container) in items(spec, &["containers"]).iter().enumerate() {
        let container_path = list.index(index);
        let ports = container_path.child("ports");
        for (index, port) in items(container, &["ports"]).iter().enumerate() {
            let host = integer(port, &["hostPort"]).unwrap_or(0);
            let inside = integer(port, &["containerPort"]).unwrap_or(0);
            if (is_pod || host != 0) && host != inside {
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(&ports.index(index).child("hostPort"), host, why);
            }
        }
    }
}

fn dns_config(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let config = get(spec, "dnsConfig");
    let servers = items(config, &["nameservers"]);
    let servers_path = path.child("nameservers");
    if text(spec, &["dnsPolicy"]) == "None" {
        if config.is_null() {
            errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(&servers_path, why);
            return;
        }
    }
    if servers.len() > 3 {
        errors.invalid(
            &servers_path,
            servers.to_vec(),
            "must not have more than 3 nameservers",
        );
    }
    for (index, server) in servers.iter().enumerate() {
        legacy_ip(
            server.as_str().unwrap_or_default(),
            &servers_path.index(index),
            errors,
        );
    }
    let searches = items(config, &["searches"]);
    let searches_path = path.child("searches");
    if searches.len() > 32 {
        errors.invalid(
            &searches_path,
            searches.to_vec(),
            "must not have more than 32 search paths",
        );
    }
    let length: usize = searches
        .iter()
        .map(|one| one.as_str().map_or(0, str::len) + 1)
        .sum();
    if length > 2049 {
        let why = "must not have more than 2048 characters (including spaces) in the search list";
        errors.invalid(&searches_path, searches.to_vec(), why);
    }
    for (index, search) in searches.iter().enumerate() {
        let search = search.as_str().unwrap_or_default();
        if search != "." {
            let search = search.strip_suffix('.').unwrap_or(search);
            let messages = names::dns1123_subdomain_with_underscore(search);
            errors.invalid_each(&searches_path.index(index), search, messages);
        }
    }
    let options = path.child("options");
    for (index, option) in items(config, &["options"]).iter().enumerate() {
        if text(option, &["name"]).is_empty() {
            errors.required(&options.index(index), "must not be empty");
        }
    }
}

fn gates(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let readiness = path.child("readinessGates");
    for (index, gate) in items(spec, &["readinessGates"]).iter().enumerate() {
        let at = readiness.index(index);
        label_name(
            text(gate, &["conditionType"]),
            &at.child("conditionType"),
            errors,
        );
    }
    let scheduling = path.child("schedulingGates");
    let mut seen = BTreeSet::new();
    for (index, gate) in items(spec, &["schedulingGates"]).iter().enumerate() {
        let at = scheduling.index(index);
        let name = text(gate, &["name"]);
        label_name(name, &at, errors);
        if !seen.insert(name) {
            errors.duplicate(&at, name);
        }
    }
}

fn host_users(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if get(spec, "hostUsers").as_bool() != Some(false) {
        return;
    }
    for (key, shown) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if boolean(spec, &[key]) {
            errors.forbidden(&path.child(shown), "when `hostUsers` is false");
        }
    }
}

/// Names of other things, each a subdomain or label.
fn spec_names(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(name) = get(spec, "hostnameOverride").as_str() {
        hostname_override(spec, name, &path.child("hostnameOverride"), errors);
    }
    for key in ["serviceAccountName", "nodeName"] {
        let name = text(spec, &[key]);
        if !name.is_empty() {
            dns_subdomain(name, &path.child(key), errors);
        }
    }
    if let Some(seconds) = integer(spec, &["activeDeadlineSeconds"])
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let range = names::inclusive_range(1, i32::MAX.into());
        errors.invalid(&path.child("activeDeadlineSeconds"), seconds, range);
    }
    for key in ["hostname", "subdomain"] {
        let name = text(spec, &[key]);
        if !name.is_empty() {
            dns_label(name, &path.child(key), errors);
        }
    }
    scheduling::tolerations(
        items(spec, &["tolerations"]),
        &path.child("tolerations"),
        errors,
    );
}

fn hostname_override(spec: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if boolean(spec, &["setHostnameAsFQDN"]) {
        errors.forbidden(path, "may not be specified when setHostnameAsFQDN is true");
    }
    if boolean(spec, &["hostNetwork"]) {
        errors.forbidden(path, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        errors.too_long(path, 64);
    }
    dns_subdomain(name, path, errors);
}

fn host_aliases(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, alias) in items(spec, &["hostAliases"]).iter().enumerate() {
        let at = path.index(index);
        legacy_ip(text(alias, &["ip"]), &at.child("ip"), errors);
        let hostnames = at.child("hostnames");
        for (index, name) in items(alias, &["hostnames"]).iter().enumerate() {
            dns_subdomain(
                name.as_str().unwrap_or_default(),
                &hostnames.index(index),
                errors,
            );
        }
    }
}

fn rest(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let class = text(spec, &["priorityClassName"]);
    if !class.is_empty() {
        dns_subdomain(class, &path.child("priorityClassName"), errors);
    }
    if let Some(class) = get(spec, "runtimeClassName").as_str() {
        dns_subdomain(class, &path.child("runtimeClassName"), errors);
    }
    if let Some(policy) = get(spec, "preemptionPolicy").as_str() {
        let valid = ["PreemptLowerPriority", "Never"];
        required_one_of(policy, &valid, &path.child("preemptionPolicy"), errors);
    }
    let overhead = get(spec, "overhead");
    if overhead.is_object() {
        let limits = serde_json::json!({ "limits": overhead });
        let none = BTreeSet::new();
        super::resources::container_resources(&limits, &none, &path.child("overhead"), errors);
    }
    if !get(spec, "os").is_null() {
        operating_system(spec, path, errors);
    }
}

fn operating_system(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let name = text(spec, &["os", "name"]);
    let at = path.child("os");
    match name {
        "" => errors.required(&at.child("name"), ""),
        "linux" => only_linux(spec, path, errors),
        "windows" => only_windows(spec, path, errors),
        other => one_of(other, &["linux", "windows"], &at, errors),
    }
}

/// Security contexts of all containers with their paths.
fn container_contexts(spec: &Value, path: &Path<'_>, each: &mut dyn FnMut(&Value, &Path<'_>)) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let list_path = path.child(list);
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            let at = list_path.index(index);
            each(
                get(container, "securityContext"),
                &at.child("securityContext"),
            );
        }
    }
}

fn only_linux(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut check = |context: &Value, path: &Path<'_>| {
        if !get(context, "windowsOptions").is_null() {
            let why = "windows options cannot be set for a linux pod";
            errors.forbidden(&path.child("windowsOptions"), why);
        }
    };
    check(get(spec, "securityContext"), &path.child("securityContext"));
    container_contexts(spec, path, &mut check);
}

const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";

fn only_windows(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for key in ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"] {
        let value = get(spec, key);
        let counts = match key {
            "hostPID" | "hostIPC" => value.as_bool() == Some(true),
            _ => !value.is_null(),
        };
        if counts {
            errors.forbidden(&path.child(key), NOT_ON_WINDOWS);
        }
    }
    let context_path = path.child("securityContext");
    for key in [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "fsGroup",
        "fsGroupChangePolicy",
        "sysctls",
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seLinuxChangePolicy",
    ] {
        if is_set(at(spec, &["securityContext", key])) {
            errors.forbidden(&context_path.child(key), NOT_ON_WINDOWS);
        }
    }
    container_contexts(spec, path, &mut |context, path| {
        for key in [
            "appArmorProfile",
            "seLinuxOptions",
            "seccompProfile",
            "capabilities",
            "readOnlyRootFilesystem",
            "privileged",
            "allowPrivilegeEscalation",
            "procMount",
            "runAsUser",
            "runAsGroup",
        ] {
            if !get(context, key).is_null() {
                errors.forbidden(&path.child(key), NOT_ON_WINDOWS);
            }
        }
    });
}

/// Conditions whose names are no labels' keys are only the system's.
pub(crate) fn conditions(status: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let list = path.child("conditions");
    for (index, condition) in items(status, &["conditions"]).iter().enumerate() {
        let at = list.index(index);
        let generation = integer(condition, &["observedGeneration"]).unwrap_or(0);
        if generation < 0 {
            let at = at.child("observedGeneration");
            errors.invalid(&at, generation, "must be a non-negative integer");
        }
        label_name(text(condition, &["type"]), &at.child("Type"), errors);
    }
}

/// Entries of a map, as plain texts.
pub(crate) fn has_all(new: &Value, old: &Value) -> bool {
    entries(old, &[]).all(|(key, value)| get(new, key) == value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(spec: Value) -> Vec<String> {
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        let registry = crate::Registry::builtin();
        let snapshot = registry.snapshot();
        let def = snapshot
            .rows()
            .iter()
            .find(|row| row.kind == "Pod")
            .cloned();
        let def = def.expect("pods are known");
        def.normalise(&mut pod).expect("a pod");
        let mut errors = ErrorList::new();
        create(&pod, &mut errors);
        errors.into_iter().map(|error| error.to_string()).collect()
    }

    #[test]
    fn pods() {
        let plain = json!({"containers": [{"name": "c", "image": "x"}]});
        assert_eq!(faults(plain), Vec::<String>::new());
        assert_eq!(faults(json!({})), ["spec.containers: Required value"]);
        let twice = json!({"containers": [{"name": "c", "image": "x"}],
            "initContainers": [{"name": "c", "image": "x"}]});
        assert_eq!(
            faults(twice),
            ["spec.initContainers[0].name: Duplicate value: \"c\""]
        );
        let range =
            json!({"containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 0}]}]});
        assert_eq!(
            faults(range),
            ["spec.containers[0].ports[0].containerPort: Required value"]
        );
    }
}

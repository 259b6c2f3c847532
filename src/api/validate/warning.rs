//! Warnings about objects that are allowed but unwise.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use serde_json::Value;

use super::resources::parse;
use crate::field::{Path, go_quote};
use crate::meta::{at, entries, get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");

/// Labels of nodes that have new names.
const OLD_LABELS: &[(&str, &str)] = &[
    (
        "beta.kubernetes.io/arch",
        "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    ),
    (
        "beta.kubernetes.io/os",
        "deprecated since v1.14; use \"kubernetes.io/os\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        "use \"node-role.kubernetes.io/control-plane\" instead",
    ),
];

fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|row| row.0 == key).map(|row| row.1)
}

/// Volume plugins that are gone or going.
const OLD_VOLUMES: &[(&str, &str, &str)] = &[
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "flocker",
        "flocker",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "storageos",
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "quobyte",
        "quobyte",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];

fn old_volumes(source: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    for (key, shown, why) in OLD_VOLUMES {
        if !get(source, key).is_null() {
            said.push(format!("{}: {why}", path.child(shown)));
        }
    }
}

fn old_address(address: &str, path: &Path<'_>, said: &mut Vec<String>) {
    if address.is_empty() || address == "None" {
        return;
    }
    let Some(ip) = names::parse_legacy_ip(address) else {
        return;
    };
    if address.parse::<std::net::IpAddr>().is_err() {
        said.push(format!(
            "{path}: non-standard IP address {} will be considered invalid in a future Kubernetes release: use {}",
            go_quote(address),
            go_quote(&ip.to_string()),
        ));
    } else if address.contains(':') && ip.to_string() != address {
        said.push(format!(
            "{path}: IPv6 address {} should be in RFC 5952 canonical format ({})",
            go_quote(address),
            go_quote(&ip.to_string()),
        ));
    }
}

fn node_term(term: &Value, values: bool, path: &Path<'_>, said: &mut Vec<String>) {
    let list = path.child("matchExpressions");
    for (index, rule) in items(term, &["matchExpressions"]).iter().enumerate() {
        let at = list.index(index);
        let key = text(rule, &["key"]);
        if let Some(why) = old_label(key) {
            said.push(format!("{}: {key} is {why}", at.child("key")));
        }
        if !values {
            continue;
        }
        let list = at.child("values");
        for (index, value) in items(rule, &["values"]).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            for why in names::label_value(value) {
                said.push(format!("{}: {value} is invalid, {why}", list.index(index)));
            }
        }
    }
}

/// Warnings repeat on every write except those that change nothing in the spec.
fn unchanged(new: &Value, old: &Value) -> bool {
    !old.is_null()
        && get(new, "spec") == get(old, "spec")
        && at(new, &["metadata", "annotations"]) == at(old, &["metadata", "annotations"])
}

pub(crate) fn pod(pod: &Value, old: &Value) -> Vec<String> {
    let mut said = Vec::new();
    if old.is_null() || !unchanged(pod, old) {
        pod_spec(pod, &Path::ROOT, &mut said);
    }
    said
}

pub(crate) fn workload(object: &Value, old: &Value) -> Vec<String> {
    let mut said = Vec::new();
    let changed = old.is_null()
        || at(object, &["metadata", "generation"]) != at(old, &["metadata", "generation"]);
    if changed {
        let path = SPEC.child("template");
        pod_spec(at(object, &["spec", "template"]), &path, &mut said);
    }
    said
}

pub(crate) fn stateful_set(set: &Value, old: &Value) -> Vec<String> {
    let mut said = workload(set, old);
    if integer(set, &["spec", "revisionHistoryLimit"]).is_some_and(|limit| limit < 0) {
        said.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".to_owned());
    }
    said
}

pub(crate) fn job(job: &Value, old: &Value) -> Vec<String> {
    let mut said = workload(job, old);
    let spec = get(job, "spec");
    let number = |key: &str| integer(spec, &[key]).unwrap_or(0);
    if text(spec, &["completionMode"]) == "Indexed"
        && number("completions") > 100_000
        && number("parallelism") > 10_000
    {
        said.push("spec.completions: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail".to_owned());
    }
    said
}

pub(crate) fn cron_job(job: &Value, old: &Value) -> Vec<String> {
    let mut said = Vec::new();
    if old.is_null() {
        let name = text(job, &["metadata", "name"]);
        for why in names::dns1123_label(name) {
            said.push(format!("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [{why}]"));
        }
    }
    if text(job, &["spec", "schedule"]).contains("TZ") {
        said.push(
            "spec.schedule: cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
                .to_owned(),
        );
    }
    let changed = old.is_null() || get(job, "spec") != get(old, "spec");
    if changed {
        let path = Path::new("spec.jobTemplate.spec.template");
        pod_spec(
            at(job, &["spec", "jobTemplate", "spec", "template"]),
            &path,
            &mut said,
        );
    }
    said
}

/// A pod, or the template of one at `path`.
fn pod_spec(holder: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    let spec = get(holder, "spec");
    let spec_path = path.child("spec");
    placement(spec, &spec_path, said);
    let metadata = path.child("metadata");
    let annotations_path = metadata.child("annotations");
    annotations(holder, &annotations_path, said);
    let volumes = spec_path.child("volumes");
    for (index, volume) in items(spec, &["volumes"]).iter().enumerate() {
        old_volumes(volume, &volumes.index(index), said);
    }
    repeated(spec, &spec_path, said);
    let overhead = spec_path.child("overhead");
    fractions(get(spec, "overhead"), &overhead, said);
    security_annotations(holder, &annotations_path, said);
    containers(
        spec,
        &spec_path,
        &mut |container, path, said| {
            container_warnings(container, path, said);
        },
        said,
    );
    ports(spec, &spec_path, said);
    if integer(spec, &["terminationGracePeriodSeconds"]).is_some_and(|seconds| seconds < 0) {
        let at = spec_path.child("terminationGracePeriodSeconds");
        said.push(format!(
            "{at}: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    pod_affinity(spec, &spec_path, said);
    let dns = spec_path.child("dnsConfig");
    let servers = dns.child("nameservers");
    for (index, server) in items(spec, &["dnsConfig", "nameservers"])
        .iter()
        .enumerate()
    {
        old_address(
            server.as_str().unwrap_or_default(),
            &servers.index(index),
            said,
        );
    }
    let aliases = spec_path.child("hostAliases");
    for (index, alias) in items(spec, &["hostAliases"]).iter().enumerate() {
        let at = aliases.index(index);
        old_address(text(alias, &["ip"]), &at.child("ip"), said);
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn placement(spec: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    let selector = path.child("nodeSelector");
    for (key, _) in entries(spec, &["nodeSelector"]) {
        if let Some(why) = old_label(key) {
            said.push(format!("{}: {why}", selector.key(key)));
        }
    }
    let affinity = path.child("affinity");
    let node = affinity.child("nodeAffinity");
    let required = node.child(REQUIRED);
    let terms = required.child("nodeSelectorTerms");
    let base = ["affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"];
    for (index, term) in items(spec, &base).iter().enumerate() {
        node_term(term, false, &terms.index(index), said);
    }
    let preferred = node.child(PREFERRED);
    let base = ["affinity", "nodeAffinity", PREFERRED];
    for (index, term) in items(spec, &base).iter().enumerate() {
        let at = preferred.index(index);
        node_term(get(term, "preference"), true, &at.child("preference"), said);
    }
    let spread = path.child("topologySpreadConstraints");
    for (index, constraint) in items(spec, &["topologySpreadConstraints"])
        .iter()
        .enumerate()
    {
        let at = spread.index(index);
        let key = text(constraint, &["topologyKey"]);
        if let Some(why) = old_label(key) {
            said.push(format!("{}: {key} is {why}", at.child("topologyKey")));
        }
        no_selector(constraint, &at, said);
    }
}

fn no_selector(term: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    if get(term, "labelSelector").is_null() {
        let at = path.child("labelSelector");
        said.push(format!(
            "{at}: a null labelSelector results in matching no pod"
        ));
    }
}

fn pod_affinity(spec: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    let affinity = path.child("affinity");
    for kind in ["podAffinity", "podAntiAffinity"] {
        let kind_path = affinity.child(kind);
        let required = kind_path.child(REQUIRED);
        for (index, term) in items(spec, &["affinity", kind, REQUIRED])
            .iter()
            .enumerate()
        {
            no_selector(term, &required.index(index), said);
        }
        let preferred = kind_path.child(PREFERRED);
        for (index, term) in items(spec, &["affinity", kind, PREFERRED])
            .iter()
            .enumerate()
        {
            let at = preferred.index(index);
            no_selector(
                get(term, "podAffinityTerm"),
                &at.child("podAffinityTerm"),
                said,
            );
        }
    }
}

const OLD_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

fn annotations(holder: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    for (key, why) in OLD_ANNOTATIONS {
        if !at(holder, &["metadata", "annotations", key]).is_null() {
            said.push(format!("{}: {why}", path.key(key)));
        }
    }
}

/// Profiles as annotations beside which the field is missing.
fn security_annotations(holder: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
    let annotation = |key: &str| !at(holder, &["metadata", "annotations", key]).is_null();
    let pod_key = "seccomp.security.alpha.kubernetes.io/pod";
    let pod_context = at(holder, &["spec", "securityContext"]);
    if get(pod_context, "seccompProfile").is_null() && annotation(pod_key) {
        said.push(format!("{}: {SECCOMP}", path.key(pod_key)));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(holder, &["spec", list]) {
            let name = text(container, &["name"]);
            let context = get(container, "securityContext");
            let key = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
            if get(context, "seccompProfile").is_null() && annotation(&key) {
                said.push(format!("{}: {SECCOMP}", path.key(&key)));
            }
            let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
            let field = !get(context, "appArmorProfile").is_null()
                || !get(pod_context, "appArmorProfile").is_null();
            if !field && annotation(&key) {
                let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                said.push(format!("{}: {why}", path.key(&key)));
            }
        }
    }
}

fn repeated(spec: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    let aliases = path.child("hostAliases");
    let mut seen = BTreeSet::new();
    for (index, alias) in items(spec, &["hostAliases"]).iter().enumerate() {
        let ip = text(alias, &["ip"]);
        if !seen.insert(ip) {
            let at = aliases.index(index);
            said.push(format!("{}: duplicate ip {}", at.child("ip"), go_quote(ip)));
        }
    }
    let secrets = path.child("imagePullSecrets");
    let list = items(spec, &["imagePullSecrets"]);
    let mut seen = BTreeSet::new();
    for (index, secret) in list.iter().enumerate() {
        let name = text(secret, &["name"]);
        if !seen.insert(name) {
            let at = secrets.index(index);
            said.push(format!(
                "{}: duplicate name {}",
                at.child("name"),
                go_quote(name)
            ));
        }
    }
    for (index, secret) in list.iter().enumerate() {
        if text(secret, &["name"]).is_empty() {
            let at = secrets.index(index);
            said.push(format!("{}: invalid empty name \"\"", at.child("name")));
        }
    }
}

/// Amounts of bytes that are no whole number.
fn fractions(list: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        let value = get(list, name);
        if !value.is_null() && !parse(value).is_integer() {
            let shown = go_quote(value.as_str().unwrap_or_default());
            let at = path.key(name);
            said.push(format!(
                "{at}: fractional byte value {shown} is invalid, must be an integer"
            ));
        }
    }
}

type Visit<'f> = &'f mut dyn FnMut(&Value, &Path<'_>, &mut Vec<String>);

fn containers(spec: &Value, path: &Path<'_>, visit: Visit<'_>, said: &mut Vec<String>) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let list_path = path.child(list);
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            visit(container, &list_path.index(index), said);
        }
    }
}

fn container_warnings(container: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    let resources = path.child("resources");
    for list in ["limits", "requests"] {
        fractions(
            at(container, &["resources", list]),
            &resources.child(list),
            said,
        );
    }
    let env = path.child("env");
    let mut seen = BTreeSet::new();
    for (index, variable) in items(container, &["env"]).iter().enumerate() {
        let name = text(variable, &["name"]);
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let value = text(variable, &["value"]);
        let hides = !get(variable, "valueFrom").is_null()
            || value == reference
            || !value.contains(&reference);
        if hides {
            said.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                env.index(index),
                go_quote(name)
            ));
        }
    }
}

/// A port of a container, and where it is written.
struct Port {
    path: String,
    host_ip: String,
    host_port: i64,
}

fn ports(spec: &Value, path: &Path<'_>, said: &mut Vec<String>) {
    let mut all: BTreeMap<String, Vec<Port>> = BTreeMap::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut about_names = Vec::new();
    containers(
        spec,
        path,
        &mut |container, path, said| {
            let list = path.child("ports");
            for (index, port) in items(container, &["ports"]).iter().enumerate() {
                let at = list.index(index).to_string();
                let new = Port {
                    path: at.clone(),
                    host_ip: text(port, &["hostIP"]).to_owned(),
                    host_port: integer(port, &["hostPort"]).unwrap_or(0),
                };
                let number = integer(port, &["containerPort"]).unwrap_or(0);
                let key = format!("{number}/{}", text(port, &["protocol"]));
                let others = all.entry(key).or_default();
                others.iter().for_each(|other| conflict(&new, other, said));
                others.push(new);
                let name = text(port, &["name"]);
                if name.is_empty() {
                    continue;
                }
                match names.get(name) {
                Some(other) => about_names.push(format!(
                    "{at}: duplicate port name {} with {other}, services and probes that select ports by name will use {other}",
                    go_quote(name)
                )),
                None => {
                    names.insert(name.to_owned(), at);
                }
            }
            }
        },
        said,
    );
    said.append(&mut about_names);
}

fn conflict(new: &Port, other: &Port, said: &mut Vec<String>) {
    let (at, with) = (&new.path, &other.path);
    if new.host_ip == other.host_ip && new.host_port == other.host_port {
        said.push(format!("{at}: duplicate port definition with {with}"));
    } else if new.host_port == 0 || other.host_port == 0 {
        said.push(format!("{at}: overlapping port definition with {with}"));
    } else if new.host_port == other.host_port && new.host_ip.is_empty() != other.host_ip.is_empty()
    {
        said.push(format!(
            "{at}: dangerously ambiguous port definition with {with}"
        ));
    }
}

pub(crate) fn service(service: &Value, _: &Value) -> Vec<String> {
    let mut said = Vec::new();
    let spec = get(service, "spec");
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    if !at(service, &["metadata", "annotations", HINTS]).is_null() {
        said.push(format!("annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"));
    }
    let ips = SPEC.child("clusterIPs");
    for (index, address) in items(spec, &["clusterIPs"]).iter().enumerate() {
        old_address(
            address.as_str().unwrap_or_default(),
            &ips.index(index),
            &mut said,
        );
    }
    let headless = matches!(items(spec, &["clusterIPs"]), [one] if one == "None");
    let external = items(spec, &["externalIPs"]);
    let kind = text(spec, &["type"]);
    let mut say = |what: &str| said.push(what.to_owned());
    if headless {
        if !text(spec, &["loadBalancerIP"]).is_empty() {
            say("spec.loadBalancerIP is ignored for headless services");
        }
        if !external.is_empty() {
            say("spec.externalIPs is ignored for headless services");
        }
        if text(spec, &["sessionAffinity"]) != "None" {
            say("spec.SessionAffinity is ignored for headless services");
        }
    }
    let path = SPEC.child("externalIPs");
    for (index, address) in external.iter().enumerate() {
        old_address(
            address.as_str().unwrap_or_default(),
            &path.index(index),
            &mut said,
        );
    }
    let mut say = |what: &str| said.push(what.to_owned());
    if !external.is_empty() && !headless && kind != "ExternalName" {
        say("spec.externalIPs is deprecated and may no longer be implemented in some clusters");
    }
    if kind == "ExternalName" && !external.is_empty() {
        say("spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    }
    if kind != "ExternalName" && !text(spec, &["externalName"]).is_empty() {
        say("spec.externalName is ignored when spec.type is not \"ExternalName\"");
    }
    if text(spec, &["trafficDistribution"]) == "PreferClose" {
        say("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"");
    }
    said
}

pub(crate) fn node(node: &Value, _: &Value) -> Vec<String> {
    let mut said = Vec::new();
    if !at(node, &["spec", "configSource"]).is_null() {
        said.push("spec.configSource: the feature is no longer supported".to_owned());
    }
    if !text(node, &["spec", "externalID"]).is_empty() {
        said.push(
            "spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned(),
        );
    }
    said
}

pub(crate) fn persistent_volume(volume: &Value, _: &Value) -> Vec<String> {
    let mut said = Vec::new();
    let spec = get(volume, "spec");
    for (key, why) in [
        (
            "volume.beta.kubernetes.io/storage-class",
            "deprecated since v1.8; use \"storageClassName\" attribute instead",
        ),
        (
            "volume.beta.kubernetes.io/mount-options",
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        ),
    ] {
        if !at(volume, &["metadata", "annotations", key]).is_null() {
            said.push(format!("metadata.annotations[{key}]: {why}"));
        }
    }
    if text(spec, &["persistentVolumeReclaimPolicy"]) == "Recycle" {
        said.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_owned());
    }
    let terms = Path::new("spec.nodeAffinity.required.nodeSelectorTerms");
    let base = ["nodeAffinity", "required", "nodeSelectorTerms"];
    for (index, term) in items(spec, &base).iter().enumerate() {
        node_term(term, false, &terms.index(index), &mut said);
    }
    old_volumes(spec, &SPEC, &mut said);
    said
}

pub(crate) fn claim(claim: &Value, _: &Value) -> Vec<String> {
    let mut said = Vec::new();
    const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    if !at(claim, &["metadata", "annotations", CLASS]).is_null() {
        said.push(format!("metadata.annotations[{CLASS}]: deprecated since v1.8; use \"storageClassName\" attribute instead"));
    }
    let path = Path::new("spec.resources");
    for list in ["limits", "requests"] {
        let value = at(claim, &["spec", "resources", list, "storage"]);
        if !value.is_null() && !parse(value).is_integer() {
            let shown = go_quote(value.as_str().unwrap_or_default());
            let at = path.child(list);
            said.push(format!(
                "{}: fractional byte value {shown} is invalid, must be an integer",
                at.key("storage")
            ));
        }
    }
    said
}

pub(crate) fn secret(secret: &Value, old: &Value) -> Vec<String> {
    if text(secret, &["type"]) != "kubernetes.io/tls"
        || (!old.is_null() && get(secret, "data") == get(old, "data"))
    {
        return Vec::new();
    }
    let datum = |key: &str| {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text(secret, &["data", key]))
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    for (key, what) in [("tls.crt", "certificate"), ("tls.key", "key")] {
        if !datum(key).contains("-----BEGIN ") {
            return vec![format!("tls: failed to find any PEM data in {what} input")];
        }
    }
    Vec::new()
}

pub(crate) fn service_account(account: &Value, _: &Value) -> Vec<String> {
    const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
    if at(account, &["metadata", "annotations", KEY]).is_null() {
        return Vec::new();
    }
    vec![format!(
        "metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    )]
}

pub(crate) fn csi_driver(driver: &Value, old: &Value) -> Vec<String> {
    let spec = get(driver, "spec");
    let unset = old.is_null()
        && !items(spec, &["tokenRequests"]).is_empty()
        && get(spec, "serviceAccountTokenInSecrets").is_null();
    if !unset {
        return Vec::new();
    }
    vec!["spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes".to_owned()]
}

pub(crate) fn storage_class(class: &Value, _: &Value) -> Vec<String> {
    let mut said = Vec::new();
    let list = Path::new("allowedTopologies");
    for (index, term) in items(class, &["allowedTopologies"]).iter().enumerate() {
        let at = list.index(index);
        let rules = at.child("matchLabelExpressions");
        for (index, rule) in items(term, &["matchLabelExpressions"]).iter().enumerate() {
            if let Some(why) = old_label(text(rule, &["key"])) {
                let at = rules.index(index);
                said.push(format!("{}: {why}", at.child("key")));
            }
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_that_meet() {
        let object = json!({"spec": {"containers": [{"name": "c", "ports": [
            {"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"},
        ]}], "imagePullSecrets": [{}]}});
        assert_eq!(
            pod(&object, &Value::Null),
            [
                "spec.imagePullSecrets[0].name: invalid empty name \"\"",
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
            ]
        );
        assert!(pod(&object, &object).is_empty());
    }
}

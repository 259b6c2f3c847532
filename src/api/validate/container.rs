//! Containers: ports, environment, mounts, probes, hooks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{dns_label, dns_subdomain, label_name, one_of, port, required_one_of, required_text};
use crate::field::{ErrorList, Path};
use crate::meta::{boolean, get, integer, items, text};
use crate::names;
use crate::quantity::Quantity;

/// What a container may refer to in its pod.
pub(crate) struct PodContext<'v> {
    pub(crate) spec: &'v Value,
    pub(crate) volumes: BTreeMap<&'v str, &'v Value>,
    pub(crate) claims: BTreeSet<&'v str>,
}

impl PodContext<'_> {
    fn grace(&self) -> Option<i64> {
        integer(self.spec, &["terminationGracePeriodSeconds"])
    }

    fn host_users(&self) -> bool {
        get(self.spec, "hostUsers").as_bool() != Some(false)
    }
}

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// Fields that an environment variable may read from its pod.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// All fields that the downward API knows.
const ALL_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

const RESOURCE_FIELDS: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// What all kinds of containers have in common.
pub(crate) fn common(
    container: &Value,
    pod: &PodContext<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let name = text(container, &["name"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    } else {
        dns_label(name, &path.child("name"), errors);
    }
    required_text(container, "image", path, errors);
    required_one_of(
        text(container, &["terminationMessagePolicy"]),
        &["File", "FallbackToLogsOnError"],
        &path.child("terminationMessagePolicy"),
        errors,
    );
    ports(container, &path.child("ports"), errors);
    env(container, &path.child("env"), errors);
    env_from(container, &path.child("envFrom"), errors);
    mounts(container, pod, &path.child("volumeMounts"), errors);
    devices(container, pod, &path.child("volumeDevices"), errors);
    required_one_of(
        text(container, &["imagePullPolicy"]),
        &["Always", "IfNotPresent", "Never"],
        &path.child("imagePullPolicy"),
        errors,
    );
    super::resources::container_resources(
        get(container, "resources"),
        &pod.claims,
        &path.child("resources"),
        errors,
    );
    resize_policy(container, pod, &path.child("resizePolicy"), errors);
    super::security::container_context(
        get(container, "securityContext"),
        pod.host_users(),
        &path.child("securityContext"),
        errors,
    );
}

fn ports(container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (index, port) in items(container, &["ports"]).iter().enumerate() {
        let at = path.index(index);
        let name = text(port, &["name"]);
        if !name.is_empty() {
            let messages = names::port_name(name);
            let good = messages.is_empty();
            errors.invalid_each(&at.child("name"), name, messages);
            if good && !seen.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
        }
        match integer(port, &["containerPort"]).unwrap_or(0) {
            0 => errors.required(&at.child("containerPort"), ""),
            number => port_number(number, &at.child("containerPort"), errors),
        }
        match integer(port, &["hostPort"]).unwrap_or(0) {
            0 => {}
            number => port_number(number, &at.child("hostPort"), errors),
        }
        let protocol = text(port, &["protocol"]);
        required_one_of(protocol, PROTOCOLS, &at.child("protocol"), errors);
    }
}

fn port_number(number: i64, path: &Path<'_>, errors: &mut ErrorList) {
    for message in names::port_number(number) {
        errors.invalid(path, number, message);
    }
}

fn env(container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, variable) in items(container, &["env"]).iter().enumerate() {
        let at = path.index(index);
        let name = text(variable, &["name"]);
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else {
            errors.invalid_each(&at.child("name"), name, names::env_var_name(name));
        }
        value_from(variable, &at.child("valueFrom"), errors);
    }
}

fn value_from(variable: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let from = get(variable, "valueFrom");
    if from.is_null() {
        return;
    }
    let mut count = 0;
    let mut each = |key: &str, rule: &mut dyn FnMut(&Value, &Path<'_>)| {
        let source = get(from, key);
        if !source.is_null() {
            count += 1;
            rule(source, &path.child(key));
        }
    };
    each("fieldRef", &mut |source, at| {
        field_reference(source, ENV_FIELDS, at, errors)
    });
    each("resourceFieldRef", &mut |source, at| {
        resource_reference(source, false, at, errors)
    });
    each("configMapKeyRef", &mut |source, at| {
        key_reference(source, at, errors)
    });
    each("secretKeyRef", &mut |source, at| {
        key_reference(source, at, errors)
    });
    each("fileKeyRef", &mut |source, at| {
        file_reference(source, at, errors)
    });
    if count == 0 {
        let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.invalid(path, "", why);
    } else if !text(variable, &["value"]).is_empty() {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        errors.invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        );
    }
}

pub(super) fn field_reference(
    reference: &Value,
    allowed: &[&str],
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if text(reference, &["apiVersion"]).is_empty() {
        errors.required(&path.child("apiVersion"), "");
        return;
    }
    let field = text(reference, &["fieldPath"]);
    if field.is_empty() {
        errors.required(&path.child("fieldPath"), "");
        return;
    }
    let convert = |why: String, errors: &mut ErrorList| {
        let why = format!("error converting fieldPath: {why}");
        errors.invalid(&path.child("fieldPath"), field, why);
    };
    let version = text(reference, &["apiVersion"]);
    if version != "v1" {
        return convert(format!("unsupported pod version: {version}"), errors);
    }
    let subscript = field
        .strip_suffix("']")
        .and_then(|field| field.split_once("['"));
    let base = subscript.map_or(field, |(base, _)| base);
    let known = match subscript {
        Some(_) => ["metadata.annotations", "metadata.labels"].contains(&base),
        None => ALL_FIELDS.contains(&field),
    };
    if !known {
        let why = match subscript {
            Some(_) => format!("field label does not support subscript: {field}"),
            None => format!("field label not supported: {field}"),
        };
        return convert(why, errors);
    }
    match subscript {
        Some(("metadata.annotations", key)) => label_name(&key.to_lowercase(), path, errors),
        Some((_, key)) => label_name(key, path, errors),
        None => one_of(field, allowed, &path.child("fieldPath"), errors),
    }
}

pub(super) fn resource_reference(
    reference: &Value,
    in_volume: bool,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let resource = text(reference, &["resource"]);
    let huge = |name: &str| {
        name.starts_with("requests.hugepages-") || name.starts_with("limits.hugepages-")
    };
    if in_volume && text(reference, &["containerName"]).is_empty() {
        errors.required(&path.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&path.child("resource"), "");
    } else if !huge(resource) {
        one_of(resource, RESOURCE_FIELDS, &path.child("resource"), errors);
    }
    let divisor = text(reference, &["divisor"]);
    if divisor.parse::<Quantity>().map_or(true, Quantity::is_zero) {
        return;
    }
    const SIZES: &[&str] = &[
        "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
    ];
    let of_sizes = |what: &str| {
        format!(
            "only divisor's values {} are supported with the {what} resource",
            SIZES.join(", ")
        )
    };
    let wrong = match resource {
        "limits.cpu" | "requests.cpu" => (!["1m", "1"].contains(&divisor)).then(|| {
            "only divisor's values 1m and 1 are supported with the cpu resource".to_owned()
        }),
        "limits.memory" | "requests.memory" => {
            (!SIZES.contains(&divisor)).then(|| of_sizes("memory"))
        }
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (!SIZES.contains(&divisor)).then(|| of_sizes("local ephemeral storage"))
        }
        other if huge(other) => (!SIZES.contains(&divisor)).then(|| of_sizes("hugepages")),
        _ => None,
    };
    if let Some(why) = wrong {
        errors.invalid(&path.child("divisor"), resource, why);
    }
}

fn key_reference(reference: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    dns_subdomain(text(reference, &["name"]), &path.child("name"), errors);
    let key = text(reference, &["key"]);
    if key.is_empty() {
        errors.required(&path.child("key"), "");
    } else {
        errors.invalid_each(&path.child("key"), key, names::config_map_key(key));
    }
}

fn file_reference(reference: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let key = text(reference, &["key"]);
    if key.is_empty() {
        errors.required(&path.child("key"), "");
    } else {
        errors.invalid_each(&path.child("key"), key, names::env_var_name(key));
    }
    let volume = text(reference, &["volumeName"]);
    if volume.is_empty() {
        errors.required(&path.child("volumeName"), "");
    } else {
        dns_label(volume, &path.child("volumeName"), errors);
    }
    let file = text(reference, &["path"]);
    if file.is_empty() {
        errors.required(&path.child("path"), "");
    } else {
        super::volume::no_backsteps(file, &path.child("path"), errors);
    }
}

fn env_from(container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, source) in items(container, &["envFrom"]).iter().enumerate() {
        let at = path.index(index);
        let prefix = text(source, &["prefix"]);
        if !prefix.is_empty() {
            errors.invalid_each(&at.child("prefix"), prefix, names::env_var_name(prefix));
        }
        let mut count = 0;
        for key in ["configMapRef", "secretRef"] {
            let reference = get(source, key);
            if reference.is_null() {
                continue;
            }
            count += 1;
            let inner = at.child(key);
            let name = text(reference, &["name"]);
            if name.is_empty() {
                errors.required(&inner.child("name"), "");
            } else {
                let messages =
                    names::dns1123_subdomain(&format!("{}a", name.trim_end_matches('-')));
                errors.invalid_each(&inner.child("name"), name, messages);
            }
        }
        if count == 0 {
            errors.invalid(
                path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            );
        } else if count > 1 {
            errors.invalid(
                path,
                "",
                "may not have more than one field specified at a time",
            );
        }
    }
}

fn mounts(container: &Value, pod: &PodContext<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let devices = items(container, &["volumeDevices"]);
    let mut points: BTreeSet<&str> = BTreeSet::new();
    for (index, mount) in items(container, &["volumeMounts"]).iter().enumerate() {
        let at = path.index(index);
        let (name, point) = (text(mount, &["name"]), text(mount, &["mountPath"]));
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if !pod.volumes.contains_key(name) {
            errors.not_found(&at.child("name"), name);
        }
        if point.is_empty() {
            errors.required(&at.child("mountPath"), "");
        }
        if !points.insert(point) {
            errors.invalid(&at.child("mountPath"), point, "must be unique");
        }
        if devices.iter().any(|one| text(one, &["name"]) == name) {
            errors.invalid(
                &at.child("name"),
                name,
                "must not already exist in volumeDevices",
            );
        }
        if devices
            .iter()
            .any(|one| text(one, &["devicePath"]) == point)
        {
            let why = "must not already exist as a path in volumeDevices";
            errors.invalid(&at.child("mountPath"), point, why);
        }
        sub_paths(mount, &at, path, errors);
        propagation(mount, container, path, errors);
        recursive_read_only(mount, &path.child("recursiveReadOnly"), errors);
    }
}

fn sub_paths(mount: &Value, at: &Path<'_>, list: &Path<'_>, errors: &mut ErrorList) {
    let (plain, expression) = (text(mount, &["subPath"]), text(mount, &["subPathExpr"]));
    if !plain.is_empty() {
        super::volume::descending_path(plain, &list.child("subPath"), errors);
    }
    if !expression.is_empty() {
        if !plain.is_empty() {
            let why = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(&at.child("subPathExpr"), expression, why);
        }
        super::volume::descending_path(expression, &list.child("subPathExpr"), errors);
    }
}

fn propagation(mount: &Value, container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(mode) = get(mount, "mountPropagation").as_str() else {
        return;
    };
    let at = path.child("mountPropagation");
    one_of(
        mode,
        &["Bidirectional", "HostToContainer", "None"],
        &at,
        errors,
    );
    if mode == "Bidirectional" && !boolean(container, &["securityContext", "privileged"]) {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        errors.forbidden(&at, why);
    }
}

fn recursive_read_only(mount: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match get(mount, "recursiveReadOnly").as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !boolean(mount, &["readOnly"]) {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if get(mount, "mountPropagation")
                .as_str()
                .is_some_and(|mode| mode != "None")
            {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(path, why);
            }
        }
        Some(other) => errors.not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices(container: &Value, pod: &PodContext<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let mounts = items(container, &["volumeMounts"]);
    let mut paths: BTreeSet<&str> = BTreeSet::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (index, device) in items(container, &["volumeDevices"]).iter().enumerate() {
        let at = path.index(index);
        let (name, target) = (text(device, &["name"]), text(device, &["devicePath"]));
        let (name_path, target_path) = (at.child("name"), at.child("devicePath"));
        if name.is_empty() {
            errors.required(&name_path, "");
        }
        if !name.is_empty() && !seen.insert(name) {
            errors.invalid(&name_path, name, "must be unique");
        }
        match pod.volumes.get(name) {
            None => errors.not_found(&name_path, name),
            Some(volume) => {
                let block = ["persistentVolumeClaim", "ephemeral"]
                    .iter()
                    .any(|key| !get(volume, key).is_null());
                if !block {
                    let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                    errors.invalid(&name_path, name, why);
                }
            }
        }
        if target.is_empty() {
            errors.required(&target_path, "");
        }
        if paths.contains(target) {
            errors.invalid(&target_path, target, "must be unique");
        }
        if target.split('/').any(|part| part == "..") {
            errors.invalid(&target_path, target, "can not contain backsteps ('..')");
        } else {
            paths.insert(target);
        }
        if mounts.iter().any(|one| text(one, &["name"]) == name) {
            errors.invalid(&name_path, name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|one| text(one, &["mountPath"]) == target) {
            let why = "must not already exist as a path in volumeMounts";
            errors.invalid(&target_path, target, why);
        }
    }
}

fn resize_policy(container: &Value, pod: &PodContext<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let never = text(pod.spec, &["restartPolicy"]) == "Never";
    for (index, policy) in items(container, &["resizePolicy"]).iter().enumerate() {
        let resource = text(policy, &["resourceName"]);
        if !seen.insert(resource) {
            errors.duplicate(&path.index(index), resource);
        }
        required_one_of(resource, &["cpu", "memory"], path, errors);
        let restart = text(policy, &["restartPolicy"]);
        required_one_of(restart, &["NotRequired", "RestartContainer"], path, errors);
        if never && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(path, restart, why);
        }
    }
}

/// Lifecycle hooks and probes.
pub(crate) fn hooks_and_probes(
    container: &Value,
    pod: &PodContext<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let grace = pod.grace();
    lifecycle(container, pod, path, errors);
    for (key, once) in [
        ("livenessProbe", true),
        ("readinessProbe", false),
        ("startupProbe", true),
    ] {
        let probe = get(container, key);
        if probe.is_null() {
            continue;
        }
        let at = path.child(key);
        self::probe(probe, grace, &at, errors);
        let threshold = integer(probe, &["successThreshold"]).unwrap_or(0);
        if once && threshold != 1 {
            errors.invalid(&at.child("successThreshold"), threshold, "must be 1");
        }
        let period = get(probe, "terminationGracePeriodSeconds");
        if !once && !period.is_null() {
            let at = at.child("terminationGracePeriodSeconds");
            errors.invalid(&at, period.clone(), "must not be set for readinessProbes");
        }
    }
}

fn lifecycle(container: &Value, pod: &PodContext<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let lifecycle = get(container, "lifecycle");
    let at = path.child("lifecycle");
    for key in ["postStart", "preStop"] {
        let hook = get(lifecycle, key);
        if !hook.is_null() {
            let kinds = ["exec", "httpGet", "tcpSocket", "sleep"];
            handler(hook, &kinds, pod.grace(), &at.child(key), errors);
        }
    }
    if let Some(signal) = get(lifecycle, "stopSignal").as_str() {
        let at = at.child("stopSignal");
        match text(pod.spec, &["os", "name"]) {
            "" => errors.forbidden(
                &at,
                "may not be set for containers with empty `spec.os.name`",
            ),
            "windows" => one_of(signal, &["SIGKILL", "SIGTERM"], &at, errors),
            _ => {}
        }
    }
}

fn probe(probe: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut ErrorList) {
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc"];
    handler(probe, &kinds, grace, path, errors);
    for key in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        super::non_negative_member(probe, key, path, errors);
    }
    if let Some(seconds) = integer(probe, &["terminationGracePeriodSeconds"])
        && seconds <= 0
    {
        let at = path.child("terminationGracePeriodSeconds");
        errors.invalid(&at, seconds, "must be greater than 0");
    }
}

fn handler(
    handler: &Value,
    kinds: &[&str],
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let mut count = 0;
    for kind in kinds {
        let action = get(handler, kind);
        if action.is_null() {
            continue;
        }
        count += 1;
        let at = path.child(kind);
        if count > 1 {
            errors.forbidden(&at, "may not specify more than 1 handler type");
            continue;
        }
        match *kind {
            "exec" => {
                if items(action, &["command"]).is_empty() {
                    errors.required(&at.child("command"), "");
                }
            }
            "httpGet" => http_get(action, &at, errors),
            "sleep" => sleep(action, grace, &at, errors),
            _ => port(get(action, "port"), &at.child("port"), errors),
        }
    }
    if count == 0 {
        errors.required(path, "must specify a handler type");
    }
}

fn http_get(action: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(action, "path", path, errors);
    port(get(action, "port"), &path.child("port"), errors);
    one_of(
        text(action, &["scheme"]),
        &["HTTP", "HTTPS"],
        &path.child("scheme"),
        errors,
    );
    for header in items(action, &["httpHeaders"]) {
        let name = text(header, &["name"]);
        errors.invalid_each(
            &path.child("httpHeaders"),
            name,
            names::http_header_name(name),
        );
    }
}

fn sleep(action: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut ErrorList) {
    let seconds = integer(action, &["seconds"]).unwrap_or(0);
    if let Some(grace) = grace
        && (seconds < 0 || seconds > grace)
    {
        let why =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.invalid(path, seconds, why);
    }
}

const RESTART_POLICIES: &[&str] = &["Always", "Never", "OnFailure"];

pub(crate) fn restart_policy(container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rules = items(container, &["restartPolicyRules"]);
    let at = path.child("restartPolicy");
    match get(container, "restartPolicy").as_str() {
        None if rules.is_empty() => return,
        None => errors.required(
            &at,
            "must specify restartPolicy when restart rules are used",
        ),
        Some(policy) => one_of(policy, RESTART_POLICIES, &at, errors),
    }
    let list = path.child("restartPolicyRules");
    if rules.len() > 20 {
        errors.too_many(&list, rules.len(), 20);
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = list.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        one_of(
            text(rule, &["action"]),
            &actions,
            &at.child("action"),
            errors,
        );
        let codes = get(rule, "exitCodes");
        if codes.is_null() {
            errors.required(&at.child("exitCodes"), "must be specified");
            continue;
        }
        let codes_path = at.child("exitCodes");
        let operator = text(codes, &["operator"]);
        one_of(
            operator,
            &["In", "NotIn"],
            &codes_path.child("operator"),
            errors,
        );
        let count = items(codes, &["values"]).len();
        if count > 255 {
            errors.too_many(&codes_path.child("values"), count, 255);
        }
    }
}

/// No two ports of the containers want the same port of the host.
pub(crate) fn host_ports(containers: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let container_path = path.index(index);
        let list = container_path.child("ports");
        for (index, port) in items(container, &["ports"]).iter().enumerate() {
            let number = integer(port, &["hostPort"]).unwrap_or(0);
            if number == 0 {
                continue;
            }
            let (protocol, ip) = (text(port, &["protocol"]), text(port, &["hostIP"]));
            let key = format!("{protocol}/{ip}/{number}");
            if !seen.insert(key.clone()) {
                errors.duplicate(&list.index(index).child("hostPort"), key);
            }
        }
    }
}

//! Persistent volumes, claims, and everything of the storage group.

use std::collections::BTreeSet;

use serde_json::Value;

use super::resources::{parse, resource_value};
use super::volume::{csi_driver_name, no_backsteps};
use super::{
    dns_subdomain, immutable, label_name, label_selector, non_negative_member, one_of,
    required_text, scheduling,
};
use crate::field::{ErrorKind, ErrorList, Path};
use crate::meta::{self, at, entries, get, items, text};

const SPEC: Path<'static> = Path::new("spec");

const ACCESS_MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

fn access_modes(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let at = path.child("accessModes");
    let modes: Vec<&str> = items(spec, &["accessModes"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for mode in &modes {
        one_of(mode, ACCESS_MODES, &at, errors);
    }
    let alone = |mode: &&str| *mode == "ReadWriteOncePod";
    let other = |mode: &&str| ACCESS_MODES.contains(mode) && !alone(mode);
    if modes.iter().any(alone) && modes.iter().any(other) {
        errors.forbidden(&at, "may not use ReadWriteOncePod with other access modes");
    }
}

fn positive(value: &Value, path: &Path<'_>, errors: &mut ErrorList) -> bool {
    let quantity = parse(value);
    if quantity.is_zero() || quantity.is_negative() {
        errors.invalid(path, value.clone(), "must be greater than zero");
        return false;
    }
    true
}

const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

fn volume_mode(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(mode) = get(spec, "volumeMode").as_str() {
        one_of(mode, VOLUME_MODES, &path.child("volumeMode"), errors);
    }
}

/// The spec of a claim, wherever it stands.
pub(crate) fn claim_spec(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if items(spec, &["accessModes"]).is_empty() {
        errors.required(
            &path.child("accessModes"),
            "at least 1 access mode is required",
        );
    }
    label_selector(get(spec, "selector"), &path.child("selector"), errors);
    access_modes(spec, path, errors);
    let resources = path.child("resources");
    let storage_path = resources.key("storage");
    match at(spec, &["resources", "requests", "storage"]) {
        Value::Null => errors.required(&storage_path, ""),
        storage => {
            if positive(storage, &storage_path, errors) {
                resource_value("storage", storage, &storage_path, errors);
            }
        }
    }
    let class = text(spec, &["storageClassName"]);
    if !class.is_empty() {
        dns_subdomain(class, &path.child("storageClassName"), errors);
    }
    volume_mode(spec, path, errors);
    for key in ["dataSource", "dataSourceRef"] {
        let source = get(spec, key);
        if !source.is_null() {
            data_source(source, &path.child(key), errors);
        }
    }
    let (source, reference) = (get(spec, "dataSource"), get(spec, "dataSourceRef"));
    let both = !source.is_null() && !reference.is_null();
    let same = |key: &str| text(source, &[key]) == text(reference, &[key]);
    let shown = path.child("dataSource").to_string();
    if both && !text(reference, &["namespace"]).is_empty() {
        let why = "may not be specified when dataSourceRef.namespace is specified";
        errors.invalid(path, shown, why);
    } else if both && !(same("apiGroup") && same("kind") && same("name")) {
        errors.invalid(path, shown, "must match dataSourceRef");
    }
    let class = text(spec, &["volumeAttributesClassName"]);
    if !class.is_empty() {
        dns_subdomain(class, &path.child("volumeAttributesClassName"), errors);
    }
}

fn data_source(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "name", path, errors);
    required_text(source, "kind", path, errors);
    let (group, kind) = (text(source, &["apiGroup"]), text(source, &["kind"]));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid(path, kind, why);
    }
    if !group.is_empty() {
        dns_subdomain(group, &path.child("apiGroup"), errors);
    }
}

pub(crate) fn claim(claim: &Value, errors: &mut ErrorList) {
    claim_spec(get(claim, "spec"), &SPEC, errors);
}

pub(crate) fn claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    claim(new, errors);
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let mut munged = spec.clone();
    let bound = text(new, &["status", "phase"]) == "Bound";
    let mut put_back = |path: &[&str]| match at(before, path) {
        Value::Null => {
            meta::remove(&mut munged, path);
        }
        value => meta::set(&mut munged, path, value.clone()),
    };
    if text(before, &["volumeName"]).is_empty() {
        put_back(&["volumeName"]);
    }
    if get(before, "storageClassName").is_null() {
        put_back(&["storageClassName"]);
    }
    let size = ["resources", "requests", "storage"];
    if bound {
        put_back(&size);
        put_back(&["volumeAttributesClassName"]);
    }
    if munged != *before {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";
        errors.forbidden(&SPEC, why);
    }
    let (now, then) = (parse(at(spec, &size)), parse(at(before, &size)));
    if now < then && now <= parse(at(old, &["status", "capacity", "storage"])) {
        let why = "field can not be less than status.capacity";
        errors.forbidden(&Path::new("spec.resources.requests.storage"), why);
    }
    immutable(
        get(spec, "volumeMode"),
        get(before, "volumeMode"),
        &Path::new("volumeMode"),
        errors,
    );
}

/// Sources of a persistent volume in the order in which they are looked at.
const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

pub(crate) fn volume(volume: &Value, errors: &mut ErrorList) {
    volume_spec(get(volume, "spec"), false, &SPEC, errors);
}

/// `inline`: as a volume attachment carries it, without what a claim needs.
fn volume_spec(spec: &Value, inline: bool, path: &Path<'_>, errors: &mut ErrorList) {
    if items(spec, &["accessModes"]).is_empty() {
        errors.required(&path.child("accessModes"), "");
    }
    access_modes(spec, path, errors);
    if inline {
        if get(spec, "csi").is_null() {
            let why = "has to be specified in the context of inline volumes";
            errors.required(&path.child("csi"), why);
        }
    } else {
        capacity(spec, path, errors);
        let policy = text(spec, &["persistentVolumeReclaimPolicy"]);
        if !policy.is_empty() {
            let at = path.child("persistentVolumeReclaimPolicy");
            one_of(policy, &["Delete", "Recycle", "Retain"], &at, errors);
        }
    }
    let affinity = get(spec, "nodeAffinity");
    if !affinity.is_null() {
        node_affinity(affinity, &path.child("nodeAffinity"), errors);
    }
    sources(spec, path, errors);
    if text(spec, &["hostPath", "path"]) == "/"
        && text(spec, &["persistentVolumeReclaimPolicy"]) == "Recycle"
    {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(&path.child("persistentVolumeReclaimPolicy"), why);
    }
    let class = text(spec, &["storageClassName"]);
    if !class.is_empty() {
        dns_subdomain(class, &path.child("storageClassName"), errors);
    }
    volume_mode(spec, path, errors);
    attributes_class(spec, path, errors);
}

fn attributes_class(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(class) = get(spec, "volumeAttributesClassName").as_str() else {
        return;
    };
    let at = path.child("volumeAttributesClassName");
    if class.is_empty() {
        errors.required(&at, "an empty string is disallowed");
    } else {
        dns_subdomain(class, &at, errors);
    }
    if get(spec, "csi").is_null() {
        let why = "has to be specified when using volumeAttributesClassName";
        errors.required(&path.child("csi"), why);
    }
}

fn capacity(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let at = path.child("capacity");
    let all = get(spec, "capacity");
    let count = entries(spec, &["capacity"]).count();
    if count == 0 {
        errors.required(&at, "");
    }
    if get(all, "storage").is_null() || count > 1 {
        let shown = if all.is_null() {
            serde_json::json!({})
        } else {
            all.clone()
        };
        errors.not_supported(&at, shown, &["storage"]);
    }
    for (name, value) in entries(spec, &["capacity"]) {
        positive(value, &at.key(name), errors);
    }
}

fn node_affinity(affinity: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let required = path.child("required");
    if get(affinity, "required").is_null() {
        errors.required(&required, "must specify required node constraints");
    } else {
        scheduling::node_selector(get(affinity, "required"), &required, errors);
    }
}

fn sources(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut count = 0;
    for key in SOURCES {
        let source = get(spec, key);
        if source.is_null() {
            continue;
        }
        count += 1;
        let at = path.child(key);
        if count > 1 {
            errors.forbidden(&at, "may not specify more than 1 volume type");
            continue;
        }
        match *key {
            "local" => {
                local(source, &at, errors);
                if meta::at(spec, &["nodeAffinity", "required"]).is_null() {
                    let why = "Local volume requires node affinity";
                    errors.required(&path.child("nodeAffinity"), why);
                }
            }
            "csi" => {
                csi_driver_name(text(source, &["driver"]), &at.child("driver"), errors);
                required_text(source, "volumeHandle", &at, errors);
            }
            other => super::volume::named_source(other, source, &at, errors),
        }
    }
    if count == 0 {
        errors.required(path, "must specify a volume type");
    }
}

fn local(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let target = text(source, &["path"]);
    if target.is_empty() {
        errors.required(&path.child("path"), "");
    } else {
        no_backsteps(target, &path.child("path"), errors);
    }
}

pub(crate) fn volume_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    volume(new, errors);
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let changed = SOURCES.iter().any(|key| {
        let mut now = get(spec, key).clone();
        let then = get(before, key);
        if *key == "csi" && get(then, "controllerExpandSecretRef").is_null() {
            meta::remove(&mut now, &["controllerExpandSecretRef"]);
        }
        now != *then
    });
    if changed {
        let why = "spec.persistentvolumesource is immutable after creation\n";
        errors.forbidden(&SPEC.child("persistentvolumesource"), why);
    }
    immutable(
        get(spec, "volumeMode"),
        get(before, "volumeMode"),
        &Path::new("volumeMode"),
        errors,
    );
}

pub(crate) fn class(class: &Value, errors: &mut ErrorList) {
    let provisioner = text(class, &["provisioner"]);
    let path = Path::new("provisioner");
    if provisioner.is_empty() {
        errors.required(&path, "");
    } else {
        label_name(&provisioner.to_lowercase(), &path, errors);
    }
    parameters(class, true, errors);
    if let Some(policy) = get(class, "reclaimPolicy").as_str() {
        one_of(
            policy,
            &["Delete", "Retain"],
            &Path::new("reclaimPolicy"),
            errors,
        );
    }
    let mode = text(class, &["volumeBindingMode"]);
    let valid = ["Immediate", "WaitForFirstConsumer"];
    let path = Path::new("volumeBindingMode");
    if mode.is_empty() {
        errors.required(&path, "");
    } else {
        one_of(mode, &valid, &path, errors);
    }
    topologies(class, errors);
}

fn parameters(class: &Value, may_be_empty: bool, errors: &mut ErrorList) {
    let path = Path::new("parameters");
    let count = entries(class, &["parameters"]).count();
    if count > 512 {
        errors.too_long(&path, 512);
    }
    let mut size = 0;
    for (key, value) in entries(class, &["parameters"]) {
        if key.is_empty() {
            errors.invalid(&path, "", "field can not be empty.");
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > 256 * 1024 {
        errors.too_long(&path, 256 * 1024);
    }
    if count == 0 && !may_be_empty {
        errors.required(&path, "must contain at least one key/value pair");
    }
}

fn topologies(class: &Value, errors: &mut ErrorList) {
    let path = Path::new("allowedTopologies");
    let mut seen: Vec<&Value> = Vec::new();
    for (index, term) in items(class, &["allowedTopologies"]).iter().enumerate() {
        let at = path.index(index);
        let list = at.child("matchLabelExpressions");
        let mut keys = BTreeSet::new();
        for (index, rule) in items(term, &["matchLabelExpressions"]).iter().enumerate() {
            let at = list.index(index);
            let values_path = at.child("values");
            let values = items(rule, &["values"]);
            if values.is_empty() {
                errors.required(&values_path, "");
            }
            for (index, value) in values.iter().enumerate() {
                if values[..index].contains(value) {
                    errors.duplicate(&values_path.index(index), value.clone());
                }
            }
            let key = text(rule, &["key"]);
            label_name(key, &at.child("key"), errors);
            if !keys.insert(key) {
                errors.duplicate(&at.child("key"), key);
            }
        }
        if seen.contains(&term) {
            errors.duplicate(&at.child("matchLabelExpressions"), "");
        }
        seen.push(term);
    }
}

pub(crate) fn class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    for key in [
        "parameters",
        "provisioner",
        "reclaimPolicy",
        "volumeBindingMode",
    ] {
        if get(new, key) != get(old, key) {
            let why = match key {
                "parameters" | "provisioner" => "updates to {} are forbidden.",
                _ => {
                    immutable(get(new, key), get(old, key), &Path::new(key), errors);
                    continue;
                }
            };
            errors.forbidden(&Path::new(key), why.replace("{}", key));
        }
    }
}

pub(crate) fn attributes(class: &Value, errors: &mut ErrorList) {
    let driver = text(class, &["driverName"]);
    csi_driver_name(driver, &Path::new("driverName"), errors);
    parameters(class, false, errors);
}

pub(crate) fn attributes_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    for key in ["driverName", "parameters"] {
        if get(new, key) != get(old, key) {
            let why = "updates to driverName are forbidden.".replace("driverName", key);
            errors.forbidden(&Path::new(key), why);
        }
    }
}

pub(crate) fn attachment(attachment: &Value, errors: &mut ErrorList) {
    let spec = get(attachment, "spec");
    csi_driver_name(text(spec, &["attacher"]), &SPEC.child("attacher"), errors);
    let source = get(spec, "source");
    let (inline, name) = (
        get(source, "inlineVolumeSpec"),
        get(source, "persistentVolumeName"),
    );
    let path = SPEC.child("source");
    match (inline.is_null(), name.as_str()) {
        (true, None) => {
            let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.required(&path, why);
        }
        (false, Some(_)) => {
            let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.invalid(&path, source.clone(), why);
        }
        (true, Some("")) => {
            errors.required(
                &path.child("persistentVolumeName"),
                "must specify non empty persistentVolumeName",
            );
        }
        (true, Some(_)) => {}
        (false, None) => volume_spec(inline, true, &path.child("inlineVolumeSpec"), errors),
    }
    dns_subdomain(text(spec, &["nodeName"]), &SPEC.child("nodeName"), errors);
}

pub(crate) fn attachment_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    attachment(new, errors);
    immutable(get(new, "spec"), get(old, "spec"), &SPEC, errors);
}

pub(crate) fn csi_driver(driver: &Value, errors: &mut ErrorList) {
    let spec = get(driver, "spec");
    for key in ["attachRequired", "podInfoOnMount", "storageCapacity"] {
        if get(spec, key).is_null() {
            errors.required(&SPEC.child(key), "");
        }
    }
    if let Some(policy) = get(spec, "fsGroupPolicy").as_str() {
        let valid = ["File", "None", "ReadWriteOnceWithFSType"];
        one_of(policy, &valid, &SPEC.child("fsGroupPolicy"), errors);
    }
    let path = SPEC.child("tokenRequests");
    let mut seen = BTreeSet::new();
    for (index, request) in items(spec, &["tokenRequests"]).iter().enumerate() {
        let at = path.index(index);
        let audience = text(request, &["audience"]);
        if !seen.insert(audience) {
            errors.duplicate(&at.child("audience"), audience);
            continue;
        }
        let Some(seconds) = get(request, "expirationSeconds").as_i64() else {
            continue;
        };
        let at = at.child("expirationSeconds");
        if seconds < 600 {
            errors.invalid(
                &at,
                seconds,
                "may not specify a duration less than 10 minutes",
            );
        }
        if seconds > 1 << 32 {
            errors.invalid(
                &at,
                seconds,
                "may not specify a duration larger than 2^32 seconds",
            );
        }
    }
    let path = SPEC.child("volumeLifecycleModes");
    for mode in items(spec, &["volumeLifecycleModes"]) {
        let mode = mode.as_str().unwrap_or_default();
        one_of(mode, &["Ephemeral", "Persistent"], &path, errors);
    }
}

pub(crate) fn csi_driver_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    csi_driver(new, errors);
    for key in ["attachRequired", "volumeLifecycleModes"] {
        immutable(
            at(new, &["spec", key]),
            at(old, &["spec", key]),
            &SPEC.child(key),
            errors,
        );
    }
}

pub(crate) fn csi_node(node: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("drivers");
    let mut seen = BTreeSet::new();
    for (index, driver) in items(node, &["spec", "drivers"]).iter().enumerate() {
        let at = path.index(index);
        let name = text(driver, &["name"]);
        csi_driver_name(name, &at.child("name"), errors);
        let id = text(driver, &["nodeID"]);
        if id.is_empty() {
            errors.required(&at.child("nodeID"), "");
        }
        if id.len() > 256 {
            errors.invalid(&at.child("nodeID"), id, "must be 256 characters or less");
        }
        non_negative_member(
            get(driver, "allocatable"),
            "count",
            &at.child("allocatable"),
            errors,
        );
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        let mut keys = BTreeSet::new();
        for key in items(driver, &["topologyKeys"]) {
            let key = key.as_str().unwrap_or_default();
            if key.is_empty() {
                errors.required(&at, "");
            }
            if !keys.insert(key) {
                errors.duplicate(&at, key);
            }
            label_name(key, &at, errors);
        }
    }
}

pub(crate) fn csi_node_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    csi_node(new, errors);
    let path = Path::new("CSINodeDriver");
    let drivers = items(new, &["spec", "drivers"]);
    for before in items(old, &["spec", "drivers"]) {
        let strip = |driver: &Value| {
            let mut driver = driver.clone();
            meta::remove(&mut driver, &["allocatable", "count"]);
            driver
        };
        for now in drivers {
            if text(now, &["name"]) == text(before, &["name"]) && strip(now) != strip(before) {
                errors.add(
                    ErrorKind::Invalid,
                    &path,
                    Some(now.clone()),
                    "field is immutable",
                );
            }
        }
    }
}

pub(crate) fn capacity_object(capacity: &Value, errors: &mut ErrorList) {
    dns_subdomain(
        text(capacity, &["storageClassName"]),
        &Path::new("storageClassName"),
        errors,
    );
    for key in ["capacity", "maximumVolumeSize"] {
        let value = get(capacity, key);
        if !value.is_null() {
            super::resources::non_negative_quantity(value, &Path::new(key), errors);
        }
    }
    label_selector(
        get(capacity, "nodeTopology"),
        &Path::new("nodeTopology"),
        errors,
    );
}

pub(crate) fn capacity_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    capacity_object(new, errors);
    for key in ["nodeTopology", "storageClassName"] {
        immutable(get(new, key), get(old, key), &Path::new(key), errors);
    }
}

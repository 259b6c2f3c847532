//! Volumes of pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::container::{field_reference, resource_reference};
use super::{dns_label, label_selector, one_of, required_text};
use crate::field::{ErrorList, Path};
use crate::meta::{get, items, text};
use crate::names;
use crate::quantity::Quantity;

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Fields that a volume may read from its pod.
const VOLUME_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

pub(crate) fn no_backsteps(target: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if target.split('/').any(|part| part == "..") {
        errors.invalid(path, target, "must not contain '..'");
    }
}

/// A relative path that does not climb.
pub(crate) fn descending_path(target: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if target.starts_with('/') {
        errors.invalid(path, target, "must be a relative path");
    }
    no_backsteps(target, path, errors);
}

/// A descending path that does not look like the kubelet's own links.
fn local_path(target: &str, path: &Path<'_>, errors: &mut ErrorList) {
    descending_path(target, path, errors);
    if target.starts_with("..") && !target.starts_with("../") {
        errors.invalid(path, target, "must not start with '..'");
    }
}

fn mode(object: &Value, key: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(mode) = get(object, key).as_i64()
        && !(0..=0o777).contains(&mode)
    {
        errors.invalid(&path.child(key), mode, MODE);
    }
}

/// Checks all volumes; the good ones come back by name.
pub(crate) fn volumes<'v>(
    volumes: &'v [Value],
    pod_name: &str,
    path: &Path<'_>,
    errors: &mut ErrorList,
) -> BTreeMap<&'v str, &'v Value> {
    let created: BTreeSet<String> = volumes
        .iter()
        .filter(|volume| !pod_name.is_empty() && !get(volume, "ephemeral").is_null())
        .map(|volume| format!("{pod_name}-{}", text(volume, &["name"])))
        .collect();
    let mut good: BTreeMap<&str, &Value> = BTreeMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let at = path.index(index);
        let name = text(volume, &["name"]);
        let name_path = at.child("name");
        let before = errors.len();
        source(volume, pod_name, &at, errors);
        if name.is_empty() {
            errors.required(&name_path, "");
        } else {
            dns_label(name, &name_path, errors);
        }
        if good.contains_key(name) {
            errors.duplicate(&name_path, name);
        }
        if errors.len() == before {
            good.insert(name, volume);
        }
        let claim = text(volume, &["persistentVolumeClaim", "claimName"]);
        if created.contains(claim) {
            let claim_path = at.child("persistentVolumeClaim.claimName");
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(&claim_path, claim, why);
        }
    }
    good
}

type SourceRule = fn(&Value, &Path<'_>, &mut ErrorList);

/// Sources in the order in which they are looked at.
const SOURCES: &[(&str, SourceRule)] = &[
    ("emptyDir", empty_dir),
    ("hostPath", host_path),
    ("gitRepo", git_repo),
    ("gcePersistentDisk", |source, path, errors| {
        required_text(source, "pdName", path, errors)
    }),
    ("awsElasticBlockStore", |source, path, errors| {
        required_text(source, "volumeID", path, errors)
    }),
    ("secret", |source, path, errors| {
        required_text(source, "secretName", path, errors);
        keyed(source, path, errors);
    }),
    ("nfs", nfs),
    ("iscsi", iscsi),
    ("glusterfs", |source, path, errors| {
        required_text(source, "endpoints", path, errors);
        required_text(source, "path", path, errors);
    }),
    ("flocker", |_, _, _| {}),
    ("persistentVolumeClaim", |source, path, errors| {
        required_text(source, "claimName", path, errors)
    }),
    ("rbd", |source, path, errors| {
        if items(source, &["monitors"]).is_empty() {
            errors.required(&path.child("monitors"), "");
        }
        required_text(source, "image", path, errors);
    }),
    ("cinder", |source, path, errors| {
        required_text(source, "volumeID", path, errors)
    }),
    ("cephfs", |source, path, errors| {
        if items(source, &["monitors"]).is_empty() {
            errors.required(&path.child("monitors"), "");
        }
    }),
    ("quobyte", |_, _, _| {}),
    ("downwardAPI", downward_api),
    ("fc", |_, _, _| {}),
    ("flexVolume", |source, path, errors| {
        required_text(source, "driver", path, errors)
    }),
    ("configMap", |source, path, errors| {
        required_text(source, "name", path, errors);
        keyed(source, path, errors);
    }),
    ("azureFile", |source, path, errors| {
        required_text(source, "secretName", path, errors);
        required_text(source, "shareName", path, errors);
    }),
    ("vsphereVolume", |source, path, errors| {
        required_text(source, "volumePath", path, errors)
    }),
    ("photonPersistentDisk", |source, path, errors| {
        required_text(source, "pdID", path, errors)
    }),
    ("portworxVolume", |source, path, errors| {
        required_text(source, "volumeID", path, errors)
    }),
    ("azureDisk", |source, path, errors| {
        required_text(source, "diskName", path, errors);
        required_text(source, "diskURI", path, errors);
    }),
    ("storageos", |_, _, _| {}),
    ("projected", projected),
    ("scaleIO", |_, _, _| {}),
    ("csi", csi),
    ("ephemeral", ephemeral),
    ("image", |source, path, errors| {
        required_text(source, "reference", path, errors);
        if let Some(policy) = get(source, "pullPolicy").as_str() {
            let valid = ["Always", "IfNotPresent", "Never"];
            super::required_one_of(policy, &valid, &path.child("pullPolicy"), errors);
        }
    }),
];

fn source(volume: &Value, pod_name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let mut count = 0;
    for (key, rule) in SOURCES {
        let source = get(volume, key);
        if source.is_null() {
            continue;
        }
        count += 1;
        let at = path.child(key);
        if count > 1 {
            errors.forbidden(&at, "may not specify more than 1 volume type");
        } else {
            rule(source, &at, errors);
        }
    }
    if count == 0 {
        errors.required(path, "must specify a volume type");
    }
    let name = text(volume, &["name"]);
    if !get(volume, "ephemeral").is_null() && !pod_name.is_empty() && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        for message in names::dns1123_subdomain(&claim) {
            errors.invalid(
                &path.child("name"),
                name,
                format!("PVC name {claim:?}: {message}"),
            );
        }
    }
}

/// The rules of the source with this name, as far as pods and persistent volumes share them.
pub(super) fn named_source(key: &str, source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some((_, rule)) = SOURCES.iter().find(|row| row.0 == key) {
        rule(source, path, errors);
    }
}

fn empty_dir(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let limit = text(source, &["sizeLimit"]).parse::<Quantity>();
    if limit.is_ok_and(Quantity::is_negative) {
        let why = "SizeLimit field must be a valid resource quantity";
        errors.forbidden(&path.child("sizeLimit"), why);
    }
}

fn host_path(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let target = text(source, &["path"]);
    if target.is_empty() {
        errors.required(&path.child("path"), "");
        return;
    }
    no_backsteps(target, &path.child("path"), errors);
    if let Some(kind) = get(source, "type").as_str() {
        let valid = [
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ];
        one_of(kind, &valid, &path.child("type"), errors);
    }
}

fn git_repo(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "repository", path, errors);
    descending_path(
        text(source, &["directory"]),
        &path.child("directory"),
        errors,
    );
}

fn nfs(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "server", path, errors);
    required_text(source, "path", path, errors);
    let target = text(source, &["path"]);
    if !target.starts_with('/') {
        errors.invalid(&path.child("path"), target, "must be an absolute path");
    }
}

fn iscsi(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "targetPortal", path, errors);
    required_text(source, "iqn", path, errors);
    let lun = get(source, "lun").as_i64().unwrap_or(0);
    if !(0..=255).contains(&lun) {
        errors.invalid(&path.child("lun"), lun, names::inclusive_range(0, 255));
    }
}

fn keyed(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    let list = path.child("items");
    for (index, item) in items(source, &["items"]).iter().enumerate() {
        key_to_path(item, &list.index(index), errors);
    }
}

fn key_to_path(item: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(item, "key", path, errors);
    required_text(item, "path", path, errors);
    local_path(text(item, &["path"]), &path.child("path"), errors);
    mode(item, "mode", path, errors);
}

fn downward_api(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    for file in items(source, &["items"]) {
        downward_file(file, path, errors);
    }
}

fn downward_file(file: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(file, "path", path, errors);
    local_path(text(file, &["path"]), &path.child("path"), errors);
    let (field, resource) = (get(file, "fieldRef"), get(file, "resourceFieldRef"));
    if !field.is_null() {
        field_reference(field, VOLUME_FIELDS, &path.child("fieldRef"), errors);
        if !resource.is_null() {
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.invalid(path, "resource", why);
        }
    } else if resource.is_null() {
        errors.required(path, "one of fieldRef and resourceFieldRef is required");
    } else {
        resource_reference(resource, true, &path.child("resourceFieldRef"), errors);
    }
    mode(file, "mode", path, errors);
}

/// Paths inside a projected volume, each of which may be used once.
struct Taken<'v>(BTreeSet<&'v str>);

impl<'v> Taken<'v> {
    fn take(&mut self, target: &'v str, shown: &str, path: &Path<'_>, errors: &mut ErrorList) {
        if !target.is_empty() && !self.0.insert(target) {
            errors.invalid(path, shown, "conflicting duplicate paths");
        }
    }
}

fn projected(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    let mut taken = Taken(BTreeSet::new());
    let list = path.child("sources");
    for (index, part) in items(source, &["sources"]).iter().enumerate() {
        projection(part, path, &list.index(index), &mut taken, errors);
    }
}

fn projection<'v>(
    part: &'v Value,
    volume: &Path<'_>,
    path: &Path<'_>,
    taken: &mut Taken<'v>,
    errors: &mut ErrorList,
) {
    let mut count = 0;
    for key in ["secret", "configMap"] {
        let source = get(part, key);
        if source.is_null() {
            continue;
        }
        count += 1;
        let at = path.child(key);
        required_text(source, "name", &at, errors);
        let list = at.child("items");
        for (index, item) in items(source, &["items"]).iter().enumerate() {
            key_to_path(item, &list.index(index), errors);
            taken.take(
                text(item, &["path"]),
                text(source, &["name"]),
                volume,
                errors,
            );
        }
    }
    let downward = get(part, "downwardAPI");
    if !downward.is_null() {
        count += 1;
        let at = path.child("downwardAPI");
        for file in items(downward, &["items"]) {
            downward_file(file, &at, errors);
            let target = text(file, &["path"]);
            taken.take(target, target, volume, errors);
        }
    }
    let token = get(part, "serviceAccountToken");
    if !token.is_null() {
        count += 1;
        projected_token(token, volume, &path.child("serviceAccountToken"), errors);
    }
    let bundle = get(part, "clusterTrustBundle");
    if !bundle.is_null() {
        count += 1;
        let at = path.child("clusterTrustBundle");
        trust_bundle(bundle, &at, errors);
        let target = text(bundle, &["path"]);
        taken.take(target, target, volume, errors);
    }
    if count > 1 {
        errors.forbidden(path, "may not specify more than 1 volume type per source");
    }
}

fn projected_token(token: &Value, volume: &Path<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let seconds = get(token, "expirationSeconds").as_i64().unwrap_or(3600);
    let at = path.child("expirationSeconds");
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
    let target = text(token, &["path"]);
    if target.is_empty() {
        errors.required(&volume.child("path"), "");
    } else {
        local_path(target, &volume.child("path"), errors);
    }
}

fn trust_bundle(bundle: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (name, signer) = (get(bundle, "name"), get(bundle, "signerName"));
    let selector = get(bundle, "labelSelector");
    match (name.as_str(), signer.as_str()) {
        (Some(_), Some(_)) => errors.invalid(
            path,
            bundle.clone(),
            "only one of name and signerName may be used",
        ),
        (Some(name), None) => {
            if name.is_empty() {
                errors.required(&path.child("name"), "must be a valid object name");
            }
            if !selector.is_null() {
                let why = "labelSelector must be unset if name is specified";
                errors.invalid(&path.child("labelSelector"), selector.clone(), why);
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                errors.required(&path.child("signerName"), "must be a valid signer name");
            }
            label_selector(selector, &path.child("labelSelector"), errors);
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    required_text(bundle, "path", path, errors);
    local_path(text(bundle, &["path"]), &path.child("path"), errors);
}

/// The name of a CSI driver.
pub(crate) fn csi_driver_name(driver: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if driver.is_empty() {
        errors.required(path, "");
        return;
    }
    if driver.len() > 63 {
        errors.too_long(path, 63);
    }
    errors.invalid_each(
        path,
        driver,
        names::dns1123_subdomain(&driver.to_lowercase()),
    );
}

fn csi(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    csi_driver_name(text(source, &["driver"]), &path.child("driver"), errors);
    let secret = get(source, "nodePublishSecretRef");
    if !secret.is_null() {
        required_text(secret, "name", &path.child("nodePublishSecretRef"), errors);
    }
}

fn ephemeral(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let template = get(source, "volumeClaimTemplate");
    let at = path.child("volumeClaimTemplate");
    if template.is_null() {
        errors.required(&at, "");
        return;
    }
    super::labels(
        get(get(template, "metadata"), "labels"),
        &at.child("metadata.labels"),
        errors,
    );
    super::storage::claim_spec(get(template, "spec"), &at.child("spec"), errors);
}

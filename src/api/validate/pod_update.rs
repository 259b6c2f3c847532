//! What may change in a pod that exists, door by door.

use serde_json::Value;

use super::pod::{self, MIRROR};
use super::scheduling;
use crate::field::{ErrorList, Path};
use crate::kinds::pod::qos_class;
use crate::meta::{self, at, get, integer, items, items_mut, text};
use crate::names;

const IMMUTABLE_SPEC: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n";

const SPEC: Path<'static> = Path::new("spec");

/// The plain door.
pub(crate) fn update(new: &Value, old: &Value, errors: &mut ErrorList) {
    pod::pod(new, errors);
    annotations(new, old, errors);
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    for list in ["containers", "initContainers"] {
        if !same_containers(spec, before, list, errors) {
            return;
        }
    }
    if !deadline(spec, before, errors) {
        return;
    }
    only_added_tolerations(spec, before, errors);
    only_deleted_gates(spec, before, errors);
    if spec != before {
        rest_is_same(spec, before, errors);
    }
}

fn annotations(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata.annotations");
    let value = |pod: &Value| at(pod, &["metadata", "annotations", MIRROR]).clone();
    let (now, before) = (value(new), value(old));
    if now == before {
        return;
    }
    let why = if before.is_null() {
        "may not add mirror pod annotation"
    } else {
        "may not remove or update mirror pod annotation"
    };
    errors.forbidden(&path.key(MIRROR), why);
}

fn same_containers(spec: &Value, old: &Value, list: &str, errors: &mut ErrorList) -> bool {
    let path = SPEC.child(list);
    let containers = items(spec, &[list]);
    if containers.len() != items(old, &[list]).len() {
        errors.forbidden(&path, "pod updates may not add or remove containers");
        return false;
    }
    for (index, container) in containers.iter().enumerate() {
        let image = text(container, &["image"]);
        let at = path.index(index);
        if image.is_empty() {
            errors.required(&at.child("image"), "");
        }
        if image.trim() != image {
            let why = "must not have leading or trailing whitespace";
            errors.invalid(&at.child("image"), image, why);
        }
    }
    true
}

fn deadline(spec: &Value, old: &Value, errors: &mut ErrorList) -> bool {
    let path = SPEC.child("activeDeadlineSeconds");
    let read = |spec: &Value| integer(spec, &["activeDeadlineSeconds"]);
    match (read(spec), read(old)) {
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            errors.invalid(&path, now, names::inclusive_range(0, i32::MAX.into()));
            false
        }
        (Some(now), Some(before)) if before < now => {
            errors.invalid(&path, now, "must be less than or equal to previous value");
            false
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            errors.invalid(&path, Value::Null, why);
            true
        }
        _ => true,
    }
}

fn only_added_tolerations(spec: &Value, old: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("tolerations");
    let bare = |toleration: &Value| {
        let mut bare = toleration.clone();
        meta::remove(&mut bare, &["tolerationSeconds"]);
        bare
    };
    let now = items(spec, &["tolerations"]);
    let kept = |toleration: &Value| {
        let toleration = bare(toleration);
        now.iter().any(|one| bare(one) == toleration)
    };
    if items(old, &["tolerations"]).iter().all(kept) {
        scheduling::tolerations(now, &path, errors);
    } else {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(&path, why);
    }
}

fn only_deleted_gates(spec: &Value, old: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("schedulingGates");
    let before = items(old, &["schedulingGates"]);
    for (index, gate) in items(spec, &["schedulingGates"]).iter().enumerate() {
        let name = text(gate, &["name"]);
        if !before.iter().any(|one| text(one, &["name"]) == name) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.forbidden(&path.index(index).child("name"), why);
        }
    }
}

fn put_back(spec: &mut Value, old: &Value, key: &str) {
    match get(old, key) {
        Value::Null => {
            meta::remove(spec, &[key]);
        }
        value => spec[key] = value.clone(),
    }
}

/// Compares after everything that may change has been put back.
fn rest_is_same(spec: &Value, old: &Value, errors: &mut ErrorList) {
    let mut munged = spec.clone();
    for list in ["containers", "initContainers"] {
        let before = items(old, &[list]);
        for (container, before) in items_mut(&mut munged, &[list]).iter_mut().zip(before) {
            container["image"] = get(before, "image").clone();
        }
    }
    for key in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        put_back(&mut munged, old, key);
    }
    let grace = ["terminationGracePeriodSeconds"];
    if integer(old, &grace).is_some_and(|seconds| seconds < 0) && integer(spec, &grace) == Some(1) {
        put_back(&mut munged, old, grace[0]);
    }
    if !items(old, &["schedulingGates"]).is_empty() {
        gated(&mut munged, old, errors);
    }
    if munged != *old {
        errors.forbidden(&SPEC, IMMUTABLE_SPEC);
    }
}

/// A pod that is not scheduled yet may get narrower rules about nodes.
fn gated(munged: &mut Value, old: &Value, errors: &mut ErrorList) {
    let (now, before) = (get(munged, "nodeSelector"), get(old, "nodeSelector"));
    if now != before {
        if !pod::has_all(now, before) {
            let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.invalid(&SPEC.child("nodeSelector"), now.clone(), why);
        }
        put_back(munged, old, "nodeSelector");
    }
    let path = ["affinity", "nodeAffinity"];
    let (now, before) = (at(munged, &path), at(old, &path));
    if now == before {
        return;
    }
    node_affinity(now, before, errors);
    if before.is_null() {
        meta::remove(munged, &path);
        let empty = get(munged, "affinity")
            .as_object()
            .is_some_and(serde_json::Map::is_empty);
        if empty && get(old, "affinity").is_null() {
            meta::remove(munged, &["affinity"]);
        }
    } else {
        meta::set(munged, &path, before.clone());
    }
}

fn node_affinity(new: &Value, old: &Value, errors: &mut ErrorList) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = SPEC.child("affinity.nodeAffinity");
    let required = affinity.child(REQUIRED);
    let list = required.child("nodeSelectorTerms");
    let path = [REQUIRED, "nodeSelectorTerms"];
    let (now, before) = (items(new, &path), items(old, &path));
    if !before.is_empty() && now.len() != before.len() {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.invalid(&list, at(new, &path).clone(), why);
        return;
    }
    for (index, (now, before)) in now.iter().zip(before).enumerate() {
        if !only_additions(now, before) {
            let why = "only additions are allowed (no mutations or deletions)";
            errors.invalid(&list.index(index), now.clone(), why);
        }
    }
}

fn only_additions(now: &Value, before: &Value) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    if lists.iter().all(|list| items(before, &[list]).is_empty()) {
        return lists.iter().all(|list| items(now, &[list]).is_empty());
    }
    lists
        .iter()
        .all(|list| items(now, &[list]).starts_with(items(before, &[list])))
}

pub(crate) fn ephemeral_containers(new: &Value, old: &Value, errors: &mut ErrorList) {
    pod::pod(new, errors);
    annotations(new, old, errors);
    let path = SPEC.child("ephemeralContainers");
    if !at(old, &["metadata", "annotations", MIRROR]).is_null() {
        *errors = ErrorList::new();
        errors.forbidden(
            &Path::new(""),
            "static pods do not support ephemeral containers",
        );
        return;
    }
    let now = items(new, &["spec", "ephemeralContainers"]);
    for before in items(old, &["spec", "ephemeralContainers"]) {
        let name = text(before, &["name"]);
        match now.iter().find(|one| text(one, &["name"]) == name) {
            None => errors.forbidden(
                &path,
                format!("existing ephemeral containers {name:?} may not be removed\n"),
            ),
            Some(one) if one != before => errors.forbidden(
                &path,
                format!("existing ephemeral containers {name:?} may not be changed\n"),
            ),
            Some(_) => {}
        }
    }
}

pub(crate) fn resize(new: &Value, old: &Value, errors: &mut ErrorList) {
    pod::pod(new, errors);
    if !at(old, &["metadata", "annotations", MIRROR]).is_null() {
        *errors = ErrorList::new();
        errors.forbidden(&Path::new(""), "static pods cannot be resized");
        return;
    }
    let class = text(old, &["status", "qosClass"]);
    if class != qos_class(new) {
        let why = "Pod QOS Class may not change as a result of resizing";
        errors.invalid(&SPEC, text(new, &["status", "qosClass"]), why);
    }
    for list in ["containers", "initContainers"] {
        let (now, before) = (items(new, &["spec", list]), items(old, &["spec", list]));
        let path = SPEC.child(list);
        if now.len() != before.len() {
            errors.forbidden(&path, "containers may not be added or removed on resize");
            return;
        }
        for (index, (now, before)) in now.iter().zip(before).enumerate() {
            let at = path.index(index);
            resized(now, before, &at.child("resources"), errors);
        }
    }
    if errors.is_empty() && bare(new) != bare(old) {
        errors.forbidden(&SPEC, "only cpu and memory resources are mutable");
    }
}

/// What a resize must leave alone.
fn bare(pod: &Value) -> Value {
    let mut spec = get(pod, "spec").clone();
    let strip = |holder: &mut Value| {
        for list in ["requests", "limits"] {
            for name in ["cpu", "memory"] {
                meta::remove(holder, &["resources", list, name]);
            }
            let empty = at(holder, &["resources", list])
                .as_object()
                .is_some_and(serde_json::Map::is_empty);
            if empty {
                meta::remove(holder, &["resources", list]);
            }
        }
        let empty = get(holder, "resources")
            .as_object()
            .is_some_and(serde_json::Map::is_empty);
        if empty {
            meta::remove(holder, &["resources"]);
        }
    };
    strip(&mut spec);
    for list in ["containers", "initContainers"] {
        items_mut(&mut spec, &[list]).iter_mut().for_each(strip);
    }
    spec
}

/// A request or limit of a kind once set stays set.
fn resized(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for list in ["requests", "limits"] {
        let had = at(old, &["resources", list]);
        let has = at(new, &["resources", list]);
        let list_path = path.child(list);
        for name in ["cpu", "memory"] {
            if !get(had, name).is_null() && get(has, name).is_null() {
                let why = format!("{name} {} cannot be removed", list);
                errors.forbidden(&list_path, why);
            }
        }
    }
}

/// The `status` door.
pub(crate) fn status(new: &Value, old: &Value, errors: &mut ErrorList) {
    annotations(new, old, errors);
    let path = Path::new("status");
    pod::conditions(get(new, "status"), &path, errors);
    let nominated = text(new, &["status", "nominatedNodeName"]);
    if !nominated.is_empty() && nominated != text(old, &["status", "nominatedNodeName"]) {
        let at = path.child("nominatedNodeName");
        super::dns_subdomain(nominated, &at, errors);
        if !text(old, &["spec", "nodeName"]).is_empty() {
            let why = "may not be set on pods that are already bound to a node";
            errors.forbidden(&at, why);
        }
    }
    super::immutable(
        at(new, &["status", "qosClass"]),
        at(old, &["status", "qosClass"]),
        &path.child("qosClass"),
        errors,
    );
    for list in ["containerStatuses", "initContainerStatuses"] {
        restarts(new, old, list, &path.child(list), errors);
    }
    addresses(new, &path, errors);
}

/// A container that has ended for good stays so.
fn restarts(new: &Value, old: &Value, list: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let spec = get(old, "spec");
    let policy = text(spec, &["restartPolicy"]);
    let now = items(new, &["status", list]);
    for (index, before) in items(old, &["status", list]).iter().enumerate() {
        let ended = at(before, &["state", "terminated"]);
        if ended.is_null() {
            continue;
        }
        let name = text(before, &["name"]);
        let container = ["containers", "initContainers"]
            .iter()
            .flat_map(|list| items(spec, &[list]))
            .find(|one| text(one, &["name"]) == name);
        let own = container.map_or("", |one| text(one, &["restartPolicy"]));
        let rules = container.is_some_and(|one| !items(one, &["restartPolicyRules"]).is_empty());
        let failed = integer(ended, &["exitCode"]).unwrap_or(0) != 0;
        let may = match if own.is_empty() { policy } else { own } {
            "Always" => true,
            "OnFailure" => failed,
            _ => false,
        };
        let init = list == "initContainerStatuses" && policy != "Never" && failed;
        let goes_on = now
            .iter()
            .any(|one| text(one, &["name"]) == name && at(one, &["state", "terminated"]).is_null());
        if goes_on && !may && !rules && !init {
            let why = "may not be transitioned to non-terminated state";
            errors.forbidden(&path.index(index).child("state"), why);
        }
    }
}

fn addresses(new: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for list in ["podIPs", "hostIPs"] {
        let list_path = path.child(list);
        let all = items(new, &["status", list]);
        let mut families = Vec::new();
        for (index, entry) in all.iter().enumerate() {
            let address = text(entry, &["ip"]);
            super::legacy_ip(address, &list_path.index(index), errors);
            families.push(address.contains(':'));
        }
        let dual = families.len() == 2 && families[0] != families[1];
        if families.len() > 1 && !dual {
            let why = "may specify no more than one IP for each IP family";
            errors.invalid(&list_path, all.to_vec(), why);
        }
    }
    if let Some(first) = items(new, &["status", "hostIPs"]).first() {
        let address = text(first, &["ip"]);
        if address != text(new, &["status", "hostIP"]) {
            let list = path.child("hostIPs");
            errors.invalid(
                &list.index(0).child("ip"),
                address,
                "must be equal to `hostIP`",
            );
        }
    }
}

//! Controllers of pods that run for good: replica sets and their relatives.

use serde_json::Value;

use super::{
    at_most_100_percent, immutable, label_selector, non_negative_member, number_or_percent,
};
use super::{one_of, pod};
use crate::field::{ErrorList, Path};
use crate::meta::{at, get, integer, items, text};
use crate::selector::Selector;

const SPEC: Path<'static> = Path::new("spec");

fn is_empty_selector(selector: &Value) -> bool {
    let empty = |key: &str| match get(selector, key) {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    empty("matchLabels") && empty("matchExpressions")
}

/// The selector chooses the template's labels; `Err`: it is no selector.
pub(crate) fn chooses(selector: &Value, labels: &Value) -> Result<bool, ()> {
    let selector = Selector::from_object(selector).map_err(|_| ())?;
    Ok(match labels.as_object() {
        Some(labels) => selector.matches(labels),
        None => selector.matches(&serde_json::Map::new()),
    })
}

pub(crate) const NO_MATCH: &str = "`selector` does not match template `labels`";

/// A selector that must be there and choose something; false if it is no selector.
fn required_selector(spec: &Value, empty: &str, bad: &str, errors: &mut ErrorList) -> bool {
    let selector = get(spec, "selector");
    let path = SPEC.child("selector");
    if selector.is_null() {
        errors.required(&path, "");
    } else {
        label_selector(selector, &path, errors);
        if is_empty_selector(selector) {
            errors.invalid(&path, selector.clone(), empty);
        }
    }
    let good = Selector::from_object(selector).is_ok();
    if !good {
        errors.invalid(&path, selector.clone(), bad);
    }
    good
}

fn template_matches(spec: &Value, errors: &mut ErrorList) {
    let labels = at(spec, &["template", "metadata", "labels"]);
    let selector = get(spec, "selector");
    let nothing = !selector.is_null() && is_empty_selector(selector);
    if !nothing && chooses(selector, labels) == Ok(false) {
        errors.invalid(
            &SPEC.child("template.metadata.labels"),
            labels.clone(),
            NO_MATCH,
        );
    }
}

/// Pods of these controllers run for good.
fn always_runs(spec: &Value, kind: &str, errors: &mut ErrorList) {
    let path = SPEC.child("template.spec");
    let policy = text(spec, &["template", "spec", "restartPolicy"]);
    one_of(policy, &["Always"], &path.child("restartPolicy"), errors);
    if !at(spec, &["template", "spec", "activeDeadlineSeconds"]).is_null() {
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.forbidden(&path.child("activeDeadlineSeconds"), why);
    }
}

fn replicated(spec: &Value, errors: &mut ErrorList) {
    let empty = "empty selector is invalid for deployment";
    if required_selector(spec, empty, "invalid label selector", errors) {
        template_matches(spec, errors);
        pod::template(get(spec, "template"), &SPEC.child("template"), errors);
        always_runs(spec, "ReplicaSet", errors);
    }
}

pub(crate) fn replica_set(set: &Value, errors: &mut ErrorList) {
    let spec = get(set, "spec");
    non_negative_member(spec, "replicas", &SPEC, errors);
    non_negative_member(spec, "minReadySeconds", &SPEC, errors);
    replicated(spec, errors);
}

pub(crate) fn deployment(deployment: &Value, errors: &mut ErrorList) {
    let spec = get(deployment, "spec");
    non_negative_member(spec, "replicas", &SPEC, errors);
    replicated(spec, errors);
    deployment_strategy(get(spec, "strategy"), &SPEC.child("strategy"), errors);
    for key in [
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ] {
        non_negative_member(spec, key, &SPEC, errors);
    }
    let ready = integer(spec, &["minReadySeconds"]).unwrap_or(0);
    if let Some(deadline) = integer(spec, &["progressDeadlineSeconds"])
        && deadline <= ready
    {
        let path = SPEC.child("progressDeadlineSeconds");
        errors.invalid(&path, deadline, "must be greater than minReadySeconds");
    }
}

/// The number a value states, of things or percent.
fn amount(value: &Value) -> i64 {
    super::percent_of(value)
        .or_else(|| value.as_i64())
        .unwrap_or(0)
}

fn deployment_strategy(strategy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rolling = get(strategy, "rollingUpdate");
    let at = path.child("rollingUpdate");
    match text(strategy, &["type"]) {
        "Recreate" => {
            if !rolling.is_null() {
                errors.forbidden(
                    &at,
                    "may not be specified when strategy `type` is 'Recreate'",
                );
            }
        }
        "RollingUpdate" if rolling.is_null() => {
            errors.required(&at, "this should be defaulted and never be nil");
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (get(rolling, "maxUnavailable"), get(rolling, "maxSurge"));
            let unavailable_path = at.child("maxUnavailable");
            number_or_percent(unavailable, &unavailable_path, errors);
            number_or_percent(surge, &at.child("maxSurge"), errors);
            if amount(unavailable) == 0 && amount(surge) == 0 {
                let why = "may not be 0 when `maxSurge` is 0";
                errors.invalid(&unavailable_path, unavailable.clone(), why);
            }
            at_most_100_percent(unavailable, &unavailable_path, errors);
        }
        _ => errors.not_supported(path, strategy.clone(), &["Recreate", "RollingUpdate"]),
    }
}

pub(crate) fn daemon_set(set: &Value, errors: &mut ErrorList) {
    let spec = get(set, "spec");
    let selector = get(spec, "selector");
    let path = SPEC.child("selector");
    label_selector(selector, &path, errors);
    let labels = at(spec, &["template", "metadata", "labels"]);
    if chooses(selector, labels) == Ok(false) {
        errors.invalid(
            &SPEC.child("template.metadata.labels"),
            labels.clone(),
            NO_MATCH,
        );
    }
    if !selector.is_null() && is_empty_selector(selector) {
        errors.invalid(
            &path,
            selector.clone(),
            "empty selector is invalid for daemonset",
        );
    }
    pod::template(get(spec, "template"), &SPEC.child("template"), errors);
    always_runs(spec, "DaemonSet", errors);
    non_negative_member(spec, "minReadySeconds", &SPEC, errors);
    daemon_strategy(
        get(spec, "updateStrategy"),
        &SPEC.child("updateStrategy"),
        errors,
    );
    non_negative_member(spec, "revisionHistoryLimit", &SPEC, errors);
}

fn daemon_strategy(strategy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match text(strategy, &["type"]) {
        "OnDelete" => return,
        "RollingUpdate" => {}
        _ => return errors.not_supported(path, strategy.clone(), &["RollingUpdate", "OnDelete"]),
    }
    let rolling = get(strategy, "rollingUpdate");
    let at = path.child("rollingUpdate");
    if rolling.is_null() {
        errors.required(&at, "");
        return;
    }
    let (unavailable, surge) = (get(rolling, "maxUnavailable"), get(rolling, "maxSurge"));
    let (unavailable_path, surge_path) = (at.child("maxUnavailable"), at.child("maxSurge"));
    number_or_percent(unavailable, &unavailable_path, errors);
    number_or_percent(surge, &surge_path, errors);
    at_most_100_percent(unavailable, &unavailable_path, errors);
    at_most_100_percent(surge, &surge_path, errors);
    match (amount(unavailable) != 0, amount(surge) != 0) {
        (true, true) => {
            let why = "may not be set when maxUnavailable is non-zero";
            errors.invalid(&surge_path, surge.clone(), why);
        }
        (false, false) => errors.required(&unavailable_path, "cannot be 0 when maxSurge is 0"),
        _ => {}
    }
}

pub(crate) fn stateful_set(set: &Value, errors: &mut ErrorList) {
    let spec = get(set, "spec");
    let list = SPEC.child("volumeClaimTemplates");
    for (index, claim) in items(spec, &["volumeClaimTemplates"]).iter().enumerate() {
        super::storage::claim_spec(get(claim, "spec"), &list.index(index).child("spec"), errors);
    }
    let name = text(spec, &["serviceName"]);
    if !name.is_empty() {
        super::dns_label(name, &SPEC.child("serviceName"), errors);
    }
    stateful_spec(spec, errors);
}

fn stateful_spec(spec: &Value, errors: &mut ErrorList) {
    let management = text(spec, &["podManagementPolicy"]);
    let path = SPEC.child("podManagementPolicy");
    match management {
        "" => errors.required(&path, ""),
        "OrderedReady" | "Parallel" => {}
        other => errors.invalid(&path, other, "must be 'OrderedReady' or 'Parallel'"),
    }
    stateful_strategy(
        get(spec, "updateStrategy"),
        &SPEC.child("updateStrategy"),
        errors,
    );
    let retention = get(spec, "persistentVolumeClaimRetentionPolicy");
    if !retention.is_null() {
        let path = SPEC.child("persistentVolumeClaimRetentionPolicy");
        for key in ["whenDeleted", "whenScaled"] {
            one_of(
                text(retention, &[key]),
                &["Retain", "Delete"],
                &path.child(key),
                errors,
            );
        }
    }
    non_negative_member(spec, "replicas", &SPEC, errors);
    non_negative_member(spec, "minReadySeconds", &SPEC, errors);
    non_negative_member(
        get(spec, "ordinals"),
        "start",
        &SPEC.child("ordinals"),
        errors,
    );
    if required_selector(
        spec,
        "empty selector is invalid for statefulset",
        "",
        errors,
    ) {
        template_matches(spec, errors);
        let template = stateful_template(spec);
        pod::template(&template, &SPEC.child("template"), errors);
    }
    always_runs(spec, "StatefulSet", errors);
}

/// The template as its pods will be: with the volumes of the claims, without a name of its own.
fn stateful_template(spec: &Value) -> Value {
    let mut template = get(spec, "template").clone();
    crate::meta::remove(&mut template, &["spec", "hostname"]);
    crate::meta::remove(&mut template, &["spec", "subdomain"]);
    let claims: Vec<&str> = items(spec, &["volumeClaimTemplates"])
        .iter()
        .map(|claim| text(claim, &["metadata", "name"]))
        .collect();
    if claims.is_empty() {
        return template;
    }
    let mut volumes: Vec<Value> = claims
        .iter()
        .map(|name| serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
        .collect();
    let own = items(&template, &["spec", "volumes"])
        .iter()
        .filter(|volume| !claims.contains(&text(volume, &["name"])))
        .cloned();
    volumes.extend(own);
    crate::meta::set(&mut template, &["spec", "volumes"], volumes);
    template
}

fn stateful_strategy(strategy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rolling = get(strategy, "rollingUpdate");
    let at = path.child("rollingUpdate");
    match text(strategy, &["type"]) {
        "" => errors.required(path, ""),
        "OnDelete" => {
            if !rolling.is_null() {
                let why = "only allowed for updateStrategy 'RollingUpdate'";
                errors.invalid(&at, rolling.clone(), why);
            }
        }
        "RollingUpdate" => {
            non_negative_member(rolling, "partition", &at, errors);
            let most = get(rolling, "maxUnavailable");
            if !most.is_null() {
                let most_path = at.child("maxUnavailable");
                number_or_percent(most, &most_path, errors);
                if amount(most) == 0 {
                    errors.invalid(&most_path, most.clone(), "cannot be 0");
                }
                at_most_100_percent(most, &most_path, errors);
            }
        }
        _ => {
            let why = "must be 'RollingUpdate' or 'OnDelete'";
            errors.invalid(path, strategy.clone(), why);
        }
    }
}

const FIXED: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

pub(crate) fn stateful_set_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    stateful_spec(get(new, "spec"), errors);
    let strip = |set: &Value| {
        let mut spec = get(set, "spec").clone();
        for key in [
            "replicas",
            "template",
            "updateStrategy",
            "minReadySeconds",
            "ordinals",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
        ] {
            crate::meta::remove(&mut spec, &[key]);
        }
        spec
    };
    if strip(new) != strip(old) {
        errors.forbidden(&SPEC, FIXED);
    }
}

/// The selector of a controller stays.
pub(crate) fn same_selector(new: &Value, old: &Value, errors: &mut ErrorList) {
    immutable(
        at(new, &["spec", "selector"]),
        at(old, &["spec", "selector"]),
        &SPEC.child("selector"),
        errors,
    );
}

pub(crate) fn replication_controller(controller: &Value, errors: &mut ErrorList) {
    let spec = get(controller, "spec");
    non_negative_member(spec, "replicas", &SPEC, errors);
    non_negative_member(spec, "minReadySeconds", &SPEC, errors);
    let selector = get(spec, "selector");
    let empty = selector.as_object().is_none_or(serde_json::Map::is_empty);
    if empty {
        errors.required(&SPEC.child("selector"), "");
    }
    let template = get(spec, "template");
    if template.is_null() {
        errors.required(&SPEC.child("template"), "");
        return;
    }
    let labels = at(template, &["metadata", "labels"]);
    let path = SPEC.child("template");
    if !empty && !pod::has_all(labels, selector) {
        errors.invalid(&path.child("metadata.labels"), labels.clone(), NO_MATCH);
    }
    pod::template(template, &path, errors);
    always_runs(spec, "ReplicationController", errors);
}

/// Counters of a status; those in `within` are no larger than `replicas`.
fn counters(status: &Value, all: &[&str], within: &[&str], ready: &str, errors: &mut ErrorList) {
    let path = Path::new("status");
    for key in all {
        non_negative_member(status, key, &path, errors);
    }
    let number = |key: &str| integer(status, &[key]).unwrap_or(0);
    for key in within {
        if number(key) > number("replicas") {
            let why = "cannot be greater than status.replicas";
            errors.invalid(&path.child(key), number(key), why);
        }
    }
    if !within.is_empty() && number("availableReplicas") > number("readyReplicas") {
        let path = path.child("availableReplicas");
        errors.invalid(&path, number("availableReplicas"), ready);
    }
}

fn never_less(new: &Value, old: &Value, errors: &mut ErrorList) {
    let count = |object: &Value| integer(object, &["status", "collisionCount"]);
    if let Some(before) = count(old)
        && count(new).is_none_or(|now| now < before)
    {
        let path = Path::new("status.collisionCount");
        errors.invalid(&path, count(new).unwrap_or(0), "cannot be decremented");
    }
}

pub(crate) fn deployment_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    counters(
        get(new, "status"),
        &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ],
        &["updatedReplicas", "readyReplicas", "availableReplicas"],
        "cannot be greater than readyReplicas",
        errors,
    );
    never_less(new, old, errors);
}

pub(crate) fn replica_set_status(new: &Value, errors: &mut ErrorList) {
    counters(
        get(new, "status"),
        &[
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ],
        &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        "cannot be greater than readyReplicas",
        errors,
    );
}

pub(crate) fn stateful_set_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    counters(
        get(new, "status"),
        &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
        &[
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
        ],
        "cannot be greater than status.readyReplicas",
        errors,
    );
    never_less(new, old, errors);
}

pub(crate) fn daemon_set_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    counters(
        get(new, "status"),
        &[
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ],
        &[],
        "",
        errors,
    );
    never_less(new, old, errors);
}

pub(crate) fn controller_revision(revision: &Value, errors: &mut ErrorList) {
    non_negative_member(revision, "revision", &Path::ROOT, errors);
}

/// Data of a new revision.
pub(crate) fn revision_data(revision: &Value, errors: &mut ErrorList) {
    let path = Path::new("data");
    match get(revision, "data") {
        Value::Null => errors.required(&path, "data is mandatory"),
        Value::Object(_) => {}
        _ => errors.required(&path, "data must be a valid JSON object"),
    }
}

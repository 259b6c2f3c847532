//! The kinds of the apps group.

use serde_json::{Value, json};

use super::Rule;
use crate::meta::{default, default_text, entry, items_mut, text};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("apps.v1.DeploymentSpec", deployment),
    ("apps.v1.ReplicaSetSpec", replica_set),
    ("apps.v1.DaemonSetSpec", daemon_set),
    ("apps.v1.StatefulSetSpec", stateful_set),
];

/// The member's object, made if it is absent.
fn object<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    let slot = entry(value, &[key]);
    if !slot.is_object() {
        *slot = json!({});
    }
    slot
}

fn deployment(spec: &mut Value) {
    default(spec, "replicas", 1);
    let strategy = object(spec, "strategy");
    default_text(strategy, "type", "RollingUpdate");
    if text(strategy, &["type"]) == "RollingUpdate" {
        let rolling = object(strategy, "rollingUpdate");
        default(rolling, "maxUnavailable", "25%");
        default(rolling, "maxSurge", "25%");
    }
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "progressDeadlineSeconds", 600);
}

fn replica_set(spec: &mut Value) {
    default(spec, "replicas", 1);
}

fn daemon_set(spec: &mut Value) {
    let strategy = object(spec, "updateStrategy");
    default_text(strategy, "type", "RollingUpdate");
    if text(strategy, &["type"]) == "RollingUpdate" {
        let rolling = object(strategy, "rollingUpdate");
        default(rolling, "maxUnavailable", 1);
        default(rolling, "maxSurge", 0);
    }
    default(spec, "revisionHistoryLimit", 10);
}

fn stateful_set(spec: &mut Value) {
    default_text(spec, "podManagementPolicy", "OrderedReady");
    let strategy = object(spec, "updateStrategy");
    if text(strategy, &["type"]).is_empty() {
        strategy["type"] = json!("RollingUpdate");
        object(strategy, "rollingUpdate");
    }
    let rolls = text(strategy, &["type"]) == "RollingUpdate";
    if let Some(rolling) = strategy
        .get_mut("rollingUpdate")
        .filter(|one| rolls && one.is_object())
    {
        default(rolling, "partition", 0);
    }
    let retention = object(spec, "persistentVolumeClaimRetentionPolicy");
    default_text(retention, "whenDeleted", "Retain");
    default_text(retention, "whenScaled", "Retain");
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    for claim in items_mut(spec, &["volumeClaimTemplates"]) {
        claim["apiVersion"] = json!("v1");
        claim["kind"] = json!("PersistentVolumeClaim");
    }
}

//! Namespaces: a finalizer of their own keeps them until everything in them is gone.

use serde_json::{Value, json};

use super::Kind;
use crate::meta::{self, items};
use crate::strategy::{Context, NameRule, copy_member};

const FINALIZER: &str = "kubernetes";

pub(super) const NAMESPACE: Kind = Kind {
    names: NameRule::Label,
    shows_deleted: true,
    prepare_create,
    prepare_update,
    prepare_status,
    canonicalize,
    mark_deleting,
    is_held: |namespace| !items(namespace, &["spec", "finalizers"]).is_empty(),
    ..Kind::DEFAULT
};

fn prepare_create(_: &Context<'_>, namespace: &mut Value) {
    namespace["status"] = json!({"phase": "Active"});
    let slot = meta::entry(namespace, &["spec", "finalizers"]);
    match slot {
        Value::Array(list) if list.iter().any(|one| one == FINALIZER) => {}
        Value::Array(list) => list.push(json!(FINALIZER)),
        _ => *slot = json!([FINALIZER]),
    }
}

/// The phase says it; there is no grace period.
fn mark_deleting(namespace: &mut Value) {
    meta::set(namespace, &["status", "phase"], "Terminating");
    meta::remove(namespace, &["metadata", "deletionGracePeriodSeconds"]);
}

fn prepare_update(_: &Context<'_>, namespace: &mut Value, old: &Value) {
    copy_member(namespace, old, "spec");
    copy_member(namespace, old, "status");
}

/// The finalize subresource changes nothing but `spec.finalizers`.
fn prepare_status(context: &Context<'_>, namespace: &mut Value, old: &Value) {
    if context.subresource == "finalize" {
        copy_member(namespace, old, "status");
    } else {
        copy_member(namespace, old, "spec");
    }
}

/// A generated name is only known now.
fn canonicalize(namespace: &mut Value) {
    let name = meta::text(namespace, &["metadata", "name"]).to_owned();
    let path = ["metadata", "labels", "kubernetes.io/metadata.name"];
    meta::set(namespace, &path, name);
}

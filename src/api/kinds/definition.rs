//! CustomResourceDefinitions.

use serde_json::{Value, json};

use super::Kind;
use crate::custom::CLEANUP;
use crate::custom::names;
use crate::meta::{self, at, boolean, get, integer, items, text};
use crate::strategy::{self, Context};

pub(super) const DEFINITION: Kind = Kind {
    needs_version: true,
    prepare_create,
    prepare_update,
    mark_deleting,
    // Deletion begins with the finalizer that is given then; whoever takes it away has seen the objects go.
    is_held: |definition| at(definition, &["metadata", "deletionTimestamp"]).is_null(),
    ..Kind::DEFAULT
};

fn storage_version(definition: &Value) -> Option<Value> {
    let versions = items(definition, &["spec", "versions"]);
    let storage = versions
        .iter()
        .find(|version| boolean(version, &["storage"]));
    storage.map(|version| get(version, "name").clone())
}

fn prepare_create(context: &Context<'_>, definition: &mut Value) {
    strategy::start_generation(context, definition);
    let stored: Vec<Value> = storage_version(definition).into_iter().collect();
    definition["status"] = json!({"conditions": [], "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored});
}

/// Every version that was ever stored is remembered, until somebody who has migrated the objects takes it away.
fn prepare_update(context: &Context<'_>, definition: &mut Value, old: &Value) {
    strategy::keep_status(context, definition, old);
    strategy::count_generation(context, definition, old);
    let Some(version) = storage_version(definition) else {
        return;
    };
    let slot = meta::entry(definition, &["status", "storedVersions"]);
    match slot {
        Value::Array(list) if list.contains(&version) => {}
        Value::Array(list) => list.push(version),
        _ => *slot = json!([version]),
    }
}

fn mark_deleting(definition: &mut Value) {
    meta::remove(definition, &["metadata", "deletionGracePeriodSeconds"]);
    let slot = meta::entry(definition, &["metadata", "finalizers"]);
    match slot {
        Value::Array(list) if list.iter().any(|one| one == CLEANUP) => return,
        Value::Array(list) => list.push(json!(CLEANUP)),
        _ => *slot = json!([CLEANUP]),
    }
    // That it goes is no change of what is wanted.
    if let Some(generation) = integer(definition, &["metadata", "generation"]) {
        meta::set(definition, &["metadata", "generation"], generation - 1);
    }
    let since = text(definition, &["metadata", "deletionTimestamp"]).to_owned();
    if let (Some(status), Some(at)) = (definition.get_mut("status"), crate::time::parse(&since)) {
        names::set(
            status,
            "Terminating",
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
            at,
        );
    }
}

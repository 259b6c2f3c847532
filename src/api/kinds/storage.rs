//! Persistent volumes and claims.

use serde_json::{Value, json};

use super::Kind;
use crate::meta::{at, get, remove, set, text};
use crate::strategy::{self, Context};
use crate::time;

pub(super) const VOLUME: Kind = Kind {
    shows_deleted: true,
    prepare_create: |context, volume| {
        volume["status"] =
            json!({"phase": "Pending", "lastPhaseTransitionTime": time::format(context.now)});
    },
    prepare_status: volume_status,
    ..Kind::DEFAULT
};

pub(super) const CLAIM: Kind = Kind {
    shows_deleted: true,
    prepare_create: |_, claim| {
        claim["status"] = json!({"phase": "Pending"});
        sync_data_sources(claim);
    },
    prepare_update: |context, claim, old| {
        strategy::keep_status(context, claim, old);
        sync_data_sources(claim);
    },
    ..Kind::DEFAULT
};

/// The time of the last change of phase is kept by the server unless the client sets it.
fn volume_status(context: &Context<'_>, volume: &mut Value, old: &Value) {
    strategy::only_status(volume, old);
    let path = ["status", "lastPhaseTransitionTime"];
    let (new_time, old_time) = (at(volume, &path), at(old, &path).clone());
    let same_phase = text(volume, &["status", "phase"]) == text(old, &["status", "phase"]);
    if same_phase && new_time.is_null() && !old_time.is_null() {
        set(volume, &path, old_time);
    } else if !same_phase && (new_time.is_null() || *new_time == old_time) {
        set(volume, &path, time::format(context.now));
    }
}

/// `dataSource` and `dataSourceRef` say the same if only one is given.
fn sync_data_sources(claim: &mut Value) {
    let Some(spec) = claim.get_mut("spec") else {
        return;
    };
    let volume_like = |source: &Value| {
        let group = text(source, &["apiGroup"]);
        match text(source, &["kind"]) {
            "PersistentVolumeClaim" => group.is_empty(),
            "VolumeSnapshot" => group == "snapshot.storage.k8s.io",
            _ => false,
        }
    };
    let source = get(spec, "dataSource").clone();
    let reference = get(spec, "dataSourceRef").clone();
    if source.is_object() && !volume_like(&source) && reference.is_null() {
        remove(spec, &["dataSource"]);
        return;
    }
    if source.is_object() && reference.is_null() {
        spec["dataSourceRef"] = source;
    } else if source.is_null()
        && reference.is_object()
        && text(&reference, &["namespace"]).is_empty()
        && volume_like(&reference)
    {
        spec["dataSource"] = reference;
    }
}

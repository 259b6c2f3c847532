//! Conversions between the served versions of a resource and the one that is stored.
//!
//! Two built-in resources are served twice: events (core/v1 and events.k8s.io/v1) and horizontal pod
//! autoscalers (v1 and v2). All others have one form.

use serde_json::Value;

use crate::meta;
use crate::registry::{ResourceDef, ServedVersion};

mod autoscaler;
mod event;

/// Turns an object of a served version into the stored form.
pub fn to_storage(def: &ResourceDef, version: &ServedVersion, object: &mut Value) {
    if version == def.storage_version() {
        return;
    }
    if let Some(custom) = &def.custom {
        let storage = def.storage_version();
        crate::custom::convert(custom, &storage.group, &storage.version, object);
        return;
    }
    match (&*version.group, &*def.kind) {
        ("events.k8s.io", "Event") => event::to_core(object),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::to_v2(object),
        _ => {}
    }
    set_version(object, def.storage_version());
}

/// Turns a stored object into the form of a served version.
pub fn from_storage(def: &ResourceDef, version: &ServedVersion, object: &mut Value) {
    if let Some(custom) = &def.custom {
        crate::custom::convert(custom, &version.group, &version.version, object);
        return;
    }
    if version == def.storage_version() {
        return;
    }
    match (&*version.group, &*def.kind) {
        ("events.k8s.io", "Event") => event::from_core(object),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::from_v2(object),
        _ => {}
    }
    set_version(object, version);
}

fn set_version(object: &mut Value, version: &ServedVersion) {
    let text = crate::resource::api_version(&version.group, &version.version);
    meta::set(object, &["apiVersion"], text);
}

/// The name under which the stored form has a field that a client of `version` selects by.
pub fn field_to_storage<'a>(version: &ServedVersion, field: &'a str) -> &'a str {
    if version.group == "events.k8s.io" {
        event::field(field)
    } else {
        field
    }
}

//! `metadata.managedFields` and server-side apply.
//!
//! [`update`] records who changed what on every ordinary write; [`apply`] merges a configuration
//! and takes away what its manager applied before and no longer does. Field sets are tries
//! ([`set`]), typed by schemas ([`typed`]). Upstream counterpart: structured-merge-diff and
//! `apimachinery/pkg/util/managedfields`.

use serde_json::Value;

use crate::meta::{self, items, text};
use crate::schema::Schema;
use crate::status::{Cause, Details, Reason, Status};

mod entries;
pub mod set;
mod typed;

use entries::{Identity, Managers};
pub use set::{Element, Set};
pub use typed::TypeError;

/// Entries of kind `Update` that are kept; older ones are merged.
const MAX_UPDATERS: usize = 10;
/// The manager of fields that were set before anybody applied.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// One write, as far as ownership of fields goes. Objects are in `api_version`'s form.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// `None`: everything is allowed, maps are followed, lists are single fields.
    pub schema: Option<&'a Schema>,
    pub manager: &'a str,
    pub api_version: &'a str,
    pub subresource: &'a str,
    /// Dotted paths that this door never changes (`status` for the object itself).
    pub reset: &'a [&'a str],
    /// The time of the write as text.
    pub time: &'a str,
}

/// Members of `metadata` that nobody owns, beside kind and apiVersion.
const UNOWNED: &[&str] = &[
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// Renews `object`'s entries for a write that turned `old` into it; `old` is null for a create.
pub fn update(object: &mut Value, old: &Value, write: &Write<'_>) {
    let mut managers = requested(object, old, write);
    meta::remove(object, &["metadata", "managedFields"]);
    let exists = !text(old, &["metadata", "uid"]).is_empty();
    if managers.0.is_empty() && exists {
        return;
    }
    let empty;
    let before = if old.is_null() {
        empty = blank(write.schema);
        &empty
    } else {
        old
    };
    record(&mut managers, before, object, write, write.manager);
    managers.cap(MAX_UPDATERS);
    managers.write(object);
}

/// The entries that count: those of the request if it names some, else those that are stored.
fn requested(object: &Value, old: &Value, write: &Write<'_>) -> Managers {
    let stored = || Managers::read(items(old, &["metadata", "managedFields"])).unwrap_or_default();
    if !write.subresource.is_empty() {
        return stored();
    }
    match meta::at(object, &["metadata", "managedFields"]) {
        // An explicitly empty list, or one empty entry, takes all ownership away.
        Value::Array(list) if list.is_empty() => Managers::default(),
        Value::Array(list) if list.len() == 1 && is_blank(&list[0]) => Managers::default(),
        Value::Array(list) => match Managers::read(list) {
            Some(managers) if !managers.0.is_empty() => managers,
            _ => stored(),
        },
        _ => stored(),
    }
}

fn is_blank(entry: &Value) -> bool {
    entry.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The form of an object in which nothing is set.
fn blank(schema: Option<&Schema>) -> Value {
    schema.map_or_else(|| serde_json::json!({}), Schema::zero)
}

fn unowned() -> Set {
    let mut set = Set::default();
    for key in ["apiVersion", "kind", "metadata"] {
        set.insert(&[Element::field(key)]);
    }
    for key in UNOWNED {
        set.insert(&[Element::field("metadata"), Element::field(key)]);
    }
    set
}

fn reset_fields(paths: &[&str]) -> Set {
    let mut set = Set::default();
    for path in paths {
        let elements: Vec<Element> = path.split('.').map(Element::field).collect();
        set.insert(&elements);
    }
    set
}

/// Moves the fields that differ to an `Update` entry of `manager`.
fn record(managers: &mut Managers, old: &Value, new: &Value, write: &Write<'_>, manager: &str) {
    let mut comparison = typed::compare(write.schema, old, new);
    let reset = reset_fields(write.reset);
    comparison.changed = comparison.changed.recursive_difference(&reset);
    comparison.removed = comparison.removed.recursive_difference(&reset);
    for entry in &mut managers.0 {
        entry.set = entry.set.difference(&comparison.changed);
        entry.set = entry.set.difference(&comparison.removed);
    }
    let own = comparison.changed.difference(&unowned());
    if !own.is_empty() {
        let identity = Identity::update(manager, write.api_version, write.subresource);
        managers.extend(identity, own, write.time);
    }
    managers.drop_empty();
}

/// Why an apply was refused.
#[derive(Debug)]
pub enum ApplyError {
    BadRequest(String),
    /// The configuration does not have its type; answered without a reason.
    Type(String),
    /// Who owns what is applied with another value, with the paths.
    Conflicts(Vec<(String, String)>),
}

impl ApplyError {
    pub fn to_status(&self) -> Status {
        match self {
            Self::BadRequest(text) => Status::bad_request(text.clone()),
            Self::Type(text) => Status::new(Reason::Unknown, text.clone()),
            Self::Conflicts(conflicts) => conflict_status(conflicts),
        }
    }
}

fn conflict_status(conflicts: &[(String, String)]) -> Status {
    let message = match conflicts {
        [(manager, path)] => {
            format!("Apply failed with 1 conflict: conflict with {manager}: {path}")
        }
        many => {
            let mut managers: Vec<&String> = many.iter().map(|(manager, _)| manager).collect();
            managers.sort();
            managers.dedup();
            let mut lines = Vec::new();
            for manager in managers {
                lines.push(format!("conflicts with {manager}:"));
                let paths = many.iter().filter(|(one, _)| one == manager);
                lines.extend(paths.map(|(_, path)| format!("- {path}")));
            }
            format!(
                "Apply failed with {} conflicts: {}",
                many.len(),
                lines.join("\n")
            )
        }
    };
    Status::new(Reason::Conflict, message).with_details(Details {
        causes: conflicts
            .iter()
            .map(|(manager, path)| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {manager}"),
                field: path.clone(),
            })
            .collect(),
        ..Details::default()
    })
}

/// Applies `config` to `live` (null if there is no object yet). Returns the new object with its
/// entries; `force` takes fields over from others.
pub fn apply(
    live: &Value,
    config: &Value,
    write: &Write<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    let version = text(config, &["apiVersion"]);
    if version != write.api_version {
        return Err(ApplyError::BadRequest(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}",
            write.api_version
        )));
    }
    if !meta::at(config, &["metadata", "managedFields"]).is_null() {
        return Err(ApplyError::BadRequest(
            "metadata.managedFields must be nil".to_owned(),
        ));
    }
    typed::validate(write.schema, config).map_err(|error| {
        ApplyError::Type(format!(
            "failed to create typed patch object ({}): {error}",
            described(config, write.api_version)
        ))
    })?;
    let empty = blank(write.schema);
    let base = if live.is_null() { &empty } else { live };
    let mut managers =
        Managers::read(items(live, &["metadata", "managedFields"])).unwrap_or_default();
    if managers.0.is_empty() && !live.is_null() {
        let mut stripped = live.clone();
        meta::remove(&mut stripped, &["metadata", "managedFields"]);
        record(&mut managers, &empty, &stripped, write, BEFORE_FIRST_APPLY);
    }
    let mut base = base.clone();
    meta::remove(&mut base, &["metadata", "managedFields"]);
    match merge(&base, config, &managers, write, force) {
        Err(ApplyError::Conflicts(conflicts)) if write.manager == "kubectl" => {
            let allowed = last_applied_set(&base, write);
            let left: Vec<(String, String)> = conflicts
                .into_iter()
                .filter(|(_, path)| !allowed.contains(path))
                .collect();
            if left.is_empty() {
                merge(&base, config, &managers, write, true)
            } else {
                Err(ApplyError::Conflicts(left))
            }
        }
        result => result,
    }
    .map(|mut object| {
        sync_last_applied(&mut object, config, write.manager);
        object
    })
}

fn described(config: &Value, api_version: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    format!(
        "{}/{}; {group}/{version}, Kind={}",
        text(config, &["metadata", "namespace"]),
        text(config, &["metadata", "name"]),
        text(config, &["kind"]),
    )
}

fn merge(
    live: &Value,
    config: &Value,
    managers: &Managers,
    write: &Write<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    let schema = write.schema;
    let identity = Identity::apply(write.manager, write.subresource);
    let mut managers = managers.clone();
    let merged = typed::merge(schema, live, config);
    let before = managers.find(&identity).map(|entry| entry.set.clone());
    let own = typed::to_set(schema, config).recursive_difference(&reset_fields(write.reset));
    // While fields are taken away, name and namespace are among those that are owned: metadata stays.
    managers.replace(&identity, own.clone(), write.api_version);
    let object = match before {
        Some(last) if !last.is_empty() => prune(schema, merged, &managers, &last),
        _ => merged,
    };
    managers.replace(&identity, own.difference(&unowned()), write.api_version);
    let mut comparison = typed::compare(schema, live, &object);
    let reset = reset_fields(write.reset);
    comparison.changed = comparison.changed.recursive_difference(&reset);
    comparison.removed = comparison.removed.recursive_difference(&reset);
    let mut conflicts = Vec::new();
    for entry in managers
        .0
        .iter_mut()
        .filter(|entry| entry.identity != identity)
    {
        let contested = entry.set.intersection(&comparison.changed);
        if !force {
            let manager = entry.described();
            let paths = contested.paths().into_iter();
            conflicts.extend(paths.map(|path| (manager.clone(), path)));
        }
        entry.set = entry.set.difference(&contested);
        entry.set = entry.set.difference(&comparison.removed);
    }
    if !conflicts.is_empty() {
        conflicts.sort();
        return Err(ApplyError::Conflicts(conflicts));
    }
    // An apply that leaves the object as it is only says who owns it; that has no time.
    if object != *live {
        managers.touch(&identity, write.time);
    }
    managers.drop_empty();
    let mut object = object;
    managers.write(&mut object);
    Ok(object)
}

/// Takes away what the manager applied last time and not now, unless somebody else owns it.
fn prune(schema: Option<&Schema>, merged: Value, managers: &Managers, last: &Set) -> Value {
    let full = |set: &Set| typed::with_named_fields(schema, set);
    let pruned = typed::remove(schema, &merged, &full(last));
    let owned = managers
        .0
        .iter()
        .fold(Set::default(), |all, entry| all.union(&entry.set));
    let merged_set = full(&typed::to_set(schema, &merged));
    let kept = full(&typed::to_set(schema, &pruned)).union(&full(&owned));
    let pruned = typed::remove(schema, &merged, &merged_set.difference(&kept));
    // What nobody, or only an updater, owned stays.
    let pruned_set = full(&typed::to_set(schema, &pruned));
    let gone = merged_set.difference(&pruned_set).intersection(&full(last));
    typed::remove(schema, &merged, &gone)
}

/// Paths that client-side apply owned and that are still as it left them.
fn last_applied_set(live: &Value, write: &Write<'_>) -> Vec<String> {
    let annotation = meta::at(live, &["metadata", "annotations", LAST_APPLIED]);
    let Some(Ok(last)) = annotation.as_str().map(serde_json::from_str::<Value>) else {
        return Vec::new();
    };
    if text(&last, &["apiVersion"]) != write.api_version {
        return Vec::new();
    }
    let comparison = typed::compare(write.schema, &last, live);
    typed::to_set(write.schema, &last)
        .difference(&comparison.changed)
        .difference(&comparison.removed)
        .paths()
}

/// The annotation of client-side apply follows what kubectl applies on the server.
fn sync_last_applied(object: &mut Value, config: &Value, manager: &str) {
    let path = ["metadata", "annotations", LAST_APPLIED];
    if manager != "kubectl" || text(object, &path).is_empty() {
        return;
    }
    let mut applied = config.clone();
    meta::remove(&mut applied, &path);
    meta::set(object, &path, format!("{applied}\n"));
}

#[cfg(test)]
mod tests;

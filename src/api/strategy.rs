//! What one kind does differently from all others, as hooks of the generic write path.
//!
//! Every hook is pure and has a default. The order in which they are called stands in one place,
//! the API server's registry: default → prepare → (admission) → validate → canonicalize.

use serde_json::Value;

use crate::field::ErrorList;
use crate::meta;
use crate::registry::ResourceDef;
use crate::user::UserInfo;

/// What happens to an object that is asked to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grace {
    /// The kind knows no grace: it goes at once (finalizers apart).
    None,
    /// It stays, with `deletionTimestamp`, for so long.
    Seconds(i64),
}

/// The circumstances of a write that strategies may look at; time is an argument.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub def: &'a ResourceDef,
    /// The group the client speaks to, of those the row is served in.
    pub group: &'a str,
    /// The subresource that is written, empty for the object itself.
    pub subresource: &'a str,
    /// Who writes; `None` for writes that nobody asked for.
    pub user: Option<&'a UserInfo>,
    pub now: jiff::Timestamp,
}

/// Unit structs implement this; a row refers to one. Objects arrive as trees in the storage version.
pub trait Strategy: Send + Sync + 'static {
    /// Fields that code fills in where the client left them out (the schema's own defaults are
    /// already there). Runs after decoding and again after mutating admission.
    fn default(&self, _object: &mut Value) {}

    /// Before admission of a create. The generic path has already set uid, creationTimestamp and
    /// namespace; the default drops `status` (rows with a status subresource) and sets
    /// `generation` 1 (rows that count generations).
    fn prepare_for_create(&self, context: &Context<'_>, object: &mut Value) {
        drop_status(context, object);
        start_generation(context, object);
    }

    /// Before admission of an update; the default keeps `status` and counts `generation` up when
    /// anything outside `metadata` and `status` has changed.
    fn prepare_for_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        keep_status(context, object, old);
        count_generation(context, object, old);
    }

    /// Before admission of an update of `status`: everything but status and metadata stays as it was.
    fn prepare_for_status_update(&self, _context: &Context<'_>, object: &mut Value, old: &Value) {
        only_status(object, old);
    }

    /// All faults of a new object beside those of its metadata.
    fn validate(&self, _context: &Context<'_>, _object: &Value) -> ErrorList {
        ErrorList::new()
    }

    /// All faults of a changed object; immutable fields are checked here.
    fn validate_update(&self, context: &Context<'_>, object: &Value, _old: &Value) -> ErrorList {
        self.validate(context, object)
    }

    fn validate_status_update(
        &self,
        _context: &Context<'_>,
        _object: &Value,
        _old: &Value,
    ) -> ErrorList {
        ErrorList::new()
    }

    /// An update is checked by the rules of a create too, which look at metadata once more: clients
    /// may count causes.
    fn checks_update_twice(&self) -> bool {
        false
    }

    /// Rules of the kind for `metadata.name`.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// Texts for `Warning` headers after a create or update (`old` is null for a create).
    fn warnings(&self, _object: &Value, _old: &Value) -> Vec<String> {
        Vec::new()
    }

    /// After validation, right before storing.
    fn canonicalize(&self, _object: &mut Value) {}

    /// A PUT of an object that does not exist creates it.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// A PUT without `resourceVersion` overwrites.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// How long the object stays after a delete with the given `gracePeriodSeconds`.
    fn grace(&self, _object: &Value, _requested: Option<i64>) -> Grace {
        Grace::None
    }

    /// Whether dependents are orphaned when a delete does not say.
    fn orphans_by_default(&self) -> bool {
        false
    }

    /// The text of the warning when dependents are orphaned by default.
    fn orphans_warning(&self) -> Option<&'static str> {
        None
    }

    /// Dotted paths that a door never changes, so that nobody becomes their manager through it.
    fn reset_fields(&self, def: &ResourceDef, subresource: &str) -> &'static [&'static str] {
        match subresource {
            "" if def.has_status() => &["status"],
            "status" => &["spec"],
            _ => &[],
        }
    }

    /// What else changes when deletion begins (a namespace's phase).
    fn mark_deleting(&self, _object: &mut Value) {}

    /// Something beside `metadata.finalizers` keeps a deleted object (a namespace's own finalizers).
    fn is_held(&self, _object: &Value) -> bool {
        false
    }

    /// A delete answers with the object that went, not with a status.
    fn shows_deleted(&self) -> bool {
        false
    }

    /// The update only says "still here" and may be lost in a crash (the renewal of a Lease).
    fn is_renewal(&self, _object: &Value, _old: &Value) -> bool {
        false
    }
}

/// Which names a kind allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// DNS-1123 subdomain.
    Subdomain,
    /// DNS-1123 label.
    Label,
    /// DNS-1035 label (services before the relaxation, nodes' ports …).
    Label1035,
    /// Anything that is one path segment (RBAC).
    PathSegment,
    /// An IP address.
    Address,
}

/// The strategy of kinds without rules of their own.
pub struct Plain;

impl Strategy for Plain {}

pub fn drop_status(context: &Context<'_>, object: &mut Value) {
    if context.def.has_status() {
        meta::remove(object, &["status"]);
    }
}

pub fn start_generation(context: &Context<'_>, object: &mut Value) {
    if context.def.generations {
        meta::set(object, &["metadata", "generation"], 1);
    }
}

pub fn keep_status(context: &Context<'_>, object: &mut Value, old: &Value) {
    if context.def.has_status() {
        copy_member(object, old, "status");
    }
}

/// Counts `metadata.generation` up if something outside `metadata` and `status` differs.
pub fn count_generation(context: &Context<'_>, object: &mut Value, old: &Value) {
    if !context.def.generations {
        return;
    }
    let generation = meta::integer(old, &["metadata", "generation"]).unwrap_or(0);
    let changed = differs_beside(object, old, &["metadata", "status", "kind", "apiVersion"]);
    let generation = generation + i64::from(changed);
    if generation != 0 {
        meta::set(object, &["metadata", "generation"], generation);
    }
}

/// Whether any member but those named differs.
pub fn differs_beside(object: &Value, old: &Value, ignored: &[&str]) -> bool {
    let (Some(new), Some(old)) = (object.as_object(), old.as_object()) else {
        return object != old;
    };
    let relevant = |key: &&String| !ignored.contains(&key.as_str());
    new.keys()
        .chain(old.keys())
        .filter(relevant)
        .any(|key| new.get(key) != old.get(key))
}

/// Takes everything but `metadata` and `status` from `old`.
pub fn only_status(object: &mut Value, old: &Value) {
    let keep = ["metadata", "status", "kind", "apiVersion"];
    if let Some(map) = object.as_object_mut() {
        map.retain(|key, _| keep.contains(&key.as_str()));
    }
    for (key, value) in old.as_object().into_iter().flatten() {
        if !keep.contains(&key.as_str()) {
            object[key] = value.clone();
        }
    }
}

/// Metadata that a client of a narrow subresource may not change comes from the old object; the
/// entries of `managedFields` and the version to compare with are the server's.
pub fn reset_metadata(object: &mut Value, old: &Value) {
    let managed = meta::at(object, &["metadata", "managedFields"]).clone();
    let version = meta::at(object, &["metadata", "resourceVersion"]).clone();
    copy_member(object, old, "metadata");
    for (key, value) in [("managedFields", managed), ("resourceVersion", version)] {
        if value.is_null() {
            meta::remove(object, &["metadata", key]);
        } else {
            meta::set(object, &["metadata", key], value);
        }
    }
}

pub fn copy_member(object: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => object[key] = value.clone(),
        None => {
            meta::remove(object, &[key]);
        }
    }
}

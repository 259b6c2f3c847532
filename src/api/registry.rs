//! The registry: every resource is a row.
//!
//! Routes, discovery, RBAC names, storage prefixes, caches, garbage collection and namespace
//! deletion all derive from these rows. A plural is spelled here and nowhere else. Rows of
//! custom resources are the same type, made at run time.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use crate::resource::{GroupVersionKind, GroupVersionResource, Name, Verb, api_version};
use crate::schema::{self, CustomSchema, DecodeError, Schema};
use crate::strategy::Strategy;
use crate::{convert, defaults};

mod builtin;

pub use builtin::ROWS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// One version under which a resource is served. The group is here too: events are served by two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedVersion {
    pub group: Name,
    pub version: Name,
    /// Listed in discovery and routed; a CRD may keep versions that are stored but not served.
    pub served: bool,
}

impl ServedVersion {
    /// `v1` for the core group, else `group/version`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubresourceDef {
    pub name: Name,
    pub verbs: Vec<Verb>,
    /// The kind of the body: group, version, kind. `None`: the resource's own kind.
    pub kind: Option<GroupVersionKind>,
}

/// A resource: one plural, one storage form, one or more served versions.
pub struct ResourceDef {
    pub plural: Name,
    pub singular: Name,
    pub kind: Name,
    pub list_kind: Name,
    pub short_names: Vec<Name>,
    pub categories: Vec<Name>,
    pub scope: Scope,
    pub verbs: Vec<Verb>,
    /// Most preferred first.
    pub versions: Vec<ServedVersion>,
    /// Index into `versions` of the form that is stored and that strategies see.
    pub storage: usize,
    pub subresources: Vec<SubresourceDef>,
    /// `metadata.generation` counts changes of what is wanted.
    pub generations: bool,
    /// Kept without an fsync of its own (Events; renewals of Leases are decided by the writer).
    pub volatile: bool,
    /// Dotted paths a field selector may name, beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<Name>,
    pub strategy: Arc<dyn Strategy>,
    /// What the CustomResourceDefinition behind this row says; `None` for built-in kinds.
    pub custom: Option<Arc<CustomSchema>>,
}

impl ResourceDef {
    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// The version that is stored.
    pub fn storage_version(&self) -> &ServedVersion {
        &self.versions[self.storage]
    }

    /// The group of the storage version: how messages and RBAC name the resource.
    pub fn group(&self) -> &str {
        &self.storage_version().group
    }

    pub fn storage_gvk(&self) -> GroupVersionKind {
        self.gvk(self.storage_version())
    }

    pub fn gvk(&self, version: &ServedVersion) -> GroupVersionKind {
        GroupVersionKind {
            group: version.group.clone(),
            version: version.version.clone(),
            kind: self.kind.clone(),
        }
    }

    pub fn gvr(&self, version: &ServedVersion) -> GroupVersionResource {
        GroupVersionResource {
            group: version.group.clone(),
            version: version.version.clone(),
            resource: self.plural.clone(),
        }
    }

    pub fn storage_gvr(&self) -> GroupVersionResource {
        self.gvr(self.storage_version())
    }

    /// The served version with this group and version.
    pub fn version(&self, group: &str, version: &str) -> Option<&ServedVersion> {
        self.versions
            .iter()
            .find(|served| served.group == group && served.version == version)
    }

    /// Keys of this resource's objects begin so: `/registry/GROUP/PLURAL/`, the core group being
    /// `core`; then `NAMESPACE/NAME` or `NAME`.
    pub fn prefix(&self) -> String {
        let group = match self.group() {
            "" => "core",
            group => group,
        };
        format!("/registry/{group}/{}/", self.plural)
    }

    /// The storage key of one object, or the prefix of a namespace's objects if `name` is empty.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> String {
        match namespace {
            Some(namespace) if self.is_namespaced() => {
                format!("{}{namespace}/{name}", self.prefix())
            }
            _ => format!("{}{name}", self.prefix()),
        }
    }

    /// The schema of a served version; `None` for a custom version that keeps everything.
    pub fn schema(&self, version: &ServedVersion) -> Option<&Schema> {
        match &self.custom {
            Some(custom) => custom.version(&version.version),
            None => schema::of_kind(&version.group, &version.version, &self.kind),
        }
    }

    pub fn storage_schema(&self) -> Option<&Schema> {
        self.schema(self.storage_version())
    }

    /// Brings what a client of `version` sent into the stored form: checked, completed, converted.
    /// Returns the paths of fields that nobody knows.
    pub fn decode(
        &self,
        version: &ServedVersion,
        object: &mut Value,
    ) -> Result<Vec<String>, DecodeError> {
        if let Some(custom) = &self.custom {
            let unknown = crate::custom::decode(custom, &version.version, object)?;
            convert::to_storage(self, version, object);
            return Ok(unknown);
        }
        let Some(schema) = self.schema(version) else {
            return Ok(Vec::new());
        };
        let unknown = schema.decode(object)?;
        defaults::apply(schema, object);
        convert::to_storage(self, version, object);
        Ok(unknown)
    }

    /// The form in which a stored object is shown to clients of `version`.
    pub fn encode(&self, version: &ServedVersion, object: &mut Value) {
        convert::from_storage(self, version, object);
    }

    /// Completes an object in the stored form again after hooks have changed it, and brings empty
    /// members into the form in which they are stored.
    pub fn normalise(&self, object: &mut Value) -> Result<(), DecodeError> {
        let Some(schema) = self.storage_schema().filter(|_| self.custom.is_none()) else {
            return Ok(());
        };
        defaults::apply(schema, object);
        schema.decode(object).map(drop)
    }

    pub fn subresource(&self, name: &str) -> Option<&SubresourceDef> {
        self.subresources.iter().find(|one| one.name == name)
    }

    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    pub fn allows(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    /// True if objects are stored; reviews and bindings are only answered.
    pub fn is_stored(&self) -> bool {
        self.allows(Verb::Get) && self.kind != "ComponentStatus"
    }

    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }
}

impl std::fmt::Debug for ResourceDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ResourceDef({} {})",
            api_version(self.group(), &self.storage_version().version),
            self.plural
        )
    }
}

/// All rows with their lookups. Rows may be added and removed at run time; readers get `Arc`s.
pub struct Registry {
    inner: RwLock<Arc<Snapshot>>,
}

/// The rows at one moment.
#[derive(Default)]
pub struct Snapshot {
    rows: Vec<Arc<ResourceDef>>,
    by_resource: BTreeMap<(Name, Name, Name), usize>,
    by_kind: BTreeMap<(Name, Name, Name), usize>,
}

impl Snapshot {
    fn new(rows: Vec<Arc<ResourceDef>>) -> Self {
        let mut snapshot = Self {
            rows,
            ..Self::default()
        };
        for (index, row) in snapshot.rows.iter().enumerate() {
            for served in row.versions.iter().filter(|version| version.served) {
                let key =
                    |last: &Name| (served.group.clone(), served.version.clone(), last.clone());
                snapshot.by_resource.insert(key(&row.plural), index);
                snapshot.by_kind.insert(key(&row.kind), index);
            }
        }
        snapshot
    }

    pub fn rows(&self) -> &[Arc<ResourceDef>] {
        &self.rows
    }

    fn find(
        &self,
        index: &BTreeMap<(Name, Name, Name), usize>,
        key: (&str, &str, &str),
    ) -> Option<Arc<ResourceDef>> {
        let key = (
            Name::Owned(key.0.to_owned()),
            Name::Owned(key.1.to_owned()),
            Name::Owned(key.2.to_owned()),
        );
        index.get(&key).map(|&index| self.rows[index].clone())
    }

    pub fn by_resource(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<Arc<ResourceDef>> {
        self.find(&self.by_resource, (group, version, plural))
    }

    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<ResourceDef>> {
        self.find(&self.by_kind, (group, version, kind))
    }
}

impl Registry {
    /// The built-in rows.
    pub fn builtin() -> Self {
        let rows = ROWS.iter().map(|row| Arc::new(row.build())).collect();
        Self {
            inner: RwLock::new(Arc::new(Snapshot::new(rows))),
        }
    }

    /// The rows now; hold it for as long as one consistent view is needed.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.inner
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn by_gvr(&self, resource: &GroupVersionResource) -> Option<Arc<ResourceDef>> {
        self.snapshot()
            .by_resource(&resource.group, &resource.version, &resource.resource)
    }

    /// Adds a row, or replaces the one with the same storage group and plural.
    pub fn insert(&self, def: Arc<ResourceDef>) {
        self.change(|rows| {
            rows.retain(|row| row.group() != def.group() || row.plural != def.plural);
            rows.push(def.clone());
        });
    }

    pub fn remove(&self, group: &str, plural: &str) {
        self.change(|rows| rows.retain(|row| row.group() != group || row.plural != plural));
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<Arc<ResourceDef>>)) {
        let mut slot = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let mut rows = slot.rows.clone();
        edit(&mut rows);
        *slot = Arc::new(Snapshot::new(rows));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn table_is_sound() {
        let registry = Registry::builtin();
        let snapshot = registry.snapshot();
        let mut prefixes = BTreeSet::new();
        for row in snapshot.rows() {
            assert!(prefixes.insert(row.prefix()), "{} twice", row.prefix());
            assert_eq!(row.plural, row.plural.to_lowercase());
            assert_eq!(row.singular, row.kind.to_lowercase());
            assert!(!row.verbs.is_empty());
        }
    }

    #[test]
    fn lookups() {
        let registry = Registry::builtin();
        let snapshot = registry.snapshot();
        let core = snapshot.by_resource("", "v1", "events").unwrap();
        let other = snapshot.by_kind("events.k8s.io", "v1", "Event").unwrap();
        assert!(Arc::ptr_eq(&core, &other));
        let scaler = snapshot
            .by_resource("autoscaling", "v1", "horizontalpodautoscalers")
            .unwrap();
        assert_eq!(scaler.storage_version().version, "v2");
        assert_eq!(
            snapshot
                .by_resource("", "v1", "pods")
                .unwrap()
                .key(Some("a"), "b"),
            "/registry/core/pods/a/b"
        );
        registry.remove("", "pods");
        assert!(registry.snapshot().by_resource("", "v1", "pods").is_none());
    }
}

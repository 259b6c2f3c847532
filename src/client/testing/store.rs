//! The in-memory server's objects, their history and their watchers.

use std::collections::BTreeMap;

use bytes::Bytes;
use sampan_api::resource::PatchType;
use sampan_api::{GroupVersionResource, Options, Reason, Status, Target, Verb};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::tree::{merge, merge_strategically, text};
use crate::transport::{Body, EventKind, Request, WatchEvent};

/// Group, plural, namespace, name.
type Key = (String, String, String, String);

#[derive(Default)]
pub(super) struct Store {
    revision: u64,
    compacted: u64,
    created: u64,
    objects: BTreeMap<Key, Value>,
    history: Vec<Record>,
    watchers: Vec<Watcher>,
}

#[derive(Clone)]
struct Record {
    revision: u64,
    key: Key,
    kind: EventKind,
    object: Value,
}

struct Watcher {
    target: Target,
    options: Options,
    sender: UnboundedSender<WatchEvent>,
}

fn key_of(target: &Target, name: &str) -> Key {
    (
        target.resource.group.to_string(),
        target.resource.resource.to_string(),
        target.namespace.clone().unwrap_or_default(),
        name.to_owned(),
    )
}

/// Whether an object of this key and these labels and fields is in a collection.
fn in_collection(key: &Key, object: &Value, target: &Target, options: &Options) -> bool {
    key.0 == target.resource.group
        && key.1 == target.resource.resource
        && target.namespace.as_ref().is_none_or(|name| *name == key.2)
        && pairs(options.label_selector.as_deref())
            .all(|(label, value)| text(&object["metadata"]["labels"], &pointer(label)) == value)
        && pairs(options.field_selector.as_deref())
            .all(|(field, value)| text(object, &format!("/{}", field.replace('.', "/"))) == value)
}

fn pointer(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Equality terms of a selector; the only ones known here.
fn pairs(selector: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    selector
        .unwrap_or_default()
        .split(',')
        .filter_map(|term| term.split_once('='))
        .map(|(key, value)| (key, value.trim_start_matches('=')))
}

impl Store {
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
        self.history.clear();
        self.watchers.clear();
    }

    pub(super) fn close_watches(&mut self) {
        self.watchers.clear();
    }

    pub(super) fn objects(&self, resource: &GroupVersionResource) -> impl Iterator<Item = &Value> {
        let wanted = (resource.group.to_string(), resource.resource.to_string());
        self.objects
            .iter()
            .filter(move |(key, _)| key.0 == wanted.0 && key.1 == wanted.1)
            .map(|(_, object)| object)
    }

    pub(super) fn select<'a>(
        &'a self,
        target: &'a Target,
        options: &'a Options,
    ) -> impl Iterator<Item = &'a Value> {
        self.objects
            .iter()
            .filter(move |(key, object)| in_collection(key, object, target, options))
            .map(|(_, object)| object)
    }

    pub(super) fn watch(
        &mut self,
        target: Target,
        options: Options,
        from: u64,
        sender: UnboundedSender<WatchEvent>,
    ) -> Result<(), Status> {
        if from < self.compacted {
            return Err(Status::new(Reason::Expired, "too old resource version"));
        }
        let watcher = Watcher {
            target,
            options,
            sender,
        };
        for record in self.history.iter().filter(|record| record.revision > from) {
            watcher.tell(record);
        }
        self.watchers.push(watcher);
        Ok(())
    }

    pub(super) fn handle(&mut self, request: Request) -> Result<Value, Status> {
        let target = request.target;
        match (request.verb, request.body) {
            (Verb::Get, _) => self.current(&target).cloned(),
            (Verb::Create, Body::Object(object)) if target.subresource.is_none() => {
                self.create(&target, object)
            }
            (Verb::Create, Body::Object(binding))
                if target.subresource.as_deref() == Some("binding") =>
            {
                self.bind(&target, &binding)
            }
            // Evictions, tokens: accepted, without effect.
            (Verb::Create, Body::Object(object)) => Ok(object),
            (Verb::Update, Body::Object(object)) => self.update(&target, object),
            (Verb::Patch, Body::Patch(kind, patch)) => self.patch(&target, kind, patch),
            (Verb::Delete, Body::Object(options)) => self.delete(&target, &options),
            (Verb::DeleteCollection, Body::Object(options)) => {
                self.delete_collection(&target, &request.options, &options)
            }
            (verb, body) => Err(Status::bad_request(format!("{verb:?} with {body:?}"))),
        }
    }

    fn current(&self, target: &Target) -> Result<&Value, Status> {
        let name = target.name.as_deref().unwrap_or_default();
        self.objects.get(&key_of(target, name)).ok_or_else(|| {
            Status::not_found(&target.resource.group, &target.resource.resource, name)
        })
    }

    fn create(&mut self, target: &Target, mut object: Value) -> Result<Value, Status> {
        self.created += 1;
        if text(&object, "/metadata/name").is_empty() {
            let prefix = text(&object, "/metadata/generateName").to_owned();
            object["metadata"]["name"] = json!(format!("{prefix}{:05}", self.created));
        }
        let name = text(&object, "/metadata/name").to_owned();
        let key = key_of(target, &name);
        if self.objects.contains_key(&key) {
            let resource = &target.resource;
            return Err(Status::already_exists(
                &resource.group,
                &resource.resource,
                &name,
            ));
        }
        object["metadata"]["uid"] = json!(format!("uid-{}", self.created));
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["metadata"]["generation"] = json!(1);
        if let Some(namespace) = &target.namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        Ok(self.put(key, object, EventKind::Added))
    }

    fn bind(&mut self, target: &Target, binding: &Value) -> Result<Value, Status> {
        let old = self.current(target)?.clone();
        self.check_version(target, &old, binding)?;
        if !text(&old, "/spec/nodeName").is_empty() {
            return Err(self.conflict(target));
        }
        let mut object = old.clone();
        object["spec"]["nodeName"] = binding["target"]["name"].clone();
        self.write(target, &old, object)?;
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn update(&mut self, target: &Target, object: Value) -> Result<Value, Status> {
        let old = self.current(target)?.clone();
        self.check_version(target, &old, &object)?;
        self.write(target, &old, object)
    }

    fn patch(&mut self, target: &Target, kind: PatchType, patch: Value) -> Result<Value, Status> {
        let old = self.current(target)?.clone();
        self.check_version(target, &old, &patch)?;
        let mut object = old.clone();
        match kind {
            PatchType::Merge => merge(&mut object, patch),
            PatchType::Strategic => merge_strategically(&mut object, patch),
            PatchType::Json | PatchType::Apply => {
                return Err(Status::new(
                    Reason::UnsupportedMediaType,
                    "not known to the test server",
                ));
            }
        }
        self.write(target, &old, object)
    }

    /// A version or uid in what is written must be the current one.
    fn check_version(&self, target: &Target, old: &Value, new: &Value) -> Result<(), Status> {
        for field in ["/metadata/resourceVersion", "/metadata/uid"] {
            let wanted = text(new, field);
            if !wanted.is_empty() && wanted != text(old, field) {
                return Err(self.conflict(target));
            }
        }
        Ok(())
    }

    fn conflict(&self, target: &Target) -> Status {
        Status::conflict(
            &target.resource.group,
            &target.resource.resource,
            target.name.as_deref().unwrap_or_default(),
            "the object has been modified",
        )
    }

    fn write(&mut self, target: &Target, old: &Value, mut new: Value) -> Result<Value, Status> {
        let name = text(old, "/metadata/name").to_owned();
        let key = key_of(target, &name);
        if target.subresource.as_deref() == Some("status") {
            let status = new["status"].take();
            new = old.clone();
            new["status"] = status;
        } else if target.subresource.is_none() {
            new["status"] = old["status"].clone();
        }
        if new["status"].is_null()
            && let Some(map) = new.as_object_mut()
        {
            map.remove("status");
        }
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        new["metadata"]["uid"] = old["metadata"]["uid"].clone();
        if new == *old {
            return Ok(new);
        }
        if new["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            new["metadata"]["generation"] = json!(generation);
        }
        let is_due = new["metadata"]["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or_default()
            == 0;
        let is_deleted = !text(&new, "/metadata/deletionTimestamp").is_empty();
        if is_deleted && is_due && !has_finalizers(&new) {
            return Ok(self.remove(&key, new));
        }
        Ok(self.put(key, new, EventKind::Modified))
    }

    fn delete(&mut self, target: &Target, options: &Value) -> Result<Value, Status> {
        let mut object = self.current(target)?.clone();
        for (wanted, field) in [
            ("/preconditions/uid", "/metadata/uid"),
            (
                "/preconditions/resourceVersion",
                "/metadata/resourceVersion",
            ),
        ] {
            let wanted = text(options, wanted);
            if !wanted.is_empty() && wanted != text(&object, field) {
                return Err(self.conflict(target));
            }
        }
        let key = key_of(target, target.name.as_deref().unwrap_or_default());
        let finalizer = match text(options, "/propagationPolicy") {
            "Foreground" => Some("foregroundDeletion"),
            "Orphan" => Some("orphan"),
            _ => None,
        };
        if let Some(finalizer) = finalizer {
            let finalizers = &mut object["metadata"]["finalizers"];
            match finalizers.as_array_mut() {
                Some(list) => list.push(json!(finalizer)),
                None => *finalizers = json!([finalizer]),
            }
        }
        let bound = !text(&object, "/spec/nodeName").is_empty();
        let graceful = key.1 == "pods" && bound && options["gracePeriodSeconds"] != json!(0);
        if !has_finalizers(&object) && !graceful {
            return Ok(self.remove(&key, object));
        }
        if text(&object, "/metadata/deletionTimestamp").is_empty() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if graceful {
            let asked = &options["gracePeriodSeconds"];
            let grace = asked
                .as_i64()
                .or(object["spec"]["terminationGracePeriodSeconds"].as_i64());
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace.unwrap_or(30));
        }
        Ok(self.put(key, object, EventKind::Modified))
    }

    fn delete_collection(
        &mut self,
        target: &Target,
        selection: &Options,
        options: &Value,
    ) -> Result<Value, Status> {
        let names: Vec<String> = self
            .select(target, selection)
            .map(|object| text(object, "/metadata/name").to_owned())
            .collect();
        for name in names {
            let one = Target {
                name: Some(name),
                ..target.clone()
            };
            self.delete(&one, options)?;
        }
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn put(&mut self, key: Key, mut object: Value, kind: EventKind) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(key.clone(), object.clone());
        self.publish(key, kind, object.clone());
        object
    }

    fn remove(&mut self, key: &Key, mut object: Value) -> Value {
        self.revision += 1;
        self.objects.remove(key);
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.publish(key.clone(), EventKind::Deleted, object.clone());
        object
    }

    fn publish(&mut self, key: Key, kind: EventKind, object: Value) {
        let record = Record {
            revision: self.revision,
            key,
            kind,
            object,
        };
        self.watchers.retain(|watcher| watcher.tell(&record));
        self.history.push(record);
    }
}

impl Watcher {
    /// Whether the watcher is still there.
    fn tell(&self, record: &Record) -> bool {
        let fits = in_collection(&record.key, &record.object, &self.target, &self.options);
        if !fits {
            return !self.sender.is_closed();
        }
        let object = Bytes::from(record.object.to_string());
        let kind = record.kind;
        self.sender.send(WatchEvent { kind, object }).is_ok()
    }
}

/// In the metadata, or in a namespace's spec.
fn has_finalizers(object: &Value) -> bool {
    ["metadata", "spec"].into_iter().any(|part| {
        object[part]["finalizers"]
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty())
    })
}

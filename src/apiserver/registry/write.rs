//! The write path that all writing verbs share: admission, preparation, validation,
//! compare-and-set. On a lost race the whole pass repeats with the newer object.

use std::sync::Arc;

use bytes::Bytes;
use sampan_api::field::ErrorList;
use sampan_api::{Reason, ResourceDef, Status, Verb, managed, meta};
use sampan_store::{Change, Class, Error as StoreError, Expect, Key, Mutation, Revision};
use serde_json::Value;

use super::call::Call;
use super::generate::generate_name;
pub(crate) use super::generate::new_uid;
pub use super::generate::timestamp;
use super::hooks::{AdmissionRequest, Operation, Reservation};
use super::object::{Object, splice};
use super::server::{method_not_allowed, no_such_resource};
use super::{codec, metadata};

/// Names tried for `generateName` before giving up.
const NAMES: usize = 8;
/// Races lost before a write gives up.
const RACES: usize = 64;

/// The largest object that is stored; clients know the limit, and its text, from etcd.
const OBJECT_MAX: usize = 3 << 19;
/// The deepest object that is stored: the decoder, which reads it again, stops at 128 levels.
const DEPTH_MAX: usize = 120;

pub const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// What a write left behind.
pub struct Written {
    /// The served form in the storage version.
    pub bytes: Bytes,
    pub created: bool,
}

/// What an update makes of the current object.
pub trait Source: Send {
    /// The new object in the storage version; `None` as argument where there is none yet.
    fn make(&mut self, call: &mut Call, old: Option<&Value>) -> Result<Value, Status>;

    /// An absent object is created.
    fn creates(&self) -> bool;

    /// `managedFields` are the source's own business.
    fn tracks_fields(&self) -> bool {
        false
    }
}

impl Call {
    /// Stores a new object; the tree is decoded and defaulted.
    pub async fn create(&mut self, object: Value) -> Result<Written, Status> {
        let generated = meta::text(&object, &["metadata", "name"]).is_empty()
            && !meta::text(&object, &["metadata", "generateName"]).is_empty();
        let mut admitted = self.admit_new(object).await?;
        if !generated {
            return self.store_new(&mut admitted).await;
        }
        let prefix = meta::text(&admitted, &["metadata", "generateName"]).to_owned();
        let mut name = String::new();
        for _ in 0..NAMES {
            let mut attempt = admitted.clone();
            name = generate_name(&prefix);
            meta::set(&mut attempt, &["metadata", "name"], name.as_str());
            match self.store_new(&mut attempt).await {
                Err(status) if status.is(Reason::AlreadyExists) => {}
                result => return result,
            }
        }
        Err(self.no_free_name(&name))
    }

    fn no_free_name(&self, name: &str) -> Status {
        let mut status = self.already_exists(name);
        status
            .message
            .push_str(", the server was not able to generate a unique name for the object");
        if let Some(details) = &mut status.details {
            details.retry_after_seconds = 1;
        }
        status
    }

    /// Ownership and mutating admission of a new object.
    async fn admit_new(&mut self, mut object: Value) -> Result<Value, Status> {
        metadata::wipe_system_fields(&mut object);
        self.dedup_owners(&mut object, false);
        self.record_fields(&mut object, &Value::Null);
        let mut object = self.mutate(Operation::Create, object, None).await?;
        self.dedup_owners(&mut object, true);
        Ok(object)
    }

    async fn store_new(&mut self, object: &mut Value) -> Result<Written, Status> {
        let def = self.def.clone();
        let namespace = self.object_namespace().to_owned();
        metadata::match_namespace(object, &namespace)?;
        meta::set(object, &["metadata", "uid"], new_uid());
        meta::set(
            object,
            &["metadata", "creationTimestamp"],
            timestamp(self.now),
        );
        let reservation = self.reserve(object, None)?;
        def.strategy.prepare_for_create(&self.context(), object);
        codec::fill(&def, object);
        self.check_new(object)?;
        let name = meta::text(object, &["metadata", "name"]).to_owned();
        self.warnings
            .extend(def.strategy.warnings(object, &Value::Null));
        def.strategy.canonicalize(object);
        def.normalise(object).map_err(Status::internal)?;
        self.validate(Operation::Create, object, None, &name)
            .await?;
        let key: Key = self.key(&name).into();
        if self.options.is_dry_run() {
            if self.bucket().get(&key).is_some() {
                return Err(self.already_exists(&name));
            }
            return Ok(Written {
                bytes: codec::render(object, 0)?,
                created: true,
            });
        }
        let class = class_of(&def, object, None);
        let (bytes, _) = self
            .put(&key, Expect::Absent, object, class)
            .await?
            .map_err(|error| self.create_failed(&key, &name, error))?;
        if let Some(reservation) = reservation {
            reservation.keep();
        }
        Ok(Written {
            bytes,
            created: true,
        })
    }

    fn check_new(&self, object: &Value) -> Result<(), Status> {
        let strategy = &self.def.strategy;
        let mut errors = metadata::validate(object, self.def.is_namespaced(), strategy.name_rule());
        if !self.def.is_custom() {
            errors.extend(metadata::known_finalizers(object));
        }
        errors.extend(strategy.validate(&self.context(), object));
        self.refuse(errors, object)
    }

    fn refuse(&self, errors: ErrorList, object: &Value) -> Result<(), Status> {
        let name = meta::text(object, &["metadata", "name"]);
        // The kind is named as it is stored: an event of either group is an event of the core.
        errors.into_result(self.def.group(), &self.def.kind, name)
    }

    fn create_failed(&self, key: &str, name: &str, error: StoreError) -> Status {
        match error {
            StoreError::KeyExists { .. } => {
                let mut status = self.already_exists(name);
                let dying = self.bucket().get(key).is_some_and(|object| {
                    sampan_api::Meta::from_bytes(&object.bytes).is_ok_and(|meta| meta.is_deleting())
                });
                if dying {
                    status.message = format!("object is being deleted: {}", status.message);
                }
                status
            }
            error => store_failed(error),
        }
    }

    /// Changes the object the request names, or creates it where the source may.
    pub async fn update(&mut self, source: &mut dyn Source) -> Result<Written, Status> {
        let name = self.name().to_owned();
        let key: Key = self.key(&name).into();
        for _ in 0..RACES {
            let Some(current) = self.bucket().get(&key) else {
                if !source.creates() {
                    return Err(self.not_found(&name));
                }
                match self.create_named(source, &name).await {
                    Err(status) if status.is(Reason::AlreadyExists) => continue,
                    result => return result,
                }
            };
            if let Some(written) = self.update_once(source, &key, &current).await? {
                return Ok(written);
            }
        }
        Err(self.conflict(&name, MODIFIED))
    }

    async fn create_named(
        &mut self,
        source: &mut dyn Source,
        name: &str,
    ) -> Result<Written, Status> {
        let mut object = source.make(self, None)?;
        if !meta::text(&object, &["metadata", "uid"]).is_empty() {
            let uid = meta::text(&object, &["metadata", "uid"]);
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(self.conflict(name, &why));
        }
        metadata::match_namespace(&mut object, self.object_namespace())?;
        metadata::match_name(&object, name)?;
        self.authorize("create")?;
        self.dedup_owners(&mut object, false);
        if !source.tracks_fields() {
            self.record_fields(&mut object, &Value::Null);
        }
        let mut object = self.mutate(Operation::Create, object, None).await?;
        self.dedup_owners(&mut object, true);
        self.store_new(&mut object).await
    }

    /// One pass; `None` if the race was lost.
    async fn update_once(
        &mut self,
        source: &mut dyn Source,
        key: &Key,
        current: &Arc<Object>,
    ) -> Result<Option<Written>, Status> {
        let name = self.name().to_owned();
        let old = codec::current(&self.def, &current.bytes)?;
        let mut object = source.make(self, Some(&old))?;
        metadata::match_namespace(&mut object, self.object_namespace())?;
        metadata::match_name(&object, &name)?;
        self.check_version(&mut object, &old, &name)?;
        self.dedup_owners(&mut object, false);
        if !source.tracks_fields() {
            self.record_fields(&mut object, &old);
        }
        let mut object = self.mutate(Operation::Update, object, Some(&old)).await?;
        self.dedup_owners(&mut object, true);
        let reservation = self.reserve(&mut object, Some(&old))?;
        self.prepare(&mut object, &old);
        self.check_changed(&object, &old)?;
        self.warnings
            .extend(self.def.strategy.warnings(&object, &old));
        self.def.strategy.canonicalize(&mut object);
        self.def.normalise(&mut object).map_err(Status::internal)?;
        keep_times(&mut object, &old);
        self.validate(Operation::Update, &mut object, Some(&old), &name)
            .await?;
        let written = self.finish(key, current, &object, &old).await?;
        if let (Some(_), Some(reservation)) = (&written, reservation) {
            reservation.keep();
        }
        Ok(written)
    }

    /// Writes, or deletes what only waited for its finalizers, or does nothing if nothing changed.
    async fn finish(
        &mut self,
        key: &Key,
        current: &Arc<Object>,
        object: &Value,
        old: &Value,
    ) -> Result<Option<Written>, Status> {
        let expect = Expect::At(current.revision);
        let dry = self.options.is_dry_run();
        let written = |bytes| {
            Ok(Some(Written {
                bytes,
                created: false,
            }))
        };
        if is_released(&self.def, object, old) {
            let bytes = codec::render(object, current.revision)?;
            if dry {
                return written(bytes);
            }
            return match self.remove(key, expect, old).await? {
                Ok(_) => written(bytes),
                Err(error) => lost(error).map(|()| None),
            };
        }
        if object == old {
            return written(current.bytes.clone());
        }
        if dry {
            return written(codec::render(object, current.revision)?);
        }
        let class = class_of(&self.def, object, Some(old));
        match self.put(key, expect, object, class).await? {
            Ok((bytes, _)) => written(bytes),
            Err(error) => lost(error).map(|()| None),
        }
    }

    /// The object must name the current version, or none where the kind allows that.
    fn check_version(&self, object: &mut Value, old: &Value, name: &str) -> Result<(), Status> {
        let version = meta::text(object, &["metadata", "resourceVersion"]);
        let current = meta::text(old, &["metadata", "resourceVersion"]);
        let uid = meta::text(object, &["metadata", "uid"]);
        let own = meta::text(old, &["metadata", "uid"]);
        if !uid.is_empty() && uid != own && self.verb == sampan_api::Verb::Update {
            return Err(self.conflict(name, &format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {own}",
                self.key(name)
            )));
        }
        if version.is_empty() || version == "0" {
            if !self.def.strategy.allow_unconditional_update() {
                let mut errors = ErrorList::new();
                let path = sampan_api::Path::new("metadata");
                errors.invalid(
                    &path.child("resourceVersion"),
                    0,
                    "must be specified for an update",
                );
                return Err(errors.to_status(self.group(), &self.def.plural, name));
            }
        } else if version.parse::<u64>().is_err() {
            return Err(Status::bad_request(format!(
                "invalid resource version: {version:?}"
            )));
        } else if version != current {
            return Err(self.conflict(name, MODIFIED));
        }
        let current = current.to_owned();
        meta::set(object, &["metadata", "resourceVersion"], current);
        Ok(())
    }

    /// Not through a narrow door such as `status`. Subresources with a kind of their own (scale)
    /// change the object like any client.
    fn writes_whole_object(&self) -> bool {
        match self.def.subresource(self.subresource()) {
            Some(sub) => sub.kind.is_some(),
            None => true,
        }
    }

    /// The kind's preparation, and what an update can never change.
    fn prepare(&self, object: &mut Value, old: &Value) {
        let strategy = &self.def.strategy;
        keep(object, old, "generation");
        if self.writes_whole_object() {
            strategy.prepare_for_update(&self.context(), object, old);
        } else {
            strategy.prepare_for_status_update(&self.context(), object, old);
        }
        codec::fill(&self.def, object);
        if meta::text(object, &["metadata", "uid"]).is_empty() {
            keep(object, old, "uid");
        }
        keep(object, old, "creationTimestamp");
        if !meta::at(old, &["metadata", "deletionTimestamp"]).is_null() {
            keep(object, old, "deletionTimestamp");
        }
        if meta::at(object, &["metadata", "deletionGracePeriodSeconds"]).is_null() {
            keep(object, old, "deletionGracePeriodSeconds");
        }
        meta::remove(object, &["metadata", "selfLink"]);
    }

    fn check_changed(&self, object: &Value, old: &Value) -> Result<(), Status> {
        let strategy = &self.def.strategy;
        let times = 1 + usize::from(strategy.checks_update_twice());
        let mut errors = metadata::validate_update(object, old, times);
        if !self.def.is_custom() {
            errors.extend(metadata::known_finalizers(object));
        }
        errors.extend(if self.writes_whole_object() {
            strategy.validate_update(&self.context(), object, old)
        } else {
            strategy.validate_status_update(&self.context(), object, old)
        });
        self.refuse(errors, object)
    }

    fn reserve(
        &self,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Option<Box<dyn Reservation>>, Status> {
        if !self.subresource().is_empty() {
            return Ok(None);
        }
        self.server
            .reserve(&self.def)
            .map(|hook| hook.begin(object, old, self.options.is_dry_run()))
            .transpose()
    }

    fn dedup_owners(&mut self, object: &mut Value, after_admission: bool) {
        self.warnings
            .extend(metadata::dedup_owners(object, after_admission));
    }

    /// Who owns what after this write; fields are named as the client's version names them.
    fn record_fields(&self, object: &mut Value, old: &Value) {
        let api_version = self.version.api_version();
        let time = timestamp(self.now);
        let write = self.field_write(&api_version, &time);
        if self.version == *self.def.storage_version() {
            managed::update(object, old, &write);
            return;
        }
        let (mut new, mut before) = (object.clone(), old.clone());
        self.def.encode(&self.version, &mut new);
        if !before.is_null() {
            self.def.encode(&self.version, &mut before);
        }
        managed::update(&mut new, &before, &write);
        match meta::remove(&mut new, &["metadata", "managedFields"]) {
            Some(entries) => meta::set(object, &["metadata", "managedFields"], entries),
            None => {
                meta::remove(object, &["metadata", "managedFields"]);
            }
        }
    }

    /// This write as far as ownership of fields goes.
    pub fn field_write<'w>(&'w self, api_version: &'w str, time: &'w str) -> managed::Write<'w> {
        managed::Write {
            schema: self.def.schema(&self.version),
            manager: self.manager(),
            api_version,
            subresource: self.subresource(),
            reset: self
                .def
                .strategy
                .reset_fields(&self.def, self.subresource()),
            // What is written through the scale has no time: its entries are made for another kind.
            time: if self.subresource() == "scale" {
                ""
            } else {
                time
            },
        }
    }

    /// Mutating admission, and the kind's defaults once more.
    async fn mutate(
        &mut self,
        operation: Operation,
        object: Value,
        old: Option<&Value>,
    ) -> Result<Value, Status> {
        let name = meta::text(&object, &["metadata", "name"]).to_owned();
        let server = self.server.clone();
        let mut request = self.admission(operation, object, old, &name);
        let result = server.admission().mutate(&mut request).await;
        let AdmissionRequest {
            object: mut changed,
            warnings,
            ..
        } = request;
        self.warnings.extend(warnings);
        result?;
        codec::default(&self.def, &mut changed);
        Ok(changed)
    }

    /// Validating admission.
    pub async fn validate(
        &mut self,
        operation: Operation,
        object: &mut Value,
        old: Option<&Value>,
        name: &str,
    ) -> Result<(), Status> {
        let server = self.server.clone();
        let mut request = self.admission(operation, object.take(), old, name);
        let result = server.admission().validate(&mut request).await;
        let AdmissionRequest {
            object: same,
            warnings,
            ..
        } = request;
        *object = same;
        self.warnings.extend(warnings);
        result
    }

    /// Both phases of admission of a deletion.
    pub async fn admit_deletion(&mut self, old: &Value) -> Result<(), Status> {
        let name = meta::text(old, &["metadata", "name"]).to_owned();
        let server = self.server.clone();
        let mut request = self.admission(Operation::Delete, Value::Null, Some(old), &name);
        let mut result = server.admission().mutate(&mut request).await;
        if result.is_ok() {
            result = server.admission().validate(&mut request).await;
        }
        let warnings = std::mem::take(&mut request.warnings);
        drop(request);
        self.warnings.extend(warnings);
        result
    }

    fn admission<'r>(
        &'r self,
        operation: Operation,
        object: Value,
        old: Option<&'r Value>,
        name: &'r str,
    ) -> AdmissionRequest<'r> {
        AdmissionRequest {
            operation,
            user: &self.user,
            def: &self.def,
            version: &self.version,
            subresource: self.subresource(),
            namespace: self.object_namespace(),
            name,
            object,
            old,
            options: &self.options,
            dry_run: self.options.is_dry_run(),
            now: self.now,
            warnings: Vec::new(),
        }
    }

    /// Commits an object. The outer error is final, the inner one is the store's answer.
    pub async fn put(
        &self,
        key: &Key,
        expect: Expect,
        object: &Value,
        class: Class,
    ) -> Result<Result<(Bytes, Revision), StoreError>, Status> {
        if meta::depth(object) > DEPTH_MAX {
            return Err(Status::bad_request(format!(
                "the object is nested deeper than {DEPTH_MAX} levels"
            )));
        }
        let core = self.server.core();
        let sealed = core
            .codec
            .seal(&self.def, &self.bucket().fields(), key, object)
            .map_err(Status::internal)?;
        if sealed.value.len() > OBJECT_MAX {
            return Err(Status {
                code: 500,
                ..Status::new(Reason::Unknown, "etcdserver: request is too large")
            });
        }
        let plain = sealed.plain.clone();
        if matches!(expect, Expect::Absent) {
            self.check_still_made()?;
        }
        let mutation = Mutation {
            key: key.clone(),
            expect,
            change: Change::Put(sealed.value),
            class,
            attachment: Some(sealed.attachment),
        };
        Ok(core
            .store
            .commit(mutation)
            .await
            .map(|revision| (splice(&plain, revision), revision)))
    }

    /// A definition may have gone, or begun to, since the request came: nothing new may stay behind it.
    fn check_still_made(&self) -> Result<(), Status> {
        let Some(custom) = &self.def.custom else {
            return Ok(());
        };
        let row = self
            .server
            .core()
            .row(self.def.group(), &self.def.plural)
            .filter(|row| row.custom.as_ref().is_some_and(|now| now.uid == custom.uid))
            .ok_or_else(no_such_resource)?;
        if row.allows(Verb::Create) {
            Ok(())
        } else {
            Err(method_not_allowed())
        }
    }

    /// Deletes for good; `object` is what watches see as the last state.
    pub async fn remove(
        &self,
        key: &Key,
        expect: Expect,
        object: &Value,
    ) -> Result<Result<Revision, StoreError>, Status> {
        let last = self
            .server
            .core()
            .codec
            .plain(object)
            .map_err(Status::internal)?;
        let mutation = Mutation {
            key: key.clone(),
            expect,
            change: Change::Delete,
            class: if self.def.volatile {
                Class::Volatile
            } else {
                Class::Durable
            },
            attachment: Some(last),
        };
        let result = self.server.core().store.commit(mutation).await;
        if result.is_ok()
            && let Some(hook) = self.server.reserve(&self.def)
        {
            hook.deleted(object);
        }
        Ok(result)
    }
}

/// A lost race is no error; anything else is.
fn lost(error: StoreError) -> Result<(), Status> {
    match error {
        StoreError::RevisionMismatch { .. } | StoreError::KeyExists { .. } => Ok(()),
        error => Err(store_failed(error)),
    }
}

pub fn store_failed(error: StoreError) -> Status {
    match error {
        StoreError::Overloaded => {
            let mut status = Status::new(
                Reason::TooManyRequests,
                "the server has received too many requests and has asked us to try again later",
            );
            status.details = Some(Box::new(sampan_api::status::Details {
                retry_after_seconds: 1,
                ..Default::default()
            }));
            status
        }
        StoreError::Unavailable => Status::new(
            Reason::ServiceUnavailable,
            "the store is shutting down or not started",
        ),
        error => Status::internal(error),
    }
}

/// Nothing holds the object any more: deletion was asked for, the grace period is over, and the
/// last finalizer has gone with this write.
fn is_released(def: &ResourceDef, object: &Value, old: &Value) -> bool {
    let grace = meta::integer(old, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    !meta::at(old, &["metadata", "deletionTimestamp"]).is_null()
        && grace == 0
        && metadata::finalizers(object).is_empty()
        && !def.strategy.is_held(object)
}

/// What an acknowledgement of this write has to promise.
fn class_of(def: &ResourceDef, object: &Value, old: Option<&Value>) -> Class {
    if def.volatile || old.is_some_and(|old| def.strategy.is_renewal(object, old)) {
        Class::Volatile
    } else {
        Class::Durable
    }
}

/// Takes a member of `metadata` from the old object.
fn keep(object: &mut Value, old: &Value, field: &str) {
    match meta::at(old, &["metadata", field]) {
        Value::Null => {
            meta::remove(object, &["metadata", field]);
        }
        value => meta::set(object, &["metadata", field], value.clone()),
    }
}

/// A write that changes nothing but times in `managedFields` changes nothing at all.
fn keep_times(object: &mut Value, old: &Value) {
    let new = meta::items(object, &["metadata", "managedFields"]);
    let before = meta::items(old, &["metadata", "managedFields"]);
    let same = new.len() == before.len()
        && new != before
        && new
            .iter()
            .zip(before)
            .all(|(a, b)| same_beside(a, b, "time"));
    if !same {
        return;
    }
    if same_beside(object, old, "metadata")
        && same_beside(
            meta::get(object, "metadata"),
            meta::get(old, "metadata"),
            "managedFields",
        )
    {
        let before = before.to_vec();
        meta::set(object, &["metadata", "managedFields"], before);
    }
}

/// Whether two objects have the same members, one of them left out.
fn same_beside(a: &Value, b: &Value, ignored: &str) -> bool {
    let members = |value: &'_ Value| {
        let map = value.as_object();
        map.map_or(0, |map| map.len() - usize::from(map.contains_key(ignored)))
    };
    members(a) == members(b)
        && meta::entries(a, &[])
            .filter(|(key, _)| *key != ignored)
            .all(|(key, value)| b.get(key) == Some(value))
}

//! DELETE: at once, after a grace period, or when the last finalizer has gone.

use std::sync::Arc;

use bytes::Bytes;
use sampan_api::field::{ErrorList, Path};
use sampan_api::strategy::Grace;
use sampan_api::{Status, meta};
use sampan_client::Body;
use sampan_store::{Class, Error as StoreError, Expect, Key};
use serde_json::{Value, json};

use super::super::call::Call;
use super::super::codec;
use super::super::metadata::{self, FOREGROUND, ORPHAN};
use super::super::object::Object;
use super::super::write::{store_failed, timestamp};
use super::create::dry_run;
use crate::request::Reply;

/// Races lost before a deletion gives up.
const RACES: usize = 64;

pub async fn run(mut call: Call) -> Result<Reply, Status> {
    let mut options = DeleteOptions::of(&mut call)?;
    call.options.dry_run.clone_from(&options.dry_run);
    if options.propagation.is_none() && options.orphan_dependents.is_none() {
        let warning = call.def.strategy.orphans_warning();
        call.warnings.extend(warning.map(str::to_owned));
    }
    let name = call.name().to_owned();
    let deleted = delete(&mut call, &name, &mut options).await?;
    let accepted = !deleted.gone && options.orphan_dependents == Some(false);
    let code = if accepted { 202 } else { 200 };
    let object = match deleted.object {
        Some(bytes) => codec::serve(&call.def, &call.version, &bytes)?,
        None => success(&call, &name, &deleted.uid),
    };
    Ok(Reply::Object {
        code,
        object,
        warnings: call.warnings.take(),
    })
}

/// The `Status` of a deletion that does not show the object.
fn success(call: &Call, name: &str, uid: &str) -> Bytes {
    let mut details = json!({"name": name, "kind": &*call.def.plural, "uid": uid});
    if !call.group().is_empty() {
        details["group"] = json!(call.group());
    }
    Bytes::from(
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
            .to_string(),
    )
}

#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub propagation: Option<String>,
    pub dry_run: Vec<String>,
}

impl DeleteOptions {
    /// From the body if there is one, else from the query.
    pub fn of(call: &mut Call) -> Result<Self, Status> {
        let body = std::mem::replace(&mut call.body, Body::None);
        let options = match body {
            Body::Object(body) => Self::of_body(&body)?,
            _ => Self {
                grace: call.options.grace_period_seconds,
                orphan_dependents: call.options.orphan_dependents,
                propagation: call.options.propagation_policy.clone(),
                dry_run: call.options.dry_run.clone(),
                ..Self::default()
            },
        };
        options.validate()?;
        Ok(options)
    }

    fn of_body(body: &Value) -> Result<Self, Status> {
        let kind = meta::text(body, &["kind"]);
        if !matches!(kind, "" | "DeleteOptions") {
            return Err(Status::bad_request(
                "decoded object cannot be converted to DeleteOptions",
            ));
        }
        let text = |path: &[&str]| meta::at(body, path).as_str().map(str::to_owned);
        Ok(Self {
            grace: meta::integer(body, &["gracePeriodSeconds"]),
            uid: text(&["preconditions", "uid"]),
            resource_version: text(&["preconditions", "resourceVersion"]),
            orphan_dependents: meta::get(body, "orphanDependents").as_bool(),
            propagation: text(&["propagationPolicy"]),
            dry_run: meta::items(body, &["dryRun"])
                .iter()
                .map(|value| value.as_str().unwrap_or_default().to_owned())
                .collect(),
        })
    }

    fn validate(&self) -> Result<(), Status> {
        let mut errors = ErrorList::new();
        let path = Path::new("propagationPolicy");
        if let Some(policy) = self.propagation.as_deref() {
            if self.orphan_dependents.is_some() {
                errors.invalid(
                    &path,
                    policy,
                    "orphanDependents and deletionPropagation cannot be both set",
                );
            }
            if !matches!(policy, "Foreground" | "Background" | "Orphan") {
                errors.not_supported(
                    &path,
                    policy,
                    &["Foreground", "Background", "Orphan", "nil"],
                );
            }
        }
        dry_run(&self.dry_run, &mut errors);
        errors.into_result("meta.k8s.io", "DeleteOptions", "")
    }

    /// The finalizers after this deletion: propagation decides on those of garbage collection.
    fn finalizers(&self, object: &Value, orphans_by_default: bool) -> Vec<String> {
        let before = metadata::finalizers(object);
        let has = |name| before.contains(&name);
        let (orphan, foreground) = match (self.orphan_dependents, self.propagation.as_deref()) {
            (Some(orphan), _) => (orphan, false),
            (None, Some("Orphan")) => (true, false),
            (None, Some("Foreground")) => (false, true),
            (None, Some(_)) => (false, false),
            (None, None) if has(ORPHAN) => (true, false),
            (None, None) if has(FOREGROUND) => (false, true),
            (None, None) => (orphans_by_default, false),
        };
        let mut finalizers: Vec<String> = before
            .into_iter()
            .filter(|name| *name != ORPHAN && *name != FOREGROUND)
            .map(str::to_owned)
            .collect();
        finalizers.extend(orphan.then(|| ORPHAN.to_owned()));
        finalizers.extend(foreground.then(|| FOREGROUND.to_owned()));
        finalizers
    }
}

/// How a deletion ended.
pub struct Deleted {
    /// The object is not there any more.
    pub gone: bool,
    pub uid: String,
    /// What to show instead of a status.
    pub object: Option<Bytes>,
}

pub async fn delete(
    call: &mut Call,
    name: &str,
    options: &mut DeleteOptions,
) -> Result<Deleted, Status> {
    let key: Key = call.key(name).into();
    for _ in 0..RACES {
        let current = call
            .bucket()
            .get(&key)
            .ok_or_else(|| call.not_found(name))?;
        if let Some(deleted) = delete_once(call, &key, &current, options).await? {
            return Ok(deleted);
        }
    }
    Err(call.conflict(name, super::super::write::MODIFIED))
}

/// What a deletion has to do with the object as it is.
enum Step {
    /// Its grace period runs already.
    Pending,
    Mark(Value),
    /// It goes; this is the last that is seen of it.
    Remove(Value),
}

async fn delete_once(
    call: &mut Call,
    key: &Key,
    current: &Arc<Object>,
    options: &mut DeleteOptions,
) -> Result<Option<Deleted>, Status> {
    let old = codec::parse(&current.bytes)?;
    check_preconditions(call, &old, options)?;
    call.admit_deletion(&old).await?;
    let uid = meta::text(&old, &["metadata", "uid"]).to_owned();
    let shows = call.def.strategy.shows_deleted();
    let done = |gone: bool, bytes: Bytes| {
        Ok(Some(Deleted {
            gone,
            uid: uid.clone(),
            object: (!gone || shows).then_some(bytes),
        }))
    };
    let dry = call.options.is_dry_run();
    match plan(call, &old, options) {
        Step::Pending => Ok(Some(Deleted {
            gone: false,
            uid: uid.clone(),
            object: shows.then(|| current.bytes.clone()),
        })),
        Step::Mark(object) if object == old => done(false, current.bytes.clone()),
        Step::Mark(object) if dry => done(false, codec::render(&object, current.revision)?),
        Step::Mark(object) => {
            let written = call
                .put(key, Expect::At(current.revision), &object, Class::Durable)
                .await?;
            match written {
                Ok((bytes, _)) => done(false, bytes),
                Err(StoreError::RevisionMismatch { .. }) => Ok(None),
                Err(error) => Err(store_failed(error)),
            }
        }
        Step::Remove(last) if dry => done(true, codec::render(&last, current.revision)?),
        Step::Remove(last) => {
            let removed = call
                .remove(key, Expect::At(current.revision), &last)
                .await?;
            match removed {
                Ok(revision) => done(true, codec::render(&last, revision)?),
                Err(StoreError::RevisionMismatch { current: None }) => {
                    done(true, codec::render(&last, current.revision)?)
                }
                Err(StoreError::RevisionMismatch { .. }) => Ok(None),
                Err(error) => Err(store_failed(error)),
            }
        }
    }
}

fn check_preconditions(call: &Call, old: &Value, options: &DeleteOptions) -> Result<(), Status> {
    let name = meta::text(old, &["metadata", "name"]);
    let uid = meta::text(old, &["metadata", "uid"]);
    let version = meta::text(old, &["metadata", "resourceVersion"]);
    let conflict = |why: String| Status::conflict(call.group(), &call.def.kind, name, &why);
    if let Some(wanted) = options.uid.as_deref()
        && wanted != uid
    {
        return Err(conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )));
    }
    if let Some(wanted) = options.resource_version.as_deref()
        && wanted != version
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        )));
    }
    Ok(())
}

/// Decides; changes nothing but a negative grace period in `options`.
fn plan(call: &Call, old: &Value, options: &mut DeleteOptions) -> Step {
    if options.grace.is_some_and(|seconds| seconds < 0) {
        options.grace = Some(1);
    }
    let mut object = old.clone();
    let graceful = match grace(call, &mut object, options) {
        Graceful::Pending => return Step::Pending,
        Graceful::No => false,
        Graceful::Yes => true,
    };
    let finalizers = options.finalizers(old, call.def.strategy.orphans_by_default());
    let pending = !finalizers.is_empty();
    set_finalizers(&mut object, finalizers);
    let held = pending || call.def.strategy.is_held(&object);
    if graceful {
        let seconds = meta::integer(&object, &["metadata", "deletionGracePeriodSeconds"]);
        if held || seconds.unwrap_or(0) > 0 {
            return Step::Mark(object);
        }
        return Step::Remove(object);
    }
    if !held {
        return Step::Remove(old.clone());
    }
    mark(call, &mut object);
    call.def.strategy.mark_deleting(&mut object);
    Step::Mark(object)
}

fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    if finalizers.is_empty() {
        meta::remove(object, &["metadata", "finalizers"]);
    } else {
        meta::set(object, &["metadata", "finalizers"], finalizers);
    }
}

/// Deletion has begun, without a grace period.
fn mark(call: &Call, object: &mut Value) {
    let now = timestamp(call.now);
    let before = meta::text(object, &["metadata", "deletionTimestamp"]).to_owned();
    if before.is_empty() {
        bump_generation(object);
    }
    if before.is_empty() || before > now {
        meta::set(object, &["metadata", "deletionTimestamp"], now);
    }
    meta::set(object, &["metadata", "deletionGracePeriodSeconds"], 0);
}

fn bump_generation(object: &mut Value) {
    if let Some(generation) = meta::integer(object, &["metadata", "generation"])
        && generation > 0
    {
        meta::set(object, &["metadata", "generation"], generation + 1);
    }
}

enum Graceful {
    No,
    Yes,
    /// The grace period that runs already is not longer.
    Pending,
}

/// Starts or shortens the grace period in `object`.
fn grace(call: &Call, object: &mut Value, options: &DeleteOptions) -> Graceful {
    let strategy = &call.def.strategy;
    let begun = meta::text(object, &["metadata", "deletionTimestamp"]).to_owned();
    let running = meta::integer(object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    if begun.is_empty() {
        let Grace::Seconds(seconds) = strategy.grace(object, options.grace) else {
            return Graceful::No;
        };
        set_grace(object, call.now, seconds);
        bump_generation(object);
        return Graceful::Yes;
    }
    if matches!(strategy.grace(object, options.grace), Grace::None) || running == 0 {
        return Graceful::No;
    }
    let Some(asked) = options.grace else {
        return Graceful::Pending;
    };
    if asked >= running {
        return Graceful::Pending;
    }
    let Ok(end) = begun.parse::<jiff::Timestamp>() else {
        return Graceful::No;
    };
    let end = end - jiff::SignedDuration::from_secs(running - asked);
    if end < call.now {
        // The shorter period is over: the least that is still graceful, or none.
        let seconds = i64::from(asked != 0);
        meta::set(
            object,
            &["metadata", "deletionTimestamp"],
            timestamp(call.now),
        );
        meta::set(object, &["metadata", "deletionGracePeriodSeconds"], seconds);
    } else {
        meta::set(object, &["metadata", "deletionTimestamp"], timestamp(end));
        meta::set(object, &["metadata", "deletionGracePeriodSeconds"], asked);
    }
    Graceful::Yes
}

fn set_grace(object: &mut Value, now: jiff::Timestamp, seconds: i64) {
    let end = now + jiff::SignedDuration::from_secs(seconds);
    meta::set(object, &["metadata", "deletionTimestamp"], timestamp(end));
    meta::set(object, &["metadata", "deletionGracePeriodSeconds"], seconds);
}

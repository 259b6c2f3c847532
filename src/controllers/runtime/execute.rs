//! Carries a plan out: in order, side by side where that is safe, and then waits until the caches
//! show what was written, so that the next decision never rests on an older state.

use std::borrow::Cow;

use bytes::Bytes;
use futures_util::future::join_all;
use sampan_api::{Meta, Reason, Status, Target};
use sampan_client::{Client, Error, ListParams, ObjectKey, Patch, Recorder};
use serde_json::Value;

use super::plan::{Action, Alive, EventNote, Form, Plan, Step};
use super::watches::Views;
use crate::json;

/// A step that failed.
pub struct Failure {
    pub step: Step,
    pub error: Error,
}

impl Failure {
    fn is_serious(&self) -> bool {
        !is_harmless(&self.error, &self.step.action)
    }
}

pub(crate) struct Executor {
    client: Client,
    shared: Client,
    recorder: Recorder,
    views: Views,
}

/// What a successful step left: where, and the object as the server answered it.
struct Written {
    target: Target,
    deleted_uid: Option<String>,
    answer: Bytes,
}

impl Executor {
    pub(crate) fn new(client: Client, shared: Client, recorder: Recorder, views: Views) -> Self {
        Self {
            client,
            shared,
            recorder,
            views,
        }
    }

    /// `on_failure` may replace the planned status. The first failure is returned.
    pub(crate) async fn execute(
        &self,
        plan: Plan,
        on_failure: impl Fn(&[Failure]) -> Option<Step>,
    ) -> Result<(), Error> {
        for note in &plan.events {
            self.record(note, "");
        }
        let mut written = Vec::new();
        let mut failures = self.run_actions(plan.actions, &mut written).await;
        let status = if failures.iter().any(Failure::is_serious) {
            on_failure(&failures).or(plan.status)
        } else {
            plan.status
        };
        if let Some(step) = status {
            failures.extend(self.run_batch(vec![step], &mut written).await);
        }
        for one in &written {
            self.wait_until_seen(one).await;
        }
        for failure in &failures {
            self.wait_after_failure(failure).await;
        }
        let serious = failures.into_iter().find(Failure::is_serious);
        serious.map_or(Ok(()), |failure| Err(failure.error))
    }

    /// Runs batch after batch until one fails seriously.
    async fn run_actions(&self, steps: Vec<Step>, written: &mut Vec<Written>) -> Vec<Failure> {
        let mut rest = steps;
        let mut created = 0;
        let mut failures = Vec::new();
        while !rest.is_empty() {
            let size = batch_size(&rest, created);
            let later = rest.split_off(size);
            created = match &rest[0].action {
                Action::Create { .. } => created + size,
                _ => 0,
            };
            let failed = self.run_batch(rest, written).await;
            let serious = failed.iter().any(Failure::is_serious);
            failures.extend(failed);
            if serious {
                break;
            }
            rest = later;
        }
        failures
    }

    async fn run_batch(&self, steps: Vec<Step>, written: &mut Vec<Written>) -> Vec<Failure> {
        let results = join_all(steps.iter().map(|step| self.act(step, written))).await;
        let mut failures = Vec::new();
        for (step, result) in steps.into_iter().zip(results) {
            match result {
                Ok(done) => {
                    if let Some(note) = &step.success {
                        self.record(note, &name_of(&done));
                    }
                    written.push(done);
                }
                Err(error) => {
                    if let Some(note) = &step.failure
                        && !is_harmless(&error, &step.action)
                    {
                        self.record(note, &error.to_string());
                    }
                    failures.push(Failure { step, error });
                }
            }
        }
        failures
    }

    /// `earlier` is what this execution has written so far.
    async fn act(&self, step: &Step, earlier: &[Written]) -> Result<Written, Error> {
        if let Some(alive) = &step.only_while {
            self.check_alive(alive).await?;
        }
        let mut deleted_uid = None;
        let answer = match &step.action {
            Action::Create { target, object } => {
                self.client.create_raw(target, object.clone()).await?
            }
            Action::Write {
                target,
                form,
                change,
            } => self.write(target, *form, change, earlier).await?,
            Action::Make {
                target,
                form,
                change,
            } => self.write(target, *form, &change.make(), earlier).await?,
            Action::Delete {
                target,
                uid,
                options,
            } => {
                deleted_uid = Some(uid.clone());
                self.client.delete_raw(target, options).await?
            }
        };
        Ok(Written {
            target: step.action.target().clone(),
            deleted_uid,
            answer,
        })
    }

    async fn check_alive(&self, alive: &Alive) -> Result<(), Error> {
        let bytes = self.client.get_raw(&alive.target).await?;
        let meta = Meta::from_bytes(&bytes).map_err(|error| Error::Malformed(error.to_string()))?;
        if meta.uid == alive.uid && !meta.is_deleting() {
            return Ok(());
        }
        let resource = &alive.target.resource;
        let name = alive.target.name.as_deref().unwrap_or_default();
        let why = "it is being deleted or was replaced";
        let status = Status::conflict(&resource.group, &resource.resource, name, why);
        Err(Error::Api(status))
    }

    async fn write(
        &self,
        target: &Target,
        form: Form,
        change: &Value,
        earlier: &[Written],
    ) -> Result<Bytes, Error> {
        match form {
            Form::Merge => {
                let patch = Patch::Merge(change.clone());
                self.client.patch_raw(target, &patch).await
            }
            Form::Strategic => {
                let patch = Patch::Strategic(change.clone());
                self.client.patch_raw(target, &patch).await
            }
            Form::MergeCurrent => {
                let current = self.current(target, earlier).await?;
                let meta = Meta::from_bytes(&current)
                    .map_err(|error| Error::Malformed(error.to_string()))?;
                let mut change = change.clone();
                change["metadata"]["resourceVersion"] = meta.resource_version.into();
                self.client.patch_raw(target, &Patch::Merge(change)).await
            }
            Form::Put => {
                let current = self.current(target, earlier).await?;
                let mut object: Value = serde_json::from_slice(&current)
                    .map_err(|error| Error::Malformed(error.to_string()))?;
                json::merge(&mut object, change);
                self.client.update_raw(target, object).await
            }
        }
    }

    /// The object as this execution left it, or as the cache has it, else as the server has it.
    async fn current(&self, target: &Target, earlier: &[Written]) -> Result<Bytes, Error> {
        let same = |written: &&Written| {
            let other = &written.target;
            other.resource == target.resource
                && other.namespace == target.namespace
                && other.name == target.name
        };
        if let Some(written) = earlier.iter().rev().find(same) {
            return Ok(written.answer.clone());
        }
        let resource = &target.resource;
        let view = self.views.get(&resource.group, &resource.resource);
        if let Some(bytes) = view.and_then(|view| view.bytes(&key_of(target))) {
            return Ok(bytes);
        }
        let whole = Target {
            subresource: None,
            ..target.clone()
        };
        self.client.get_raw(&whole).await
    }

    async fn wait_until_seen(&self, written: &Written) {
        let resource = &written.target.resource;
        let Some(view) = self.views.get(&resource.group, &resource.resource) else {
            return;
        };
        if let Some(uid) = &written.deleted_uid {
            view.wait_gone(&key_of(&written.target), uid).await;
            return;
        }
        let revision = Meta::from_bytes(&written.answer)
            .ok()
            .and_then(|meta| meta.resource_version.parse().ok());
        if let Some(revision) = revision {
            view.wait_for(revision).await;
        }
    }

    /// A conflict means that the cache is behind; no answer means that the write may have happened.
    /// Either way nothing is decided before the cache shows what the server has.
    async fn wait_after_failure(&self, failure: &Failure) {
        let behind = |reason| {
            let status = failure.error.status();
            status.is_some_and(|status| status.is(reason))
        };
        let outdated = [Reason::Conflict, Reason::NotFound, Reason::AlreadyExists]
            .into_iter()
            .any(behind);
        if !outdated && !failure.error.is_uncertain() {
            return;
        }
        if let Err(error) = self.catch_up(&failure.step.action).await {
            tracing::debug!(%error, "cannot ask for the present state");
        }
    }

    /// Waits until the cache shows the object, or for a creation the collection, as it is now.
    async fn catch_up(&self, action: &Action) -> Result<(), Error> {
        let target = action.target();
        let resource = &target.resource;
        let Some(view) = self.views.get(&resource.group, &resource.resource) else {
            return Ok(());
        };
        let collection = Target {
            name: None,
            subresource: None,
            ..target.clone()
        };
        let name = match action {
            Action::Create { object, .. } => object["metadata"]["name"].as_str(),
            Action::Write { .. } | Action::Make { .. } | Action::Delete { .. } => {
                target.name.as_deref()
            }
        };
        let params = match name {
            Some(name) => ListParams::fields(format!("metadata.name={name}")),
            None => ListParams::default(),
        };
        let list = self.shared.list_raw(&collection, &params).await?;
        let metas = list
            .items
            .iter()
            .filter_map(|item| Meta::from_bytes(item).ok());
        let revision = metas
            .filter_map(|meta| meta.resource_version.parse().ok())
            .max();
        match (revision, name) {
            (Some(revision), _) => view.wait_for(revision).await,
            (None, Some(name)) => {
                let namespace = target.namespace.clone().unwrap_or_default();
                view.wait_absent(&ObjectKey::new(namespace, name)).await;
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn record(&self, note: &EventNote, inserted: &str) {
        let message = note.message.replacen("{}", inserted, 1);
        self.recorder
            .record(note.about.clone(), note.warning, note.reason, message);
    }
}

fn key_of(target: &Target) -> ObjectKey {
    ObjectKey::new(
        target.namespace.clone().unwrap_or_default(),
        target.name.clone().unwrap_or_default(),
    )
}

fn name_of(written: &Written) -> Cow<'_, str> {
    match &written.target.name {
        Some(name) => Cow::Borrowed(name),
        None => {
            Meta::from_bytes(&written.answer).map_or(Cow::Borrowed(""), |meta| meta.name.into())
        }
    }
}

/// How many of the steps may run side by side: neighbours of the same verb and resource. Creations
/// start with one and double, so that a quota that refuses all is asked once, not a hundred times.
fn batch_size(steps: &[Step], created: usize) -> usize {
    let first = &steps[0].action;
    let alike = |action: &Action| match (first, action) {
        (Action::Create { target: a, .. }, Action::Create { target: b, .. })
        | (Action::Delete { target: a, .. }, Action::Delete { target: b, .. }) => {
            a.resource == b.resource
        }
        _ => false,
    };
    let count = 1 + steps[1..]
        .iter()
        .take_while(|step| alike(&step.action))
        .count();
    match first {
        Action::Create { .. } => count.min(created.max(1)),
        Action::Delete { .. } => count,
        Action::Write { .. } | Action::Make { .. } => 1,
    }
}

/// Failures after which there is nothing to do again.
fn is_harmless(error: &Error, action: &Action) -> bool {
    match action {
        Action::Delete { .. } => error.is_not_found(),
        Action::Create { .. } => is_namespace_terminating(error),
        Action::Write { .. } | Action::Make { .. } => error.is_not_found(),
    }
}

/// Creation was refused because the namespace is being deleted.
pub fn is_namespace_terminating(error: &Error) -> bool {
    let details = error.status().and_then(|status| status.details.as_deref());
    details.is_some_and(|details| {
        details
            .causes
            .iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
    })
}

#[cfg(test)]
mod tests;

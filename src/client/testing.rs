//! An API server in memory, for unit tests of whatever stands on a [`Transport`].
//!
//! It knows storage semantics (versions, uids, generations, finalizers, graceful deletion of pods,
//! status as a subresource, watches with replay) and nothing of any kind: no defaulting, no
//! validation, no admission.

mod store;
mod tree;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};
use futures_util::stream::{self, StreamExt};
use sampan_api::{Reason, Status, Verb};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::client::{Client, Resource, resource_of};
use crate::transport::{Error, List, Request, Transport, WatchStream};
use store::Store;

/// Cheap to clone; all copies are the same server.
#[derive(Clone, Default)]
pub struct FakeServer(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    store: Store,
    requests: Vec<String>,
    failures: Vec<(Verb, String, Error)>,
}

impl FakeServer {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writes so far, for example `create pods ns/` or `patch deployments/status ns/web`.
    pub fn writes(&self) -> Vec<String> {
        self.inner().requests.clone()
    }

    pub fn forget_writes(&self) {
        self.inner().requests.clear();
    }

    /// The next request of this verb for this plural fails; requests queue up in order.
    pub fn fail_next(&self, verb: Verb, resource: &str, error: impl Into<Error>) {
        self.inner()
            .failures
            .push((verb, resource.to_owned(), error.into()));
    }

    /// Ends all watches; clients resume from where they were.
    pub fn close_watches(&self) {
        self.inner().store.close_watches();
    }

    /// Forgets history: watches from before now are told that they are too old.
    pub fn compact(&self) {
        self.inner().store.compact();
    }

    pub fn revision(&self) -> u64 {
        self.inner().store.revision()
    }

    /// All objects of a kind, decoded.
    pub fn all<K: Resource>(&self) -> Vec<K> {
        let resource = resource_of::<K>();
        self.inner()
            .store
            .objects(&resource)
            .filter_map(|object| serde_json::from_value(object.clone()).ok())
            .collect()
    }

    /// The first injected failure that fits, else `None`.
    fn injected(&self, request: &Request) -> Option<Error> {
        let mut inner = self.inner();
        let at = inner.failures.iter().position(|(verb, resource, _)| {
            *verb == request.verb && *resource == request.target.resource.resource
        })?;
        Some(inner.failures.remove(at).2)
    }

    fn record(&self, request: &Request) {
        let target = &request.target;
        let mut line = format!("{} {}", request.verb.as_str(), target.resource.resource);
        if let Some(subresource) = &target.subresource {
            line.push('/');
            line.push_str(subresource);
        }
        let namespace = target.namespace.as_deref().unwrap_or_default();
        let name = target.name.as_deref().unwrap_or_default();
        line.push_str(&format!(" {namespace}/{name}"));
        self.inner().requests.push(line);
    }

    fn answer(&self, request: Request) -> Result<Bytes, Error> {
        if let Some(error) = self.injected(&request) {
            return Err(error);
        }
        if !request.verb.is_read_only() {
            self.record(&request);
        }
        let object = self.inner().store.handle(request)?;
        Ok(to_bytes(&object))
    }

    fn answer_list(&self, request: &Request) -> Result<List, Error> {
        if let Some(error) = self.injected(request) {
            return Err(error);
        }
        let inner = self.inner();
        let items = inner.store.select(&request.target, &request.options);
        Ok(List {
            resource_version: inner.store.revision().to_string(),
            items: items.map(to_bytes).collect(),
            ..List::default()
        })
    }

    fn answer_watch(&self, request: Request) -> Result<WatchStream, Error> {
        if let Some(error) = self.injected(&request) {
            return Err(error);
        }
        let version = request.options.resource_version.clone();
        let from = version.as_deref().unwrap_or("0").parse().unwrap_or(0);
        let (sender, receiver) = mpsc::unbounded_channel();
        self.inner()
            .store
            .watch(request.target, request.options, from, sender)?;
        let events = stream::unfold(receiver, |mut receiver| async move {
            let event = receiver.recv().await?;
            Some((Ok(event), receiver))
        });
        Ok(events.boxed())
    }
}

impl Transport for FakeServer {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Bytes, Error>> {
        ready(self.answer(request)).boxed()
    }

    fn list(&self, request: Request) -> BoxFuture<'static, Result<List, Error>> {
        ready(self.answer_list(&request)).boxed()
    }

    fn watch(&self, request: Request) -> BoxFuture<'static, Result<WatchStream, Error>> {
        ready(self.answer_watch(request)).boxed()
    }
}

fn to_bytes(object: &Value) -> Bytes {
    Bytes::from(object.to_string())
}

/// A failure to inject.
pub fn failure(reason: Reason, message: &str) -> Error {
    Error::Api(Status::new(reason, message))
}

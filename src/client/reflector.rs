//! Follows one collection: list, then watch from there, again and again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use futures_util::StreamExt;
use sampan_api::Target;
use sampan_util::{Backoff, Shutdown};
use serde::Deserialize;
use tokio::time::Instant;

use crate::client::{Client, ListParams};
use crate::transport::{Error, EventKind, WatchEvent, WatchStream};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// A watch that ends sooner than this without having brought anything counts as a failure.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// What a followed collection is poured into. Calls come one at a time, in order.
pub trait Sink: Send + Sync + 'static {
    /// The whole collection, at the start and whenever the thread was lost.
    fn replace(&self, items: Vec<Bytes>, resource_version: &str);
    /// An object was added or modified.
    fn apply(&self, object: Bytes);
    /// An object was deleted; this is its last state.
    fn delete(&self, object: Bytes);
    /// Nothing happened up to this version.
    fn bookmark(&self, _resource_version: &str) {}
}

/// Pours a collection into a sink until shutdown.
pub struct Reflector<S> {
    pub client: Client,
    pub target: Target,
    pub params: ListParams,
    pub sink: Arc<S>,
}

/// Why a watch came to its end.
enum End {
    /// The server closed it: go on from the last version seen.
    Closed,
    /// The version is too old: list again.
    Expired,
    Failed(Error),
}

impl<S: Sink> Reflector<S> {
    /// Runs until shutdown.
    pub async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.wait() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&self) {
        let mut version: Option<String> = None;
        let mut failures = 0;
        loop {
            let result = match version.take() {
                None => self.list().await.map(Some),
                Some(from) => self.watch(from).await,
            };
            match result {
                Ok(next) => {
                    failures = 0;
                    version = next;
                }
                Err((error, next)) => {
                    self.report(&error, failures);
                    version = next;
                    tokio::time::sleep(BACKOFF.delay(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    fn report(&self, error: &Error, failures: u32) {
        let resource = &self.target.resource.resource;
        if failures == 0 {
            tracing::warn!(%resource, %error, "cannot list or watch, trying again");
        } else {
            tracing::debug!(%resource, %error, failures, "still cannot list or watch");
        }
    }

    /// Fills the sink and returns the version to watch from.
    async fn list(&self) -> Result<String, (Error, Option<String>)> {
        let list = self
            .client
            .list_raw(&self.target, &self.params)
            .await
            .map_err(|error| (error, None))?;
        self.sink.replace(list.items, &list.resource_version);
        Ok(list.resource_version)
    }

    /// Follows changes; returns the version to go on from, or `None` to list again.
    async fn watch(&self, from: String) -> Result<Option<String>, (Error, Option<String>)> {
        let started = Instant::now();
        let stream = self
            .client
            .watch_raw(&self.target, &self.params, &from)
            .await;
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) if error.is_expired() => return Ok(None),
            Err(error) => return Err((error, Some(from))),
        };
        let mut version = from.clone();
        match self.consume(stream, &mut version).await {
            End::Expired => Ok(None),
            End::Closed if version == from && started.elapsed() < SHORT_WATCH => {
                let error = Error::Unreachable("the watch ended at once".to_owned());
                Err((error, Some(version)))
            }
            End::Closed => Ok(Some(version)),
            End::Failed(error) => Err((error, Some(version))),
        }
    }

    async fn consume(&self, mut stream: WatchStream, version: &mut String) -> End {
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => self.take(event, version),
                Err(error) if error.is_expired() => return End::Expired,
                Err(error) => return End::Failed(error),
            }
        }
        End::Closed
    }

    fn take(&self, event: WatchEvent, version: &mut String) {
        if let Some(seen) = version_of(&event.object) {
            *version = seen;
        }
        match event.kind {
            EventKind::Added | EventKind::Modified => self.sink.apply(event.object),
            EventKind::Deleted => self.sink.delete(event.object),
            EventKind::Bookmark => self.sink.bookmark(version),
        }
    }
}

#[derive(Deserialize)]
struct Versioned {
    metadata: VersionedMeta,
}

#[derive(Deserialize)]
struct VersionedMeta {
    #[serde(rename = "resourceVersion", default)]
    resource_version: String,
}

fn version_of(object: &[u8]) -> Option<String> {
    let Versioned { metadata } = serde_json::from_slice(object).ok()?;
    (!metadata.resource_version.is_empty()).then_some(metadata.resource_version)
}

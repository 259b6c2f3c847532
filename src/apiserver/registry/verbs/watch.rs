//! WATCH: reads the ring of a bucket at its own pace; selectors turn changes into what the
//! watcher sees of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use rand::Rng;
use sampan_api::field::{ErrorList, Path};
use sampan_api::resource::api_version;
use sampan_api::{Reason, Status};
use sampan_client::{Error, EventKind, WatchEvent};
use sampan_store::Revision;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::cache::{Bucket, Cache, Event, Snapshot, TooOld};
use super::super::call::Call;
use super::super::codec;
use super::super::filter::Filter;
use super::super::object::{Object, resplice};
use super::list::parse_revision;
use crate::request::Reply;

/// Events taken from the ring, or objects from a snapshot, at a time.
const BATCH: usize = 256;
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A watch without a timeout of its own ends after one to two times this.
const TIMEOUT: Duration = Duration::from_secs(1_800);

pub async fn run(call: Call) -> Result<Reply, Status> {
    validate(&call)?;
    let filter = Filter::of(&call)?;
    let version = call.options.resource_version.clone().unwrap_or_default();
    let position = match version.as_str() {
        "" | "0" => 0,
        text => parse_revision(text)?,
    };
    let bucket = call.bucket();
    let cache = call.server.core().cache.clone();
    let asked = call.options.send_initial_events;
    let streaming = asked == Some(true);
    if streaming && position > 0 {
        super::list::wait_for(&call, position).await?;
    }
    let initial = asked.unwrap_or(position == 0);
    let snapshot = cache.snapshot(&bucket);
    let from = if initial || position == 0 {
        snapshot.revision
    } else {
        position
    };
    let timeout = match call.options.timeout_seconds {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds),
        _ => TIMEOUT.mul_f64(rand::rng().random_range(1.0..2.0)),
    };
    let now = Instant::now();
    let bookmarks = call.options.allow_watch_bookmarks;
    let epoch = bucket.epoch();
    let done = call.def.is_custom() && !is_served(&call);
    let watch = Watch {
        epoch,
        changes: bucket.subscribe(),
        position: from,
        shown: 0,
        initial: initial.then(|| Initial {
            next: filter.prefix.clone(),
            snapshot,
            end: streaming && bookmarks,
        }),
        ready: VecDeque::new(),
        deadline: now + timeout,
        bookmark: bookmarks.then_some(now + BOOKMARK_EVERY),
        done,
        bucket,
        cache,
        filter,
        call,
    };
    Ok(Reply::Watch(Box::pin(stream::unfold(
        watch,
        |mut watch| async move {
            let item = watch.next().await?;
            Some((item, watch))
        },
    ))))
}

/// Whether the row that the request was resolved to still stands.
fn is_served(call: &Call) -> bool {
    let resource = call.def.gvr(&call.version);
    let row = call.server.core().registry.by_gvr(&resource);
    row.is_some_and(|row| Arc::ptr_eq(&row, &call.def))
}

/// The objects that were there when the watch began, still to be shown.
struct Initial {
    snapshot: Snapshot,
    /// The first key that has not been shown.
    next: String,
    /// A bookmark marks the end.
    end: bool,
}

struct Watch {
    call: Call,
    filter: Filter,
    bucket: Arc<Bucket>,
    cache: Arc<Cache>,
    changes: watch::Receiver<Revision>,
    epoch: u64,
    /// Everything up to here has been looked at.
    position: Revision,
    /// The newest revision the watcher has been told.
    shown: Revision,
    initial: Option<Initial>,
    ready: VecDeque<WatchEvent>,
    deadline: Instant,
    bookmark: Option<Instant>,
    done: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.done {
                return None;
            }
            let advanced = if self.initial.is_some() {
                self.show_initial()
            } else {
                self.show_changes()
            };
            match advanced {
                Ok(true) => tokio::task::coop::consume_budget().await,
                // The row has changed or is gone; whoever wants to goes on with a new watch.
                Ok(false) if self.bucket.epoch() != self.epoch => self.done = true,
                Ok(false) => self.pause().await,
                Err(status) => {
                    self.done = true;
                    return Some(Err(Error::Api(status)));
                }
            }
        }
    }

    /// Nothing to show: waits for a change, the time of a bookmark, or the end.
    async fn pause(&mut self) {
        let until = self
            .bookmark
            .map_or(self.deadline, |at| at.min(self.deadline));
        tokio::select! {
            changed = self.changes.changed() => self.done = changed.is_err(),
            () = tokio::time::sleep_until(until) => self.on_time(),
        }
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        self.done = now >= self.deadline;
        if let Some(at) = self.bookmark
            && (now >= at || self.done)
        {
            if self.position > self.shown {
                self.shown = self.position;
                let bookmark = self.bookmark_event(false);
                self.ready.push_back(bookmark);
            }
            self.bookmark = Some(now + BOOKMARK_EVERY);
        }
    }

    fn show_initial(&mut self) -> Result<bool, Status> {
        let Some(mut initial) = self.initial.take() else {
            return Ok(true);
        };
        let mut next = None;
        let objects = initial.snapshot.map.iter_from(&initial.next);
        let objects = objects.take_while(|object| object.key.starts_with(&self.filter.prefix));
        for (count, object) in objects.enumerate() {
            if count == BATCH {
                next = Some(object.key.to_string());
                break;
            }
            if self.filter.matches(object) {
                let bytes = self.serve(&object.bytes)?;
                self.ready.push_back(WatchEvent {
                    kind: EventKind::Added,
                    object: bytes,
                });
            }
        }
        if let Some(next) = next {
            initial.next = next;
            self.initial = Some(initial);
        } else if initial.end {
            self.shown = self.position;
            let bookmark = self.bookmark_event(true);
            self.ready.push_back(bookmark);
        }
        Ok(true)
    }

    /// False if there was nothing new.
    fn show_changes(&mut self) -> Result<bool, Status> {
        self.changes.borrow_and_update();
        // Read first: whatever is published up to here is in the ring below.
        let known = self.cache.revision();
        let mut events = Vec::new();
        self.bucket
            .events_after(self.position, BATCH, &mut events)
            .map_err(|TooOld { oldest }| too_old(self.position, oldest))?;
        let Some(last) = events.last() else {
            self.position = self.position.max(known);
            return Ok(false);
        };
        self.position = last.revision;
        for event in &events {
            if let Some(event) = self.view(event)? {
                self.ready.push_back(event);
                self.shown = self.position;
            }
        }
        Ok(true)
    }

    /// What this watcher sees of a change.
    fn view(&self, event: &Event) -> Result<Option<WatchEvent>, Status> {
        if !event.key().starts_with(&self.filter.prefix) {
            return Ok(None);
        }
        let seen = |object: &Option<Arc<Object>>| {
            object.clone().filter(|object| self.filter.matches(object))
        };
        let (kind, object) = match (seen(&event.old), seen(&event.new)) {
            (None, None) => return Ok(None),
            (None, Some(new)) => (EventKind::Added, new.bytes.clone()),
            (Some(_), Some(new)) => (EventKind::Modified, new.bytes.clone()),
            (Some(old), None) => {
                let last = event.last.clone();
                let last = last.unwrap_or_else(|| resplice(&old.bytes, event.revision));
                (EventKind::Deleted, last)
            }
        };
        Ok(Some(WatchEvent {
            kind,
            object: self.serve(&object)?,
        }))
    }

    fn serve(&self, bytes: &Bytes) -> Result<Bytes, Status> {
        codec::serve(&self.call.def, &self.call.version, bytes)
    }

    fn bookmark_event(&self, initial_end: bool) -> WatchEvent {
        let version = &self.call.version;
        let mut object = json!({
            "kind": &*self.call.def.kind,
            "apiVersion": api_version(&version.group, &version.version),
            "metadata": {"resourceVersion": self.position.to_string()},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        WatchEvent {
            kind: EventKind::Bookmark,
            object: Bytes::from(object.to_string()),
        }
    }
}

fn too_old(asked: Revision, oldest: Revision) -> Status {
    Status::new(
        Reason::Expired,
        format!("too old resource version: {asked} ({oldest})"),
    )
}

fn validate(call: &Call) -> Result<(), Status> {
    let options = &call.options;
    let mut errors = ErrorList::new();
    let path = Path::new("resourceVersionMatch");
    let matching = options
        .resource_version_match
        .as_deref()
        .unwrap_or_default();
    if options.send_initial_events.is_some() && matching != "NotOlderThan" {
        errors.forbidden(
            &path,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    if !matching.is_empty() {
        if options.send_initial_events.is_none() {
            errors.forbidden(
                &path,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        if matching != "NotOlderThan" {
            errors.not_supported(&path, matching, &["NotOlderThan"]);
        }
        let continued = options.continue_token.as_deref().unwrap_or_default();
        if !continued.is_empty() {
            errors.forbidden(
                &path,
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
    }
    errors.into_result("meta.k8s.io", "ListOptions", "")
}

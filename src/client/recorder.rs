//! Events (`core/v1`): what a component tells a person about an object.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use sampan_util::{Clock, task};
use serde_json::json;
use tokio::sync::mpsc;

use crate::client::{Client, Patch, Resource};

/// Events waiting to be written; more than this are dropped.
const WAITING: usize = 1000;
/// Differing messages of one object and reason within [`SIMILAR_INTERVAL`] before they are combined.
const SIMILAR_LIMIT: u32 = 10;
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// Events one object may cause at once, and how often one more after that.
const BURST: f64 = 25.0;
const REFILL_INTERVAL: Duration = Duration::from_secs(300);
/// Remembered events; beyond this everything is forgotten and starts anew.
const REMEMBERED: usize = 4096;

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// How many events this process has dropped because too many waited.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Records events without ever waiting; one task behind it writes them, counting repeats up in
/// place. Must be made within a tokio runtime; the task ends with the last copy.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Note>,
    clock: Clock,
}

/// One happening, before it becomes an Event.
#[derive(Debug, Clone)]
struct Note {
    about: ObjectReference,
    warning: bool,
    reason: String,
    message: String,
    at: SystemTime,
}

impl Recorder {
    /// `component` is the reporter (`deployment-controller`), `host` the node it runs on or empty.
    pub fn new(client: Client, component: &str, host: &str) -> Self {
        let (queue, notes) = mpsc::channel(WAITING);
        let writer = Writer {
            client,
            source: EventSource {
                component: Some(component.to_owned()),
                host: (!host.is_empty()).then(|| host.to_owned()),
            },
            correlator: Correlator::default(),
        };
        task::spawn("event-recorder", writer.run(notes));
        Self {
            queue,
            clock: Clock::system(),
        }
    }

    pub fn normal<K: Resource>(
        &self,
        object: &K,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.record(reference_to(object), false, reason, message);
    }

    pub fn warning<K: Resource>(
        &self,
        object: &K,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.record(reference_to(object), true, reason, message);
    }

    /// For an object at hand only by reference, or a part of one (`fieldPath`).
    pub fn record(
        &self,
        about: ObjectReference,
        warning: bool,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) {
        let note = Note {
            about,
            warning,
            reason: reason.into(),
            message: message.into(),
            at: self.clock.now(),
        };
        if self.queue.try_send(note).is_err() {
            let count = DROPPED.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_power_of_two() {
                tracing::warn!(
                    count,
                    "events are dropped: more happens than can be written"
                );
            }
        }
    }
}

/// The reference that an event about this object carries.
pub fn reference_to<K: Resource>(object: &K) -> ObjectReference {
    let metadata = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: None,
    }
}

/// What makes two events the same one happening again.
type SameKey = (String, Option<String>, bool, String, String);
/// What makes two events similar: the same but for the message.
type SimilarKey = (String, bool, String);

#[derive(Default)]
struct Correlator {
    written: HashMap<SameKey, Written>,
    similar: HashMap<SimilarKey, Similar>,
    budgets: HashMap<String, Budget>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    namespace: String,
    name: String,
    count: i32,
}

struct Similar {
    messages: std::collections::HashSet<String>,
    last: SystemTime,
}

struct Budget {
    tokens: f64,
    at: SystemTime,
}

fn since(earlier: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(earlier).unwrap_or_default()
}

impl Correlator {
    /// The note as it is to be written, or `None` if its object causes too many.
    fn admit(&mut self, mut note: Note) -> Option<(SameKey, Note)> {
        if self.written.len() > REMEMBERED || self.similar.len() > REMEMBERED {
            self.written.clear();
            self.similar.clear();
        }
        let subject = subject_of(&note.about);
        if self.is_similar_flood(&subject, &note) {
            note.message = format!("(combined from similar events): {}", note.message);
        }
        if !self.spend(&subject, note.at) {
            return None;
        }
        let field = note.about.field_path.clone();
        // Combined events are one event whatever they say.
        let message = if note.message.starts_with("(combined") {
            String::new()
        } else {
            note.message.clone()
        };
        let key = (subject, field, note.warning, note.reason.clone(), message);
        Some((key, note))
    }

    fn is_similar_flood(&mut self, subject: &str, note: &Note) -> bool {
        let key = (subject.to_owned(), note.warning, note.reason.clone());
        let similar = self.similar.entry(key).or_insert_with(|| Similar {
            messages: std::collections::HashSet::new(),
            last: note.at,
        });
        if since(similar.last, note.at) > SIMILAR_INTERVAL {
            similar.messages.clear();
        }
        similar.last = note.at;
        let limit = SIMILAR_LIMIT as usize;
        if similar.messages.len() < limit {
            similar.messages.insert(note.message.clone());
            return similar.messages.len() >= limit;
        }
        true
    }

    fn spend(&mut self, subject: &str, now: SystemTime) -> bool {
        if self.budgets.len() > REMEMBERED {
            self.budgets.clear();
        }
        let budget = self.budgets.entry(subject.to_owned()).or_insert(Budget {
            tokens: BURST,
            at: now,
        });
        let refill = since(budget.at, now).as_secs_f64() / REFILL_INTERVAL.as_secs_f64();
        budget.tokens = (budget.tokens + refill).min(BURST);
        budget.at = now;
        if budget.tokens < 1.0 {
            return false;
        }
        budget.tokens -= 1.0;
        true
    }
}

fn subject_of(about: &ObjectReference) -> String {
    let part = |value: &Option<String>| value.clone().unwrap_or_default();
    format!(
        "{}/{}/{}/{}",
        part(&about.kind),
        part(&about.namespace),
        part(&about.name),
        part(&about.uid)
    )
}

struct Writer {
    client: Client,
    source: EventSource,
    correlator: Correlator,
}

impl Writer {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        while let Some(note) = notes.recv().await {
            if let Some((key, note)) = self.correlator.admit(note) {
                self.write(key, note).await;
            }
        }
    }

    async fn write(&mut self, key: SameKey, note: Note) {
        if let Some(written) = self.correlator.written.get(&key).cloned()
            && let Some(counted) = self.count_up(written, &note).await
        {
            self.correlator.written.insert(key, counted);
            return;
        }
        let event = render(&note, &self.source);
        match self.client.create(&event).await {
            Ok(event) => {
                let written = Written {
                    namespace: event.metadata.namespace.unwrap_or_default(),
                    name: event.metadata.name.unwrap_or_default(),
                    count: 1,
                };
                self.correlator.written.insert(key, written);
            }
            Err(error) => {
                tracing::debug!(reason = note.reason, %error, "cannot record an event");
            }
        }
    }

    /// `None` if the event is gone and must be made anew.
    async fn count_up(&self, mut written: Written, note: &Note) -> Option<Written> {
        written.count += 1;
        let patch = Patch::Merge(json!({
            "count": written.count,
            "lastTimestamp": time_of(note.at),
            "message": note.message,
        }));
        let result = self
            .client
            .patch::<Event>(Some(&written.namespace), &written.name, &patch)
            .await;
        match result {
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                tracing::debug!(reason = note.reason, %error, "cannot count an event up");
                Some(written)
            }
            Ok(_) => Some(written),
        }
    }
}

fn time_of(at: SystemTime) -> Time {
    Time(Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn render(note: &Note, source: &EventSource) -> Event {
    let time = time_of(note.at);
    let namespace = note.about.namespace.clone().filter(|name| !name.is_empty());
    let subject = note.about.name.as_deref().unwrap_or_default();
    let nanos = u64::try_from(time.0.as_nanosecond()).unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{subject}.{nanos:x}")),
            namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        involved_object: note.about.clone(),
        reason: Some(note.reason.clone()),
        message: Some(note.message.clone()),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
        count: Some(1),
        first_timestamp: Some(time.clone()),
        last_timestamp: Some(time),
        reporting_component: source.component.clone(),
        reporting_instance: Some(source.host.clone().unwrap_or_default()),
        source: Some(source.clone()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn note(message: &str, at_secs: u64) -> Note {
        Note {
            about: ObjectReference {
                kind: Some("Pod".to_owned()),
                namespace: Some("ns".to_owned()),
                name: Some("web".to_owned()),
                ..ObjectReference::default()
            },
            warning: true,
            reason: "BackOff".to_owned(),
            message: message.to_owned(),
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(at_secs),
        }
    }

    #[test]
    fn repeats_share_a_key_and_many_messages_are_combined() {
        let mut correlator = Correlator::default();
        let (first, _) = correlator.admit(note("a", 0)).unwrap();
        let (again, _) = correlator.admit(note("a", 1)).unwrap();
        assert_eq!(first, again);
        for number in 0..9 {
            correlator.admit(note(&number.to_string(), 2));
        }
        let (_, combined) = correlator.admit(note("z", 3)).unwrap();
        assert_eq!(combined.message, "(combined from similar events): z");
    }

    #[test]
    fn one_object_cannot_flood() {
        let mut correlator = Correlator::default();
        let admitted = (0..100).filter(|_| correlator.admit(note("a", 0)).is_some());
        assert_eq!(admitted.count(), 25);
        assert!(correlator.admit(note("a", 300)).is_some());
    }
}

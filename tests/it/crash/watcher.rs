//! Watches that go on over timeouts, cut connections and restarts, and judge every event they are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use sampan_client::{Error, EventKind, WatchEvent};
use serde_json::Value;
use tokio::sync::watch;

use super::promises::Acknowledged;
use crate::support::rest::{Plural, Rest, revision};

/// Revisions after `from` and up to `to` were seen without interruption.
#[derive(Debug, Clone)]
pub struct Window {
    pub from: u64,
    pub to: u64,
    pub seen: BTreeSet<u64>,
}

/// What one watch has seen.
#[derive(Default)]
pub struct Seen {
    /// Name to revision, as the events tell it.
    model: BTreeMap<String, u64>,
    pub windows: Vec<Window>,
    pub events: u64,
    pub expired: u64,
    pub resumed: u64,
    pub faults: Vec<String>,
    /// In which life of the server the last list was made.
    listed_in: u64,
}

impl Seen {
    fn last(&self) -> u64 {
        self.windows.last().map_or(0, |window| window.to)
    }

    fn listed(&mut self, revision: u64, model: BTreeMap<String, u64>) {
        if revision < self.last() {
            let text = format!("a list at {revision} after {}", self.last());
            self.faults.push(text);
        }
        for (name, old) in &self.model {
            // The last renewals of a Lease are volatile: a kill may take them back.
            let durable = !name.starts_with('l');
            if durable && model.get(name).is_some_and(|new| new < old) {
                self.faults.push(format!("{name} went back from {old}"));
            }
        }
        self.model = model;
        self.windows.push(Window {
            from: revision,
            to: revision,
            seen: BTreeSet::new(),
        });
    }

    fn event(&mut self, kind: EventKind, object: &Value) {
        let revision = revision(object);
        let bookmark = kind == EventKind::Bookmark;
        let Some(window) = self.windows.last_mut() else {
            return;
        };
        if revision < window.to || (revision == window.to && !bookmark) {
            let text = format!("{kind:?} at {revision} after {}", window.to);
            self.faults.push(text);
        }
        window.to = window.to.max(revision);
        if bookmark {
            return;
        }
        window.seen.insert(revision);
        self.events += 1;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let known = match kind {
            EventKind::Deleted => self.model.remove(name),
            _ => self.model.insert(name.to_owned(), revision),
        };
        if known.is_some() != (kind != EventKind::Added) {
            self.faults
                .push(format!("{kind:?} of {name}, known before: {known:?}"));
        }
    }

    /// Acknowledged changes that fell into a window and were not shown.
    pub fn gaps(&self, acknowledged: &[Acknowledged]) -> Vec<String> {
        let missed = |window: &Window| {
            acknowledged
                .iter()
                .filter(|one| one.revision > window.from && one.revision <= window.to)
                .filter(|one| !window.seen.contains(&one.revision))
                .map(|one| format!("{one:?} missing in {}..{}", window.from, window.to))
                .collect::<Vec<_>>()
        };
        self.windows.iter().flat_map(missed).collect()
    }
}

pub struct Watcher {
    pub plural: Plural,
    pub seen: Arc<Mutex<Seen>>,
    /// The timeout that the watch asks for.
    pub seconds: Option<u64>,
}

impl Watcher {
    /// Watches for ever; `life` numbers the server's lives, 0 while it is down.
    pub async fn run(self, rest: Rest, mut life: watch::Receiver<u64>) {
        loop {
            let Ok(now) = life.wait_for(|life| *life > 0).await.map(|life| *life) else {
                return;
            };
            let result = self.watch_once(&rest, now).await;
            let Err(error) = result else { continue };
            if error.is_expired() {
                // A request that was on its way through a kill may be answered by the next life.
                let same_life = *life.borrow() == now;
                let mut seen = self.seen.lock().unwrap();
                seen.expired += 1;
                if same_life && seen.listed_in == now {
                    let text = format!("410 without a restart: {error}");
                    seen.faults.push(text);
                }
                seen.listed_in = 0;
            } else {
                // The server is gone, or the test's next life is about to be announced.
                let _changed =
                    tokio::time::timeout(std::time::Duration::from_millis(20), life.changed())
                        .await;
            }
        }
    }

    async fn watch_once(&self, rest: &Rest, life: u64) -> Result<(), Error> {
        if self.seen.lock().unwrap().listed_in == 0 {
            let list = rest.list(self.plural).await?;
            let objects = list.items.iter().map(|item| {
                let object: Value = serde_json::from_slice(item).unwrap();
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                (name, revision(&object))
            });
            let mut seen = self.seen.lock().unwrap();
            seen.listed(list.resource_version.parse().unwrap(), objects.collect());
            seen.listed_in = life;
        }
        let after = self.seen.lock().unwrap().last();
        let mut stream = rest.watch(self.plural, after, self.seconds).await?;
        self.seen.lock().unwrap().resumed += 1;
        while let Some(event) = stream.next().await {
            let WatchEvent { kind, object } = event?;
            let object: Value = serde_json::from_slice(&object).unwrap();
            self.seen.lock().unwrap().event(kind, &object);
        }
        Ok(())
    }
}

//! The writer's memory, pure: which key is at which revision, which volatile values are not on
//! disk yet, which rows nobody needs any more. Deciding happens here, doing in `writer`.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::rows::Row;
use crate::{Change, Error, Event, Expect, Key, Mutation, Revision};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Live {
    created: Revision,
    revision: Revision,
}

/// A volatile change that exists in memory only.
#[derive(Debug, Clone)]
struct Pending {
    revision: Revision,
    created: Revision,
    value: Option<Bytes>,
    /// The key's newest row on disk.
    base: Option<Revision>,
}

/// A row that is needed only to read states before `since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Garbage {
    pub(super) since: Revision,
    pub(super) row: Revision,
}

#[derive(Default)]
pub(super) struct Ledger {
    live: HashMap<Key, Live>,
    revision: Revision,
    pending: HashMap<Key, Pending>,
    pending_bytes: usize,
    garbage: VecDeque<Garbage>,
}

/// What has to be taken back if the transaction fails.
#[derive(Default)]
pub(super) struct Undo {
    replaced: Vec<(Key, Option<Live>)>,
}

impl Ledger {
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn is_live(&self, key: &str) -> bool {
        self.live.contains_key(key)
    }

    pub(super) fn keys(&self) -> usize {
        self.live.len()
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn continue_at(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// One row found on disk at start; a key's rows come in ascending order.
    pub(super) fn found(&mut self, key: &str, revision: Revision) {
        if let Some(live) = self.live.get_mut(key) {
            let obsolete = std::mem::replace(&mut live.revision, revision);
            self.garbage.push_back(Garbage {
                since: revision,
                row: obsolete,
            });
        } else {
            self.live.insert(
                key.into(),
                Live {
                    created: 0,
                    revision,
                },
            );
        }
        self.revision = self.revision.max(revision);
    }

    /// One row's content found at start; tells the key if the row is its live state.
    pub(super) fn loaded(
        &mut self,
        revision: Revision,
        key: &str,
        created: Revision,
        deleted: bool,
    ) -> Option<Key> {
        let (key, live) = self.live.get_key_value(key)?;
        if live.revision != revision {
            return None;
        }
        let key = key.clone();
        if deleted {
            self.live.remove(&key);
            self.garbage.push_back(Garbage {
                since: revision,
                row: revision,
            });
            return None;
        }
        self.live.insert(key.clone(), Live { created, revision });
        Some(key)
    }

    /// All rows were seen.
    pub(super) fn sort_garbage(&mut self) {
        self.garbage
            .make_contiguous()
            .sort_unstable_by_key(|garbage| (garbage.since, garbage.row));
    }

    /// Checks the expectation and gives the change its revision.
    pub(super) fn admit(&mut self, mutation: &Mutation, undo: &mut Undo) -> Result<Event, Error> {
        let current = self.live.get(&mutation.key).copied();
        check(mutation.expect, current)?;
        let value = match &mutation.change {
            Change::Put(value) => Some(value.clone()),
            Change::Delete if current.is_none() => {
                return Err(Error::RevisionMismatch { current: None });
            }
            Change::Delete => None,
        };
        self.revision += 1;
        let created = current.map_or(self.revision, |live| live.created);
        if value.is_some() {
            let live = Live {
                created,
                revision: self.revision,
            };
            self.live.insert(mutation.key.clone(), live);
        } else {
            self.live.remove(&mutation.key);
        }
        undo.replaced.push((mutation.key.clone(), current));
        Ok(Event {
            revision: self.revision,
            key: mutation.key.clone(),
            value,
            previous: current.map(|live| live.revision),
            created,
            attachment: mutation.attachment.clone(),
        })
    }

    /// Takes the changes back. Their revisions stay used: what failed may yet be found on disk.
    pub(super) fn undo(&mut self, undo: Undo) {
        for (key, live) in undo.replaced.into_iter().rev() {
            match live {
                Some(live) => self.live.insert(key, live),
                None => self.live.remove(&key),
            };
        }
    }

    /// Keeps a committed volatile change in memory.
    pub(super) fn defer(&mut self, event: &Event) {
        let previous = self.pending.remove(&event.key);
        let base = match &previous {
            Some(pending) => pending.base,
            None => event.previous,
        };
        if let Some(pending) = previous {
            self.pending_bytes -= pending.value.map_or(0, |value| value.len());
        }
        if event.value.is_none() && base.is_none() {
            return;
        }
        self.pending_bytes += event.value.as_ref().map_or(0, Bytes::len);
        self.pending.insert(
            event.key.clone(),
            Pending {
                revision: event.revision,
                created: event.created,
                value: event.value.clone(),
                base,
            },
        );
    }

    /// The rows that would bring everything pending to disk, in order.
    pub(super) fn pending_rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self
            .pending
            .iter()
            .map(|(key, pending)| Row {
                revision: pending.revision,
                key: key.clone(),
                created: pending.created,
                value: pending.value.clone(),
            })
            .collect();
        rows.sort_unstable_by_key(|row| row.revision);
        rows
    }

    /// Everything pending is on disk now.
    pub(super) fn pending_written(&mut self) {
        let mut written: Vec<Pending> = self.pending.drain().map(|(_, pending)| pending).collect();
        self.pending_bytes = 0;
        written.sort_unstable_by_key(|pending| pending.revision);
        for pending in written {
            self.superseded(pending.base, pending.revision, pending.value.is_none());
        }
    }

    /// The event's row is on disk now, and so was its predecessor's.
    pub(super) fn written(&mut self, event: &Event) {
        self.superseded(event.previous, event.revision, event.value.is_none());
    }

    fn superseded(&mut self, previous: Option<Revision>, revision: Revision, deleted: bool) {
        for row in previous.into_iter().chain(deleted.then_some(revision)) {
            self.garbage.push_back(Garbage {
                since: revision,
                row,
            });
        }
    }

    /// The oldest rows that states from `oldest` on do not need, at most `limit`.
    pub(super) fn removable(&self, oldest: Revision, limit: usize) -> Vec<Garbage> {
        self.garbage
            .iter()
            .take_while(|garbage| garbage.since <= oldest)
            .take(limit)
            .copied()
            .collect()
    }

    pub(super) fn removed(&mut self, count: usize) {
        self.garbage.drain(..count);
    }
}

fn check(expect: Expect, current: Option<Live>) -> Result<(), Error> {
    match (expect, current) {
        (Expect::Absent, Some(live)) => Err(Error::KeyExists {
            revision: live.revision,
        }),
        (Expect::At(revision), Some(live)) if live.revision == revision => Ok(()),
        (Expect::At(_), current) => Err(Error::RevisionMismatch {
            current: current.map(|live| live.revision),
        }),
        (Expect::Any | Expect::Absent, _) => Ok(()),
    }
}

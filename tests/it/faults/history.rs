//! What was written to a store, and which states it may therefore be found in.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sampan_store::{
    Change, Class, Error, Expect, Key, Mutation, Revision, Sink, SqliteStore, Store,
};

use super::vfs::{Op, Recorder};

/// One request; marks in the record of file operations are indices of these.
#[derive(Debug, Clone)]
pub enum Note {
    Tried {
        key: String,
        value: Option<Bytes>,
    },
    Acknowledged {
        key: String,
        value: Option<Bytes>,
        revision: Revision,
        class: Class,
    },
    Refused {
        key: String,
    },
}

pub type State = BTreeMap<String, (Revision, Bytes)>;

/// Collects what a store loads.
#[derive(Default)]
pub struct Loaded {
    pub state: Mutex<State>,
}

impl Sink for Loaded {
    fn record(&self, key: &Key, value: &[u8], _: Revision, revision: Revision) {
        let value = Bytes::copy_from_slice(value);
        let mut state = self.state.lock().unwrap();
        state.insert(key.to_string(), (revision, value));
    }
    fn loaded(&self, _: Revision) {}
    fn committed(&self, _: &[sampan_store::Event]) {}
}

pub struct Writing {
    pub store: Arc<SqliteStore>,
    pub notes: Mutex<Vec<Note>>,
    pub recorder: &'static Recorder,
}

impl Writing {
    fn note(&self, note: Note) {
        let mut notes = self.notes.lock().unwrap();
        self.recorder.mark(notes.len());
        notes.push(note);
    }

    pub async fn write(
        &self,
        key: &str,
        value: Option<Bytes>,
        class: Class,
    ) -> Result<Revision, Error> {
        self.note(Note::Tried {
            key: key.to_owned(),
            value: value.clone(),
        });
        let mutation = Mutation {
            key: key.into(),
            expect: Expect::Any,
            change: value.clone().map_or(Change::Delete, Change::Put),
            class,
            attachment: None,
        };
        let result = self.store.commit(mutation).await;
        match &result {
            Ok(revision) => self.note(Note::Acknowledged {
                key: key.to_owned(),
                value,
                revision: *revision,
                class,
            }),
            Err(Error::RevisionMismatch { .. }) => self.note(Note::Refused {
                key: key.to_owned(),
            }),
            // The disk failed: it may be found there or not.
            Err(_) => {}
        }
        result
    }
}

/// What was promised up to some moment.
#[derive(Debug, Default)]
pub struct Promise {
    durable: HashMap<String, Vec<Option<Bytes>>>,
    /// Every value that may ever be found under a key.
    possible: HashMap<String, Vec<Bytes>>,
    pub newest: Revision,
    pub acknowledged: usize,
}

impl Promise {
    /// The promises that the marks among the operations stand for.
    pub fn of(ops: &[Op], notes: &[Note]) -> Self {
        let mut promise = Self::default();
        ops.iter().for_each(|op| promise.step(op, notes));
        promise
    }

    /// Follows the operations like the disk does.
    pub fn step(&mut self, op: &Op, notes: &[Note]) {
        if let Op::Mark(mark) = op {
            self.add(&notes[*mark]);
        }
    }

    fn add(&mut self, note: &Note) {
        match note {
            Note::Tried { key, value } => {
                let states = self
                    .durable
                    .entry(key.clone())
                    .or_insert_with(|| vec![None]);
                states.push(value.clone());
                if let Some(value) = value {
                    let possible = self.possible.entry(key.clone()).or_default();
                    possible.push(value.clone());
                }
            }
            Note::Refused { key } => {
                self.durable.get_mut(key).unwrap().pop();
            }
            Note::Acknowledged {
                key,
                value,
                revision,
                class,
            } => {
                self.newest = self.newest.max(*revision);
                if *class == Class::Durable {
                    self.acknowledged += 1;
                    self.durable.insert(key.clone(), vec![value.clone()]);
                }
            }
        }
    }

    /// What in the state breaks the promise.
    pub fn broken(&self, state: &State) -> Vec<String> {
        let lost = self.durable.iter().filter_map(|(key, states)| {
            let found = state.get(key).map(|(_, value)| value.clone());
            (!states.contains(&found)).then(|| {
                let found = found.map(|value| value.len());
                format!("{key} is lost or old: {found:?} bytes")
            })
        });
        let foreign = state.iter().filter_map(|(key, (_, value))| {
            let possible = self.possible.get(key);
            (!possible.is_some_and(|all| all.contains(value)))
                .then(|| format!("{key} was never written so"))
        });
        lost.chain(foreign).collect()
    }
}

/// The states that durable changes went through, by their newest revision.
pub fn states(notes: &[Note]) -> BTreeMap<Revision, State> {
    let mut changes: Vec<_> = notes
        .iter()
        .filter_map(|note| match note {
            Note::Acknowledged {
                key,
                value,
                revision,
                ..
            } => Some((*revision, key, value)),
            _ => None,
        })
        .collect();
    changes.sort_by_key(|(revision, ..)| *revision);
    let mut all = BTreeMap::from([(0, State::new())]);
    let mut state = State::new();
    for (revision, key, value) in changes {
        match value {
            Some(value) => state.insert(key.clone(), (revision, value.clone())),
            None => state.remove(key),
        };
        all.insert(revision, state.clone());
    }
    all
}

//! What the server has acknowledged, and what it therefore may show after a crash. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::support::rest::Plural;

pub type Id = (Plural, String);

/// One object: its last acknowledged state and the outcomes that requests without an answer may have had.
#[derive(Debug, Default, Clone)]
struct Track {
    acknowledged: Option<(u64, String)>,
    maybe: Vec<Option<String>>,
}

/// An acknowledged change, as watches must show it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acknowledged {
    pub revision: u64,
    pub name: String,
}

#[derive(Default)]
pub struct Promises {
    tracks: HashMap<Id, Track>,
    pub by_resource: HashMap<Plural, Vec<Acknowledged>>,
    /// The newest revision that anybody was ever shown.
    pub newest: u64,
    revisions: HashSet<u64>,
    pub durable: u64,
    pub volatile: u64,
    pub uncertain: u64,
    pub conflicts: u64,
}

/// What was found wrong, in words.
pub type Faults = Vec<String>;

impl Promises {
    /// A request that would bring the object to this state (`None`: gone) is about to be sent.
    pub fn sent(&mut self, id: &Id, state: Option<String>) {
        self.tracks.entry(id.clone()).or_default().maybe.push(state);
    }

    /// The server said it did it. A deletion has no revision of its own that the answer shows.
    pub fn acknowledge(&mut self, id: &Id, revision: Option<u64>, durable: bool) -> Faults {
        let mut faults = Faults::new();
        let Some(state) = self.refused(id) else {
            return vec![format!("{id:?} was acknowledged but never sent")];
        };
        match durable {
            true => self.durable += 1,
            false => self.volatile += 1,
        }
        let track = self.tracks.entry(id.clone()).or_default();
        track.acknowledged = match (state, revision) {
            (Some(state), Some(revision)) => Some((revision, state)),
            _ => None,
        };
        if let Some(revision) = revision {
            if !self.revisions.insert(revision) {
                faults.push(format!("revision {revision} was given to two changes"));
            }
            self.shown(revision);
            let name = id.1.clone();
            let all = self.by_resource.entry(id.0).or_default();
            all.push(Acknowledged { revision, name });
        }
        faults
    }

    /// The server said that it did not do it.
    pub fn refused(&mut self, id: &Id) -> Option<Option<String>> {
        self.tracks.get_mut(id).and_then(|track| track.maybe.pop())
    }

    pub fn unanswered(&mut self) {
        self.uncertain += 1;
    }

    pub fn shown(&mut self, revision: u64) {
        self.newest = self.newest.max(revision);
    }

    /// The last known revision and state.
    pub fn state(&self, id: &Id) -> Option<(u64, String)> {
        self.tracks.get(id)?.acknowledged.clone()
    }

    /// Compares what a list of this resource shows with the promises, and from now on takes it for the truth.
    /// Volatile rows may have fallen back to an earlier state, or be gone.
    pub fn check(
        &mut self,
        plural: Plural,
        found: &BTreeMap<String, (u64, String)>,
        volatile: bool,
    ) -> Faults {
        let mut faults = Faults::new();
        for ((_, name), track) in self.tracks.iter_mut().filter(|((of, _), _)| *of == plural) {
            let found = found.get(name).cloned();
            let state = found.as_ref().map(|(_, state)| state.clone());
            let kept = track.acknowledged == found;
            if !kept && !track.maybe.contains(&state) && !volatile {
                faults.push(format!(
                    "{} {name}: found {found:?}, promised {track:?}",
                    plural.name
                ));
            }
            track.acknowledged = found;
            track.maybe.clear();
        }
        faults
    }
}

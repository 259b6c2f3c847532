//! The manager's box. What waits there is bounded by the pods that there are, not by how often they change: of one
//! pod the newest word counts.

use super::Note;
use crate::pod;
use crate::relist::SeenPod;
use sampan_util::inbox::Inbox;

/// What a note is about; a newer one takes the place of the older.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Topic {
    Object(String),
    Static,
    Runtime,
    Evicted(String),
    Retired(String),
    Broken(String),
}

/// For any number of senders and the manager.
#[derive(Default)]
pub struct Notes(Inbox<Topic, Note>);

impl Notes {
    pub fn send(&self, note: Note) {
        let topic = match &note {
            Note::Applied(pod) | Note::Gone(pod) => Topic::Object(pod::uid(pod).to_owned()),
            Note::Static(_) => Topic::Static,
            Note::Runtime(_) => Topic::Runtime,
            Note::Evicted(uid, _) => Topic::Evicted(uid.clone()),
            Note::Retired(uid) => Topic::Retired(uid.clone()),
            Note::Broken(uid) => Topic::Broken(uid.clone()),
        };
        self.0.merge(topic, |waiting| merge(waiting, note));
    }

    /// The next note, as soon as there is one. Nothing is lost if the future is dropped.
    pub async fn take(&self) -> Note {
        self.0.take().await
    }

    pub fn try_take(&self) -> Option<Note> {
        self.0.try_take()
    }
}

fn merge(waiting: Option<Note>, new: Note) -> Note {
    match (waiting, new) {
        // Both tell of changes since the manager listened last.
        (Some(Note::Runtime(old)), Note::Runtime(new)) => Note::Runtime(united(old, new)),
        // Of two verdicts on a pod the first counts.
        (Some(old @ Note::Evicted(..)), Note::Evicted(..)) => old,
        (_, new) => new,
    }
}

fn united(mut all: Vec<SeenPod>, new: Vec<SeenPod>) -> Vec<SeenPod> {
    all.retain(|old| !new.iter().any(|pod| pod.uid == old.uid));
    all.extend(new);
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;

    fn seen(uid: &str, name: &str) -> SeenPod {
        SeenPod {
            uid: uid.to_owned(),
            name: name.to_owned(),
            ..SeenPod::default()
        }
    }

    #[test]
    fn a_thousand_changes_of_two_pods_are_three_notes() {
        let notes = Notes::default();
        let pod = Arc::new(crate::fixture::pod_of(
            serde_json::json!({"containers": []}),
        ));
        for round in 0..1_000 {
            notes.send(Note::Applied(Arc::clone(&pod)));
            notes.send(Note::Runtime(vec![seen("a", &round.to_string())]));
            notes.send(Note::Runtime(vec![seen("b", "")]));
        }
        notes.send(Note::Gone(pod));
        notes.send(Note::Retired("a".to_owned()));
        // The newest word on the object, in the place of the oldest.
        assert!(matches!(notes.try_take().unwrap(), Note::Gone(_)));
        let Note::Runtime(all) = notes.try_take().unwrap() else {
            panic!("not what the runtime holds");
        };
        assert_eq!(all, [seen("a", "999"), seen("b", "")]);
        assert!(matches!(notes.try_take().unwrap(), Note::Retired(_)));
        assert!(notes.try_take().is_none());
    }
}

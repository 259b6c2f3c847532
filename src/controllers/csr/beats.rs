//! Which nodes live: when the Lease of each was last renewed, by this machine's clock, so that the clocks of nodes do not
//! matter.
//!
//! What was seen outlives Lease and Node: a kubelet whose Node was deleted makes both again a moment later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use sampan_client::Change;

const NAMESPACE: &str = "kube-node-lease";
/// A kubelet renews every ten seconds: three misses in a row are no accident.
const SILENCE: Duration = Duration::from_secs(30);
/// Longer than anybody asks for; so the table does not grow with nodes that are gone.
const KEPT: Duration = Duration::from_secs(300);

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) at: Timestamp,
    /// It was seen to come. What the first look at a Lease finds may be old.
    pub(super) is_renewal: bool,
}

impl Beat {
    /// How long from now the node counts as alive if nothing more is heard of it; `None` if it does not.
    pub(super) fn left(&self, now: Timestamp) -> Option<Duration> {
        let end = self.at + SILENCE;
        // Later than now: the clock was set back, and who lives is heard again soon.
        let lives = self.at <= now && now < end;
        lives.then(|| Duration::try_from(end.duration_since(now)).unwrap_or(SILENCE))
    }
}

struct Known {
    renewed: Option<Timestamp>,
    beat: Beat,
}

/// The last sign of each node.
#[derive(Clone, Default)]
pub(super) struct Beats(Arc<Mutex<HashMap<String, Known>>>);

impl Beats {
    pub(super) fn see(&self, change: &Change<Lease>, now: Timestamp) {
        let Change::Applied { new: lease, .. } = change else {
            return;
        };
        let metadata = &lease.metadata;
        let Some(node) = metadata.name.as_deref() else {
            return;
        };
        if metadata.namespace.as_deref() != Some(NAMESPACE) {
            return;
        }
        let spec = lease.spec.as_ref();
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
        self.note(node, renewed.map(|time| time.0), now);
    }

    fn note(&self, node: &str, renewed: Option<Timestamp>, now: Timestamp) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, known| now < known.beat.at + KEPT);
        let before = table.get(node);
        if before.is_some_and(|known| known.renewed == renewed) {
            return;
        }
        let beat = Beat {
            at: now,
            is_renewal: before.is_some(),
        };
        table.insert(node.to_owned(), Known { renewed, beat });
    }

    pub(super) fn of(&self, node: &str) -> Option<Beat> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(node).map(|known| known.beat)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{at, object};
    use serde_json::json;

    fn lease(namespace: &str, renewed: &str) -> Arc<Lease> {
        Arc::new(object(json!({
            "metadata": {"name": "a", "namespace": namespace}, "spec": {"renewTime": renewed},
        })))
    }

    #[test]
    fn a_lease_that_is_renewed_is_a_sign_of_life_whatever_its_clock_says() {
        let beats = Beats::default();
        let see = |namespace: &str, renewed: &str, now: i64| {
            let new = lease(namespace, renewed);
            beats.see(&Change::Applied { old: None, new }, at(now));
        };
        see("default", "2001-01-01T00:00:00.000000Z", 1);
        assert_eq!(beats.of("a"), None, "a Lease of something else");
        see(NAMESPACE, "2001-01-01T00:00:00.000000Z", 10);
        let first = beats.of("a").unwrap();
        assert_eq!((first.at, first.is_renewal), (at(10), false));
        see(NAMESPACE, "2001-01-01T00:00:00.000000Z", 15);
        assert_eq!(beats.of("a"), Some(first), "seen again, not renewed");
        let gone = lease(NAMESPACE, "2001-01-01T00:00:00.000000Z");
        beats.see(&Change::Deleted(gone), at(18));
        assert_eq!(beats.of("a"), Some(first), "the Node was deleted");
        see(NAMESPACE, "2001-01-01T00:00:10.000000Z", 20);
        let second = beats.of("a").unwrap();
        assert_eq!((second.at, second.is_renewal), (at(20), true));
    }

    #[test]
    fn who_is_silent_for_long_does_not_count() {
        let beat = Beat {
            at: at(100),
            is_renewal: true,
        };
        assert_eq!(beat.left(at(100)), Some(SILENCE));
        assert_eq!(beat.left(at(129)), Some(Duration::from_secs(1)));
        assert_eq!(beat.left(at(130)), None);
        assert_eq!(beat.left(at(50)), None, "the clock was set back");
        let beats = Beats::default();
        beats.note("a", None, at(0));
        beats.note("b", None, at(1000));
        assert_eq!(beats.of("a"), None, "the table does not grow");
        assert!(beats.of("b").is_some());
    }
}

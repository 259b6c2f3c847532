//! Revisions: numbers, history, hashes and names of ReplicaSets.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::sets::{self, Set, Sets};
use crate::json;
use crate::owner;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const HASH_LABEL: &str = "pod-template-hash";

/// Annotations of a Deployment that its ReplicaSets do not inherit.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

/// The history annotation grows no longer than this.
const LONGEST_HISTORY: usize = 2000;
const LONGEST_NAME: usize = 253;

/// The hash of the Deployment's template, varied after each collision.
pub(super) fn template_hash(deployment: &Deployment) -> String {
    let template = json::to_value(&sets::template_of(deployment)).to_string();
    let status = deployment.status.as_ref();
    let collisions = status.and_then(|status| status.collision_count);
    hash(template.as_bytes(), collisions)
}

/// FNV-1a in letters that form no words.
pub(crate) fn hash(content: &[u8], collisions: Option<i32>) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let salt = collisions.map(i32::to_le_bytes).unwrap_or_default();
    let salt = collisions.map(|_| salt.as_slice()).unwrap_or_default();
    let mut hash: u32 = 0x811c_9dc5;
    for byte in content.iter().chain(salt) {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    let digits = hash.to_string();
    let letter = |digit: u8| char::from(LETTERS[usize::from(digit) % LETTERS.len()]);
    digits.bytes().map(letter).collect()
}

/// The name of the ReplicaSet for the present template.
pub(super) fn set_name(deployment: &Deployment) -> String {
    let hash = template_hash(deployment);
    let name = owner::name(&deployment.metadata);
    let room = LONGEST_NAME - 1 - hash.len();
    let name = name.get(..room).unwrap_or(name);
    format!("{name}-{hash}")
}

fn revision_of(set: &Set) -> i64 {
    set.annotation(REVISION)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

pub(super) fn next_revision(sets: &Sets) -> i64 {
    let old = sets.old().into_iter();
    old.map(|index| revision_of(&sets.all[index]))
        .max()
        .unwrap_or(0)
        + 1
}

/// Oldest revision first.
pub(super) fn by_revision(a: &Set, b: &Set) -> std::cmp::Ordering {
    revision_of(a)
        .cmp(&revision_of(b))
        .then_with(|| a.by_age(b))
}

/// The ReplicaSet for the present template, without pods yet.
pub(super) fn new_set(deployment: &Deployment) -> Option<Set> {
    let spec = deployment.spec.as_ref()?;
    let hash = template_hash(deployment);
    let mut template = spec.template.clone();
    let metadata = template.metadata.get_or_insert_default();
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    let terms: &mut BTreeMap<_, _> = selector.match_labels.get_or_insert_default();
    terms.insert(HASH_LABEL.to_owned(), hash);
    Some(Set::created(ReplicaSet {
        metadata: ObjectMeta {
            name: Some(set_name(deployment)),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![owner::controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }))
}

/// Gives the newest set its number and the Deployment's annotations. A set that becomes the newest
/// again remembers which numbers it had.
pub(super) fn annotate(set: &mut Set, deployment: &Deployment, next: i64) {
    let annotations = deployment.metadata.annotations.iter().flatten();
    for (key, value) in annotations.filter(|(key, _)| !NOT_COPIED.contains(&key.as_str())) {
        set.annotate(key, value.clone());
    }
    let before = set.annotation(REVISION).map(str::to_owned);
    let number = match &before {
        None => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            // Somebody else's text: not ours to overwrite.
            Err(_) => return,
        },
    };
    if number >= next {
        return;
    }
    set.annotate(REVISION, next.to_string());
    if let Some(before) = before {
        let history = set.annotation(REVISION_HISTORY).unwrap_or_default();
        if let Some(history) = longer_history(history, &before) {
            set.annotate(REVISION_HISTORY, history);
        }
    }
}

/// Appends a number, dropping the oldest ones if the text would become too long.
fn longer_history(history: &str, number: &str) -> Option<String> {
    let mut numbers: Vec<&str> = history.split(',').filter(|text| !text.is_empty()).collect();
    numbers.push(number);
    while numbers.join(",").len() > LONGEST_HISTORY && numbers.len() > 1 {
        numbers.remove(0);
    }
    let text = numbers.join(",");
    (text.len() <= LONGEST_HISTORY).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_fnv_in_safe_letters() {
        // FNV-1a of "a" is 3826002220.
        let digits = "3826002220";
        let letters = b"bcdfghjklmnpqrstvwxz2456789";
        let wanted: String = digits
            .bytes()
            .map(|digit| char::from(letters[usize::from(digit) % 27]))
            .collect();
        assert_eq!(hash(b"a", None), wanted);
        assert_ne!(hash(b"a", Some(1)), hash(b"a", None));
        assert_ne!(hash(b"a", Some(1)), hash(b"a", Some(2)));
    }

    #[test]
    fn history_forgets_the_oldest() {
        assert_eq!(longer_history("", "3").as_deref(), Some("3"));
        assert_eq!(longer_history("1,2", "3").as_deref(), Some("1,2,3"));
        let full = vec!["123456789"; 200].join(",");
        let longer = longer_history(&full, "7").unwrap_or_default();
        assert!(longer.ends_with(",7") && longer.len() <= LONGEST_HISTORY);
    }
}

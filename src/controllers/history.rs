//! ControllerRevisions: the templates that a DaemonSet or StatefulSet had.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use sampan_client::{ObjectKey, Resource};
use serde_json::{Value, json};

use crate::deployment::revision::hash;
use crate::owner;
use crate::runtime::{Action, Form};

/// What a revision keeps: a strategic patch that brings the template back.
pub(crate) fn data_of(template: Value) -> Value {
    let mut template = template;
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().is_some_and(|own| own.0 == *data)
}

/// Oldest first.
pub(crate) fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    revisions.sort_by(|a, b| {
        let time = |one: &ControllerRevision| one.metadata.creation_timestamp.clone();
        (a.revision, time(a), &a.metadata.name).cmp(&(b.revision, time(b), &b.metadata.name))
    });
}

/// The revision for the present template, and what has to be written for it.
#[derive(Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one lives at a time, on the stack"
)]
pub(crate) enum Current {
    /// It is there, perhaps with an old number.
    Known {
        revision: Arc<ControllerRevision>,
        renumber: Option<Action>,
    },
    New(Box<ControllerRevision>),
    /// Another revision has the name that the new one would get.
    Collision,
}

/// Who asks for a revision.
pub(crate) struct Request<'a, O> {
    pub(crate) owner: &'a O,
    pub(crate) data: Value,
    /// Labels beside the hash.
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) hash_label: &'a str,
    pub(crate) collisions: Option<i32>,
}

impl<O: Resource> Request<'_, O> {
    fn name(&self, hash: &str) -> String {
        let name = owner::name(self.owner.metadata());
        let room = 253 - 1 - hash.len();
        format!("{}-{hash}", name.get(..room).unwrap_or(name))
    }

    /// `revisions` are the owner's, oldest first; `namesake` finds any revision by name.
    pub(crate) fn find(
        self,
        revisions: &[Arc<ControllerRevision>],
        namesake: impl Fn(&str) -> bool,
    ) -> Current {
        let others = revisions.iter().filter(|one| !holds(one, &self.data));
        let next = others.map(|one| one.revision).max().unwrap_or(0) + 1;
        let same = revisions.iter().rev().find(|one| holds(one, &self.data));
        if let Some(revision) = same {
            let renumber = (revision.revision < next).then(|| {
                let key = ObjectKey::of(&revision.metadata);
                Action::write::<ControllerRevision>(
                    &key,
                    Form::MergeCurrent,
                    json!({"revision": next}),
                )
            });
            return Current::Known {
                revision: Arc::clone(revision),
                renumber,
            };
        }
        let hash = hash(self.data.to_string().as_bytes(), self.collisions);
        let name = self.name(&hash);
        if namesake(&name) {
            return Current::Collision;
        }
        let mut labels = self.labels;
        labels.insert(self.hash_label.to_owned(), hash);
        let metadata = self.owner.metadata();
        Current::New(Box::new(ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: metadata.namespace.clone(),
                labels: Some(labels),
                annotations: metadata.annotations.clone(),
                owner_references: Some(vec![owner::controller_reference(self.owner)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(self.data)),
            revision: next,
        }))
    }
}

/// Old revisions beyond the limit that nothing runs any more, as deletions.
pub(crate) fn truncate(
    revisions: &[Arc<ControllerRevision>],
    limit: i32,
    is_live: impl Fn(&ControllerRevision) -> bool,
) -> Vec<Action> {
    let idle: Vec<_> = revisions.iter().filter(|one| !is_live(one)).collect();
    let limit = usize::try_from(limit).unwrap_or(0);
    let surplus = idle.len().saturating_sub(limit);
    idle.into_iter()
        .take(surplus)
        .map(|revision| Action::delete(&**revision))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;
    use crate::fixtures::meta;

    fn find(data: &str, revisions: &[Arc<ControllerRevision>], taken: bool) -> Current {
        let owner = DaemonSet {
            metadata: meta("ns", "agent"),
            ..DaemonSet::default()
        };
        let request = Request {
            owner: &owner,
            data: json!(data),
            labels: BTreeMap::new(),
            hash_label: "hash",
            collisions: None,
        };
        request.find(revisions, |_| taken)
    }

    #[test]
    fn revisions_are_found_made_and_renumbered() {
        let Current::New(first) = find("a", &[], false) else {
            panic!("there is none yet");
        };
        assert_eq!(first.revision, 1);
        assert_eq!(find("a", &[], true), Current::Collision);
        let first = Arc::new(*first);
        let Current::New(second) = find("b", std::slice::from_ref(&first), false) else {
            panic!("another template");
        };
        let second = Arc::new(*second);
        let Current::Known { renumber, .. } = find("a", &[first.clone(), second.clone()], false)
        else {
            panic!("it is known");
        };
        assert!(renumber.unwrap().to_string().contains("{\"revision\":3}"));
        let gone = truncate(&[first, second], 0, |one| one.revision == 2);
        assert_eq!(gone.len(), 1);
    }
}

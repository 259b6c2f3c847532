//! Owner references: who controls an object, adoption and release.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sampan_api::Selector;
use sampan_client::{Change, ObjectKey, Resource};
use serde_json::json;

use crate::runtime::{Action, Form, Step};

/// The reference that an object controlled by `owner` carries.
pub fn controller_reference<O: Resource>(owner: &O) -> OwnerReference {
    let metadata = owner.metadata();
    OwnerReference {
        api_version: O::API_VERSION.to_owned(),
        kind: O::KIND.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let references = metadata.owner_references.as_deref().unwrap_or_default();
    references
        .iter()
        .find(|owner| owner.controller == Some(true))
}

pub fn is_controlled_by(metadata: &ObjectMeta, uid: &str) -> bool {
    controller_of(metadata).is_some_and(|owner| owner.uid == uid)
}

/// Whether a reference points at this kind, in whatever version.
pub fn refers_to<O: Resource>(reference: &OwnerReference) -> bool {
    let group = match reference.api_version.split_once('/') {
        Some((group, _)) => group,
        None => "",
    };
    reference.kind == O::KIND && group == O::GROUP
}

/// Keys of the objects of kind `O` that control, or controlled, the changed object.
pub fn controllers_of<K: Resource, O: Resource>(change: &Change<K>) -> Vec<ObjectKey> {
    let mut keys = Vec::new();
    for state in change.states() {
        let metadata = state.metadata();
        let owner = controller_of(metadata).filter(|owner| refers_to::<O>(owner));
        if let Some(owner) = owner {
            let namespace = metadata.namespace.clone().unwrap_or_default();
            let key = ObjectKey::new(namespace, owner.name.clone());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

pub fn uid(metadata: &ObjectMeta) -> &str {
    metadata.uid.as_deref().unwrap_or_default()
}

pub fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

pub fn is_deleting(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}

/// What an owner claims: its own, and what changes hands.
pub struct Claims<T> {
    /// Controlled and selected, also those just being adopted.
    pub owned: Vec<T>,
    /// Adoptions and releases to be written.
    pub steps: Vec<Step>,
}

/// Sorts candidates into what `owner` controls. Objects with the owner's reference that are no
/// longer selected are released; unowned selected ones are adopted unless the owner is deleting.
pub fn claim<O: Resource, K: Resource, T: AsRef<K>>(
    owner: &O,
    selector: &Selector,
    candidates: Vec<T>,
) -> Claims<T> {
    let owner_metadata = owner.metadata();
    let owner_uid = uid(owner_metadata);
    let deleting = is_deleting(owner_metadata);
    let mut claims = Claims {
        owned: Vec::new(),
        steps: Vec::new(),
    };
    for candidate in candidates {
        let metadata = candidate.as_ref().metadata();
        let selected = selector.matches(&metadata.labels);
        match controller_of(metadata) {
            Some(reference) if reference.uid != owner_uid => {}
            Some(_) if selected => claims.owned.push(candidate),
            Some(_) if deleting => {}
            Some(_) => claims.steps.push(release::<K>(metadata, owner_uid).into()),
            None if deleting || !selected || is_deleting(metadata) => {}
            None => {
                let step = Step::from(adopt::<O, K>(owner, metadata)).only_while(owner);
                claims.steps.push(step);
                claims.owned.push(candidate);
            }
        }
    }
    claims
}

fn adopt<O: Resource, K: Resource>(owner: &O, metadata: &ObjectMeta) -> Action {
    let change = json!({"metadata": {
        "ownerReferences": [controller_reference(owner)],
        "uid": uid(metadata),
    }});
    Action::write::<K>(&ObjectKey::of(metadata), Form::Strategic, change)
}

fn release<K: Resource>(metadata: &ObjectMeta, owner_uid: &str) -> Action {
    let change = json!({"metadata": {
        "ownerReferences": [{"$patch": "delete", "uid": owner_uid}],
        "uid": uid(metadata),
    }});
    Action::write::<K>(&ObjectKey::of(metadata), Form::Strategic, change)
}

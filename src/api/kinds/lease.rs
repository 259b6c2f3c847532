//! Leases.

use serde_json::Value;

use super::Kind;
use crate::meta::{at, get};

pub(super) const LEASE: Kind = Kind {
    creates_on_update: true,
    needs_version: true,
    is_renewal,
    ..Kind::DEFAULT
};

/// Only the time has moved; the holder is the same.
fn is_renewal(lease: &Value, old: &Value) -> bool {
    let (Some(new), Some(before)) = (get(lease, "spec").as_object(), get(old, "spec").as_object())
    else {
        return false;
    };
    let same = |key: &str| new.get(key) == before.get(key);
    new.keys()
        .chain(before.keys())
        .all(|key| key == "renewTime" || same(key))
        && [
            "labels",
            "annotations",
            "ownerReferences",
            "finalizers",
            "deletionTimestamp",
        ]
        .iter()
        .all(|key| at(lease, &["metadata", key]) == at(old, &["metadata", key]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn renewals() {
        let old = json!({"spec": {"holderIdentity": "a", "renewTime": "1"}});
        let mut new = json!({"spec": {"holderIdentity": "a", "renewTime": "2"}});
        assert!(is_renewal(&new, &old));
        new["spec"]["holderIdentity"] = json!("b");
        assert!(!is_renewal(&new, &old));
    }
}

//! The order of groups and versions.

use std::cmp::Ordering;

/// Groups of ours with the priority that upstream gives them; all others come after.
const GROUPS: &[(&str, i32)] = &[
    ("apiregistration.k8s.io", 20000),
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("apiextensions.k8s.io", 16700),
    ("admissionregistration.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("internal.apiserver.k8s.io", 16000),
    ("resource.k8s.io", 15900),
    ("storagemigration.k8s.io", 15800),
];

/// That of groups that come from CRDs.
const OTHERS: i32 = 1000;

pub fn group_priority(group: &str) -> i32 {
    GROUPS
        .iter()
        .find(|(name, _)| *name == group)
        .map_or(OTHERS, |(_, priority)| *priority)
}

/// The priority of a built-in version within its group.
pub fn version_priority(group: &str, version: &str) -> i32 {
    match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        _ => 15,
    }
}

/// Best first: stable before beta before alpha, newer before older, then whatever is no version.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// `(stability, major, minor)` of `v1`, `v1beta2` …
fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let major = rest[..digits].parse().ok()?;
    match &rest[digits..] {
        "" => Some((2, major, 0)),
        rest => {
            let (stability, minor) = match rest.strip_prefix("beta") {
                Some(minor) => (1, minor),
                None => (0, rest.strip_prefix("alpha")?),
            };
            Some((stability, major, minor.parse().ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_versions() {
        let mut versions = ["v1alpha1", "v2", "foo", "v1beta10", "v1", "v1beta2", "v10"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]
        );
    }
}

//! The order of groups and versions.

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

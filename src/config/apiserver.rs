//! Arguments of the API server under upstream's names: those that have an effect here.

/// All there are.
pub const ARGUMENTS: &[&str] = &["token-auth-file"];

/// Arguments of upstream's that are asked for elsewhere here, or that need no asking.
const ELSEWHERE: &[(&str, &str)] = &[
    ("advertise-address", "use --advertise-address"),
    ("bind-address", "use --bind-address"),
    ("secure-port", "use --https-listen-port"),
    ("service-cluster-ip-range", "use --service-cidr"),
    ("service-node-port-range", "use --service-node-port-range"),
    (
        "authorization-mode",
        "Node and RBAC authorize always; leave it out",
    ),
    (
        "encryption-provider-config",
        "Secrets are always encrypted at rest; leave it out",
    ),
    (
        "anonymous-auth",
        "anonymous requests reach the health checks, /version and /cacerts alone; leave it out",
    ),
    (
        "etcd-servers",
        "there is no etcd; the store is SQLite under --data-dir",
    ),
    (
        "allow-privileged",
        "privileged containers are allowed always; leave it out",
    ),
    ("v", "use --debug"),
];

/// What is wrong with an argument of this name.
pub fn unknown(name: &str) -> Option<String> {
    if ARGUMENTS.contains(&name) {
        return None;
    }
    let hint = ELSEWHERE.iter().find(|(known, _)| *known == name);
    let hint = hint.map(|(_, text)| format!(" ({text})"));
    Some(format!(
        "the API server has no argument {name} here{}; it knows {}",
        hint.unwrap_or_default(),
        ARGUMENTS.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn others_are_told_where_to_turn() {
        assert_eq!(unknown("token-auth-file"), None);
        assert_eq!(
            unknown("service-cluster-ip-range").unwrap(),
            "the API server has no argument service-cluster-ip-range here (use --service-cidr); it knows token-auth-file"
        );
        assert!(
            unknown("token-auth-flie")
                .unwrap()
                .ends_with("it knows token-auth-file")
        );
    }
}

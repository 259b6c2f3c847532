//! What the default roles give to whom: exact lists, so that a slip in the table is seen.

use std::collections::BTreeSet;

use bytes::Bytes;
use sampan_api::{Registry, UserInfo};

use super::policies;
use crate::auth::rbac::{GROUP, Rbac};
use crate::auth::{ChangeHandler, ObjectChange, ObjectSource};
use crate::request::{Attributes, Authorizer, Decision, ResourceAttributes};

/// A cluster that holds the default roles and bindings.
struct Defaults;

impl ObjectSource for Defaults {
    fn object(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Bytes> {
        None
    }

    fn subscribe(&self, group: &str, resource: &str, handler: ChangeHandler) {
        assert_eq!(group, GROUP);
        for policy in policies() {
            if policy.kind.plural() == resource {
                handler(&ObjectChange {
                    namespace: policy.namespace.clone(),
                    name: policy.name.clone(),
                    old: None,
                    new: Some(policy.to_object().to_string().into()),
                });
            }
        }
    }
}

const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

const PATHS: &[&str] = &[
    "/",
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/apps",
    "/apis/apps/v1",
    "/healthz",
    "/healthz/etcd",
    "/livez",
    "/livez/etcd",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/readyz/etcd",
    "/version",
    "/version/",
];

/// `verb resource` and `verb path` that the user may.
fn allowed(user: &UserInfo) -> BTreeSet<String> {
    let rbac = Rbac::follow(&Defaults);
    let registry = Registry::builtin();
    let mut found = BTreeSet::new();
    let mut ask =
        |verb: &str, resource: Option<ResourceAttributes<'_>>, path: &str, text: String| {
            let decision = rbac.authorize(&Attributes {
                user,
                verb,
                resource,
                path,
            });
            if matches!(decision, Decision::Allow(_)) {
                found.insert(text);
            }
        };
    for verb in ["get", "post", "put", "delete"] {
        for path in PATHS {
            ask(verb, None, path, format!("{verb} {path}"));
        }
    }
    for row in registry.snapshot().rows() {
        let subresources = row.subresources.iter().map(|one| one.name.as_ref());
        for subresource in std::iter::once("").chain(subresources) {
            for verb in VERBS {
                for version in &row.versions {
                    let attributes = ResourceAttributes {
                        group: &version.group,
                        version: &version.version,
                        resource: &row.plural,
                        subresource,
                        namespace: "a",
                        name: "x",
                        ..ResourceAttributes::default()
                    };
                    let text = format!("{verb} {}/{subresource}", row.plural);
                    ask(
                        verb,
                        Some(attributes),
                        "",
                        text.trim_end_matches('/').to_owned(),
                    );
                }
            }
        }
    }
    found
}

fn set(items: &[&str]) -> BTreeSet<String> {
    items.iter().map(|&item| item.to_owned()).collect()
}

const PUBLIC: &[&str] = &[
    "get /healthz",
    "get /livez",
    "get /readyz",
    "get /version",
    "get /version/",
];

#[test]
fn nobody_sees_only_health_and_version() {
    assert_eq!(allowed(&UserInfo::anonymous()), set(PUBLIC));
}

#[test]
fn somebody_without_rights_sees_discovery_and_himself() {
    let mut expected = set(PUBLIC);
    expected.extend(set(&[
        "get /api",
        "get /api/v1",
        "get /apis",
        "get /apis/apps",
        "get /apis/apps/v1",
        "get /openapi/v2",
        "get /openapi/v3",
        "create selfsubjectaccessreviews",
        "create selfsubjectrulesreviews",
        "create selfsubjectreviews",
    ]));
    assert_eq!(
        allowed(&UserInfo::authenticated("alice", &["dev"])),
        expected
    );
}

#[test]
fn joining_machines_may_ask_for_certificates() {
    let user = UserInfo::authenticated("machine", &["system:bootstrappers"]);
    let own = allowed(&user);
    for wanted in [
        "create certificatesigningrequests",
        "get certificatesigningrequests",
        "watch certificatesigningrequests",
    ] {
        assert!(own.contains(wanted), "{wanted}");
    }
    for secret in ["get secrets", "list secrets", "get nodes", "list pods"] {
        assert!(!own.contains(secret), "{secret}");
    }
}

#[test]
fn components_can_do_their_work() {
    for (user, wanted) in [
        ("system:kube-scheduler", "create pods/binding"),
        ("system:kube-proxy", "watch endpointslices"),
        (
            "system:serviceaccount:kube-system:deployment-controller",
            "create replicasets",
        ),
        (
            "system:serviceaccount:kube-system:sampan-dns",
            "watch endpointslices",
        ),
    ] {
        let user = UserInfo::authenticated(user, &[]);
        assert!(allowed(&user).contains(wanted), "{}", user.username);
    }
}

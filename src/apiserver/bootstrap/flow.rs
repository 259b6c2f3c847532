//! The default priority levels and flow schemas.

use serde_json::{Value, json};

const GROUP: &str = "flowcontrol.apiserver.k8s.io/v1";

type Level = (&'static str, i64, i64, Option<(i64, i64)>);

/// Name, shares, lendable percentage, and queues (number, hand size); without queues it rejects.
const LEVELS: &[Level] = &[
    ("catch-all", 5, 0, None),
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
];

/// One schema: name, level, precedence, what tells flows apart, subjects, rules.
struct Schema {
    name: &'static str,
    level: &'static str,
    precedence: i64,
    distinguisher: &'static str,
    subjects: Vec<Value>,
    resources: Vec<Value>,
    urls: Vec<Value>,
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "group": {"name": name}})
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn system_accounts() -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}})
}

fn everything() -> (Vec<Value>, Vec<Value>) {
    (
        vec![resources(&["*"], "*", &["*"], true)],
        vec![json!({"verbs": ["*"], "nonResourceURLs": ["*"]})],
    )
}

fn resources(verbs: &[&str], group: &str, names: &[&str], cluster: bool) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": names,
        "namespaces": ["*"]});
    if cluster {
        rule["clusterScope"] = json!(true);
    }
    rule
}

/// A schema for all that its subjects do.
fn all_of(
    name: &'static str,
    level: &'static str,
    precedence: i64,
    distinguisher: &'static str,
    subjects: Vec<Value>,
) -> Schema {
    let (resources, urls) = everything();
    Schema {
        name,
        level,
        precedence,
        distinguisher,
        subjects,
        resources,
        urls,
    }
}

const LEASES: &str = "coordination.k8s.io";

fn schemas() -> Vec<Schema> {
    let everyone = || {
        vec![
            group("system:unauthenticated"),
            group("system:authenticated"),
        ]
    };
    vec![
        all_of("exempt", "exempt", 1, "", vec![group("system:masters")]),
        all_of("catch-all", "catch-all", 10_000, "ByUser", everyone()),
        all_of(
            "system-nodes",
            "system",
            500,
            "ByUser",
            vec![group("system:nodes")],
        ),
        Schema {
            name: "system-node-high",
            level: "node-high",
            precedence: 400,
            distinguisher: "ByUser",
            subjects: vec![group("system:nodes")],
            resources: vec![
                resources(&["*"], "", &["nodes", "nodes/status"], true),
                resources(&["*"], LEASES, &["leases"], false),
            ],
            urls: Vec::new(),
        },
        Schema {
            name: "probes",
            level: "exempt",
            precedence: 2,
            distinguisher: "",
            subjects: everyone(),
            resources: Vec::new(),
            urls: vec![
                json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}),
            ],
        },
        Schema {
            name: "system-leader-election",
            level: "leader-election",
            precedence: 100,
            distinguisher: "ByUser",
            subjects: vec![
                user("system:kube-controller-manager"),
                user("system:kube-scheduler"),
                system_accounts(),
            ],
            resources: vec![resources(
                &["get", "create", "update"],
                LEASES,
                &["leases"],
                false,
            )],
            urls: Vec::new(),
        },
        all_of(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            vec![user("system:kube-controller-manager")],
        ),
        all_of(
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            vec![user("system:kube-scheduler")],
        ),
        all_of(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            vec![system_accounts()],
        ),
        all_of(
            "service-accounts",
            "workload-low",
            9000,
            "ByUser",
            vec![group("system:serviceaccounts")],
        ),
        all_of(
            "global-default",
            "global-default",
            9900,
            "ByUser",
            everyone(),
        ),
    ]
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}})
}

pub(super) fn objects() -> Vec<Value> {
    let mut objects = vec![
        json!({"apiVersion": GROUP, "kind": "PriorityLevelConfiguration",
        "metadata": metadata("exempt"),
        "spec": {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}}),
    ];
    for (name, shares, lendable, queues) in LEVELS {
        let response = match queues {
            Some((queues, hand)) => json!({"type": "Queue", "queuing": {"queues": queues,
                "handSize": hand, "queueLengthLimit": 50}}),
            None => json!({"type": "Reject"}),
        };
        objects.push(
            json!({"apiVersion": GROUP, "kind": "PriorityLevelConfiguration",
            "metadata": metadata(name),
            "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": shares,
                "lendablePercent": lendable, "limitResponse": response}}}),
        );
    }
    for schema in schemas() {
        let mut rules = json!({"subjects": schema.subjects});
        if !schema.resources.is_empty() {
            rules["resourceRules"] = json!(schema.resources);
        }
        if !schema.urls.is_empty() {
            rules["nonResourceRules"] = json!(schema.urls);
        }
        let mut spec = json!({"priorityLevelConfiguration": {"name": schema.level},
            "matchingPrecedence": schema.precedence, "rules": [rules]});
        if !schema.distinguisher.is_empty() {
            spec["distinguisherMethod"] = json!({"type": schema.distinguisher});
        }
        objects.push(json!({"apiVersion": GROUP, "kind": "FlowSchema",
            "metadata": metadata(schema.name), "spec": spec}));
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_has_its_level() {
        let objects = objects();
        let named = |kind: &str, name: &str| {
            objects
                .iter()
                .any(|one| one["kind"] == kind && one["metadata"]["name"] == name)
        };
        for schema in schemas() {
            assert!(
                named("PriorityLevelConfiguration", schema.level),
                "{}",
                schema.name
            );
        }
    }
}

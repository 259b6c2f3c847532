//! Roles, certificates, admission, priorities.

use serde_json::Value;

use super::{AGE, Item, Printer, Row, boolean, human_duration, number, printer_of, text, wide};
use crate::meta;

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";

pub(super) const KINDS: &[Row] = &[
    (RBAC, "RoleBinding", &BINDING),
    (RBAC, "ClusterRoleBinding", &BINDING),
    ("certificates.k8s.io", "CertificateSigningRequest", &REQUEST),
    (ADMISSION, "MutatingWebhookConfiguration", &WEBHOOKS),
    (ADMISSION, "ValidatingWebhookConfiguration", &WEBHOOKS),
    (ADMISSION, "ValidatingAdmissionPolicy", &VALIDATING_POLICY),
    (ADMISSION, "MutatingAdmissionPolicy", &MUTATING_POLICY),
    (
        ADMISSION,
        "ValidatingAdmissionPolicyBinding",
        &POLICY_BINDING,
    ),
    (ADMISSION, "MutatingAdmissionPolicyBinding", &POLICY_BINDING),
    ("scheduling.k8s.io", "PriorityClass", &PRIORITY_CLASS),
    (FLOW, "FlowSchema", &FLOW_SCHEMA),
    (FLOW, "PriorityLevelConfiguration", &PRIORITY_LEVEL),
];

static BINDING: Printer = printer_of(
    &[
        text("Role"),
        AGE,
        wide("Users"),
        wide("Groups"),
        wide("ServiceAccounts"),
    ],
    |item| {
        let role = |key: &str| meta::text(item.object, &["roleRef", key]);
        vec![
            format!("{}/{}", role("kind"), role("name")).into(),
            item.age(),
            subjects(item, "User"),
            subjects(item, "Group"),
            subjects(item, "ServiceAccount"),
        ]
    },
);

fn subjects(item: &Item<'_>, kind: &str) -> Value {
    let names: Vec<String> = item
        .items(&["subjects"])
        .iter()
        .filter(|subject| meta::text(subject, &["kind"]) == kind)
        .map(|subject| {
            let name = meta::text(subject, &["name"]);
            match meta::text(subject, &["namespace"]) {
                namespace if kind == "ServiceAccount" && !namespace.is_empty() => {
                    format!("{namespace}/{name}")
                }
                _ => name.to_owned(),
            }
        })
        .collect();
    names.join(", ").into()
}

static REQUEST: Printer = printer_of(
    &[
        AGE,
        text("SignerName"),
        text("Requestor"),
        text("RequestedDuration"),
        text("Condition"),
    ],
    |item| {
        let duration = meta::integer(item.object, &["spec", "expirationSeconds"])
            .map_or_else(|| "<none>".to_owned(), human_duration);
        vec![
            item.age(),
            item.text_or(&["spec", "signerName"], "<none>"),
            item.text(&["spec", "username"]),
            duration.into(),
            request_state(item).into(),
        ]
    },
);

fn request_state(item: &Item<'_>) -> String {
    let has = |kind: &str| {
        item.items(&["status", "conditions"])
            .iter()
            .any(|one| meta::text(one, &["type"]) == kind)
    };
    let mut state = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !meta::text(item.object, &["status", "certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    state
}

static WEBHOOKS: Printer = printer_of(&[number("Webhooks"), AGE], |item| {
    vec![item.count(&["webhooks"]), item.age()]
});

fn parameter_kind(item: &Item<'_>) -> Value {
    let kind = meta::at(item.object, &["spec", "paramKind"]);
    if kind.is_null() {
        return "<unset>".into();
    }
    let part = |key: &str| meta::text(kind, &[key]);
    format!("{}/{}", part("apiVersion"), part("kind")).into()
}

static VALIDATING_POLICY: Printer =
    printer_of(&[number("Validations"), text("ParamKind"), AGE], |item| {
        vec![
            item.count(&["spec", "validations"]),
            parameter_kind(item),
            item.age(),
        ]
    });

static MUTATING_POLICY: Printer =
    printer_of(&[number("Mutations"), text("ParamKind"), AGE], |item| {
        vec![
            item.count(&["spec", "mutations"]),
            parameter_kind(item),
            item.age(),
        ]
    });

static POLICY_BINDING: Printer = printer_of(&[text("PolicyName"), text("ParamRef"), AGE], |item| {
    vec![
        item.text(&["spec", "policyName"]),
        parameter(item).into(),
        item.age(),
    ]
});

fn parameter(item: &Item<'_>) -> String {
    let reference = meta::at(item.object, &["spec", "paramRef"]);
    let part = |key: &str| meta::text(reference, &[key]);
    match (part("name"), part("namespace")) {
        ("", _) => {}
        (name, "") => return format!("*/{name}"),
        (name, namespace) => return format!("{namespace}/{name}"),
    }
    let selector = meta::get(reference, "selector");
    if selector.is_null() {
        return "<unset>".to_owned();
    }
    go_selector(selector)
}

/// A label selector as Go prints the struct.
fn go_selector(selector: &Value) -> String {
    let labels: String = meta::entries(selector, &["matchLabels"])
        .map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default()))
        .collect();
    let expressions: String = meta::items(selector, &["matchExpressions"])
        .iter()
        .map(|one| {
            let values: Vec<&str> = meta::items(one, &["values"])
                .iter()
                .filter_map(Value::as_str)
                .collect();
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
                meta::text(one, &["key"]),
                meta::text(one, &["operator"]),
                values.join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

static PRIORITY_CLASS: Printer = printer_of(
    &[
        number("Value"),
        boolean("Global-Default"),
        AGE,
        text("PreemptionPolicy"),
    ],
    |item| {
        vec![
            item.number(&["value"]),
            item.boolean_or(&["globalDefault"], false),
            item.age(),
            item.text(&["preemptionPolicy"]),
        ]
    },
);

static FLOW_SCHEMA: Printer = printer_of(
    &[
        text("PriorityLevel"),
        text("MatchingPrecedence"),
        text("DistinguisherMethod"),
        AGE,
        text("MissingPL"),
    ],
    |item| {
        let dangling = item
            .items(&["status", "conditions"])
            .iter()
            .find(|one| meta::text(one, &["type"]) == "Dangling")
            .map_or("?", |one| meta::text(one, &["status"]));
        vec![
            item.text(&["spec", "priorityLevelConfiguration", "name"]),
            item.number(&["spec", "matchingPrecedence"]),
            item.text_or(&["spec", "distinguisherMethod", "type"], "<none>"),
            item.age(),
            dangling.into(),
        ]
    },
);

static PRIORITY_LEVEL: Printer = printer_of(
    &[
        text("Type"),
        text("NominalConcurrencyShares"),
        text("Queues"),
        text("HandSize"),
        text("QueueLengthLimit"),
        AGE,
    ],
    |item| {
        let limited = meta::at(item.object, &["spec", "limited"]);
        let queuing = meta::at(limited, &["limitResponse", "queuing"]);
        let value = |from: &Value, key: &str| match meta::get(from, key) {
            Value::Null => "<none>".into(),
            value => value.clone(),
        };
        vec![
            item.text(&["spec", "type"]),
            value(limited, "nominalConcurrencyShares"),
            value(queuing, "queues"),
            value(queuing, "handSize"),
            value(queuing, "queueLengthLimit"),
            item.age(),
        ]
    },
);

//! Webhooks, admission policies, and the references of CRDs and API services.

use serde_json::{Value, json};

use super::Rule;
use crate::meta::{default, default_text, get, items, text};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("admissionregistration.v1.ValidatingWebhook", webhook),
    ("admissionregistration.v1.MutatingWebhook", mutating_webhook),
    ("admissionregistration.v1.RuleWithOperations", rule),
    ("admissionregistration.v1.NamedRuleWithOperations", rule),
    (
        "admissionregistration.v1.ServiceReference",
        service_reference,
    ),
    (
        "admissionregistration.v1.ValidatingAdmissionPolicySpec",
        policy,
    ),
    (
        "admissionregistration.v1.MutatingAdmissionPolicySpec",
        policy,
    ),
    ("admissionregistration.v1.MatchResources", match_resources),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.ServiceReference",
        service_reference,
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        crd,
    ),
    (
        "kube-aggregator.pkg.apis.apiregistration.v1.ServiceReference",
        service_reference,
    ),
];

fn webhook(webhook: &mut Value) {
    default(webhook, "failurePolicy", "Fail");
    match_resources(webhook);
    default(webhook, "timeoutSeconds", 10);
}

fn mutating_webhook(hook: &mut Value) {
    webhook(hook);
    default(hook, "reinvocationPolicy", "Never");
}

fn match_resources(object: &mut Value) {
    default(object, "matchPolicy", "Equivalent");
    default(object, "namespaceSelector", json!({}));
    default(object, "objectSelector", json!({}));
}

fn rule(rule: &mut Value) {
    default(rule, "scope", "*");
}

fn service_reference(reference: &mut Value) {
    default(reference, "port", 443);
}

fn policy(spec: &mut Value) {
    default(spec, "failurePolicy", "Fail");
}

fn crd(crd: &mut Value) {
    if let Some(names) = crate::meta::at_mut(crd, &["spec", "names"]) {
        let kind = text(names, &["kind"]).to_owned();
        default_text(names, "singular", &kind.to_lowercase());
        if !kind.is_empty() {
            default_text(names, "listKind", &format!("{kind}List"));
        }
    }
    if let Some(spec) = crd.get_mut("spec") {
        default(spec, "conversion", json!({"strategy": "None"}));
    }
    let stored = items(crd, &["spec", "versions"])
        .iter()
        .find(|version| crate::meta::boolean(version, &["storage"]))
        .map(|version| get(version, "name").clone());
    if let (true, Some(name)) = (items(crd, &["status", "storedVersions"]).is_empty(), stored) {
        crate::meta::set(crd, &["status", "storedVersions"], json!([name]));
    }
}

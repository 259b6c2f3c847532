//! Reviews of access: may I, may they, and what may I.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sampan_api::field::{ErrorList, Path};
use sampan_api::meta::{self, at, entries, get, items, text};
use sampan_api::{ResourceDef, Status, UserInfo, Verb};
use serde_json::{Value, json};

use super::Plain;
use crate::auth::rbac::Rbac;
use crate::registry::hooks::Virtual;
use crate::registry::server::ApiServer;
use crate::request::{ApiRequest, Attributes, Decision, Reply, ResourceAttributes};

const GROUP: &str = "authorization.k8s.io";

pub(super) struct AccessReview;

impl Virtual for AccessReview {
    fn serves(&self) -> Vec<(&'static str, &'static str)> {
        vec![
            (GROUP, "selfsubjectaccessreviews"),
            (GROUP, "subjectaccessreviews"),
            (GROUP, "localsubjectaccessreviews"),
        ]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        Box::pin(async move {
            let kind = def.kind.clone();
            let mut plain = Plain::new(server, def, request)?.only(&[Verb::Create])?;
            let mut review = plain.body(GROUP, "v1", &kind)?;
            check(&review, &kind, plain.call.namespace())?;
            plain.admit(&mut review, None).await?;
            let user = if kind == "SelfSubjectAccessReview" {
                (*plain.call.user).clone()
            } else {
                subject(&review)
            };
            review["status"] = decide(&plain.call.server, &review, &user);
            finish(&mut review, plain.call.namespace());
            Ok(plain.reply(201, &review))
        })
    }
}

fn finish(review: &mut Value, namespace: &str) {
    if !namespace.is_empty() {
        meta::set(review, &["metadata", "namespace"], namespace);
    }
}

fn subject(review: &Value) -> UserInfo {
    let spec = get(review, "spec");
    let texts = |value: &Value| -> Vec<String> {
        items(value, &[])
            .iter()
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect()
    };
    let extra: BTreeMap<String, Vec<String>> = entries(spec, &["extra"])
        .map(|(key, value)| (key.to_lowercase(), texts(value)))
        .collect();
    UserInfo {
        username: text(spec, &["user"]).to_owned(),
        uid: text(spec, &["uid"]).to_owned(),
        groups: texts(get(spec, "groups")),
        extra,
    }
}

fn check(review: &Value, kind: &str, namespace: &str) -> Result<(), Status> {
    let mut errors = ErrorList::new();
    let spec = get(review, "spec");
    let path = Path::new("spec");
    let resource = get(spec, "resourceAttributes");
    let other = get(spec, "nonResourceAttributes");
    let metadata = get(review, "metadata");
    if kind != "LocalSubjectAccessReview" && metadata.as_object().is_some_and(|map| !map.is_empty())
    {
        errors.invalid(&Path::new("metadata"), metadata.clone(), "must be empty");
    }
    if !resource.is_null() && !other.is_null() {
        errors.invalid(
            &path.child("nonResourceAttributes"),
            other.clone(),
            "cannot be specified in combination with resourceAttributes",
        );
    }
    if resource.is_null() && other.is_null() {
        errors.invalid(
            &path.child("resourceAttributes"),
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        );
    }
    if kind != "SelfSubjectAccessReview"
        && text(spec, &["user"]).is_empty()
        && items(spec, &["groups"]).is_empty()
    {
        errors.invalid(
            &path.child("user"),
            "",
            "at least one of user or group must be specified",
        );
    }
    for key in ["fieldSelector", "labelSelector"] {
        check_selector(
            resource,
            key,
            &path.child("resourceAttributes"),
            &mut errors,
        );
    }
    if kind == "LocalSubjectAccessReview" {
        let given = text(resource, &["namespace"]);
        if !resource.is_null() && given != namespace {
            errors.invalid(
                &path.child("resourceAttributes.namespace"),
                given,
                "must match metadata.namespace",
            );
        }
        if !other.is_null() {
            errors.invalid(
                &path.child("nonResourceAttributes"),
                other.clone(),
                "disallowed on this kind of request",
            );
        }
    }
    // Upstream's answer names no kind.
    errors.into_result(GROUP, "", "")
}

/// A selector is either raw or a list of requirements.
fn check_selector(resource: &Value, key: &str, parent: &Path<'_>, errors: &mut ErrorList) {
    let selector = get(resource, key);
    if selector.is_null() {
        return;
    }
    let path = parent.child(key);
    let raw = text(selector, &["rawSelector"]);
    let requirements = items(selector, &["requirements"]);
    if !raw.is_empty() && !requirements.is_empty() {
        errors.invalid(
            &path.child("rawSelector"),
            raw,
            "may not specified at the same time as requirements",
        );
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {path} is specified, requirements or rawSelector is required");
        errors.required(&path.child("requirements"), why);
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let all = path.child("requirements");
        let own = all.index(index);
        let values = items(requirement, &["values"]);
        match text(requirement, &["operator"]) {
            "In" | "NotIn" if values.is_empty() => errors.required(
                &own.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(
                &own.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            _ => {}
        }
    }
}

/// The field selector as text, as far as authorizers look at it: equality with one value.
fn field_selector(resource: &Value) -> String {
    let selector = get(resource, "fieldSelector");
    let raw = text(selector, &["rawSelector"]);
    if !raw.is_empty() {
        return raw.to_owned();
    }
    let terms: Vec<String> = items(selector, &["requirements"])
        .iter()
        .filter_map(|one| match items(one, &["values"]) {
            [value] if text(one, &["operator"]) == "In" => {
                Some(format!("{}={}", text(one, &["key"]), value.as_str()?))
            }
            _ => None,
        })
        .collect();
    terms.join(",")
}

fn decide(server: &ApiServer, review: &Value, user: &UserInfo) -> Value {
    let resource = at(review, &["spec", "resourceAttributes"]);
    let other = at(review, &["spec", "nonResourceAttributes"]);
    let field_selector = field_selector(resource);
    let attributes = if resource.is_null() {
        Attributes {
            user,
            verb: text(other, &["verb"]),
            resource: None,
            path: text(other, &["path"]),
        }
    } else {
        Attributes {
            user,
            verb: text(resource, &["verb"]),
            path: "",
            resource: Some(ResourceAttributes {
                group: text(resource, &["group"]),
                version: text(resource, &["version"]),
                resource: text(resource, &["resource"]),
                subresource: text(resource, &["subresource"]),
                namespace: text(resource, &["namespace"]),
                name: text(resource, &["name"]),
                field_selector: &field_selector,
            }),
        }
    };
    let (allowed, denied, reason) = match server.authorizer().authorize(&attributes) {
        Decision::Allow(reason) => (true, false, reason),
        Decision::Deny(reason) => (false, true, reason),
        Decision::NoOpinion(reason) => (false, false, reason),
    };
    let mut status = json!({"allowed": allowed});
    if denied {
        status["denied"] = json!(true);
    }
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    status
}

/// What the user may do in a namespace, as rules.
pub(super) struct RulesReview(pub(super) Arc<Rbac>);

impl Virtual for RulesReview {
    fn serves(&self) -> Vec<(&'static str, &'static str)> {
        vec![(GROUP, "selfsubjectrulesreviews")]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        let rbac = self.0.clone();
        Box::pin(async move {
            let mut plain = Plain::new(server, def, request)?.only(&[Verb::Create])?;
            let mut review = plain.body(GROUP, "v1", "SelfSubjectRulesReview")?;
            let namespace = text(&review, &["spec", "namespace"]).to_owned();
            if namespace.is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            plain.admit(&mut review, None).await?;
            let (rules, errors) = rbac.rules_for(&plain.call.user, &namespace);
            let mut resource_rules = Vec::new();
            let mut other_rules = Vec::new();
            if plain.call.user.in_group("system:masters") {
                resource_rules
                    .push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
                other_rules.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
            }
            for rule in rules {
                if !rule.resources.is_empty() {
                    let mut entry = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups,
                        "resources": rule.resources});
                    if !rule.resource_names.is_empty() {
                        entry["resourceNames"] = json!(rule.resource_names);
                    }
                    resource_rules.push(entry);
                }
                if !rule.non_resource_urls.is_empty() {
                    other_rules.push(
                        json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}),
                    );
                }
            }
            review["spec"] = json!({});
            review["status"] = json!({"resourceRules": resource_rules,
                "nonResourceRules": other_rules, "incomplete": !errors.is_empty()});
            if !errors.is_empty() {
                review["status"]["evaluationError"] = json!(errors.join(", "));
            }
            Ok(plain.reply(201, &review))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_checked() {
        let good =
            json!({"spec": {"user": "u", "resourceAttributes": {"verb": "get", "namespace": "n"}}});
        assert!(check(&good, "LocalSubjectAccessReview", "n").is_ok());
        assert!(check(&good, "LocalSubjectAccessReview", "m").is_err());
        assert!(check(&json!({"spec": {}}), "SelfSubjectAccessReview", "").is_err());
    }
}

//! Creating what is missing and adding what was taken away, at start.

use futures_util::future::try_join_all;
use sampan_api::resource::{GroupVersionResource, Target};
use sampan_api::{Options, Reason, Status, Verb};
use sampan_client::{Body, Error, Request, Transport};
use serde_json::Value;

use super::policy::{Kind, Policy, policies};
use super::{AUTO_UPDATE, GROUP};
use crate::auth::rbac::Rule;
use crate::auth::rbac::escalation;

/// Brings every default role and binding into place. Roles and bindings that say that they do not
/// want it are left alone; what an administrator has added stays.
pub async fn reconcile(transport: &dyn Transport) -> Result<(), Error> {
    let policies = policies();
    // All at once, so that what is written shares commits.
    let each = policies.iter().map(|policy| async move {
        match reconcile_one(transport, policy).await {
            Ok(()) => Ok(()),
            // The namespace may not be there yet, or somebody was quicker.
            Err(Error::Api(status))
                if status.is(Reason::NotFound) || status.is(Reason::AlreadyExists) =>
            {
                tracing::debug!(name = policy.name, %status, "default policy not applied");
                Ok(())
            }
            Err(error) => Err(error),
        }
    });
    try_join_all(each).await.map(drop)
}

async fn reconcile_one(transport: &dyn Transport, policy: &Policy) -> Result<(), Error> {
    let found = transport.send(request(policy, Verb::Get, Body::None)).await;
    let existing: Value = match found {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| Error::Malformed(error.to_string()))?
        }
        Err(Error::Api(status)) if status.is(Reason::NotFound) => {
            let body = Body::Object(policy.to_object());
            transport.send(request(policy, Verb::Create, body)).await?;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Some(wanted) = merged(policy, &existing) else {
        return Ok(());
    };
    let role_changed = existing.get("roleRef") != wanted.get("roleRef");
    if role_changed {
        // A binding's role cannot be changed: the binding is made anew.
        transport
            .send(request(policy, Verb::Delete, Body::None))
            .await?;
        let body = Body::Object(policy.to_object());
        transport.send(request(policy, Verb::Create, body)).await?;
        return Ok(());
    }
    let body = Body::Object(wanted);
    match transport.send(request(policy, Verb::Update, body)).await {
        Ok(_) => Ok(()),
        Err(Error::Api(Status {
            reason: Reason::Conflict,
            ..
        })) => Ok(()),
        Err(error) => Err(error),
    }
}

fn request(policy: &Policy, verb: Verb, body: Body) -> Request {
    Request {
        verb,
        target: Target {
            resource: GroupVersionResource {
                group: GROUP.into(),
                version: "v1".into(),
                resource: policy.kind.plural().into(),
            },
            namespace: (!policy.namespace.is_empty()).then(|| policy.namespace.clone()),
            name: (verb != Verb::Create).then(|| policy.name.clone()),
            subresource: None,
        },
        options: Options::default(),
        body,
    }
}

/// The object with what is missing added; `None` if nothing is missing or it is protected.
fn merged(policy: &Policy, existing: &Value) -> Option<Value> {
    if existing["metadata"]["annotations"][AUTO_UPDATE] != "true" {
        return None;
    }
    let wanted = policy.to_object();
    let mut object = existing.clone();
    for part in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][part].as_object().into_iter().flatten() {
            object["metadata"][part][key] = value.clone();
        }
    }
    if policy.kind.is_role() {
        merge_rules(policy, &mut object);
        if policy.gathers.is_some() {
            object["aggregationRule"] = wanted["aggregationRule"].clone();
        }
    } else {
        merge_subjects(&wanted, &mut object);
        object["roleRef"] = wanted["roleRef"].clone();
    }
    (object != *existing).then_some(object)
}

fn merge_rules(policy: &Policy, object: &mut Value) {
    // The aggregation controller keeps these.
    if policy.kind == Kind::ClusterRole && policy.gathers.is_some() {
        return;
    }
    let own: Vec<Rule> = serde_json::from_value(object["rules"].clone()).unwrap_or_default();
    let missing = escalation::missing(&own, &policy.rules);
    if missing.is_empty() {
        return;
    }
    let mut all = own;
    all.extend(missing);
    object["rules"] = serde_json::json!(all);
}

fn merge_subjects(wanted: &Value, object: &mut Value) {
    let mut all = object["subjects"].as_array().cloned().unwrap_or_default();
    let before = all.len();
    for subject in wanted["subjects"].as_array().into_iter().flatten() {
        if !all.contains(subject) {
            all.push(subject.clone());
        }
    }
    if all.len() > before {
        object["subjects"] = all.into();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_what_is_missing_is_added() {
        let all = policies();
        let role = all
            .iter()
            .find(|policy| policy.name == "system:kube-scheduler" && policy.kind.is_role())
            .unwrap();
        let mut existing = role.to_object();
        assert_eq!(merged(role, &existing), None);
        existing["rules"].as_array_mut().unwrap().remove(0);
        let fixed = merged(role, &existing).unwrap();
        assert_eq!(
            fixed["rules"].as_array().unwrap().len(),
            role.rules.len() + 1,
            "one rule over two groups comes back as two"
        );
        existing["metadata"]["annotations"][AUTO_UPDATE] = "false".into();
        assert_eq!(merged(role, &existing), None);
    }
}

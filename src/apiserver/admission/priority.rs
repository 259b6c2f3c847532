//! Priority: the class of a pod becomes a number.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::{self, at, boolean, get, integer, text};
use serde_json::Value;

use super::{all, cached, forbidden, is, writes};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

const GROUP: &str = "scheduling.k8s.io";

const SYSTEM: &[&str] = &["system-node-critical", "system-cluster-critical"];

pub(super) struct Priority(pub(super) Arc<Core>);

/// What a pod gets from its class.
struct Resolved {
    name: String,
    value: i64,
    policy: String,
}

impl Admission for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, operation: Operation) -> bool {
        writes(operation) || operation == Operation::Delete
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if request.operation == Operation::Delete || !is(request, "", "pods") {
            return Ok(());
        }
        if let Some(old) = request.old {
            for key in ["priority", "preemptionPolicy"] {
                let before = at(old, &["spec", key]).clone();
                let path = ["spec", key];
                if at(&request.object, &path).is_null() && !before.is_null() {
                    meta::set(&mut request.object, &path, before);
                }
            }
            return Ok(());
        }
        let resolved = self.resolve(request)?;
        apply(request, &resolved)
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if request.operation == Operation::Delete {
            return stays(request);
        }
        if !is(request, GROUP, "priorityclasses") || !boolean(&request.object, &["globalDefault"]) {
            return Ok(());
        }
        let own = text(&request.object, &["metadata", "name"]);
        let other = self
            .global_default()
            .filter(|class| text(class, &["metadata", "name"]) != own);
        match other {
            Some(class) => {
                let name = text(&class, &["metadata", "name"]);
                Err(forbidden(
                    request,
                    &format!(
                        "PriorityClass {name} is already marked as default. Only one default can exist"
                    ),
                ))
            }
            None => Ok(()),
        }
    }
}

impl Priority {
    /// The default class; of several the one with the lowest value.
    fn global_default(&self) -> Option<Value> {
        all(&self.0, GROUP, "priorityclasses")
            .into_iter()
            .filter(|class| boolean(class, &["globalDefault"]))
            .min_by_key(|class| integer(class, &["value"]))
    }

    fn resolve(&self, request: &AdmissionRequest<'_>) -> Result<Resolved, Status> {
        let name = text(&request.object, &["spec", "priorityClassName"]);
        let class = if name.is_empty() {
            self.global_default()
        } else {
            let found = cached(&self.0, GROUP, "priorityclasses", None, name);
            Some(found.ok_or_else(|| {
                forbidden(
                    request,
                    &format!("no PriorityClass with name {name} was found"),
                )
            })?)
        };
        let policy = class
            .as_ref()
            .map_or("", |class| text(class, &["preemptionPolicy"]));
        Ok(Resolved {
            name: class
                .as_ref()
                .map(|class| text(class, &["metadata", "name"]).to_owned())
                .unwrap_or_default(),
            value: class
                .as_ref()
                .and_then(|class| integer(class, &["value"]))
                .unwrap_or(0),
            policy: if policy.is_empty() {
                "PreemptLowerPriority".to_owned()
            } else {
                policy.to_owned()
            },
        })
    }
}

/// Classes of the system cannot be deleted.
fn stays(request: &AdmissionRequest<'_>) -> Result<(), Status> {
    if is(request, GROUP, "priorityclasses") && SYSTEM.contains(&request.name) {
        return Err(forbidden(
            request,
            "this is a system priority class and cannot be deleted",
        ));
    }
    Ok(())
}

fn apply(request: &mut AdmissionRequest<'_>, resolved: &Resolved) -> Result<(), Status> {
    let spec = get(&request.object, "spec");
    if let Some(given) = integer(spec, &["priority"])
        && given != resolved.value
    {
        return Err(forbidden(
            request,
            &format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
                resolved.value
            ),
        ));
    }
    let given = text(spec, &["preemptionPolicy"]);
    if !given.is_empty() && given != resolved.policy {
        return Err(forbidden(
            request,
            &format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
                resolved.policy
            ),
        ));
    }
    let pod = &mut request.object;
    if !resolved.name.is_empty() {
        meta::set(pod, &["spec", "priorityClassName"], resolved.name.as_str());
    }
    meta::set(pod, &["spec", "priority"], resolved.value);
    meta::set(pod, &["spec", "preemptionPolicy"], resolved.policy.as_str());
    Ok(())
}

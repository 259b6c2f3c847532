//! RuntimeClass: overhead and scheduling rules of a pod's class.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::{self, at, entries, get, items};
use serde_json::{Value, json};

use super::{cached, forbidden, is};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

pub(super) struct RuntimeClass(pub(super) Arc<Core>);

impl RuntimeClass {
    /// The class of the pod, if it names one.
    fn class(&self, request: &AdmissionRequest<'_>) -> Result<Option<Value>, Status> {
        let Some(name) = at(&request.object, &["spec", "runtimeClassName"]).as_str() else {
            return Ok(None);
        };
        match cached(&self.0, "node.k8s.io", "runtimeclasses", None, name) {
            Some(class) => Ok(Some(class)),
            None => {
                let why = format!("pod rejected: RuntimeClass {name:?} not found");
                Err(forbidden(request, &why))
            }
        }
    }
}

impl Admission for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "", "pods") {
            return Ok(());
        }
        let Some(class) = self.class(request)? else {
            return Ok(());
        };
        set_overhead(request, &class)?;
        set_scheduling(request, &class)
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "", "pods") {
            return Ok(());
        }
        let class = self.class(request)?;
        let own = at(&request.object, &["spec", "overhead"]);
        let overhead = class
            .as_ref()
            .map_or(&Value::Null, |class| at(class, &["overhead", "podFixed"]));
        if own == overhead {
            return Ok(());
        }
        let why = if overhead.is_null() {
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
        } else {
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
        };
        Err(forbidden(request, why))
    }
}

fn set_overhead(request: &mut AdmissionRequest<'_>, class: &Value) -> Result<(), Status> {
    let overhead = at(class, &["overhead", "podFixed"]);
    if overhead.is_null() {
        return Ok(());
    }
    let own = at(&request.object, &["spec", "overhead"]);
    if own.is_null() {
        meta::set(&mut request.object, &["spec", "overhead"], overhead.clone());
    } else if own != overhead {
        let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
        return Err(forbidden(request, why));
    }
    Ok(())
}

fn set_scheduling(request: &mut AdmissionRequest<'_>, class: &Value) -> Result<(), Status> {
    let scheduling = get(class, "scheduling");
    for (key, value) in entries(scheduling, &["nodeSelector"]) {
        let path = ["spec", "nodeSelector", key];
        match at(&request.object, &path) {
            Value::Null => meta::set(&mut request.object, &path, value.clone()),
            own if own == value => {}
            _ => {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] and pod.spec.nodeSelector[{key}]"
                );
                return Err(forbidden(request, &why));
            }
        }
    }
    let slot = meta::entry(&mut request.object, &["spec", "tolerations"]);
    for toleration in items(scheduling, &["tolerations"]) {
        match slot {
            Value::Array(list) if list.contains(toleration) => {}
            Value::Array(list) => list.push(toleration.clone()),
            _ => *slot = json!([toleration]),
        }
    }
    if slot.is_null() {
        meta::remove(&mut request.object, &["spec", "tolerations"]);
    }
    Ok(())
}

//! NamespaceLifecycle: nothing is made in a namespace that is missing or dying, and some
//! namespaces never die.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::text;
use sampan_api::status::Cause;

use super::{cached, forbidden};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

const IMMORTAL: &[&str] = &["default", "kube-public", "kube-system"];

pub(super) struct NamespaceLifecycle(pub(super) Arc<Core>);

impl Admission for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, operation: Operation) -> bool {
        !matches!(operation, Operation::Connect)
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let is_namespace = request.def.group().is_empty() && request.def.plural == "namespaces";
        if is_namespace {
            let doomed = request.operation == Operation::Delete && IMMORTAL.contains(&request.name);
            return if doomed {
                Err(forbidden(request, "this namespace may not be deleted"))
            } else {
                Ok(())
            };
        }
        if request.namespace.is_empty() || request.operation == Operation::Delete {
            return Ok(());
        }
        if request.def.plural == "localsubjectaccessreviews" {
            return Ok(());
        }
        let Some(namespace) = cached(&self.0, "", "namespaces", None, request.namespace) else {
            return Err(Status::not_found("", "namespaces", request.namespace));
        };
        if request.operation == Operation::Create
            && text(&namespace, &["status", "phase"]) == "Terminating"
        {
            return Err(terminating(request));
        }
        Ok(())
    }
}

fn terminating(request: &AdmissionRequest<'_>) -> Status {
    let namespace = request.namespace;
    let mut status = forbidden(
        request,
        &format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        ),
    );
    if let Some(details) = &mut status.details {
        details.causes.push(Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        });
    }
    status
}

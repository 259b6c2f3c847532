//! PersistentVolumeClaimResize.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::{at, boolean, text};
use sampan_api::quantity::Quantity;
use serde_json::Value;

use super::{cached, forbidden, is};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

/// A bound claim grows only if its class says that its volumes can.
pub(super) struct ClaimResize(pub(super) Arc<Core>);

fn size(claim: &Value) -> Quantity {
    text(claim, &["spec", "resources", "requests", "storage"])
        .parse()
        .unwrap_or(Quantity::ZERO)
}

fn class(claim: &Value) -> &str {
    let annotation = [
        "metadata",
        "annotations",
        "volume.beta.kubernetes.io/storage-class",
    ];
    match at(claim, &annotation).as_str() {
        Some(class) => class,
        None => text(claim, &["spec", "storageClassName"]),
    }
}

impl Admission for ClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let Some(old) = request.old else {
            return Ok(());
        };
        if !is(request, "", "persistentvolumeclaims")
            || size(&request.object) <= size(old)
            || text(old, &["status", "phase"]) != "Bound"
        {
            return Ok(());
        }
        let name = class(&request.object);
        let may_grow = !name.is_empty()
            && name == class(old)
            && cached(&self.0, "storage.k8s.io", "storageclasses", None, name)
                .is_some_and(|class| boolean(&class, &["allowVolumeExpansion"]));
        if may_grow {
            return Ok(());
        }
        Err(forbidden(
            request,
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ))
    }
}

//! StorageObjectInUseProtection and PersistentVolumeClaimResize.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::{self, at, boolean, text};
use sampan_api::quantity::Quantity;
use serde_json::Value;

use super::{cached, forbidden, is};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

/// A bound claim grows only if its class says that its volumes can.
pub(super) struct ClaimResize(pub(super) Arc<Core>);

/// What may be in use is protected from its first moment; controllers take the finalizers away.
pub(super) struct InUseProtection;

/// Group, plural, finalizer.
const PROTECTED: &[(&str, &str, &str)] = &[
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    (
        "storage.k8s.io",
        "volumeattributesclasses",
        "kubernetes.io/vac-protection",
    ),
];

impl Admission for InUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let row = PROTECTED.iter().find(|row| is(request, row.0, row.1));
        let Some((_, _, finalizer)) = row else {
            return Ok(());
        };
        let slot = meta::entry(&mut request.object, &["metadata", "finalizers"]);
        match slot {
            Value::Array(list) if list.iter().any(|one| one == finalizer) => {}
            Value::Array(list) => list.push(Value::from(*finalizer)),
            _ => *slot = Value::from(vec![*finalizer]),
        }
        Ok(())
    }
}

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

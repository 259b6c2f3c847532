//! DefaultStorageClass and DefaultIngressClass: who names no class gets the one marked as default.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::{self, at};

use super::{default_of, is};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

pub(super) struct DefaultStorageClass(pub(super) Arc<Core>);

impl Admission for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let old_annotation = [
            "metadata",
            "annotations",
            "volume.beta.kubernetes.io/storage-class",
        ];
        if !is(request, "", "persistentvolumeclaims")
            || !at(&request.object, &["spec", "storageClassName"]).is_null()
            || !at(&request.object, &old_annotation).is_null()
        {
            return Ok(());
        }
        let annotations = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        if let Some(name) = default_of(&self.0, "storage.k8s.io", "storageclasses", &annotations) {
            meta::set(&mut request.object, &["spec", "storageClassName"], name);
        }
        Ok(())
    }
}

pub(super) struct DefaultIngressClass(pub(super) Arc<Core>);

impl Admission for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let old_annotation = ["metadata", "annotations", "kubernetes.io/ingress.class"];
        if !is(request, "networking.k8s.io", "ingresses")
            || !at(&request.object, &["spec", "ingressClassName"]).is_null()
            || !at(&request.object, &old_annotation).is_null()
        {
            return Ok(());
        }
        let annotations = ["ingressclass.kubernetes.io/is-default-class"];
        let found = default_of(&self.0, "networking.k8s.io", "ingressclasses", &annotations);
        if let Some(name) = found {
            meta::set(&mut request.object, &["spec", "ingressClassName"], name);
        }
        Ok(())
    }
}

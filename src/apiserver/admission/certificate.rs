//! Certificate requests: who may approve, sign, and ask for what.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::meta::{at, text};
use sampan_pki::CertificateRequest;

use super::forbidden;
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::request::{Attributes, Authorizer, Decision, ResourceAttributes};

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";

fn is_request(request: &AdmissionRequest<'_>, subresource: &str) -> bool {
    request.def.group() == GROUP
        && request.def.plural == PLURAL
        && request.subresource == subresource
}

/// Whether the user may do `verb` with a signer, by its whole name or its domain.
fn may(
    authorizer: &dyn Authorizer,
    request: &AdmissionRequest<'_>,
    verb: &str,
    signer: &str,
) -> bool {
    let allowed = |name: &str| {
        let attributes = Attributes {
            user: request.user,
            verb,
            path: "",
            resource: Some(ResourceAttributes {
                group: GROUP,
                version: "*",
                resource: "signers",
                name,
                ..ResourceAttributes::default()
            }),
        };
        matches!(authorizer.authorize(&attributes), Decision::Allow(_))
    };
    let domain = signer.split('/').next().unwrap_or(signer);
    allowed(signer) || allowed(&format!("{domain}/*"))
}

pub(super) struct CertificateApproval(pub(super) Arc<dyn Authorizer>);

impl Admission for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_request(request, "approval") {
            return Ok(());
        }
        let signer = text(&request.object, &["spec", "signerName"]);
        if may(&*self.0, request, "approve", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName {signer:?}");
        Err(forbidden(request, &why))
    }
}

pub(super) struct CertificateSigning(pub(super) Arc<dyn Authorizer>);

impl Admission for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_request(request, "status") {
            return Ok(());
        }
        let Some(old) = request.old else {
            return Ok(());
        };
        let paths = [["status", "certificate"], ["status", "conditions"]];
        if paths
            .iter()
            .all(|path| at(old, path) == at(&request.object, path))
        {
            return Ok(());
        }
        let signer = text(old, &["spec", "signerName"]);
        if may(&*self.0, request, "sign", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to sign requests with signerName {signer:?}");
        Err(forbidden(request, &why))
    }
}

/// Nobody asks for a client certificate of the group that may do everything.
pub(super) struct CertificateSubjectRestriction;

impl Admission for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        use base64::Engine as _;
        if !is_request(request, "")
            || text(&request.object, &["spec", "signerName"])
                != "kubernetes.io/kube-apiserver-client"
        {
            return Ok(());
        }
        let encoded = text(&request.object, &["spec", "request"]);
        let parsed = base64::engine::general_purpose::STANDARD
            .decode(encoded)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|pem| CertificateRequest::from_pem(&pem).ok());
        let Some(parsed) = parsed else {
            return Ok(());
        };
        if parsed
            .organizations
            .iter()
            .any(|group| group == "system:masters")
        {
            let signer = "kubernetes.io/kube-apiserver-client";
            let why = format!("use of {signer} signer with system:masters group is not allowed");
            return Err(forbidden(request, &why));
        }
        Ok(())
    }
}

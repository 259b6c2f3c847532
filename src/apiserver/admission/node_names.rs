//! NodeNames: who keeps the Secrets that say whose a node's name is writes those and no others.
//!
//! RBAC knows names only one by one, and these Secrets come and go with nodes. See
//! `src/docs/0075-secrets-of-node-names.md`.

use sampan_api::Status;
use sampan_api::meta::text;
use sampan_pki::node_name::{SECRET_TYPE, node_of};
use serde_json::Value;

use super::{forbidden, is, writes};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};

const KEEPER: &str = "system:serviceaccount:kube-system:certificate-controller";

pub(super) struct NodeNames;

impl Admission for NodeNames {
    fn name(&self) -> &'static str {
        "NodeNames"
    }

    fn handles(&self, operation: Operation) -> bool {
        writes(operation)
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if request.user.username != KEEPER || !is(request, "", "secrets") {
            return Ok(());
        }
        let all = [Some(&request.object), request.old];
        if all.into_iter().flatten().all(is_node_name) {
            return Ok(());
        }
        let why = format!("{KEEPER} writes Secrets of type {SECRET_TYPE} alone");
        Err(forbidden(request, &why))
    }
}

fn is_node_name(secret: &Value) -> bool {
    text(secret, &["type"]) == SECRET_TYPE && node_of(text(secret, &["metadata", "name"])).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_secret_is_of_a_node_name_by_type_and_name() {
        let secret = |kind: &str, name: &str| json!({"type": kind, "metadata": {"name": name}});
        assert!(is_node_name(&secret(SECRET_TYPE, "a.node-password.sampan")));
        assert!(!is_node_name(&secret("Opaque", "a.node-password.sampan")));
        assert!(!is_node_name(&secret(SECRET_TYPE, "admin")));
        assert!(!is_node_name(&json!({})));
    }
}

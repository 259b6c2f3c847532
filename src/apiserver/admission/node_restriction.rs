//! NodeRestriction: a kubelet changes its own node and what runs there, nothing else.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::kinds::node;
use sampan_api::meta::{at, boolean, get, items, text};
use sampan_pki::CertificateRequest;
use serde_json::Value;

use references::Reference;

use super::{cached, forbidden};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

mod references;

const MIRROR: &str = "kubernetes.io/config.mirror";
const KUBELET_SIGNERS: &[&str] = &[
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

pub(super) struct NodeRestriction(pub(super) Arc<Core>);

impl Admission for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation != Operation::Connect
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let Some(node) = request.user.node_name().map(str::to_owned) else {
            return Ok(());
        };
        if node.is_empty() {
            let user = &request.user.username;
            let why = format!("could not determine node from user {user:?}");
            return Err(forbidden(request, &why));
        }
        self.restrict(&node, request).map_err(|why| match why {
            Refusal::Why(why) => forbidden(request, &why),
            Refusal::Status(status) => *status,
        })
    }
}

enum Refusal {
    Why(String),
    Status(Box<Status>),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Why(why)
    }
}

type Verdict = Result<(), Refusal>;

fn refuse(why: String) -> Verdict {
    Err(Refusal::Why(why))
}

impl NodeRestriction {
    fn restrict(&self, node: &str, request: &AdmissionRequest<'_>) -> Verdict {
        match (request.def.group(), &*request.def.plural) {
            ("", "pods") => match request.subresource {
                "" => self.pod(node, request),
                "status" => pod_status(node, request),
                "eviction" => self.eviction(node, request),
                other => refuse(format!(
                    "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
                )),
            },
            ("", "nodes") => own_node(node, request),
            ("", "persistentvolumeclaims") if request.subresource != "status" => {
                refuse("may only update PVC status".to_owned())
            }
            ("", "persistentvolumeclaims") => claim_status(node, request),
            ("", "serviceaccounts") => self.token(node, request),
            ("coordination.k8s.io", "leases") => lease(node, request),
            ("storage.k8s.io", "csinodes") => csi_node(node, request),
            ("resource.k8s.io", "resourceslices") => resource_slice(node, request),
            ("certificates.k8s.io", "certificatesigningrequests") => signing_request(node, request),
            _ => Ok(()),
        }
    }

    fn existing_pod(&self, namespace: &str, name: &str) -> Result<Value, Refusal> {
        cached(&self.0, "", "pods", Some(namespace), name)
            .ok_or_else(|| Refusal::Status(Box::new(Status::not_found("", "pods", name))))
    }

    fn pod(&self, node: &str, request: &AdmissionRequest<'_>) -> Verdict {
        match request.operation {
            Operation::Create => self.mirror(node, &request.object),
            Operation::Delete => {
                let pod = self.existing_pod(request.namespace, request.name)?;
                if text(&pod, &["spec", "nodeName"]) == node {
                    Ok(())
                } else {
                    refuse(format!(
                        "node {node:?} can only delete pods with spec.nodeName set to itself"
                    ))
                }
            }
            other => refuse(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                other.as_str()
            )),
        }
    }

    fn mirror(&self, node: &str, pod: &Value) -> Verdict {
        if at(pod, &["metadata", "annotations", MIRROR]).is_null() {
            return refuse(format!(
                "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
            ));
        }
        if text(pod, &["spec", "nodeName"]) != node {
            return refuse(format!(
                "node {node:?} can only create pods with spec.nodeName set to itself"
            ));
        }
        let [owner] = items(pod, &["metadata", "ownerReferences"]) else {
            let why = if items(pod, &["metadata", "ownerReferences"]).is_empty() {
                "an owner reference set to itself"
            } else {
                "a single owner reference set to itself"
            };
            return refuse(format!("node {node:?} can only create pods with {why}"));
        };
        let is_node = text(owner, &["apiVersion"]) == "v1" && text(owner, &["kind"]) == "Node";
        if !is_node || text(owner, &["name"]) != node {
            return refuse(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        if !boolean(owner, &["controller"]) {
            return refuse(format!(
                "node {node:?} can only create pods with a controller owner reference set to itself"
            ));
        }
        if boolean(owner, &["blockOwnerDeletion"]) {
            return refuse(format!(
                "node {node:?} must not set blockOwnerDeletion on an owner reference"
            ));
        }
        let Some(object) = cached(&self.0, "", "nodes", None, node) else {
            return Err(Refusal::Status(Box::new(Status::not_found(
                "", "nodes", node,
            ))));
        };
        let (expected, got) = (text(owner, &["uid"]), text(&object, &["metadata", "uid"]));
        if expected != got {
            return refuse(format!(
                "node {node} UID mismatch: expected {expected} got {got}"
            ));
        }
        match references::find(pod) {
            Some(Reference::To(what)) => refuse(format!(
                "node {node:?} can not create pods that reference {what}"
            )),
            Some(Reference::Unknown(why)) => refuse(format!(
                "error checking mirror pod for API references: {why}"
            )),
            None => Ok(()),
        }
    }

    fn eviction(&self, node: &str, request: &AdmissionRequest<'_>) -> Verdict {
        let pod = self.existing_pod(request.namespace, request.name)?;
        if text(&pod, &["spec", "nodeName"]) == node {
            return Ok(());
        }
        refuse(format!(
            "node {node} can only evict pods with spec.nodeName set to itself"
        ))
    }

    /// Tokens only for pods that run on the node.
    fn token(&self, node: &str, request: &AdmissionRequest<'_>) -> Verdict {
        if request.operation != Operation::Create || request.subresource != "token" {
            return Ok(());
        }
        let bound = at(&request.object, &["spec", "boundObjectRef"]);
        let to_pod = text(bound, &["apiVersion"]) == "v1" && text(bound, &["kind"]) == "Pod";
        let name = text(bound, &["name"]);
        if !to_pod || name.is_empty() {
            return refuse("node requested token not bound to a pod".to_owned());
        }
        let uid = text(bound, &["uid"]);
        if uid.is_empty() {
            return refuse("node requested token with a pod binding without a uid".to_owned());
        }
        let pod = self.existing_pod(request.namespace, name)?;
        if text(&pod, &["metadata", "uid"]) != uid {
            return refuse(format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ));
        }
        if text(&pod, &["spec", "nodeName"]) != node {
            return refuse(
                "node requested token bound to a pod scheduled on a different node".to_owned(),
            );
        }
        audience(&request.object, &pod, &request.user.username)
    }
}

fn audience(token: &Value, pod: &Value, user: &str) -> Verdict {
    let wanted = match items(token, &["spec", "audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return refuse("node may only request 0 or 1 audiences".to_owned()),
    };
    let mut inline_driver = false;
    for volume in items(pod, &["spec", "volumes"]) {
        inline_driver |= ["csi", "persistentVolumeClaim", "ephemeral"]
            .iter()
            .any(|source| !get(volume, source).is_null());
        for source in items(volume, &["projected", "sources"]) {
            let token = get(source, "serviceAccountToken");
            if !token.is_null() && text(token, &["audience"]) == wanted {
                return Ok(());
            }
        }
    }
    if inline_driver {
        return Ok(());
    }
    refuse(format!(
        "audience {wanted:?} not found in pod spec volume, {user} is not authorized to request tokens for this audience"
    ))
}

fn pod_status(node: &str, request: &AdmissionRequest<'_>) -> Verdict {
    let Some(old) = request
        .old
        .filter(|_| request.operation == Operation::Update)
    else {
        return refuse(format!(
            "unexpected operation {:?}",
            request.operation.as_str()
        ));
    };
    if text(old, &["spec", "nodeName"]) != node {
        return refuse(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = ["metadata", "labels"];
    if at(old, &labels) != at(&request.object, &labels) {
        return refuse(format!(
            "node {node:?} cannot update labels through pod status"
        ));
    }
    let claims = ["status", "resourceClaimStatuses"];
    if at(old, &claims) != at(&request.object, &claims) {
        return refuse(format!(
            "node {node:?} cannot update resource claim statues"
        ));
    }
    let extended = ["status", "extendedResourceClaimStatus"];
    if at(old, &extended) != at(&request.object, &extended) {
        return refuse(format!(
            "node {node:?} cannot update extended resource claim status"
        ));
    }
    Ok(())
}

/// What a kubelet changes of a claim when it has made its volume larger.
const OF_CLAIM_STATUS: &[&str] = &[
    "capacity",
    "conditions",
    "allocatedResourceStatuses",
    "allocatedResources",
];

fn claim_status(node: &str, request: &AdmissionRequest<'_>) -> Verdict {
    match (request.operation, request.old) {
        (Operation::Update, Some(old)) if is_same_claim(old, &request.object) => Ok(()),
        (Operation::Update, _) => refuse(format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )),
        (other, _) => refuse(format!("unexpected operation {:?}", other.as_str())),
    }
}

/// Apart from what a kubelet may change.
fn is_same_claim(old: &Value, new: &Value) -> bool {
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        if let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) {
            for field in OF_CLAIM_STATUS {
                status.remove(*field);
            }
        }
        if let Some(metadata) = claim.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
        claim
    };
    rest(old) == rest(new)
}

fn own_node(node: &str, request: &AdmissionRequest<'_>) -> Verdict {
    let name = match request.name {
        "" => text(&request.object, &["metadata", "name"]),
        name => name,
    };
    if name != node {
        return refuse(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        ));
    }
    let object = &request.object;
    let source = at(object, &["spec", "configSource"]);
    match request.operation {
        Operation::Create if !source.is_null() => {
            return refuse(format!(
                "node {node:?} is not allowed to create pods with a non-nil configSource"
            ));
        }
        Operation::Create => {
            let labels = forbidden_labels(object, &Value::Null);
            if !labels.is_empty() {
                return refuse(format!(
                    "node {node:?} is not allowed to set the following labels: {}",
                    labels.join(", ")
                ));
            }
        }
        Operation::Update => {
            let Some(old) = request.old else {
                return Ok(());
            };
            if !source.is_null() && source != at(old, &["spec", "configSource"]) {
                return refuse(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            for (path, what) in [
                (["spec", "taints"], "taints"),
                (["metadata", "ownerReferences"], "ownerReferences"),
            ] {
                if at(object, &path) != at(old, &path) {
                    return refuse(format!("node {node:?} is not allowed to modify {what}"));
                }
            }
            let labels = forbidden_labels(object, old);
            if !labels.is_empty() {
                return refuse(format!(
                    "is not allowed to modify labels: {}",
                    labels.join(", ")
                ));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Changed labels that a kubelet may not touch, sorted.
fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    let label = |object: &'_ Value, key: &str| at(object, &["metadata", "labels", key]).clone();
    let keys = |object: &Value| -> Vec<String> {
        let labels = at(object, &["metadata", "labels"]).as_object();
        labels
            .map(|map| map.keys().cloned().collect())
            .unwrap_or_default()
    };
    let mut changed: Vec<String> = keys(new).into_iter().chain(keys(old)).collect();
    changed.sort();
    changed.dedup();
    changed
        .into_iter()
        .filter(|key| label(new, key) != label(old, key) && !node::kubelet_may_label(key))
        .collect()
}

fn lease(node: &str, request: &AdmissionRequest<'_>) -> Verdict {
    if request.namespace != "kube-node-lease" {
        return refuse(format!(
            "can only access leases in the \"kube-node-lease\" system namespace; not {:?}",
            request.namespace
        ));
    }
    let name = match request.operation {
        Operation::Create => text(&request.object, &["metadata", "name"]),
        _ => request.name,
    };
    if name == node {
        Ok(())
    } else {
        refuse("can only access node lease with the same name as the requesting node".to_owned())
    }
}

fn csi_node(node: &str, request: &AdmissionRequest<'_>) -> Verdict {
    let name = match request.operation {
        Operation::Create => text(&request.object, &["metadata", "name"]),
        _ => request.name,
    };
    if name == node {
        Ok(())
    } else {
        refuse("can only access CSINode with the same name as the requesting node".to_owned())
    }
}

fn resource_slice(node: &str, request: &AdmissionRequest<'_>) -> Verdict {
    let owner = |object: &Value| text(object, &["spec", "nodeName"]).to_owned();
    let wrong = match request.operation {
        Operation::Create => owner(&request.object) != node,
        Operation::Update | Operation::Delete => request.old.is_some_and(|old| owner(old) != node),
        Operation::Connect => false,
    };
    if !wrong {
        return Ok(());
    }
    if request.operation == Operation::Create {
        refuse(
            "can only create ResourceSlice with the same NodeName as the requesting node"
                .to_owned(),
        )
    } else {
        refuse(format!(
            "can only {} ResourceSlice with the same NodeName as the requesting node",
            request.operation.as_str().to_lowercase()
        ))
    }
}

fn signing_request(node: &str, request: &AdmissionRequest<'_>) -> Verdict {
    use base64::Engine as _;
    let signer = text(&request.object, &["spec", "signerName"]);
    if request.operation != Operation::Create || !KUBELET_SIGNERS.contains(&signer) {
        return Ok(());
    }
    let parsed = base64::engine::general_purpose::STANDARD
        .decode(text(&request.object, &["spec", "request"]))
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| "unable to parse csr: it is no PEM text".to_owned())
        .and_then(|pem| {
            CertificateRequest::from_pem(&pem)
                .map_err(|error| format!("unable to parse csr: {error}"))
        });
    let parsed = parsed?;
    if parsed.common_name == format!("system:node:{node}") {
        Ok(())
    } else {
        refuse(format!(
            "can only create a node CSR with CN=system:node:{node}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels() {
        let node = json!({"metadata": {"labels": {
            "kubernetes.io/hostname": "a", "node.kubernetes.io/x": "1", "example.com/y": "2",
            "node-role.kubernetes.io/control-plane": "", "a.node-restriction.kubernetes.io/z": "1"}}});
        assert_eq!(
            forbidden_labels(&node, &Value::Null),
            [
                "a.node-restriction.kubernetes.io/z",
                "node-role.kubernetes.io/control-plane"
            ]
        );
        assert!(forbidden_labels(&node, &node).is_empty());
    }

    #[test]
    fn a_claims_status_is_all_of_it_that_a_kubelet_changes() {
        let claim = |size: &str, labels: Value| {
            json!({"metadata": {"name": "c", "labels": labels, "resourceVersion": size},
                "spec": {"volumeName": "v"}, "status": {"phase": "Bound", "capacity": {"storage": size}}})
        };
        let old = claim("1Gi", json!({}));
        assert!(is_same_claim(&old, &claim("2Gi", json!({}))));
        assert!(!is_same_claim(&old, &claim("2Gi", json!({"a": "b"}))));
        let mut other = claim("1Gi", json!({}));
        other["status"]["phase"] = json!("Lost");
        assert!(!is_same_claim(&old, &other));
    }
}

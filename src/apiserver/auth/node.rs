//! What kubelets may do: their own node, and what the pods bound to it refer to.
//!
//! Rules as upstream's Node authorizer. A graph of references follows pods, volumes, claims,
//! attachments and resource slices as they change.

use std::sync::Arc;

use sampan_api::FieldSelector;

use super::rbac::Rule;
use super::source::ObjectSource;
use crate::request::{Attributes, Authorizer, Decision, ResourceAttributes};

mod graph;
mod references;

use graph::{Graph, ObjectKind};

pub struct NodeAuthorizer {
    graph: Graph,
    rules: Vec<Rule>,
}

type Verdict = Result<(), String>;

impl NodeAuthorizer {
    /// `rules` are those of the role `system:node`: what all nodes may do alike.
    pub fn follow(source: &dyn ObjectSource, rules: Vec<Rule>) -> Arc<Self> {
        let authorizer = Arc::new(Self {
            graph: Graph::default(),
            rules,
        });
        type Apply = fn(&Graph, &super::ObjectChange);
        let followed: [(&str, &str, Apply); 5] = [
            ("", "pods", Graph::pod_changed),
            ("", "persistentvolumes", Graph::volume_changed),
            (
                "storage.k8s.io",
                "volumeattachments",
                Graph::attachment_changed,
            ),
            ("resource.k8s.io", "resourceslices", Graph::slice_changed),
            ("resource.k8s.io", "resourceclaims", |_, _| {}),
        ];
        for (group, resource, apply) in followed {
            let authorizer = Arc::clone(&authorizer);
            source.subscribe(
                group,
                resource,
                Arc::new(move |change| apply(&authorizer.graph, change)),
            );
        }
        authorizer
    }

    fn decide(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        let Some(resource) = &attributes.resource else {
            return self.by_rules(attributes);
        };
        let verb = attributes.verb;
        match (resource.group, resource.resource) {
            ("", "secrets") => self.read_namespaced(node, ObjectKind::Secret, verb, resource),
            ("", "configmaps") => self.read_namespaced(node, ObjectKind::ConfigMap, verb, resource),
            ("", "persistentvolumeclaims") if resource.subresource == "status" => match verb {
                "update" | "patch" => self.related(node, ObjectKind::Claim, resource),
                _ => deny("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims") => self.get(node, ObjectKind::Claim, verb, resource),
            ("", "persistentvolumes") => self.get(node, ObjectKind::Volume, verb, resource),
            ("resource.k8s.io", "resourceclaims") => {
                self.get(node, ObjectKind::ResourceClaim, verb, resource)
            }
            ("storage.k8s.io", "volumeattachments") => {
                self.get(node, ObjectKind::Attachment, verb, resource)
            }
            ("", "serviceaccounts") => self.service_account(node, verb, resource),
            ("coordination.k8s.io", "leases") => lease(node, verb, resource),
            ("storage.k8s.io", "csinodes") => csi_node(node, verb, resource),
            ("resource.k8s.io", "resourceslices") => self.slice(node, verb, resource),
            ("", "nodes") => own_node(node, verb, resource),
            ("", "pods") => self.pod(node, verb, resource),
            _ => self.by_rules(attributes),
        }
    }

    fn by_rules(&self, attributes: &Attributes<'_>) -> Verdict {
        if self.rules.iter().any(|rule| rule.allows(attributes)) {
            Ok(())
        } else {
            deny("")
        }
    }

    fn get(
        &self,
        node: &str,
        kind: ObjectKind,
        verb: &str,
        resource: &ResourceAttributes<'_>,
    ) -> Verdict {
        if verb != "get" {
            return deny("can only get individual resources of this type");
        }
        if !resource.subresource.is_empty() {
            return deny("cannot get subresource");
        }
        self.related(node, kind, resource)
    }

    fn read_namespaced(
        &self,
        node: &str,
        kind: ObjectKind,
        verb: &str,
        resource: &ResourceAttributes<'_>,
    ) -> Verdict {
        if !matches!(verb, "get" | "list" | "watch") {
            return deny("can only read resources of this type");
        }
        if !resource.subresource.is_empty() {
            return deny("cannot read subresource");
        }
        if resource.namespace.is_empty() {
            return deny("can only read namespaced object of this type");
        }
        self.related(node, kind, resource)
    }

    fn related(&self, node: &str, kind: ObjectKind, resource: &ResourceAttributes<'_>) -> Verdict {
        if resource.name.is_empty() {
            return deny("No Object name found");
        }
        if self
            .graph
            .is_related(node, kind, resource.namespace, resource.name)
        {
            return Ok(());
        }
        Err(format!(
            "no relationship found between node '{node}' and this object"
        ))
    }

    fn service_account(
        &self,
        node: &str,
        verb: &str,
        resource: &ResourceAttributes<'_>,
    ) -> Verdict {
        if verb == "get" && resource.subresource.is_empty() {
            return self.read_namespaced(node, ObjectKind::ServiceAccount, verb, resource);
        }
        if verb != "create" || resource.name.is_empty() {
            return deny("can only create tokens for individual service accounts");
        }
        if resource.subresource != "token" {
            return deny("can only create token subresource of serviceaccount");
        }
        self.related(node, ObjectKind::ServiceAccount, resource)
    }

    fn slice(&self, node: &str, verb: &str, resource: &ResourceAttributes<'_>) -> Verdict {
        if !resource.subresource.is_empty() {
            return deny("cannot authorize ResourceSlice subresources");
        }
        match verb {
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => {
                self.related(node, ObjectKind::ResourceSlice, resource)
            }
            "watch" | "list" | "deletecollection" if selects(resource, "spec.nodeName", node) => {
                Ok(())
            }
            "watch" | "list" | "deletecollection" => deny(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => deny(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn pod(&self, node: &str, verb: &str, resource: &ResourceAttributes<'_>) -> Verdict {
        match (resource.subresource, verb) {
            ("", "get") => self.get(node, ObjectKind::Pod, verb, resource),
            ("", "list" | "watch") => {
                if selects(resource, "spec.nodeName", node) {
                    return Ok(());
                }
                if !resource.name.is_empty() {
                    return self.related(node, ObjectKind::Pod, resource);
                }
                deny("can only list/watch pods with spec.nodeName field selector")
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Ok(())
            }
            _ => deny(""),
        }
    }
}

fn deny(reason: &str) -> Verdict {
    Err(reason.to_owned())
}

fn selects(resource: &ResourceAttributes<'_>, field: &str, node: &str) -> bool {
    FieldSelector::parse(resource.field_selector)
        .is_ok_and(|selector| selector.exact(field) == Some(node))
}

fn own_node(node: &str, verb: &str, resource: &ResourceAttributes<'_>) -> Verdict {
    match (resource.subresource, verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match resource.name {
            name if name == node => Ok(()),
            "" => Err(format!(
                "node '{node}' cannot read all nodes, only its own Node object"
            )),
            other => Err(format!(
                "node '{node}' cannot read '{other}', only its own Node object"
            )),
        },
        _ => deny(""),
    }
}

fn lease(node: &str, verb: &str, resource: &ResourceAttributes<'_>) -> Verdict {
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return deny("can only get, create, update, patch, or delete a node lease");
    }
    if resource.namespace != "kube-node-lease" {
        return deny("can only access leases in the \"kube-node-lease\" system namespace");
    }
    if verb != "create" && resource.name != node {
        return deny("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csi_node(node: &str, verb: &str, resource: &ResourceAttributes<'_>) -> Verdict {
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return deny("can only get, create, update, patch, or delete a CSINode");
    }
    if !resource.subresource.is_empty() {
        return deny("cannot authorize CSINode subresources");
    }
    if verb != "create" && resource.name != node {
        return deny("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

impl Authorizer for NodeAuthorizer {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let Some(node) = attributes.user.node_name() else {
            return Decision::NoOpinion(String::new());
        };
        if node.is_empty() {
            let user = &attributes.user.username;
            return Decision::NoOpinion(format!("unknown node for user {user:?}"));
        }
        match self.decide(node, attributes) {
            Ok(()) => Decision::Allow(String::new()),
            Err(reason) => Decision::NoOpinion(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use sampan_api::UserInfo;
    use serde_json::json;

    use super::*;
    use crate::auth::ObjectChange;

    fn authorizer() -> NodeAuthorizer {
        let authorizer = NodeAuthorizer {
            graph: Graph::default(),
            rules: Vec::new(),
        };
        let pod = json!({
            "metadata": {"name": "p", "namespace": "a", "uid": "1"},
            "spec": {
                "nodeName": "n1",
                "serviceAccountName": "sa",
                "volumes": [
                    {"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
                    {"name": "s", "secret": {"secretName": "vs"}},
                ],
                "containers": [{"name": "x", "envFrom": [{"configMapRef": {"name": "cm"}}]}],
            },
        });
        authorizer.graph.pod_changed(&ObjectChange {
            namespace: "a".to_owned(),
            name: "p".to_owned(),
            old: None,
            new: Some(pod.to_string().into()),
        });
        let volume = json!({
            "metadata": {"name": "pv"},
            "spec": {"claimRef": {"namespace": "a", "name": "c"}},
        });
        authorizer.graph.volume_changed(&ObjectChange {
            namespace: String::new(),
            name: "pv".to_owned(),
            old: None,
            new: Some(volume.to_string().into()),
        });
        authorizer
    }

    fn ask(node: &str, verb: &str, resource: &ResourceAttributes<'_>) -> Decision {
        let user = UserInfo::authenticated(format!("system:node:{node}"), &["system:nodes"]);
        authorizer().authorize(&Attributes {
            user: &user,
            verb,
            resource: Some(*resource),
            path: "",
        })
    }

    #[test]
    fn only_what_its_pods_need() {
        let object = |resource, namespace, name| ResourceAttributes {
            resource,
            namespace,
            name,
            ..ResourceAttributes::default()
        };
        let allowed = Decision::Allow(String::new());
        for resource in [
            object("secrets", "a", "vs"),
            object("configmaps", "a", "cm"),
            object("persistentvolumeclaims", "a", "c"),
            object("persistentvolumes", "", "pv"),
            object("pods", "a", "p"),
        ] {
            assert_eq!(ask("n1", "get", &resource), allowed, "{resource:?}");
            assert_ne!(ask("n2", "get", &resource), allowed, "{resource:?}");
        }
        assert_eq!(
            ask("n1", "get", &object("secrets", "a", "other")),
            Decision::NoOpinion(
                "no relationship found between node 'n1' and this object".to_owned()
            )
        );
        let mut pods = object("pods", "", "");
        assert_ne!(ask("n1", "list", &pods), allowed);
        pods.field_selector = "spec.nodeName=n1";
        assert_eq!(ask("n1", "list", &pods), allowed);
        assert_ne!(ask("n2", "list", &pods), allowed);
    }

    #[test]
    fn references_go_with_the_pod() {
        let authorizer = authorizer();
        authorizer.graph.pod_changed(&ObjectChange {
            namespace: "a".to_owned(),
            name: "p".to_owned(),
            old: None,
            new: None,
        });
        for (kind, name) in [
            (ObjectKind::Secret, "vs"),
            (ObjectKind::Pod, "p"),
            (ObjectKind::Claim, "c"),
        ] {
            assert!(!authorizer.graph.is_related("n1", kind, "a", name));
        }
        assert!(
            !authorizer
                .graph
                .is_related("n1", ObjectKind::Volume, "", "pv")
        );
    }
}

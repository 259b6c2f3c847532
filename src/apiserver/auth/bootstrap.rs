//! The default roles and bindings, and keeping them in place.

use serde_json::{Value, json};

use super::rbac::{GROUP, Rule};

mod policy;
pub mod published;
mod reconcile;
#[cfg(test)]
mod tests;

pub use policy::{Kind, Policy, policies};
pub use reconcile::reconcile;

const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// The rules of the role `system:node`, which the Node authorizer applies.
pub fn node_rules() -> Vec<Rule> {
    policies()
        .into_iter()
        .find(|policy| policy.kind == Kind::ClusterRole && policy.name == "system:node")
        .map(|policy| policy.rules)
        .unwrap_or_default()
}

impl Policy {
    /// The object that is created.
    pub fn to_object(&self) -> Value {
        let mut labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
        for target in &self.joins {
            labels[format!("{AGGREGATE_TO}{target}")] = "true".into();
        }
        let mut metadata = json!({
            "name": self.name,
            "labels": labels,
            "annotations": {AUTO_UPDATE: "true"},
        });
        if !self.namespace.is_empty() {
            metadata["namespace"] = self.namespace.as_str().into();
        }
        let mut object = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": self.kind.as_str(),
            "metadata": metadata,
        });
        if self.kind.is_role() {
            if let Some(target) = &self.gathers {
                let selector = json!({"matchLabels": {format!("{AGGREGATE_TO}{target}"): "true"}});
                object["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
            }
            object["rules"] = json!(self.rules);
        } else {
            let role_kind = if self.kind == Kind::RoleBinding {
                "Role"
            } else {
                "ClusterRole"
            };
            object["roleRef"] = json!({
                "apiGroup": GROUP,
                "kind": role_kind,
                "name": self.role,
            });
            if !self.subjects.is_empty() {
                object["subjects"] = json!(self.subjects);
            }
        }
        object
    }
}

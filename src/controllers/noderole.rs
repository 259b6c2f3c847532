//! Node roles: the nodes of servers carry the label that `kubectl get nodes` shows as their role.
//!
//! Watches Nodes; labels those that run a control plane. Their kubelets may not do that themselves: who draws Pods by this label
//! must be able to rely on it. Upstream counterpart: none (kubeadm does it once).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use sampan_client::{Lister, ObjectKey};
use serde_json::json;

use crate::runtime::{Action, Controller, Form, Plan, Watches};
use crate::{Settings, owner};

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

pub struct NodeRoleController {
    nodes: Lister<Node>,
    /// Names of the nodes that run a control plane.
    servers: Vec<String>,
}

impl Controller for NodeRoleController {
    const NAME: &'static str = "node-role-controller";
    const IDENTITY: &'static str = "node-controller";
    const WORKERS: usize = 1;

    type Observed = Arc<Node>;

    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self {
        Self {
            nodes: watches.primary::<Node>(),
            servers: settings.control_plane_nodes.clone(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Arc<Node>> {
        let is_server = self.servers.contains(&key.name);
        self.nodes.get_key(key).filter(|_| is_server)
    }

    fn reconcile(node: &Arc<Node>, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let metadata = &node.metadata;
        let mut labels = metadata.labels.iter().flatten();
        if owner::is_deleting(metadata) || labels.any(|(key, _)| key == CONTROL_PLANE) {
            return plan;
        }
        let change = json!({"metadata": {"labels": {CONTROL_PLANE: "true"}}});
        let key = ObjectKey::of(metadata);
        plan.push(Action::write::<Node>(&key, Form::Merge, change));
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, object};

    #[test]
    fn a_server_is_labelled_once_and_its_value_is_left_alone() {
        let plan = |labels: serde_json::Value| {
            let node = object(json!({"metadata": {"name": "a", "labels": labels}}));
            NodeRoleController::reconcile(&Arc::new(node), at(0))
        };
        let first = plan(json!({"kubernetes.io/os": "linux"}));
        let Some(Action::Write { change, .. }) = first.actions.first().map(|step| &step.action)
        else {
            panic!("{first}")
        };
        assert_eq!(change["metadata"]["labels"], json!({CONTROL_PLANE: "true"}));
        assert!(plan(json!({CONTROL_PLANE: ""})).is_nothing());
    }
}

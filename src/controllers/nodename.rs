//! Node names: the Secret that says whose a name is goes when the Node goes.
//!
//! Watches Nodes and the Secrets of their names (which `csr` makes); makes the Node the owner of its Secret, so that the
//! garbage collector sets the name free. See `src/docs/0061-whose-a-node-name-is.md`.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Secret};
use sampan_client::{ListParams, Lister, ObjectKey};
use sampan_pki::node_name::{NAMESPACE, SECRET_TYPE, node_of, secret_name};
use serde_json::json;

use crate::runtime::{Action, Controller, Form, Plan, Watches};
use crate::{Settings, owner};

/// All Secrets of node names.
pub(crate) fn secrets() -> ListParams {
    ListParams::fields(format!("type={SECRET_TYPE}"))
}

pub struct NodeNameController {
    secrets: Lister<Secret>,
    nodes: Lister<Node>,
}

pub struct Observed {
    secret: Arc<Secret>,
    node: Arc<Node>,
}

impl Controller for NodeNameController {
    const NAME: &'static str = "node-name-controller";
    /// One role for what makes these Secrets and what owns them.
    const IDENTITY: &'static str = "certificate-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        Self {
            secrets: watches.mapped_with::<Secret>(secrets(), |change| {
                vec![ObjectKey::of(&change.object().metadata)]
            }),
            nodes: watches.mapped::<Node>(|change| {
                let name = secret_name(owner::name(&change.object().metadata));
                let key = |name: String| ObjectKey::new(NAMESPACE, name);
                name.map(key).into_iter().collect()
            }),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let secret = self.secrets.get_key(key)?;
        if secret.metadata.namespace.as_deref() != Some(NAMESPACE) {
            return None;
        }
        let node = self.nodes.get(None, node_of(&key.name)?)?;
        Some(Observed { secret, node })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let (secret, node) = (&observed.secret.metadata, &observed.node.metadata);
        let mut owners = secret.owner_references.iter().flatten();
        let is_owned = owners.any(|owner| Some(&owner.uid) == node.uid.as_ref());
        if is_owned || owner::is_deleting(node) || owner::is_deleting(secret) {
            return plan;
        }
        let change = json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
        ]}});
        let key = ObjectKey::of(secret);
        plan.push(Action::write::<Secret>(&key, Form::MergeCurrent, change));
        plan
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{at, object};
    use serde_json::Value;

    fn plan(owner: Option<&str>, deleting: bool) -> Plan {
        let reference =
            |uid| json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": uid}]);
        let mut node = json!({"metadata": {"name": "a", "uid": "new"}});
        if deleting {
            node["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
        }
        let owners: Value = owner.map(reference).into();
        let secret = json!({"metadata": {"name": "a.node-password.sampan", "namespace": "kube-system",
            "uid": "s", "ownerReferences": owners}});
        let observed = Observed {
            secret: Arc::new(object(secret)),
            node: Arc::new(object(node)),
        };
        NodeNameController::reconcile(&observed, at(0))
    }

    #[test]
    fn the_node_owns_its_name() {
        for owner in [None, Some("old")] {
            let plan = plan(owner, false);
            let Action::Write { change, target, .. } = &plan.actions[0].action else {
                panic!("{plan}")
            };
            assert_eq!(target.name.as_deref(), Some("a.node-password.sampan"));
            assert_eq!(
                change["metadata"]["ownerReferences"][0]["uid"],
                json!("new")
            );
        }
        assert!(plan(Some("new"), false).is_nothing());
        assert!(plan(None, true).is_nothing());
    }
}

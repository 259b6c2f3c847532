//! ClusterRoles with an aggregation rule get the rules of those that the rule selects.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use sampan_client::{Change, Lister, ObjectKey};
use serde_json::json;

use crate::labels::selector_of;
use crate::runtime::{Action, Controller, Form, Plan, Watches};
use crate::{Settings, json};

pub struct AggregationController {
    roles: Lister<ClusterRole>,
}

pub struct Observed {
    role: Arc<ClusterRole>,
    /// Selected roles of each selector, sorted by name.
    selected: Vec<Arc<ClusterRole>>,
}

impl Controller for AggregationController {
    const NAME: &'static str = "clusterrole-aggregation-controller";
    const WORKERS: usize = 1;

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let roles = watches.reads::<ClusterRole>();
        let all = roles.clone();
        watches.mapped::<ClusterRole>(move |change| keys_of(change, &all));
        Self { roles }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let role = self.roles.get_key(key)?;
        let rule = role.aggregation_rule.as_ref()?;
        let mut selected: Vec<Arc<ClusterRole>> = Vec::new();
        for selector in rule.cluster_role_selectors.iter().flatten() {
            let selector = selector_of(selector);
            selected.extend(self.roles.select(None, |labels| selector.matches(labels)));
        }
        Some(Observed { role, selected })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let mut rules: Vec<PolicyRule> = Vec::new();
        for selected in &observed.selected {
            if selected.metadata.name == observed.role.metadata.name {
                continue;
            }
            for rule in selected.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
        if observed.role.rules.clone().unwrap_or_default() != rules {
            let change = json!({"rules": json::to_value(&rules)});
            let key = ObjectKey::of(&observed.role.metadata);
            plan.push(Action::write::<ClusterRole>(
                &key,
                Form::MergeCurrent,
                change,
            ));
        }
        plan
    }
}

/// Any role may be part of any aggregate.
fn keys_of(change: &Change<ClusterRole>, roles: &Lister<ClusterRole>) -> Vec<ObjectKey> {
    if let Change::Applied {
        old: Some(old),
        new,
    } = change
        && old.rules == new.rules
        && old.metadata.labels == new.metadata.labels
        && old.aggregation_rule == new.aggregation_rule
    {
        return Vec::new();
    }
    let mut keys: Vec<ObjectKey> = roles
        .list(None)
        .iter()
        .filter(|role| role.aggregation_rule.is_some())
        .map(|role| ObjectKey::of(&role.metadata))
        .collect();
    let own = ObjectKey::of(&change.object().metadata);
    if !keys.contains(&own) {
        keys.push(own);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, object};

    #[test]
    fn rules_are_gathered_once() {
        let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let part = |name: &str| -> Arc<ClusterRole> {
            Arc::new(object(json!({"metadata": {"name": name}, "rules": [rule]})))
        };
        let mut observed = Observed {
            role: Arc::new(object(json!({"metadata": {"name": "view"}, "rules": null}))),
            selected: vec![part("a"), part("b"), part("view")],
        };
        let plan = AggregationController::reconcile(&observed, at(0));
        let wanted = "write clusterroles view {\"rules\":[{\"apiGroups\":[\"\"],\
             \"resources\":[\"pods\"],\"verbs\":[\"get\"]}]}";
        assert_eq!(plan.lines(), [wanted]);
        observed.role = part("view");
        assert!(AggregationController::reconcile(&observed, at(0)).is_nothing());
    }
}

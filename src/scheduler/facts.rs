//! What beside nodes and pods goes into a decision: Services and controllers (for spreading), and
//! disruption budgets (for preemption).

use std::collections::HashMap;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use sampan_client::{Informers, Lister, ObjectKey};

use crate::pod_info::{Owner, PodInfo};
use crate::preemption::Budget;
use crate::selector::{Labels, Selector};

/// Selectors of controllers that are remembered.
const REMEMBERED: usize = 1024;

pub struct Facts {
    services: HashMap<String, HashMap<String, Labels>>,
    budgets: HashMap<ObjectKey, Budget>,
    budget_list: Vec<Budget>,
    owners: Owners,
    /// By the controller's uid: a selector never changes while its controller lives.
    owner_selectors: HashMap<String, Selector>,
}

struct Owners {
    replica_sets: Lister<ReplicaSet>,
    stateful_sets: Lister<StatefulSet>,
    replication_controllers: Lister<ReplicationController>,
}

impl Facts {
    pub fn new(informers: &Informers) -> Self {
        Self {
            services: HashMap::new(),
            budgets: HashMap::new(),
            budget_list: Vec::new(),
            owners: Owners {
                replica_sets: informers.lister(),
                stateful_sets: informers.lister(),
                replication_controllers: informers.lister(),
            },
            owner_selectors: HashMap::new(),
        }
    }

    pub fn set_service(&mut self, service: &Service) {
        let key = ObjectKey::of(&service.metadata);
        let selector = service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.clone())
            .unwrap_or_default();
        if selector.is_empty() {
            return self.remove_service(service);
        }
        self.services
            .entry(key.namespace)
            .or_default()
            .insert(key.name, selector);
    }

    pub fn remove_service(&mut self, service: &Service) {
        let key = ObjectKey::of(&service.metadata);
        if let Some(services) = self.services.get_mut(&key.namespace) {
            services.remove(&key.name);
            if services.is_empty() {
                self.services.remove(&key.namespace);
            }
        }
    }

    pub fn set_budget(&mut self, budget: &PodDisruptionBudget) {
        let status = budget.status.as_ref();
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let known = Budget {
            namespace: budget.metadata.namespace.clone().unwrap_or_default(),
            selector: Selector::new(selector),
            allowed: status
                .and_then(|status| status.disruptions_allowed)
                .unwrap_or(0),
            disrupted: status
                .and_then(|status| status.disrupted_pods.as_ref())
                .into_iter()
                .flat_map(|pods| pods.keys().cloned())
                .collect(),
        };
        self.budgets.insert(ObjectKey::of(&budget.metadata), known);
        self.budget_list = self.budgets.values().cloned().collect();
    }

    pub fn remove_budget(&mut self, budget: &PodDisruptionBudget) {
        self.budgets.remove(&ObjectKey::of(&budget.metadata));
        self.budget_list = self.budgets.values().cloned().collect();
    }

    pub fn budgets(&self) -> &[Budget] {
        &self.budget_list
    }

    /// Selects the pods beside which a pod should not sit unless it says otherwise: those of its
    /// Services and of its controller.
    pub fn default_spread(&mut self, pod: &PodInfo) -> Option<Selector> {
        if !pod.spread.is_empty() {
            return None;
        }
        let mut selector = Selector::default();
        for wanted in self
            .services
            .get(&pod.namespace)
            .into_iter()
            .flat_map(HashMap::values)
        {
            if wanted
                .iter()
                .all(|(key, value)| pod.labels.get(key) == Some(value))
            {
                selector.require_all(wanted);
            }
        }
        if let Some(of_owner) = pod
            .owner
            .as_ref()
            .and_then(|owner| self.owner_selector(&pod.namespace, owner))
        {
            selector.and(of_owner);
        }
        (!selector.is_empty()).then_some(selector)
    }

    fn owner_selector(&mut self, namespace: &str, owner: &Owner) -> Option<Selector> {
        if let Some(known) = self.owner_selectors.get(&owner.uid) {
            return Some(known.clone());
        }
        let selector = self.owners.selector(namespace, owner)?;
        if self.owner_selectors.len() >= REMEMBERED {
            self.owner_selectors.clear();
        }
        self.owner_selectors
            .insert(owner.uid.clone(), selector.clone());
        Some(selector)
    }
}

impl Owners {
    fn selector(&self, namespace: &str, owner: &Owner) -> Option<Selector> {
        let (namespace, name) = (Some(namespace), owner.name.as_str());
        match owner.kind.as_str() {
            "ReplicaSet" => {
                let found = self.replica_sets.get(namespace, name)?;
                Some(Selector::new(
                    found.spec.as_ref().map(|spec| &spec.selector),
                ))
            }
            "StatefulSet" => {
                let found = self.stateful_sets.get(namespace, name)?;
                Some(Selector::new(
                    found.spec.as_ref().map(|spec| &spec.selector),
                ))
            }
            "ReplicationController" => {
                let found = self.replication_controllers.get(namespace, name)?;
                Some(Selector::from_labels(
                    found.spec.as_ref()?.selector.as_ref()?,
                ))
            }
            _ => None,
        }
    }
}

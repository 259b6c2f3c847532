//! The two kinds as [`PodSet`]s.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition,
    ReplicationControllerStatus,
};
use sampan_api::Selector;
use sampan_client::ObjectKey;

use super::PodSet;
use crate::labels::{selector_of, selector_of_map};
use crate::runtime::Action;

impl PodSet for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const REPORTS_TERMINATING: bool = true;

    fn replicas(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> Selector {
        match &self.spec {
            Some(spec) => selector_of(&spec.selector),
            None => Selector::nothing(),
        }
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }

    fn replace_status(&self, new: ReplicaSetStatus) -> Option<Action> {
        Action::replace_status::<Self, _>(&ObjectKey::of(&self.metadata), &self.status, &new)
    }
}

impl PodSet for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";
    const REPORTS_TERMINATING: bool = false;

    fn replicas(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> Selector {
        selector_of_map(self.spec.as_ref().and_then(|spec| spec.selector.as_ref()))
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        let status = self.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let conditions = conditions.into_iter().map(|condition| {
            k8s_openapi::api::apps::v1::ReplicaSetCondition {
                type_: condition.type_,
                status: condition.status,
                reason: condition.reason,
                message: condition.message,
                last_transition_time: condition.last_transition_time,
            }
        });
        ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            terminating_replicas: None,
            observed_generation: status.observed_generation,
            conditions: Some(conditions.collect()),
        }
    }

    fn replace_status(&self, new: ReplicaSetStatus) -> Option<Action> {
        let conditions = new.conditions.map(|conditions| {
            let convert = |condition: k8s_openapi::api::apps::v1::ReplicaSetCondition| {
                ReplicationControllerCondition {
                    type_: condition.type_,
                    status: condition.status,
                    reason: condition.reason,
                    message: condition.message,
                    last_transition_time: condition.last_transition_time,
                }
            };
            conditions.into_iter().map(convert).collect()
        });
        let new = ReplicationControllerStatus {
            replicas: new.replicas,
            fully_labeled_replicas: new.fully_labeled_replicas,
            ready_replicas: new.ready_replicas,
            available_replicas: new.available_replicas,
            observed_generation: new.observed_generation,
            conditions,
        };
        Action::replace_status::<Self, _>(&ObjectKey::of(&self.metadata), &self.status, &new)
    }
}

//! Objects for unit tests.
#![allow(clippy::unwrap_used, reason = "tests")]

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::de::DeserializeOwned;

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// An object from compact JSON.
pub fn object<K: DeserializeOwned>(json: serde_json::Value) -> K {
    serde_json::from_value(json).unwrap()
}

pub fn meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(format!("uid-{name}")),
        creation_timestamp: Some(Time(at(0))),
        generation: Some(1),
        ..ObjectMeta::default()
    }
}

pub fn pod(namespace: &str, name: &str) -> Pod {
    Pod {
        metadata: meta(namespace, name),
        spec: Some(PodSpec::default()),
        status: Some(PodStatus {
            phase: Some("Pending".to_owned()),
            ..PodStatus::default()
        }),
    }
}

pub fn make_ready(pod: &mut Pod, since: Timestamp) {
    let status = pod.status.as_mut().unwrap();
    status.phase = Some("Running".to_owned());
    status.conditions = Some(vec![PodCondition {
        type_: "Ready".to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(since)),
        ..PodCondition::default()
    }]);
}

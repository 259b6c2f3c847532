//! APIService objects for the groups that are served here, so that aggregation sees all of them.

use futures_util::future::try_join_all;
use sampan_api::registry::Snapshot;
use sampan_api::resource::{GroupVersionResource, Target};
use sampan_api::{Options, Reason, Verb, time};
use sampan_client::{Body, Error, Request, Transport};
use serde_json::{Value, json};

use super::priority::{group_priority, version_priority};

/// Creates the ones that are missing.
pub async fn publish(
    transport: &dyn Transport,
    rows: &Snapshot,
    now: jiff::Timestamp,
) -> Result<(), Error> {
    let all = served(rows);
    let each = all
        .iter()
        .map(|(group, version)| publish_one(transport, group, version, now));
    try_join_all(each).await.map(drop)
}

async fn publish_one(
    transport: &dyn Transport,
    group: &str,
    version: &str,
    now: jiff::Timestamp,
) -> Result<(), Error> {
    let object = service(group, version, now);
    let created = transport
        .send(request(Verb::Create, None, None, object.clone()))
        .await;
    let bytes = match created {
        Ok(bytes) => bytes,
        Err(Error::Api(status)) if status.is(Reason::AlreadyExists) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut created: Value =
        serde_json::from_slice(&bytes).map_err(|error| Error::Malformed(error.to_string()))?;
    created["status"] = object["status"].clone();
    let name = name(group, version);
    let written = transport
        .send(request(Verb::Update, Some(name), Some("status"), created))
        .await;
    match written {
        // Whoever keeps the condition was faster.
        Err(Error::Api(status)) if status.is(Reason::Conflict) => Ok(()),
        written => written.map(drop),
    }
}

fn served(rows: &Snapshot) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = rows
        .rows()
        .iter()
        .filter(|row| !row.is_custom())
        .flat_map(|row| row.versions.iter())
        .filter(|version| version.served)
        .map(|version| (version.group.to_string(), version.version.to_string()))
        .collect();
    all.sort();
    all.dedup();
    // The group of these objects themselves is not one that could be delegated.
    all.retain(|(group, _)| group != "apiregistration.k8s.io");
    all
}

fn name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

fn service(group: &str, version: &str, now: jiff::Timestamp) -> Value {
    let mut spec = json!({
        "version": version,
        "groupPriorityMinimum": group_priority(group),
        "versionPriority": version_priority(group, version),
    });
    if !group.is_empty() {
        spec["group"] = group.into();
    }
    json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {
            "name": name(group, version),
            "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
        },
        "spec": spec,
        "status": {"conditions": [{
            "type": "Available",
            "status": "True",
            "lastTransitionTime": time::format(now),
            "reason": "Local",
            "message": "Local APIServices are always available",
        }]},
    })
}

fn request(
    verb: Verb,
    name: Option<String>,
    subresource: Option<&'static str>,
    object: Value,
) -> Request {
    Request {
        verb,
        target: Target {
            resource: GroupVersionResource {
                group: "apiregistration.k8s.io".into(),
                version: "v1".into(),
                resource: "apiservices".into(),
            },
            namespace: None,
            name,
            subresource: subresource.map(Into::into),
        },
        options: Options::default(),
        body: Body::Object(object),
    }
}

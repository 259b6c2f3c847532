//! Makes sure that the node's object exists and carries its labels.

use super::status::{self, Facts, Health};
use crate::machine::{Disk, MachineInfo, Memory};
use crate::settings::Settings;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{Client, Error, Patch};
use serde_json::json;
use std::collections::BTreeMap;

/// Labels that every node has, and those asked for.
pub fn labels(settings: &Settings) -> BTreeMap<String, String> {
    let architecture = settings.architecture;
    let pairs = [
        ("kubernetes.io/hostname", settings.hostname.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ];
    let mut all: BTreeMap<String, String> = pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    all.extend(settings.labels.clone());
    all
}

/// Makes the node known before its runtime has started, so that whoever prepares for it (the range
/// of its pods) can begin. The node is not ready by this.
pub async fn announce(client: &Client, settings: &Settings) -> Result<(), Error> {
    let health = Health {
        runtime: Err("container runtime status check may not have completed yet".to_owned()),
        disk: Disk::read(&settings.agent_dir).unwrap_or_default(),
        memory: Memory::read(),
        ..Health::default()
    };
    let facts = Facts {
        settings,
        machine: &MachineInfo::read(),
        runtime_version: "",
        images: &[],
        health: &health,
    };
    let status = status::render(&facts, &NodeStatus::default(), Timestamp::now());
    register(client, settings, status).await.map(|_| ())
}

/// Creates the node, or takes over the one that is there.
pub async fn register(
    client: &Client,
    settings: &Settings,
    status: NodeStatus,
) -> Result<Node, Error> {
    let node = Node {
        metadata: ObjectMeta {
            name: Some(settings.node_name.clone()),
            labels: Some(labels(settings)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!settings.taints.is_empty()).then(|| settings.taints.clone()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    };
    match client.create(&node).await {
        Err(error) if error.is_already_exists() => {}
        other => return other,
    }
    let existing: Node = client.get(None, &settings.node_name).await?;
    let have = existing.metadata.labels.clone().unwrap_or_default();
    let missing: BTreeMap<String, String> = labels(settings)
        .into_iter()
        .filter(|(name, value)| have.get(name) != Some(value))
        .collect();
    if missing.is_empty() {
        return Ok(existing);
    }
    let patch = Patch::Merge(json!({"metadata": {"labels": missing}}));
    client.patch(None, &settings.node_name, &patch).await
}

//! What every node must know of the cluster, published as a ConfigMap that joining nodes may read.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::user::well_known;
use sampan_client::{Client, Error, Patch, Resource};
use sampan_pki::files::{self, PUBLIC};
use sampan_util::Backoff;
use serde::{Deserialize, Serialize};
use serde_json::json;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "sampan-cluster";
const KEY: &str = "cluster.json";
/// For a server that neither answers nor refuses.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Decided by the server, followed by every agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    pub cluster_cidrs: Vec<String>,
    pub service_cidrs: Vec<String>,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// Signs the client certificates that may talk to kubelets (PEM).
    pub client_authority: String,
}

#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    #[error("cannot read the cluster's settings from the server: {0}")]
    Api(#[from] Error),
    #[error("the ConfigMap {NAMESPACE}/{NAME} holds no valid {KEY}: {0}")]
    Malformed(String),
}

/// Writes the ConfigMap and the right of nodes to read it.
pub async fn publish(client: &Client, info: &ClusterInfo) -> Result<(), Error> {
    let text = serde_json::to_string(info).map_err(|error| Error::Malformed(error.to_string()))?;
    let config = ConfigMap {
        metadata: metadata(),
        data: Some(BTreeMap::from([(KEY.to_owned(), text.clone())])),
        ..ConfigMap::default()
    };
    if !create(client, &config).await? {
        let patch = Patch::Merge(json!({"data": {KEY: text}}));
        client
            .patch::<ConfigMap>(Some(NAMESPACE), NAME, &patch)
            .await?;
    }
    create(client, &reader()).await?;
    create(client, &readers()).await?;
    Ok(())
}

pub async fn read(client: &Client) -> Result<ClusterInfo, InfoError> {
    let config: ConfigMap = client.get(Some(NAMESPACE), NAME).await?;
    let text = config.data.as_ref().and_then(|data| data.get(KEY));
    let text = text.ok_or_else(|| InfoError::Malformed("the key is missing".to_owned()))?;
    serde_json::from_str(text).map_err(|error| InfoError::Malformed(error.to_string()))
}

/// What the server says; a server that does not answer is waited for, unless its settings are known from
/// before: a node starts what runs on it without its server.
pub async fn learn(client: &Client, kept: &Path) -> Result<ClusterInfo, InfoError> {
    let mut failures = 0;
    loop {
        let problem = match tokio::time::timeout(PATIENCE, read(client)).await {
            Ok(Ok(info)) => {
                keep(kept, &info);
                return Ok(info);
            }
            Ok(Err(error @ (InfoError::Malformed(_) | InfoError::Api(Error::Api(_))))) => {
                return Err(error);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        if let Some(info) = kept_before(kept) {
            tracing::warn!(%problem, "the server is away: the node starts with what it said last");
            return Ok(info);
        }
        if failures % 10 == 0 {
            tracing::info!(%problem, "waiting for the server");
        }
        tokio::time::sleep(RETRY.delay(failures)).await;
        failures += 1;
    }
}

/// What was kept in this file, if it can be read.
pub fn kept_before(path: &Path) -> Option<ClusterInfo> {
    let text = files::read_optional(path).ok().flatten()?;
    serde_json::from_str(&text).ok()
}

/// A node that cannot keep it only waits for its server next time; a server looks into its store.
pub fn keep(path: &Path, info: &ClusterInfo) {
    if kept_before(path).as_ref() == Some(info) {
        return;
    }
    let text = serde_json::to_string(info).unwrap_or_default();
    if let Err(error) = files::write_atomic(path, text.as_bytes(), PUBLIC) {
        tracing::warn!(%error, "the cluster's settings cannot be kept");
    }
}

/// Whether the object was made; `false` if it was there.
async fn create<K: Resource>(client: &Client, object: &K) -> Result<bool, Error> {
    match client.create(object).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a cluster cannot change any more, and has been asked to.
pub fn difference(before: &ClusterInfo, now: &ClusterInfo) -> Option<String> {
    let domain = |info: &ClusterInfo| vec![info.cluster_domain.clone()];
    let rows = [
        (
            "cluster-cidr",
            networks(&before.cluster_cidrs),
            networks(&now.cluster_cidrs),
        ),
        (
            "service-cidr",
            networks(&before.service_cidrs),
            networks(&now.service_cidrs),
        ),
        ("cluster-domain", domain(before), domain(now)),
    ];
    let changed = rows.into_iter().find(|(_, before, now)| before != now);
    changed.map(|(option, before, now)| {
        format!(
            "the data was made with --{option}={}, and now it is {}",
            before.join(","),
            now.join(",")
        )
    })
}

/// Ranges as they are meant: 10.42.7.0/16 is 10.42.0.0/16.
fn networks(texts: &[String]) -> Vec<String> {
    let network = |text: &String| match text.parse::<ipnet::IpNet>() {
        Ok(range) => range.trunc().to_string(),
        Err(_) => text.clone(),
    };
    texts.iter().map(network).collect()
}

fn metadata() -> ObjectMeta {
    ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        ..ObjectMeta::default()
    }
}

fn reader() -> Role {
    Role {
        metadata: metadata(),
        rules: Some(vec![PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![ConfigMap::URL_PATH_SEGMENT.to_owned()]),
            resource_names: Some(vec![NAME.to_owned()]),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        }]),
    }
}

fn readers() -> RoleBinding {
    RoleBinding {
        metadata: metadata(),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Role".to_owned(),
            name: NAME.to_owned(),
        },
        subjects: Some(vec![Subject {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Group".to_owned(),
            name: well_known::NODES.to_owned(),
            namespace: None,
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(cluster: &str, service: &str, domain: &str) -> ClusterInfo {
        ClusterInfo {
            cluster_cidrs: vec![cluster.to_owned()],
            service_cidrs: vec![service.to_owned()],
            cluster_dns: Vec::new(),
            cluster_domain: domain.to_owned(),
            client_authority: String::new(),
        }
    }

    #[test]
    fn what_a_cluster_was_made_with_is_told() {
        let made = info("10.42.0.0/16", "10.43.0.0/16", "cluster.local");
        let now = |cluster, service, domain| difference(&made, &info(cluster, service, domain));
        assert_eq!(now("10.42.9.1/16", "10.43.0.0/16", "cluster.local"), None);
        let rows = [
            (
                now("10.44.0.0/16", "10.43.0.0/16", "cluster.local"),
                "--cluster-cidr=10.42.0.0/16, and now it is 10.44.0.0/16",
            ),
            (
                now("10.42.0.0/16", "10.43.0.0/17", "cluster.local"),
                "--service-cidr=10.43.0.0/16, and now it is 10.43.0.0/17",
            ),
            (
                now("10.42.0.0/16", "10.43.0.0/16", "home"),
                "--cluster-domain=cluster.local, and now it is home",
            ),
        ];
        for (told, expected) in rows {
            assert!(
                told.as_deref().is_some_and(|text| text.ends_with(expected)),
                "{told:?}"
            );
        }
    }
}

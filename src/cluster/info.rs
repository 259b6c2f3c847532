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

fn kept_before(path: &Path) -> Option<ClusterInfo> {
    let text = files::read_optional(path).ok().flatten()?;
    serde_json::from_str(&text).ok()
}

/// A node that cannot keep it only waits for its server next time.
fn keep(path: &Path, info: &ClusterInfo) {
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

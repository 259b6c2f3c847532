//! What every node must know of the cluster, published as a ConfigMap that joining nodes may read.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::user::well_known;
use sampan_client::{Client, Error, Patch, Resource};
use sampan_pki::files::{self, PUBLIC};
use serde::{Deserialize, Serialize};
use serde_json::json;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "sampan-cluster";
const KEY: &str = "cluster.json";

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

/// From the server, else as it was when the server was last seen: an agent starts without it.
pub async fn read_or_remember(client: &Client, path: &Path) -> Result<ClusterInfo, InfoError> {
    let error = match read(client).await {
        Ok(info) => {
            remember(&info, path);
            return Ok(info);
        }
        Err(error) => error,
    };
    let kept = files::read_optional(path).ok().flatten();
    let info = kept.and_then(|text| serde_json::from_str(&text).ok());
    match info {
        Some(info) => {
            tracing::warn!(%error, "starting with the cluster's settings as they were last seen");
            Ok(info)
        }
        None => Err(error),
    }
}

/// Losing this costs only a start without the server.
fn remember(info: &ClusterInfo, path: &Path) {
    let saved = serde_json::to_string(info)
        .map_err(|error| error.to_string())
        .and_then(|text| {
            let known = files::read_optional(path).ok().flatten();
            if known.as_deref() == Some(text.as_str()) {
                return Ok(());
            }
            files::write_atomic(path, text.as_bytes(), PUBLIC).map_err(|error| error.to_string())
        });
    if let Err(error) = saved {
        tracing::warn!(%error, "the cluster's settings cannot be remembered");
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

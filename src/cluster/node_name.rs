//! A server's own node has no certificate request, so the server takes its name itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{Client, Error};
use sampan_pki::node_name::{self, DATA_KEY, NAMESPACE, SECRET_TYPE};
use sampan_util::{Backoff, Shutdown};

/// With the store, not with the node: who restores the store's folder has the name as well.
const KEY_FILE: &str = "node-name.key";
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    #[error("{0}")]
    Taken(String),
    #[error(transparent)]
    Pki(#[from] sampan_pki::Error),
    #[error("cannot take the name of this server's node: {0}")]
    Api(#[from] Error),
}

/// Takes the name for the key in `folder`, or finds that it is that key's already. To be called before the cluster
/// approves requests.
pub async fn take(client: &Client, node: &str, folder: &Path) -> Result<(), NodeNameError> {
    let hash = node_name::key_hash(&node_name::ensure_key(&folder.join(KEY_FILE))?.spki());
    let refused = || NodeNameError::Taken(node_name::refusal_of_server(node));
    let name = node_name::secret_name(node).ok_or_else(refused)?;
    match client.get::<Secret>(Some(NAMESPACE), &name).await {
        Ok(secret) if is_of(&secret, &hash) => return Ok(()),
        Ok(_) => return Err(refused()),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    match client.create(&secret(name, hash)).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Err(refused()),
        Err(error) => Err(error.into()),
    }
}

/// Takes the name once the store can be written again, until shutdown. Meanwhile nobody else is given it: that, too, would
/// have to be written.
pub async fn take_later(client: Client, node: String, folder: PathBuf, shutdown: Shutdown) {
    let mut failures: u32 = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep(RETRY.delay(failures)) => {}
            () = shutdown.wait() => return,
        }
        match take(&client, &node, &folder).await {
            Ok(()) => {
                tracing::info!(node, "the name of this server's node is taken");
                return;
            }
            // The API is in use by now, which this node is not worth ending; the next start says it as well.
            Err(error @ NodeNameError::Taken(_)) => {
                tracing::error!(%error, "this server's node goes by a name that is not its own");
                return;
            }
            Err(error) => tracing::warn!(%error, "trying again"),
        }
        failures = failures.saturating_add(1);
    }
}

fn is_of(secret: &Secret, hash: &str) -> bool {
    let data = secret.data.as_ref().and_then(|data| data.get(DATA_KEY));
    data.is_some_and(|found| found.0 == hash.as_bytes())
}

fn secret(name: String, hash: String) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some([(DATA_KEY.to_owned(), ByteString(hash.into_bytes()))].into()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_has_the_name() {
        let secret = secret("a.node-password.sampan".to_owned(), "abc".to_owned());
        assert!(is_of(&secret, "abc"));
        assert!(!is_of(&secret, "abd") && !is_of(&Secret::default(), "abc"));
    }
}

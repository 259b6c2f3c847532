//! How a machine becomes a node: it learns the cluster's CA, checks it against the token, and asks for certificates.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sampan_client::{Client, Credentials, Error, HttpsTransport};
use sampan_pki::files::{self, PUBLIC};
use sampan_pki::{Identity, JoinToken};
use sampan_util::Backoff;

use crate::identity::{self, CertificateSpec, IdentityError};

const USER_AGENT: &str = concat!("sampan-agent/", env!("CARGO_PKG_VERSION"));
const AUTHORITY_FILE: &str = "server-ca.crt";
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("the server {server} did not answer: {source}")]
    Unreachable { server: String, source: Error },
    #[error(
        "the server {server} is not the one the token was made for (its CA has the hash {found}): \
         check --server, or copy the token again from <data-dir>/server/node-token"
    )]
    WrongCluster { server: String, found: String },
    #[error(
        "the server {server} does not accept the token: copy it again from <data-dir>/server/node-token"
    )]
    TokenRefused { server: String },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Pki(#[from] sampan_pki::Error),
    #[error("the server answered {path} with no certificate")]
    NoAuthority { path: &'static str },
}

/// What a joining machine brings.
pub struct Newcomer {
    pub server: String,
    /// May be absent once the node has certificates.
    pub token: Option<String>,
    pub node_name: String,
    pub node_ips: Vec<IpAddr>,
    /// Where certificates are kept.
    pub dir: PathBuf,
}

/// A node's place in the cluster: what it presents, and whom it believes.
pub struct Membership {
    pub server: String,
    pub authority_pem: String,
    pub kubelet: HttpsTransport,
    pub proxy: HttpsTransport,
    pub serving: Identity,
}

impl Newcomer {
    /// Joins, or takes up the membership that is on disk. Waits for a server that is not up yet.
    pub async fn join(&self) -> Result<Membership, JoinError> {
        let authority_pem = self.authority(AUTHORITY_FILE, "/cacerts").await?;
        let now = SystemTime::now();
        let kubelet_spec = identity::kubelet_client(&self.node_name);
        let kubelet_identity = match kubelet_spec.load(&self.dir, now)? {
            Some(identity) => identity,
            None => self.bootstrap(&authority_pem, &kubelet_spec).await?,
        };
        let kubelet =
            self.transport(&authority_pem, &Credentials::Certificate(kubelet_identity))?;
        let client = Client::new(Arc::new(kubelet.clone()));
        let serving = identity::kubelet_serving(&self.node_name, &self.node_ips);
        let (serving, proxy) = tokio::try_join!(
            identity::ensure(&client, &serving, &self.dir, now),
            self.proxy(&client, now)
        )?;
        Ok(Membership {
            server: self.server.clone(),
            proxy: self.transport(&authority_pem, &Credentials::Certificate(proxy))?,
            authority_pem,
            kubelet,
            serving,
        })
    }

    async fn proxy(&self, client: &Client, now: SystemTime) -> Result<Identity, IdentityError> {
        identity::ensure(client, &identity::proxy_client(), &self.dir, now).await
    }

    fn transport(&self, authority: &str, who: &Credentials) -> Result<HttpsTransport, JoinError> {
        HttpsTransport::new(&self.server, Some(authority), who, USER_AGENT)
            .map_err(|source| self.unreachable(source))
    }

    fn unreachable(&self, source: Error) -> JoinError {
        JoinError::Unreachable {
            server: self.server.clone(),
            source,
        }
    }

    /// The CA from disk, else from the server. Until the token has vouched for it, it is not used for anything.
    async fn authority(&self, file: &str, path: &'static str) -> Result<String, JoinError> {
        let kept = self.dir.join(file);
        if let Some(pem) = files::read_optional(&kept)? {
            return Ok(pem);
        }
        let pem = self.fetch(None, path).await?;
        if let Some(token) = &self.token {
            let token = JoinToken::parse(token)?;
            if !token.trusts(&pem) {
                return Err(JoinError::WrongCluster {
                    server: self.server.clone(),
                    found: sampan_pki::join::authority_hash(&pem),
                });
            }
            if token.authority_hash.is_none() {
                tracing::warn!(
                    "the token carries no hash of the cluster's CA, so the server cannot be verified on this first contact"
                );
            }
        }
        save(&self.dir, &kept, &pem)?;
        Ok(pem)
    }

    /// The certificate at a public path. A server that does not answer is asked again, with back-off: machines of one
    /// house boot in any order.
    async fn fetch(
        &self,
        authority: Option<&str>,
        path: &'static str,
    ) -> Result<String, JoinError> {
        let transport =
            HttpsTransport::new(&self.server, authority, &Credentials::Anonymous, USER_AGENT)
                .map_err(|source| self.unreachable(source))?;
        let mut failures = 0;
        loop {
            match transport.get_path(path).await {
                Ok(body) => {
                    let pem = String::from_utf8_lossy(&body).into_owned();
                    return if pem.contains("BEGIN CERTIFICATE") {
                        Ok(pem)
                    } else {
                        Err(JoinError::NoAuthority { path })
                    };
                }
                Err(source @ Error::Api(_)) => return Err(self.unreachable(source)),
                Err(error) => {
                    if failures % 10 == 0 {
                        tracing::info!(server = %self.server, %error, "waiting for the server");
                    }
                    tokio::time::sleep(RETRY.delay(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    /// The first certificate, asked for with the token.
    async fn bootstrap(
        &self,
        authority: &str,
        spec: &CertificateSpec,
    ) -> Result<Identity, JoinError> {
        let token = self.token.as_deref().unwrap_or_default();
        let password = JoinToken::parse(token)?.password;
        let transport = self.transport(authority, &Credentials::Token(password))?;
        let client = Client::new(Arc::new(transport));
        identity::request(&client, spec, &self.dir)
            .await
            .map_err(|error| match error {
                IdentityError::Request { source, .. } if is_unauthorized(&source) => {
                    JoinError::TokenRefused {
                        server: self.server.clone(),
                    }
                }
                other => other.into(),
            })
    }
}

fn is_unauthorized(error: &Error) -> bool {
    error.status().is_some_and(|status| status.code == 401)
}

fn save(dir: &Path, path: &Path, pem: &str) -> Result<(), JoinError> {
    files::create_private_dir(dir)?;
    files::write_atomic(path, pem.as_bytes(), PUBLIC)?;
    Ok(())
}

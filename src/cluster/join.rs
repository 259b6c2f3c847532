//! How a machine becomes a node: it learns the cluster's CA, checks it against the token, and asks for certificates.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sampan_client::{Client, Credentials, Error, HttpsTransport};
use sampan_net::{ServerIdentity, TcpDialer, Trust};
use sampan_pki::authority::is_signed_by;
use sampan_pki::files::{self, PUBLIC};
use sampan_pki::{Authority, Identity, JoinToken, LeafSpec};
use sampan_util::Backoff;

use crate::identity::{self, CertificateSpec, IdentityError};
use crate::renew::Kept;
use crate::servers::Servers;

const USER_AGENT: &str = concat!("sampan-agent/", env!("CARGO_PKG_VERSION"));
const AUTHORITY_FILE: &str = "server-ca.crt";
const SERVERS_FILE: &str = "servers.json";
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
        "no token was given, and this machine has not joined a cluster yet: pass --token or --token-file \
         with the content of <data-dir>/server/node-token of the server"
    )]
    NoToken,
    #[error(
        "the server {server} does not accept the token: copy it again from <data-dir>/server/node-token"
    )]
    TokenRefused { server: String },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Pki(#[from] sampan_pki::Error),
    #[error(transparent)]
    Tls(#[from] sampan_net::tls::TlsError),
    #[error("the server answered {path} with no certificate")]
    NoAuthority { path: &'static str },
}

/// What a joining machine brings.
#[derive(Clone)]
pub struct Newcomer {
    pub server: String,
    /// May be absent once the node has certificates.
    pub token: Option<String>,
    pub node_name: String,
    /// Where certificates are kept.
    pub dir: PathBuf,
}

/// A node's place in the cluster: what it presents, and whom it believes.
#[derive(Clone)]
pub struct Membership {
    pub newcomer: Newcomer,
    pub authority_pem: String,
    pub kubelet: HttpsTransport,
    pub proxy: HttpsTransport,
    /// What the kubelet shows. On the first start nobody has signed it yet.
    pub serving: Arc<ServerIdentity>,
    pub servers: Servers,
}

impl Newcomer {
    /// Joins, or takes up the membership that is on disk, for which no server is needed. Waits for a server that is
    /// not up yet.
    pub async fn join(&self) -> Result<Membership, JoinError> {
        let servers = Servers::new(&self.server, &self.dir.join(SERVERS_FILE));
        let authority_pem = self.authority(AUTHORITY_FILE, "/cacerts").await?;
        let now = SystemTime::now();
        let kubelet_spec = identity::kubelet_client(&self.node_name);
        let kubelet_identity = match kubelet_spec.load(&self.dir, now)? {
            Some(identity) => identity,
            None => self.bootstrap(&authority_pem, &kubelet_spec).await?,
        };
        let kubelet =
            self.transport(&authority_pem, &Credentials::Certificate(kubelet_identity))?;
        let proxy_spec = identity::proxy_client();
        let proxy = match proxy_spec.load(&self.dir, now)? {
            Some(identity) => identity,
            None => {
                let client = Client::new(Arc::new(kubelet.clone()));
                identity::request(&client, &proxy_spec, &self.dir).await?
            }
        };
        let serving = match identity::kubelet_serving(&self.node_name, &[]).load(&self.dir, now)? {
            Some(identity) => identity,
            None => self.unsigned(now)?,
        };
        servers.remember();
        Ok(Membership {
            newcomer: self.clone(),
            proxy: self.transport(&authority_pem, &Credentials::Certificate(proxy))?,
            authority_pem,
            kubelet,
            serving: ServerIdentity::new(&serving)?,
            servers,
        })
    }

    /// Stands in until the cluster has signed: a node that waited for that could not tell the cluster its address,
    /// without which the cluster does not sign.
    fn unsigned(&self, now: SystemTime) -> Result<Identity, sampan_pki::Error> {
        let spec = LeafSpec::server(&self.node_name, vec![self.node_name.clone()], vec![]);
        Authority::create("not signed yet", now)?.issue(&spec, now)
    }

    fn transport(&self, authority: &str, who: &Credentials) -> Result<HttpsTransport, JoinError> {
        let servers = Servers::new(&self.server, &self.dir.join(SERVERS_FILE)).known();
        let trust = Trust::Authorities(authority.to_owned());
        HttpsTransport::with_servers(servers, trust, who, USER_AGENT, Arc::new(TcpDialer))
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
        let token = self.token.as_deref().map(JoinToken::parse).transpose()?;
        let kept = self.dir.join(file);
        if let Some(pem) = files::read_optional(&kept)? {
            if let Some(token) = &token {
                self.vouch(token, &pem)?;
            }
            return Ok(pem);
        }
        // Without a token nobody could tell whose certificate this is.
        let token = token.ok_or(JoinError::NoToken)?;
        let pem = self.fetch(None, path).await?;
        self.vouch(&token, &pem)?;
        if token.authority_hash.is_none() {
            tracing::warn!(
                "the token carries no hash of the cluster's CA, so the server cannot be verified on this first contact"
            );
        }
        save(&self.dir, &kept, &pem)?;
        Ok(pem)
    }

    fn vouch(&self, token: &JoinToken, pem: &str) -> Result<(), JoinError> {
        if token.trusts(pem) {
            return Ok(());
        }
        Err(JoinError::WrongCluster {
            server: self.server.clone(),
            found: sampan_pki::join::authority_hash(pem),
        })
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

    /// The first certificate, asked for with the token, and the next one of a node that was away for too long.
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

impl Membership {
    /// The node's certificates, to be kept fresh for these addresses.
    pub fn renewals(&self, ips: &[IpAddr]) -> Vec<Kept> {
        let node = &self.newcomer.node_name;
        let (kubelet, proxy) = (self.kubelet.clone(), self.proxy.clone());
        let serving = Arc::clone(&self.serving);
        let as_client = |transport: HttpsTransport| -> Apply {
            Arc::new(move |identity| {
                let credentials = Credentials::Certificate(identity.clone());
                let replaced = transport.replace_credentials(&credentials);
                replaced.map_err(|error| error.to_string())
            })
        };
        let as_server: Apply = Arc::new(move |identity| {
            let replaced = serving.replace(identity);
            replaced.map_err(|error| error.to_string())
        });
        vec![
            self.kept(identity::kubelet_client(node), as_client(kubelet)),
            self.kept(identity::proxy_client(), as_client(proxy)),
            self.kept(identity::kubelet_serving(node, ips), as_server),
        ]
    }

    fn kept(&self, spec: CertificateSpec, apply: Apply) -> Kept {
        let now = SystemTime::now();
        let known = spec.load(&self.newcomer.dir, now).ok().flatten();
        // Such a certificate would let the node pass for the API server: once that signed for kubelets as well.
        let known = known.filter(|identity| {
            let is_server = spec.usages.contains(&identity::SERVER_AUTH);
            !is_server || !is_signed_by(&identity.certificate_pem, &self.authority_pem)
        });
        let membership = self.clone();
        Kept {
            name: spec.name,
            due: known.map_or(SystemTime::UNIX_EPOCH, |identity| spec.due_at(&identity)),
            renew: Box::new(move || {
                let (membership, spec) = (membership.clone(), spec.clone());
                let apply = Arc::clone(&apply);
                Box::pin(async move {
                    let identity = membership.renew(&spec).await;
                    let identity = identity.map_err(|error| error.to_string())?;
                    apply(&identity)?;
                    Ok(spec.due_at(&identity))
                })
            }),
        }
    }

    /// As the node itself; should its own certificate have expired (a clock was set), with the token.
    async fn renew(&self, spec: &CertificateSpec) -> Result<Identity, JoinError> {
        let client = Client::new(Arc::new(self.kubelet.clone()));
        let newcomer = &self.newcomer;
        match identity::request(&client, spec, &newcomer.dir).await {
            Err(IdentityError::Request { source, .. })
                if is_unauthorized(&source) && newcomer.token.is_some() =>
            {
                newcomer.bootstrap(&self.authority_pem, spec).await
            }
            other => Ok(other?),
        }
    }
}

/// Puts a new identity to use.
type Apply = Arc<dyn Fn(&Identity) -> Result<(), String> + Send + Sync>;

fn is_unauthorized(error: &Error) -> bool {
    error.status().is_some_and(|status| status.code == 401)
}

fn save(dir: &Path, path: &Path, pem: &str) -> Result<(), JoinError> {
    files::create_private_dir(dir)?;
    files::write_atomic(path, pem.as_bytes(), PUBLIC)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn newcomer(name: &str, token: Option<String>) -> Newcomer {
        let dir = std::env::temp_dir().join(format!("sampan-join-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Newcomer {
            // Nobody listens there.
            server: "https://127.0.0.1:9".to_owned(),
            token,
            node_name: "n".to_owned(),
            dir,
        }
    }

    #[tokio::test]
    async fn nothing_is_believed_without_a_token() {
        let newcomer = newcomer("none", None);
        let joined = tokio::time::timeout(Duration::from_secs(5), newcomer.join());
        let refused = joined.await.unwrap().err().unwrap();
        assert!(matches!(refused, JoinError::NoToken), "{refused}");
        assert!(!newcomer.dir.join(AUTHORITY_FILE).exists());
    }

    #[tokio::test]
    async fn the_token_is_held_against_what_was_kept_too() {
        let token = JoinToken::new("the cluster's CA", "node", "x").format();
        let newcomer = newcomer("kept", Some(token));
        save(
            &newcomer.dir,
            &newcomer.dir.join(AUTHORITY_FILE),
            "another CA",
        )
        .unwrap();
        let refused = newcomer.join().await.err().unwrap();
        assert!(
            matches!(refused, JoinError::WrongCluster { .. }),
            "{refused}"
        );
        save(
            &newcomer.dir,
            &newcomer.dir.join(AUTHORITY_FILE),
            "the cluster's CA",
        )
        .unwrap();
        let kept = newcomer.authority(AUTHORITY_FILE, "/cacerts").await;
        assert_eq!(kept.unwrap(), "the cluster's CA");
        std::fs::remove_dir_all(&newcomer.dir).unwrap();
    }
}

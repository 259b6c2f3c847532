//! A node's certificates: kept on disk, requested from the cluster when missing, unfit or nearly expired.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::user::well_known;
use sampan_client::{Client, Informers, ListParams};
use sampan_pki::certificate::CertificateInfo;
use sampan_pki::files::{self, PRIVATE};
use sampan_pki::{Identity, PrivateKey, RequestSpec, node_name};
use sampan_util::Shutdown;
use tokio::sync::Notify;

/// How long a node waits for its request to be approved and signed.
const SIGNING_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("certificate {name}: {source}")]
    Pki {
        name: &'static str,
        source: sampan_pki::Error,
    },
    #[error("certificate {name}: the request was not accepted: {source}")]
    Request {
        name: &'static str,
        source: sampan_client::Error,
    },
    #[error("certificate {name}: the cluster refused it: {why}")]
    Denied { name: &'static str, why: String },
    #[error(
        "certificate {name}: not signed within a minute; see `kubectl describe csr {request}` on the server"
    )]
    NotSigned { name: &'static str, request: String },
}

/// One certificate of a node; the three below are all there are.
#[derive(Debug, Clone)]
pub struct CertificateSpec {
    /// Also the name of its files.
    pub name: &'static str,
    pub signer: &'static str,
    pub usages: &'static [&'static str],
    pub subject: RequestSpec,
    /// The key stays the same while its certificates change: by it the cluster knows whose the node's name is.
    pub keeps_key: bool,
}

const CLIENT_USAGES: &[&str] = &["digital signature", "key encipherment", "client auth"];
/// The usage of what is shown to clients.
pub const SERVER_AUTH: &str = "server auth";
const SERVER_USAGES: &[&str] = &["digital signature", "key encipherment", SERVER_AUTH];

/// With this one the kubelet talks to the API server.
pub fn kubelet_client(node: &str) -> CertificateSpec {
    CertificateSpec {
        name: "client-kubelet",
        signer: "kubernetes.io/kube-apiserver-client-kubelet",
        usages: CLIENT_USAGES,
        subject: RequestSpec {
            common_name: format!("{}{node}", well_known::NODE_USER_PREFIX),
            organizations: vec![well_known::NODES.to_owned()],
            ..RequestSpec::default()
        },
        keeps_key: true,
    }
}

/// This one the kubelet shows to the API server, for logs and exec.
pub fn kubelet_serving(node: &str, ips: &[IpAddr]) -> CertificateSpec {
    CertificateSpec {
        name: "serving-kubelet",
        signer: "kubernetes.io/kubelet-serving",
        usages: SERVER_USAGES,
        subject: RequestSpec {
            common_name: format!("{}{node}", well_known::NODE_USER_PREFIX),
            organizations: vec![well_known::NODES.to_owned()],
            dns_names: vec![node.to_owned()],
            ips: ips.to_vec(),
        },
        keeps_key: false,
    }
}

/// With this one the service proxy, the pod network and DNS talk to the API server.
pub fn proxy_client() -> CertificateSpec {
    CertificateSpec {
        name: "client-kube-proxy",
        signer: "kubernetes.io/kube-apiserver-client",
        usages: CLIENT_USAGES,
        subject: RequestSpec {
            common_name: "system:kube-proxy".to_owned(),
            ..RequestSpec::default()
        },
        keeps_key: false,
    }
}

impl CertificateSpec {
    fn paths(&self, dir: &Path) -> (PathBuf, PathBuf) {
        let file = |suffix: &str| dir.join(format!("{}.{suffix}", self.name));
        (file("crt"), file("key"))
    }

    /// The identity on disk, if it is this one's and would be believed now. It may be due all the same.
    pub fn load(&self, dir: &Path, now: SystemTime) -> Result<Option<Identity>, IdentityError> {
        let (certificate, key) = self.paths(dir);
        let read = |path: &Path| files::read_optional(path).map_err(|source| self.pki(source));
        let (Some(certificate_pem), Some(key_pem)) = (read(&certificate)?, read(&key)?) else {
            return Ok(None);
        };
        let fits = CertificateInfo::from_pem(&certificate_pem)
            .is_ok_and(|info| self.names(&info) && info.is_valid(now));
        // A half-written pair is worth nothing: it is asked for again.
        let fits = fits && PrivateKey::from_pem(&key_pem).is_ok();
        Ok(fits.then_some(Identity {
            certificate_pem,
            key_pem,
        }))
    }

    fn names(&self, info: &CertificateInfo) -> bool {
        info.common_name == self.subject.common_name
            && info.organizations == self.subject.organizations
    }

    /// When a certificate is due: at once if the node has addresses that it does not name.
    pub fn due_at(&self, identity: &Identity) -> SystemTime {
        let info = CertificateInfo::from_pem(&identity.certificate_pem).ok();
        let covering = info.filter(|info| {
            self.names(info) && self.subject.ips.iter().all(|ip| info.ips.contains(ip))
        });
        covering.map_or(SystemTime::UNIX_EPOCH, |info| info.due_at())
    }

    /// What the next certificate is for. A key that is kept is on disk before the cluster hears of it.
    fn key(&self, dir: &Path) -> Result<PrivateKey, IdentityError> {
        let key = match self.keeps_key {
            true => node_name::ensure_key(&self.paths(dir).1),
            false => PrivateKey::generate(),
        };
        key.map_err(|source| self.pki(source))
    }

    fn save(&self, dir: &Path, identity: &Identity) -> Result<(), IdentityError> {
        let (certificate, key) = self.paths(dir);
        let write = |path: &Path, text: &str| {
            files::write_atomic(path, text.as_bytes(), PRIVATE).map_err(|source| self.pki(source))
        };
        files::create_private_dir(dir).map_err(|source| self.pki(source))?;
        write(&key, &identity.key_pem)?;
        write(&certificate, &identity.certificate_pem)
    }

    fn pki(&self, source: sampan_pki::Error) -> IdentityError {
        IdentityError::Pki {
            name: self.name,
            source,
        }
    }

    fn request(&self, source: sampan_client::Error) -> IdentityError {
        IdentityError::Request {
            name: self.name,
            source,
        }
    }
}

/// A new identity, whatever is on disk.
pub async fn request(
    client: &Client,
    spec: &CertificateSpec,
    dir: &Path,
) -> Result<Identity, IdentityError> {
    let key = spec.key(dir)?;
    let pem = spec
        .subject
        .encode(&key)
        .map_err(|source| spec.pki(source))?;
    let object = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("csr-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: spec.signer.to_owned(),
            usages: Some(spec.usages.iter().map(|&usage| usage.to_owned()).collect()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let created = client
        .create(&object)
        .await
        .map_err(|source| spec.request(source))?;
    let name = created.metadata.name.unwrap_or_default();
    let certificate_pem = signed(client, spec, &name).await?;
    let identity = Identity {
        certificate_pem,
        key_pem: key.pem().to_owned(),
    };
    spec.save(dir, &identity)?;
    tracing::info!(certificate = spec.name, request = %name, "the cluster issued a certificate");
    Ok(identity)
}

/// The certificate once the request carries it. Its watch ends with this function.
async fn signed(
    client: &Client,
    spec: &CertificateSpec,
    name: &str,
) -> Result<String, IdentityError> {
    let shutdown = Shutdown::new();
    let informers = Informers::new(client.clone(), shutdown.clone());
    let params = ListParams::fields(format!("metadata.name={name}"));
    let lister = informers.lister_with::<CertificateSigningRequest>(None, params);
    let changed = std::sync::Arc::new(Notify::new());
    let notify = changed.clone();
    lister.on_change(move |_| notify.notify_one());
    let wait = async {
        loop {
            if let Some(outcome) = lister.get(None, name).and_then(|csr| outcome(spec, &csr)) {
                return outcome;
            }
            changed.notified().await;
        }
    };
    let result = tokio::time::timeout(SIGNING_TIMEOUT, wait).await;
    shutdown.trigger();
    result.unwrap_or_else(|_| {
        Err(IdentityError::NotSigned {
            name: spec.name,
            request: name.to_owned(),
        })
    })
}

fn outcome(
    spec: &CertificateSpec,
    request: &CertificateSigningRequest,
) -> Option<Result<String, IdentityError>> {
    let status = request.status.as_ref()?;
    if let Some(certificate) = &status.certificate {
        return Some(Ok(String::from_utf8_lossy(&certificate.0).into_owned()));
    }
    let refused = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))?;
    Some(Err(IdentityError::Denied {
        name: spec.name,
        why: refused.message.clone().unwrap_or_default(),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use k8s_openapi::api::certificates::v1::{
        CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    };

    #[test]
    fn a_refusal_ends_the_wait() {
        let spec = proxy_client();
        let mut request = CertificateSigningRequest::default();
        assert!(outcome(&spec, &request).is_none());
        request.status = Some(CertificateSigningRequestStatus {
            conditions: Some(vec![CertificateSigningRequestCondition {
                type_: "Denied".to_owned(),
                message: Some("no".to_owned()),
                ..CertificateSigningRequestCondition::default()
            }]),
            ..CertificateSigningRequestStatus::default()
        });
        let text = outcome(&spec, &request).unwrap().unwrap_err().to_string();
        assert_eq!(
            text,
            "certificate client-kube-proxy: the cluster refused it: no"
        );
    }

    #[test]
    fn one_key_is_kept_and_the_others_are_not() {
        let dir = std::env::temp_dir().join(format!("sampan-keys-{}", std::process::id()));
        let keys = |spec: CertificateSpec| {
            let pem = || spec.key(&dir).unwrap().pem().to_owned();
            (pem(), pem())
        };
        let (first, second) = keys(kubelet_client("a"));
        assert_eq!(first, second);
        for spec in [kubelet_serving("a", &[]), proxy_client()] {
            let (first, second) = keys(spec);
            assert_ne!(first, second);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn nothing_on_disk_is_no_error() {
        let spec = kubelet_client("a");
        let missing = Path::new("/nonexistent-sampan-test");
        assert_eq!(spec.load(missing, SystemTime::now()).unwrap(), None);
    }
}

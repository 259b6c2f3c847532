//! Everything a server's certificates directory holds, made on first start and kept up to date.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::Error;
use crate::authority::{Authority, Identity, LEAF_LIFETIME, LeafSpec};
use crate::certificate::CertificateInfo;
use crate::files::{self, PRIVATE};
use crate::jws::{TokenSigner, TokenVerifier};
use crate::key::PrivateKey;
use crate::usage::Usage;

/// Authorities that are so close in time were made together.
const A_BREATH: Duration = Duration::from_secs(60);

/// Under which names and addresses the API server is reached.
#[derive(Debug, Clone, Default)]
pub struct ServerNames {
    pub dns_names: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub cluster_domain: String,
    /// How long what this server signs is valid, if not for a year.
    pub leaf_life: Option<Duration>,
}

impl ServerNames {
    /// With the names that every API server has.
    fn all_dns_names(&self) -> Vec<String> {
        let mut names: Vec<String> = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "localhost",
        ]
        .map(str::to_owned)
        .to_vec();
        if !self.cluster_domain.is_empty() {
            names.push(format!("kubernetes.default.svc.{}", self.cluster_domain));
        }
        for name in &self.dns_names {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    fn all_ips(&self) -> Vec<IpAddr> {
        let mut ips = vec![
            IpAddr::from(std::net::Ipv4Addr::LOCALHOST),
            IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
        ];
        for ip in &self.ips {
            if !ips.contains(ip) && !ip.is_unspecified() {
                ips.push(*ip);
            }
        }
        ips
    }
}

/// The server's authorities, identities and token keys.
#[derive(Debug)]
pub struct ServerPki {
    /// Signs the API server's serving certificate; clients trust it.
    pub server_ca: Arc<Authority>,
    /// Signs kubelets' serving certificates; the API server alone trusts it.
    pub kubelet_ca: Arc<Authority>,
    /// Signs client certificates; the API server trusts it.
    pub client_ca: Arc<Authority>,
    /// Signs the front proxy's certificate (aggregation).
    pub request_header_ca: Arc<Authority>,
    /// What the API server shows to its clients.
    pub serving: Identity,
    /// What the API server shows to kubelets.
    pub kubelet_client: Identity,
    /// What the API server shows to extension API servers.
    pub front_proxy_client: Identity,
    /// The administrator's identity, for the kubeconfig.
    pub admin: Identity,
    pub token_signer: Arc<TokenSigner>,
    pub token_verifier: TokenVerifier,
}

impl ServerPki {
    /// Loads what is there, makes what is missing or due. Idempotent.
    pub fn ensure(dir: &Path, names: &ServerNames, now: SystemTime) -> Result<Self, Error> {
        files::create_private_dir(dir)?;
        let seconds = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let authority = |name: &str| {
            let common_name = format!("sampan-{name}@{seconds}");
            let authority = Authority::ensure(dir, name, &common_name, now)?;
            Ok::<_, Error>(Arc::new(match names.leaf_life {
                Some(life) => authority.with_leaf_life(life),
                None => authority,
            }))
        };
        let server_ca = authority("server-ca")?;
        let kubelet_ca = authority("kubelet-ca")?;
        let client_ca = authority("client-ca")?;
        let request_header_ca = authority("request-header-ca")?;
        let client = |ca: &Authority, file: &str, name: &str, groups: &[&str]| {
            ca.ensure_leaf(dir, file, &LeafSpec::client(name, groups), now)
        };
        let kubelet_client = client(
            &client_ca,
            "client-kube-apiserver",
            "kube-apiserver-kubelet-client",
            &["system:masters"],
        )?;
        let admin = client(
            &client_ca,
            "client-admin",
            "system:admin",
            &["system:masters"],
        )?;
        let front_proxy_client = client(
            &request_header_ca,
            "client-auth-proxy",
            "system:auth-proxy",
            &[],
        )?;
        let token_signer = Arc::new(ensure_token_key(&dir.join("service.key"))?);
        Ok(Self {
            serving: ensure_serving(dir, &server_ca, names, now)?,
            token_verifier: token_signer.verifier(),
            server_ca,
            kubelet_ca,
            client_ca,
            request_header_ca,
            kubelet_client,
            front_proxy_client,
            admin,
            token_signer,
        })
    }

    /// Whose certificates kubelets may show (PEM). Before there was an authority of their own the API server's signed
    /// them: where that was so, what it signed is accepted as long as any of it can be valid.
    pub fn kubelet_authorities(&self, now: SystemTime) -> Result<String, Error> {
        let made_at = |authority: &Authority| {
            Ok::<_, Error>(CertificateInfo::from_der(authority.certificate_der())?.not_before)
        };
        let own = made_at(&self.kubelet_ca)?;
        let mut text = self.kubelet_ca.certificate_pem().to_owned();
        // On a new server both are made in the same breath.
        let was_alone = own > made_at(&self.server_ca)? + A_BREATH;
        let last = own.checked_add(LEAF_LIFETIME.max(self.server_ca.leaf_life()));
        if was_alone && last.is_none_or(|last| now < last) {
            text.push_str(self.server_ca.certificate_pem());
        }
        Ok(text)
    }

    /// When the first of the certificates is due to be made again.
    pub fn due_at(&self) -> Result<SystemTime, Error> {
        let leaves = [
            &self.serving,
            &self.kubelet_client,
            &self.front_proxy_client,
            &self.admin,
        ];
        let due = leaves
            .iter()
            .map(|leaf| Ok(CertificateInfo::from_pem(&leaf.certificate_pem)?.due_at()));
        let due = due.collect::<Result<Vec<_>, Error>>()?;
        Ok(due.into_iter().min().unwrap_or(SystemTime::UNIX_EPOCH))
    }
}

fn ensure_serving(
    dir: &Path,
    authority: &Authority,
    names: &ServerNames,
    now: SystemTime,
) -> Result<Identity, Error> {
    let mut spec = LeafSpec::server("kube-apiserver", names.all_dns_names(), names.all_ips());
    // Other servers of the cluster reach this one with the same certificate.
    spec.usages.push(Usage::CLIENT_AUTH);
    authority.ensure_leaf(dir, "serving-kube-apiserver", &spec, now)
}

fn ensure_token_key(path: &Path) -> Result<TokenSigner, Error> {
    let key = match files::read_optional(path)? {
        Some(pem) => PrivateKey::from_pem(&pem)?,
        None => {
            let key = PrivateKey::generate()?;
            files::write_atomic(path, key.pem().as_bytes(), PRIVATE)?;
            key
        }
    };
    Ok(TokenSigner::new(key))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn second_start_finds_everything_and_keys_are_private() {
        let dir = std::env::temp_dir().join(format!("sampan-server-pki-{}", std::process::id()));
        let now = SystemTime::now();
        let names = ServerNames {
            dns_names: vec!["node-a".to_owned()],
            ips: vec!["10.43.0.1".parse().unwrap()],
            cluster_domain: "cluster.local".to_owned(),
            leaf_life: None,
        };
        let first = ServerPki::ensure(&dir, &names, now).unwrap();
        let second = ServerPki::ensure(&dir, &names, now).unwrap();
        assert_eq!(first.serving, second.serving);
        assert_eq!(first.admin, second.admin);
        let info = CertificateInfo::from_pem(&second.serving.certificate_pem).unwrap();
        assert!(info.dns_names.iter().any(|name| name == "node-a"));
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            if entry.path().extension().is_some_and(|name| name == "key") {
                let mode = entry.metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{:?}", entry.path());
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn kubelets_have_an_authority_of_their_own_also_where_there_was_none() {
        let name = format!("sampan-kubelet-ca-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let now = SystemTime::now();
        let ensure = |at| ServerPki::ensure(&dir, &ServerNames::default(), at).unwrap();
        let count = |text: &str| text.matches("BEGIN CERTIFICATE").count();
        let new = ensure(now);
        assert_eq!(
            new.kubelet_authorities(now).unwrap(),
            new.kubelet_ca.certificate_pem()
        );
        // As a version without it left the directory a day ago.
        std::fs::remove_file(dir.join("kubelet-ca.crt")).unwrap();
        std::fs::remove_file(dir.join("kubelet-ca.key")).unwrap();
        let later = now + Duration::from_secs(24 * 3600);
        let upgraded = ensure(later);
        let both = upgraded.kubelet_authorities(later).unwrap();
        assert_eq!(count(&both), 2);
        assert!(both.contains(upgraded.server_ca.certificate_pem()));
        let (own, server) = (&upgraded.kubelet_ca, &upgraded.server_ca);
        let leaf = own.issue(&LeafSpec::default(), later).unwrap();
        let is_of = |authority: &Authority| {
            crate::authority::is_signed_by(&leaf.certificate_pem, authority.certificate_pem())
        };
        assert!(is_of(own) && !is_of(server));
        let at_last = later + LEAF_LIFETIME + A_BREATH;
        assert_eq!(count(&upgraded.kubelet_authorities(at_last).unwrap()), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

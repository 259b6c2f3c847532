//! Certificate authorities and what they issue.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use x509_parser::prelude::{FromDer, X509Certificate};

use crate::Error;
use crate::certificate::{self, CertificateInfo, Content, IssuerName, pem_block};
use crate::files::{self, PRIVATE, PUBLIC};
use crate::key::PrivateKey;
use crate::request::CertificateRequest;
use crate::usage::Usage;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
pub const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * DAY.as_secs());
pub const LEAF_LIFETIME: Duration = Duration::from_secs(365 * DAY.as_secs());

/// A certificate and its private key, both in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The leaf first, then what it needs to chain to a trusted authority.
    pub certificate_pem: String,
    pub key_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("certificate_pem", &self.certificate_pem)
            .finish_non_exhaustive()
    }
}

/// What a leaf certificate shall say.
#[derive(Debug, Clone, Default)]
pub struct LeafSpec {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub usages: Vec<Usage>,
}

impl LeafSpec {
    pub fn client(common_name: &str, organizations: &[&str]) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organizations: organizations.iter().map(|&name| name.to_owned()).collect(),
            usages: vec![
                Usage::DIGITAL_SIGNATURE,
                Usage::KEY_ENCIPHERMENT,
                Usage::CLIENT_AUTH,
            ],
            ..Self::default()
        }
    }

    pub fn server(common_name: &str, dns_names: Vec<String>, ips: Vec<IpAddr>) -> Self {
        Self {
            common_name: common_name.to_owned(),
            dns_names,
            ips,
            usages: vec![
                Usage::DIGITAL_SIGNATURE,
                Usage::KEY_ENCIPHERMENT,
                Usage::SERVER_AUTH,
            ],
            ..Self::default()
        }
    }

    /// True if `info` says at least all of this.
    fn is_covered_by(&self, info: &CertificateInfo) -> bool {
        info.common_name == self.common_name
            && info.organizations == self.organizations
            && self
                .dns_names
                .iter()
                .all(|name| info.dns_names.contains(name))
            && self.ips.iter().all(|ip| info.ips.contains(ip))
    }
}

/// A CA whose key we hold.
#[derive(Debug)]
pub struct Authority {
    key: PrivateKey,
    certificate_pem: String,
    certificate_der: Vec<u8>,
    /// Its subject: the issuer of what it signs.
    name: Vec<u8>,
    key_id: Vec<u8>,
    leaf_life: Duration,
}

impl Authority {
    pub fn create(common_name: &str, now: SystemTime) -> Result<Self, Error> {
        let key = PrivateKey::generate()?;
        let spki = key.spki();
        let name = certificate::subject(common_name, &[]);
        let key_id = certificate::key_id(&spki);
        let content = Content {
            subject: &name,
            spki: &spki,
            not_before: certificate::valid_from(now, AUTHORITY_LIFETIME),
            not_after: now + AUTHORITY_LIFETIME,
            alt_names: &[],
            usages: &[
                Usage::DIGITAL_SIGNATURE,
                Usage::KEY_ENCIPHERMENT,
                Usage::CERT_SIGN,
            ],
            is_authority: true,
        };
        let issuer = IssuerName {
            name: &name,
            key_id: &key_id,
        };
        let der = certificate::encode(&content, &issuer, &key)?;
        Self::new(pem_block("CERTIFICATE", &der), key)
    }

    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, Error> {
        Self::new(certificate_pem.to_owned(), PrivateKey::from_pem(key_pem)?)
    }

    fn new(certificate_pem: String, key: PrivateKey) -> Result<Self, Error> {
        let certificate_der = certificate::certificates_from_pem(&certificate_pem)?[0].to_vec();
        let (name, spki, key_id) = {
            let (_, parsed) = X509Certificate::from_der(&certificate_der).map_err(|error| {
                Error::Certificate {
                    reason: error.to_string(),
                }
            })?;
            let own_id =
                parsed
                    .iter_extensions()
                    .find_map(|extension| match extension.parsed_extension() {
                        x509_parser::prelude::ParsedExtension::SubjectKeyIdentifier(id) => {
                            Some(id.0.to_vec())
                        }
                        _ => None,
                    });
            (
                parsed.subject().as_raw().to_vec(),
                parsed.public_key().raw.to_vec(),
                own_id,
            )
        };
        if spki != key.spki() {
            return Err(Error::Key {
                reason: "it is not the key of this certificate".to_owned(),
            });
        }
        Ok(Self {
            key_id: key_id.unwrap_or_else(|| certificate::key_id(&spki)),
            leaf_life: LEAF_LIFETIME,
            key,
            certificate_pem,
            certificate_der,
            name,
        })
    }

    /// Loads `<dir>/<name>.crt` and `.key`, or creates both.
    pub fn ensure(
        dir: &Path,
        name: &str,
        common_name: &str,
        now: SystemTime,
    ) -> Result<Self, Error> {
        let certificate_path = dir.join(format!("{name}.crt"));
        let key_path = dir.join(format!("{name}.key"));
        let certificate = files::read_optional(&certificate_path)?;
        let key = files::read_optional(&key_path)?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => {
                Self::load(&certificate, &key).map_err(|_| Error::Mismatch {
                    path: certificate_path,
                })
            }
            (Some(_), None) => Err(Error::Mismatch {
                path: certificate_path,
            }),
            // A key without a certificate is what a crash between the two writes leaves behind.
            (None, _) => {
                let authority = Self::create(common_name, now)?;
                files::write_atomic(&key_path, authority.key.pem().as_bytes(), PRIVATE)?;
                let text = authority.certificate_pem.as_bytes();
                files::write_atomic(&certificate_path, text, PUBLIC)?;
                Ok(authority)
            }
        }
    }

    /// How long what it signs is valid from now on.
    pub fn with_leaf_life(mut self, life: Duration) -> Self {
        self.leaf_life = life;
        self
    }

    pub fn leaf_life(&self) -> Duration {
        self.leaf_life
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub fn certificate_der(&self) -> &[u8] {
        &self.certificate_der
    }

    /// A new key and a certificate for it.
    pub fn issue(&self, spec: &LeafSpec, now: SystemTime) -> Result<Identity, Error> {
        let key = PrivateKey::generate()?;
        Ok(Identity {
            certificate_pem: self.certify(spec, &key, now)?,
            key_pem: key.pem().to_owned(),
        })
    }

    fn certify(&self, spec: &LeafSpec, key: &PrivateKey, now: SystemTime) -> Result<String, Error> {
        self.sign(&Content {
            subject: &certificate::subject(&spec.common_name, &spec.organizations),
            spki: &key.spki(),
            not_before: certificate::valid_from(now, self.leaf_life),
            not_after: end_of(now, self.leaf_life),
            alt_names: &certificate::alt_names(&spec.dns_names, &spec.ips),
            usages: &spec.usages,
            is_authority: false,
        })
    }

    /// The certificate that `request` asks for, with the given usages and life. The subject and the
    /// alternative names are copied as they are: whether they are allowed is the caller's decision.
    pub fn sign_request(
        &self,
        request: &CertificateRequest,
        usages: &[Usage],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<String, Error> {
        let last = CertificateInfo::from_der(&self.certificate_der)?.not_after;
        self.sign(&Content {
            subject: request.subject_der(),
            spki: request.spki_der(),
            not_before: certificate::valid_from(now, lifetime),
            not_after: end_of(now, lifetime).min(last),
            alt_names: request.alt_names_der(),
            usages,
            is_authority: false,
        })
    }

    fn sign(&self, content: &Content<'_>) -> Result<String, Error> {
        let issuer = IssuerName {
            name: &self.name,
            key_id: &self.key_id,
        };
        let der = certificate::encode(content, &issuer, &self.key)?;
        Ok(pem_block("CERTIFICATE", &der))
    }

    /// Loads `<dir>/<name>.crt` and `.key` if they are of this authority, say what `spec` wants and
    /// have enough life left; else makes them again.
    pub fn ensure_leaf(
        &self,
        dir: &Path,
        name: &str,
        spec: &LeafSpec,
        now: SystemTime,
    ) -> Result<Identity, Error> {
        let certificate_path = dir.join(format!("{name}.crt"));
        let key_path = dir.join(format!("{name}.key"));
        let certificate = files::read_optional(&certificate_path)?;
        let key = files::read_optional(&key_path)?;
        if let (Some(certificate_pem), Some(key_pem)) = (certificate, key)
            && self.is_current(&certificate_pem, &key_pem, spec, now)
        {
            return Ok(Identity {
                certificate_pem,
                key_pem,
            });
        }
        let identity = self.issue(spec, now)?;
        files::write_atomic(&key_path, identity.key_pem.as_bytes(), PRIVATE)?;
        files::write_atomic(
            &certificate_path,
            identity.certificate_pem.as_bytes(),
            PUBLIC,
        )?;
        Ok(identity)
    }

    fn is_current(
        &self,
        certificate_pem: &str,
        key_pem: &str,
        spec: &LeafSpec,
        now: SystemTime,
    ) -> bool {
        let Ok(key) = PrivateKey::from_pem(key_pem) else {
            return false;
        };
        let Ok(chain) = certificate::certificates_from_pem(certificate_pem) else {
            return false;
        };
        let Ok(info) = CertificateInfo::from_der(&chain[0]) else {
            return false;
        };
        self.has_signed(&chain[0], &key)
            && !info.is_due(now)
            && info.not_before <= now
            && spec.is_covered_by(&info)
    }

    fn has_signed(&self, leaf: &[u8], key: &PrivateKey) -> bool {
        let Ok((_, own)) = X509Certificate::from_der(&self.certificate_der) else {
            return false;
        };
        let Ok((_, leaf)) = X509Certificate::from_der(leaf) else {
            return false;
        };
        leaf.verify_signature(Some(own.public_key())).is_ok()
            && leaf.public_key().raw == key.spki().as_slice()
    }
}

/// The end of a life that begins now. Longer than an authority lives helps nobody, and certificates know no year 10000.
fn end_of(now: SystemTime, life: Duration) -> SystemTime {
    now + life.min(AUTHORITY_LIFETIME)
}

/// Whether the first certificate of `leaf` carries the signature of the first one of `authority` (both PEM).
pub fn is_signed_by(leaf: &str, authority: &str) -> bool {
    let first = |pem: &str| Some(certificate::certificates_from_pem(pem).ok()?.swap_remove(0));
    let (Some(leaf), Some(authority)) = (first(leaf), first(authority)) else {
        return false;
    };
    let parse = |der| X509Certificate::from_der(der).map(|(_, parsed)| parsed);
    match (parse(&leaf), parse(&authority)) {
        (Ok(leaf), Ok(authority)) => leaf.verify_signature(Some(authority.public_key())).is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn verifies(leaf_pem: &str, authority: &Authority) -> bool {
        let chain = certificate::certificates_from_pem(leaf_pem).unwrap();
        let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
        let (_, own) = X509Certificate::from_der(authority.certificate_der()).unwrap();
        leaf.verify_signature(Some(own.public_key())).is_ok()
    }

    #[test]
    fn leaf_says_what_was_asked() {
        let now = SystemTime::now();
        let authority = Authority::create("a-ca", now).unwrap();
        let other = Authority::create("a-ca", now).unwrap();
        let mut spec = LeafSpec::client("alice", &["dev", "ops"]);
        spec.dns_names = vec!["a.example".to_owned()];
        spec.ips = vec!["10.1.2.3".parse().unwrap(), "fd00::1".parse().unwrap()];
        let leaf = authority.issue(&spec, now).unwrap();
        let info = CertificateInfo::from_pem(&leaf.certificate_pem).unwrap();
        assert_eq!(info.common_name, "alice");
        assert_eq!(info.organizations, ["dev", "ops"]);
        assert_eq!(info.dns_names, spec.dns_names);
        assert_eq!(info.ips, spec.ips);
        assert!(verifies(&leaf.certificate_pem, &authority));
        assert!(!verifies(&leaf.certificate_pem, &other));
    }

    #[test]
    fn a_life_that_no_clock_reaches_is_as_long_as_an_authoritys() {
        let now = SystemTime::now();
        for life in [Duration::from_secs(3_000_000 * 86_400), Duration::MAX] {
            let authority = Authority::create("a-ca", now).unwrap();
            let authority = authority.with_leaf_life(life);
            let leaf = authority.issue(&LeafSpec::default(), now).unwrap();
            let info = CertificateInfo::from_pem(&leaf.certificate_pem).unwrap();
            assert!(info.not_after <= now + AUTHORITY_LIFETIME);
        }
        let after_all = SystemTime::UNIX_EPOCH + Duration::from_secs(400_000_000_000);
        let refused = Authority::create("a-ca", after_all).unwrap_err();
        assert!(refused.to_string().contains("clock"), "{refused}");
    }

    #[test]
    fn leaf_is_made_again_only_when_needed() {
        let dir = std::env::temp_dir().join(format!("sampan-pki-{}", std::process::id()));
        let now = SystemTime::now();
        let authority = Authority::ensure(&dir, "ca", "a-ca", now).unwrap();
        let again = Authority::ensure(&dir, "ca", "a-ca", now).unwrap();
        assert_eq!(authority.certificate_pem(), again.certificate_pem());
        let spec = LeafSpec::server("s", vec!["one".to_owned()], vec![]);
        let first = authority.ensure_leaf(&dir, "leaf", &spec, now).unwrap();
        let second = again.ensure_leaf(&dir, "leaf", &spec, now).unwrap();
        assert_eq!(first, second);
        let wider = LeafSpec::server("s", vec!["one".to_owned(), "two".to_owned()], vec![]);
        let third = again.ensure_leaf(&dir, "leaf", &wider, now).unwrap();
        assert_ne!(first, third);
        let late = now + LEAF_LIFETIME - Duration::from_secs(60);
        assert_ne!(
            third,
            again.ensure_leaf(&dir, "leaf", &wider, late).unwrap()
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

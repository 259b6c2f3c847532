//! TLS settings of servers and clients.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};
use sampan_pki::{Identity, PrivateKey, certificate};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Pki(#[from] sampan_pki::Error),
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    #[error("the certificate authorities cannot be used: {0}")]
    Authorities(String),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

/// What a server shows to its clients; can be exchanged while connections run.
#[derive(Debug)]
pub struct ServerIdentity(RwLock<Arc<CertifiedKey>>);

impl ServerIdentity {
    pub fn new(identity: &Identity) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self(RwLock::new(certified_key(identity)?))))
    }

    /// New handshakes see `identity`; open connections keep what they have seen.
    pub fn replace(&self, identity: &Identity) -> Result<(), TlsError> {
        let key = certified_key(identity)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
        Ok(())
    }
}

impl ResolvesServerCert for ServerIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&key))
    }
}

fn certified_key(identity: &Identity) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificate::certificates_from_pem(&identity.certificate_pem)?;
    let key = PrivateKey::from_pem(&identity.key_pem)?.der()?;
    let key = crypto::ring::sign::any_supported_type(&key)?;
    Ok(Arc::new(CertifiedKey::new(chain, key)))
}

/// A server's TLS: any client certificate is accepted, and passed on to be judged by the
/// authenticator (a refused handshake could not be answered with a `401`).
pub fn server_config(
    identity: Arc<ServerIdentity>,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(ProofOnly(provider())))
        .with_cert_resolver(identity);
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

/// Checks that the client holds the key of the certificate it shows, and nothing else.
#[derive(Debug)]
struct ProofOnly(Arc<CryptoProvider>);

impl ClientCertVerifier for ProofOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Judges client certificates after the handshake.
#[derive(Debug)]
pub struct CertificateChecker(Arc<dyn ClientCertVerifier>);

impl CertificateChecker {
    /// Trusts the authorities in `authorities_pem`.
    pub fn new(authorities_pem: &str) -> Result<Self, TlsError> {
        let roots = Arc::new(roots(authorities_pem)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| TlsError::Authorities(error.to_string()))?;
        Ok(Self(verifier))
    }

    /// Whether the chain leads to a trusted authority, is in its time and is meant for clients.
    pub fn check(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<(), rustls::Error> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let since_epoch = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = UnixTime::since_unix_epoch(since_epoch);
        self.0.verify_client_cert(leaf, intermediates, now)?;
        Ok(())
    }
}

/// Which servers a client believes.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Those with a certificate of one of these authorities (PEM).
    Authorities(String),
    /// Any: for relays to backends whose certificates nobody knows, as upstream does.
    Anything,
}

/// A client's TLS.
#[derive(Debug, Clone)]
pub struct ClientTls {
    pub trust: Trust,
    pub identity: Option<Identity>,
}

impl ClientTls {
    pub fn config(&self, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let builder = match &self.trust {
            Trust::Authorities(pem) => builder.with_root_certificates(roots(pem)?),
            Trust::Anything => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(NoCheck(provider()))),
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_auth_cert(
                certificate::certificates_from_pem(&identity.certificate_pem)?,
                PrivateKey::from_pem(&identity.key_pem)?.der()?,
            )?,
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificate::certificates_from_pem(pem)? {
        roots
            .add(authority)
            .map_err(|error| TlsError::Authorities(error.to_string()))?;
    }
    Ok(roots)
}

#[derive(Debug)]
struct NoCheck(Arc<CryptoProvider>);

impl ServerCertVerifier for NoCheck {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sampan_pki::{Authority, LeafSpec};

    use super::*;

    #[test]
    fn checker_wants_our_authority_purpose_and_time() {
        let now = SystemTime::now();
        let ours = Authority::create("ours", now).unwrap();
        let other = Authority::create("ours", now).unwrap();
        let checker = CertificateChecker::new(ours.certificate_pem()).unwrap();
        let chain = |authority: &Authority, spec: &LeafSpec| {
            let leaf = authority.issue(spec, now).unwrap();
            certificate::certificates_from_pem(&leaf.certificate_pem).unwrap()
        };
        let client = LeafSpec::client("alice", &["dev"]);
        let server = LeafSpec::server("alice", vec!["a".to_owned()], vec![]);
        assert!(checker.check(&chain(&ours, &client), now).is_ok());
        assert!(checker.check(&chain(&other, &client), now).is_err());
        assert!(checker.check(&chain(&ours, &server), now).is_err());
        let later = now + 2 * sampan_pki::authority::LEAF_LIFETIME;
        assert!(checker.check(&chain(&ours, &client), later).is_err());
        assert!(checker.check(&[], now).is_err());
    }
}

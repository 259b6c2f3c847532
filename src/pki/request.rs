//! Certificate requests (PKCS#10): reading those of others, making our own.

use std::net::IpAddr;

use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509CertificationRequest};

use crate::certificate::{self, ip_from_bytes, pem_block, subject_of};
use crate::key::PrivateKey;
use crate::{Error, der};

/// A request whose signature was checked.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
    subject: Vec<u8>,
    spki: Vec<u8>,
    alt_names: Vec<u8>,
}

impl CertificateRequest {
    /// Reads the first request of a PEM text and checks that it is signed by the key in it.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let document =
            CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).map_err(|_| {
                Error::NoPem {
                    what: "certificate request",
                }
            })?;
        Self::from_der(&document)
    }

    pub fn from_der(document: &[u8]) -> Result<Self, Error> {
        let (_, parsed) =
            X509CertificationRequest::from_der(document).map_err(|error| Error::Request {
                reason: error.to_string(),
            })?;
        parsed
            .verify_signature()
            .map_err(|_| Error::RequestSignature)?;
        let info = &parsed.certification_request_info;
        let (common_name, organizations) = subject_of(&info.subject);
        let mut request = Self {
            common_name,
            organizations,
            dns_names: Vec::new(),
            ips: Vec::new(),
            emails: Vec::new(),
            uris: Vec::new(),
            subject: info.subject.as_raw().to_vec(),
            spki: info.subject_pki.raw.to_vec(),
            alt_names: Vec::new(),
        };
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                request.add_alt_names(&names.general_names);
            }
        }
        Ok(request)
    }

    fn add_alt_names(&mut self, names: &[GeneralName<'_>]) {
        for name in names {
            let (number, text) = match name {
                GeneralName::RFC822Name(text) => {
                    self.emails.push((*text).to_owned());
                    (1, text.as_bytes())
                }
                GeneralName::DNSName(text) => {
                    self.dns_names.push((*text).to_owned());
                    (2, text.as_bytes())
                }
                GeneralName::URI(text) => {
                    self.uris.push((*text).to_owned());
                    (6, text.as_bytes())
                }
                GeneralName::IPAddress(bytes) => {
                    self.ips.extend(ip_from_bytes(bytes));
                    (7, *bytes)
                }
                _ => continue,
            };
            self.alt_names.extend(der::context(number, false, text));
        }
    }

    /// What tells its key from others, see [`crate::node_name`].
    pub fn key_hash(&self) -> String {
        crate::node_name::key_hash(&self.spki)
    }

    pub(crate) fn subject_der(&self) -> &[u8] {
        &self.subject
    }

    pub(crate) fn spki_der(&self) -> &[u8] {
        &self.spki
    }

    pub(crate) fn alt_names_der(&self) -> &[u8] {
        &self.alt_names
    }
}

/// What a request of ours asks for.
#[derive(Debug, Clone, Default)]
pub struct RequestSpec {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub ips: Vec<IpAddr>,
}

impl RequestSpec {
    /// The request in PEM, signed by `key`.
    pub fn encode(&self, key: &PrivateKey) -> Result<String, Error> {
        let attributes = self.attributes();
        let body = der::sequence(&[
            &der::unsigned(&[0]),
            &certificate::subject(&self.common_name, &self.organizations),
            &key.spki(),
            &der::context(0, true, &attributes),
        ]);
        let signature = key.sign(&body)?;
        let document =
            der::sequence(&[&body, &key.signature_algorithm(), &der::bits(0, &signature)]);
        Ok(pem_block("CERTIFICATE REQUEST", &document))
    }

    /// The `extensionRequest` attribute, if there are alternative names.
    fn attributes(&self) -> Vec<u8> {
        let names = certificate::alt_names(&self.dns_names, &self.ips);
        if names.is_empty() {
            return Vec::new();
        }
        let value = der::octets(&der::tlv(der::SEQUENCE, &names));
        let extension = der::sequence(&[&der::oid(&[2, 5, 29, 17]), &value]);
        let extensions = der::sequence(&[&extension]);
        der::sequence(&[
            &der::oid(&[1, 2, 840, 113_549, 1, 9, 14]),
            &der::tlv(der::SET, &extensions),
        ])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{Authority, CertificateInfo, Usage};

    #[test]
    fn request_round_trip_and_signing() {
        let key = PrivateKey::generate().unwrap();
        let spec = RequestSpec {
            common_name: "system:node:a".to_owned(),
            organizations: vec!["system:nodes".to_owned(), "second".to_owned()],
            dns_names: vec!["a".to_owned()],
            ips: vec!["10.0.0.7".parse().unwrap()],
        };
        let request = CertificateRequest::from_pem(&spec.encode(&key).unwrap()).unwrap();
        assert_eq!(request.common_name, spec.common_name);
        assert_eq!(request.organizations, spec.organizations);
        let now = SystemTime::now();
        let authority = Authority::create("ca", now).unwrap();
        let pem = authority
            .sign_request(
                &request,
                &[Usage::SERVER_AUTH, Usage::DIGITAL_SIGNATURE],
                now,
                Duration::from_secs(3600),
            )
            .unwrap();
        let info = CertificateInfo::from_pem(&pem).unwrap();
        assert_eq!(info.organizations, spec.organizations);
        assert_eq!(info.dns_names, spec.dns_names);
        assert_eq!(info.ips, spec.ips);
    }

    #[test]
    fn a_changed_request_is_refused() {
        let key = PrivateKey::generate().unwrap();
        let spec = RequestSpec {
            common_name: "alice".to_owned(),
            ..RequestSpec::default()
        };
        let pem = spec.encode(&key).unwrap();
        let mut document = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
            .unwrap()
            .to_vec();
        let at = document
            .windows(5)
            .position(|part| part == b"alice")
            .unwrap();
        document[at] = b'A';
        assert!(matches!(
            CertificateRequest::from_der(&document),
            Err(Error::RequestSignature)
        ));
    }
}

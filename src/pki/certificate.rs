//! Encoding certificates, and reading back what we want to know of one.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate, X509Name};

use crate::key::PrivateKey;
use crate::usage::{self, Usage};
use crate::{Error, der};

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
const SUBJECT_KEY_ID: &[u64] = &[2, 5, 29, 14];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];

/// Clocks of two machines may differ: certificates are valid from a little earlier.
const BACKDATE: Duration = Duration::from_secs(5 * 60);

/// Everything that goes into a certificate but its issuer.
pub(crate) struct Content<'a> {
    /// A `Name` in DER.
    pub(crate) subject: &'a [u8],
    pub(crate) spki: &'a [u8],
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// `GeneralName`s in DER, one after the other.
    pub(crate) alt_names: &'a [u8],
    pub(crate) usages: &'a [Usage],
    pub(crate) is_authority: bool,
}

pub(crate) struct IssuerName<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) key_id: &'a [u8],
}

/// A signed certificate in DER.
pub(crate) fn encode(
    content: &Content<'_>,
    issuer: &IssuerName<'_>,
    key: &PrivateKey,
) -> Result<Vec<u8>, Error> {
    let mut serial = [0_u8; 16];
    SystemRandom::new()
        .fill(&mut serial)
        .map_err(|_| Error::Random)?;
    serial[0] = (serial[0] & 0x7f) | 0x40;
    let validity = der::sequence(&[
        &der::time(date(content.not_before)?),
        &der::time(date(content.not_after)?),
    ]);
    let body = der::sequence(&[
        &der::context(0, true, &der::unsigned(&[2])),
        &der::unsigned(&serial),
        &key.signature_algorithm(),
        issuer.name,
        &validity,
        content.subject,
        content.spki,
        &der::context(3, true, &extensions(content, issuer)),
    ]);
    let signature = key.sign(&body)?;
    Ok(der::sequence(&[
        &body,
        &key.signature_algorithm(),
        &der::bits(0, &signature),
    ]))
}

/// As certificates write it: with a year of four digits.
fn date(time: SystemTime) -> Result<OffsetDateTime, Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    });
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| Error::Date)
}

fn extensions(content: &Content<'_>, issuer: &IssuerName<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    if let Some(bits) = usage::key_usage(content.usages) {
        all.extend(extension(KEY_USAGE, true, &bits));
    }
    if let Some(list) = usage::extended_usage(content.usages) {
        all.extend(extension(EXTENDED_KEY_USAGE, false, &list));
    }
    let constraints = if content.is_authority {
        der::sequence(&[&der::boolean_true()])
    } else {
        der::sequence(&[])
    };
    all.extend(extension(BASIC_CONSTRAINTS, true, &constraints));
    if content.is_authority {
        let id = der::octets(&key_id(content.spki));
        all.extend(extension(SUBJECT_KEY_ID, false, &id));
    }
    let authority = der::sequence(&[&der::context(0, false, issuer.key_id)]);
    all.extend(extension(AUTHORITY_KEY_ID, false, &authority));
    if !content.alt_names.is_empty() {
        let names = der::tlv(der::SEQUENCE, content.alt_names);
        all.extend(extension(SUBJECT_ALT_NAME, false, &names));
    }
    der::tlv(der::SEQUENCE, &all)
}

fn extension(id: &[u64], critical: bool, value: &[u8]) -> Vec<u8> {
    let flag = if critical {
        der::boolean_true()
    } else {
        Vec::new()
    };
    der::sequence(&[&der::oid(id), &flag, &der::octets(value)])
}

/// The key's identifier: the first 20 bytes of its hash (RFC 7093).
pub(crate) fn key_id(spki: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, spki).as_ref()[..20].to_vec()
}

/// A `Name` with one common name and any number of organizations.
pub(crate) fn subject(common_name: &str, organizations: &[String]) -> Vec<u8> {
    let attribute = |id: &[u64], value: &str| {
        let pair = der::sequence(&[&der::oid(id), &der::tlv(der::UTF8_STRING, value.as_bytes())]);
        der::tlv(der::SET, &pair)
    };
    let mut all = Vec::new();
    for organization in organizations {
        all.extend(attribute(ORGANIZATION, organization));
    }
    all.extend(attribute(COMMON_NAME, common_name));
    der::tlv(der::SEQUENCE, &all)
}

pub(crate) fn alt_names(dns: &[String], ips: &[IpAddr]) -> Vec<u8> {
    let mut all = Vec::new();
    for name in dns {
        all.extend(der::context(2, false, name.as_bytes()));
    }
    for ip in ips {
        match ip {
            IpAddr::V4(ip) => all.extend(der::context(7, false, &ip.octets())),
            IpAddr::V6(ip) => all.extend(der::context(7, false, &ip.octets())),
        }
    }
    all
}

pub(crate) fn valid_from(now: SystemTime, life: Duration) -> SystemTime {
    now.checked_sub(BACKDATE.min(life / 10)).unwrap_or(now)
}

pub fn pem_block(label: &str, content: &[u8]) -> String {
    let text = STANDARD.encode(content);
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = tail;
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

/// All certificates in a PEM text, in order.
pub fn certificates_from_pem(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unreadable(error.to_string()))?;
    if all.is_empty() {
        return Err(Error::NoPem {
            what: "certificate",
        });
    }
    Ok(all)
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub issuer: String,
    pub dns_names: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    pub is_authority: bool,
    /// SHA-256 of the certificate, lower-case hex.
    pub fingerprint: String,
}

impl CertificateInfo {
    pub fn from_der(certificate: &[u8]) -> Result<Self, Error> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|error| unreadable(error.to_string()))?;
        let (common_name, organizations) = subject_of(parsed.subject());
        let mut info = Self {
            common_name,
            organizations,
            issuer: parsed.issuer().to_string(),
            dns_names: Vec::new(),
            ips: Vec::new(),
            not_before: to_time(parsed.validity().not_before.timestamp()),
            not_after: to_time(parsed.validity().not_after.timestamp()),
            is_authority: parsed.is_ca(),
            fingerprint: hex(digest::digest(&digest::SHA256, certificate).as_ref()),
        };
        for extension in parsed.extensions() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() {
                info.add_alt_names(&names.general_names);
            }
        }
        Ok(info)
    }

    /// The first certificate of a PEM text.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        Self::from_der(&certificates_from_pem(pem)?[0])
    }

    fn add_alt_names(&mut self, names: &[GeneralName<'_>]) {
        for name in names {
            match name {
                GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => self.ips.extend(ip_from_bytes(bytes)),
                _ => {}
            }
        }
    }

    /// When a quarter of its life is left: time for a new one.
    pub fn due_at(&self) -> SystemTime {
        let life = self
            .not_after
            .duration_since(self.not_before)
            .unwrap_or_default();
        self.not_after - life / 4
    }

    /// True if less than a quarter of its life is left.
    pub fn is_due(&self, now: SystemTime) -> bool {
        self.due_at() < now
    }

    /// Whether others would believe it at this time.
    pub fn is_valid(&self, now: SystemTime) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

/// Common name (the last one) and all organizations.
pub(crate) fn subject_of(name: &X509Name<'_>) -> (String, Vec<String>) {
    let text = |attribute: &x509_parser::prelude::AttributeTypeAndValue<'_>| {
        attribute.as_str().map(str::to_owned).unwrap_or_default()
    };
    (
        name.iter_common_name().last().map(text).unwrap_or_default(),
        name.iter_organization().map(text).collect(),
    )
}

pub(crate) fn ip_from_bytes(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn to_time(timestamp: i64) -> SystemTime {
    match u64::try_from(timestamp) {
        Ok(seconds) => SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        Err(_) => SystemTime::UNIX_EPOCH,
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unreadable(reason: String) -> Error {
    Error::Certificate { reason }
}

//! Private keys: made (P-256), read (P-256, P-384, RSA), used to sign.

use std::fmt;

use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair as _, RsaKeyPair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

use crate::certificate::pem_block;
use crate::{Error, der};

const EC_PUBLIC_KEY: &[u64] = &[1, 2, 840, 10045, 2, 1];
const P256: &[u64] = &[1, 2, 840, 10045, 3, 1, 7];
const P384: &[u64] = &[1, 3, 132, 0, 34];
const RSA_ENCRYPTION: &[u64] = &[1, 2, 840, 113_549, 1, 1, 1];

/// How a key signs, in X.509's and in JOSE's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    EcdsaP256,
    EcdsaP384,
    Rsa,
}

enum Signer {
    Ecdsa(Box<EcdsaKeyPair>),
    Rsa(Box<RsaKeyPair>),
}

pub struct PrivateKey {
    signer: Signer,
    algorithm: Algorithm,
    pem: String,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

impl PrivateKey {
    /// A new P-256 key.
    pub fn generate() -> Result<Self, Error> {
        let random = SystemRandom::new();
        let document =
            EcdsaKeyPair::generate_pkcs8(&signature::ECDSA_P256_SHA256_ASN1_SIGNING, &random)
                .map_err(|_| Error::Random)?;
        Self::from_pem(&pem_block("PRIVATE KEY", document.as_ref()))
    }

    /// Reads PKCS#8, SEC1 or PKCS#1; the text is kept as it is.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| Error::NoPem {
            what: "private key",
        })?;
        let (signer, algorithm) = load(&key)?;
        Ok(Self {
            signer,
            algorithm,
            pem: pem.to_owned(),
        })
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The public key alone, without the algorithm around it.
    pub fn public_key(&self) -> &[u8] {
        match &self.signer {
            Signer::Ecdsa(pair) => pair.public_key().as_ref(),
            Signer::Rsa(pair) => pair.public_key().as_ref(),
        }
    }

    /// `SubjectPublicKeyInfo` in DER.
    pub fn spki(&self) -> Vec<u8> {
        let algorithm = match self.algorithm {
            Algorithm::EcdsaP256 => der::sequence(&[&der::oid(EC_PUBLIC_KEY), &der::oid(P256)]),
            Algorithm::EcdsaP384 => der::sequence(&[&der::oid(EC_PUBLIC_KEY), &der::oid(P384)]),
            Algorithm::Rsa => der::sequence(&[&der::oid(RSA_ENCRYPTION), &[5, 0]]),
        };
        der::sequence(&[&algorithm, &der::bits(0, self.public_key())])
    }

    /// `AlgorithmIdentifier` of the signatures that [`Self::sign`] makes.
    pub(crate) fn signature_algorithm(&self) -> Vec<u8> {
        match self.algorithm {
            Algorithm::EcdsaP256 => der::sequence(&[&der::oid(&[1, 2, 840, 10045, 4, 3, 2])]),
            Algorithm::EcdsaP384 => der::sequence(&[&der::oid(&[1, 2, 840, 10045, 4, 3, 3])]),
            Algorithm::Rsa => der::sequence(&[&der::oid(&[1, 2, 840, 113_549, 1, 1, 11]), &[5, 0]]),
        }
    }

    /// A signature as X.509 wants it (ECDSA in ASN.1 form).
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let random = SystemRandom::new();
        match &self.signer {
            Signer::Ecdsa(pair) => pair
                .sign(&random, message)
                .map(|signature| signature.as_ref().to_vec())
                .map_err(|_| Error::Sign),
            Signer::Rsa(pair) => {
                let mut out = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut out)
                    .map_err(|_| Error::Sign)?;
                Ok(out)
            }
        }
    }

    /// The key in PKCS#8, or as it was read if it was not.
    pub fn der(&self) -> Result<PrivateKeyDer<'static>, Error> {
        PrivateKeyDer::from_pem_slice(self.pem.as_bytes()).map_err(|_| Error::NoPem {
            what: "private key",
        })
    }
}

fn load(key: &PrivateKeyDer<'_>) -> Result<(Signer, Algorithm), Error> {
    match key {
        PrivateKeyDer::Pkcs8(pkcs8) => load_pkcs8(pkcs8.secret_pkcs8_der()),
        PrivateKeyDer::Sec1(sec1) => [P256, P384]
            .iter()
            .find_map(|curve| load_pkcs8(&wrap_sec1(sec1.secret_sec1_der(), curve)).ok())
            .ok_or_else(|| unusable("neither P-256 nor P-384")),
        PrivateKeyDer::Pkcs1(pkcs1) => RsaKeyPair::from_der(pkcs1.secret_pkcs1_der())
            .map(|pair| (Signer::Rsa(Box::new(pair)), Algorithm::Rsa))
            .map_err(unusable),
        _ => Err(unusable("unknown form")),
    }
}

fn load_pkcs8(document: &[u8]) -> Result<(Signer, Algorithm), Error> {
    let random = SystemRandom::new();
    let curves: [(&'static signature::EcdsaSigningAlgorithm, Algorithm); 2] = [
        (
            &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
            Algorithm::EcdsaP256,
        ),
        (
            &signature::ECDSA_P384_SHA384_ASN1_SIGNING,
            Algorithm::EcdsaP384,
        ),
    ];
    for (curve, algorithm) in curves {
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(curve, document, &random) {
            return Ok((Signer::Ecdsa(Box::new(pair)), algorithm));
        }
    }
    RsaKeyPair::from_pkcs8(document)
        .map(|pair| (Signer::Rsa(Box::new(pair)), Algorithm::Rsa))
        .map_err(unusable)
}

/// `ring` reads PKCS#8 only; SEC1 is its innermost part.
fn wrap_sec1(sec1: &[u8], curve: &[u64]) -> Vec<u8> {
    let algorithm = der::sequence(&[&der::oid(EC_PUBLIC_KEY), &der::oid(curve)]);
    der::sequence(&[&der::unsigned(&[0]), &algorithm, &der::octets(sec1)])
}

fn unusable(reason: impl fmt::Display) -> Error {
    Error::Key {
        reason: reason.to_string(),
    }
}

//! Signed tokens (JWS, compact form): service-account tokens are such.
//!
//! Signs with ES256 (or RS256 if it was given an RSA key), verifies ES256, ES384 and RS256. Claims are
//! JSON values; what they mean is the authenticator's business.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo};

use crate::Error;
use crate::key::{Algorithm, PrivateKey};

/// Signs tokens with one key.
#[derive(Debug)]
pub struct TokenSigner {
    key: PrivateKey,
    key_id: String,
}

/// Checks signatures against a set of public keys.
#[derive(Debug, Clone, Default)]
pub struct TokenVerifier {
    keys: Vec<PublicKey>,
}

#[derive(Debug, Clone)]
struct PublicKey {
    id: String,
    algorithm: Algorithm,
    /// The point (EC) or the PKCS#1 structure (RSA).
    bytes: Vec<u8>,
    spki: Vec<u8>,
}

impl TokenSigner {
    pub fn new(key: PrivateKey) -> Self {
        let key_id = key_id(&key.spki());
        Self { key, key_id }
    }

    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    pub fn sign(&self, claims: &Value) -> Result<String, Error> {
        let algorithm = algorithm_name(self.key.algorithm());
        let header = json!({"alg": algorithm, "kid": self.key_id});
        let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(claims.to_string()));
        let mut signature = self.key.sign(token.as_bytes())?;
        if let Some(half) = coordinate_size(self.key.algorithm()) {
            signature = to_fixed(&signature, half)?;
        }
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature));
        Ok(token)
    }

    /// A verifier that knows this signer's key only.
    pub fn verifier(&self) -> TokenVerifier {
        let mut verifier = TokenVerifier::default();
        verifier.add(&self.key);
        verifier
    }
}

impl TokenVerifier {
    pub fn add(&mut self, key: &PrivateKey) {
        let spki = key.spki();
        self.keys.push(PublicKey {
            id: key_id(&spki),
            algorithm: key.algorithm(),
            bytes: key.public_key().to_vec(),
            spki,
        });
    }

    /// The claims of `token` if one of the keys has signed it.
    pub fn verify(&self, token: &str) -> Result<Value, Error> {
        let (signed, signature) = token.rsplit_once('.').ok_or(bad("no signature"))?;
        let (header, claims) = signed.split_once('.').ok_or(bad("no claims"))?;
        let header: Value = decode_json(header)?;
        let signature = URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| bad("the signature is not base64"))?;
        let id = header.get("kid").and_then(Value::as_str);
        let algorithm = header.get("alg").and_then(Value::as_str);
        let known = self.keys.iter().any(|key| {
            id.is_none_or(|id| id == key.id)
                && algorithm == Some(algorithm_name(key.algorithm))
                && key.has_signed(signed.as_bytes(), &signature)
        });
        if !known {
            return Err(bad("no key of ours has signed it"));
        }
        decode_json(claims)
    }

    /// The claims without any check: to find out who issued a token.
    pub fn peek(token: &str) -> Result<Value, Error> {
        let mut parts = token.split('.');
        let (Some(_), Some(claims), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad("it has not three parts"));
        };
        decode_json(claims)
    }

    /// The public keys as a JSON Web Key Set.
    pub fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.keys.iter().filter_map(PublicKey::to_jwk).collect();
        json!({ "keys": keys })
    }
}

impl PublicKey {
    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match self.algorithm {
            Algorithm::EcdsaP256 => &signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::EcdsaP384 => &signature::ECDSA_P384_SHA384_FIXED,
            Algorithm::Rsa => &signature::RSA_PKCS1_2048_8192_SHA256,
        };
        UnparsedPublicKey::new(algorithm, &self.bytes)
            .verify(message, signature)
            .is_ok()
    }

    fn to_jwk(&self) -> Option<Value> {
        let name = algorithm_name(self.algorithm);
        let mut jwk = json!({"use": "sig", "kid": self.id, "alg": name});
        let fields = jwk.as_object_mut()?;
        if let Some(half) = coordinate_size(self.algorithm) {
            let point = self.bytes.get(1..)?;
            let (x, y) = point.split_at_checked(half)?;
            let curve = if half == 32 { "P-256" } else { "P-384" };
            fields.insert("kty".to_owned(), json!("EC"));
            fields.insert("crv".to_owned(), json!(curve));
            fields.insert("x".to_owned(), json!(URL_SAFE_NO_PAD.encode(x)));
            fields.insert("y".to_owned(), json!(URL_SAFE_NO_PAD.encode(y)));
        } else {
            let (_, spki) = SubjectPublicKeyInfo::from_der(&self.spki).ok()?;
            let x509_parser::public_key::PublicKey::RSA(rsa) = spki.parsed().ok()? else {
                return None;
            };
            let modulus = trim_zeros(rsa.modulus);
            fields.insert("kty".to_owned(), json!("RSA"));
            fields.insert("n".to_owned(), json!(URL_SAFE_NO_PAD.encode(modulus)));
            let exponent = trim_zeros(rsa.exponent);
            fields.insert("e".to_owned(), json!(URL_SAFE_NO_PAD.encode(exponent)));
        }
        Some(jwk)
    }
}

fn key_id(spki: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, spki))
}

fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::EcdsaP256 => "ES256",
        Algorithm::EcdsaP384 => "ES384",
        Algorithm::Rsa => "RS256",
    }
}

fn coordinate_size(algorithm: Algorithm) -> Option<usize> {
    match algorithm {
        Algorithm::EcdsaP256 => Some(32),
        Algorithm::EcdsaP384 => Some(48),
        Algorithm::Rsa => None,
    }
}

/// ASN.1 `SEQUENCE { r, s }` to the two numbers side by side, as JOSE wants them.
fn to_fixed(signature: &[u8], half: usize) -> Result<Vec<u8>, Error> {
    let mut rest = signature
        .get(
            if signature.get(1) == Some(&0x81) {
                3
            } else {
                2
            }..,
        )
        .ok_or(Error::Sign)?;
    let mut out = Vec::with_capacity(half * 2);
    for _ in 0..2 {
        let length = usize::from(*rest.get(1).ok_or(Error::Sign)?);
        let number = trim_zeros(rest.get(2..2 + length).ok_or(Error::Sign)?);
        let padding = half.checked_sub(number.len()).ok_or(Error::Sign)?;
        out.resize(out.len() + padding, 0);
        out.extend_from_slice(number);
        rest = &rest[2 + length..];
    }
    Ok(out)
}

fn trim_zeros(bytes: &[u8]) -> &[u8] {
    let skip = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[skip..]
}

fn decode_json(part: &str) -> Result<Value, Error> {
    let bytes = URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| bad("a part is not base64"))?;
    serde_json::from_slice(&bytes).map_err(|_| bad("a part is not JSON"))
}

fn bad(reason: &'static str) -> Error {
    Error::Token { reason }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn signed_tokens_verify_and_changed_ones_do_not() {
        for _ in 0..32 {
            let signer = TokenSigner::new(PrivateKey::generate().unwrap());
            let claims = json!({"sub": "system:serviceaccount:a:b", "exp": 5});
            let token = signer.sign(&claims).unwrap();
            let verifier = signer.verifier();
            assert_eq!(verifier.verify(&token).unwrap(), claims);
            let (head, _) = token.rsplit_once('.').unwrap();
            let (header, _) = head.split_once('.').unwrap();
            let (_, signature) = token.rsplit_once('.').unwrap();
            let forged = URL_SAFE_NO_PAD.encode(r#"{"sub":"root"}"#);
            assert!(
                verifier
                    .verify(&format!("{header}.{forged}.{signature}"))
                    .is_err()
            );
            let stranger = TokenSigner::new(PrivateKey::generate().unwrap());
            assert!(stranger.verifier().verify(&token).is_err());
        }
    }

    #[test]
    fn key_set_has_the_point() {
        let signer = TokenSigner::new(PrivateKey::generate().unwrap());
        let set = signer.verifier().jwks();
        assert_eq!(set["keys"][0]["kty"], "EC");
        assert_eq!(set["keys"][0]["x"].as_str().unwrap().len(), 43);
    }
}

//! The token with which a machine joins: `K10<sha256 of the CA>::server:<password>`.
//!
//! The hash lets a newcomer check, before it sends the password, that it talks to the right cluster.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};

use crate::Error;
use crate::certificate::hex;

const PREFIX: &str = "K10";

#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// SHA-256 (hex) of the CA certificate's PEM text; a bare password has none.
    pub authority_hash: Option<String>,
    /// `server` or `node`.
    pub user: String,
    pub password: String,
}

/// Without the password, which must not get into logs.
impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinToken")
            .field("authority_hash", &self.authority_hash)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl JoinToken {
    pub fn new(authority_pem: &str, user: &str, password: &str) -> Self {
        Self {
            authority_hash: Some(authority_hash(authority_pem)),
            user: user.to_owned(),
            password: password.to_owned(),
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let malformed = || Error::JoinToken;
        let Some(rest) = text.strip_prefix(PREFIX).filter(|rest| rest.contains("::")) else {
            if text.is_empty() || text.contains("::") {
                return Err(malformed());
            }
            return Ok(Self {
                authority_hash: None,
                user: "server".to_owned(),
                password: text.to_owned(),
            });
        };
        let (hash, credentials) = rest.split_once("::").ok_or_else(malformed)?;
        let (user, password) = credentials.split_once(':').ok_or_else(malformed)?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash || password.is_empty() {
            return Err(malformed());
        }
        Ok(Self {
            authority_hash: Some(hash.to_ascii_lowercase()),
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }

    pub fn format(&self) -> String {
        match &self.authority_hash {
            Some(hash) => format!("{PREFIX}{hash}::{}:{}", self.user, self.password),
            None => self.password.clone(),
        }
    }

    /// True if `authority_pem` is the CA this token was made for; a bare password trusts any.
    pub fn trusts(&self, authority_pem: &str) -> bool {
        self.authority_hash
            .as_ref()
            .is_none_or(|hash| *hash == authority_hash(authority_pem))
    }
}

pub fn authority_hash(authority_pem: &str) -> String {
    hex(digest::digest(&digest::SHA256, authority_pem.as_bytes()).as_ref())
}

/// A new random password.
pub fn random_password() -> Result<String, Error> {
    let mut bytes = [0_u8; 24];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::Random)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_parse_and_pin() {
        let token = JoinToken::new("pem", "server", "a:b");
        let read = JoinToken::parse(&format!(" {}\n", token.format())).unwrap();
        assert_eq!(read, token);
        assert!(read.trusts("pem") && !read.trusts("other"));
        let bare = JoinToken::parse("secret").unwrap();
        assert!(bare.trusts("anything"));
        assert_eq!(bare.format(), "secret");
        for wrong in ["", "K10abc::server:x", "a::b", "K10::server"] {
            let error = JoinToken::parse(wrong).unwrap_err().to_string();
            assert!(wrong.is_empty() || !error.contains(wrong), "{error}");
        }
        // Neither a token nor what was meant as one is shown.
        assert!(!format!("{token:?}").contains("a:b"));
        let refused = JoinToken::parse("K10abc::server:hidden").unwrap_err();
        assert!(!format!("{refused} {refused:?}").contains("hidden"));
    }
}

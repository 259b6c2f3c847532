//! Whose a node's name is: a Secret holds the hash of the key that first joined under it.

use std::path::Path;

use ring::digest;

use crate::certificate::hex;
use crate::files::{self, PRIVATE};
use crate::{Error, PrivateKey};

/// Where the Secrets are, of which type, and the key of their data.
pub const NAMESPACE: &str = "kube-system";
pub const SECRET_TYPE: &str = "sampan.io/node-password";
pub const DATA_KEY: &str = "public-key-sha256";

const SUFFIX: &str = ".node-password.sampan";
const LONGEST_SECRET_NAME: usize = 253;

/// The name of a node's Secret; `None` if no node can have this name: one that is no DNS subdomain, or too long for that.
pub fn secret_name(node: &str) -> Option<String> {
    let name = format!("{node}{SUFFIX}");
    (node.split('.').all(is_label) && name.len() <= LONGEST_SECRET_NAME).then_some(name)
}

fn is_label(text: &str) -> bool {
    let end = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let bytes = text.as_bytes();
    end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|byte| end(Some(byte)) || *byte == b'-')
}

/// The node that a Secret of this name is about.
pub fn node_of(secret_name: &str) -> Option<&str> {
    secret_name.strip_suffix(SUFFIX)
}

/// SHA-256 (hex) of a `SubjectPublicKeyInfo`.
pub fn key_hash(spki: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, spki).as_ref())
}

fn impossible(node: &str) -> String {
    let longest = LONGEST_SECRET_NAME - SUFFIX.len();
    format!(
        "no node can have the name {node:?}: expected lower-case letters, digits, '-' and '.', such as node-1, at most \
         {longest} characters; choose another --node-name"
    )
}

/// Why a machine may not have the name, and how it is set free.
pub fn refusal(node: &str) -> String {
    let Some(secret) = secret_name(node) else {
        return impossible(node);
    };
    format!(
        "the node name {node} belongs to another machine of this cluster, or to this one before its data was lost: choose \
         another --node-name, or set the name free with `kubectl delete node {node}` (if there is no such node: \
         `kubectl -n {NAMESPACE} delete secret {secret}`)"
    )
}

/// Why a machine may not have a name that is nobody's: its Node was deleted while its machine ran on.
pub fn refusal_in_use(node: &str) -> String {
    format!(
        "another machine of this cluster runs under the node name {node} right now (it renews its Lease), though its Node was \
         deleted: choose another --node-name, or stop sampan on that machine and try again half a minute later"
    )
}

/// Why a server may not start with its own node. Its API is not up then, so the name cannot be set free at once.
pub fn refusal_of_server(node: &str) -> String {
    let Some(secret) = secret_name(node) else {
        return impossible(node);
    };
    format!(
        "the name {node} of this server's node belongs to another machine of this cluster, or to this one before its key was \
         lost: choose another --node-name; or start with --disable-agent, set the name free with `kubectl delete node {node}` \
         (if there is no such node: `kubectl -n {NAMESPACE} delete secret {secret}`), and start again without --disable-agent"
    )
}

/// The key in this file; made, and on disk, if there is none that can be read.
pub fn ensure_key(path: &Path) -> Result<PrivateKey, Error> {
    if let Some(text) = files::read_optional(path)? {
        match PrivateKey::from_pem(&text) {
            Ok(key) => return Ok(key),
            // With the key the right to the node's name is lost, which will be noticed elsewhere and later.
            Err(error) => tracing::warn!(
                path = %path.display(), %error,
                "a node's key cannot be read and is replaced; the cluster may know the node's name by the old one"
            ),
        }
    }
    let key = PrivateKey::generate()?;
    files::write_atomic(path, key.pem().as_bytes(), PRIVATE)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{CertificateRequest, RequestSpec};

    #[test]
    fn a_key_is_made_once() {
        let path = std::env::temp_dir().join(format!("sampan-node-key-{}", std::process::id()));
        let first = ensure_key(&path).unwrap();
        assert_eq!(ensure_key(&path).unwrap().pem(), first.pem());
        std::fs::write(&path, "half a k").unwrap();
        assert_ne!(ensure_key(&path).unwrap().pem(), first.pem());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_request_has_the_hash_of_its_key() {
        let key = PrivateKey::generate().unwrap();
        let pem = RequestSpec::default().encode(&key).unwrap();
        let request = CertificateRequest::from_pem(&pem).unwrap();
        assert_eq!(request.key_hash(), key_hash(&key.spki()));
    }

    #[test]
    fn names_of_secrets() {
        let name = secret_name("pi-4.home").unwrap();
        assert_eq!(name, "pi-4.home.node-password.sampan");
        assert_eq!(node_of(&name), Some("pi-4.home"));
        let long = "a".repeat(233);
        for name in [
            "", ".", "a..b", "A", "a b", "a_b", "-a", "a/b", "a\n", "\u{e4}", &long,
        ] {
            assert_eq!(secret_name(name), None, "{name:?}");
            assert!(refusal(name).starts_with("no node can have the name"));
        }
        assert!(refusal("a").contains("kubectl delete node a"));
        assert!(refusal_in_use("a").contains("runs under the node name a "));
    }

    #[test]
    fn a_server_is_told_how_to_start_first() {
        let told = refusal_of_server("a");
        let start = told.find("--disable-agent").unwrap();
        assert!(
            start < told.find("kubectl delete node a").unwrap(),
            "{told}"
        );
        assert!(told.contains("delete secret a.node-password.sampan"));
        assert!(refusal_of_server("a b").contains("no node can have the name"));
    }
}

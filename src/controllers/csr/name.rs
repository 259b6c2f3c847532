//! Whose the name of a node is: the key's that its Secret names.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_api::user::well_known::NODE_USER_PREFIX;
use sampan_client::Lister;
use sampan_pki::CertificateRequest;
use sampan_pki::node_name::{DATA_KEY, NAMESPACE, SECRET_TYPE, secret_name};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    Nobody,
    /// Of the key with this hash.
    Key(String),
}

/// The node that the request is for.
pub(super) fn wanted(request: &CertificateSigningRequest) -> Option<String> {
    let content = super::parse(request).ok()?;
    let node = content.common_name.strip_prefix(NODE_USER_PREFIX)?;
    Some(node.to_owned())
}

/// Whose the name of this node is.
pub(super) fn holder(names: &Lister<Secret>, node: &str) -> Holder {
    let secret = secret_name(node).and_then(|name| names.get(Some(NAMESPACE), &name));
    secret.map_or(Holder::Nobody, |secret| held(&secret))
}

/// A Secret that says nothing keeps the name from everybody.
fn held(secret: &Secret) -> Holder {
    let hash = secret.data.as_ref().and_then(|data| data.get(DATA_KEY));
    let hash = hash.map(|bytes| String::from_utf8_lossy(&bytes.0).trim().to_owned());
    Holder::Key(hash.unwrap_or_default())
}

/// What takes the name for the request's key; `None` if there cannot be such a Secret.
pub(super) fn secret(node: &str, content: &CertificateRequest) -> Option<Secret> {
    let hash = k8s_openapi::ByteString(content.key_hash().into_bytes());
    Some(Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(node)?),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some([(DATA_KEY.to_owned(), hash)].into()),
        ..Secret::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_without_a_key_is_nobodys_free_name() {
        assert_eq!(held(&Secret::default()), Holder::Key(String::new()));
    }
}

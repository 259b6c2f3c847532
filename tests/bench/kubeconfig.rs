//! The way to a cluster out of a kubeconfig, as an administrator has it.

use anyhow::{Context, bail};
use base64::Engine;
use sampan_client::Credentials;
use sampan_pki::Identity;
use serde_json::Value;

pub(crate) struct Access {
    pub(crate) server: String,
    pub(crate) authority_pem: Option<String>,
    pub(crate) credentials: Credentials,
}

/// The current context of a kubeconfig. Certificates and keys stand in the file itself or in files that it names.
pub(crate) fn parse(text: &str) -> anyhow::Result<Access> {
    let document: Value = serde_saphyr::from_str(text).context("the kubeconfig is no YAML")?;
    let current = document["current-context"].as_str().unwrap_or_default();
    let context = named(&document, "contexts", current, "context")?;
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let cluster = named(&document, "clusters", &word(&context["cluster"]), "cluster")?;
    let user = named(&document, "users", &word(&context["user"]), "user")?;
    let certificate = data(user, "client-certificate")?;
    let credentials = match (
        user["token"].as_str(),
        certificate,
        data(user, "client-key")?,
    ) {
        (Some(token), _, _) => Credentials::Token(token.to_owned()),
        (None, Some(certificate_pem), Some(key_pem)) => Credentials::Certificate(Identity {
            certificate_pem,
            key_pem,
        }),
        _ => bail!("the user of the kubeconfig has neither a token nor a certificate"),
    };
    Ok(Access {
        server: word(&cluster["server"]),
        authority_pem: data(cluster, "certificate-authority")?,
        credentials,
    })
}

fn named<'a>(document: &'a Value, list: &str, name: &str, part: &str) -> anyhow::Result<&'a Value> {
    let entries = document[list].as_array();
    let found = entries.and_then(|all| all.iter().find(|one| one["name"] == name));
    found
        .map(|one| &one[part])
        .with_context(|| format!("the kubeconfig has no entry {name:?} in {list}"))
}

fn data(entry: &Value, name: &str) -> anyhow::Result<Option<String>> {
    if let Some(text) = entry[format!("{name}-data")].as_str() {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text)?;
        return Ok(Some(String::from_utf8(bytes)?));
    }
    let path = entry[name].as_str();
    path.map(|path| std::fs::read_to_string(path).with_context(|| path.to_owned()))
        .transpose()
}

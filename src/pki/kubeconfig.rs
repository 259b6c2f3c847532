//! Kubeconfig files with everything inline.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::Identity;

pub enum Credentials<'a> {
    Certificate(&'a Identity),
    Token(&'a str),
}

/// One cluster, one user, one context, all called `name`.
pub struct Kubeconfig<'a> {
    pub name: &'a str,
    /// `https://host:port`
    pub server: &'a str,
    pub authority_pem: &'a str,
    pub credentials: Credentials<'a>,
}

impl Kubeconfig<'_> {
    pub fn render(&self) -> String {
        let name = self.name;
        let user = match self.credentials {
            Credentials::Certificate(identity) => format!(
                "    client-certificate-data: {}\n    client-key-data: {}\n",
                STANDARD.encode(&identity.certificate_pem),
                STANDARD.encode(&identity.key_pem)
            ),
            Credentials::Token(token) => format!("    token: {}\n", quoted(token)),
        };
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: {name}\n\
             \x20 cluster:\n\
             \x20   certificate-authority-data: {authority}\n\
             \x20   server: {server}\n\
             contexts:\n\
             - name: {name}\n\
             \x20 context:\n\
             \x20   cluster: {name}\n\
             \x20   user: {name}\n\
             current-context: {name}\n\
             users:\n\
             - name: {name}\n\
             \x20 user:\n{user}",
            authority = STANDARD.encode(self.authority_pem),
            server = self.server,
        )
    }
}

/// A double-quoted YAML scalar (JSON strings are such).
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_a_token_user() {
        let text = Kubeconfig {
            name: "default",
            server: "https://127.0.0.1:6443",
            authority_pem: "CA",
            credentials: Credentials::Token("t\"x"),
        }
        .render();
        assert!(text.contains("\n    certificate-authority-data: Q0E=\n"));
        assert!(text.ends_with("users:\n- name: default\n  user:\n    token: \"t\\\"x\"\n"));
    }
}

//! The command line: one measurement, the way to the API, and its settings.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail};
use sampan_client::{Client, Credentials, HttpsTransport};
use sampan_pki::Identity;

use crate::kubeconfig::{self, Access};

#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) measurement: String,
    values: BTreeMap<String, String>,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut arguments = Self::default();
        let mut words = words;
        while let Some(word) = words.next() {
            if let Some(flag) = word.strip_prefix("--") {
                let value = words
                    .next()
                    .with_context(|| format!("--{flag} takes a value"))?;
                arguments.values.insert(flag.to_owned(), value);
            } else if let Some((name, value)) = word.split_once('=') {
                arguments.values.insert(name.to_owned(), value.to_owned());
            } else if arguments.measurement.is_empty() {
                arguments.measurement = word;
            } else {
                bail!("one measurement at a time, not also {word:?}");
            }
        }
        Ok(arguments)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(crate) fn value<T: FromStr>(&self, name: &str, default: T) -> anyhow::Result<T> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .ok()
                .with_context(|| format!("{name}={text} is no legal value")),
        }
    }

    /// The processes whose use of the machine is reported.
    pub(crate) fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let text = self.text("pid").unwrap_or_default();
        let words = text.split(',').filter(|word| !word.is_empty());
        words
            .map(|word| word.parse().with_context(|| format!("pid={word}")))
            .collect()
    }

    /// A transport with a connection of its own.
    pub(crate) fn transport(&self) -> anyhow::Result<HttpsTransport> {
        let access = self.access()?;
        Ok(HttpsTransport::new(
            &access.server,
            access.authority_pem.as_deref(),
            &access.credentials,
            "sampan-bench",
        )?)
    }

    fn access(&self) -> anyhow::Result<Access> {
        let read = |name: &str| -> anyhow::Result<Option<String>> {
            let path = self.text(name);
            path.map(|path| std::fs::read_to_string(path).with_context(|| path.to_owned()))
                .transpose()
        };
        if let Some(text) = read("kubeconfig")? {
            return kubeconfig::parse(&text);
        }
        let credentials = match (self.text("token"), read("cert")?, read("key")?) {
            (Some(token), _, _) => Credentials::Token(token.to_owned()),
            (None, Some(certificate_pem), Some(key_pem)) => Credentials::Certificate(Identity {
                certificate_pem,
                key_pem,
            }),
            _ => Credentials::Anonymous,
        };
        Ok(Access {
            server: self
                .text("server")
                .context("--server or --kubeconfig is missing")?
                .to_owned(),
            authority_pem: read("ca")?,
            credentials,
        })
    }

    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(Arc::new(self.transport()?)).with_field_manager("sampan-bench"))
    }

    pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
        Ok(tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?)
    }
}

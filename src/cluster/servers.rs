//! The servers an agent knows: the one it was given, and those that the cluster names.

use std::path::{Path, PathBuf};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_client::HttpsTransport;
use sampan_pki::files::{self, PUBLIC};

const NAMESPACE: &str = "default";
const SERVICE: &str = "kubernetes";
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Where an agent remembers servers for a start at which the first one is gone.
#[derive(Debug, Clone)]
pub struct Servers {
    given: String,
    path: PathBuf,
}

impl Servers {
    pub fn new(given: &str, path: &Path) -> Self {
        Self {
            given: given.trim_end_matches('/').to_owned(),
            path: path.to_owned(),
        }
    }

    /// Writes down what is known, if nothing is written yet: others on this machine ask the same servers.
    pub fn remember(&self) {
        if !self.path.exists() {
            self.save(&self.known());
        }
    }

    /// The given one first, then what was remembered.
    pub fn known(&self) -> Vec<String> {
        let text = files::read_optional(&self.path).ok().flatten();
        let kept = text.and_then(|text| serde_json::from_str::<Vec<String>>(&text).ok());
        self.with(kept.unwrap_or_default())
    }

    fn with(&self, more: Vec<String>) -> Vec<String> {
        let mut all = vec![self.given.clone()];
        for url in more {
            if !all.contains(&url) {
                all.push(url);
            }
        }
        all
    }

    /// Takes over what the cluster says; an empty answer changes nothing.
    pub fn learn<'a>(
        &self,
        slices: impl Iterator<Item = &'a EndpointSlice>,
        transports: &[HttpsTransport],
    ) {
        let found = urls(slices);
        let all = self.with(found.clone());
        if found.is_empty() || all == self.known() {
            return;
        }
        tracing::info!(servers = ?all, "the cluster's servers");
        for transport in transports {
            transport.replace_servers(&all);
        }
        self.save(&all);
    }

    fn save(&self, all: &[String]) {
        let saved = serde_json::to_string(all)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                files::write_atomic(&self.path, text.as_bytes(), PUBLIC)
                    .map_err(|error| error.to_string())
            });
        if let Err(error) = saved {
            tracing::warn!(%error, "the cluster's servers cannot be remembered");
        }
    }
}

/// Where the endpoints of the `kubernetes` Service are, sorted.
fn urls<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> Vec<String> {
    let mut all = Vec::new();
    for slice in slices.filter(|slice| is_of_servers(slice)) {
        let port = slice.ports.iter().flatten().find_map(|port| port.port);
        let ready = slice.endpoints.iter().flatten().filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|c| c.ready) != Some(false)
        });
        for address in ready.flat_map(|endpoint| &endpoint.addresses) {
            let host = match address.contains(':') {
                true => format!("[{address}]"),
                false => address.clone(),
            };
            all.push(format!("https://{host}:{}", port.unwrap_or(443)));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn is_of_servers(slice: &EndpointSlice) -> bool {
    let labels = slice.metadata.labels.as_ref();
    slice.metadata.namespace.as_deref() == Some(NAMESPACE)
        && labels
            .and_then(|all| all.get(SERVICE_LABEL))
            .map(String::as_str)
            == Some(SERVICE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn servers_are_learned_and_remembered_and_an_empty_list_is_not_believed() {
        let path = std::env::temp_dir().join(format!("sampan-servers-{}", std::process::id()));
        let servers = Servers::new("https://given:6443/", &path);
        assert_eq!(servers.known(), ["https://given:6443"]);
        let slice = |name: &str, addresses: &[&str]| -> EndpointSlice {
            let endpoints: Vec<_> = addresses
                .iter()
                .map(|address| serde_json::json!({"addresses": [address]}))
                .collect();
            serde_json::from_value(serde_json::json!({
                "metadata": {"namespace": "default", "labels": {SERVICE_LABEL: name}},
                "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 6443}],
            }))
            .unwrap()
        };
        let all = [
            slice("kubernetes", &["10.0.0.2", "fd00::1"]),
            slice("web", &["10.9.9.9"]),
        ];
        servers.learn(all.iter(), &[]);
        let expected = [
            "https://given:6443",
            "https://10.0.0.2:6443",
            "https://[fd00::1]:6443",
        ];
        assert_eq!(servers.known(), expected);
        servers.learn([slice("kubernetes", &[])].iter(), &[]);
        assert_eq!(servers.known(), expected);
        std::fs::remove_file(path).unwrap();
    }
}

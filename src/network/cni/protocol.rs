//! What passes between the plugin and the agent, and what CNI says it has to look like. Pure.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The versions of the CNI specification whose results we can write.
pub const VERSIONS: &[&str] = &["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// What our own configuration asks for: containerd 1.6 knows nothing newer.
pub const CONFIG_VERSION: &str = "1.0.0";

/// One call of the plugin, as the runtime made it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Request {
    pub command: String,
    pub container_id: String,
    pub netns: String,
    pub ifname: String,
    /// `K=V;K=V`
    pub args: String,
    pub config: Value,
}

impl Request {
    /// A value of `CNI_ARGS`.
    pub fn arg(&self, name: &str) -> Option<&str> {
        let pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(k, _)| *k == name).map(|(_, v)| v)
    }

    pub fn version(&self) -> &str {
        self.config
            .get("cniVersion")
            .and_then(Value::as_str)
            .unwrap_or("0.3.0")
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// What the plugin prints; null where it prints nothing.
    Result(Value),
    Error(Failure),
}

/// Error codes of the CNI specification.
pub mod code {
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    pub const UNKNOWN_CONTAINER: u32 = 3;
    pub const INVALID_ENVIRONMENT: u32 = 4;
    pub const IO: u32 = 5;
    pub const DECODING: u32 = 6;
    pub const INVALID_CONFIG: u32 = 7;
    pub const TRY_AGAIN: u32 = 11;
    pub const NOT_AVAILABLE: u32 = 50;
    /// Codes from here on are the plugin's own.
    pub const FAILED: u32 = 100;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: u32,
    pub message: String,
    #[serde(default)]
    pub details: String,
}

impl Failure {
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: String::new(),
        }
    }

    pub fn print(&self, version: &str) -> Value {
        let mut value = json!({"cniVersion": version, "code": self.code, "msg": self.message});
        if !self.details.is_empty() {
            value["details"] = json!(self.details);
        }
        value
    }
}

/// What an ADD achieved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    pub host_link: String,
    pub host_mac: String,
    pub interface: String,
    pub mac: String,
    pub namespace: String,
    /// (address, prefix length, gateway)
    pub addresses: Vec<(IpAddr, u8, IpAddr)>,
}

impl Attached {
    /// The result in the form of the given version.
    pub fn render(&self, version: &str) -> Value {
        let ip = |(address, prefix_len, gateway): &(IpAddr, u8, IpAddr)| {
            let mut ip = json!({
                "interface": 1, "address": format!("{address}/{prefix_len}"), "gateway": gateway
            });
            if version.starts_with("0.") {
                ip["version"] = json!(if address.is_ipv6() { "6" } else { "4" });
            }
            ip
        };
        let route = |(address, _, gateway): &(IpAddr, u8, IpAddr)| {
            let all = if address.is_ipv6() {
                "::/0"
            } else {
                "0.0.0.0/0"
            };
            json!({"dst": all, "gw": gateway})
        };
        json!({
            "cniVersion": version,
            "interfaces": [
                {"name": self.host_link, "mac": self.host_mac},
                {"name": self.interface, "mac": self.mac, "sandbox": self.namespace}
            ],
            "ips": self.addresses.iter().map(ip).collect::<Vec<_>>(),
            "routes": self.addresses.iter().map(route).collect::<Vec<_>>(),
            "dns": {}
        })
    }
}

/// The answer to `VERSION`.
pub fn versions(asked: &str) -> Value {
    json!({"cniVersion": asked, "supportedVersions": VERSIONS})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_by_name() {
        let request = Request {
            args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web".into(),
            ..Request::default()
        };
        assert_eq!(request.arg("K8S_POD_NAME"), Some("web"));
        assert_eq!(request.arg("K8S_POD"), None);
    }

    #[test]
    fn results_have_the_shape_of_their_version() {
        let attached = Attached {
            host_link: "sp1".into(),
            host_mac: "0a:58:a9:fe:01:01".into(),
            interface: "eth0".into(),
            mac: "0a:58:0a:2a:00:02".into(),
            namespace: "/run/netns/x".into(),
            addresses: vec![([10, 42, 0, 2].into(), 32, [169, 254, 1, 1].into())],
        };
        let old = attached.render("0.4.0");
        assert_eq!(old["ips"][0]["version"], "4");
        let new = attached.render("1.0.0");
        assert_eq!(new["ips"][0].get("version"), None);
        assert_eq!(new["ips"][0]["address"], "10.42.0.2/32");
        assert_eq!(new["interfaces"][1]["sandbox"], "/run/netns/x");
        assert_eq!(
            new["routes"][0],
            serde_json::json!({"dst": "0.0.0.0/0", "gw": "169.254.1.1"})
        );
    }
}

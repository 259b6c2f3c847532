//! Where kubelets, pods and services are: URLs from objects. Pure.

use std::net::IpAddr;

use sampan_api::{Reason, Status, meta};
use serde_json::Value;

const KUBELET_PORT: u16 = 10250;

/// `host:port`, with brackets around an IPv6 address.
pub fn join_host_port(host: &str, port: impl std::fmt::Display) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The kubelet of a node.
pub fn kubelet(node: &Value) -> Result<(String, u16), Status> {
    let port = meta::integer(
        node,
        &["status", "daemonEndpoints", "kubeletEndpoint", "Port"],
    )
    .and_then(|port| u16::try_from(port).ok())
    .filter(|port| *port != 0)
    .unwrap_or(KUBELET_PORT);
    for wanted in ["InternalIP", "ExternalIP", "InternalDNS", "Hostname"] {
        for address in meta::items(node, &["status", "addresses"]) {
            let host = meta::text(address, &["address"]);
            if meta::text(address, &["type"]) == wanted && !host.is_empty() {
                return Ok((host.to_owned(), port));
            }
        }
    }
    Err(Status::internal(format!(
        "no preferred addresses found; known addresses: {}",
        meta::at(node, &["status", "addresses"])
    )))
}

/// Whether it is the kubelet, and its URL or that of another port of the node. A node says by itself
/// what its address is: only the own machine's may be one that just this machine reaches, and only
/// the port of the kubelet.
pub fn node_backend(
    node: &Value,
    is_own: bool,
    scheme: &str,
    port: &str,
) -> Result<(bool, String), Status> {
    let (host, kubelet_port) = kubelet(node)?;
    let is_kubelet = port.is_empty() || port == kubelet_port.to_string();
    let is_own_kubelet = is_own && is_kubelet && kubelet_port == KUBELET_PORT;
    if !is_own_kubelet && !is_reachable(&host) {
        return Err(Status::bad_request("address not allowed"));
    }
    Ok(if is_kubelet {
        let place = join_host_port(&host, kubelet_port);
        (true, format!("https://{place}"))
    } else {
        let place = join_host_port(&host, port);
        (false, format!("{}://{place}", scheme_or_http(scheme)))
    })
}

/// The container that is meant: the one named, or the only one.
pub fn container(pod: &Value, wanted: &str) -> Result<String, Status> {
    let pod_name = meta::text(pod, &["metadata", "name"]);
    let names: Vec<&str> = ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| meta::items(pod, &["spec", list]))
        .map(|container| meta::text(container, &["name"]))
        .collect();
    if !wanted.is_empty() {
        return if names.contains(&wanted) {
            Ok(wanted.to_owned())
        } else {
            Err(Status::bad_request(format!(
                "container {wanted} is not valid for pod {pod_name}"
            )))
        };
    }
    match meta::items(pod, &["spec", "containers"]) {
        [only] => Ok(meta::text(only, &["name"]).to_owned()),
        [] => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}"
        ))),
        _ => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{}]",
            names.join(" ")
        ))),
    }
}

/// `name`, `name:port` or `scheme:name:port`, as proxies' names are written.
pub fn split_target(text: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = text.split(':').collect();
    let (scheme, name, port) = match parts.as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme @ ("" | "http" | "https"), name, port] => (*scheme, *name, *port),
        _ => return None,
    };
    (!name.is_empty()).then_some((scheme, name, port))
}

fn scheme_or_http(scheme: &str) -> &str {
    if scheme.is_empty() { "http" } else { scheme }
}

/// `http://address:port` of a pod.
pub fn pod_backend(pod: &Value, scheme: &str, port: &str) -> Result<String, Status> {
    let ip = meta::text(pod, &["status", "podIP"]);
    if !is_reachable(ip) {
        return Err(Status::bad_request("address not allowed"));
    }
    let first_port = meta::items(pod, &["spec", "containers"])
        .iter()
        .find_map(|container| meta::items(container, &["ports"]).first())
        .and_then(|port| meta::integer(port, &["containerPort"]));
    let scheme = scheme_or_http(scheme);
    Ok(match (port, first_port) {
        ("", Some(port)) => format!("{scheme}://{}", join_host_port(ip, port)),
        ("", None) if ip.contains(':') => format!("{scheme}://[{ip}]"),
        ("", None) => format!("{scheme}://{ip}"),
        (port, _) => format!("{scheme}://{}", join_host_port(ip, port)),
    })
}

/// Addresses of pods and nodes, not those of this machine or of everybody.
fn is_reachable(ip: &str) -> bool {
    let Ok(ip) = ip.parse::<IpAddr>() else {
        return false;
    };
    // `::ffff:127.0.0.1` is the loopback device too.
    let ip = ip.to_canonical();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local)
}

/// `http://address:port` of one of a service's endpoints; `seed` picks which.
pub fn service_backend(
    service: &Value,
    endpoints: &Value,
    id: &str,
    scheme: &str,
    port: &str,
    seed: usize,
) -> Result<String, Status> {
    let name = meta::text(service, &["metadata", "name"]);
    let unavailable = |message: String| Status::new(Reason::ServiceUnavailable, message);
    let mut port_name = port.to_owned();
    if let Ok(number) = port.parse::<i64>() {
        port_name = meta::items(service, &["spec", "ports"])
            .iter()
            .find(|port| meta::integer(port, &["port"]) == Some(number))
            .map(|port| meta::text(port, &["name"]).to_owned())
            .ok_or_else(|| {
                unavailable(format!(
                    "no service port {number} found for service {name:?}"
                ))
            })?;
    }
    let subsets = meta::items(endpoints, &["subsets"]);
    if subsets.is_empty() {
        return Err(unavailable(format!(
            "no endpoints available for service {name:?}"
        )));
    }
    let candidates: Vec<String> = subsets
        .iter()
        .flat_map(|subset| candidates(subset, &port_name))
        .collect();
    if candidates.is_empty() {
        return Err(unavailable(format!(
            "no endpoints available for service {id:?}"
        )));
    }
    let chosen = &candidates[seed % candidates.len()];
    Ok(format!("{}://{chosen}", scheme_or_http(scheme)))
}

/// Addresses of pods in a subset that has the port.
fn candidates(subset: &Value, port_name: &str) -> Vec<String> {
    let port = meta::items(subset, &["ports"])
        .iter()
        .find(|port| meta::text(port, &["name"]) == port_name)
        .and_then(|port| meta::integer(port, &["port"]));
    let Some(port) = port else {
        return Vec::new();
    };
    meta::items(subset, &["addresses"])
        .iter()
        .filter(|address| meta::text(address, &["targetRef", "kind"]) == "Pod")
        .map(|address| meta::text(address, &["ip"]))
        .filter(|ip| is_reachable(ip))
        .map(|ip| join_host_port(ip, port))
        .collect()
}

/// Percent-encodes what is put into a query or a path segment.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn containers() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}, {"name": "b"}]},
        });
        assert_eq!(container(&pod, "i").unwrap(), "i");
        assert_eq!(
            container(&pod, "").unwrap_err().message,
            "a container name must be specified for pod p, choose one of: [i a b]"
        );
        assert_eq!(
            container(&pod, "x").unwrap_err().message,
            "container x is not valid for pod p"
        );
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        assert_eq!(container(&one, "").unwrap(), "a");
    }

    #[test]
    fn backends() {
        assert_eq!(split_target("a:80"), Some(("", "a", "80")));
        assert_eq!(split_target("https:a:"), Some(("https", "a", "")));
        assert_eq!(split_target("ftp:a:1"), None);
        let pod = json!({
            "status": {"podIP": "10.42.0.9"},
            "spec": {"containers": [{"ports": [{"containerPort": 8080}]}]},
        });
        assert_eq!(pod_backend(&pod, "", "").unwrap(), "http://10.42.0.9:8080");
        assert_eq!(
            pod_backend(&pod, "https", "1").unwrap(),
            "https://10.42.0.9:1"
        );
        let local = json!({"status": {"podIP": "127.0.0.1"}});
        assert!(pod_backend(&local, "", "").is_err());
        let service =
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "web", "port": 80}]}});
        let endpoints = json!({"subsets": [{
            "ports": [{"name": "web", "port": 8080}],
            "addresses": [
                {"ip": "10.42.0.9", "targetRef": {"kind": "Pod"}},
                {"ip": "192.0.2.1"},
            ],
        }]});
        let find = |port| service_backend(&service, &endpoints, "s", "", port, 7);
        assert_eq!(find("80").unwrap(), "http://10.42.0.9:8080");
        assert_eq!(find("web").unwrap(), "http://10.42.0.9:8080");
        assert_eq!(find("").unwrap_err().code, 503);
        assert_eq!(
            find("81").unwrap_err().message,
            "no service port 81 found for service \"s\""
        );
    }

    #[test]
    fn nodes_do_not_lead_to_this_machine() {
        let node = |address: &str, port: u16| {
            json!({"status": {
                "addresses": [{"type": "InternalIP", "address": address}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }})
        };
        let allowed = |node: &Value, is_own, port| node_backend(node, is_own, "", port).is_ok();
        for address in [
            "127.0.0.1",
            "::ffff:127.0.0.1",
            "::1",
            "169.254.169.254",
            "0.0.0.0",
            "localhost",
        ] {
            let claimed = node(address, 10250);
            assert!(!allowed(&claimed, false, "8080"), "{address}");
            assert!(!allowed(&claimed, true, "8080"), "{address}");
            assert!(!allowed(&claimed, false, ""), "{address}");
        }
        let own = node("127.0.0.1", 10250);
        assert!(allowed(&own, true, "") && allowed(&own, true, "10250"));
        // Nor to another port of it by calling that one the kubelet's.
        assert!(!allowed(&node("127.0.0.1", 6443), true, ""));
    }

    #[test]
    fn kubelets() {
        let node = json!({"status": {
            "addresses": [
                {"type": "Hostname", "address": "n"},
                {"type": "InternalIP", "address": "fd00::1"},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10260}},
        }});
        assert_eq!(kubelet(&node).unwrap(), ("fd00::1".to_owned(), 10260));
        assert_eq!(join_host_port("fd00::1", 1), "[fd00::1]:1");
        assert!(kubelet(&json!({})).is_err());
        let url = |port| node_backend(&node, false, "", port).unwrap();
        assert_eq!(url(""), (true, "https://[fd00::1]:10260".to_owned()));
        assert_eq!(url("9100"), (false, "http://[fd00::1]:9100".to_owned()));
        assert_eq!(encode("a b/ü"), "a%20b%2F%C3%BC");
    }
}

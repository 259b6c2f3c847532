//! exec, attach and port-forward: upgraded connections, relayed to the pod's kubelet.

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use sampan_api::{Status, meta};
use sampan_net::{Body, websocket};
use serde_json::Value;

use super::location::{self, encode, join_host_port};
use super::{Relay, upgrade};
use crate::http::Context;
use crate::http::query::Query;

/// Port-forwarding as newer clients ask for it.
const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";

pub(super) async fn answer(
    relay: &Relay,
    request: Request<Incoming>,
    context: &Context,
) -> Result<Response<Body>, Status> {
    let info = &context.info;
    let pod = relay.object("pods", &info.namespace, &info.name)?;
    let pod: Value = serde_json::from_slice(&pod).map_err(Status::internal)?;
    let is_forward = info.subresource == "portforward";
    let container = if is_forward {
        String::new()
    } else {
        let wanted = context.query.first("container").unwrap_or_default();
        location::container(&pod, wanted)?
    };
    let node = meta::text(&pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return Err(Status::bad_request(format!(
            "pod {} does not have a host assigned",
            info.name
        )));
    }
    let path = kubelet_path(&info.subresource, &info.namespace, &info.name, &container);
    let query = kubelet_query(&info.subresource, &context.query);
    let target = upgrade::url(&format!("{}{path}?{query}", relay.kubelet_url(node)?))?;
    if !upgrade::wants_upgrade(request.headers()) {
        return Err(Status::bad_request("Upgrade request required"));
    }
    if is_forward && asks_for_tunnel(request.headers()) {
        let client = &relay.kubelets().checked;
        return upgrade::tunnel_spdy(
            client,
            request,
            target,
            TUNNEL_PROTOCOL,
            "portforward.k8s.io",
        )
        .await;
    }
    upgrade::relay_upgrade(&relay.kubelets().checked, request, target, HeaderMap::new()).await
}

fn asks_for_tunnel(headers: &HeaderMap) -> bool {
    websocket::is_websocket(headers)
        && websocket::offered_protocols(headers)
            .iter()
            .any(|protocol| protocol == TUNNEL_PROTOCOL)
}

impl Relay {
    /// `https://host:port` of a node's kubelet.
    pub(super) fn kubelet_url(&self, node: &str) -> Result<String, Status> {
        let object = self.object("nodes", "", node)?;
        let object: Value = serde_json::from_slice(&object).map_err(Status::internal)?;
        let (host, port) = location::kubelet(&object)?;
        Ok(format!("https://{}", join_host_port(&host, port)))
    }
}

/// The kubelet's path for a subresource.
fn kubelet_path(subresource: &str, namespace: &str, pod: &str, container: &str) -> String {
    let verb = if subresource == "portforward" {
        "portForward"
    } else {
        subresource
    };
    let mut path = format!("/{verb}/{}/{}", encode(namespace), encode(pod));
    if !container.is_empty() {
        path.push('/');
        path.push_str(&encode(container));
    }
    path
}

/// The options under the names that kubelets know.
fn kubelet_query(subresource: &str, query: &Query) -> String {
    let mut pairs: Vec<(&str, String)> = Vec::new();
    if subresource == "portforward" {
        let ports: Vec<&str> = query.all("ports").collect();
        if !ports.is_empty() {
            pairs.push(("port", ports.join(",")));
        }
    } else {
        // Output is wanted unless it is refused.
        for (ours, theirs, default) in [
            ("stdin", "input", false),
            ("stdout", "output", true),
            ("stderr", "error", true),
            ("tty", "tty", false),
        ] {
            let wanted = match query.first(ours) {
                Some(_) => query.flag(ours),
                None => default,
            };
            if wanted {
                pairs.push((theirs, "1".to_owned()));
            }
        }
        for part in query.all("command") {
            pairs.push(("command", part.to_owned()));
        }
    }
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(key, value)| format!("{key}={}", encode(value)))
        .collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_sessions() {
        let query = Query::parse("stdin=true&stdout=false&command=ls&command=-l+a&container=c");
        assert_eq!(
            kubelet_query("exec", &query),
            "input=1&error=1&command=ls&command=-l%20a"
        );
        let ports = Query::parse("ports=80&ports=443");
        assert_eq!(kubelet_query("portforward", &ports), "port=80%2C443");
        assert_eq!(
            kubelet_path("portforward", "a", "p", ""),
            "/portForward/a/p"
        );
        assert_eq!(kubelet_path("exec", "a", "p", "c"), "/exec/a/p/c");
    }
}

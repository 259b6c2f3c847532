//! `nodes/proxy`, `pods/proxy`, `services/proxy`: HTTP to what the API server can reach.

use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use sampan_api::Status;
use sampan_net::{Body, HttpClient, empty};
use serde_json::Value;

use super::location;
use super::{Relay, upgrade};
use crate::http::Context;

pub(super) async fn answer(
    relay: &Relay,
    request: Request<Incoming>,
    context: &Context,
) -> Result<Response<Body>, Status> {
    let (client, base) = backend(relay, context)?;
    let raw_path = request.uri().path().to_owned();
    let query = request
        .uri()
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    let rest = rest_of_path(&raw_path);
    let wants_upgrade = upgrade::wants_upgrade(request.headers());
    if rest.is_empty() && !wants_upgrade {
        return Ok(redirect(&format!("{raw_path}/{query}")));
    }
    let target = upgrade::url(&format!("{base}{rest}{query}"))?;
    let extra = forwarding_headers(context, &request);
    if wants_upgrade {
        return upgrade::relay_upgrade(&client, request, target, extra).await;
    }
    let mut response = upgrade::forward(&client, request, target, extra).await?;
    rewrite_location(
        &mut response,
        &base,
        raw_path.strip_suffix(rest).unwrap_or(""),
    );
    Ok(response)
}

/// Where the request goes and by which client.
fn backend(relay: &Relay, context: &Context) -> Result<(HttpClient, String), Status> {
    let info = &context.info;
    let kind = info.resource.trim_end_matches('s');
    let (scheme, name, port) = location::split_target(&info.name)
        .ok_or_else(|| Status::bad_request(format!("invalid {kind} request {:?}", info.name)))?;
    let read = |resource: &str, namespace: &str| -> Result<Value, Status> {
        let object = relay.object(resource, namespace, name)?;
        serde_json::from_slice(&object).map_err(Status::internal)
    };
    match info.resource.as_str() {
        "nodes" => {
            let node = read("nodes", "")?;
            let is_own = relay.own_node.as_deref() == Some(name);
            let (is_kubelet, url) = location::node_backend(&node, is_own, scheme, port)?;
            let client = if is_kubelet {
                relay.kubelets().checked
            } else {
                relay.backends.clone()
            };
            Ok((client, url))
        }
        "pods" => {
            let pod = read("pods", &info.namespace)?;
            Ok((
                relay.backends.clone(),
                location::pod_backend(&pod, scheme, port)?,
            ))
        }
        _ => {
            let service = read("services", &info.namespace)?;
            let endpoints = read("endpoints", &info.namespace)?;
            let seed = rand::random_range(0..usize::MAX);
            let url =
                location::service_backend(&service, &endpoints, &info.name, scheme, port, seed)?;
            Ok((relay.backends.clone(), url))
        }
    }
}

/// Everything behind `/proxy`, as it was written.
fn rest_of_path(path: &str) -> &str {
    // /api/v1/nodes/NAME/proxy or /api/v1/namespaces/NS/pods/NAME/proxy
    let skip = if path.starts_with("/api/v1/nodes/") {
        5
    } else {
        7
    };
    path.match_indices('/')
        .nth(skip)
        .map_or("", |(index, _)| &path[index..])
}

fn redirect(to: &str) -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(value) = HeaderValue::from_str(to) {
        response.headers_mut().insert(LOCATION, value);
    }
    response
}

fn forwarding_headers(context: &Context, request: &Request<Incoming>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    add("x-forwarded-for", &context.peer.address.ip().to_string());
    add("x-forwarded-uri", request.uri().path());
    add("x-forwarded-proto", "https");
    if let Some(host) = request
        .headers()
        .get(http::header::HOST)
        .and_then(|host| host.to_str().ok())
    {
        add("x-forwarded-host", host);
    }
    headers
}

/// A redirect of the backend leads through the proxy again.
fn rewrite_location(response: &mut Response<Body>, base: &str, prefix: &str) {
    let Some(location) = response
        .headers()
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
    else {
        return;
    };
    let path = match location.strip_prefix(base) {
        Some(path) => path,
        None if location.starts_with('/') && !location.starts_with("//") => location,
        None => return,
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{prefix}{path}")) {
        response.headers_mut().insert(LOCATION, value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_rest_of_the_path() {
        assert_eq!(rest_of_path("/api/v1/nodes/n/proxy"), "");
        assert_eq!(rest_of_path("/api/v1/nodes/n/proxy/"), "/");
        assert_eq!(rest_of_path("/api/v1/nodes/n/proxy/a%2Fb/c"), "/a%2Fb/c");
        assert_eq!(
            rest_of_path("/api/v1/namespaces/a/pods/p:80/proxy/x//y"),
            "/x//y"
        );
        assert_eq!(rest_of_path("/api/v1/namespaces/a/services/s/proxy"), "");
    }

    #[test]
    fn redirects_come_back() {
        let check = |location: &str, expected: &str| {
            let mut response = redirect(location);
            rewrite_location(&mut response, "http://10.0.0.1:80", "/p/proxy");
            assert_eq!(response.headers()[LOCATION], expected);
        };
        check("/a", "/p/proxy/a");
        check("http://10.0.0.1:80/b", "/p/proxy/b");
        check("https://elsewhere/", "https://elsewhere/");
    }
}

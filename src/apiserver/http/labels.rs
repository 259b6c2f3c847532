//! Under which labels a request is counted: the verbs that upstream's dashboards expect.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::path::PathInfo;
use super::query::Query;
use crate::metrics::RequestLabels;

pub fn request_labels(info: &PathInfo, query: &Query, headers: &HeaderMap) -> RequestLabels {
    if !info.is_resource {
        return RequestLabels {
            verb: verb(info, headers),
            subresource: known_path(&info.path).to_owned(),
            ..RequestLabels::default()
        };
    }
    let scope = match (info.name.is_empty(), info.namespace.is_empty()) {
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    };
    RequestLabels {
        verb: verb(info, headers),
        group: bounded(&info.group),
        version: bounded(&info.version),
        resource: bounded(&info.resource),
        subresource: bounded(&info.subresource),
        scope,
        dry_run: query.first("dryRun").is_some(),
    }
}

fn verb(info: &PathInfo, headers: &HeaderMap) -> &'static str {
    let is_stream = matches!(
        info.subresource.as_str(),
        "attach" | "exec" | "proxy" | "portforward"
    );
    if is_stream {
        return "CONNECT";
    }
    match info.verb.as_str() {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => {
            let is_apply = headers
                .get(CONTENT_TYPE)
                .and_then(|value| value.to_str().ok())
                .is_some_and(|media| media.starts_with("application/apply-patch"));
            if is_apply { "APPLY" } else { "PATCH" }
        }
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}

/// Paths that are counted by themselves; clients must not be able to make series at will.
fn known_path(path: &str) -> &'static str {
    [
        "/healthz", "/livez", "/readyz", "/version", "/metrics", "/openapi", "/apis", "/api",
    ]
    .into_iter()
    .find(|known| path == *known || path.starts_with(&format!("{known}/")))
    .unwrap_or("")
}

/// A label's value if it can be a name, else a placeholder.
fn bounded(text: &str) -> String {
    let plain = text.len() <= 80
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    if plain {
        text.to_owned()
    } else {
        "other".to_owned()
    }
}

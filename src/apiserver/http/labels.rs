//! Under which labels a request is counted: the verbs that upstream's dashboards expect.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use sampan_api::Registry;

use super::path::PathInfo;
use super::query::Query;
use crate::metrics::RequestLabels;

/// Only names that the registry knows become labels: clients, even unknown ones, choose the path.
pub fn request_labels(
    info: &PathInfo,
    query: &Query,
    headers: &HeaderMap,
    registry: &Registry,
) -> RequestLabels {
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
    let row = registry
        .snapshot()
        .by_resource(&info.group, &info.version, &info.resource);
    let known = |text: &str| row.as_ref().map_or_else(String::new, |_| text.to_owned());
    let subresource = row
        .as_ref()
        .and_then(|row| row.subresource(&info.subresource))
        .map_or_else(String::new, |one| one.name.to_string());
    RequestLabels {
        verb: verb(info, headers),
        group: known(&info.group),
        version: known(&info.version),
        resource: known(&info.resource),
        subresource,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn clients_cannot_make_series_at_will() {
        let registry = Registry::builtin();
        let labels = |path: &str| {
            let query = Query::default();
            let info = PathInfo::parse(&http::Method::GET, path, &query);
            request_labels(&info, &query, &HeaderMap::new(), &registry)
        };
        let invented: BTreeSet<_> = (0..100)
            .flat_map(|number| {
                [
                    format!("/apis/g{number}.example.com/v1/things"),
                    format!("/apis/apps/v{number}beta7/deployments"),
                    format!("/api/v1/things{number}"),
                    format!("/api/v1/namespaces/n/pods/p/sub{number}"),
                    format!("/somewhere/{number}"),
                ]
            })
            .map(|path| labels(&path))
            .collect();
        assert!(invented.len() <= 5, "{invented:?}");
        let known = labels("/api/v1/namespaces/n/pods/p/log");
        assert_eq!((&*known.resource, &*known.subresource), ("pods", "log"));
        assert_eq!(labels("/apis/apps/v1/deployments").group, "apps");
    }
}

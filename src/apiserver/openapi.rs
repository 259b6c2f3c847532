//! OpenAPI documents, made from the rows and their schemas when they are asked for.
//!
//! Version 3 has a document for each group version, version 2 one for all. Nothing is kept: clients
//! cache by the hash in the index, and only few of them ask at all.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use sampan_api::Status;
use sampan_api::registry::Snapshot;
use sampan_net::{Body, empty, full};
use serde_json::{Map, Value, json};

use crate::discovery;
use crate::http::Context;
use crate::http::{negotiate, respond};

mod custom;
mod definitions;
mod paths;

use definitions::Definitions;

/// Which version of OpenAPI a document is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavor {
    V2,
    V3,
}

/// The documents of one state of the rows.
pub(crate) struct Documents {
    rows: Arc<Snapshot>,
}

impl Documents {
    pub(crate) fn new(rows: Arc<Snapshot>) -> Self {
        Self { rows }
    }

    /// Answers a path below `/openapi`.
    pub(crate) fn answer(
        &self,
        path: &[&str],
        headers: &HeaderMap,
        context: &Context,
    ) -> Result<Response<Body>, Status> {
        match path {
            ["v2" | "v3", ..] if !accepts_json(headers) => Ok(not_acceptable()),
            ["v2"] => Ok(self.whole(headers)),
            ["v3"] => Ok(plain(&self.index())),
            ["v3", "version"] => Ok(plain(&version_document())),
            ["v3", "api", version] => Ok(self.of_version(headers, context, "", version)),
            ["v3", "apis", group, version] => Ok(self.of_version(headers, context, group, version)),
            _ => Ok(respond::page_not_found()),
        }
    }

    fn whole(&self, headers: &HeaderMap) -> Response<Body> {
        let tag = hash(&format!("v2 {}", self.index()));
        if is_known(headers, &tag) {
            return not_modified(&tag);
        }
        tagged(&document_v2(&self.rows), &tag, false)
    }

    fn of_version(
        &self,
        headers: &HeaderMap,
        context: &Context,
        group: &str,
        version: &str,
    ) -> Response<Body> {
        let Some(tag) = self.tag(group, version) else {
            return respond::page_not_found();
        };
        if is_known(headers, &tag) {
            return not_modified(&tag);
        }
        let document = document_v3(&self.rows, group, version);
        let asked_by_hash = context.query.first("hash") == Some(tag.as_str());
        tagged(&document, &tag, asked_by_hash)
    }

    /// Changes whenever the document would.
    fn tag(&self, group: &str, version: &str) -> Option<String> {
        let resources = discovery::resource_list(&self.rows, group, version)?;
        let schemas: Vec<String> = self
            .rows
            .rows()
            .iter()
            .filter(|row| row.version(group, version).is_some())
            .filter_map(|row| row.custom.as_ref())
            .map(|custom| format!("{} {}", custom.uid, custom.generation))
            .collect();
        Some(hash(&format!("{resources} {schemas:?}")))
    }

    fn index(&self) -> Value {
        let mut paths = Map::new();
        for row in self.rows.rows() {
            for served in row.versions.iter().filter(|version| version.served) {
                let key = if served.group.is_empty() {
                    format!("api/{}", served.version)
                } else {
                    format!("apis/{}/{}", served.group, served.version)
                };
                if paths.contains_key(&key) {
                    continue;
                }
                if let Some(tag) = self.tag(&served.group, &served.version) {
                    let url = format!("/openapi/v3/{key}?hash={tag}");
                    paths.insert(key, json!({"serverRelativeURL": url}));
                }
            }
        }
        json!({ "paths": paths })
    }
}

/// Only JSON is made; whoever asks for the binary form first also takes this.
fn accepts_json(headers: &HeaderMap) -> bool {
    let header = negotiate::accept_header(headers);
    header.trim().is_empty()
        || negotiate::parse_accept(&header)
            .iter()
            .any(|clause| clause.matches("application/json"))
}

fn not_acceptable() -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
    response
}

fn hash(text: &str) -> String {
    let text = format!("{} {text}", env!("CARGO_PKG_VERSION"));
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    sampan_pki::certificate::hex(digest.as_ref()).to_uppercase()
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    headers
        .get(IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains(tag))
}

fn set_tag(response: &mut Response<Body>, tag: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{tag}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
}

fn not_modified(tag: &str) -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    set_tag(&mut response, tag);
    response
}

fn plain(document: &Value) -> Response<Body> {
    let mut response = Response::new(full(document.to_string()));
    respond::set(&mut response, CONTENT_TYPE, "application/json");
    response
}

fn tagged(document: &Value, tag: &str, immutable: bool) -> Response<Body> {
    let mut response = plain(document);
    set_tag(&mut response, tag);
    respond::set(&mut response, http::header::VARY, "Accept");
    if immutable {
        respond::set(&mut response, CACHE_CONTROL, "public, immutable");
    }
    response
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": crate::version::GIT_VERSION})
}

fn version_document() -> Value {
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": {"/version/": {"get": {
            "operationId": "getCodeVersion",
            "tags": ["version"],
            "responses": {"200": {"description": "OK"}},
        }}},
    })
}

fn document_v3(rows: &Snapshot, group: &str, version: &str) -> Value {
    let mut definitions = Definitions::new(Flavor::V3);
    let mut all = Map::new();
    for row in rows.rows() {
        if let Some(served) = row.version(group, version).filter(|version| version.served) {
            definitions.add_row(row, served);
            paths::add(&mut all, row, served, &mut definitions);
        }
    }
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": all,
        "components": {"schemas": definitions.finish()},
    })
}

fn document_v2(rows: &Snapshot) -> Value {
    let mut definitions = Definitions::new(Flavor::V2);
    let mut all = Map::new();
    for row in rows.rows() {
        for served in row.versions.iter().filter(|version| version.served) {
            definitions.add_row(row, served);
            paths::add(&mut all, row, served, &mut definitions);
        }
    }
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": all,
        "definitions": definitions.finish(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sampan_api::Registry;

    use super::*;

    /// Every reference leads somewhere.
    fn check_references(document: &Value, root: &Value, prefix: &str) {
        match document {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    let name = target.strip_prefix(prefix).unwrap();
                    assert!(root.get(name).is_some(), "{target}");
                }
                map.values()
                    .for_each(|value| check_references(value, root, prefix));
            }
            Value::Array(items) => items
                .iter()
                .for_each(|value| check_references(value, root, prefix)),
            _ => {}
        }
    }

    #[test]
    fn version_3() {
        let registry = Registry::builtin();
        let rows = registry.snapshot();
        let document = document_v3(&rows, "apps", "v1");
        let schemas = &document["components"]["schemas"];
        check_references(&document, schemas, "#/components/schemas/");
        let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
        assert_eq!(
            deployment["x-kubernetes-group-version-kind"],
            json!([{"group": "apps", "kind": "Deployment", "version": "v1"}])
        );
        let spec = &schemas["io.k8s.api.apps.v1.DeploymentSpec"];
        assert_eq!(spec["required"], json!(["selector", "template"]));
        assert_eq!(
            spec["properties"]["strategy"]["x-kubernetes-patch-strategy"],
            "retainKeys"
        );
        let path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
        let patch = &document["paths"][path]["patch"];
        assert_eq!(patch["x-kubernetes-action"], "patch");
        assert!(patch.to_string().contains("fieldValidation"));
    }

    #[test]
    fn custom_resources() {
        let schema = json!({"type": "object", "description": "A boat.", "properties": {"spec": {
            "type": "object", "properties": {"oars": {"type": "integer", "description": "How many."},
            "any": {"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}}}}}});
        let mut definition = json!({"metadata": {"uid": "u"}, "spec": {"group": "sea.example", "scope": "Namespaced",
            "names": {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        definition["status"] =
            sampan_api::custom::names::status(&definition, &[], jiff::Timestamp::UNIX_EPOCH)
                .unwrap();
        let registry = Registry::builtin();
        registry.insert(Arc::new(sampan_api::custom::row(&definition).unwrap()));
        let rows = registry.snapshot();
        let document = document_v3(&rows, "sea.example", "v1");
        let schemas = &document["components"]["schemas"];
        check_references(&document, schemas, "#/components/schemas/");
        let boat = &schemas["example.sea.v1.Boat"];
        assert_eq!(boat["description"], "A boat.");
        assert_eq!(boat["x-kubernetes-group-version-kind"][0]["kind"], "Boat");
        let spec = |boat: &Value| boat["properties"]["spec"]["properties"].clone();
        assert_eq!(spec(boat)["oars"]["description"], "How many.");
        assert!(spec(boat)["any"]["properties"].is_object());
        let document = document_v2(&rows);
        let boat = &document["definitions"]["example.sea.v1.Boat"];
        assert_eq!(spec(boat)["any"], json!({}));
    }

    #[test]
    fn version_2() {
        let registry = Registry::builtin();
        let document = document_v2(&registry.snapshot());
        check_references(&document, &document["definitions"], "#/definitions/");
        assert_eq!(
            document["definitions"]["io.k8s.api.core.v1.PodSpec"]["required"],
            json!(["containers"])
        );
    }
}

//! Paths that are no resources: discovery, version, health, metrics, schemas, keys.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use sampan_api::Status;
use sampan_api::registry::Snapshot;
use sampan_net::{Body, empty};
use serde_json::{Value, json};

use super::negotiate::{self, MediaType, Negotiated, Offer};
use super::respond::{self, Form};
use super::{Context, Front};
use crate::registry::server::{method_not_allowed, no_such_resource};
use crate::{discovery, openapi, version};

/// Documents made for one state of the rows.
#[derive(Default)]
pub(crate) struct Documents(Mutex<Option<Arc<Made>>>);

pub(crate) struct Made {
    rows: Arc<Snapshot>,
    aggregated: [Tagged; 2],
    openapi: openapi::Documents,
}

/// A document and the hash that says whether it has changed.
struct Tagged {
    text: Bytes,
    tag: String,
}

impl Tagged {
    fn new(document: &Value) -> Self {
        let text = Bytes::from(document.to_string());
        let hash = ring::digest::digest(&ring::digest::SHA512, &text);
        Self {
            tag: sampan_pki::certificate::hex(hash.as_ref()).to_uppercase(),
            text,
        }
    }
}

impl Documents {
    fn of(&self, rows: &Arc<Snapshot>) -> Arc<Made> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.as_ref().filter(|made| Arc::ptr_eq(&made.rows, rows)) {
            return Arc::clone(made);
        }
        let new = Arc::new(Made {
            rows: Arc::clone(rows),
            aggregated: [true, false].map(|core| Tagged::new(&discovery::aggregated(rows, core))),
            openapi: openapi::Documents::new(Arc::clone(rows)),
        });
        *made = Some(Arc::clone(&new));
        new
    }
}

pub(super) fn answer(
    front: &Front,
    request: &Request<Incoming>,
    context: &Context,
) -> Result<Response<Body>, Status> {
    let path = context.info.path.as_str();
    let query = &context.query;
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if let Some(answer) = front.config.health.answer(path, query) {
        return Ok(answer);
    }
    let parts: Vec<&str> = split(path);
    let rows = front.config.registry.snapshot();
    match parts.as_slice() {
        ["api" | "apis", ..] if !is_read => Err(method_not_allowed()),
        ["api"] | ["apis"] => group_lists(front, request.headers(), context, parts[0] == "api"),
        ["apis", group] => match discovery::group(&rows, group) {
            Some(document) => json_answer(request.headers(), context, &document),
            None => Ok(respond::page_not_found()),
        },
        ["api", version] => resource_list(request.headers(), context, &rows, "", version),
        ["apis", group, version] => {
            if discovery::group(&rows, group).is_none()
                || super::resource::is_unserved(front, group, version)
            {
                return Ok(respond::page_not_found());
            }
            resource_list(request.headers(), context, &rows, group, version)
        }
        ["version"] if !is_read => Err(method_not_allowed()),
        ["version"] => json_answer(request.headers(), context, &version::document()),
        ["metrics"] => Ok(metrics(front)),
        [".well-known", "openid-configuration"] => {
            openid_configuration(front).ok_or_else(no_such_resource)
        }
        ["openid", "v1", "jwks"] => key_set(front).ok_or_else(no_such_resource),
        ["openapi", rest @ ..] => {
            let made = front.documents.of(&rows);
            made.openapi.answer(rest, request.headers(), context)
        }
        [] => json_answer(request.headers(), context, &index(&rows)),
        _ => Ok(respond::page_not_found()),
    }
}

/// The parts of a path; a slash at its end is allowed, empty parts are not.
fn split(path: &str) -> Vec<&str> {
    let inner = path.strip_prefix('/').unwrap_or(path);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() {
        return if path.len() > 1 { vec![""] } else { Vec::new() };
    }
    inner.split('/').collect()
}

fn form(headers: &HeaderMap, context: &Context) -> Result<Form, Status> {
    let offer = Offer {
        protobuf: false,
        transforms: false,
    };
    Ok(Form {
        negotiated: negotiate::negotiate(headers, &context.query, offer)?,
        ..Form::JSON
    })
}

fn json_answer(
    headers: &HeaderMap,
    context: &Context,
    document: &Value,
) -> Result<Response<Body>, Status> {
    let form = form(headers, context)?;
    Ok(respond::json_response(document.to_string(), &form))
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// `/api` and `/apis`: the aggregated form if the client prefers it.
fn group_lists(
    front: &Front,
    headers: &HeaderMap,
    context: &Context,
    core: bool,
) -> Result<Response<Body>, Status> {
    let rows = front.config.registry.snapshot();
    if wants_aggregated(headers)? {
        let made = front.documents.of(&rows);
        let tagged = &made.aggregated[usize::from(!core)];
        let mut response = tagged_response(tagged, headers);
        respond::set(&mut response, http::header::CONTENT_TYPE, AGGREGATED);
        respond::vary_on_accept(&mut response);
        return Ok(response);
    }
    let document = if core {
        discovery::legacy_versions(&front.config.public_address)
    } else {
        discovery::group_list(&rows)
    };
    let form = form_or_json(headers, context);
    let mut response = respond::json_response(document.to_string(), &form);
    respond::vary_on_accept(&mut response);
    Ok(response)
}

/// Clauses that ask for aggregated discovery have been looked at already.
fn form_or_json(headers: &HeaderMap, context: &Context) -> Form {
    form(headers, context).unwrap_or(Form {
        negotiated: Negotiated {
            media: MediaType::Json,
            ..Negotiated::JSON
        },
        ..Form::JSON
    })
}

fn wants_aggregated(headers: &HeaderMap) -> Result<bool, Status> {
    let header = negotiate::accept_header(headers);
    if header.trim().is_empty() {
        return Ok(false);
    }
    for clause in negotiate::parse_accept(&header) {
        let json = clause.matches("application/json");
        match clause.param("as") {
            Some("APIGroupDiscoveryList")
                if json
                    && clause.param("g") == Some("apidiscovery.k8s.io")
                    && clause.param("v") == Some("v2") =>
            {
                return Ok(true);
            }
            Some(_) => {}
            None if json || clause.matches("application/yaml") => return Ok(false),
            None => {}
        }
    }
    Err(negotiate::not_acceptable())
}

fn tagged_response(tagged: &Tagged, headers: &HeaderMap) -> Response<Body> {
    let quoted = format!("\"{}\"", tagged.tag);
    let known = headers
        .get(IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains(&tagged.tag));
    let mut response = if known {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        Response::new(sampan_net::full(tagged.text.clone()))
    };
    if let Ok(value) = HeaderValue::from_str(&quoted) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

fn resource_list(
    headers: &HeaderMap,
    context: &Context,
    rows: &Snapshot,
    group: &str,
    version: &str,
) -> Result<Response<Body>, Status> {
    let document = discovery::resource_list(rows, group, version).ok_or_else(no_such_resource)?;
    json_answer(headers, context, &document)
}

fn metrics(front: &Front) -> Response<Body> {
    let mut response = respond::text_response(StatusCode::OK, front.config.metrics.render());
    respond::set(
        &mut response,
        http::header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
    );
    response
}

fn openid_configuration(front: &Front) -> Option<Response<Body>> {
    let tokens = front.config.authenticator.service_accounts()?;
    let algorithms: Vec<Value> = tokens.key_set()["keys"]
        .as_array()?
        .iter()
        .map(|key| key["alg"].clone())
        .collect();
    let document = json!({
        "issuer": tokens.issuer(),
        "jwks_uri": format!("https://{}/openid/v1/jwks", front.config.public_address),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    });
    Some(typed(&document, "application/json"))
}

fn key_set(front: &Front) -> Option<Response<Body>> {
    let tokens = front.config.authenticator.service_accounts()?;
    Some(typed(&tokens.key_set(), "application/jwk-set+json"))
}

fn typed(document: &Value, media: &'static str) -> Response<Body> {
    let mut response = Response::new(sampan_net::full(document.to_string()));
    respond::set(&mut response, http::header::CONTENT_TYPE, media);
    respond::set(
        &mut response,
        http::header::CACHE_CONTROL,
        "public, max-age=3600",
    );
    response
}

/// `/`: what else there is.
fn index(rows: &Snapshot) -> Value {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
    ]
    .map(str::to_owned)
    .to_vec();
    for row in rows.rows() {
        for served in row.versions.iter().filter(|version| version.served) {
            if !served.group.is_empty() {
                paths.push(format!("/apis/{}", served.group));
                paths.push(format!("/apis/{}/{}", served.group, served.version));
            }
        }
    }
    paths.extend(
        [
            "/healthz",
            "/livez",
            "/metrics",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned),
    );
    paths.sort();
    paths.dedup();
    json!({ "paths": paths })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split() {
        assert_eq!(split("/"), Vec::<&str>::new());
        assert_eq!(split("/api/"), ["api"]);
        assert_eq!(split("//api/v1"), ["", "api", "v1"]);
        assert_eq!(split("//"), [""]);
    }
}

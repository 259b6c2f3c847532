//! The only place where answers are made: a `Status` or a `Reply` in the form that was negotiated.

use std::io::Write as _;

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, RETRY_AFTER, VARY, WARNING,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use sampan_api::Status;
use sampan_client::List;
use sampan_net::{Body, full, stream_body};

use super::json;
use super::negotiate::{MediaType, Negotiated, Transform};
use super::table::{self, IncludeObject, TableSource};
use super::wire;

/// Smaller answers are not worth compressing (upstream's bound).
const GZIP_FROM_BYTES: usize = 128 * 1024;
/// Lists are sent in pieces of about this size.
const CHUNK_BYTES: usize = 64 * 1024;

/// How the answers of one request are rendered.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    pub negotiated: Negotiated,
    /// The client takes gzip, and the verb allows it.
    pub gzip: bool,
    pub include_object: IncludeObject,
    /// Items of this resource's lists carry no `kind` and `apiVersion` (built-in types).
    pub bare_items: bool,
}

impl Form {
    pub const JSON: Self = Self {
        negotiated: Negotiated::JSON,
        gzip: false,
        include_object: IncludeObject::Metadata,
        bare_items: false,
    };
}

pub fn status_response(status: &Status, negotiated: Negotiated) -> Response<Body> {
    let text = Bytes::from(status.to_json().to_string());
    let (body, media) = encode(text, negotiated, false);
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::from_u16(status.code)
        .ok()
        .filter(|code| code.as_u16() >= 400)
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    set(&mut response, CONTENT_TYPE, media);
    let retry = status
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if retry > 0
        && let Ok(value) = HeaderValue::from_str(&retry.to_string())
    {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

/// Plain text, as the paths beside the API answer.
pub fn text_response(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = code;
    set(&mut response, CONTENT_TYPE, "text/plain; charset=utf-8");
    set(
        &mut response,
        HeaderName::from_static("x-content-type-options"),
        "nosniff",
    );
    response
}

pub fn page_not_found() -> Response<Body> {
    text_response(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// A JSON document of ours (discovery, version …).
pub fn json_response(document: impl Into<Bytes>, form: &Form) -> Response<Body> {
    render(200, document.into(), form)
}

/// One object.
pub fn object_response(
    code: u16,
    object: Bytes,
    warnings: &[String],
    form: &Form,
    source: &TableSource,
) -> Result<Response<Body>, Status> {
    let object = match form.negotiated.transform {
        None => object,
        // Statuses and the like are sent as they are.
        Some(_) if wire::is_status(&object) => object,
        Some(Transform::Table) => {
            let items = std::slice::from_ref(&object);
            Bytes::from(table::render(items, source, form, None, true))
        }
        Some(Transform::PartialObjectMetadata) => partial(&object, meta_version(form)),
        Some(Transform::PartialObjectMetadataList) => {
            return Err(super::negotiate::not_acceptable());
        }
    };
    let mut response = render(code, object, form);
    add_warnings(response.headers_mut(), warnings);
    Ok(response)
}

fn meta_version(form: &Form) -> &'static str {
    if form.negotiated.beta_transform {
        "meta.k8s.io/v1beta1"
    } else {
        "meta.k8s.io/v1"
    }
}

/// Annotations that stand for a field of upstream's internal form, which metadata alone does not have.
const INTERNAL: &str = "deprecated.daemonset.template.generation";

/// The object reduced to its metadata.
pub fn partial(object: &Bytes, api_version: &str) -> Bytes {
    let metadata = json::member(object, "metadata").unwrap_or(b"{}");
    let cleaned = without_internal(metadata);
    let metadata = cleaned.as_deref().unwrap_or(metadata);
    let mut out = BytesMut::with_capacity(metadata.len() + 80);
    out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"");
    out.extend_from_slice(api_version.as_bytes());
    out.extend_from_slice(b"\",\"metadata\":");
    out.extend_from_slice(metadata);
    out.extend_from_slice(b"}");
    out.freeze()
}

fn without_internal(metadata: &[u8]) -> Option<Vec<u8>> {
    let found = metadata
        .windows(INTERNAL.len())
        .any(|part| part == INTERNAL.as_bytes());
    let mut value: serde_json::Value = serde_json::from_slice(metadata).ok().filter(|_| found)?;
    let annotations = value.get_mut("annotations")?.as_object_mut()?;
    annotations.remove(INTERNAL)?;
    if annotations.is_empty() {
        sampan_api::meta::remove(&mut value, &["annotations"]);
    }
    serde_json::to_vec(&value).ok()
}

/// A list: JSON goes out in pieces as it is assembled, everything else at once.
pub fn list_response(
    kind: &str,
    api_version: &str,
    list: &List,
    form: &Form,
    source: &TableSource,
) -> Result<Response<Body>, Status> {
    let (kind, api_version, items) = match form.negotiated.transform {
        Some(Transform::Table) => {
            let document = table::render(&list.items, source, form, Some(list), true);
            return Ok(render(200, document.into(), form));
        }
        Some(Transform::PartialObjectMetadata) => {
            return Err(super::negotiate::not_acceptable());
        }
        Some(Transform::PartialObjectMetadataList) => {
            let version = meta_version(form);
            let items = list.items.iter().map(|item| partial(item, version));
            ("PartialObjectMetadataList", version, items.collect())
        }
        None => (kind, api_version, list.items.clone()),
    };
    let item_kind = kind.strip_suffix("List").unwrap_or(kind);
    if form.negotiated.media == MediaType::Protobuf {
        let document = wire::list(kind, api_version, item_kind, list, &items)
            .ok_or_else(super::negotiate::not_acceptable)?;
        let mut response = Response::new(full(document));
        set(&mut response, CONTENT_TYPE, MediaType::Protobuf.as_str());
        return Ok(response);
    }
    let bare = form.bare_items && form.negotiated.transform.is_none();
    let items = Items {
        all: items,
        bare: bare.then(|| json::Bare::new(item_kind, api_version)),
    };
    Ok(assemble(kind, api_version, list, items, form))
}

/// A list's items, and how they are written.
struct Items {
    all: Vec<Bytes>,
    /// Without their types.
    bare: Option<json::Bare>,
}

impl Items {
    fn append(bare: Option<&json::Bare>, out: &mut Vec<u8>, item: &Bytes) {
        match bare {
            Some(bare) => bare.append(out, item),
            None => out.extend_from_slice(item),
        }
    }
}

fn assemble(
    kind: &str,
    api_version: &str,
    list: &List,
    items: Items,
    form: &Form,
) -> Response<Body> {
    let mut head = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{},\"items\":[",
        serde_json::Value::from(kind),
        serde_json::Value::from(api_version),
        assembled_metadata(list, form)
    )
    .into_bytes();
    let size: usize = items.all.iter().map(|item| item.len() + 1).sum();
    let plain = form.negotiated.media == MediaType::Json && !form.negotiated.pretty;
    if !plain || size < CHUNK_BYTES {
        head.reserve(size + 4);
        for (index, item) in items.all.iter().enumerate() {
            if index > 0 {
                head.push(b',');
            }
            Items::append(items.bare.as_ref(), &mut head, item);
        }
        head.extend_from_slice(b"]}\n");
        return render(200, head.into(), form);
    }
    let chunks = Chunks {
        head: Some(head),
        items: items.all.into_iter(),
        bare: items.bare,
        first: true,
        done: false,
    };
    let compress = form.gzip && size >= GZIP_FROM_BYTES;
    let body = if compress {
        let mut encoder = GzEncoder::new(Vec::with_capacity(CHUNK_BYTES), Compression::fast());
        let mut chunks = chunks;
        let mut finished = false;
        stream_body(stream::iter(std::iter::from_fn(move || {
            if finished {
                return None;
            }
            match chunks.next() {
                Some(chunk) => Some(encoder.write_all(&chunk).map(|()| take(&mut encoder))),
                None => {
                    finished = true;
                    Some(encoder.try_finish().map(|()| take(&mut encoder)))
                }
            }
        })))
    } else {
        stream_body(stream::iter(chunks.map(Ok::<_, std::convert::Infallible>)))
    };
    let mut response = Response::new(body);
    set(&mut response, CONTENT_TYPE, MediaType::Json.as_str());
    if compress {
        set(&mut response, CONTENT_ENCODING, "gzip");
    }
    response
}

/// What the encoder has made so far.
fn take(encoder: &mut GzEncoder<Vec<u8>>) -> Bytes {
    Bytes::from(std::mem::take(encoder.get_mut()))
}

/// The text of a list in pieces of about [`CHUNK_BYTES`].
struct Chunks {
    head: Option<Vec<u8>>,
    items: std::vec::IntoIter<Bytes>,
    bare: Option<json::Bare>,
    first: bool,
    done: bool,
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut chunk = self.head.take().unwrap_or_default();
        chunk.reserve(CHUNK_BYTES);
        while chunk.len() < CHUNK_BYTES {
            let Some(item) = self.items.next() else {
                chunk.extend_from_slice(b"]}\n");
                self.done = true;
                break;
            };
            if !std::mem::take(&mut self.first) {
                chunk.push(b',');
            }
            Items::append(self.bare.as_ref(), &mut chunk, &item);
        }
        Some(chunk.into())
    }
}

/// Lists of custom resources always say how they go on.
fn assembled_metadata(list: &List, form: &Form) -> serde_json::Value {
    let mut metadata = list_metadata(list);
    let custom = !form.bare_items && form.negotiated.transform.is_none();
    if custom && metadata.get("continue").is_none() {
        metadata["continue"] = "".into();
    }
    metadata
}

pub(super) fn list_metadata(list: &List) -> serde_json::Value {
    let mut metadata = serde_json::Map::new();
    metadata.insert(
        "resourceVersion".to_owned(),
        list.resource_version.clone().into(),
    );
    if let Some(token) = list
        .continue_token
        .as_ref()
        .filter(|token| !token.is_empty())
    {
        metadata.insert("continue".to_owned(), token.clone().into());
    }
    if let Some(count) = list.remaining_item_count {
        metadata.insert("remainingItemCount".to_owned(), count.into());
    }
    metadata.into()
}

fn render(code: u16, document: Bytes, form: &Form) -> Response<Body> {
    let (mut body, media) = encode(document, form.negotiated, true);
    let compress = form.gzip && body.len() >= GZIP_FROM_BYTES;
    if compress {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        match encoder.write_all(&body).and_then(|()| encoder.finish()) {
            Ok(compressed) => body = compressed.into(),
            Err(error) => tracing::warn!(%error, "cannot compress an answer"),
        }
    }
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
    set(&mut response, CONTENT_TYPE, media);
    if compress {
        set(&mut response, CONTENT_ENCODING, "gzip");
    }
    response
}

/// JSON in the negotiated media type. A document always ends with a line feed, as Go's encoder does.
fn encode(document: Bytes, negotiated: Negotiated, line_feed: bool) -> (Bytes, &'static str) {
    match negotiated.media {
        MediaType::Yaml => match to_yaml(&document) {
            Some(text) => (text.into(), MediaType::Yaml.as_str()),
            None => (document, MediaType::Json.as_str()),
        },
        MediaType::Protobuf => match wire::document(&document) {
            Some(message) => (message.into(), MediaType::Protobuf.as_str()),
            None => (document, MediaType::Json.as_str()),
        },
        MediaType::Json if negotiated.pretty => {
            (json::indent(&document).into(), MediaType::Json.as_str())
        }
        MediaType::Json => {
            if !line_feed || document.ends_with(b"\n") {
                return (document, MediaType::Json.as_str());
            }
            let mut text = BytesMut::with_capacity(document.len() + 1);
            text.extend_from_slice(&document);
            text.extend_from_slice(b"\n");
            (text.freeze(), MediaType::Json.as_str())
        }
    }
}

fn to_yaml(document: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(document).ok()?;
    serde_saphyr::to_string(&value).ok()
}

pub fn add_warnings(headers: &mut HeaderMap, warnings: &[String]) {
    for warning in warnings {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
        let clean: String = text.chars().filter(|c| !c.is_control()).collect();
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{clean}\"").as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

/// What every answer carries.
pub fn add_common_headers(response: &mut Response<Body>, audit_id: &str) {
    if let Ok(value) = HeaderValue::from_str(audit_id) {
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static("audit-id"), value);
    }
    if !response.headers().contains_key(CACHE_CONTROL) {
        set(response, CACHE_CONTROL, "no-cache, private");
    }
}

pub fn vary_on_accept(response: &mut Response<Body>) {
    set(response, VARY, "Accept");
}

pub fn set(response: &mut Response<Body>, name: HeaderName, value: &'static str) {
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read as _;

    use http_body_util::BodyExt as _;

    use super::*;

    async fn body(response: Response<Body>) -> Vec<u8> {
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec()
    }

    fn list(count: usize) -> List {
        let item = |index| {
            let text = format!(
                r#"{{"apiVersion":"v1","data":{{"k":"{:0500}"}},"kind":"ConfigMap","metadata":{{"name":"c{index}"}}}}"#,
                index
            );
            Bytes::from(text)
        };
        List {
            resource_version: "7".to_owned(),
            items: (0..count).map(item).collect(),
            ..List::default()
        }
    }

    fn form(transform: Option<Transform>, gzip: bool) -> Form {
        Form {
            negotiated: Negotiated {
                transform,
                ..Negotiated::JSON
            },
            gzip,
            bare_items: true,
            ..Form::JSON
        }
    }

    #[tokio::test]
    async fn lists_in_pieces_and_compressed_are_the_same() {
        let list = list(1000);
        let source = TableSource::plain();
        let make = |gzip| {
            let form = form(None, gzip);
            list_response("ConfigMapList", "v1", &list, &form, &source).unwrap()
        };
        let plain = body(make(false)).await;
        let response = make(true);
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        let packed = body(response).await;
        assert!(packed.len() < plain.len() / 4);
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_end(&mut unpacked)
            .unwrap();
        assert_eq!(plain, unpacked);
        let value: serde_json::Value = serde_json::from_slice(&plain).unwrap();
        assert_eq!(value["items"].as_array().unwrap().len(), 1000);
        assert_eq!(value["items"][999]["metadata"]["name"], "c999");
        assert_eq!(value["items"][0].get("kind"), None);
    }

    #[tokio::test]
    async fn partial_lists_and_yaml() {
        let list = list(2);
        let source = TableSource::plain();
        let shape = Some(Transform::PartialObjectMetadataList);
        let answer =
            list_response("ConfigMapList", "v1", &list, &form(shape, false), &source).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&body(answer).await).unwrap();
        assert_eq!(value["kind"], "PartialObjectMetadataList");
        assert_eq!(value["items"][1]["metadata"]["name"], "c1");
        let mut yaml = form(None, false);
        yaml.negotiated.media = MediaType::Yaml;
        let answer = list_response("ConfigMapList", "v1", &list, &yaml, &source).unwrap();
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/yaml");
        let text = String::from_utf8(body(answer).await).unwrap();
        assert!(text.contains("kind: ConfigMapList"));
    }

    #[test]
    fn statuses_and_warnings() {
        let status = Status::not_found("", "pods", "x");
        let response = status_response(&status, Negotiated::JSON);
        assert_eq!(response.status(), 404);
        let mut headers = HeaderMap::new();
        add_warnings(&mut headers, &["unknown field \"a\"".to_owned()]);
        assert_eq!(headers[WARNING], r#"299 - "unknown field \"a\"""#);
    }
}

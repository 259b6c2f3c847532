//! The transport over HTTPS: the same requests, rendered as HTTP.

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{Method, Response};
use http_body_util::{BodyExt as _, BodyStream};
use hyper::body::Incoming;
use sampan_api::{Options, Status, Target, Verb};
use sampan_net::client::{ClientConfig, HttpClient};
use sampan_net::dial::TcpDialer;
use sampan_net::tls::{ClientTls, Trust};
use sampan_pki::Identity;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::transport::{Body, Error, EventKind, List, Request, Transport, WatchEvent, WatchStream};

const JSON: &str = "application/json";
/// An event is one object and its envelope; anything larger is no event.
const LONGEST_EVENT: usize = 16 << 20;

/// How a client proves who it is.
#[derive(Debug, Clone)]
pub enum Credentials {
    Anonymous,
    Token(String),
    Certificate(Identity),
}

/// One server, one identity. Credentials can be replaced while requests run.
#[derive(Clone)]
pub struct HttpsTransport {
    server: Arc<str>,
    user_agent: Arc<str>,
    trust: Trust,
    connection: Arc<RwLock<Arc<Connection>>>,
}

struct Connection {
    client: HttpClient,
    authorization: Option<String>,
}

impl HttpsTransport {
    /// `server` is `https://host:port`; `authority_pem` the CA it must chain to, `None` trusts any server (used only to
    /// fetch the CA itself, which is then checked against the join token).
    pub fn new(
        server: &str,
        authority_pem: Option<&str>,
        credentials: &Credentials,
        user_agent: &str,
    ) -> Result<Self, Error> {
        let trust = match authority_pem {
            Some(pem) => Trust::Authorities(pem.to_owned()),
            None => Trust::Anything,
        };
        let connection = Connection::new(trust.clone(), credentials)?;
        Ok(Self {
            server: server.trim_end_matches('/').into(),
            user_agent: user_agent.into(),
            trust,
            connection: Arc::new(RwLock::new(Arc::new(connection))),
        })
    }

    /// Requests from now on use these credentials.
    pub fn replace_credentials(&self, credentials: &Credentials) -> Result<(), Error> {
        let fresh = Arc::new(Connection::new(self.trust.clone(), credentials)?);
        *self
            .connection
            .write()
            .unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The body at a path that is no resource, such as `/cacerts` or `/readyz`.
    pub async fn get_path(&self, path: &str) -> Result<Bytes, Error> {
        let response = self
            .exchange(Method::GET, path.to_owned(), None, Bytes::new(), "*/*")
            .await?;
        collect(response).await
    }

    async fn exchange(
        &self,
        method: Method,
        path: String,
        content_type: Option<&'static str>,
        body: Bytes,
        accept: &'static str,
    ) -> Result<Response<Incoming>, Error> {
        let connection = self
            .connection
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.server))
            .header(ACCEPT, accept)
            .header(USER_AGENT, &*self.user_agent);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(authorization) = &connection.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(sampan_net::io::full(body))
            .map_err(|error| Error::Malformed(error.to_string()))?;
        let response = connection.client.send(request).await;
        let response = response.map_err(|error| Error::Unreachable(error.to_string()))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(failure(response).await)
    }

    async fn run(self, request: Request) -> Result<Response<Incoming>, Error> {
        let path = path(&request);
        let (content_type, body) = match &request.body {
            Body::None => (None, Bytes::new()),
            Body::Object(value) => (Some(JSON), encode(value)?),
            Body::Patch(kind, value) => (Some(kind.content_type()), encode(value)?),
        };
        self.exchange(method(request.verb), path, content_type, body, JSON)
            .await
    }
}

impl Connection {
    fn new(trust: Trust, credentials: &Credentials) -> Result<Self, Error> {
        let identity = match credentials {
            Credentials::Certificate(identity) => Some(identity.clone()),
            Credentials::Anonymous | Credentials::Token(_) => None,
        };
        let client = HttpClient::new(&ClientConfig {
            tls: ClientTls { trust, identity },
            dialer: Arc::new(TcpDialer),
            http2: true,
        });
        Ok(Self {
            client: client.map_err(|error| Error::Malformed(error.to_string()))?,
            authorization: match credentials {
                Credentials::Token(token) => Some(format!("Bearer {token}")),
                Credentials::Anonymous | Credentials::Certificate(_) => None,
            },
        })
    }
}

impl Transport for HttpsTransport {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Bytes, Error>> {
        let this = self.clone();
        Box::pin(async move { collect(this.run(request).await?).await })
    }

    fn list(&self, request: Request) -> BoxFuture<'static, Result<List, Error>> {
        let this = self.clone();
        Box::pin(async move { split_list(&collect(this.run(request).await?).await?) })
    }

    fn watch(&self, mut request: Request) -> BoxFuture<'static, Result<WatchStream, Error>> {
        let this = self.clone();
        request.options.watch = true;
        Box::pin(async move { Ok(events(this.run(request).await?)) })
    }
}

fn method(verb: Verb) -> Method {
    match verb {
        Verb::Get | Verb::List | Verb::Watch => Method::GET,
        Verb::Create => Method::POST,
        Verb::Update => Method::PUT,
        Verb::Patch => Method::PATCH,
        Verb::Delete | Verb::DeleteCollection => Method::DELETE,
    }
}

/// Path and query of a request.
fn path(request: &Request) -> String {
    let mut text = target_path(&request.target);
    let mut separator = '?';
    for (name, value) in query(&request.options) {
        text.push(separator);
        separator = '&';
        text.push_str(name);
        text.push('=');
        percent_encode(&value, &mut text);
    }
    text
}

fn target_path(target: &Target) -> String {
    let resource = &target.resource;
    let mut text = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    if let Some(namespace) = &target.namespace {
        text.push_str("/namespaces/");
        percent_encode(namespace, &mut text);
    }
    text.push('/');
    text.push_str(&resource.resource);
    if let Some(name) = &target.name {
        text.push('/');
        percent_encode(name, &mut text);
    }
    if let Some(subresource) = &target.subresource {
        text.push('/');
        text.push_str(subresource);
    }
    text
}

fn query(options: &Options) -> Vec<(&str, String)> {
    let mut pairs: Vec<(&str, String)> = Vec::new();
    let texts = [
        ("labelSelector", &options.label_selector),
        ("fieldSelector", &options.field_selector),
        ("continue", &options.continue_token),
        ("resourceVersion", &options.resource_version),
        ("resourceVersionMatch", &options.resource_version_match),
        ("fieldManager", &options.field_manager),
        ("fieldValidation", &options.field_validation),
        ("propagationPolicy", &options.propagation_policy),
    ];
    for (name, value) in texts {
        pairs.extend(value.iter().map(|value| (name, value.clone())));
    }
    let numbers = [
        ("limit", options.limit.map(|value| value.to_string())),
        (
            "timeoutSeconds",
            options.timeout_seconds.map(|value| value.to_string()),
        ),
        (
            "gracePeriodSeconds",
            options.grace_period_seconds.map(|value| value.to_string()),
        ),
        (
            "sendInitialEvents",
            options.send_initial_events.map(|value| value.to_string()),
        ),
        ("force", options.force.map(|value| value.to_string())),
        (
            "orphanDependents",
            options.orphan_dependents.map(|value| value.to_string()),
        ),
        ("watch", options.watch.then(|| "true".to_owned())),
        (
            "allowWatchBookmarks",
            options.allow_watch_bookmarks.then(|| "true".to_owned()),
        ),
    ];
    for (name, value) in numbers {
        pairs.extend(value.map(|value| (name, value)));
    }
    pairs.extend(
        options
            .dry_run
            .iter()
            .map(|value| ("dryRun", value.clone())),
    );
    let other = options.other.iter();
    pairs.extend(other.map(|(name, value)| (name.as_str(), value.clone())));
    pairs
}

fn percent_encode(value: &str, text: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else if write!(text, "%{byte:02X}").is_err() {
            // Writing to a String cannot fail.
        }
    }
}

fn encode(value: &Value) -> Result<Bytes, Error> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| Error::Malformed(error.to_string()))
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, Error> {
    let collected = response.into_body().collect().await;
    collected
        .map(|body| body.to_bytes())
        .map_err(|error| Error::Unreachable(error.to_string()))
}

/// An answer that is a failure: its Status, or what can be made of it.
async fn failure(response: Response<Incoming>) -> Error {
    let code = response.status();
    match collect(response).await {
        Err(error) => error,
        Ok(body) => match serde_json::from_slice::<Status>(&body) {
            Ok(status) if status.code != 0 => Error::Api(status),
            _ => Error::Malformed(format!("{code}: {}", String::from_utf8_lossy(&body))),
        },
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireList<'a> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    metadata: WireListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    continue_token: Option<String>,
    #[serde(default)]
    remaining_item_count: Option<i64>,
}

fn split_list(body: &Bytes) -> Result<List, Error> {
    let wire: WireList<'_> =
        serde_json::from_slice(body).map_err(|error| Error::Malformed(error.to_string()))?;
    let kind = wire.kind.strip_suffix("List").unwrap_or(&wire.kind);
    let head = format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{}\",",
        wire.api_version
    );
    let items = wire.items.unwrap_or_default();
    Ok(List {
        resource_version: wire.metadata.resource_version,
        continue_token: wire
            .metadata
            .continue_token
            .filter(|token| !token.is_empty()),
        remaining_item_count: wire.metadata.remaining_item_count,
        items: items
            .iter()
            .map(|item| whole_item(item.get(), &head))
            .collect(),
    })
}

/// Items of a list come without the kind that the list has; an object is not complete without.
fn whole_item(item: &str, head: &str) -> Bytes {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        kind: Option<&'a RawValue>,
    }
    let has_kind = serde_json::from_str::<Kind<'_>>(item).is_ok_and(|item| item.kind.is_some());
    let rest = item.trim_start().strip_prefix('{').filter(|_| !has_kind);
    match rest {
        Some(rest) if rest.trim_start() != "}" => Bytes::from(format!("{head}{rest}")),
        _ => Bytes::copy_from_slice(item.as_bytes()),
    }
}

#[derive(Deserialize)]
struct WireEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The events in a body that arrives line by line.
fn events(response: Response<Incoming>) -> WatchStream {
    let lines = Lines {
        body: BodyStream::new(response.into_body()),
        buffer: BytesMut::new(),
        ended: false,
    };
    Box::pin(stream::unfold(lines, |mut lines| async move {
        let event = lines.next().await?;
        lines.ended |= event.is_err();
        Some((event, lines))
    }))
}

struct Lines {
    body: BodyStream<Incoming>,
    buffer: BytesMut,
    ended: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        let mut searched = 0;
        while !self.ended {
            let found = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            if let Some(at) = found {
                let line = self.buffer.split_to(searched + at + 1).freeze();
                searched = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Some(parse_event(&line));
            }
            searched = self.buffer.len();
            if searched > LONGEST_EVENT {
                return Some(Err(Error::Malformed(
                    "a watch event without end".to_owned(),
                )));
            }
            match self.body.next().await {
                None => return None,
                Some(Err(error)) => return Some(Err(Error::Unreachable(error.to_string()))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
        None
    }
}

fn parse_event(line: &Bytes) -> Result<WatchEvent, Error> {
    let malformed = |error: serde_json::Error| Error::Malformed(error.to_string());
    let wire: WireEvent<'_> = serde_json::from_slice(line).map_err(malformed)?;
    let kind = match wire.kind.as_str() {
        "ADDED" => EventKind::Added,
        "MODIFIED" => EventKind::Modified,
        "DELETED" => EventKind::Deleted,
        "BOOKMARK" => EventKind::Bookmark,
        "ERROR" => {
            let status = serde_json::from_str(wire.object.get()).map_err(malformed)?;
            return Err(Error::Api(status));
        }
        other => return Err(Error::Malformed(format!("a watch event of type {other}"))),
    };
    Ok(WatchEvent {
        kind,
        object: line.slice_ref(wire.object.get().as_bytes()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sampan_api::GroupVersionResource;

    fn request(options: Options) -> Request {
        Request {
            verb: Verb::List,
            target: Target {
                resource: GroupVersionResource {
                    group: "apps".into(),
                    version: "v1".into(),
                    resource: "deployments".into(),
                },
                namespace: Some("a b".to_owned()),
                name: None,
                subresource: None,
            },
            options,
            body: Body::None,
        }
    }

    #[test]
    fn a_request_becomes_a_path() {
        let options = Options {
            label_selector: Some("app in (a,b)".to_owned()),
            limit: Some(5),
            watch: true,
            ..Options::default()
        };
        assert_eq!(
            path(&request(options)),
            "/apis/apps/v1/namespaces/a%20b/deployments?labelSelector=app%20in%20%28a%2Cb%29&limit=5&watch=true"
        );
    }

    #[test]
    fn items_get_the_kind_that_only_their_list_has() {
        let body = Bytes::from_static(
            br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":""},"items":[{"metadata":{"name":"a"}},{"kind":"X","spec":{"kind":1}},{"spec":{"kind":1}}]}"#,
        );
        let list = split_list(&body).unwrap();
        assert_eq!(list.resource_version, "7");
        assert_eq!(list.continue_token, None);
        assert_eq!(
            list.items[0],
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#
        );
        assert_eq!(list.items[1], r#"{"kind":"X","spec":{"kind":1}}"#);
        assert_eq!(
            list.items[2],
            r#"{"kind":"Pod","apiVersion":"v1","spec":{"kind":1}}"#
        );
    }

    #[test]
    fn events_and_errors_are_told_apart() {
        let event = parse_event(&Bytes::from_static(
            b"{\"type\":\"DELETED\",\"object\":{\"a\":1}}\n",
        ))
        .unwrap();
        assert_eq!(
            (event.kind, &event.object[..]),
            (EventKind::Deleted, &b"{\"a\":1}"[..])
        );
        let line = Bytes::from_static(
            br#"{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"old"}}"#,
        );
        assert!(parse_event(&line).unwrap_err().is_expired());
        assert!(parse_event(&Bytes::from_static(b"{}")).is_err());
    }
}

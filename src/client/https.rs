//! The transport of agents and tools: requests as HTTP over TLS.

pub mod render;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use sampan_api::{Reason, Status};
use sampan_net::client::ClientError;
use sampan_net::{ClientConfig, ClientTls, Dialer, HttpClient, TcpDialer, Trust, full};
use sampan_pki::Identity;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::transport::{Error, List, Request, Transport, WatchStream};

/// How long an answer may take that is no watch.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);

/// How a client proves who it is.
#[derive(Clone)]
pub enum Credentials {
    Anonymous,
    Token(String),
    Basic { name: String, password: String },
    Certificate(Identity),
}

/// Several servers, one identity. Cheap to clone; all copies share connections and credentials,
/// which can be replaced while requests run.
#[derive(Clone)]
pub struct HttpsTransport(Arc<Inner>);

struct Inner {
    servers: RwLock<Arc<Vec<String>>>,
    /// Index of the server that answered last.
    current: AtomicUsize,
    trust: Trust,
    dialer: Arc<dyn Dialer>,
    user_agent: HeaderValue,
    session: RwLock<Arc<Session>>,
}

/// Connections under one set of credentials.
struct Session {
    http: HttpClient,
    authorization: Option<HeaderValue>,
    credentials: Credentials,
}

/// A request on its way to whichever server answers.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl HttpsTransport {
    /// `server` is `https://host:port`; `authority_pem` the CA it must chain to. `None` trusts any
    /// server: only to fetch the CA itself, which is then checked against the join token.
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
        let servers = vec![server.to_owned()];
        Self::with_servers(servers, trust, credentials, user_agent, Arc::new(TcpDialer))
    }

    /// Servers are tried in order, from the one that answered last.
    pub fn with_servers(
        servers: Vec<String>,
        trust: Trust,
        credentials: &Credentials,
        user_agent: &str,
        dialer: Arc<dyn Dialer>,
    ) -> Result<Self, Error> {
        let session = open_session(&trust, &dialer, credentials)?;
        let user_agent = HeaderValue::from_str(user_agent)
            .unwrap_or_else(|_| HeaderValue::from_static("sampan"));
        Ok(Self(Arc::new(Inner {
            servers: RwLock::new(Arc::new(bare(&servers))),
            current: AtomicUsize::new(0),
            trust,
            dialer,
            user_agent,
            session: RwLock::new(Arc::new(session)),
        })))
    }

    /// From now on these are tried; the one that answers now stays the first choice if it is among them.
    pub fn replace_servers(&self, servers: &[String]) {
        let new = bare(servers);
        let mut known = self
            .0
            .servers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let current = known.get(self.0.current.load(Ordering::Relaxed));
        let index = new.iter().position(|url| Some(url) == current).unwrap_or(0);
        self.0.current.store(index, Ordering::Relaxed);
        *known = Arc::new(new);
    }

    fn servers(&self) -> Arc<Vec<String>> {
        let servers = self.0.servers.read();
        Arc::clone(&servers.unwrap_or_else(PoisonError::into_inner))
    }

    /// Requests from now on use these credentials; running watches go on with the old ones.
    pub fn replace_credentials(&self, credentials: &Credentials) -> Result<(), Error> {
        let session = open_session(&self.0.trust, &self.0.dialer, credentials)?;
        *self
            .0
            .session
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(session);
        Ok(())
    }

    /// Requests from now on use new connections: to be called when this machine's address has changed, as answers to
    /// the old one no longer arrive.
    pub fn reconnect(&self) -> Result<(), Error> {
        let session = self.0.session.read();
        let session = Arc::clone(&session.unwrap_or_else(PoisonError::into_inner));
        self.replace_credentials(&session.credentials)
    }

    /// The body at a path that is no resource, such as `/cacerts` or `/readyz`.
    pub async fn get_path(&self, path: &str) -> Result<Bytes, Error> {
        self.raw(Method::GET, path, "application/json", Bytes::new())
            .await
    }

    /// A request to a path outside the API's resources; failures arrive as the server's Status.
    pub async fn raw(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let call = Call {
            method,
            path: path.to_owned(),
            content_type,
            body,
        };
        self.exchange(call).await
    }

    /// Sends and reads the whole answer.
    async fn exchange(&self, call: Call) -> Result<Bytes, Error> {
        let answer = async {
            let response = self.open(call).await?;
            let status = response.status();
            let body = collect(response).await?;
            if status.is_success() {
                Ok(body)
            } else {
                Err(Error::Api(status_of(status, &body)))
            }
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unreachable("no answer in time".to_owned())),
        }
    }

    /// Sends to the server that answered last, then to the others as long as none can be reached.
    async fn open(&self, call: Call) -> Result<http::Response<Incoming>, Error> {
        let session = Arc::clone(
            &self
                .0
                .session
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let servers = self.servers();
        let count = servers.len();
        let first = self.0.current.load(Ordering::Relaxed);
        let mut failure = Error::Unreachable("no server address is known".to_owned());
        for index in (0..count).map(|offset| (first + offset) % count) {
            let request = self.render(&session, &servers[index], &call)?;
            match session.http.send(request).await {
                Ok(response) => {
                    self.0.current.store(index, Ordering::Relaxed);
                    return Ok(response);
                }
                Err(error) => {
                    let unsent = is_unsent(&error);
                    failure = Error::Unreachable(error.to_string());
                    if !unsent {
                        break;
                    }
                }
            }
        }
        Err(failure)
    }

    fn render(
        &self,
        session: &Session,
        server: &str,
        call: &Call,
    ) -> Result<http::Request<sampan_net::Body>, Error> {
        let mut request = http::Request::builder()
            .method(call.method.clone())
            .uri(format!("{server}{}", call.path))
            .header(header::USER_AGENT, self.0.user_agent.clone())
            .header(header::ACCEPT, "application/json");
        if let Some(authorization) = &session.authorization {
            request = request.header(header::AUTHORIZATION, authorization.clone());
        }
        if !call.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, call.content_type);
        }
        request
            .body(full(call.body.clone()))
            .map_err(|error| Error::Malformed(error.to_string()))
    }

    async fn open_watch(self, call: Call) -> Result<WatchStream, Error> {
        let response = match tokio::time::timeout(REQUEST_TIMEOUT, self.open(call)).await {
            Ok(response) => response?,
            Err(_) => return Err(Error::Unreachable("no answer in time".to_owned())),
        };
        let status = response.status();
        if !status.is_success() {
            let body = collect(response).await?;
            return Err(Error::Api(status_of(status, &body)));
        }
        Ok(watch::events(response.into_body()).boxed())
    }
}

impl Transport for HttpsTransport {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Bytes, Error>> {
        let transport = self.clone();
        async move { transport.exchange(render::call(&request)?).await }.boxed()
    }

    fn list(&self, request: Request) -> BoxFuture<'static, Result<List, Error>> {
        let transport = self.clone();
        async move {
            let body = transport.exchange(render::call(&request)?).await?;
            parse_list(&body)
        }
        .boxed()
    }

    fn watch(&self, mut request: Request) -> BoxFuture<'static, Result<WatchStream, Error>> {
        let transport = self.clone();
        request.options.watch = true;
        async move { transport.open_watch(render::call(&request)?).await }.boxed()
    }
}

fn bare(servers: &[String]) -> Vec<String> {
    let urls = servers.iter();
    urls.map(|url| url.trim_end_matches('/').to_owned())
        .collect()
}

fn open_session(
    trust: &Trust,
    dialer: &Arc<dyn Dialer>,
    credentials: &Credentials,
) -> Result<Session, Error> {
    let identity = match credentials {
        Credentials::Certificate(identity) => Some(identity.clone()),
        _ => None,
    };
    let config = ClientConfig {
        tls: ClientTls {
            trust: trust.clone(),
            identity,
        },
        dialer: Arc::clone(dialer),
        http2: true,
    };
    let http = HttpClient::new(&config).map_err(|error| Error::Malformed(error.to_string()))?;
    let authorization = match credentials {
        Credentials::Token(token) => Some(format!("Bearer {}", token.trim())),
        Credentials::Basic { name, password } => Some(format!(
            "Basic {}",
            BASE64.encode(format!("{name}:{password}"))
        )),
        Credentials::Anonymous | Credentials::Certificate(_) => None,
    };
    let authorization = authorization
        .map(|text| HeaderValue::from_str(&text))
        .transpose()
        .map_err(|_| Error::Malformed("the token has characters no header may have".to_owned()))?;
    Ok(Session {
        http,
        authorization,
        credentials: credentials.clone(),
    })
}

/// Whether the request surely did not reach the server, so that another may be asked.
fn is_unsent(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Tls(_) => true,
        ClientError::Request(error) => error.is_connect(),
        ClientError::Url(_) | ClientError::Http(_) => false,
    }
}

async fn collect(response: http::Response<Incoming>) -> Result<Bytes, Error> {
    let body = response.into_body().collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|error| Error::Unreachable(error.to_string()))
}

/// The Status in an answer, or one made from its code.
fn status_of(code: StatusCode, body: &[u8]) -> Status {
    if let Ok(status) = serde_json::from_slice::<Status>(body)
        && status.code != 0
    {
        return status;
    }
    let reason = match code.as_u16() {
        400 => Reason::BadRequest,
        401 => Reason::Unauthorized,
        403 => Reason::Forbidden,
        404 => Reason::NotFound,
        405 => Reason::MethodNotAllowed,
        409 => Reason::Conflict,
        410 => Reason::Expired,
        422 => Reason::Invalid,
        429 => Reason::TooManyRequests,
        503 => Reason::ServiceUnavailable,
        504 => Reason::Timeout,
        _ => Reason::InternalError,
    };
    let text = String::from_utf8_lossy(body);
    let mut status = Status::new(reason, format!("the server answered {code}: {text}"));
    status.code = code.as_u16();
    status
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireList<'a> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    metadata: WireListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct WireListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    continue_token: Option<String>,
    remaining_item_count: Option<i64>,
}

/// Splits a list into its items without reading them.
fn parse_list(body: &[u8]) -> Result<List, Error> {
    let list: WireList<'_> =
        serde_json::from_slice(body).map_err(|error| Error::Malformed(error.to_string()))?;
    let kind = list.kind.strip_suffix("List").unwrap_or(&list.kind);
    let items = list.items.unwrap_or_default().into_iter();
    Ok(List {
        resource_version: list.metadata.resource_version,
        continue_token: list.metadata.continue_token,
        remaining_item_count: list.metadata.remaining_item_count,
        items: items
            .map(|item| with_type(item.get(), kind, &list.api_version))
            .collect(),
    })
}

#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
}

/// Servers leave kind and version out of the items of a list; everybody else wants them.
fn with_type(item: &str, kind: &str, api_version: &str) -> Bytes {
    let typed = serde_json::from_str::<Typed<'_>>(item).is_ok_and(|typed| typed.kind.is_some());
    let Some(rest) = item.strip_prefix('{').filter(|_| !typed) else {
        return Bytes::copy_from_slice(item.as_bytes());
    };
    let comma = if rest.trim_start().starts_with('}') {
        ""
    } else {
        ","
    };
    Bytes::from(format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\"{comma}{rest}"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_list_is_split_and_its_items_get_their_type() {
        let body = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"c"},
            "items":[{"metadata":{"name":"a"}},{"kind":"Pod","apiVersion":"v1","metadata":{}}]}"#;
        let list = parse_list(body.as_bytes()).unwrap();
        assert_eq!(list.resource_version, "7");
        assert_eq!(list.continue_token.as_deref(), Some("c"));
        assert_eq!(
            list.items[0],
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#
        );
        assert_eq!(
            list.items[1],
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#
        );
    }

    #[test]
    fn a_failure_without_a_status_gets_one() {
        let status = status_of(StatusCode::GONE, b"gone");
        assert!(Error::Api(status).is_expired());
        let wire = br#"{"kind":"Status","reason":"Conflict","message":"m","code":409}"#;
        assert_eq!(status_of(StatusCode::CONFLICT, wire).message, "m");
    }
}

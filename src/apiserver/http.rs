//! The HTTP front: from a connection to a request of the pipeline, and back.
//!
//! The order of the filters stands in [`Front::handle`] and [`Front::answer`]: deadline, audit id, authentication, impersonation,
//! authorization, dispatch. Everything that is no resource is a row of [`fixed`]; everything that is
//! one is looked up in the registry by [`resource`]. No kind is named here but by streams.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use rustls::ServerConfig;
use sampan_api::{Reason, Registry, Status, UserInfo};
use sampan_net::{Body, Handler, Peer, Server};
use sampan_util::Shutdown;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::{Authenticator, impersonation, union};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::request::{Attributes, Authorizer, Pipeline, ResourceAttributes};
use crate::streams::Relay;

mod deadline;
pub mod decode;
pub mod fixed;
pub mod json;
pub mod labels;
pub mod negotiate;
pub mod path;
pub mod query;
pub mod resource;
pub mod respond;
pub mod table;
pub(crate) mod turn;
pub mod watch;
mod wire;

#[cfg(test)]
mod tests;

use negotiate::{Negotiated, Offer};
use path::PathInfo;
use query::Query;

/// Requests that are answered at a time; more wait, and too many more are told to come again.
const MAX_RUNNING: usize = 600;
/// Requests that wait for their turn; beyond that the client is told to come again at once.
const MAX_WAITING: usize = 2_400;
const MAX_WAIT: Duration = Duration::from_secs(15);

/// Everything the front needs.
pub struct FrontConfig {
    pub registry: Arc<Registry>,
    pub pipeline: Arc<dyn Pipeline>,
    pub authenticator: Arc<Authenticator>,
    pub authorizer: Arc<dyn Authorizer>,
    pub health: Health,
    pub metrics: Arc<Metrics>,
    /// Streams to kubelets, pods and services.
    pub relay: Arc<Relay>,
    /// What newcomers may read without credentials: the CA that signs serving certificates.
    pub authorities_pem: String,
    /// Where clients reach this server (`host:port`), for legacy discovery.
    pub public_address: String,
    pub shutdown: Shutdown,
}

/// The API server's front; cheap to clone.
#[derive(Clone)]
pub struct ApiFront(Arc<Front>);

pub(crate) struct Front {
    pub(crate) config: FrontConfig,
    pub(crate) documents: fixed::Documents,
    /// Shared with writes that go on after their request.
    running: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// Somebody who waits for a turn, until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the filters have found out about a request.
pub(crate) struct Context {
    pub(crate) user: Arc<UserInfo>,
    pub(crate) info: PathInfo,
    pub(crate) query: Query,
    pub(crate) peer: Arc<Peer>,
}

impl ApiFront {
    pub fn new(config: FrontConfig) -> Self {
        Self(Arc::new(Front {
            documents: fixed::Documents::default(),
            running: Arc::new(Semaphore::new(MAX_RUNNING)),
            waiting: AtomicUsize::new(0),
            config,
        }))
    }

    /// Serves until shutdown, then lets running requests end.
    pub async fn serve(self, listener: TcpListener, tls: Arc<ServerConfig>, shutdown: Shutdown) {
        self.server(tls).serve(listener, shutdown).await;
    }

    /// The server, to which protocols beside HTTP can be added.
    pub fn server(self, tls: Arc<ServerConfig>) -> Server {
        Server::new(Arc::new(self), Some(tls))
    }
}

impl Handler for ApiFront {
    fn handle(
        &self,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> BoxFuture<'static, Response<Body>> {
        Box::pin(Arc::clone(&self.0).handle(request, peer))
    }
}

impl Front {
    /// Around every request: time, count, contain what goes wrong.
    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> Response<Body> {
        let started = Instant::now();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let info = PathInfo::parse(request.method(), request.uri().path(), &query);
        let long_running = is_long_running(&info);
        let labels =
            labels::request_labels(&info, &query, request.headers(), &self.config.registry);
        let audit_id = audit_id(request.headers());
        let read_only = matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        let head_only = *request.method() == Method::HEAD;
        let metrics = Arc::clone(&self.config.metrics);
        let running = metrics.start(read_only, long_running);
        let errors_as = error_form(request.headers(), &query);
        let this = Arc::clone(&self);
        let limit = match long_running {
            true => Ok(None),
            false => deadline::of_request(query.first("timeout")).map(Some),
        };
        let work = async move {
            let limit = match limit {
                Ok(limit) => limit,
                Err(status) => return respond::status_response(&status, errors_as),
            };
            let work = async move {
                this.answer(request, peer, info, query)
                    .await
                    .unwrap_or_else(|status| respond::status_response(&status, errors_as))
            };
            limit_time(work, limit, errors_as).await
        };
        let contained = AssertUnwindSafe(work).catch_unwind();
        let mut response = match contained.await {
            Ok(response) => response,
            Err(_) => {
                metrics.count_panic();
                tracing::error!("a request ended in a panic");
                respond::status_response(&Status::internal("the server has a bug"), errors_as)
            }
        };
        drop(running);
        let code = response.status().as_u16();
        metrics.observe(labels, code, started.elapsed(), long_running);
        respond::add_common_headers(&mut response, &audit_id);
        if head_only {
            *response.body_mut() = sampan_net::empty();
        }
        response
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
        info: PathInfo,
        query: Query,
    ) -> Result<Response<Body>, Status> {
        // Who wants to join has no credentials that mean anything before it trusts us.
        if info.path == "/cacerts" && *request.method() == Method::GET {
            let text = self.config.authorities_pem.clone();
            return Ok(respond::text_response(http::StatusCode::OK, text));
        }
        let long_running = is_long_running(&info);
        let user = self
            .config
            .authenticator
            .authenticate(request.headers(), &peer, SystemTime::now())
            .map_err(|refused| {
                tracing::debug!(%refused, address = %peer.address, "unauthenticated");
                unauthorized()
            })?;
        // Only those who are known to us, or nobody in particular, take up a turn.
        let permit = if long_running {
            None
        } else {
            Some(self.wait_for_turn().await?)
        };
        let authorizer = &*self.config.authorizer;
        let user = impersonation::impersonate(user, request.headers(), authorizer)?;
        self.authorize(&user, &info, &query)?;
        let context = Context {
            user,
            info,
            query,
            peer,
        };
        if context.info.is_resource {
            turn::hold(permit, resource::answer(&self, request, context)).await
        } else {
            fixed::answer(&self, &request, &context)
        }
    }

    async fn wait_for_turn(&self) -> Result<OwnedSemaphorePermit, Status> {
        if let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(permit);
        }
        let others = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        if others >= MAX_WAITING {
            return Err(too_many_requests());
        }
        let turn = Arc::clone(&self.running).acquire_owned();
        match tokio::time::timeout(MAX_WAIT, turn).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(too_many_requests()),
        }
    }

    fn authorize(&self, user: &UserInfo, info: &PathInfo, query: &Query) -> Result<(), Status> {
        let attributes = Attributes {
            user,
            verb: &info.verb,
            path: &info.path,
            resource: info.is_resource.then(|| ResourceAttributes {
                group: &info.group,
                version: &info.version,
                resource: &info.resource,
                subresource: &info.subresource,
                namespace: &info.namespace,
                name: &info.name,
                field_selector: query.first("fieldSelector").unwrap_or_default(),
            }),
        };
        union::check(&*self.config.authorizer, &attributes)
    }
}

fn too_many_requests() -> Status {
    let details = sampan_api::status::Details {
        retry_after_seconds: 1,
        ..Default::default()
    };
    Status::new(
        Reason::TooManyRequests,
        "too many requests, please try again later",
    )
    .with_details(details)
}

fn unauthorized() -> Status {
    Status::new(Reason::Unauthorized, "Unauthorized")
}

/// Watches and streams last as long as their client wants.
fn is_long_running(info: &PathInfo) -> bool {
    info.is_resource
        && (info.verb == "watch"
            || info.verb == "proxy"
            || matches!(
                info.subresource.as_str(),
                "attach" | "exec" | "proxy" | "log" | "portforward"
            ))
}

async fn limit_time(
    work: impl Future<Output = Response<Body>>,
    limit: Option<Duration>,
    errors_as: Negotiated,
) -> Response<Body> {
    let Some(limit) = limit else {
        return work.await;
    };
    match tokio::time::timeout(limit, work).await {
        Ok(response) => response,
        Err(_) => {
            let status = Status::new(
                Reason::Timeout,
                "Timeout: request did not complete within the allotted timeout",
            );
            respond::status_response(&status, errors_as)
        }
    }
}

/// Failures are told in the client's media type if it is one of ours, else in JSON.
fn error_form(headers: &HeaderMap, query: &Query) -> Negotiated {
    let offer = Offer {
        protobuf: true,
        transforms: true,
    };
    let negotiated = negotiate::negotiate(headers, query, offer).unwrap_or(Negotiated::JSON);
    Negotiated {
        transform: None,
        ..negotiated
    }
}

/// The client's audit id if it sent a sensible one, else a new random one.
fn audit_id(headers: &HeaderMap) -> String {
    headers
        .get("audit-id")
        .and_then(|value| value.to_str().ok())
        .filter(|value| !value.is_empty() && value.len() <= 64)
        .map_or_else(random_uuid, str::to_owned)
}

/// A random (version 4) UUID.
pub(crate) fn random_uuid() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = sampan_pki::certificate::hex(&bytes);
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

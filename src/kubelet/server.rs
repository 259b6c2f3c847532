//! The kubelet's HTTPS server on port 10250.
//!
//! [`route`] says what a path means and which right it needs, [`access`] who asks and whether they may, [`logs`]
//! reads container logs, [`stream`] relays exec, attach and port-forward to the runtime ([`channels`] translates the
//! newest protocol), [`stats`] and [`metrics`] report figures. Pods are looked up through [`Lookup`]: the server knows nothing of the workers behind it.

pub mod access;
mod channels;
pub mod logs;
pub mod metrics;
mod query;
pub mod route;
pub mod stats;
mod stream;

pub use access::Access;

use crate::cgroup::Cgroups;
use crate::inotify::FileWatcher;
use crate::lookup::{Lookup, LookupError};
use crate::machine::MachineInfo;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use query::Query;
use route::Route;
use sampan_cri::{Images, Runtime};
use sampan_net::server::HTTP_PROTOCOLS;
use sampan_net::{Body, Handler, Peer, Server, ServerIdentity, full};
use sampan_util::Shutdown;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Everything the server reports on or asks.
pub struct ServerState {
    pub node_name: String,
    pub lookup: Arc<dyn Lookup>,
    pub runtime: Runtime,
    pub images: Images,
    pub watcher: FileWatcher,
    pub access: Access,
    pub cgroups: Option<Cgroups>,
    pub machine: MachineInfo,
    /// Its file system is the node's as far as statistics go.
    pub data_dir: PathBuf,
    /// What `/configz` shows under `kubeletconfig`.
    pub config: serde_json::Value,
    /// Appended to `/metrics`, in the text form of Prometheus.
    pub metrics: Vec<MetricSource>,
}

/// Adds families to `/metrics`.
pub type MetricSource = Arc<dyn Fn(&mut metrics::Text) + Send + Sync>;

/// Serves until shutdown. New handshakes see what is put into `identity`.
pub async fn serve(
    listener: TcpListener,
    identity: Arc<ServerIdentity>,
    state: ServerState,
    shutdown: Shutdown,
) -> Result<(), sampan_net::tls::TlsError> {
    let tls = sampan_net::tls::server_config(identity, HTTP_PROTOCOLS)?;
    let handler = KubeletHandler(Arc::new(Context {
        stats: stats::Collector::default(),
        backend: stream::Backend::new(),
        state,
    }));
    Server::new(Arc::new(handler), Some(tls))
        .serve(listener, shutdown)
        .await;
    Ok(())
}

/// The state, and what the server itself remembers between requests.
pub(crate) struct Context {
    pub state: ServerState,
    pub stats: stats::Collector,
    pub backend: stream::Backend,
}

struct KubeletHandler(Arc<Context>);

impl Handler for KubeletHandler {
    fn handle(
        &self,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> BoxFuture<'static, Response<Body>> {
        let context = Arc::clone(&self.0);
        Box::pin(async move {
            context
                .answer(request, &peer)
                .await
                .unwrap_or_else(Failure::into_response)
        })
    }
}

/// An answer that is not what was asked for; its text goes to the client.
#[derive(Debug)]
pub(crate) struct Failure {
    pub code: StatusCode,
    pub message: String,
}

impl Failure {
    pub fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    fn into_response(self) -> Response<Body> {
        text(self.code, self.message)
    }
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Self {
        let code = match error {
            LookupError::NotAvailable(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::NOT_FOUND,
        };
        Self::new(code, error.to_string())
    }
}

impl From<sampan_cri::Error> for Failure {
    fn from(error: sampan_cri::Error) -> Self {
        let code = match error.code() {
            Some(tonic::Code::NotFound) => StatusCode::NOT_FOUND,
            Some(tonic::Code::ResourceExhausted) => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(code, error.to_string())
    }
}

pub(crate) type Answer = Result<Response<Body>, Failure>;

impl Context {
    async fn answer(self: Arc<Self>, request: Request<Incoming>, peer: &Peer) -> Answer {
        let path = request.uri().path().to_owned();
        let access = &self.state.access;
        access
            .check(peer, request.headers(), request.method(), &path)
            .await?;
        let route = Route::parse(&path);
        if !route.allows(request.method()) {
            return Err(Failure::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "405: Method Not Allowed",
            ));
        }
        let query = Query::parse(request.uri().query().unwrap_or_default());
        match route {
            Route::Healthz => Ok(text(StatusCode::OK, "ok".to_owned())),
            Route::Pods => Ok(json(&self.pod_list(|_| true))),
            Route::RunningPods => Ok(json(&self.pod_list(is_running))),
            Route::ContainerLogs(target) => logs::answer(&self.state, &target, &query).await,
            Route::Exec(target) => self.exec(request, &target, &query).await,
            Route::Attach(target) => self.attach(request, &target, &query).await,
            Route::PortForward(target) => self.port_forward(request, &target, &query).await,
            Route::Run(target) => self.run(&target, &query).await,
            Route::StatsSummary => Ok(json(&self.stats.summary(&self.state).await?)),
            Route::Metrics => Ok(exposition(metrics::own(&self.state))),
            Route::MetricsResource => {
                let figures = self.stats.collect(&self.state).await?;
                Ok(exposition(metrics::resource(&figures)))
            }
            Route::MetricsCadvisor => {
                let figures = self.stats.collect(&self.state).await?;
                Ok(exposition(metrics::cadvisor(&figures, &self.state.machine)))
            }
            Route::MetricsProbes => Ok(exposition(String::new())),
            Route::Configz => {
                let document = serde_json::json!({"kubeletconfig": self.state.config});
                Ok(json(&document))
            }
            Route::Disabled(name) => Err(Failure::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{name} endpoint is disabled."),
            )),
            Route::Unknown => Err(Failure::new(StatusCode::NOT_FOUND, "404: Page Not Found")),
        }
    }

    fn pod_list(
        &self,
        wanted: impl Fn(&k8s_openapi::api::core::v1::Pod) -> bool,
    ) -> serde_json::Value {
        let pods = self.state.lookup.pods();
        let items: Vec<_> = pods
            .iter()
            .map(Arc::as_ref)
            .filter(|pod| wanted(pod))
            .collect();
        serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
    }
}

fn is_running(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    crate::pod::phase(pod) == "Running"
}

pub(crate) fn text(code: StatusCode, message: String) -> Response<Body> {
    respond(code, "text/plain; charset=utf-8", message)
}

fn json(document: &serde_json::Value) -> Response<Body> {
    respond(StatusCode::OK, "application/json", document.to_string())
}

fn exposition(metrics: String) -> Response<Body> {
    respond(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        metrics,
    )
}

fn respond(code: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    let value = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

/// The verb that authorization knows a method by.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

//! What the proxy tells those who ask how it is: load balancers and people.
//!
//! Port 10256 answers for the proxy (`/healthz`, `/livez`, `/metrics`); a Service of type
//! LoadBalancer with policy `Local` has a port of its own that says whether this node has endpoints.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use sampan_net::{Body, Handler, Peer, Server};
use sampan_util::Shutdown;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::model::ServiceName;

/// Rules that could not be renewed for this long make the proxy unhealthy.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the proxy is doing; cloned to whoever reports it.
#[derive(Debug, Clone)]
pub struct Health(Arc<watch::Sender<State>>);

/// What a load balancer wants to know of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    pub port: u16,
    /// Ready endpoints on this node.
    pub local_endpoints: usize,
}

pub type Checks = Arc<BTreeMap<ServiceName, Check>>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The rules were in place at least once since start.
    pub synced: bool,
    pub last_sync: Option<Instant>,
    /// Since when the kernel has been refusing the rules.
    pub failing_since: Option<Instant>,
    pub syncs: u64,
    pub failures: u64,
    /// The node is being taken out of service: load balancers should look elsewhere.
    pub leaving: bool,
    pub checks: Checks,
}

impl State {
    fn is_healthy(&self) -> bool {
        let failing = self.failing_since;
        self.synced && failing.is_none_or(|since| since.elapsed() < PATIENCE)
    }
}

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(watch::channel(State::default()).0))
    }
}

impl Health {
    pub fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Returns once the rules are in place.
    pub async fn synced(&self) {
        self.wait_until(|state| state.synced).await;
    }

    /// Returns once there were more than `syncs` commits.
    pub async fn synced_after(&self, syncs: u64) {
        self.wait_until(|state| state.syncs > syncs).await;
    }

    async fn wait_until(&self, condition: impl FnMut(&State) -> bool) {
        let mut state = self.0.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _seen = state.wait_for(condition).await;
    }

    pub(crate) fn succeeded(&self, checks: Checks) {
        self.0.send_modify(|state| {
            state.synced = true;
            state.syncs += 1;
            state.last_sync = Some(Instant::now());
            state.failing_since = None;
            state.checks = checks;
        });
    }

    pub(crate) fn failed(&self) {
        self.0.send_modify(|state| {
            state.failures += 1;
            state.failing_since.get_or_insert_with(Instant::now);
        });
    }

    pub(crate) fn set_leaving(&self, leaving: bool) {
        self.0.send_if_modified(|state| {
            let changed = state.leaving != leaving;
            state.leaving = leaving;
            changed
        });
    }
}

/// Serves `/healthz`, `/livez` and `/metrics` until shutdown.
pub async fn serve(listener: TcpListener, health: Health, shutdown: Shutdown) {
    let answer = move |path: &str| own_answer(path, &health.state());
    Server::new(Arc::new(Answering(answer)), None)
        .serve(listener, shutdown)
        .await;
}

/// Serves the Services' own ports until shutdown, opening and closing them as Services come and go.
pub(crate) async fn serve_checks(health: Health, shutdown: Shutdown) {
    let mut open: BTreeMap<(ServiceName, u16), Shutdown> = BTreeMap::new();
    let mut changes = health.0.subscribe();
    loop {
        let wanted = Arc::clone(&changes.borrow_and_update().checks);
        open.retain(|(name, port), running| {
            let keep = wanted.get(name).is_some_and(|check| check.port == *port);
            if !keep {
                running.trigger();
            }
            keep
        });
        for (name, check) in wanted.iter() {
            open.entry((name.clone(), check.port)).or_insert_with(|| {
                let running = shutdown.child();
                open_port(name.clone(), check.port, health.clone(), running.clone());
                running
            });
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = shutdown.wait() => return,
        }
    }
}

fn open_port(name: ServiceName, port: u16, health: Health, shutdown: Shutdown) {
    sampan_util::task::spawn("health-check-port", async move {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(service = %name, port, %error, "cannot open a health check port");
                return;
            }
        };
        let answer = move |_: &str| check_answer(&name, &health.state());
        Server::new(Arc::new(Answering(answer)), None)
            .serve(listener, shutdown)
            .await;
    });
}

struct Answer {
    status: StatusCode,
    content_type: &'static str,
    weight: Option<usize>,
    body: String,
}

impl Answer {
    fn json(healthy: bool, body: &Value) -> Self {
        Self {
            status: if healthy {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            },
            content_type: "application/json",
            weight: None,
            body: body.to_string(),
        }
    }
}

fn own_answer(path: &str, state: &State) -> Answer {
    let healthy = state.is_healthy();
    match path {
        "/healthz" => {
            let eligible = !state.leaving;
            let body = json!({"healthy": healthy, "nodeEligible": eligible});
            Answer::json(healthy && eligible, &body)
        }
        "/livez" => Answer::json(healthy, &json!({"healthy": healthy})),
        "/metrics" => Answer {
            status: StatusCode::OK,
            content_type: "text/plain; version=0.0.4",
            weight: None,
            body: metrics(state),
        },
        _ => Answer {
            status: StatusCode::NOT_FOUND,
            content_type: "text/plain",
            weight: None,
            body: "404 page not found\n".into(),
        },
    }
}

fn metrics(state: &State) -> String {
    let age = state.last_sync.map_or(0.0, |at| at.elapsed().as_secs_f64());
    let (syncs, failures) = (state.syncs, state.failures);
    format!(
        "# HELP sampan_proxy_syncs_total Changes of the service rules that the kernel took.\n\
         # TYPE sampan_proxy_syncs_total counter\n\
         sampan_proxy_syncs_total {syncs}\n\
         # HELP sampan_proxy_sync_failures_total Changes of the service rules that failed.\n\
         # TYPE sampan_proxy_sync_failures_total counter\n\
         sampan_proxy_sync_failures_total {failures}\n\
         # HELP sampan_proxy_last_sync_age_seconds Time since the service rules last changed.\n\
         # TYPE sampan_proxy_last_sync_age_seconds gauge\n\
         sampan_proxy_last_sync_age_seconds {age}\n"
    )
}

fn check_answer(name: &ServiceName, state: &State) -> Answer {
    let count = state.checks.get(name).map_or(0, |c| c.local_endpoints);
    let healthy = state.is_healthy();
    let body = json!({
        "service": {"namespace": name.namespace, "name": name.name},
        "localEndpoints": count,
        "serviceProxyHealthy": healthy
    });
    Answer {
        weight: Some(count),
        ..Answer::json(count != 0 && healthy, &body)
    }
}

struct Answering<F>(F);

impl<F: Fn(&str) -> Answer + Send + Sync + 'static> Handler for Answering<F> {
    fn handle(
        &self,
        request: Request<Incoming>,
        _peer: Arc<Peer>,
    ) -> BoxFuture<'static, Response<Body>> {
        let answer = (self.0)(request.uri().path());
        let mut response = Response::new(sampan_net::full(answer.body));
        *response.status_mut() = answer.status;
        let headers = response.headers_mut();
        let content_type = header::HeaderValue::from_static(answer.content_type);
        headers.insert(header::CONTENT_TYPE, content_type);
        let nosniff = header::HeaderValue::from_static("nosniff");
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
        if let Some(weight) = answer.weight {
            headers.insert("x-load-balancing-endpoint-weight", weight.into());
        }
        std::future::ready(response).boxed()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, path: &str) -> std::io::Result<String> {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    #[tokio::test]
    async fn the_proxy_answers_for_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (health, shutdown) = (Health::default(), Shutdown::new());
        tokio::spawn(serve(listener, health.clone(), shutdown));
        let status = async |path: &str| {
            let text = ask(address, path).await.unwrap();
            text[9..12].to_owned()
        };
        assert_eq!(status("/healthz").await, "503");
        health.succeeded(Checks::default());
        assert_eq!(status("/healthz").await, "200");
        health.failed();
        assert_eq!(status("/livez").await, "200", "one failure is no illness");
        health.set_leaving(true);
        assert_eq!(status("/healthz").await, "503");
        assert_eq!(status("/livez").await, "200");
        assert_eq!(status("/other").await, "404");
        let metrics = ask(address, "/metrics").await.unwrap();
        assert!(metrics.contains("\nsampan_proxy_syncs_total 1\n"));
    }

    #[tokio::test]
    async fn services_have_ports_that_count_their_endpoints() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let (health, shutdown) = (Health::default(), Shutdown::new());
        tokio::spawn(serve_checks(health.clone(), shutdown.clone()));
        let name = ServiceName::new("default", "web");
        let set = |local_endpoints| {
            let port = address.port();
            let check = Check {
                port,
                local_endpoints,
            };
            health.succeeded(Arc::new([(name.clone(), check)].into()));
        };
        set(2);
        let answer = async || {
            for _ in 0..200 {
                if let Ok(text) = ask(address, "/").await {
                    return text;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("the port did not open");
        };
        let text = answer().await;
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"localEndpoints\":2"));
        assert!(text.contains("x-load-balancing-endpoint-weight: 2"));
        set(0);
        assert!(answer().await.starts_with("HTTP/1.1 503"));
        health.succeeded(Checks::default());
        for _ in 0..200 {
            if ask(address, "/").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the port stays open");
    }
}

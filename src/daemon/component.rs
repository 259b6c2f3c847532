//! What each component tells about itself on a loopback port of its own, as its counterpart upstream does.
//!
//! | port | component | form |
//! |---|---|---|
//! | 10248 | kubelet | HTTP, `/healthz` |
//! | 10256 | service proxy | HTTP, `/healthz`, `/livez`, `/metrics` (`sampan_proxy::health`) |
//! | 10257 | controllers | HTTPS, health for everybody, `/metrics` for those who may |
//! | 10259 | scheduler | the same |
//!
//! Port 10255 (the kubelet without authentication) is never opened. A port that somebody else has is no reason to
//! stop: the component works all the same, and the log says what is missing.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use sampan_api::{Reason, Status};
use sampan_apiserver::auth::{Authenticator, union};
use sampan_apiserver::health::{Health, Scope};
use sampan_apiserver::http::negotiate::Negotiated;
use sampan_apiserver::http::query::Query;
use sampan_apiserver::http::respond;
use sampan_apiserver::metrics::{self, Extra};
use sampan_apiserver::request::{Attributes, Authorizer};
use sampan_net::{Body, Handler, Peer, Server, ServerIdentity};
use sampan_util::{Parts, Shutdown};
use tokio::net::TcpListener;

pub(crate) const KUBELET_PORT: u16 = 10248;
pub(crate) const PROXY_PORT: u16 = 10256;
pub(crate) const CONTROLLERS_PORT: u16 = 10257;
pub(crate) const SCHEDULER_PORT: u16 = 10259;

/// Who may read more than health.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) identity: Arc<ServerIdentity>,
}

/// The health of a component that is well as long as its part runs; `check` is what upstream calls that.
pub(crate) fn health(parts: &Parts, part: &'static str, check: &str) -> Health {
    let (health, parts) = (Health::new(), parts.clone());
    // Anybody on this machine may ask.
    let answer = move || parts.state(part).map_err(crate::parts::without_panic);
    health.add(check, Scope::LiveAndReady, Arc::new(answer));
    health
}

/// The component's port on the loopback device, if nobody else has it.
pub(crate) async fn listen(component: &str, port: u16) -> Option<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(address).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(%address, %error,
                "the {component} cannot be asked for its health and metrics: another program has its port; everything else works");
            None
        }
    }
}

/// Runs two futures of one part, which `stop` ends; either one's end is the other's.
pub(crate) async fn together<T>(
    stop: &Shutdown,
    one: impl Future<Output = anyhow::Result<T>>,
    other: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let one = one.inspect(|_| stop.trigger());
    let other = other.inspect(|_| stop.trigger());
    let (one, other) = tokio::join!(one, other);
    one.and(other)
}

/// Health alone, without encryption, until shutdown: what the kubelet shows.
pub(crate) async fn serve_health(
    component: &'static str,
    port: u16,
    health: Health,
    shutdown: Shutdown,
) {
    let pages = Pages {
        health,
        gate: None,
        metrics: Arc::new(|_| {}),
    };
    serve(component, port, pages, shutdown).await;
}

/// Health and metrics, encrypted, under the rules of the API server's users, until shutdown.
pub(crate) async fn serve_component(
    component: &'static str,
    port: u16,
    (health, metrics): (Health, Extra),
    gate: Gate,
    shutdown: Shutdown,
) {
    let pages = Pages {
        health,
        gate: Some(gate),
        metrics,
    };
    serve(component, port, pages, shutdown).await;
}

async fn serve(component: &str, port: u16, pages: Pages, shutdown: Shutdown) {
    let Some(listener) = listen(component, port).await else {
        return;
    };
    let tls = match &pages.gate {
        None => None,
        Some(gate) => {
            let identity = Arc::clone(&gate.identity);
            match sampan_net::tls::server_config(identity, &[b"h2", b"http/1.1"]) {
                Ok(tls) => Some(tls),
                Err(error) => {
                    tracing::warn!(%error, "the {component} cannot serve health and metrics");
                    return;
                }
            }
        }
    };
    Server::new(Arc::new(pages), tls)
        .serve(listener, shutdown)
        .await;
}

struct Pages {
    health: Health,
    /// `None`: there is nothing but health.
    gate: Option<Gate>,
    metrics: Extra,
}

impl Handler for Pages {
    fn handle(
        &self,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> BoxFuture<'static, Response<Body>> {
        let mut response = self.answer(&request, &peer);
        if request.method() == Method::HEAD {
            *response.body_mut() = sampan_net::empty();
        }
        std::future::ready(response).boxed()
    }
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>, peer: &Peer) -> Response<Body> {
        let path = request.uri().path();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        if let Some(answer) = self.health.answer(path, &query) {
            return answer;
        }
        let Some(gate) = &self.gate else {
            return respond::page_not_found();
        };
        if let Err(status) = gate.check(request, peer) {
            return respond::status_response(&status, Negotiated::JSON);
        }
        match path {
            "/metrics" => respond::text_response(StatusCode::OK, self.exposition()),
            _ => respond::page_not_found(),
        }
    }

    fn exposition(&self) -> String {
        let mut text = String::new();
        (self.metrics)(&mut text);
        // Writing to a string cannot fail.
        metrics::render_process(&mut text).unwrap_or_default();
        text
    }
}

impl Gate {
    fn check(&self, request: &Request<Incoming>, peer: &Peer) -> Result<(), Status> {
        let user = self
            .authenticator
            .authenticate(request.headers(), peer, SystemTime::now())
            .map_err(|_| Status::new(Reason::Unauthorized, "Unauthorized"))?;
        let verb = request.method().as_str().to_lowercase();
        let attributes = Attributes {
            user: &user,
            verb: &verb,
            resource: None,
            path: request.uri().path(),
        };
        union::check(&*self.authorizer, &attributes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(port: u16, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn health_follows_the_component_and_a_taken_port_is_no_failure() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        let (parts, shutdown) = (Parts::default(), Shutdown::new());
        let health = health(&parts, "kubelet", "syncloop");
        assert!(listen("kubelet", port).await.is_none(), "taken");
        serve_health("kubelet", port, health.clone(), shutdown.clone()).await;
        drop(free);
        let serving = tokio::spawn(serve_health("kubelet", port, health, shutdown.clone()));
        tokio::task::yield_now().await;
        assert!(ask(port, "/healthz").await.starts_with("HTTP/1.1 500"));
        parts.tell("kubelet", Ok(()));
        let text = ask(port, "/healthz?verbose").await;
        assert!(text.contains("[+]ping ok\n[+]syncloop ok\n"), "{text}");
        assert!(ask(port, "/metrics").await.starts_with("HTTP/1.1 404"));
        parts.tell("kubelet", Err("it panicked".to_owned()));
        let down = ask(port, "/healthz/syncloop").await;
        assert!(down.starts_with("HTTP/1.1 500") && down.contains("it panicked"));
        shutdown.trigger();
        serving.await.unwrap();
    }
}

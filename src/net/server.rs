//! Serving HTTP/1.1 and HTTP/2 over TLS (or plainly, for loopback endpoints) on one port.
//!
//! ALPN decides what a connection speaks; further protocols can share the port under names of
//! their own. On shutdown nothing new is accepted, running requests get time to end, and the rest
//! is cut. Connections that nobody uses are ended, too.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use sampan_util::{Backoff, Shutdown, task};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;

use crate::activity::{Activity, guarded};
use crate::io::{Body, BoxedIo};

pub const HTTP_PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// Watches are streams that stay open; clients expect to have at least 250 of them.
const MAX_STREAMS: u32 = 1000;
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_HEADER_BYTES: u32 = 1024 * 1024;
/// An idle connection costs a few kilobytes; more of them than this are an attack or a bug.
const MAX_CONNECTIONS: usize = 10_000;
/// How long a connection may serve no request, as upstream's may.
const IDLE: Duration = Duration::from_secs(90);
/// How long the other end may take to agree to an end.
const GOODBYE: Duration = Duration::from_secs(10);
/// The kernel tells nobody when a file descriptor or memory has become free, so after an accept that
/// failed for want of them only waiting helps.
const ACCEPT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));

/// The other end of a connection.
#[derive(Debug)]
pub struct Peer {
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    /// The client's certificate first; that it holds the key is proven, all else is not checked.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    fn handle(
        &self,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> BoxFuture<'static, Response<Body>>;
}

/// Takes over connections that chose its protocol in the handshake.
pub trait StreamHandler: Send + Sync + 'static {
    fn handle(&self, stream: BoxedIo, peer: Arc<Peer>) -> BoxFuture<'static, ()>;
}

/// A server on one port.
#[derive(Clone)]
pub struct Server {
    pub handler: Arc<dyn Handler>,
    /// `None` serves plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Protocols beside HTTP, by ALPN name; they must be in the TLS settings too.
    pub protocols: Vec<(Vec<u8>, Arc<dyn StreamHandler>)>,
    /// How long running requests may go on after shutdown was asked for.
    pub drain: Duration,
    /// How long a connection may serve no request.
    pub idle: Duration,
}

impl Server {
    pub fn new(handler: Arc<dyn Handler>, tls: Option<Arc<ServerConfig>>) -> Self {
        Self {
            handler,
            tls,
            protocols: Vec::new(),
            drain: Duration::from_secs(10),
            idle: IDLE,
        }
    }

    /// Serves until shutdown, then drains.
    pub async fn serve(self, listener: TcpListener, shutdown: Shutdown) {
        let cut = Shutdown::new();
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let server = Arc::new(self);
        // Every connection holds a sender, so the channel closes with the last of them.
        let (open, mut all_closed) = mpsc::channel::<Infallible>(1);
        let mut failures = 0;
        loop {
            tokio::select! {
                () = shutdown.wait() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        failures = 0;
                        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                            tracing::warn!(%address, "refused: too many connections");
                            continue;
                        };
                        let connection = Arc::clone(&server)
                            .connection(stream, address, shutdown.clone());
                        let (cut, open) = (cut.clone(), open.clone());
                        tokio::spawn(async move {
                            tokio::select! {
                                () = cut.wait() => {}
                                _ = task::contain("connection", connection) => {}
                            }
                            drop((place, open));
                        });
                    }
                    Err(error) if is_of_client(&error) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections");
                        tokio::time::sleep(ACCEPT_BACKOFF.delay(failures)).await;
                        failures += 1;
                    }
                }
            }
        }
        drop((listener, open));
        if tokio::time::timeout(server.drain, all_closed.recv())
            .await
            .is_err()
        {
            tracing::info!("cutting connections that did not end in time");
        }
        cut.trigger();
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        shutdown: Shutdown,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%address, %error, "cannot set TCP_NODELAY");
        }
        let Ok(local_address) = stream.local_addr() else {
            return;
        };
        let Some(tls) = self.tls.clone() else {
            let peer = Arc::new(Peer {
                address,
                local_address,
                certificates: Vec::new(),
            });
            return self.http(Box::new(stream), peer, shutdown).await;
        };
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake(stream, tls));
        match handshake.await {
            Ok(Ok(Some(stream))) => {
                let (_, session) = stream.get_ref();
                let peer = Arc::new(Peer {
                    address,
                    local_address,
                    certificates: session
                        .peer_certificates()
                        .map(<[CertificateDer<'_>]>::to_vec)
                        .unwrap_or_default(),
                });
                let chosen = session.alpn_protocol().unwrap_or_default();
                let other = self.protocols.iter().find(|(name, _)| name == chosen);
                match other.map(|(_, handler)| Arc::clone(handler)) {
                    Some(handler) => handler.handle(Box::new(stream), peer).await,
                    None => self.http(Box::new(stream), peer, shutdown).await,
                }
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
        }
    }

    async fn http(&self, stream: BoxedIo, peer: Arc<Peer>, shutdown: Shutdown) {
        let handler = Arc::clone(&self.handler);
        let address = peer.address;
        let activity = Activity::new();
        let counted = activity.clone();
        let service = service_fn(move |request| {
            let running = counted.begin();
            let answer = handler.handle(request, Arc::clone(&peer));
            async move { Ok::<_, Infallible>(guarded(answer.await, running)) }
        });
        let builder = connection_builder();
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = shutdown.wait() => None,
            () = activity.idle(self.idle) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    // Its end does not take the goodbye.
                    () = activity.idle(GOODBYE) => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%address, %error, "connection ended");
        }
    }
}

/// The client gave up while it waited; the next one is not concerned.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

fn connection_builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    builder
}

/// The encrypted stream; `None` if the client spoke plain HTTP and was told so.
async fn handshake(
    mut stream: TcpStream,
    tls: Arc<ServerConfig>,
) -> io::Result<Option<tokio_rustls::server::TlsStream<TcpStream>>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        stream.write_all(PLAIN_HTTP_ANSWER).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    TlsAcceptor::from(tls).accept(stream).await.map(Some)
}

const PLAIN_HTTP_ANSWER: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::SystemTime;

    use http::{StatusCode, Version, header};
    use http_body_util::BodyExt as _;
    use sampan_pki::{Authority, LeafSpec};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::client::{ClientConfig, HttpClient, upgraded};
    use crate::dial::TcpDialer;
    use crate::io::{empty, full};
    use crate::tls::{ClientTls, ServerIdentity, Trust, server_config};

    /// Answers with the number of client certificates; `/echo` becomes an echo stream.
    struct Echo;

    impl Handler for Echo {
        fn handle(
            &self,
            request: Request<Incoming>,
            peer: Arc<Peer>,
        ) -> BoxFuture<'static, Response<Body>> {
            Box::pin(async move {
                if request.uri().path() == "/large" {
                    return Response::new(full(vec![0; 4 << 20]));
                }
                if request.uri().path() != "/echo" {
                    return Response::new(full(peer.certificates.len().to_string()));
                }
                tokio::spawn(async move {
                    let stream = hyper::upgrade::on(request).await.unwrap();
                    let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
                    tokio::io::copy(&mut read, &mut write).await.unwrap();
                    write.shutdown().await.unwrap();
                });
                Response::builder()
                    .status(StatusCode::SWITCHING_PROTOCOLS)
                    .header(header::UPGRADE, "echo")
                    .header(header::CONNECTION, "Upgrade")
                    .body(empty())
                    .unwrap()
            })
        }
    }

    #[tokio::test]
    async fn http2_upgrade_plain_http_and_drain() {
        let now = SystemTime::now();
        let authority = Authority::create("ca", now).unwrap();
        let spec = LeafSpec::server("s", vec![], vec!["127.0.0.1".parse().unwrap()]);
        let identity = ServerIdentity::new(&authority.issue(&spec, now).unwrap()).unwrap();
        let tls = server_config(identity, HTTP_PROTOCOLS).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::new();
        let mut server = Server::new(Arc::new(Echo), Some(tls));
        server.idle = Duration::from_millis(200);
        let running = tokio::spawn(server.serve(listener, shutdown.clone()));

        let client = HttpClient::new(&ClientConfig {
            tls: ClientTls {
                trust: Trust::Authorities(authority.certificate_pem().to_owned()),
                identity: Some(authority.issue(&LeafSpec::client("a", &[]), now).unwrap()),
            },
            dialer: Arc::new(TcpDialer),
            http2: true,
        })
        .unwrap();
        let request = |path: &str| Request::get(format!("https://{address}{path}"));
        let answer = client
            .send(request("/").body(empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(answer.version(), Version::HTTP_2);
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, "1");

        // An answer that is not read does not hold up others on its connection.
        let unread = client
            .send(request("/large").body(empty()).unwrap())
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let beside = client.send(request("/").body(empty()).unwrap());
        let beside = tokio::time::timeout(Duration::from_secs(5), beside).await;
        let beside = beside.unwrap().unwrap().into_body().collect().await;
        assert_eq!(beside.unwrap().to_bytes(), "1");
        drop(unread);

        let upgrade = request("/echo")
            .header(header::UPGRADE, "echo")
            .header(header::CONNECTION, "Upgrade")
            .body(empty())
            .unwrap();
        let answer = client.send_upgradable(upgrade).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
        let mut stream = upgraded(answer).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut back = String::new();
        stream.read_to_string(&mut back).await.unwrap();
        assert_eq!(back, "ping");

        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut text = String::new();
        plain.read_to_string(&mut text).await.unwrap();
        assert!(text.contains("Client sent an HTTP request to an HTTPS server."));

        // A connection on which nothing is asked, before and after a first request.
        let tls = ClientTls {
            trust: Trust::Authorities(authority.certificate_pem().to_owned()),
            identity: None,
        };
        for first in ["", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
            let config = tls.config(&[b"http/1.1"]).unwrap();
            let stream = TcpStream::connect(address).await.unwrap();
            let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
            let connector = tokio_rustls::TlsConnector::from(config);
            let mut stream = connector.connect(name, stream).await.unwrap();
            stream.write_all(first.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer);
            let ended = tokio::time::timeout(Duration::from_secs(5), ended).await;
            assert!(ended.is_ok(), "an idle connection stays open");
            assert_eq!(answer.is_empty(), first.is_empty());
        }

        shutdown.trigger();
        tokio::time::timeout(Duration::from_secs(5), running)
            .await
            .unwrap()
            .unwrap();
    }
}

//! Serving HTTP/1.1 and HTTP/2 over TLS (or plainly, for loopback endpoints) on one port.
//!
//! ALPN decides what a connection speaks; further protocols can share the port under names of
//! their own. On shutdown nothing new is accepted, running requests get time to end, and the rest
//! is cut.

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
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use sampan_util::{Shutdown, task};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

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
}

impl Server {
    pub fn new(handler: Arc<dyn Handler>, tls: Option<Arc<ServerConfig>>) -> Self {
        Self {
            handler,
            tls,
            protocols: Vec::new(),
            drain: Duration::from_secs(10),
        }
    }

    /// Serves until shutdown, then drains.
    pub async fn serve(self, listener: TcpListener, shutdown: Shutdown) {
        let graceful = GracefulShutdown::new();
        let cut = Shutdown::new();
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let server = Arc::new(self);
        loop {
            tokio::select! {
                () = shutdown.wait() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                            tracing::warn!(%address, "refused: too many connections");
                            continue;
                        };
                        let connection = Arc::clone(&server)
                            .connection(stream, address, graceful.watcher());
                        let cut = cut.clone();
                        tokio::spawn(async move {
                            tokio::select! {
                                () = cut.wait() => {}
                                _ = task::contain("connection", connection) => {}
                            }
                            drop(place);
                        });
                    }
                    Err(error) => rest_after(&error).await,
                }
            }
        }
        drop(listener);
        if tokio::time::timeout(server.drain, graceful.shutdown())
            .await
            .is_err()
        {
            tracing::info!("cutting connections that did not end in time");
        }
        cut.trigger();
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, address: SocketAddr, watcher: Watcher) {
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
            return self.http(Box::new(stream), peer, watcher).await;
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
                    None => self.http(Box::new(stream), peer, watcher).await,
                }
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
        }
    }

    async fn http(&self, stream: BoxedIo, peer: Arc<Peer>, watcher: Watcher) {
        let handler = Arc::clone(&self.handler);
        let address = peer.address;
        let service = service_fn(move |request| {
            let answer = handler.handle(request, Arc::clone(&peer));
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let builder = connection_builder();
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection.into_owned()).await {
            tracing::debug!(%address, %error, "connection ended");
        }
    }
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

/// After an accept that failed for want of file descriptors or memory, trying at once again would
/// only burn time.
async fn rest_after(error: &io::Error) {
    if matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    ) {
        return;
    }
    tracing::warn!(%error, "cannot accept connections");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

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
        let server = Server::new(Arc::new(Echo), Some(tls));
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

        shutdown.trigger();
        tokio::time::timeout(Duration::from_secs(5), running)
            .await
            .unwrap()
            .unwrap();
    }
}

//! Requests to servers: pooled ones, and those that turn into a byte stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::dial::Dialer;
use crate::io::{Body, BoxedIo};
use crate::tls::{ClientTls, TlsError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// A connection whose other end has vanished is noticed after both of these.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0:?} is not a URL with a host")]
    Url(String),
    #[error("cannot connect to {host}:{port}: {source}")]
    Connect {
        host: String,
        port: u16,
        source: io::Error,
    },
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("{}", whole_chain(.0))]
    Request(#[from] legacy::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The outer errors of the HTTP client only say "client error (Connect)".
fn whole_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// So much of one answer may wait to be read …
const STREAM_WINDOW: u32 = 1 << 20;
/// … and so much of all on one connection: more than a thousand that nobody reads can fill, because
/// one watch that is read slowly must not stop the requests beside it.
const CONNECTION_WINDOW: u32 = 1 << 30;

pub struct ClientConfig {
    pub tls: ClientTls,
    pub dialer: Arc<dyn Dialer>,
    /// Offer HTTP/2. Relays do not: an upgrade needs HTTP/1.1.
    pub http2: bool,
}

/// A client with a pool of connections; cheap to clone.
#[derive(Clone)]
pub struct HttpClient {
    pool: Client<Connector, Body>,
    connector: Connector,
}

impl HttpClient {
    pub fn new(config: &ClientConfig) -> Result<Self, ClientError> {
        let protocols: &[&[u8]] = if config.http2 {
            &[b"h2", b"http/1.1"]
        } else {
            &[b"http/1.1"]
        };
        let connector = Connector {
            tls: TlsConnector::from(config.tls.config(protocols)?),
            upgrade_tls: TlsConnector::from(config.tls.config(&[b"http/1.1"])?),
            dialer: Arc::clone(&config.dialer),
        };
        let pool = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .build(connector.clone());
        Ok(Self { pool, connector })
    }

    /// Sends a request with an absolute URL.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, ClientError> {
        Ok(self.pool.request(request).await?)
    }

    /// Sends a request on a connection of its own, which an answer `101` turns into a byte stream.
    pub async fn send_upgradable(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, ClientError> {
        let place = Place::of(request.uri())?;
        if !request.headers().contains_key(http::header::HOST) {
            let host = place.host_header();
            if let Ok(value) = http::HeaderValue::from_str(&host) {
                request.headers_mut().insert(http::header::HOST, value);
            }
        }
        let path = request
            .uri()
            .path_and_query()
            .map_or_else(|| Uri::from_static("/"), |path| Uri::from(path.clone()));
        *request.uri_mut() = path;
        let stream = self.connector.open(&place, true).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream.io)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "an upgraded connection ended");
            }
        });
        Ok(sender.send_request(request).await?)
    }
}

/// The byte stream behind an answer `101 Switching Protocols`.
pub async fn upgraded(response: Response<Incoming>) -> Result<TokioIo<Upgraded>, ClientError> {
    Ok(TokioIo::new(hyper::upgrade::on(response).await?))
}

struct Place {
    host: String,
    port: u16,
    encrypted: bool,
}

impl Place {
    fn of(url: &Uri) -> Result<Self, ClientError> {
        let encrypted = url.scheme_str() != Some("http");
        let host = url
            .host()
            .ok_or_else(|| ClientError::Url(url.to_string()))?;
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port_u16().unwrap_or(if encrypted { 443 } else { 80 }),
            encrypted,
        })
    }

    fn host_header(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

#[derive(Clone)]
struct Connector {
    tls: TlsConnector,
    upgrade_tls: TlsConnector,
    dialer: Arc<dyn Dialer>,
}

impl Connector {
    async fn open(&self, place: &Place, for_upgrade: bool) -> Result<PooledIo, ClientError> {
        let failed = |source| ClientError::Connect {
            host: place.host.clone(),
            port: place.port,
            source,
        };
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.open_untimed(place, for_upgrade));
        match opened.await {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn open_untimed(&self, place: &Place, for_upgrade: bool) -> io::Result<PooledIo> {
        let stream = self.dialer.dial(&place.host, place.port).await?;
        if !place.encrypted {
            return Ok(PooledIo {
                io: stream,
                http2: false,
            });
        }
        let name = ServerName::try_from(place.host.clone()).map_err(io::Error::other)?;
        let connector = if for_upgrade {
            &self.upgrade_tls
        } else {
            &self.tls
        };
        let stream = connector.connect(name, stream).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(PooledIo {
            io: Box::new(stream),
            http2,
        })
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<PooledIo>;
    type Error = ClientError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let place = Place::of(&url)?;
            connector.open(&place, false).await.map(TokioIo::new)
        })
    }
}

/// A connection that tells the pool which protocol was agreed on.
struct PooledIo {
    io: BoxedIo,
    http2: bool,
}

impl Connection for PooledIo {
    fn connected(&self) -> Connected {
        if self.http2 {
            Connected::new().negotiated_h2()
        } else {
            Connected::new()
        }
    }
}

impl tokio::io::AsyncRead for PooledIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for PooledIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

//! Channels over a unix socket. A channel reconnects by itself when the runtime comes back.

use crate::Error;
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Connects now and fails when nobody listens: this is also the readiness probe of a runtime we start.
pub async fn connect(socket: &Path) -> Result<Channel, Error> {
    endpoint()
        .connect_with_connector(tower::service_fn(opener(socket.to_owned())))
        .await
        .map_err(|source| Error::Connect {
            socket: socket.to_owned(),
            source,
        })
}

/// Connects with the first call.
pub fn connect_lazy(socket: &Path) -> Channel {
    endpoint().connect_with_connector_lazy(tower::service_fn(opener(socket.to_owned())))
}

fn endpoint() -> Endpoint {
    // The address is a formality; the connector ignores it.
    Endpoint::from_static("http://localhost").connect_timeout(Duration::from_secs(5))
}

type Opened = std::pin::Pin<Box<dyn Future<Output = std::io::Result<TokioIo<UnixStream>>> + Send>>;

fn opener(socket: PathBuf) -> impl Fn(http::Uri) -> Opened + Clone + Send + 'static {
    move |_| {
        let socket = socket.clone();
        Box::pin(async move { UnixStream::connect(socket).await.map(TokioIo::new) })
    }
}

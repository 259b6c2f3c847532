//! TLS, HTTP plumbing, upgraded streams and dialers: how bytes travel, whatever they mean.
//!
//! Nothing here knows of Kubernetes. The API server and the kubelet serve through [`server`], all
//! components connect through [`client`]; who may connect is decided above.

mod activity;
pub mod channels;
pub mod client;
pub mod dial;
pub mod io;
pub mod relay;
pub mod server;
pub mod spdy;
pub mod tls;
pub mod websocket;

pub use client::{ClientConfig, HttpClient};
pub use dial::{Dialer, TcpDialer};
pub use io::{Body, BoxError, BoxedIo, empty, full, stream_body};
pub use server::{Handler, Peer, Server};
pub use tls::{CertificateChecker, ClientTls, ServerIdentity, Trust};

/// Makes `ring` the process's crypto provider; harmless if done before.
pub fn install_crypto_provider() {
    // An error only says that a provider is installed already.
    drop(rustls::crypto::ring::default_provider().install_default());
}

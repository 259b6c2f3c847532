//! How a connection to a host comes to be: plain TCP, or (elsewhere) a tunnel.

use std::io;

use futures_util::future::BoxFuture;
use tokio::net::TcpStream;

use crate::io::BoxedIo;

/// Opens byte streams. The reverse tunnel of a cluster's nodes is another implementation.
pub trait Dialer: Send + Sync + 'static {
    /// `host` is a name or an address (an IPv6 one without brackets).
    fn dial(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<BoxedIo>>;
}

/// TCP by the host's own routes and resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpDialer;

impl Dialer for TcpDialer {
    fn dial(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<BoxedIo>> {
        let host = host.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxedIo)
        })
    }
}

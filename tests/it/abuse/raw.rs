//! Connections without a client's good manners.

use std::time::Duration;

use rustls_pki_types::ServerName;
use sampan_net::{ClientTls, Trust};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub type Stream = TlsStream<TcpStream>;

#[derive(Clone)]
pub struct Door {
    address: String,
    http1: TlsConnector,
    http2: TlsConnector,
}

impl Door {
    pub fn new(url: &str) -> Self {
        let tls = ClientTls {
            trust: Trust::Anything,
            identity: None,
        };
        let connector = |name: &[u8]| TlsConnector::from(tls.config(&[name]).unwrap());
        Self {
            address: url.trim_start_matches("https://").to_owned(),
            http1: connector(b"http/1.1"),
            http2: connector(b"h2"),
        }
    }

    pub async fn tcp(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(&self.address).await
    }

    pub async fn http1(&self) -> std::io::Result<Stream> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        self.http1.connect(name, self.tcp().await?).await
    }

    pub async fn http2(&self) -> std::io::Result<Stream> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        self.http2.connect(name, self.tcp().await?).await
    }
}

/// What came back: everything until the end, or until nothing came for a while.
pub async fn answer(stream: &mut Stream, patience: Duration) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    let mut piece = vec![0; 65_536];
    loop {
        match tokio::time::timeout(patience, stream.read(&mut piece)).await {
            Err(_) => return (all, false),
            Ok(Ok(0) | Err(_)) => return (all, true),
            Ok(Ok(count)) => all.extend_from_slice(&piece[..count]),
        }
        if all.len() > 8 << 20 {
            return (all, false);
        }
    }
}

/// Sends bytes on a connection of its own and gives what came back.
pub async fn send1(door: &Door, bytes: &[u8], patience: Duration) -> (Vec<u8>, bool) {
    let mut stream = door.http1().await.unwrap();
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    answer(&mut stream, patience).await
}

pub async fn send2(door: &Door, bytes: &[u8], patience: Duration) -> (Vec<u8>, bool) {
    let mut stream = door.http2().await.unwrap();
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    answer(&mut stream, patience).await
}

/// The code of an HTTP/1.1 answer; 0 if it is none.
pub fn code(answer: &[u8]) -> u16 {
    let line = answer
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    line.strip_prefix("HTTP/1.1 ")
        .or_else(|| line.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

/// As many open files as the administrator allows.
pub fn many_files() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    limit.maximum.unwrap_or(1 << 20)
}

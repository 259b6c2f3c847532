//! Asks the host's resolvers about names that are not the cluster's.
//!
//! Queries are relayed as they are, under an id of our own from a port of their own, so that nobody
//! else can answer them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rand::Rng;
use rand::seq::SliceRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::message::Via;

/// How long one resolver may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a resolver that did not answer comes last.
const MISTRUST: Duration = Duration::from_secs(10);
/// How often each resolver is tried.
const ROUNDS: usize = 2;
/// Queries under way; more are refused.
const CONCURRENT: usize = 1000;
/// The file of resolvers is looked at again when a query comes this long after the last look.
const FRESH: Duration = Duration::from_secs(1);
const DNS_PORT: u16 = 53;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstreams {
    /// The `nameserver` lines of a file such as /etc/resolv.conf; changes are followed.
    File(PathBuf),
    List(Vec<SocketAddr>),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("there is no resolver to ask")]
    NoUpstream,
    #[error("too many queries are being relayed")]
    Busy,
    #[error("no resolver answered")]
    NoAnswer,
}

pub struct Forwarder {
    upstreams: Upstreams,
    own: Vec<IpAddr>,
    file: tokio::sync::Mutex<FileState>,
    /// When each resolver last failed.
    failed: Mutex<Vec<(SocketAddr, Instant)>>,
    permits: Semaphore,
}

#[derive(Debug, Default)]
struct FileState {
    looked_at: Option<Instant>,
    modified: Option<SystemTime>,
    servers: Vec<SocketAddr>,
}

impl Forwarder {
    /// `own` are addresses that would bring a query back to us.
    pub fn new(upstreams: Upstreams, own: Vec<IpAddr>) -> Self {
        Self {
            upstreams,
            own,
            file: tokio::sync::Mutex::default(),
            failed: Mutex::default(),
            permits: Semaphore::new(CONCURRENT),
        }
    }

    /// The reply to this query, under whatever id.
    pub async fn ask(&self, query: &[u8], via: Via) -> Result<Vec<u8>, Error> {
        let servers = self.servers().await;
        if servers.is_empty() {
            return Err(Error::NoUpstream);
        }
        let Ok(_permit) = self.permits.try_acquire() else {
            return Err(Error::Busy);
        };
        for server in std::iter::repeat_n(&servers, ROUNDS).flatten() {
            match tokio::time::timeout(PATIENCE, exchange(*server, query, via)).await {
                Ok(Ok(reply)) => {
                    self.note(*server, false);
                    return Ok(reply);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "a resolver failed"),
                Err(_) => tracing::debug!(%server, "a resolver took too long"),
            }
            self.note(*server, true);
        }
        Err(Error::NoAnswer)
    }

    /// In random order, those that failed lately last.
    async fn servers(&self) -> Vec<SocketAddr> {
        let mut servers = match &self.upstreams {
            Upstreams::List(servers) => servers.clone(),
            Upstreams::File(path) => self.file_servers(path).await,
        };
        servers.retain(|server| !self.own.contains(&server.ip()));
        servers.shuffle(&mut rand::rng());
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let mistrusted = |server: &SocketAddr| {
            failed
                .iter()
                .any(|(each, at)| each == server && at.elapsed() < MISTRUST)
        };
        servers.sort_by_key(mistrusted);
        servers
    }

    /// Who asks meanwhile waits for the look that is being taken.
    async fn file_servers(&self, path: &Path) -> Vec<SocketAddr> {
        let mut state = self.file.lock().await;
        if state.looked_at.is_some_and(|at| at.elapsed() < FRESH) {
            return state.servers.clone();
        }
        state.looked_at = Some(Instant::now());
        let modified = tokio::fs::metadata(path)
            .await
            .and_then(|metadata| metadata.modified())
            .ok();
        if modified.is_some() && modified == state.modified {
            return state.servers.clone();
        }
        let named = path.to_owned();
        let read = tokio::task::spawn_blocking(move || sampan_util::file::read_text(&named)).await;
        match read.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked))) {
            Ok(text) => {
                state.servers = parse_resolv_conf(&text);
                state.modified = modified;
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the list of resolvers")
            }
        }
        state.servers.clone()
    }

    fn note(&self, server: SocketAddr, failed: bool) {
        let mut all = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(each, _)| *each != server);
        if failed {
            all.push((server, Instant::now()));
        }
    }
}

pub fn parse_resolv_conf(text: &str) -> Vec<SocketAddr> {
    let words = text.lines().map(str::split_whitespace);
    let servers = words.filter_map(|mut words| match (words.next(), words.next()) {
        (Some("nameserver"), Some(address)) => parse_server(address),
        _ => None,
    });
    servers.collect()
}

/// An address, perhaps with a scope, which only numbers can be had without asking the host.
fn parse_server(text: &str) -> Option<SocketAddr> {
    match text.split_once('%') {
        None => Some(SocketAddr::new(text.parse().ok()?, DNS_PORT)),
        Some((address, scope)) => {
            let (address, scope) = (address.parse().ok()?, scope.parse().ok()?);
            Some(std::net::SocketAddrV6::new(address, DNS_PORT, 0, scope).into())
        }
    }
}

async fn exchange(server: SocketAddr, query: &[u8], via: Via) -> std::io::Result<Vec<u8>> {
    let mut query = query.to_vec();
    let id: [u8; 2] = rand::rng().random();
    match query.get_mut(..2) {
        Some(place) => place.copy_from_slice(&id),
        None => return Err(std::io::ErrorKind::InvalidInput.into()),
    }
    match via {
        Via::Udp => exchange_datagrams(server, &query).await,
        Via::Tcp => exchange_on_stream(server, &query).await,
    }
}

async fn exchange_datagrams(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: IpAddr = if server.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything else on this port is somebody's guess.
        if answers(&buffer[..length], query) {
            buffer.truncate(length);
            buffer.shrink_to_fit();
            return Ok(buffer);
        }
    }
}

async fn exchange_on_stream(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_framed(&mut stream, query).await?;
    let reply = read_framed(&mut stream).await?;
    if answers(&reply, query) {
        Ok(reply)
    } else {
        Err(std::io::ErrorKind::InvalidData.into())
    }
}

/// A response with the id and the question of the query.
fn answers(reply: &[u8], query: &[u8]) -> bool {
    const HEADER: usize = 12;
    let is_response = reply.get(2).is_some_and(|flags| flags & 0x80 != 0);
    let same_id = reply.get(..2) == query.get(..2);
    let question = |bytes: &[u8]| {
        let body = bytes.get(HEADER..)?;
        let mut at = 0;
        while let Some(length) = body
            .get(at)
            .map(|length| usize::from(*length))
            .filter(|length| *length > 0)
        {
            at += 1 + length;
        }
        Some(body.get(..at + 5)?.to_ascii_lowercase())
    };
    // A server that cannot read the query may leave the question out.
    let no_question = reply.get(4..6) == Some(&[0, 0]);
    is_response && same_id && (no_question || question(reply) == question(query))
}

pub(crate) async fn write_framed(
    stream: &mut (impl AsyncWriteExt + Unpin),
    message: &[u8],
) -> std::io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    let mut framed = Vec::with_capacity(message.len() + 2);
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    stream.write_all(&framed).await
}

pub(crate) async fn read_framed(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> std::io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn resolvers_of_a_file() {
        let text = "# comment\nsearch home\nnameserver 192.168.1.1\n nameserver\tfe80::1%3\nnameserver nonsense\noptions edns0\n";
        let servers = parse_resolv_conf(text);
        assert_eq!(servers.len(), 2);
        assert_eq!(servers[0], "192.168.1.1:53".parse().unwrap());
        assert_eq!(servers[1].to_string(), "[fe80::1%3]:53");
    }

    #[tokio::test]
    async fn we_never_ask_ourselves() {
        let list = vec![
            "10.43.0.10:53".parse().unwrap(),
            "9.9.9.9:53".parse().unwrap(),
        ];
        let forwarder = Forwarder::new(Upstreams::List(list), vec!["10.43.0.10".parse().unwrap()]);
        assert_eq!(forwarder.servers().await, ["9.9.9.9:53".parse().unwrap()]);
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x00\x00\x01\x00\x01";
        let mut reply = query.to_vec();
        assert!(!answers(&reply, query), "not a response");
        reply[2] |= 0x80;
        assert!(answers(&reply, query));
        reply[13] = b'W';
        assert!(answers(&reply, query), "case does not matter");
        reply[13] = b'v';
        assert!(!answers(&reply, query));
        reply[13] = b'w';
        reply[0] = 0;
        assert!(!answers(&reply, query));
    }

    #[tokio::test]
    async fn a_silent_resolver_is_passed_over() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let talking = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (dead, alive) = (silent.local_addr().unwrap(), talking.local_addr().unwrap());
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = talking.recv_from(&mut buffer).await.unwrap();
                let mut reply = buffer[..length].to_vec();
                reply[2] |= 0x80;
                talking.send_to(&reply, from).await.unwrap();
            }
        });
        let forwarder = Forwarder::new(Upstreams::List(vec![dead, alive]), vec![]);
        forwarder.note(alive, true);
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x00\x00\x01\x00\x01";
        assert!(forwarder.ask(query, Via::Udp).await.is_ok());
        assert_eq!(
            forwarder.servers().await,
            [alive, dead],
            "what failed comes last"
        );
    }
}

//! Listens on UDP and TCP.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use rand::seq::SliceRandom;
use sampan_util::{Backoff, Shutdown, task};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};

use crate::answer::{Answer, Reply, answer};
use crate::forward::{Error, Forwarder, read_framed, write_framed};
use crate::message::{Question, Via};
use crate::records::Records;

/// How long a TCP connection may be silent.
const IDLE: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 256;
/// Aliases followed for one answer.
const CHASES: usize = 8;

pub struct Server {
    records: Arc<RwLock<Records>>,
    forwarder: Forwarder,
    connections: Arc<Semaphore>,
    /// How many addresses are being served.
    serving: watch::Sender<usize>,
}

impl Server {
    pub fn new(records: Arc<RwLock<Records>>, forwarder: Forwarder) -> Self {
        Self {
            records,
            forwarder,
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            serving: watch::Sender::new(0),
        }
    }

    /// Returns once so many addresses are served.
    pub async fn serving(&self, addresses: usize) {
        let mut serving = self.serving.subscribe();
        if serving.wait_for(|count| *count >= addresses).await.is_err() {
            // The sender lives in `self`.
            std::future::pending::<()>().await;
        }
    }

    /// Serves one address as soon as this host has it.
    pub async fn serve(self: Arc<Self>, address: SocketAddr, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.wait() => {}
            () = async {
                let (socket, listener) = bind(address).await;
                tracing::info!(%address, "answering DNS queries");
                self.serving.send_modify(|count| *count += 1);
                tokio::join!(self.clone().serve_datagrams(socket), self.serve_streams(listener));
            } => {}
        }
    }

    async fn serve_datagrams(self: Arc<Self>, socket: UdpSocket) {
        let socket = Arc::new(socket);
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    // An earlier reply that could not be delivered is reported here.
                    tracing::debug!(%error, "cannot receive a query");
                    continue;
                }
            };
            match self.at_once(&buffer[..length], Via::Udp) {
                Step::Done(reply) => send(&socket, reply, from).await,
                Step::Ask(question) => {
                    let (server, socket, bytes) =
                        (self.clone(), socket.clone(), buffer[..length].to_vec());
                    tokio::spawn(task::contain("dns-query", async move {
                        send(&socket, server.ask(*question, &bytes).await, from).await;
                    }));
                }
            }
        }
    }

    async fn serve_streams(self: Arc<Self>, listener: TcpListener) {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let mut failures = 0;
        loop {
            let Ok(permit) = self.connections.clone().acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    failures = 0;
                    let server = self.clone();
                    tokio::spawn(task::contain("dns-connection", async move {
                        if let Err(error) = server.serve_stream(stream).await {
                            tracing::trace!(%error, "a DNS connection ended");
                        }
                        drop(permit);
                    }));
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a DNS connection");
                    tokio::time::sleep(backoff.delay(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    async fn serve_stream(&self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let bytes = tokio::time::timeout(IDLE, read_framed(&mut stream)).await??;
            let reply = match self.at_once(&bytes, Via::Tcp) {
                Step::Done(reply) => reply,
                Step::Ask(question) => self.ask(*question, &bytes).await,
            };
            let Some(reply) = reply else { return Ok(()) };
            tokio::time::timeout(IDLE, write_framed(&mut stream, &reply)).await??;
        }
    }

    fn look_up(&self, query: &Query) -> Answer {
        answer(
            query,
            &self.records.read().unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// What the records alone can answer.
    fn at_once(&self, bytes: &[u8], via: Via) -> Step {
        let question = match Question::parse(bytes, via) {
            Ok(question) => question,
            Err(reply) => return Step::Done(reply),
        };
        match self.look_up(&question.query) {
            Answer::Reply(reply) if reply.chase.is_none() => {
                Step::Done(question.reply(shuffled(reply)))
            }
            _ => Step::Ask(Box::new(question)),
        }
    }

    /// What others must be asked for.
    async fn ask(&self, question: Question, bytes: &[u8]) -> Option<Vec<u8>> {
        match self.look_up(&question.query) {
            Answer::Reply(reply) => {
                let reply = self.chase(&question.query, reply, question.via).await;
                question.reply(shuffled(reply))
            }
            Answer::Forward => match self.forwarder.ask(bytes, question.via).await {
                Ok(reply) => question.relay(reply),
                Err(Error::NoUpstream) => question.fail(ResponseCode::Refused),
                Err(error) => {
                    tracing::debug!(name = %question.query.name, %error, "a query stays unanswered");
                    question.fail(ResponseCode::ServFail)
                }
            },
        }
    }

    /// Adds the addresses of the name that an alias points to.
    async fn chase(&self, query: &Query, mut reply: Reply, via: Via) -> Reply {
        for _ in 0..CHASES {
            let Some(name) = reply.chase.take() else {
                break;
            };
            let next = Query::query(name, query.query_type);
            match self.look_up(&next) {
                Answer::Reply(found) => {
                    reply.answers.extend(found.answers);
                    reply.chase = found.chase;
                }
                Answer::Forward => reply.answers.extend(self.resolve(next, via).await),
            }
        }
        reply
    }

    async fn resolve(&self, query: Query, via: Via) -> Vec<hickory_proto::rr::Record> {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(query);
        let Ok(bytes) = message.to_vec() else {
            return Vec::new();
        };
        match self.forwarder.ask(&bytes, via).await {
            Ok(reply) => Message::from_vec(&reply)
                .map(|reply| reply.answers)
                .unwrap_or_default(),
            Err(error) => {
                tracing::debug!(%error, "cannot resolve the target of an alias");
                Vec::new()
            }
        }
    }
}

enum Step {
    Done(Option<Vec<u8>>),
    Ask(Box<Question>),
}

/// Clients take the first address, so each gets another first one. A chain of aliases keeps its order.
fn shuffled(mut reply: Reply) -> Reply {
    let only_addresses = reply
        .answers
        .iter()
        .all(|record| record.record_type().is_ip_addr());
    if only_addresses {
        reply.answers.shuffle(&mut rand::rng());
    }
    reply
}

async fn send(socket: &UdpSocket, reply: Option<Vec<u8>>, to: SocketAddr) {
    let Some(reply) = reply else { return };
    if let Err(error) = socket.send_to(&reply, to).await {
        tracing::debug!(%to, %error, "cannot send a DNS reply");
    }
}

/// Tries until the address is there: the pod network may still be coming up.
async fn bind(address: SocketAddr) -> (UdpSocket, TcpListener) {
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    let mut failures = 0;
    loop {
        match try_bind(address).await {
            Ok(sockets) => return sockets,
            Err(error) if failures == 10 => {
                tracing::warn!(%address, %error, "cannot listen for DNS queries yet")
            }
            Err(error) => tracing::debug!(%address, %error, "cannot listen for DNS queries yet"),
        }
        tokio::time::sleep(backoff.delay(failures)).await;
        failures += 1;
    }
}

async fn try_bind(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let socket = UdpSocket::bind(address).await?;
    // The same port for both, also where the port was left to the host.
    let listener = TcpListener::bind(socket.local_addr()?).await?;
    Ok((socket, listener))
}

//! Exec and attach by channels in a WebSocket: the channels become streams of SPDY for the runtime, because no runtime
//! speaks `v5.channel.k8s.io`, and so that `v4.channel.k8s.io` keeps the same rules.
//!
//! One task goes up (the client's input and the sizes of its window), one down (output and the status that ends it
//! all); neither waits for the other, so that a command that reads nothing can still be heard.

use super::stream::{Backend, Streams};
use super::{Answer, Failure};
use bytes::BytesMut;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sampan_net::relay::{ASK, finish};
use sampan_net::{channels, empty, spdy, websocket};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::Mutex;

/// The same without ends of channels.
const OLDER_PROTOCOL: &str = "v4.channel.k8s.io";
/// What the runtime is asked for.
const RUNTIME_PROTOCOL: &str = "v4.channel.k8s.io";
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;

/// How long the runtime may take to answer for streams whose client is gone.
const ANSWER: Duration = Duration::from_secs(30);

/// The protocol to speak with the client, if it is one of ours. The older one knows no end of a channel.
pub(super) fn wanted(headers: &HeaderMap) -> Option<&'static str> {
    if !websocket::is_websocket(headers) {
        return None;
    }
    let offered = websocket::offered_protocols(headers);
    let mut known = [channels::PROTOCOL, OLDER_PROTOCOL].into_iter();
    known.find(|known| offered.iter().any(|name| name == known))
}

/// The channels of a session and what the runtime calls them, in the order in which they are opened.
fn roles(streams: Streams) -> impl Iterator<Item = (u8, &'static str)> {
    let roles = [
        (true, STATUS, "error"),
        (streams.stdin, STDIN, "stdin"),
        (streams.stdout, STDOUT, "stdout"),
        (streams.stderr, STDERR, "stderr"),
        (streams.tty, RESIZE, "resize"),
    ];
    let wanted = roles.into_iter().filter(|(wanted, ..)| *wanted);
    wanted.map(|(_, channel, name)| (channel, name))
}

/// Asks the runtime for the streams, and joins the client's channels to them.
pub(super) async fn serve(
    backend: &Backend,
    mut request: Request<Incoming>,
    address: Uri,
    streams: Streams,
    protocol: &'static str,
) -> Answer {
    let accepted = websocket::accept(request.headers(), Some(protocol));
    let accepted = accepted.ok_or_else(|| {
        let problem = "the WebSocket handshake has no key";
        Failure::new(StatusCode::BAD_REQUEST, problem)
    })?;
    let mut onward = Request::new(empty());
    *onward.method_mut() = Method::POST;
    *onward.uri_mut() = address;
    let headers = onward.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(
        HeaderName::from_static("x-stream-protocol-version"),
        HeaderValue::from_static(RUNTIME_PROTOCOL),
    );
    let mut answer = backend.send(onward).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let problem = format!("the runtime refuses the streams: {}", answer.status());
        return Err(Failure::new(StatusCode::BAD_GATEWAY, problem));
    }
    tokio::spawn(sampan_util::task::contain("channels", async move {
        let client = hyper::upgrade::on(&mut request);
        let runtime = hyper::upgrade::on(&mut answer);
        let result = match futures_util::future::try_join(client, runtime).await {
            Ok((client, runtime)) => {
                let (mut client, runtime): (Wire, Wire) =
                    (TokioIo::new(client), TokioIo::new(runtime));
                if protocol == OLDER_PROTOCOL {
                    greet(&mut client, streams).await.ok();
                }
                translate(client, runtime, streams).await
            }
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a session broke");
        }
    }));
    Ok(accepted)
}

type Wire = TokioIo<Upgraded>;

/// Clients of the older protocol learn by an empty message on the first output that the session has begun.
async fn greet<C: AsyncWrite + Unpin>(client: &mut C, streams: Streams) -> io::Result<()> {
    let outputs = [(streams.stdout, STDOUT), (streams.stderr, STDERR)];
    let first = outputs.into_iter().find(|(wanted, _)| *wanted);
    let mut output = BytesMut::new();
    channels::data(
        &mut output,
        first.map_or(STATUS, |(_, channel)| channel),
        &[],
    );
    client.write_all(&output).await?;
    client.flush().await
}

/// Hands everything on until the command has ended or the client is gone.
async fn translate<C, R>(client: C, runtime: R, streams: Streams) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = split(client);
    let (from_runtime, mut to_runtime) = split(runtime);
    let mut encoder = spdy::Encoder::default();
    let mut output = BytesMut::new();
    let opened: Vec<(u8, u32)> = roles(streams)
        .map(|(channel, name)| {
            let headers = [("streamtype", name)];
            (channel, encoder.open(&mut output, &headers))
        })
        .collect();
    to_runtime.write_all(&output).await?;
    to_runtime.flush().await?;
    let ends = Ends {
        opened,
        to_client: Mutex::new(to_client),
        to_runtime: Mutex::new(to_runtime),
    };
    let mut client = channels::Reader::new(from_client);
    let mut runtime = FromRuntime {
        reader: spdy::Reader::new(from_runtime),
        answered: 0,
    };
    let ended = tokio::select! {
        ended = ends.up(&mut client) => Ended::ByClient(ended),
        complete = ends.down(&mut runtime) => match complete {
            Ok(complete) => Ended::ByRuntime { complete },
            // It was the client that could not be told.
            Err(error) => Ended::ByClient(Err(error)),
        },
    };
    let streams = ends.opened.len();
    let (to_client, to_runtime) = (ends.to_client.into_inner(), ends.to_runtime.into_inner());
    let runtime_rest = async {
        if matches!(ended, Ended::ByClient(_)) {
            runtime.wait_answers(streams).await;
            finish(to_runtime, runtime.reader.into_inner()).await;
        }
    };
    let client_rest = say_goodbye(&ended, to_client, client.into_inner());
    tokio::join!(runtime_rest, client_rest);
    match ended {
        Ended::ByClient(result) => result.map(|_| ()),
        Ended::ByRuntime { .. } => Ok(()),
    }
}

/// How a session came to its end.
enum Ended {
    /// The client said goodbye with this code, or is gone, or broke the rules.
    ByClient(io::Result<Option<u16>>),
    /// The runtime has said all; whether the command's status was among it.
    ByRuntime { complete: bool },
}

/// The last message to a client that can be told one.
async fn say_goodbye<C>(ended: &Ended, mut to: WriteHalf<C>, from: ReadHalf<C>)
where
    C: AsyncRead + AsyncWrite,
{
    let mut output = BytesMut::new();
    match ended {
        Ended::ByRuntime { complete } => channels::close(&mut output, *complete),
        Ended::ByClient(Ok(Some(code))) => channels::goodbye(&mut output, *code),
        Ended::ByClient(Ok(None)) => return,
        Ended::ByClient(Err(error)) => match websocket::violation(error) {
            Some(code) => channels::goodbye(&mut output, code),
            None => return,
        },
    }
    if to.write_all(&output).await.is_ok() {
        finish(to, from).await;
    }
}

/// What the runtime says, and for how many streams it has answered.
struct FromRuntime<R> {
    reader: spdy::Reader<ReadHalf<R>>,
    answered: usize,
}

impl<R: AsyncRead> FromRuntime<R> {
    async fn next(&mut self) -> io::Result<Option<spdy::Frame>> {
        let frame = self.reader.next().await?;
        let answers = |frame: &spdy::Frame| {
            matches!(
                frame,
                spdy::Frame::Opened { .. } | spdy::Frame::Reset { .. }
            )
        };
        self.answered += usize::from(frame.as_ref().is_some_and(answers));
        Ok(frame)
    }

    /// A runtime that cannot answer for a stream any more waits for ever to write to it, and the container with it.
    async fn wait_answers(&mut self, streams: usize) {
        let answers = async {
            while self.answered < streams {
                if !matches!(self.next().await, Ok(Some(_))) {
                    break;
                }
            }
        };
        if tokio::time::timeout(ANSWER, answers).await.is_err() {
            tracing::warn!("the runtime does not answer for the streams of a session");
        }
    }
}

/// What both directions write to.
struct Ends<C, R> {
    /// Channels and their streams.
    opened: Vec<(u8, u32)>,
    to_client: Mutex<WriteHalf<C>>,
    to_runtime: Mutex<WriteHalf<R>>,
}

impl<C, R> Ends<C, R>
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    /// The stream of a channel that the client may write to.
    fn input(&self, wanted: u8) -> Option<u32> {
        let inputs = self
            .opened
            .iter()
            .filter(|(c, _)| matches!(*c, STDIN | RESIZE));
        let mut inputs = inputs.filter(|(channel, _)| *channel == wanted);
        inputs.next().map(|(_, stream)| *stream)
    }

    /// The channel that shows what comes on a stream.
    fn output(&self, wanted: u32) -> Option<u8> {
        let mut opened = self.opened.iter().filter(|(_, stream)| *stream == wanted);
        opened.next().map(|(channel, _)| *channel)
    }

    /// Until the client says goodbye (with this code) or is gone.
    async fn up(&self, client: &mut channels::Reader<ReadHalf<C>>) -> io::Result<Option<u16>> {
        let mut output = BytesMut::new();
        while let Some(message) = client.next().await? {
            match message {
                channels::Message::Data { channel, content } => {
                    if let Some(stream) = self.input(channel) {
                        spdy::data(&mut output, stream, &content);
                    }
                }
                channels::Message::End { channel } => {
                    if let Some(stream) = self.input(channel) {
                        spdy::end(&mut output, stream);
                    }
                }
                channels::Message::Ping(content) => {
                    let mut answer = BytesMut::new();
                    channels::pong(&mut answer, &content);
                    let mut to_client = self.to_client.lock().await;
                    to_client.write_all(&answer).await?;
                    to_client.flush().await?;
                }
                channels::Message::Close(code) => return Ok(Some(code)),
            }
            if !output.is_empty() {
                self.give(&output).await?;
                output.clear();
            }
        }
        Ok(None)
    }

    /// Writes to the runtime. A command may take its input late or never, and meanwhile the client is not read, so
    /// that it is asked now and then whether it is still there: one that is gone makes the question fail.
    async fn give(&self, input: &[u8]) -> io::Result<()> {
        let write = async {
            let mut to_runtime = self.to_runtime.lock().await;
            // A command that ended takes no more; what is left to say comes from it.
            if to_runtime.write_all(input).await.is_err() {
                tracing::debug!("input came after the end");
            }
            to_runtime.flush().await.ok();
        };
        let ask = async {
            let mut question = BytesMut::new();
            channels::ping(&mut question);
            loop {
                tokio::time::sleep(ASK).await;
                // Output that is being written asks as well.
                if let Ok(mut to_client) = self.to_client.try_lock() {
                    to_client.write_all(&question).await?;
                    to_client.flush().await?;
                }
            }
        };
        tokio::select! {
            () = write => Ok(()),
            failed = ask => failed,
        }
    }

    /// Until the runtime has said all; whether the command's status was among it.
    async fn down(&self, runtime: &mut FromRuntime<R>) -> io::Result<bool> {
        let mut complete = false;
        loop {
            let frame = match runtime.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                // What was said before counts.
                Err(error) => {
                    tracing::debug!(%error, "the runtime broke a session off");
                    break;
                }
            };
            match frame {
                spdy::Frame::Data {
                    stream, content, ..
                } if !content.is_empty() => {
                    let Some(channel) = self.output(stream) else {
                        continue;
                    };
                    complete |= channel == STATUS;
                    let mut output = BytesMut::with_capacity(content.len() + 16);
                    channels::data(&mut output, channel, &content);
                    let mut to_client = self.to_client.lock().await;
                    to_client.write_all(&output).await?;
                    to_client.flush().await?;
                }
                // Who is busy with input has not lost the connection: that much the answer would say.
                spdy::Frame::Ping { frame } => {
                    if let Ok(mut to_runtime) = self.to_runtime.try_lock()
                        && to_runtime.write_all(&frame).await.is_ok()
                    {
                        to_runtime.flush().await.ok();
                    }
                }
                spdy::Frame::GoAway => break,
                spdy::Frame::Data { .. }
                | spdy::Frame::Opened { .. }
                | spdy::Frame::Reset { .. }
                | spdy::Frame::Other => {}
            }
        }
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sampan_net::relay::FAREWELL;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    const ALL: Streams = Streams {
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };

    fn masked(content: &[u8]) -> Vec<u8> {
        masked_as(0x82, content)
    }

    fn masked_as(first: u8, content: &[u8]) -> Vec<u8> {
        let mut frame = vec![first, 0x80 | content.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(content);
        frame
    }

    fn session(streams: Streams) -> (DuplexStream, DuplexStream) {
        let (client, ours) = duplex(65_536);
        let (theirs, runtime) = duplex(65_536);
        tokio::spawn(translate(ours, theirs, streams));
        (client, runtime)
    }

    async fn skip_openings(runtime: &mut spdy::Reader<ReadHalf<DuplexStream>>, count: usize) {
        for _ in 0..count {
            assert_eq!(runtime.next().await.unwrap(), Some(spdy::Frame::Other));
        }
    }

    #[test]
    fn the_newest_protocol_that_both_speak() {
        let asked = |protocols: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            let protocols = HeaderValue::from_str(protocols).unwrap();
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocols);
            wanted(&headers)
        };
        let both = "v4.channel.k8s.io, v5.channel.k8s.io";
        assert_eq!(asked(both), Some("v5.channel.k8s.io"));
        assert_eq!(asked("v4.channel.k8s.io"), Some("v4.channel.k8s.io"));
        assert_eq!(asked("v4.base64.channel.k8s.io"), None);
        assert_eq!(wanted(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn older_clients_are_greeted_on_their_first_output() {
        let errors = Streams {
            stdout: false,
            ..ALL
        };
        for (streams, channel) in [(ALL, STDOUT), (errors, STDERR)] {
            let mut output = Vec::new();
            greet(&mut output, streams).await.unwrap();
            assert_eq!(output, [0x82, 1, channel]);
        }
    }

    #[test]
    fn streams_of_a_session() {
        let names = |streams| roles(streams).map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names(ALL), ["error", "stdin", "stdout", "stderr"]);
        let terminal = Streams {
            stderr: false,
            tty: true,
            ..ALL
        };
        assert_eq!(names(terminal), ["error", "stdin", "stdout", "resize"]);
    }

    #[tokio::test]
    async fn input_ends_and_output_goes_on_until_the_status() {
        let (mut client, runtime) = session(ALL);
        let (from, mut to) = split(runtime);
        let mut from = spdy::Reader::new(from);
        client.write_all(&masked(b"\0typed")).await.unwrap();
        client.write_all(&masked(b"\xff\0")).await.unwrap();
        // Output is nothing that a client writes to.
        client.write_all(&masked(b"\x01no")).await.unwrap();
        skip_openings(&mut from, 4).await;
        for (content, last) in [(&b"typed"[..], false), (b"", true)] {
            let Some(spdy::Frame::Data {
                stream: 3,
                content: got,
                last: ended,
            }) = from.next().await.unwrap()
            else {
                panic!("no input");
            };
            assert_eq!((&*got, ended), (content, last));
        }
        let mut output = BytesMut::new();
        spdy::data(&mut output, 5, b"out");
        spdy::data(&mut output, 7, b"err");
        spdy::data(&mut output, 1, b"{}");
        to.write_all(&output).await.unwrap();
        to.shutdown().await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        let expected = b"\x82\x04\x01out\x82\x04\x02err\x82\x03\x03{}\x88\x02\x03\xe8";
        assert_eq!(got, expected);
    }

    #[tokio::test]
    async fn a_session_without_a_status_is_not_a_success() {
        let (mut client, runtime) = session(ALL);
        drop(runtime);
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(got != b"\x88\x02\x03\xe8", "{got:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_size_of_the_window_is_handed_on_and_a_client_that_leaves_ends_it() {
        let terminal = Streams {
            stderr: false,
            tty: true,
            ..ALL
        };
        let (mut client, runtime) = session(terminal);
        let (from, mut to) = split(runtime);
        let mut from = spdy::Reader::new(from);
        client
            .write_all(&masked(b"\x04{\"Width\":9}"))
            .await
            .unwrap();
        skip_openings(&mut from, 4).await;
        let Some(spdy::Frame::Data {
            stream: 7, content, ..
        }) = from.next().await.unwrap()
        else {
            panic!("no size");
        };
        assert_eq!(content, "{\"Width\":9}");
        drop(client);
        let left = tokio::time::timeout(Duration::from_secs(5), from.next()).await;
        assert!(left.is_err(), "it is not hung up on before it has answered");
        answer_streams(&mut to, 4).await;
        assert_eq!(from.next().await.unwrap(), None);
    }

    async fn answer_streams(to: &mut WriteHalf<DuplexStream>, count: u8) {
        for stream in 0..count {
            let reply = [0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2 * stream + 1];
            to.write_all(&reply).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_never_answers_is_given_up() {
        let (client, runtime) = session(ALL);
        drop(client);
        let mut from = spdy::Reader::new(split(runtime).0);
        skip_openings(&mut from, 4).await;
        let given_up = tokio::time::timeout(ANSWER * 2, from.next()).await;
        assert_eq!(given_up.unwrap().unwrap(), None);
    }

    #[tokio::test]
    async fn a_goodbye_is_answered_and_what_came_before_it_is_handed_on() {
        for (goodbye, code) in [
            (masked_as(0x88, &[3, 233]), [3, 233]),
            // Not allowed: a ping in parts, bits of an extension, a kind that does not exist.
            (masked_as(0x09, b""), [3, 234]),
            (masked_as(0xc2, b"\0x"), [3, 234]),
            (masked_as(0x8b, b""), [3, 234]),
            (vec![0x82, 2, 0, 0], [3, 234]),
        ] {
            let (mut client, runtime) = session(ALL);
            let (from, mut to) = split(runtime);
            let mut from = spdy::Reader::new(from);
            answer_streams(&mut to, 4).await;
            // The beginning of a message whose end never comes.
            client.write_all(&masked_as(0x02, b"\0half")).await.unwrap();
            client.write_all(&goodbye).await.unwrap();
            let mut answer = [0; 4];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, [0x88, 2, code[0], code[1]]);
            skip_openings(&mut from, 4).await;
            let Some(spdy::Frame::Data {
                stream: 3, content, ..
            }) = from.next().await.unwrap()
            else {
                panic!("no input");
            };
            assert_eq!(content, "half");
            assert_eq!(from.next().await.unwrap(), None);
            drop(to);
            assert_eq!(client.read(&mut answer).await.unwrap(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn input_that_nobody_takes_does_not_keep_a_client_that_is_gone() {
        let (mut client, ours) = duplex(1024);
        let (theirs, runtime) = duplex(1024);
        let session = tokio::spawn(translate(ours, theirs, ALL));
        let (from, mut to) = split(runtime);
        answer_streams(&mut to, 4).await;
        let typed = [b"\0".as_slice(), &[b'x'; 100]].concat();
        let stuck = async {
            loop {
                client.write_all(&masked(&typed)).await.unwrap();
            }
        };
        let full = tokio::time::timeout(ASK * 3, stuck).await;
        assert!(full.is_err(), "nobody takes it");
        assert!(!session.is_finished(), "a client that is there may wait");
        // Three questions were asked.
        let mut asked = [0; 6];
        client.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, [0x89, 0, 0x89, 0, 0x89, 0]);
        drop(client);
        // The next question fails, then the runtime is told and given time to close.
        let ended = tokio::time::timeout(ASK + FAREWELL * 2, session).await;
        ended.unwrap().unwrap().unwrap_err();
        drop((from, to));
    }
}

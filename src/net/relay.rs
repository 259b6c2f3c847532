//! Joining two byte streams.

use std::io;
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
    copy_bidirectional_with_sizes, split,
};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::spdy::{QUESTION, Tally};

/// Large enough for a TLS record; two of these live as long as the stream.
const BUFFER: usize = 16 * 1024;
/// How long a side may take to hang up once all is said.
pub const FAREWELL: Duration = Duration::from_secs(5);
/// How often a client is asked whether it is there while its input is not taken.
pub const ASK: Duration = Duration::from_secs(5);
/// How long a server may take to answer for streams whose client is gone.
const ANSWER: Duration = Duration::from_secs(30);

/// Copies both ways until both sides have ended, or one has failed. Who closed how is of no
/// interest to a relay, so there is no result.
pub async fn relay<A, B>(mut left: A, mut right: B)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = copy_bidirectional_with_sizes(&mut left, &mut right, BUFFER, BUFFER).await {
        tracing::debug!(%error, "a relayed stream broke");
    }
}

/// Joins a client and a server of SPDY. A client that is gone ends it all: it can neither be told nor asked anything.
///
/// The server is hung up on only when it has answered for each stream that was asked for: one that cannot answer any
/// more may wait for ever to write to it.
pub async fn relay_spdy<A, B>(client: A, server: B)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (mut from_client, to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let mut asked = Tally::default();
    let client_end = Mutex::new(Told {
        to: to_client,
        tally: Tally::default(),
    });
    let server_ended = tokio::select! {
        () = up(&mut from_client, &mut to_server, &mut asked, &client_end) => false,
        ended = down(&mut from_server, &client_end) => ended.is_ok(),
    };
    let mut told = client_end.into_inner();
    if server_ended {
        finish(told.to, from_client).await;
        return;
    }
    let answers = async {
        let mut buffer = vec![0; BUFFER];
        while told.tally.answered < asked.asked {
            match from_server.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => told.tally.pass(&buffer[..count]),
            }
        }
    };
    if timeout(ANSWER, answers).await.is_err() {
        tracing::warn!("a server of streams does not answer for them");
    }
    finish(to_server, from_server).await;
}

/// The client's end, and what was told to it.
struct Told<T> {
    to: WriteHalf<T>,
    tally: Tally,
}

impl<T: AsyncRead + AsyncWrite> Told<T> {
    async fn tell(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tally.pass(bytes);
        self.to.write_all(bytes).await?;
        self.to.flush().await
    }
}

/// Hands on what the client says until it is gone.
///
/// A server may take input late or never, and meanwhile the client is not read, so that it is asked now and then
/// whether it is still there: one that is gone makes the question fail.
async fn up<A, B>(
    from: &mut ReadHalf<A>,
    to: &mut WriteHalf<B>,
    asked: &mut Tally,
    client: &Mutex<Told<A>>,
) where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        asked.pass(&buffer[..count]);
        let write = async {
            to.write_all(&buffer[..count]).await?;
            to.flush().await
        };
        tokio::select! {
            written = write => if written.is_err() {
                // A server that takes no more may still have something to say.
                return std::future::pending().await;
            },
            _gone = ask(client) => return,
        }
    }
}

/// Asks a client whether it is there, until that fails.
async fn ask<T: AsyncRead + AsyncWrite>(client: &Mutex<Told<T>>) -> io::Result<()> {
    loop {
        sleep(ASK).await;
        // What is being written asks as well.
        if let Ok(mut told) = client.try_lock()
            && told.tally.is_between_frames()
        {
            told.tell(&QUESTION).await?;
        }
    }
}

/// Hands on what the server says until it has said all; an error if the client cannot be told.
async fn down<A, B>(from: &mut ReadHalf<B>, client: &Mutex<Told<A>>) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(count) => client.lock().await.tell(&buffer[..count]).await?,
        }
    }
}

/// Hangs up without taking away what the other side has not read yet, which to close a connection with input unread
/// would do.
pub async fn finish<T>(mut to: WriteHalf<T>, mut from: ReadHalf<T>)
where
    T: AsyncRead + AsyncWrite,
{
    let rest = async {
        to.shutdown().await?;
        let mut buffer = vec![0; BUFFER];
        while from.read(&mut buffer).await? > 0 {}
        io::Result::Ok(())
    };
    let _in_time = timeout(FAREWELL, rest).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::BytesMut;
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::spdy;

    const REPLY: [u8; 12] = [0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1];

    fn joined() -> (DuplexStream, DuplexStream) {
        let (client, ours) = duplex(4096);
        let (theirs, server) = duplex(4096);
        tokio::spawn(relay_spdy(ours, theirs));
        (client, server)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_hung_up_on_when_it_has_answered() {
        let (mut client, mut server) = joined();
        let mut asked = BytesMut::new();
        let mut encoder = spdy::Encoder::default();
        encoder.open(&mut asked, &[("streamtype", "error")]);
        encoder.open(&mut asked, &[("streamtype", "stdout")]);
        client.write_all(&asked).await.unwrap();
        drop(client);
        let mut got = vec![0; asked.len()];
        server.read_exact(&mut got).await.unwrap();
        assert_eq!(got, asked);
        for _ in 0..2 {
            let open = timeout(Duration::from_secs(10), server.read_u8()).await;
            assert!(open.is_err(), "it is not hung up on before it has answered");
            server.write_all(&REPLY).await.unwrap();
        }
        assert_eq!(server.read(&mut got).await.unwrap(), 0, "and then it is");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_is_given_up() {
        let (mut client, mut server) = joined();
        let mut asked = BytesMut::new();
        spdy::Encoder::default().open(&mut asked, &[]);
        client.write_all(&asked).await.unwrap();
        drop(client);
        let mut got = Vec::new();
        let ended = timeout(ANSWER * 2, server.read_to_end(&mut got)).await;
        ended.unwrap().unwrap();
        assert_eq!(got, asked);
    }

    #[tokio::test(start_paused = true)]
    async fn input_that_nobody_takes_does_not_keep_a_client_that_is_gone() {
        let (mut client, ours) = duplex(1024);
        let (theirs, server) = duplex(1024);
        let relay = tokio::spawn(relay_spdy(ours, theirs));
        let stuck = async { while client.write_all(&[0; 64]).await.is_ok() {} };
        let full = timeout(ASK * 2 + Duration::from_secs(5), stuck).await;
        assert!(full.is_err(), "nobody takes it");
        assert!(!relay.is_finished(), "a client that is there may wait");
        let mut asked = [0; 24];
        client.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, [QUESTION, QUESTION].concat()[..]);
        drop(client);
        timeout(ASK * 2, relay).await.unwrap().unwrap();
        drop(server);
    }

    #[tokio::test(start_paused = true)]
    async fn no_question_within_a_frame() {
        let (mut client, ours) = duplex(1024);
        let (theirs, mut server) = duplex(1024);
        tokio::spawn(relay_spdy(ours, theirs));
        let mut frame = BytesMut::new();
        spdy::data(&mut frame, 1, b"whole");
        server.write_all(&frame[..9]).await.unwrap();
        let stuck = async { while client.write_all(&[0; 64]).await.is_ok() {} };
        assert!(timeout(ASK * 2, stuck).await.is_err());
        server.write_all(&frame[9..]).await.unwrap();
        let mut got = vec![0; frame.len() + 12];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [&frame[..], &QUESTION].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_server_said_last_arrives() {
        let (mut client, mut server) = joined();
        client.write_all(b"unread").await.unwrap();
        server.write_all(b"the status").await.unwrap();
        drop(server);
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"the status");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_ends_it_while_the_server_goes_on_talking() {
        let (client, mut server) = joined();
        drop(client);
        // It ends by itself or by being cut off; what counts is that it ends.
        let talk = async {
            while server.write_all(&[0; 512]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), talk).await.unwrap();
    }
}

//! Joining two byte streams.

use std::io;
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
    copy_bidirectional_with_sizes, split,
};
use tokio::time::timeout;

use crate::spdy::Tally;

/// Large enough for a TLS record; two of these live as long as the stream.
const BUFFER: usize = 16 * 1024;
/// How long a side may take to hang up once all is said.
pub const FAREWELL: Duration = Duration::from_secs(5);
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
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let (mut asked, mut answered) = (Tally::default(), Tally::default());
    let client_ended = async {
        // A server that takes no more may still have something to say.
        if pass(&mut from_client, &mut to_server, &mut asked)
            .await
            .is_err()
        {
            std::future::pending().await
        }
    };
    let server_ended = tokio::select! {
        () = client_ended => false,
        ended = pass(&mut from_server, &mut to_client, &mut answered) => ended.is_ok(),
    };
    if server_ended {
        finish(to_client, from_client).await;
        return;
    }
    let answers = async {
        let mut buffer = vec![0; BUFFER];
        while answered.answered < asked.asked {
            match from_server.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => answered.pass(&buffer[..count]),
            }
        }
    };
    if timeout(ANSWER, answers).await.is_err() {
        tracing::warn!("a server of streams does not answer for them");
    }
    finish(to_server, from_server).await;
}

/// Copies one way; an error if it was not the reader that ended it.
async fn pass<R, W>(from: &mut R, to: &mut W, tally: &mut Tally) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(count) => count,
        };
        tally.pass(&buffer[..count]);
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
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

//! Joining two byte streams.

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};

/// Large enough for a TLS record; two of these live as long as the stream.
const BUFFER: usize = 16 * 1024;

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

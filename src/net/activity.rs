//! Which connections do nothing: a connection that no request uses for a while is ended, so that
//! forgotten or malicious ones do not take the places of others.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::watch;

use crate::io::{Body, BoxError};

/// How many requests a connection serves now.
#[derive(Clone)]
pub(crate) struct Activity(watch::Sender<usize>);

impl Activity {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn begin(&self) -> Running {
        self.0.send_modify(|count| *count += 1);
        Running(self.clone())
    }

    /// Returns when there was no request for so long.
    pub(crate) async fn idle(&self, limit: Duration) {
        let mut count = self.0.subscribe();
        loop {
            let Ok(now) = count.wait_for(|count| *count == 0).await else {
                return;
            };
            drop(now);
            tokio::select! {
                () = tokio::time::sleep(limit) => return,
                _ = count.changed() => {}
            }
        }
    }
}

pub(crate) struct Running(Activity);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// The response, whose body counts as activity until it has ended.
pub(crate) fn guarded(response: Response<Body>, running: Running) -> Response<Body> {
    if response.body().is_end_stream() {
        return response;
    }
    response.map(|body| {
        Guarded {
            body,
            _running: running,
        }
        .boxed_unsync()
    })
}

struct Guarded {
    body: Body,
    _running: Running,
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_time_without_requests_counts() {
        let activity = Activity::new();
        let limit = Duration::from_secs(90);
        let running = activity.begin();
        let idle = activity.idle(limit);
        tokio::pin!(idle);
        let second = Duration::from_secs(1);
        assert!(
            tokio::time::timeout(limit * 3, &mut idle).await.is_err(),
            "a request runs"
        );
        drop(running);
        assert!(
            tokio::time::timeout(limit - second, &mut idle)
                .await
                .is_err()
        );
        drop(activity.begin());
        assert!(
            tokio::time::timeout(limit - second, &mut idle)
                .await
                .is_err(),
            "it starts anew"
        );
        assert!(tokio::time::timeout(second * 2, &mut idle).await.is_ok());
    }
}

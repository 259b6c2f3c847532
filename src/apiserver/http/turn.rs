//! The turn of a request, held as long as anything of it runs.
//!
//! A write goes on when the front does not wait for it any more (`?timeout=`, a client that hangs up). If its turn were
//! free then, a client could have any number of writes running at a time.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

tokio::task_local! {
    /// Of the request that the current task works on.
    static TURN: Arc<OwnedSemaphorePermit>;
}

/// The future, with a turn that [`detach`] finds. Without one (what lasts long takes up none) it is the future alone.
pub(crate) async fn hold<F: Future>(permit: Option<OwnedSemaphorePermit>, future: F) -> F::Output {
    match permit {
        Some(permit) => TURN.scope(Arc::new(permit), future).await,
        None => future.await,
    }
}

/// The future for a task of its own: it keeps the turn that is held here until it has ended.
pub(crate) fn detach<F: Future>(future: F) -> impl Future<Output = F::Output> {
    // What does not come by way of the front has no turn.
    let turn = TURN.try_with(Arc::clone).ok();
    async move {
        let output = future.await;
        drop(turn);
        output
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    /// What a write does: it goes on in a task of its own.
    async fn write(end: oneshot::Receiver<()>) {
        let work = detach(async move {
            let _ended = end.await;
        });
        let _ended = tokio::spawn(work).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_waits_for_keeps_its_turn() {
        let turns = Arc::new(Semaphore::new(1));
        let (end, ended) = oneshot::channel();
        let permit = Arc::clone(&turns).try_acquire_owned().unwrap();
        let answer = hold(Some(permit), write(ended));
        let limit = Duration::from_millis(1);
        assert!(tokio::time::timeout(limit, answer).await.is_err());
        assert_eq!(turns.available_permits(), 0, "it still runs");
        end.send(()).unwrap();
        let _next = turns.acquire().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_detached_ends_with_its_turn() {
        let turns = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&turns).try_acquire_owned().unwrap();
        let answer = hold(Some(permit), std::future::pending::<()>());
        let limit = Duration::from_millis(1);
        assert!(tokio::time::timeout(limit, answer).await.is_err());
        assert_eq!(turns.available_permits(), 1);
        assert_eq!(hold(None, detach(async { 1 })).await, 1);
    }
}

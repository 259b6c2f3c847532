//! Tasks whose panics are seen, and loops that are started again when they fail.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{Backoff, Shutdown, part};

/// Spawns a task; a panic in it is logged with the task's name, and told to the [part](crate::part) that it is of.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<Option<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let inner = tokio::spawn(part::inherit(future));
    tokio::spawn(part::inherit(async move {
        match inner.await {
            Ok(output) => Some(output),
            Err(error) => {
                if error.is_panic() {
                    let text = panic_text(error.into_panic().as_ref());
                    tracing::error!(task = name, panic = text, "a task panicked");
                    part::tell_panic(name, &text);
                }
                None
            }
        }
    }))
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

/// The future; a panic in it is logged with the name and goes no further. For what concerns nobody but who asked for
/// it: one connection, one stream.
pub async fn contain<F: Future>(name: &'static str, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let poll = || future.as_mut().poll(cx);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Some),
            Err(_) => {
                tracing::error!(task = name, "a task panicked");
                std::task::Poll::Ready(None)
            }
        }
    })
    .await
}

/// How long a supervised task may take to end after shutdown was asked for.
pub const GRACE: Duration = Duration::from_secs(10);

/// Runs `make()` until shutdown, again and again: when it returns or panics it is started anew after
/// a back-off that forgets failures older than a minute. On shutdown it has [`GRACE`] to end by itself.
pub async fn supervise<M, F>(name: &'static str, shutdown: Shutdown, mut make: M)
where
    M: FnMut() -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    let mut failures = 0;
    while !shutdown.is_triggered() {
        let started = Instant::now();
        let mut running = tokio::spawn(make());
        tokio::select! {
            () = shutdown.wait() => {
                if tokio::time::timeout(GRACE, &mut running).await.is_err() {
                    running.abort();
                }
                return;
            }
            result = &mut running => match result {
                Ok(()) if shutdown.is_triggered() => return,
                Ok(()) => tracing::warn!(task = name, "stopped, starting it again"),
                Err(error) => tracing::error!(task = name, %error, "failed, starting it again"),
            },
        }
        if started.elapsed() > Duration::from_secs(60) {
            failures = 0;
        }
        let delay = backoff.delay(failures);
        failures += 1;
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_contained_panic_goes_no_further() {
        let panics = async {
            tokio::task::yield_now().await;
            panic!("a bug");
        };
        let task = tokio::spawn(contain("test", panics));
        assert_eq!(task.await.ok(), Some(None::<()>));
        assert_eq!(contain("test", async { 1 }).await, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_panics_is_started_again() {
        let shutdown = Shutdown::new();
        let starts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&starts);
        let ending = shutdown.clone();
        supervise("test", shutdown, move || {
            let starts = Arc::clone(&counted);
            let ending = ending.clone();
            async move {
                assert!(starts.fetch_add(1, Ordering::SeqCst) >= 2, "fails twice");
                ending.trigger();
            }
        })
        .await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }
}

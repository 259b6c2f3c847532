//! Certificates are renewed in the last quarter of their lives, while everything runs.

use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use sampan_util::clock::wall_clock_reaches;
use sampan_util::{Backoff, Shutdown};

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// However short a life is, a certificate made now is not due now.
const SHORTEST_REST: Duration = Duration::from_secs(1);

/// Makes a new certificate, puts it to use, and returns when that one is due.
pub type Renew = Box<dyn Fn() -> BoxFuture<'static, Result<SystemTime, String>> + Send + Sync>;

/// A certificate (or several that belong together) that is kept fresh.
pub struct Kept {
    pub name: &'static str,
    /// When it is due; the epoch: at once.
    pub due: SystemTime,
    pub renew: Renew,
}

/// Renews what is due, until shutdown. Follows the wall clock, also when that is set.
pub async fn keep(mut all: Vec<Kept>, shutdown: Shutdown) {
    let mut failures = 0;
    loop {
        let Some(next) = all.iter().map(|kept| kept.due).min() else {
            return;
        };
        let failed = tokio::select! {
            reached = wall_clock_reaches(next) => match reached {
                // A renewal may wait for long, for example for an answer that nobody listens to any more.
                Ok(()) => tokio::select! {
                    done = renew_due(&mut all) => !done,
                    () = shutdown.wait() => return,
                },
                Err(error) => {
                    tracing::error!(%error, "cannot wait for the day when certificates are due");
                    true
                }
            },
            () = shutdown.wait() => return,
        };
        if !failed {
            failures = 0;
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY.delay(failures)) => failures += 1,
            () = shutdown.wait() => return,
        }
    }
}

/// Whether all that were due could be renewed.
async fn renew_due(all: &mut [Kept]) -> bool {
    let mut done = true;
    for kept in all {
        let now = sampan_util::clock::plausible_now();
        if kept.due > now {
            continue;
        }
        match (kept.renew)().await {
            Ok(due) => {
                kept.due = due.max(now + SHORTEST_REST);
                tracing::info!(certificate = kept.name, "renewed");
            }
            Err(why) => {
                done = false;
                tracing::warn!(
                    certificate = kept.name,
                    why,
                    "cannot be renewed, trying again"
                );
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn a_renewal_that_waits_holds_up_no_shutdown() {
        let shutdown = Shutdown::new();
        let begun = shutdown.clone();
        let renew: Renew = Box::new(move || {
            begun.trigger();
            Box::pin(std::future::pending())
        });
        let kept = Kept {
            name: "test",
            due: SystemTime::UNIX_EPOCH,
            renew,
        };
        tokio::time::timeout(Duration::from_secs(30), keep(vec![kept], shutdown))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn what_is_due_is_renewed_and_failures_are_tried_again() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let shutdown = Shutdown::new();
        let done = shutdown.clone();
        let renew: Renew = Box::new(move || {
            let call = counted.fetch_add(1, Ordering::Relaxed);
            let done = done.clone();
            Box::pin(async move {
                match call {
                    0 => Err("not yet".to_owned()),
                    1 => Ok(SystemTime::UNIX_EPOCH),
                    _ => {
                        done.trigger();
                        Ok(SystemTime::now() + Duration::from_secs(3600))
                    }
                }
            })
        });
        let kept = Kept {
            name: "test",
            due: SystemTime::UNIX_EPOCH,
            renew,
        };
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, keep(vec![kept], shutdown))
            .await
            .unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    }
}

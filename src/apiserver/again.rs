//! What failed and is tried once more after a pause.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// The pause.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

pub(crate) struct Again<T> {
    items: BTreeSet<T>,
    /// Since the first of them failed; what comes meanwhile does not put it off.
    since: Instant,
}

impl<T: Ord> Again<T> {
    pub(crate) fn new() -> Self {
        Self {
            items: BTreeSet::new(),
            since: Instant::now(),
        }
    }

    pub(crate) fn add(&mut self, item: T) {
        if self.items.is_empty() {
            self.since = Instant::now();
        }
        self.items.insert(item);
    }

    /// Everything that failed, when its pause is over; never if there is nothing.
    pub(crate) async fn due(&mut self) -> BTreeSet<T> {
        if self.items.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(self.since + RETRY).await;
        std::mem::take(&mut self.items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_failed_comes_again_once_after_the_pause() {
        tokio::time::pause();
        let mut again = Again::new();
        assert!(tokio::time::timeout(RETRY * 9, again.due()).await.is_err());
        again.add("a");
        // Something else wakes the loop meanwhile.
        assert!(tokio::time::timeout(RETRY / 2, again.due()).await.is_err());
        again.add("b");
        let since = Instant::now();
        assert_eq!(again.due().await, BTreeSet::from(["a", "b"]));
        assert!(since.elapsed() < RETRY, "the first one's pause counts");
        assert!(tokio::time::timeout(RETRY * 9, again.due()).await.is_err());
    }
}

//! Wall-clock time as an argument that tests can set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Real by default; a manual clock stands still until it is advanced.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    pub fn system() -> Self {
        Self(None)
    }

    pub fn manual(start: SystemTime) -> Self {
        let since = start.duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Self(Some(Arc::new(AtomicU64::new(millis))))
    }

    pub fn now(&self) -> SystemTime {
        match &self.0 {
            None => SystemTime::now(),
            Some(millis) => UNIX_EPOCH + Duration::from_millis(millis.load(Ordering::Relaxed)),
        }
    }

    /// Moves a manual clock on; the system clock ignores it.
    pub fn advance(&self, by: Duration) {
        if let Some(millis) = &self.0 {
            let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
            millis.fetch_add(by, Ordering::Relaxed);
        }
    }
}

/// No copy of this program ran before (June 2026).
const FIRST_RELEASE: Duration = Duration::from_secs(1_780_272_000);

/// The time, unless it cannot be: boards without a clock of their own start in 1970, and what they
/// sign then (certificates above all) must still be valid when the network has told them the time.
pub fn plausible_now() -> SystemTime {
    SystemTime::now().max(UNIX_EPOCH + FIRST_RELEASE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Clock::manual(UNIX_EPOCH + Duration::from_secs(100));
        let copy = clock.clone();
        clock.advance(Duration::from_secs(5));
        assert_eq!(copy.now(), UNIX_EPOCH + Duration::from_secs(105));
    }
}

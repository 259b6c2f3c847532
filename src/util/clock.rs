//! Wall-clock time as an argument that tests can set.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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

/// Returns when the wall clock shows `deadline`, or when somebody has set the clock: whoever waits for a date looks
/// again then.
pub async fn wall_clock_reaches(deadline: SystemTime) -> io::Result<()> {
    let since = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
    // All zero would switch the timer off.
    let nanos = i64::from(since.subsec_nanos()).max(1);
    let timer = timerfd_create(
        TimerfdClockId::Realtime,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    let at = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec {
            tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: nanos,
        },
    };
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    timerfd_settime(&timer, flags, &at)?;
    // SAFETY: the descriptor is owned by the registration and closed after it.
    let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
    loop {
        let mut guard = timer.readable().await?;
        match rustix::io::read(&timer, &mut [0_u8; 8]) {
            Ok(_) | Err(Errno::CANCELED) => return Ok(()),
            Err(Errno::AGAIN) => guard.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn dates_are_waited_for() {
        let started = std::time::Instant::now();
        wall_clock_reaches(SystemTime::now() + Duration::from_millis(50))
            .await
            .unwrap();
        assert!(started.elapsed() >= Duration::from_millis(40));
        wall_clock_reaches(UNIX_EPOCH).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Clock::manual(UNIX_EPOCH + Duration::from_secs(100));
        let copy = clock.clone();
        clock.advance(Duration::from_secs(5));
        assert_eq!(copy.now(), UNIX_EPOCH + Duration::from_secs(105));
    }
}

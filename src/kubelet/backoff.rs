//! Exponential back-off per key, as pure state: time is an argument.
//!
//! The rules are those of upstream's `flowcontrol.Backoff`: the first failure waits nothing but
//! arms the delay, each further one doubles it, and a quiet time of twice the maximum resets it.

use jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;

pub const INITIAL: SignedDuration = SignedDuration::from_secs(10);
pub const MAXIMUM: SignedDuration = SignedDuration::from_secs(300);

#[derive(Debug, Clone, Copy)]
struct Entry {
    delay: SignedDuration,
    updated_at: Timestamp,
}

impl Entry {
    fn is_stale(&self, at: Timestamp) -> bool {
        at.duration_since(self.updated_at) > MAXIMUM * 2
    }
}

#[derive(Debug, Clone, Default)]
pub struct Backoff(HashMap<String, Entry>);

impl Backoff {
    /// When the key may be tried again, counted from `since`; `None` if it may be tried now.
    pub fn until(&self, key: &str, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let entry = self.0.get(key).filter(|e| !e.is_stale(since))?;
        let until = since + entry.delay;
        (now < until).then_some(until)
    }

    /// Records a failure that happened at `at`, noticed `now`.
    pub fn advance(&mut self, key: &str, at: Timestamp, now: Timestamp) {
        let delay = match self.0.get(key).filter(|e| !e.is_stale(at)) {
            Some(entry) => (entry.delay * 2).min(MAXIMUM),
            None => INITIAL,
        };
        let entry = Entry {
            delay,
            updated_at: now,
        };
        self.0.insert(key.to_owned(), entry);
    }

    pub fn delay(&self, key: &str) -> SignedDuration {
        self.0.get(key).map_or(SignedDuration::ZERO, |e| e.delay)
    }

    pub fn forget(&mut self, key: &str) {
        self.0.remove(key);
    }
}

/// A duration as Go prints it: `10s`, `1m20s`, `5m0s`.
pub fn go_duration(duration: SignedDuration) -> String {
    let millis = duration.as_millis();
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let seconds = (millis % 60_000) as f64 / 1000.0;
    match (hours, minutes) {
        (0, 0) if millis < 1000 => format!("{millis}ms"),
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    #[test]
    fn first_restart_is_immediate_then_doubles_to_the_maximum() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.until("c", at(0), at(0)), None);
        backoff.advance("c", at(0), at(0));
        assert_eq!(backoff.until("c", at(1), at(2)), Some(at(11)));
        assert_eq!(backoff.until("c", at(1), at(11)), None);
        backoff.advance("c", at(1), at(11));
        assert_eq!(backoff.until("c", at(12), at(12)), Some(at(32)));
        for _ in 0..10 {
            backoff.advance("c", at(40), at(40));
        }
        assert_eq!(backoff.delay("c"), MAXIMUM);
    }

    #[test]
    fn ten_quiet_minutes_reset() {
        let mut backoff = Backoff::default();
        backoff.advance("c", at(0), at(0));
        backoff.advance("c", at(0), at(0));
        assert_eq!(backoff.until("c", at(601), at(601)), None);
        backoff.advance("c", at(601), at(601));
        assert_eq!(backoff.delay("c"), INITIAL);
    }

    #[test]
    fn durations_print_like_go() {
        assert_eq!(go_duration(SignedDuration::from_secs(10)), "10s");
        assert_eq!(go_duration(SignedDuration::from_secs(80)), "1m20s");
        assert_eq!(go_duration(SignedDuration::from_secs(300)), "5m0s");
        assert_eq!(go_duration(SignedDuration::from_millis(250)), "250ms");
        assert_eq!(go_duration(SignedDuration::from_millis(1250)), "1.25s");
    }
}

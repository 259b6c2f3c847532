//! Growing delays after failures.

use std::time::Duration;

use rand::Rng;

/// Doubles from `min` to `max`; each delay is spread by up to a tenth so that many who fail
/// together do not return together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
}

impl Backoff {
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    /// The delay after `failures` earlier failures in a row, without spread.
    pub fn base(&self, failures: u32) -> Duration {
        let factor = 2u32.checked_pow(failures).unwrap_or(u32::MAX);
        self.min.saturating_mul(factor).min(self.max)
    }

    pub fn delay(&self, failures: u32) -> Duration {
        let base = self.base(failures);
        base.mul_f64(1.0 + rand::rng().random_range(0.0..0.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        assert_eq!(backoff.base(0), Duration::from_millis(100));
        assert_eq!(backoff.base(3), Duration::from_millis(800));
        assert_eq!(backoff.base(40), Duration::from_secs(5));
        assert!(backoff.delay(0) < Duration::from_millis(110));
    }
}

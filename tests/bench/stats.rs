//! Percentiles of durations.

use std::time::Duration;

pub(crate) struct Durations(Vec<Duration>);

impl Durations {
    pub(crate) fn new(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self(all)
    }

    pub(crate) fn percentile(&self, share: f64) -> Duration {
        if self.0.is_empty() {
            return Duration::ZERO;
        }
        let last = self.0.len() - 1;
        let index = (share * last as f64).round() as usize;
        self.0[index.min(last)]
    }

    /// `p50 0.31 p99 0.88 max 2.10 ms (500)`
    pub(crate) fn line(&self) -> String {
        let ms = |share| self.percentile(share).as_secs_f64() * 1e3;
        format!(
            "p50 {:.2} p99 {:.2} max {:.2} ms ({})",
            ms(0.5),
            ms(0.99),
            ms(1.0),
            self.0.len()
        )
    }
}

//! Counters of every controller, in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub struct Metrics(Mutex<BTreeMap<&'static str, Counters>>);

#[derive(Default)]
struct Counters {
    results: BTreeMap<&'static str, u64>,
    seconds: f64,
    depth: usize,
}

impl Metrics {
    pub(crate) fn reconciled(&self, name: &'static str, result: &'static str, took: Duration) {
        self.with(name, |counters| {
            *counters.results.entry(result).or_default() += 1;
            counters.seconds += took.as_secs_f64();
        });
    }

    pub(crate) fn depth(&self, name: &'static str, depth: usize) {
        self.with(name, |counters| counters.depth = depth);
    }

    fn with(&self, name: &'static str, change: impl FnOnce(&mut Counters)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(name).or_default());
    }

    /// The exposition that `/metrics` adds to its own.
    pub fn render(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        let mut line = |name: &str, labels: &str, value: &dyn std::fmt::Display| {
            // Writing to a String cannot fail.
            writeln!(text, "{name}{{{labels}}} {value}").unwrap_or_default();
        };
        for (name, counters) in all.iter() {
            let total: u64 = counters.results.values().sum();
            for (result, count) in &counters.results {
                let labels = format!("controller=\"{name}\",result=\"{result}\"");
                line("controller_runtime_reconcile_total", &labels, count);
            }
            let labels = format!("name=\"{name}\"");
            line("workqueue_depth", &labels, &counters.depth);
            line(
                "workqueue_work_duration_seconds_sum",
                &labels,
                &counters.seconds,
            );
            line("workqueue_work_duration_seconds_count", &labels, &total);
        }
        text
    }
}

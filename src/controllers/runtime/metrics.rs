//! Figures of every controller's queue and work under upstream's names, in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sampan_client::Figures;

/// Cheap to clone; outlives a restart of the controllers.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<&'static str, Counters>>>);

type Source = Box<dyn Fn() -> Figures + Send>;

#[derive(Default)]
struct Counters {
    results: BTreeMap<&'static str, u64>,
    worked: Duration,
    /// When the work under way began.
    running: Vec<Instant>,
    /// The queue's own figures.
    queue: Option<Source>,
}

/// A family: its name, type, help, and its value of one controller.
struct Family(
    &'static str,
    &'static str,
    &'static str,
    fn(&Counters, &Figures) -> f64,
);

#[allow(clippy::cast_precision_loss)]
const FAMILIES: &[Family] = &[
    Family(
        "workqueue_adds_total",
        "counter",
        "Total number of adds handled by workqueue",
        |_, queue| queue.adds as f64,
    ),
    Family(
        "workqueue_depth",
        "gauge",
        "Current depth of workqueue",
        |_, queue| queue.depth as f64,
    ),
    Family(
        "workqueue_longest_running_processor_seconds",
        "gauge",
        "How many seconds has the longest running processor for workqueue been running.",
        |counters, _| counters.ages().fold(0.0, f64::max),
    ),
    Family(
        "workqueue_queue_duration_seconds_count",
        "counter",
        "How many items were handed out.",
        |_, queue| queue.handed_out as f64,
    ),
    Family(
        "workqueue_queue_duration_seconds_sum",
        "counter",
        "How long in seconds an item stays in workqueue before being requested.",
        |_, queue| queue.waited.as_secs_f64(),
    ),
    Family(
        "workqueue_retries_total",
        "counter",
        "Total number of retries handled by workqueue",
        |_, queue| queue.retries as f64,
    ),
    Family(
        "workqueue_unfinished_work_seconds",
        "gauge",
        "How many seconds of work has been done that is in progress and hasn't been observed by work_duration.",
        |counters, _| counters.ages().fold(0.0, std::ops::Add::add),
    ),
    Family(
        "workqueue_work_duration_seconds_count",
        "counter",
        "How many items were processed.",
        |counters, _| counters.results.values().sum::<u64>() as f64,
    ),
    Family(
        "workqueue_work_duration_seconds_sum",
        "counter",
        "How long in seconds processing an item from workqueue takes.",
        |counters, _| counters.worked.as_secs_f64(),
    ),
];

const RECONCILES: &str = "controller_runtime_reconcile_total";

impl Counters {
    fn ages(&self) -> impl Iterator<Item = f64> {
        self.running
            .iter()
            .map(|since| since.elapsed().as_secs_f64())
    }
}

impl Metrics {
    /// Where the queue's figures come from; a controller that starts again brings a new queue.
    pub(crate) fn follow(&self, name: &'static str, queue: impl Fn() -> Figures + Send + 'static) {
        let mut all = self.all();
        let counters = all.entry(name).or_default();
        counters.queue = Some(Box::new(queue));
        counters.running.clear();
    }

    pub(crate) fn begun(&self, name: &'static str, at: Instant) {
        self.all().entry(name).or_default().running.push(at);
    }

    pub(crate) fn reconciled(&self, name: &'static str, result: &'static str, begun: Instant) {
        let mut all = self.all();
        let counters = all.entry(name).or_default();
        *counters.results.entry(result).or_default() += 1;
        counters.worked += begun.elapsed();
        if let Some(index) = counters.running.iter().position(|at| *at == begun) {
            counters.running.swap_remove(index);
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<&'static str, Counters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exposition that `/metrics` adds to its own.
    pub fn render(&self) -> String {
        let all = self.all();
        let figures: Vec<(&&str, &Counters, Figures)> = all
            .iter()
            .map(|(name, counters)| {
                let figures = counters.queue.as_ref().map(|queue| queue());
                (name, counters, figures.unwrap_or_default())
            })
            .collect();
        let mut text = String::new();
        for Family(family, kind, help, value) in FAMILIES {
            head(&mut text, family, kind, help);
            for (name, counters, queue) in &figures {
                let labels = format!("name=\"{name}\"");
                line(&mut text, family, &labels, value(counters, queue));
            }
        }
        head(
            &mut text,
            RECONCILES,
            "counter",
            "Total number of reconciliations per controller",
        );
        for (name, counters, _) in &figures {
            for (result, count) in &counters.results {
                let labels = format!("controller=\"{name}\",result=\"{result}\"");
                line(&mut text, RECONCILES, &labels, count);
            }
        }
        text
    }
}

fn head(text: &mut String, family: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    writeln!(text, "# HELP {family} {help}\n# TYPE {family} {kind}").unwrap_or_default();
}

fn line(text: &mut String, family: &str, labels: &str, value: impl Display) {
    writeln!(text, "{family}{{{labels}}} {value}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_upstreams_names() {
        let metrics = Metrics::default();
        metrics.follow("deployment-controller", || Figures {
            adds: 3,
            depth: 1,
            ..Figures::default()
        });
        let begun = Instant::now();
        metrics.begun("deployment-controller", begun);
        metrics.reconciled("deployment-controller", "success", begun);
        let text = metrics.render();
        for line in [
            "workqueue_adds_total{name=\"deployment-controller\"} 3",
            "workqueue_depth{name=\"deployment-controller\"} 1",
            "workqueue_work_duration_seconds_count{name=\"deployment-controller\"} 1",
            "workqueue_unfinished_work_seconds{name=\"deployment-controller\"} 0",
            "controller_runtime_reconcile_total{controller=\"deployment-controller\",result=\"success\"} 1",
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
    }
}

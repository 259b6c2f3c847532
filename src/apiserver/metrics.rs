//! Metrics of the API server, under upstream's names, in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Upper bounds, in seconds, of `apiserver_request_duration_seconds`.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// What a request is counted under.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestLabels {
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: &'static str,
    pub dry_run: bool,
}

#[derive(Default)]
struct Series {
    by_code: BTreeMap<u16, u64>,
    buckets: [u64; 23],
    count: u64,
    seconds: f64,
}

/// A source of further lines: other parts of the process have metrics of their own.
pub type Extra = Arc<dyn Fn(&mut String) + Send + Sync>;

#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<RequestLabels, Series>>,
    running_read_only: AtomicI64,
    running_mutating: AtomicI64,
    long_running: AtomicI64,
    panics: AtomicI64,
    extra: Mutex<Vec<Extra>>,
}

/// Counts a running request until it is dropped.
pub struct Running<'a>(&'a AtomicI64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub fn observe(&self, labels: RequestLabels, code: u16, took: Duration, long_running: bool) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let series = requests.entry(labels).or_default();
        *series.by_code.entry(code).or_default() += 1;
        if long_running {
            return;
        }
        let seconds = took.as_secs_f64();
        series.count += 1;
        series.seconds += seconds;
        if let Some(index) = BUCKETS.iter().position(|bound| seconds <= *bound) {
            series.buckets[index] += 1;
        }
    }

    pub fn start(&self, read_only: bool, long_running: bool) -> Running<'_> {
        let gauge = match (long_running, read_only) {
            (true, _) => &self.long_running,
            (false, true) => &self.running_read_only,
            (false, false) => &self.running_mutating,
        };
        gauge.fetch_add(1, Ordering::Relaxed);
        Running(gauge)
    }

    pub fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    pub fn add_extra(&self, extra: Extra) {
        self.extra
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(extra);
    }

    pub fn render(&self) -> String {
        let mut out = String::with_capacity(64 * 1024);
        // Writing to a string cannot fail.
        self.render_requests(&mut out).unwrap_or_default();
        self.render_gauges(&mut out).unwrap_or_default();
        render_process(&mut out).unwrap_or_default();
        let extra = self
            .extra
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for source in extra {
            source(&mut out);
        }
        out
    }

    fn render_requests(&self, out: &mut String) -> std::fmt::Result {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        out.push_str("# HELP apiserver_request_total [STABLE] Requests by verb, resource and HTTP response code.\n# TYPE apiserver_request_total counter\n");
        for (labels, series) in requests.iter() {
            for (code, count) in &series.by_code {
                writeln!(
                    out,
                    "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"{}\",{}}} {count}",
                    if labels.dry_run { "All" } else { "" },
                    labels.render()
                )?;
            }
        }
        out.push_str("# HELP apiserver_request_duration_seconds [STABLE] Response latency by verb and resource.\n# TYPE apiserver_request_duration_seconds histogram\n");
        for (labels, series) in requests.iter().filter(|(_, series)| series.count > 0) {
            let labels = format!("component=\"apiserver\",{}", labels.render());
            let mut total = 0;
            for (bound, count) in BUCKETS.iter().zip(series.buckets) {
                total += count;
                writeln!(
                    out,
                    "apiserver_request_duration_seconds_bucket{{{labels},le=\"{bound}\"}} {total}"
                )?;
            }
            let name = "apiserver_request_duration_seconds";
            writeln!(
                out,
                "{name}_bucket{{{labels},le=\"+Inf\"}} {}",
                series.count
            )?;
            writeln!(out, "{name}_sum{{{labels}}} {}", series.seconds)?;
            writeln!(out, "{name}_count{{{labels}}} {}", series.count)?;
        }
        Ok(())
    }

    fn render_gauges(&self, out: &mut String) -> std::fmt::Result {
        let read = |gauge: &AtomicI64| gauge.load(Ordering::Relaxed);
        out.push_str("# HELP apiserver_current_inflight_requests [STABLE] Requests being answered now.\n# TYPE apiserver_current_inflight_requests gauge\n");
        for (kind, gauge) in [
            ("readOnly", &self.running_read_only),
            ("mutating", &self.running_mutating),
        ] {
            writeln!(
                out,
                "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {}",
                read(gauge)
            )?;
        }
        out.push_str("# HELP apiserver_longrunning_requests [STABLE] Watches and streams that are open.\n# TYPE apiserver_longrunning_requests gauge\n");
        writeln!(
            out,
            "apiserver_longrunning_requests {}",
            read(&self.long_running)
        )?;
        out.push_str("# HELP sampan_events_dropped_total Events that were not written because too many waited.\n# TYPE sampan_events_dropped_total counter\n");
        writeln!(
            out,
            "sampan_events_dropped_total {}",
            sampan_client::recorder::dropped()
        )?;
        out.push_str("# HELP apiserver_request_panics_total Requests that ended in a bug of the server.\n# TYPE apiserver_request_panics_total counter\n");
        writeln!(out, "apiserver_request_panics_total {}", read(&self.panics))
    }
}

impl RequestLabels {
    fn render(&self) -> String {
        format!(
            "group=\"{}\",resource=\"{}\",scope=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
            self.group, self.resource, self.scope, self.subresource, self.verb, self.version
        )
    }
}

/// What every Prometheus client library reports of its process.
fn render_process(out: &mut String) -> std::fmt::Result {
    let mut gauge = |name: &str, kind: &str, help: &str, value: f64| {
        writeln!(
            out,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
        )
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the parenthesised name: state is field 3, utime 14, stime 15, starttime 22, rss 24.
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| {
            rest.split_whitespace()
                .map(|field| field.parse().unwrap_or_default())
                .collect()
        })
        .unwrap_or_default();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
    const TICKS: f64 = 100.0;
    const PAGE: f64 = 4096.0;
    let uptime = std::fs::read_to_string("/proc/uptime")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<f64>().ok())
        .unwrap_or_default();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    gauge(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since the epoch in seconds.",
        now - uptime + field(22) / TICKS,
    )?;
    gauge(
        "process_cpu_seconds_total",
        "counter",
        "Time spent on the CPU in seconds.",
        (field(14) + field(15)) / TICKS,
    )?;
    gauge(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory in bytes.",
        field(24) * PAGE,
    )?;
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    gauge(
        "process_open_fds",
        "gauge",
        "Open file descriptors.",
        open as f64,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted() {
        let metrics = Metrics::default();
        let labels = RequestLabels {
            verb: "LIST",
            resource: "pods".to_owned(),
            scope: "cluster",
            ..RequestLabels::default()
        };
        for millis in [1, 30, 90_000] {
            let took = Duration::from_millis(millis);
            metrics.observe(labels.clone(), 200, took, false);
        }
        let running = metrics.start(true, false);
        let text = metrics.render();
        assert!(text.contains(
            "resource=\"pods\",scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"\"} 3\n"
        ));
        assert!(text.contains("le=\"0.005\"} 1\n") && text.contains("le=\"60\"} 2\n"));
        assert!(text.contains("le=\"+Inf\"} 3\n"));
        assert!(text.contains("inflight_requests{request_kind=\"readOnly\"} 1\n"));
        drop(running);
        assert!(metrics.render().contains("{request_kind=\"readOnly\"} 0\n"));
        assert!(text.contains("process_start_time_seconds"));
    }
}

//! Figures in the text form of Prometheus.

use super::ServerState;
use super::stats::{ContainerFigures, Figures, PodFigures};
use crate::machine::MachineInfo;
use crate::pod;
use std::fmt::{Display, Write as _};
use std::time::SystemTime;

/// Builds an exposition: a family, then its samples.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
    family: String,
}

impl Text {
    /// Begins a family; `kind` is `counter`, `gauge`, `histogram`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.family);
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.sample_at(labels, value, None);
    }

    fn sample_at(&mut self, labels: &[(&str, &str)], value: impl Display, at: Option<SystemTime>) {
        let mut line = self.family.clone();
        for (position, (name, text)) in labels.iter().enumerate() {
            line.push(if position == 0 { '{' } else { ',' });
            line.push_str(name);
            line.push_str("=\"");
            escape(text, &mut line);
            line.push('"');
        }
        if !labels.is_empty() {
            line.push('}');
        }
        self.push(format_args!("{line} {value}"));
        if let Some(at) = at {
            let since = at
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            self.push(format_args!(" {}", since.as_millis()));
        }
        self.out.push('\n');
    }

    pub fn finish(self) -> String {
        self.out
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        self.out.write_fmt(text).ok();
    }
}

fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

/// `/metrics`: the kubelet's own.
pub(super) fn own(state: &ServerState) -> String {
    let mut text = Text::default();
    text.family(
        "kubelet_node_name",
        "gauge",
        "The node's name. The count is always 1.",
    );
    text.sample(&[("node", &state.node_name)], 1);
    let pods = state.lookup.pods();
    let running = pods.iter().filter(|pod| pod::phase(pod) == "Running");
    text.family(
        "kubelet_running_pods",
        "gauge",
        "Number of pods that have a running pod sandbox",
    );
    text.sample(&[], running.count());
    process(&mut text);
    for source in &state.metrics {
        source(&mut text);
    }
    text.finish()
}

/// What Prometheus' clients report of a process.
fn process(text: &mut Text) {
    // SAFETY: asks for constants; nothing is passed.
    let (page, ticks) = unsafe {
        (
            libc::sysconf(libc::_SC_PAGESIZE),
            libc::sysconf(libc::_SC_CLK_TCK),
        )
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the program's name, which may hold anything, the third field follows.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let field = |number: usize| -> u64 {
        let value = fields.get(number - 3).and_then(|value| value.parse().ok());
        value.unwrap_or(0)
    };
    let cpu = (field(14) + field(15)) as f64 / ticks.max(1) as f64;
    text.family(
        "process_cpu_seconds_total",
        "counter",
        "Total user and system CPU time spent in seconds.",
    );
    text.sample(&[], cpu);
    text.family(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory size in bytes.",
    );
    text.sample(&[], field(24) * page.unsigned_abs());
    text.family(
        "process_virtual_memory_bytes",
        "gauge",
        "Virtual memory size in bytes.",
    );
    text.sample(&[], field(23));
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    text.family(
        "process_open_fds",
        "gauge",
        "Number of open file descriptors.",
    );
    text.sample(&[], files);
}

type Value<T> = fn(&T) -> Option<f64>;

/// A family: name, type, help and where its value comes from.
type Row<T> = (&'static str, &'static str, &'static str, Value<T>);

const NODE: [Row<Figures>; 2] = [
    (
        "node_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the node in core-seconds",
        |figures| figures.node.usage.cpu_nanos.map(seconds),
    ),
    (
        "node_memory_working_set_bytes",
        "gauge",
        "Current working set of the node in bytes",
        |figures| figures.node.usage.working_set_bytes.map(float),
    ),
];

const POD: [Row<PodFigures>; 2] = [
    (
        "pod_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the pod in core-seconds",
        |pod| pod.usage.cpu_nanos.map(seconds),
    ),
    (
        "pod_memory_working_set_bytes",
        "gauge",
        "Current working set of the pod in bytes",
        |pod| pod.usage.working_set_bytes.map(float),
    ),
];

const CONTAINER: [Row<ContainerFigures>; 3] = [
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
        |container| container.usage.cpu_nanos.map(seconds),
    ),
    (
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set of the container in bytes",
        |container| container.usage.working_set_bytes.map(float),
    ),
    (
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds",
        |container| container.started.map(since_epoch),
    ),
];

/// `/metrics/resource`: what autoscaling is built on.
pub(super) fn resource(figures: &Figures) -> String {
    let mut text = Text::default();
    for (name, kind, help, value) in CONTAINER {
        text.family(name, kind, help);
        for (pod, container) in figures.containers() {
            let labels = [
                ("container", container.name.as_str()),
                ("namespace", &pod.namespace),
                ("pod", &pod.name),
            ];
            if let Some(value) = value(container) {
                text.sample_at(&labels, value, container.time);
            }
        }
    }
    for (name, kind, help, value) in NODE {
        text.family(name, kind, help);
        if let Some(value) = value(figures) {
            text.sample_at(&[], value, Some(figures.time));
        }
    }
    for (name, kind, help, value) in POD {
        text.family(name, kind, help);
        for pod in &figures.pods {
            let labels = [("namespace", pod.namespace.as_str()), ("pod", &pod.name)];
            if let Some(value) = value(pod) {
                text.sample_at(&labels, value, Some(pod.time));
            }
        }
    }
    text.family(
        "resource_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    text.sample(&[], 0);
    text.finish()
}

const CADVISOR: [Row<ContainerFigures>; 7] = [
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed in seconds.",
        |container| container.usage.cpu_nanos.map(seconds),
    ),
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |container| container.usage.memory_bytes.map(float),
    ),
    (
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set in bytes.",
        |container| container.usage.working_set_bytes.map(float),
    ),
    (
        "container_memory_rss",
        "gauge",
        "Size of RSS in bytes.",
        |container| container.usage.rss_bytes.map(float),
    ),
    (
        "container_fs_usage_bytes",
        "gauge",
        "Number of bytes that are consumed by the container on this filesystem.",
        |container| container.rootfs_bytes.map(float),
    ),
    (
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds.",
        |container| container.started.map(since_epoch),
    ),
    (
        "container_last_seen",
        "gauge",
        "Last time a container was seen by the exporter",
        |container| container.time.map(since_epoch),
    ),
];

const NETWORK: [Row<PodFigures>; 2] = [
    (
        "container_network_receive_bytes_total",
        "counter",
        "Cumulative count of bytes received",
        |pod| pod.received_bytes.map(float),
    ),
    (
        "container_network_transmit_bytes_total",
        "counter",
        "Cumulative count of bytes transmitted",
        |pod| pod.sent_bytes.map(float),
    ),
];

/// `/metrics/cadvisor`: the families of cAdvisor that dashboards use.
pub(super) fn cadvisor(figures: &Figures, machine: &MachineInfo) -> String {
    let mut text = Text::default();
    for (name, kind, help, value) in CADVISOR {
        text.family(name, kind, help);
        for (pod, container) in figures.containers() {
            let mut labels = vec![
                ("container", container.name.as_str()),
                ("id", &container.id),
                ("image", &container.image),
                ("name", &container.id),
                ("namespace", &pod.namespace),
                ("pod", &pod.name),
            ];
            if name == "container_cpu_usage_seconds_total" {
                labels.insert(1, ("cpu", "total"));
            }
            if let Some(value) = value(container) {
                text.sample_at(&labels, value, container.time);
            }
        }
    }
    for (name, kind, help, value) in NETWORK {
        text.family(name, kind, help);
        for pod in &figures.pods {
            let labels = [
                ("interface", "eth0"),
                ("namespace", pod.namespace.as_str()),
                ("pod", &pod.name),
            ];
            if let Some(value) = value(pod) {
                text.sample_at(&labels, value, Some(pod.time));
            }
        }
    }
    text.family("machine_cpu_cores", "gauge", "Number of logical CPU cores.");
    text.sample(&[("boot_id", &machine.boot_id)], machine.cpus);
    text.family(
        "machine_memory_bytes",
        "gauge",
        "Amount of memory installed on the machine.",
    );
    text.sample(&[("boot_id", &machine.boot_id)], machine.memory_bytes);
    text.finish()
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn float(value: u64) -> f64 {
    value as f64
}

fn since_epoch(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_times_are_milliseconds() {
        let mut text = Text::default();
        text.family("a", "gauge", "An A.");
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(2);
        text.sample_at(&[("l", "x\"y\\\n"), ("m", "")], 1.5, Some(at));
        text.sample(&[], 3);
        assert_eq!(
            text.finish(),
            "# HELP a An A.\n# TYPE a gauge\na{l=\"x\\\"y\\\\\\n\",m=\"\"} 1.5 2000\na 3\n"
        );
    }
}

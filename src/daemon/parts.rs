//! The parts of the process, how they show that they failed, and the seam by which tests make them fail.
//!
//! A part that failed shows in the log, in `/readyz?verbose`, in the metrics `sampan_part_up` and
//! `sampan_part_restarts_total`, in an event about the node, and in the file [`FAILING`] which `sampan check` reads.
//!
//! If the environment variable [`FAULTS`] names a folder, a file in it called like a part makes that part fail: it stays
//! down while the file is there; a file that says `panic` makes a task of it panic once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::core::v1::ObjectReference;
use sampan_apiserver::health::Health;
use sampan_apiserver::metrics::Metrics;
use sampan_client::{Client, Recorder};
use sampan_kubelet::inotify::FileWatcher;
use sampan_kubelet::server::metrics::Text;
use sampan_util::part::{Fault, Report};
use sampan_util::{Parts, Shutdown, task};

pub(crate) const SCHEDULER: &str = "kube-scheduler";
pub(crate) const CONTROLLERS: &str = "kube-controller-manager";
pub(crate) const KUBELET: &str = "kubelet";
pub(crate) const PROXY: &str = "kube-proxy";
pub(crate) const NETWORK: &str = "network";
pub(crate) const DNS: &str = "dns";
pub(crate) const IMAGES: &str = "images";
/// Starts containerd, which is a process of its own.
pub(crate) const RUNTIME: &str = "containerd";

/// Below the data directory: a line for each part that is down now, and why.
const FAILING: &str = "failing-parts";

/// Names the folder of faults. For tests; whoever can set it can stop the process anyway.
const FAULTS: &str = "SAMPAN_FAULTS";

const UP: &str = "sampan_part_up";
const UP_HELP: &str =
    "1 if this part of the process is running, 0 if it failed and waits for its next start.";
const RESTARTS: &str = "sampan_part_restarts_total";
const RESTARTS_HELP: &str = "How often this part of the process was started again after it failed.";

/// All parts of the process show in `/readyz?verbose` (and count for nothing there: the API must not lose its traffic
/// because something beside it restarts) and in `/metrics`.
pub(crate) fn expose(parts: &Parts, health: &Health, metrics: &Metrics) {
    let told = parts.clone();
    health.tell(Arc::new(move || {
        let line = |report: Report| {
            let state = report.state.map_err(without_panic);
            (format!("part/{}", report.name), state)
        };
        told.reports().into_iter().map(line).collect()
    }));
    let counted = parts.clone();
    metrics.add_extra(Arc::new(move |text| {
        text.push_str(&render(&counted.reports()))
    }));
}

/// Everybody may read `/readyz`, and what a panic says may hold anything. Reports say `<task> panicked: <text>`; an error
/// that a part hands on may say the same in tokio's words (`task 7 panicked with message "<text>"`).
pub(crate) fn without_panic(reason: String) -> String {
    match reason.split_once(" panicked") {
        Some((task, _)) => format!("{task} panicked; the log says more"),
        None => reason,
    }
}

/// All parts of an agent, in its kubelet's `/metrics`.
pub(crate) fn kubelet_metrics(parts: &Parts, text: &mut Text) {
    let reports = parts.reports();
    text.family(UP, "gauge", UP_HELP);
    for report in &reports {
        text.sample(&[("part", report.name)], u8::from(report.state.is_ok()));
    }
    text.family(RESTARTS, "counter", RESTARTS_HELP);
    for report in &reports {
        text.sample(&[("part", report.name)], report.restarts);
    }
}

fn render(reports: &[Report]) -> String {
    let mut text = format!("# HELP {UP} {UP_HELP}\n# TYPE {UP} gauge\n");
    for report in reports {
        let up = u8::from(report.state.is_ok());
        text.push_str(&format!("{UP}{{part=\"{}\"}} {up}\n", report.name));
    }
    text.push_str(&format!(
        "# HELP {RESTARTS} {RESTARTS_HELP}\n# TYPE {RESTARTS} counter\n"
    ));
    for report in reports {
        let line = format!(
            "{RESTARTS}{{part=\"{}\"}} {}\n",
            report.name, report.restarts
        );
        text.push_str(&line);
    }
    text
}

/// Every failure and every return becomes an event about the node; about the namespace of the system where there is no
/// node.
pub(crate) fn record_failures(parts: &Parts, client: Client, node: Option<&str>) {
    let recorder = Recorder::new(client, "sampan", node.unwrap_or_default());
    let about = match node {
        Some(name) => ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            ..ObjectReference::default()
        },
        None => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some("kube-system".to_owned()),
            ..ObjectReference::default()
        },
    };
    parts.on_change(move |report| {
        let part = report.name;
        let (warning, reason, message) = match &report.state {
            Err(why) => {
                let message = format!("{part} failed and is started again: {why}");
                (true, "PartFailed", message)
            }
            Ok(()) => (false, "PartRestarted", format!("{part} runs again")),
        };
        recorder.record(about.clone(), warning, reason, message);
    });
}

/// Keeps [`FAILING`] in the data directory true, and does what the folder of faults says, if there is one.
pub(crate) fn follow(parts: &Parts, data_dir: &Path, shutdown: &Shutdown) -> anyhow::Result<()> {
    let (mut reports, path) = (parts.follow(), data_dir.join(FAILING));
    let stop = shutdown.clone();
    drop(task::spawn("failing-parts", async move {
        let mut written = None;
        loop {
            let text = failing(&reports.borrow_and_update());
            if written.as_ref() != Some(&text) {
                write_failing(&path, &text);
                written = Some(text);
            }
            tokio::select! {
                Ok(()) = reports.changed() => {}
                () = stop.wait() => return,
                else => return,
            }
        }
    }));
    follow_faults(parts, shutdown)
}

fn failing(reports: &BTreeMap<&'static str, Report>) -> String {
    let down = reports.values().filter_map(|report| {
        let why = report.state.as_ref().err()?;
        Some(format!("{}: {}\n", report.name, why.replace('\n', " ")))
    });
    down.collect()
}

/// No file says that all is well; it is written when something fails or comes back, not otherwise.
fn write_failing(path: &Path, text: &str) {
    let done = match text {
        "" => match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        text => std::fs::write(path, text),
    };
    if let Err(error) = done {
        tracing::warn!(path = %path.display(), %error, "cannot write down which parts fail");
    }
}

/// What the process that runs on this data directory has written down; nothing if none does (any more).
pub(crate) fn read_failing(data_dir: &Path) -> Vec<String> {
    let pid = std::fs::read_to_string(data_dir.join("lock")).unwrap_or_default();
    let is_running = !pid.is_empty() && Path::new("/proc").join(pid.trim()).exists();
    if !is_running {
        return Vec::new();
    }
    let text = std::fs::read_to_string(data_dir.join(FAILING)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Does what the folder of faults says, if there is one.
fn follow_faults(parts: &Parts, shutdown: &Shutdown) -> anyhow::Result<()> {
    let Some(folder) = std::env::var_os(FAULTS).map(PathBuf::from) else {
        return Ok(());
    };
    tracing::warn!(folder = %folder.display(), "parts fail on purpose: {FAULTS} is set");
    let watcher = FileWatcher::new().context("cannot watch files")?;
    let changes = watcher
        .watch(&folder)
        .with_context(|| format!("{FAULTS}: cannot watch {}", folder.display()))?;
    let (parts, shutdown) = (parts.clone(), shutdown.clone());
    drop(task::spawn("faults", async move {
        let _watcher = watcher;
        loop {
            parts.set_faults(read_faults(&folder));
            tokio::select! {
                _ = changes.changed() => {}
                () = shutdown.wait() => return,
            }
        }
    }));
    Ok(())
}

fn read_faults(folder: &Path) -> BTreeMap<String, Fault> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let fault = match text.trim() {
                "panic" => Fault::Panic,
                _ => Fault::Down,
            };
            (entry.file_name().to_string_lossy().into_owned(), fault)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_a_panic_says_is_not_shown_to_everybody() {
        let cases = [
            (
                "kubelet panicked: a secret",
                "kubelet panicked; the log says more",
            ),
            (
                "kubelet panicked: it panicked: a secret",
                "kubelet panicked; the log says more",
            ),
            (
                "cannot serve: task 7 panicked with message \"a secret\"",
                "cannot serve: task 7 panicked; the log says more",
            ),
            ("it ended by itself", "it ended by itself"),
        ];
        for (reason, shown) in cases {
            assert_eq!(without_panic(reason.to_owned()), shown);
        }
    }

    /// What the main task of a part says when it panics reaches `/readyz` in the form that is cut.
    #[tokio::test]
    async fn a_panic_of_a_parts_main_task_is_cut() {
        let (parts, shutdown) = (Parts::default(), Shutdown::new());
        let (own, outer) = (parts.clone(), shutdown.clone());
        let running = tokio::spawn(async move { own.run(DNS, outer, |_| panics()).await });
        let mut reports = parts.follow();
        let failed = reports.wait_for(|all| all.values().any(|report| report.state.is_err()));
        let all = failed.await.unwrap().clone();
        let told = all[DNS].state.clone().map_err(without_panic);
        assert_eq!(told, Err("dns panicked; the log says more".to_owned()));
        shutdown.trigger();
        assert!(running.await.is_ok());
    }

    async fn panics() -> Result<(), String> {
        tokio::task::yield_now().await;
        panic!("a secret");
    }
}

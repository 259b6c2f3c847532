//! Reads what the runtime holds for one pod.
//!
//! The state of a container that has ended never changes, so it is asked for once; what still runs
//! is asked for again when its state in the list changes.

use crate::cgroup::{Cgroups, kernel_log};
use crate::config::labels;
use crate::state::{Instance, PodRuntime, RunState, RunUser, Sandbox};
use jiff::Timestamp;
use sampan_cri::runtime::v1::{
    Container, ContainerFilter, ContainerState, ContainerStatus, ContainerStatusRequest,
    ListContainersRequest, ListPodSandboxRequest, NamespaceMode, PodSandbox, PodSandboxFilter,
    PodSandboxState, PodSandboxStatus, PodSandboxStatusRequest,
};
use sampan_cri::{Error, Runtime};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

/// How much of a termination message is kept.
const MESSAGE_BYTES: usize = 4096;
/// How much of a log stands in for a missing message.
const LOG_BYTES: usize = 2048;
const LOG_LINES: usize = 80;
/// Exit code of who was killed.
const KILLED: i32 = 128 + 9;
/// What runtimes say of a failed container as long as they do not know more.
const ANY_ERROR: &str = "Error";
const OUT_OF_MEMORY: &str = "OOMKilled";
/// Milliseconds between questions after a kill: the runtime hears of the exit and of its cause in any order.
const CAUSE_FOLLOWS: [u64; 6] = [5, 10, 20, 50, 100, 200];

/// What an observer is told about the pod's containers.
#[derive(Debug, Default)]
pub struct Known {
    /// Those that we have killed or are killing: no other cause is looked for.
    pub killed: HashSet<String>,
    /// The pod's cgroup.
    pub cgroup: Option<(Cgroups, String)>,
}

impl Known {
    fn lacked_memory(&self, container_id: &str) -> Option<bool> {
        let (cgroups, path) = self.cgroup.as_ref()?;
        cgroups.lacked_memory(path, container_id)
    }
}

/// The newest state of a pod in the runtime, and what need not be asked for again.
#[derive(Debug, Default)]
pub struct Observer {
    pub state: PodRuntime,
}

impl Observer {
    /// Asks the runtime; the answer replaces the state.
    pub async fn refresh(
        &mut self,
        runtime: &Runtime,
        uid: &str,
        about: &Known,
    ) -> Result<(), Error> {
        let selector = HashMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
        let sandboxes = runtime.list_pod_sandbox(ListPodSandboxRequest {
            filter: Some(PodSandboxFilter {
                label_selector: selector.clone(),
                ..PodSandboxFilter::default()
            }),
        });
        let containers = runtime.list_containers(ListContainersRequest {
            filter: Some(ContainerFilter {
                label_selector: selector,
                ..ContainerFilter::default()
            }),
        });
        let (sandboxes, containers) = tokio::try_join!(sandboxes, containers)?;
        let mut state = PodRuntime::default();
        for row in &sandboxes.items {
            state.sandboxes.extend(self.sandbox(runtime, row).await?);
        }
        for row in &containers.containers {
            state
                .instances
                .extend(self.instance(runtime, row, about).await?);
        }
        state.sandboxes.sort_by_key(|s| Reverse(s.created_at));
        state.instances.sort_by_key(|i| Reverse(i.created_at));
        self.state = state;
        Ok(())
    }

    async fn sandbox(&self, runtime: &Runtime, row: &PodSandbox) -> Result<Option<Sandbox>, Error> {
        let ready = row.state == PodSandboxState::SandboxReady as i32;
        let known = self.state.sandboxes.iter().find(|s| s.id == row.id);
        if let Some(known) = known.filter(|s| s.ready == ready) {
            return Ok(Some(known.clone()));
        }
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: row.id.clone(),
            verbose: false,
        };
        let reply = runtime.pod_sandbox_status(request).await;
        let status = found(reply)?.and_then(|r| r.status);
        Ok(status.map(|s| read_sandbox(&s)))
    }

    async fn instance(
        &self,
        runtime: &Runtime,
        row: &Container,
        about: &Known,
    ) -> Result<Option<Instance>, Error> {
        let state = run_state(row.state);
        let known = self.state.instances.iter().find(|i| i.id == row.id);
        if let Some(known) = known.filter(|i| i.state == state) {
            return Ok(Some(known.clone()));
        }
        let request = ContainerStatusRequest {
            container_id: row.id.clone(),
            verbose: false,
        };
        let reply = runtime.container_status(request).await;
        let Some(status) = found(reply)?.and_then(|r| r.status) else {
            return Ok(None);
        };
        let mut instance = read_instance(&row.pod_sandbox_id, &status);
        if is_unexplained(&instance) && !about.killed.contains(&instance.id) {
            instance.reason = cause_of(runtime, &instance, about).await;
        }
        if instance.state == RunState::Exited && instance.message.is_empty() {
            instance.message = termination_message(&status).await;
        }
        Ok(Some(instance))
    }
}

/// Killed, by nobody knows whom.
fn is_unexplained(instance: &Instance) -> bool {
    let was_killed = instance.state == RunState::Exited && instance.exit_code == KILLED;
    was_killed && instance.reason == ANY_ERROR
}

/// The reason of a kill: what the kernel says if it does, else what the runtime says within a moment.
async fn cause_of(runtime: &Runtime, killed: &Instance, about: &Known) -> String {
    match about.lacked_memory(&killed.id) {
        Some(true) => return OUT_OF_MEMORY.to_owned(),
        Some(false) => return killed.reason.clone(),
        None => {}
    }
    let id = killed.id.clone();
    let told = tokio::task::spawn_blocking(move || kernel_log::tells_of(&id)).await;
    if matches!(told, Ok(Ok(true))) {
        return OUT_OF_MEMORY.to_owned();
    }
    // The log may be closed to us, or the kernel may have had too much to say.
    for millis in CAUSE_FOLLOWS {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        let request = ContainerStatusRequest {
            container_id: killed.id.clone(),
            verbose: false,
        };
        // A question that fails spoils nothing: all else is known already.
        let reply = runtime.container_status(request).await;
        match reply.ok().and_then(|reply| reply.status) {
            Some(status) if status.reason == ANY_ERROR => {}
            Some(status) => return status.reason,
            None => break,
        }
    }
    killed.reason.clone()
}

/// Between the list and the question an object may have gone: that is no error.
fn found<T>(reply: Result<T, Error>) -> Result<Option<T>, Error> {
    match reply {
        Ok(reply) => Ok(Some(reply)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn run_state(state: i32) -> RunState {
    match ContainerState::try_from(state) {
        Ok(ContainerState::ContainerCreated) => RunState::Created,
        Ok(ContainerState::ContainerRunning) => RunState::Running,
        Ok(ContainerState::ContainerExited) => RunState::Exited,
        _ => RunState::Unknown,
    }
}

fn time(nanos: i64) -> Option<Timestamp> {
    (nanos > 0)
        .then(|| Timestamp::from_nanosecond(i128::from(nanos)).ok())
        .flatten()
}

fn read_sandbox(status: &PodSandboxStatus) -> Sandbox {
    let ready = status.state == PodSandboxState::SandboxReady as i32;
    let options = status
        .linux
        .as_ref()
        .and_then(|l| l.namespaces.as_ref())
        .and_then(|n| n.options.as_ref());
    let host_network = options.is_some_and(|o| o.network == NamespaceMode::Node as i32);
    let mut ips = Vec::new();
    if let Some(network) = status.network.as_ref().filter(|_| !host_network && ready) {
        let more = network.additional_ips.iter().map(|more| more.ip.clone());
        ips.extend(std::iter::once(network.ip.clone()).chain(more));
        ips.retain(|ip| !ip.is_empty());
    }
    Sandbox {
        id: status.id.clone(),
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        ready,
        created_at: time(status.created_at).unwrap_or_default(),
        ips,
        host_network,
    }
}

fn read_instance(sandbox_id: &str, status: &ContainerStatus) -> Instance {
    let state = run_state(status.state);
    let text = |map: &HashMap<String, String>, name: &str| map.get(name).cloned();
    let hash = text(&status.annotations, labels::HASH)
        .and_then(|text| u64::from_str_radix(&text, 16).ok())
        .unwrap_or_default();
    let restart_count = text(&status.annotations, labels::RESTART_COUNT)
        .and_then(|text| text.parse().ok())
        .or(status.metadata.as_ref().map(|m| m.attempt))
        .unwrap_or_default();
    let name = text(&status.labels, labels::CONTAINER_NAME)
        .or(status.metadata.as_ref().map(|m| m.name.clone()))
        .unwrap_or_default();
    let ended = state == RunState::Exited;
    let user = status.user.as_ref().and_then(|u| u.linux.as_ref());
    Instance {
        id: status.id.clone(),
        sandbox_id: sandbox_id.to_owned(),
        name,
        hash,
        restart_count,
        state,
        created_at: time(status.created_at).unwrap_or_default(),
        started_at: time(status.started_at).filter(|_| state != RunState::Created),
        finished_at: time(status.finished_at).filter(|_| ended),
        exit_code: if ended { status.exit_code } else { 0 },
        reason: status.reason.clone(),
        message: status.message.clone(),
        image: status
            .image
            .as_ref()
            .map(|i| i.image.clone())
            .unwrap_or_default(),
        image_ref: status.image_ref.clone(),
        user: user.map(|u| RunUser {
            uid: u.uid,
            gid: u.gid,
            groups: u.supplemental_groups.clone(),
        }),
    }
}

/// What a container left in its message file, or with the fallback policy the end of its log.
async fn termination_message(status: &ContainerStatus) -> String {
    let annotation = |name: &str| status.annotations.get(name).map(String::as_str);
    let path = annotation(labels::MESSAGE_PATH).unwrap_or_default();
    let falls_back = annotation(labels::MESSAGE_POLICY) == Some("FallbackToLogsOnError")
        && status.exit_code != 0;
    let mount = status
        .mounts
        .iter()
        .find(|m| !path.is_empty() && m.container_path == path);
    let message = match mount {
        Some(mount) => read_tail(Path::new(&mount.host_path), MESSAGE_BYTES).await,
        None => String::new(),
    };
    if message.is_empty() && falls_back && !status.log_path.is_empty() {
        return log_tail(Path::new(&status.log_path)).await;
    }
    message
}

async fn read_tail(path: &Path, limit: usize) -> String {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || tail(&path, limit));
    match read.await {
        Ok(Ok(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}

fn tail(path: &Path, limit: usize) -> std::io::Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit as u64)))?;
    let mut bytes = Vec::with_capacity(limit);
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The last lines of a log in CRI format, without its time stamps.
async fn log_tail(path: &Path) -> String {
    // A log line carries some 40 bytes beside its text.
    let text = read_tail(path, LOG_BYTES + LOG_LINES * 64).await;
    strip_log(&text)
}

fn strip_log(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(4, ' ');
        let (Some(_time), Some(_stream), Some(tag), content) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let ending = if tag == "F" { "\n" } else { "" };
        lines.push(format!("{}{ending}", content.unwrap_or_default()));
    }
    let skipped = lines.len().saturating_sub(LOG_LINES);
    let text: String = lines.into_iter().skip(skipped).collect();
    let mut start = text.len().saturating_sub(LOG_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_lose_their_stamps() {
        let text = "2026-01-02T03:04:05.6Z stdout F one\n2026-01-02T03:04:05.7Z stderr P tw\n2026-01-02T03:04:05.8Z stderr F o\n";
        assert_eq!(strip_log(text), "one\ntwo\n");
    }

    #[test]
    fn only_a_kill_without_a_cause_is_looked_into() {
        let ended = |state, exit_code, reason: &str| {
            let status = ContainerStatus {
                state,
                exit_code,
                reason: reason.to_owned(),
                ..ContainerStatus::default()
            };
            is_unexplained(&read_instance("s", &status))
        };
        let exited = ContainerState::ContainerExited as i32;
        assert!(ended(exited, 137, "Error"));
        assert!(!ended(exited, 137, "OOMKilled"));
        assert!(!ended(exited, 1, "Error"));
        assert!(!ended(
            ContainerState::ContainerRunning as i32,
            137,
            "Error"
        ));
    }

    #[test]
    fn times_of_zero_are_none() {
        assert_eq!(time(0), None);
        assert!(time(1_700_000_000_000_000_000).is_some());
    }
}

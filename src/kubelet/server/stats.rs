//! What the node, its pods and their containers use: collected when somebody asks, never in the background.
//!
//! Containers come from the runtime, pods and the node from their cgroups. A rate (`usageNanoCores`) needs two looks:
//! the runtime's if it keeps one, else the last two times that somebody asked.

use super::{Failure, ServerState};
use crate::cgroup::Usage;
use crate::config::labels;
use crate::machine::{Disk, Memory};
use crate::pod;
use crate::qos;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use sampan_cri::runtime::v1::{
    ContainerStats, ImageFsInfoRequest, ListContainerStatsRequest, ListPodSandboxStatsRequest,
    UInt64Value,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Looks that are closer together than this give no usable rate.
const SHORTEST: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
pub struct Figures {
    pub time: SystemTime,
    pub node: NodeFigures,
    pub pods: Vec<PodFigures>,
}

#[derive(Debug, Clone, Default)]
pub struct NodeFigures {
    pub usage: Usage,
    pub nano_cores: Option<u64>,
    /// All pods together.
    pub pods: Usage,
    pub available_memory_bytes: u64,
    pub disk: Disk,
    pub image_disk: Option<Disk>,
    pub image_bytes: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct PodFigures {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub started: Option<SystemTime>,
    pub time: SystemTime,
    pub usage: Usage,
    pub nano_cores: Option<u64>,
    pub received_bytes: Option<u64>,
    pub sent_bytes: Option<u64>,
    pub containers: Vec<ContainerFigures>,
}

#[derive(Debug, Clone, Default)]
pub struct ContainerFigures {
    pub id: String,
    pub name: String,
    pub image: String,
    pub started: Option<SystemTime>,
    pub time: Option<SystemTime>,
    pub usage: Usage,
    pub nano_cores: Option<u64>,
    pub rootfs_bytes: Option<u64>,
    pub rootfs_inodes: Option<u64>,
}

impl Figures {
    pub(super) fn containers(&self) -> impl Iterator<Item = (&PodFigures, &ContainerFigures)> {
        let of = |pod| {
            let pod: &PodFigures = pod;
            pod.containers.iter().map(move |container| (pod, container))
        };
        self.pods.iter().flat_map(of)
    }
}

/// Remembers the last look at each processor counter.
#[derive(Debug, Default)]
pub struct Collector {
    looks: Mutex<HashMap<String, Look>>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    time: SystemTime,
    nanos: u64,
    rate: Option<u64>,
}

impl Collector {
    pub(super) async fn collect(&self, state: &ServerState) -> Result<Figures, Failure> {
        let request = ListContainerStatsRequest::default();
        let listed = state.runtime.list_container_stats(request).await?;
        let networks = networks(state).await;
        let mut containers: HashMap<String, Vec<ContainerStats>> = HashMap::new();
        for stats in listed.stats {
            let uid = label(&stats, labels::POD_UID).to_owned();
            containers.entry(uid).or_default().push(stats);
        }
        let time = SystemTime::now();
        let mut pods = Vec::new();
        for known in state.lookup.pods() {
            if let Some(stats) = containers.remove(pod::uid(&known)) {
                let mut figures = self.pod(state, &known, &stats, time);
                if let Some((received, sent)) = networks.get(pod::uid(&known)) {
                    figures.received_bytes = Some(*received);
                    figures.sent_bytes = Some(*sent);
                }
                pods.push(figures);
            }
        }
        let node = self.node(state, time).await;
        self.forget_old(time);
        Ok(Figures { time, node, pods })
    }

    fn pod(
        &self,
        state: &ServerState,
        known: &Pod,
        stats: &[ContainerStats],
        time: SystemTime,
    ) -> PodFigures {
        let uid = pod::uid(known);
        let class = qos::class(known);
        let usage = state.cgroups.as_ref().map(|c| c.pod_usage(class, uid));
        let usage = usage.unwrap_or_default();
        PodFigures {
            namespace: pod::namespace(known).to_owned(),
            name: pod::name(known).to_owned(),
            uid: uid.to_owned(),
            started: known
                .status
                .as_ref()
                .and_then(|status| status.start_time.as_ref())
                .map(|time| time.0.into()),
            time,
            nano_cores: self.rate(uid, time, usage.cpu_nanos),
            usage,
            received_bytes: None,
            sent_bytes: None,
            containers: stats
                .iter()
                .filter_map(|stats| self.container(known, stats))
                .collect(),
        }
    }

    /// `None` for a container that has ended: the runtime lists some of those too.
    fn container(&self, known: &Pod, stats: &ContainerStats) -> Option<ContainerFigures> {
        let name = label(stats, labels::CONTAINER_NAME);
        let (_, container) = pod::find_container(known, name)?;
        let id = stats.attributes.as_ref()?.id.clone();
        let cpu = stats.cpu.as_ref()?;
        let memory = stats.memory.unwrap_or_default();
        let time = from_nanos(cpu.timestamp)?;
        let usage = Usage {
            cpu_nanos: value(cpu.usage_core_nano_seconds.as_ref()),
            memory_bytes: value(memory.usage_bytes.as_ref()),
            working_set_bytes: value(memory.working_set_bytes.as_ref()),
            rss_bytes: value(memory.rss_bytes.as_ref()),
            page_faults: value(memory.page_faults.as_ref()),
            major_page_faults: value(memory.major_page_faults.as_ref()),
            ..Usage::default()
        };
        let rate = self.rate(&id, time, usage.cpu_nanos);
        let layer = stats.writable_layer.as_ref();
        Some(ContainerFigures {
            started: started(known, name),
            name: name.to_owned(),
            image: container.image.clone().unwrap_or_default(),
            id,
            time: Some(time),
            nano_cores: value(cpu.usage_nano_cores.as_ref()).or(rate),
            usage,
            rootfs_bytes: layer.and_then(|layer| value(layer.used_bytes.as_ref())),
            rootfs_inodes: layer.and_then(|layer| value(layer.inodes_used.as_ref())),
        })
    }

    async fn node(&self, state: &ServerState, time: SystemTime) -> NodeFigures {
        let cgroups = state.cgroups.as_ref();
        let usage = cgroups.map(|c| c.usage("/")).unwrap_or_default();
        let (image_bytes, image_disk) = images(state).await;
        NodeFigures {
            nano_cores: self.rate("/", time, usage.cpu_nanos),
            usage,
            pods: cgroups.map(|c| c.usage(c.kubepods())).unwrap_or_default(),
            available_memory_bytes: Memory::read().available_bytes,
            disk: Disk::read(&state.data_dir).unwrap_or_default(),
            image_disk,
            image_bytes,
        }
    }

    /// Billionths of a processor since the last look that is far enough away.
    fn rate(&self, key: &str, time: SystemTime, nanos: Option<u64>) -> Option<u64> {
        let nanos = nanos?;
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = looks.get(key).copied() else {
            let first = Look {
                time,
                nanos,
                rate: None,
            };
            looks.insert(key.to_owned(), first);
            return None;
        };
        let passed = time.duration_since(last.time).unwrap_or_default();
        if passed < SHORTEST {
            return last.rate;
        }
        let used = u128::from(nanos.saturating_sub(last.nanos));
        let rate = u64::try_from(used * 1_000_000_000 / passed.as_nanos()).ok();
        looks.insert(key.to_owned(), Look { time, nanos, rate });
        rate
    }

    fn forget_old(&self, now: SystemTime) {
        const KEPT: Duration = Duration::from_secs(600);
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.retain(|_, look| now.duration_since(look.time).unwrap_or_default() < KEPT);
    }

    /// `/stats/summary`.
    pub(super) async fn summary(&self, state: &ServerState) -> Result<Value, Failure> {
        let figures = self.collect(state).await?;
        let pods: Vec<Value> = figures.pods.iter().map(pod_summary).collect();
        Ok(json!({"node": node_summary(state, &figures), "pods": pods}))
    }
}

/// Received and sent bytes by pod; empty where the runtime has no such call.
async fn networks(state: &ServerState) -> HashMap<String, (u64, u64)> {
    let request = ListPodSandboxStatsRequest::default();
    let listed = match state.runtime.list_pod_sandbox_stats(request).await {
        Ok(listed) => listed.stats,
        Err(error) => {
            tracing::debug!(%error, "no network figures of pods");
            return HashMap::new();
        }
    };
    let figures = listed.into_iter().filter_map(|stats| {
        let uid = stats.attributes?.metadata?.uid;
        let interface = stats.linux?.network?.default_interface?;
        let received = value(interface.rx_bytes.as_ref())?;
        Some((uid, (received, value(interface.tx_bytes.as_ref())?)))
    });
    figures.collect()
}

async fn images(state: &ServerState) -> (Option<u64>, Option<Disk>) {
    let reply = match state.images.image_fs_info(ImageFsInfoRequest {}).await {
        Ok(reply) => reply,
        Err(error) => {
            tracing::debug!(%error, "no figures of the image file system");
            return (None, None);
        }
    };
    let Some(usage) = reply.image_filesystems.into_iter().next() else {
        return (None, None);
    };
    let mountpoint = usage.fs_id.map(|id| id.mountpoint).unwrap_or_default();
    let disk = Disk::read(Path::new(&mountpoint)).ok();
    (value(usage.used_bytes.as_ref()), disk)
}

fn label<'a>(stats: &'a ContainerStats, name: &str) -> &'a str {
    let attributes = stats.attributes.as_ref();
    let found = attributes.and_then(|attributes| attributes.labels.get(name));
    found.map(String::as_str).unwrap_or_default()
}

fn value(value: Option<&UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

fn from_nanos(nanos: i64) -> Option<SystemTime> {
    let nanos = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos))
}

fn started(known: &Pod, name: &str) -> Option<SystemTime> {
    let status = known.status.as_ref()?;
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    let found: &ContainerStatus = all.find(|status| status.name == name)?;
    let time = found
        .state
        .as_ref()?
        .running
        .as_ref()?
        .started_at
        .as_ref()?;
    Some(time.0.into())
}

fn node_summary(state: &ServerState, figures: &Figures) -> Value {
    let node = &figures.node;
    let machine = &state.machine;
    let disk = disk_summary(figures.time, &node.disk, Some(node.disk.used_bytes));
    let image_disk = node.image_disk.unwrap_or(node.disk);
    let image = disk_summary(figures.time, &image_disk, node.image_bytes);
    let mut memory = memory_summary(figures.time, &node.usage);
    memory["availableBytes"] = json!(node.available_memory_bytes);
    json!({
        "nodeName": state.node_name,
        "startTime": timestamp(machine.booted),
        "systemContainers": [{
            "name": "pods",
            "startTime": timestamp(machine.booted),
            "cpu": cpu_summary(figures.time, &node.pods, None),
            "memory": memory_summary(figures.time, &node.pods),
        }],
        "cpu": cpu_summary(figures.time, &node.usage, node.nano_cores),
        "memory": memory,
        "fs": disk,
        "runtime": {"imageFs": image, "containerFs": image},
        "rlimit": {
            "time": timestamp(figures.time),
            "maxpid": machine.max_pids,
            "curproc": running_processes(),
        },
    })
}

fn pod_summary(pod: &PodFigures) -> Value {
    let containers: Vec<Value> = pod.containers.iter().map(container_summary).collect();
    let mut summary = json!({
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": pod.started.map(timestamp),
        "containers": containers,
        "cpu": cpu_summary(pod.time, &pod.usage, pod.nano_cores),
        "memory": memory_summary(pod.time, &pod.usage),
        "process_stats": {"process_count": pod.usage.processes},
    });
    if let (Some(received), Some(sent)) = (pod.received_bytes, pod.sent_bytes) {
        let interface = json!({"name": "eth0", "rxBytes": received, "txBytes": sent});
        summary["network"] = json!({
            "time": timestamp(pod.time),
            "name": "eth0",
            "rxBytes": received,
            "txBytes": sent,
            "interfaces": [interface],
        });
    }
    summary
}

fn container_summary(container: &ContainerFigures) -> Value {
    let time = container.time.unwrap_or(SystemTime::UNIX_EPOCH);
    json!({
        "name": container.name,
        "startTime": container.started.map(timestamp),
        "cpu": cpu_summary(time, &container.usage, container.nano_cores),
        "memory": memory_summary(time, &container.usage),
        "rootfs": {
            "time": timestamp(time),
            "usedBytes": container.rootfs_bytes,
            "inodesUsed": container.rootfs_inodes,
        },
    })
}

fn cpu_summary(time: SystemTime, usage: &Usage, nano_cores: Option<u64>) -> Value {
    let mut cpu = json!({"time": timestamp(time)});
    set(&mut cpu, "usageNanoCores", nano_cores);
    set(&mut cpu, "usageCoreNanoSeconds", usage.cpu_nanos);
    cpu
}

fn memory_summary(time: SystemTime, usage: &Usage) -> Value {
    let mut memory = json!({"time": timestamp(time)});
    let available = usage.memory_limit_bytes.zip(usage.working_set_bytes);
    let available = available.map(|(limit, used)| limit.saturating_sub(used));
    set(&mut memory, "availableBytes", available);
    set(&mut memory, "usageBytes", usage.memory_bytes);
    set(&mut memory, "workingSetBytes", usage.working_set_bytes);
    set(&mut memory, "rssBytes", usage.rss_bytes);
    set(&mut memory, "pageFaults", usage.page_faults);
    set(&mut memory, "majorPageFaults", usage.major_page_faults);
    memory
}

fn disk_summary(time: SystemTime, disk: &Disk, used: Option<u64>) -> Value {
    json!({
        "time": timestamp(time),
        "availableBytes": disk.available_bytes,
        "capacityBytes": disk.capacity_bytes,
        "usedBytes": used,
        "inodesFree": disk.inodes_free,
        "inodes": disk.inodes,
        "inodesUsed": disk.inodes.saturating_sub(disk.inodes_free),
    })
}

fn set(object: &mut Value, name: &str, value: Option<u64>) {
    if let Some(value) = value {
        object[name] = json!(value);
    }
}

fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

/// Threads in the fourth field of `/proc/loadavg` (`1/234`).
fn running_processes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let (_, all) = text.split_whitespace().nth(3)?.split_once('/')?;
    all.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_looks_with_time_between() {
        let collector = Collector::default();
        let start = SystemTime::UNIX_EPOCH;
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(collector.rate("a", at(0), Some(0)), None);
        assert_eq!(
            collector.rate("a", at(2000), Some(1_000_000_000)),
            Some(500_000_000)
        );
        let soon = collector.rate("a", at(2001), Some(1_100_000_000));
        assert_eq!(soon, Some(500_000_000));
        assert_eq!(collector.rate("b", at(0), None), None);
    }

    #[test]
    fn times_are_as_the_api_writes_them() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        assert_eq!(timestamp(time), "1970-01-01T00:00:01Z");
    }
}

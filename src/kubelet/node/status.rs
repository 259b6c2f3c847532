//! The status of the node: a pure rendering of what the machine and the runtime say.

use crate::fields::amounts;
use crate::machine::{Disk, MachineInfo, Memory};
use crate::qos::{Amounts, amount};
use crate::settings::{Floor, Settings};
use crate::status::wire_time;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus, NodeSystemInfo,
};
use sampan_cri::runtime::v1::{Image, RuntimeFeatures, RuntimeHandler};
use serde_json::{Value, json};

const MAX_IMAGES: usize = 50;
const MAX_IMAGE_NAMES: usize = 5;

/// How things are right now.
#[derive(Debug, Clone)]
pub struct Health {
    pub runtime: Result<(), String>,
    pub network: Result<(), String>,
    /// The runtime has just answered; otherwise this is what it said before.
    pub is_fresh: bool,
    pub handlers: Vec<RuntimeHandler>,
    pub features: Option<RuntimeFeatures>,
    pub memory: Memory,
    pub disk: Disk,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            runtime: Ok(()),
            network: Ok(()),
            is_fresh: false,
            handlers: Vec::new(),
            features: None,
            memory: Memory::default(),
            disk: Disk::default(),
        }
    }
}

pub struct Facts<'a> {
    pub settings: &'a Settings,
    pub machine: &'a MachineInfo,
    pub runtime_version: &'a str,
    pub images: &'a [ContainerImage],
    pub health: &'a Health,
}

/// What the machine has.
pub fn capacity(machine: &MachineInfo, disk: &Disk, max_pods: u32) -> Amounts {
    let mut all = amounts([
        ("cpu", machine.cpus.to_string()),
        ("memory", format!("{}Ki", machine.memory_bytes / 1024)),
        (
            "ephemeral-storage",
            format!("{}Ki", disk.capacity_bytes / 1024),
        ),
        ("pods", max_pods.to_string()),
    ]);
    all.extend(huge_pages(machine));
    all
}

fn huge_pages(machine: &MachineInfo) -> Amounts {
    let rows = machine.huge_pages.iter().map(|(size, count)| {
        let name = if *size >= 1 << 30 {
            format!("hugepages-{}Gi", size >> 30)
        } else if *size >= 1 << 20 {
            format!("hugepages-{}Mi", size >> 20)
        } else {
            format!("hugepages-{}Ki", size >> 10)
        };
        let total = size * count;
        let text = if total == 0 {
            "0".to_owned()
        } else {
            format!("{}Ki", total / 1024)
        };
        (
            name,
            k8s_openapi::apimachinery::pkg::api::resource::Quantity(text),
        )
    });
    rows.collect()
}

/// What pods may have of it.
pub fn allocatable(settings: &Settings, machine: &MachineInfo, disk: &Disk) -> Amounts {
    let floors = settings.floors;
    let huge: u64 = machine.huge_pages.iter().map(|(s, n)| s * n).sum();
    let memory = machine
        .memory_bytes
        .saturating_sub(floors.memory.of(machine.memory_bytes) + huge);
    let storage = disk
        .capacity_bytes
        .saturating_sub(floors.disk.of(disk.capacity_bytes));
    let reserved = |name: &str| amount(Some(&settings.reserved), name);
    let without = |whole: u64, name: &str| {
        whole.saturating_sub(u64::try_from(reserved(name).value()).unwrap_or_default())
    };
    let millis = machine.cpus * 1000;
    let millis =
        millis.saturating_sub(u64::try_from(reserved("cpu").milli_value()).unwrap_or_default());
    let cpu = if millis % 1000 == 0 {
        (millis / 1000).to_string()
    } else {
        format!("{millis}m")
    };
    let mut all = amounts([
        ("cpu", cpu),
        ("memory", format!("{}Ki", without(memory, "memory") / 1024)),
        (
            "ephemeral-storage",
            without(storage, "ephemeral-storage").to_string(),
        ),
        ("pods", settings.max_pods.to_string()),
    ]);
    all.extend(huge_pages(machine));
    all
}

pub fn render(facts: &Facts<'_>, before: &NodeStatus, now: Timestamp) -> NodeStatus {
    let settings = facts.settings;
    let disk = &facts.health.disk;
    // Without an answer from the disk the last figures stand.
    let knows_disk = disk.capacity_bytes > 0;
    let max_pods = settings.max_pods;
    let (capacity, allocatable) = if knows_disk {
        (
            Some(capacity(facts.machine, disk, max_pods)),
            Some(allocatable(settings, facts.machine, disk)),
        )
    } else {
        (before.capacity.clone(), before.allocatable.clone())
    };
    NodeStatus {
        addresses: Some(addresses(settings)),
        capacity,
        allocatable,
        conditions: Some(conditions(facts, before, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: i32::from(settings.port),
            }),
        }),
        features: facts.health.features.as_ref().map(|f| NodeFeatures {
            supplemental_groups_policy: Some(f.supplemental_groups_policy),
        }),
        images: (!facts.images.is_empty()).then(|| facts.images.to_vec()),
        node_info: Some(node_info(facts)),
        runtime_handlers: runtime_handlers(&facts.health.handlers),
        ..NodeStatus::default()
    }
}

fn addresses(settings: &Settings) -> Vec<NodeAddress> {
    let row = |kind: &str, address: String| NodeAddress {
        type_: kind.to_owned(),
        address,
    };
    let ips = settings.node_ips.iter();
    ips.map(|ip| row("InternalIP", ip.to_string()))
        .chain([row("Hostname", settings.hostname.clone())])
        .collect()
}

fn node_info(facts: &Facts<'_>) -> NodeSystemInfo {
    let machine = facts.machine;
    NodeSystemInfo {
        architecture: machine.architecture.to_owned(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: facts.runtime_version.to_owned(),
        kernel_version: machine.kernel_version.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: facts.settings.version.clone(),
        machine_id: machine.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: machine.os_image.clone(),
        swap: None,
        system_uuid: machine.system_uuid.clone(),
    }
}

fn runtime_handlers(handlers: &[RuntimeHandler]) -> Option<Vec<NodeRuntimeHandler>> {
    let rows = handlers.iter().map(|handler| {
        let features = handler.features.as_ref();
        NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(
                    features.is_some_and(|f| f.recursive_read_only_mounts),
                ),
                user_namespaces: Some(features.is_some_and(|f| f.user_namespaces)),
            }),
        }
    });
    let rows: Vec<_> = rows.collect();
    (!rows.is_empty()).then_some(rows)
}

/// The largest images, each with its first names.
pub fn images(all: &[Image]) -> Vec<ContainerImage> {
    let mut rows: Vec<ContainerImage> = all
        .iter()
        .map(|image| {
            let names = image.repo_digests.iter().chain(&image.repo_tags);
            ContainerImage {
                names: Some(names.take(MAX_IMAGE_NAMES).cloned().collect()),
                size_bytes: i64::try_from(image.size).ok(),
            }
        })
        .collect();
    rows.sort_by(|a, b| {
        b.size_bytes
            .cmp(&a.size_bytes)
            .then_with(|| a.names.cmp(&b.names))
    });
    rows.truncate(MAX_IMAGES);
    rows
}

/// A condition: its kind, whether it holds, and the words for both cases.
struct Row {
    kind: &'static str,
    holds: bool,
    reasons: [&'static str; 2],
    messages: [String; 2],
}

fn conditions(facts: &Facts<'_>, before: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
    let health = facts.health;
    let floors = facts.settings.floors;
    let memory = &health.memory;
    let disk = &health.disk;
    let low_memory =
        memory.total_bytes > 0 && memory.available_bytes < floors.memory.of(memory.total_bytes);
    let low = |free: u64, total: u64, floor: Floor| total > 0 && free < floor.of(total);
    let low_disk = low(disk.available_bytes, disk.capacity_bytes, floors.disk)
        || low(disk.inodes_free, disk.inodes, floors.inodes);
    let problems: Vec<&str> = [&health.runtime, &health.network]
        .into_iter()
        .filter_map(|r| r.as_ref().err().map(String::as_str))
        .collect();
    let problem = match problems.as_slice() {
        [one] => (*one).to_owned(),
        several => format!("[{}]", several.join(", ")),
    };
    let text = |text: &str| text.to_owned();
    let rows = [
        Row {
            kind: "MemoryPressure",
            holds: low_memory,
            reasons: ["KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"],
            messages: [
                text("kubelet has insufficient memory available"),
                text("kubelet has sufficient memory available"),
            ],
        },
        Row {
            kind: "DiskPressure",
            holds: low_disk,
            reasons: ["KubeletHasDiskPressure", "KubeletHasNoDiskPressure"],
            messages: [
                text("kubelet has disk pressure"),
                text("kubelet has no disk pressure"),
            ],
        },
        Row {
            kind: "PIDPressure",
            holds: false,
            reasons: ["KubeletHasInsufficientPID", "KubeletHasSufficientPID"],
            messages: [
                text("kubelet has insufficient PID available"),
                text("kubelet has sufficient PID available"),
            ],
        },
        // Ready comes last: others rely on it.
        Row {
            kind: "Ready",
            holds: problems.is_empty(),
            reasons: ["KubeletReady", "KubeletNotReady"],
            messages: [text("kubelet is posting ready status"), problem],
        },
    ];
    rows.into_iter()
        .map(|row| condition(row, before, now))
        .collect()
}

fn condition(row: Row, before: &NodeStatus, now: Timestamp) -> NodeCondition {
    let status = if row.holds { "True" } else { "False" };
    let index = usize::from(!row.holds);
    let same = before
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == row.kind && c.status == status);
    let [if_true, if_false] = row.messages;
    NodeCondition {
        type_: row.kind.to_owned(),
        status: status.to_owned(),
        reason: Some(row.reasons[index].to_owned()),
        message: Some(if row.holds { if_true } else { if_false }),
        last_heartbeat_time: Some(wire_time(now)),
        last_transition_time: same
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(wire_time(now))),
    }
}

/// Whether two statuses say different things; the time of saying does not count.
pub fn differs(before: &NodeStatus, after: &NodeStatus) -> bool {
    let plain = |status: &NodeStatus| {
        let mut value = patch(status);
        if let Some(rows) = value["conditions"].as_array_mut() {
            for row in rows.iter_mut() {
                row["lastHeartbeatTime"] = Value::Null;
            }
            let owned = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
            rows.retain(|row| owned.iter().any(|kind| row["type"] == *kind));
        }
        value
    };
    plain(before) != plain(after)
}

/// The fields that we own, for a strategic merge patch.
pub fn patch(status: &NodeStatus) -> Value {
    let value = serde_json::to_value(status).unwrap_or(Value::Null);
    let mut patch = json!({});
    for field in [
        "addresses",
        "allocatable",
        "capacity",
        "conditions",
        "daemonEndpoints",
        "features",
        "images",
        "nodeInfo",
        "runtimeHandlers",
    ] {
        if let Some(value) = value.get(field) {
            patch[field] = value.clone();
        }
    }
    if let Some(rows) = patch["addresses"].as_array_mut() {
        // Two addresses may have one type, which is the key lists merge by.
        rows.push(json!({"$patch": "replace"}));
    }
    patch
}

/// The events that a change of conditions makes.
pub fn announcements(before: Option<&NodeStatus>, after: &NodeStatus) -> Vec<&'static str> {
    let held = |kind: &str| {
        let rows = before.and_then(|s| s.conditions.as_ref());
        rows.into_iter()
            .flatten()
            .find(|c| c.type_ == kind)
            .map(|c| c.status.as_str())
    };
    let rows = after.conditions.iter().flatten();
    rows.filter(|c| held(&c.type_) != Some(c.status.as_str()))
        .filter_map(|c| {
            let holds = c.status == "True";
            Some(match c.type_.as_str() {
                "MemoryPressure" if holds => "NodeHasInsufficientMemory",
                "MemoryPressure" => "NodeHasSufficientMemory",
                "DiskPressure" if holds => "NodeHasDiskPressure",
                "DiskPressure" => "NodeHasNoDiskPressure",
                "PIDPressure" if holds => "NodeHasInsufficientPID",
                "PIDPressure" => "NodeHasSufficientPID",
                "Ready" if holds => "NodeReady",
                // A new node is not ready, which is no news.
                "Ready" => before.map(|_| "NodeNotReady")?,
                _ => return None,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::at;

    fn facts_of(health: &Health, check: impl FnOnce(&Facts<'_>)) {
        let machine = MachineInfo {
            cpus: 4,
            memory_bytes: 8 << 30,
            ..MachineInfo::read()
        };
        let settings = crate::settings::Settings::for_test();
        check(&Facts {
            settings: &settings,
            machine: &machine,
            runtime_version: "containerd://1.6.20",
            images: &[],
            health,
        });
    }

    fn healthy() -> Health {
        Health {
            memory: Memory {
                total_bytes: 8 << 30,
                available_bytes: 4 << 30,
                ..Memory::default()
            },
            disk: Disk {
                capacity_bytes: 100 << 30,
                available_bytes: 50 << 30,
                ..Disk::default()
            },
            ..Health::default()
        }
    }

    #[test]
    fn a_healthy_node_is_ready_with_reserves() {
        facts_of(&healthy(), |facts| {
            let status = render(facts, &NodeStatus::default(), at(0));
            let value = serde_json::to_value(&status).unwrap();
            assert_eq!(value["capacity"]["memory"], "8388608Ki");
            assert_eq!(value["allocatable"]["memory"], "8286208Ki");
            let rows = value["conditions"].as_array().unwrap();
            assert_eq!(rows[3]["reason"], "KubeletReady");
            assert_eq!(rows[1]["reason"], "KubeletHasNoDiskPressure");
            assert_eq!(
                announcements(None, &status),
                [
                    "NodeHasSufficientMemory",
                    "NodeHasNoDiskPressure",
                    "NodeHasSufficientPID",
                    "NodeReady"
                ]
            );
            let later = render(facts, &status, at(60));
            assert!(!differs(&status, &later));
        });
    }

    #[test]
    fn what_is_wrong_is_said() {
        let health = Health {
            network: Err("container runtime network not ready: x".into()),
            disk: Disk {
                capacity_bytes: 100 << 30,
                available_bytes: 5 << 30,
                ..Disk::default()
            },
            ..healthy()
        };
        facts_of(&health, |facts| {
            let status = render(facts, &NodeStatus::default(), at(0));
            let rows = status.conditions.unwrap();
            assert_eq!(rows[1].status, "True");
            assert_eq!(rows[3].status, "False");
            assert_eq!(
                rows[3].message.as_deref(),
                Some("container runtime network not ready: x")
            );
        });
    }
}

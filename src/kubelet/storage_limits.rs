//! Pods that use more of the disk than they may are stopped.
//!
//! A file system tells nobody that a directory has grown, so those pods that have a limit are measured
//! now and then; a node without such pods measures nothing. Upstream counterpart: the part of
//! `eviction_manager` for limits.

use crate::dirs::Dirs;
use crate::manager::{Note, Notes, View, Views};
use crate::plan::Verdict;
use crate::pod;
use crate::qos::amount;
use k8s_openapi::api::core::v1::{Container, Pod};
use sampan_api::quantity::Quantity;
use sampan_cri::Runtime;
use sampan_cri::runtime::v1::{ContainerStatsFilter, ListContainerStatsRequest};
use sampan_util::Shutdown;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(10);
const STORAGE: &str = "ephemeral-storage";
/// Whoever has filled the disk gets no long good-bye.
const GRACE: i64 = 1;

/// What a pod uses, in bytes.
#[derive(Debug, Default)]
struct Usage {
    /// By name, those on disk.
    empty_dirs: HashMap<String, u64>,
    /// What containers have written, and their logs.
    containers: HashMap<String, u64>,
}

pub struct Watch {
    pub views: Arc<Views>,
    pub dirs: Dirs,
    pub runtime: Runtime,
    pub notes: Arc<Notes>,
}

impl Watch {
    pub async fn run(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = shutdown.wait() => return,
            }
            for view in self.views.all() {
                if !has_limits(&view.pod) || pod::is_terminal_phase(pod::phase(&view.pod)) {
                    continue;
                }
                let usage = self.measure(&view).await;
                if let Some(verdict) = judge(&view.pod, &usage) {
                    let uid = pod::uid(&view.pod).to_owned();
                    self.notes.send(Note::Evicted(uid, verdict));
                }
            }
        }
    }

    async fn measure(&self, view: &View) -> Usage {
        let mut usage = Usage {
            containers: self.written(view).await,
            ..Usage::default()
        };
        let (dirs, pod) = (self.dirs.of(&view.pod), Arc::clone(&view.pod));
        let logs = view.logs.clone();
        let measured = tokio::task::spawn_blocking(move || {
            let volumes = empty_dirs(&pod).map(|(name, _)| {
                let path = dirs.volume("kubernetes.io~empty-dir", name);
                (name.to_owned(), size_of(&path))
            });
            let volumes: HashMap<String, u64> = volumes.collect();
            let logs = pod::containers(&pod)
                .map(|(_, c)| (c.name.clone(), size_of(&logs.join(&c.name))))
                .collect::<Vec<_>>();
            (volumes, logs)
        });
        let (volumes, logs) = measured.await.unwrap_or_default();
        usage.empty_dirs = volumes;
        for (name, bytes) in logs {
            *usage.containers.entry(name).or_default() += bytes;
        }
        usage
    }

    /// The writable layers of the pod's containers, as the runtime knows them.
    async fn written(&self, view: &View) -> HashMap<String, u64> {
        if limits(&view.pod).next().is_none() {
            return HashMap::new();
        }
        let label = crate::config::labels::POD_UID.to_owned();
        let request = ListContainerStatsRequest {
            filter: Some(ContainerStatsFilter {
                label_selector: [(label, pod::uid(&view.pod).to_owned())].into(),
                ..ContainerStatsFilter::default()
            }),
        };
        let Ok(reply) = self.runtime.list_container_stats(request).await else {
            return HashMap::new();
        };
        let rows = reply.stats.into_iter().filter_map(|stats| {
            let name = stats.attributes?.metadata?.name;
            Some((name, stats.writable_layer?.used_bytes?.value))
        });
        rows.collect()
    }
}

/// Directories on disk that the pod's containers share.
fn empty_dirs(pod: &Pod) -> impl Iterator<Item = (&str, Option<Quantity>)> {
    let volumes = pod::spec(pod).volumes.iter().flatten();
    volumes.filter_map(|volume| {
        let source = volume.empty_dir.as_ref()?;
        let on_disk = source.medium.as_deref().unwrap_or_default().is_empty();
        let limit = source.size_limit.as_ref();
        let limit = limit.and_then(|l| l.0.parse::<Quantity>().ok());
        on_disk.then_some((volume.name.as_str(), limit.filter(|l| !l.is_zero())))
    })
}

fn limit_of(container: &Container) -> Option<Quantity> {
    let resources = container.resources.as_ref()?;
    let limit = amount(resources.limits.as_ref(), STORAGE);
    (!limit.is_zero()).then_some(limit)
}

fn limits(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    let containers = pod::spec(pod).containers.iter();
    containers.filter_map(|c| Some((c.name.as_str(), limit_of(c)?)))
}

fn has_limits(pod: &Pod) -> bool {
    empty_dirs(pod).any(|(_, limit)| limit.is_some()) || limits(pod).next().is_some()
}

fn exceeds(used: u64, limit: Quantity) -> bool {
    i64::try_from(used).unwrap_or(i64::MAX) > limit.value()
}

/// The first limit that is exceeded: a volume's, the pod's, a container's.
fn judge(pod: &Pod, usage: &Usage) -> Option<Verdict> {
    let used = |map: &HashMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
    let volume = empty_dirs(pod).find_map(|(name, limit)| {
        let limit = limit.filter(|l| exceeds(used(&usage.empty_dirs, name), *l))?;
        Some(format!(
            "Usage of EmptyDir volume {name:?} exceeds the limit \"{limit}\". "
        ))
    });
    let whole = || {
        let all = pod::spec(pod).containers.len();
        let limited: Vec<Quantity> = limits(pod).map(|(_, limit)| limit).collect();
        // One container without a limit leaves the pod without one.
        if limited.is_empty() || limited.len() != all {
            return None;
        }
        let total: i64 = limited.iter().map(|l| l.value()).sum();
        let sum: u64 = usage
            .empty_dirs
            .values()
            .chain(usage.containers.values())
            .sum();
        let total = Quantity::from_units(total, limited[0].format());
        exceeds(sum, total).then(|| {
            format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
            )
        })
    };
    let container = || {
        limits(pod).find_map(|(name, limit)| {
            exceeds(used(&usage.containers, name), limit).then(|| {
                format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ")
            })
        })
    };
    let message = volume.or_else(whole).or_else(container)?;
    Some(Verdict {
        reason: "Evicted".to_owned(),
        message,
        refused: false,
        grace: Some(GRACE),
    })
}

/// What lies below, as the disk counts it; other file systems mounted there are not followed.
fn size_of(path: &Path) -> u64 {
    const BLOCK: u64 = 512;
    let Ok(root) = std::fs::symlink_metadata(path) else {
        return 0;
    };
    let mut total = 0;
    let mut left = vec![path.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(about) = entry.metadata() else {
                continue;
            };
            total += about.blocks() * BLOCK;
            if about.is_dir() && about.dev() == root.dev() {
                left.push(entry.path());
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::json;

    fn message(pod: &Pod, volume: u64, container: u64) -> Option<String> {
        let usage = Usage {
            empty_dirs: [("v".to_owned(), volume)].into(),
            containers: [("a".to_owned(), container)].into(),
        };
        judge(pod, &usage).map(|v| v.message)
    }

    #[test]
    fn each_limit_is_held() {
        let spec = |limit: &str| {
            pod_of(
                json!({"containers": [{"name": "a", "resources": {"limits": {"ephemeral-storage": "1Mi"}}},
                          {"name": "b", "resources": {"limits": {"ephemeral-storage": limit}}}],
                          "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]}),
            )
        };
        let pod = spec("1Mi");
        assert!(has_limits(&pod));
        assert_eq!(message(&pod, 1024, 1 << 20), None);
        assert_eq!(
            message(&pod, 1025, 0).unwrap(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "
        );
        assert_eq!(
            message(&pod, 0, (1 << 20) + 1).unwrap(),
            "Container a exceeded its local ephemeral storage limit \"1Mi\". "
        );
        assert_eq!(
            message(&pod, 0, (2 << 20) + 1).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
        );
        // b has no limit, so neither has the pod.
        let text = message(&spec("0"), 0, (2 << 20) + 1).unwrap();
        assert!(text.starts_with("Container a"), "{text}");
    }

    #[test]
    fn memory_is_bounded_by_its_mount() {
        let volumes = json!([{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ki"}}]);
        let pod = pod_of(json!({"containers": [], "volumes": volumes}));
        assert!(!has_limits(&pod));
    }

    #[test]
    fn a_tree_is_measured() {
        let dir = std::env::temp_dir().join(format!("sampan-size-{}", rand::random::<u64>()));
        std::fs::create_dir_all(dir.join("deep")).unwrap();
        std::fs::write(dir.join("deep/file"), vec![1; 100_000]).unwrap();
        let size = size_of(&dir);
        assert!((100_000..200_000).contains(&size), "{size}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

//! What is left of pods that the API does not know any more.

use crate::dirs::Dirs;
use crate::relist::SeenPod;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// As much of the pod as its containers' labels tell.
pub fn pod_of(seen: &SeenPod) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(seen.name.clone()),
            namespace: Some(seen.namespace.clone()),
            uid: Some(seen.uid.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            termination_grace_period_seconds: seen.grace,
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// Pods that have directories: by their logs, which carry the names, and by their files.
pub fn on_disk(dirs: &Dirs) -> Vec<SeenPod> {
    let names = |path: &std::path::Path| -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(path) else {
            return Vec::new();
        };
        let names = entries.flatten().map(|e| e.file_name());
        names.filter_map(|n| n.into_string().ok()).collect()
    };
    let mut pods: Vec<SeenPod> = names(&dirs.logs)
        .iter()
        .filter_map(|name| parse_log_name(name))
        .collect();
    for uid in names(&dirs.pods) {
        if !pods.iter().any(|p| p.uid == uid) {
            pods.push(SeenPod {
                name: "unknown".to_owned(),
                namespace: "unknown".to_owned(),
                uid,
                grace: None,
            });
        }
    }
    pods
}

/// `namespace_name_uid`.
fn parse_log_name(name: &str) -> Option<SeenPod> {
    let (namespace, rest) = name.split_once('_')?;
    let (name, uid) = rest.rsplit_once('_')?;
    Some(SeenPod {
        uid: uid.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        grace: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_directories_name_their_pod() {
        let pod = parse_log_name("kube-system_web-0_1-2-3");
        assert_eq!(
            pod.map(|p| (p.namespace, p.name, p.uid)),
            Some(("kube-system".into(), "web-0".into(), "1-2-3".into()))
        );
    }
}

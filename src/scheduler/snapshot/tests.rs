#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;

fn node(name: &str, version: u64) -> Node {
    let cpu = format!("{}", 4 + version);
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"version": version.to_string()}},
        "status": {
            "allocatable": {"cpu": cpu, "pods": "110"},
            "images": [{"names": [format!("image-{}:latest", version % 3)], "sizeBytes": 100}],
        },
    }))
    .unwrap()
}

fn pod(uid: u64, node: &str, cpu: u64) -> Arc<PodInfo> {
    let anti = if uid.is_multiple_of(3) {
        json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}},
        ]}})
    } else {
        json!(null)
    };
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid.to_string()},
        "spec": {
            "nodeName": node,
            "affinity": anti,
            "containers": [{
                "name": "main",
                "resources": {"requests": {"cpu": format!("{cpu}m"), "example.com/gpu": uid % 2}},
                "ports": [{"containerPort": 80, "hostPort": 8000 + uid}],
            }],
        },
    }))
    .unwrap();
    Arc::new(PodInfo::new(&pod))
}

/// A small generator, so that a failure is the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What must be equal however the snapshot came about.
fn essence(snapshot: &Snapshot) -> impl PartialEq + std::fmt::Debug {
    let nodes: BTreeMap<_, _> = snapshot
        .nodes
        .iter()
        .map(|node| {
            let mut pods: Vec<_> = node.pods.iter().map(|pod| pod.uid.clone()).collect();
            pods.sort();
            let mut ports: Vec<_> = node.ports.iter().map(|port| port.port).collect();
            ports.sort_unstable();
            let sums = (
                node.requested.clone(),
                node.requested_for_scoring.clone(),
                node.allocatable.clone(),
            );
            let counts = (
                node.pods_with_affinity,
                node.pods_with_required_anti_affinity,
            );
            (
                node.name.clone(),
                (pods, ports, sums, counts, node.labels.clone()),
            )
        })
        .collect();
    let images: BTreeMap<_, _> = snapshot
        .image_nodes
        .iter()
        .map(|(image, count)| (image.clone(), *count))
        .collect();
    let homeless: BTreeMap<_, _> = snapshot
        .homeless
        .iter()
        .map(|(node, pods)| {
            let mut pods: Vec<_> = pods.iter().map(|pod| pod.uid.clone()).collect();
            pods.sort();
            (node.clone(), pods)
        })
        .collect();
    (
        nodes,
        images,
        homeless,
        snapshot.pods_with_affinity,
        snapshot.pods_with_required_anti_affinity,
    )
}

#[test]
fn changes_one_by_one_give_what_building_at_once_gives() {
    for seed in 1..40 {
        let mut random = Random(seed * 7919);
        let mut snapshot = Snapshot::default();
        let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
        let mut pods: BTreeMap<u64, Arc<PodInfo>> = BTreeMap::new();
        for _ in 0..200 {
            let name = format!("node-{}", random.below(5));
            match random.below(6) {
                0 | 1 => {
                    let node = node(&name, random.below(4));
                    snapshot.set_node(&node);
                    nodes.insert(name, node);
                }
                2 => {
                    snapshot.remove_node(&name);
                    nodes.remove(&name);
                }
                3 => {
                    let uid = random.below(20);
                    snapshot.remove_pod(&uid.to_string());
                    pods.remove(&uid);
                }
                _ => {
                    let uid = random.below(20);
                    let pod = pod(uid, &name, random.below(500));
                    if random.below(2) == 0 {
                        snapshot.assume(pod.clone(), Arc::from(name.as_str()));
                    } else {
                        snapshot.set_pod(pod.clone());
                    }
                    pods.insert(uid, pod);
                }
            }
        }
        let mut rebuilt = Snapshot::default();
        nodes.values().for_each(|node| rebuilt.set_node(node));
        pods.values().for_each(|pod| rebuilt.set_pod(pod.clone()));
        assert_eq!(essence(&snapshot), essence(&rebuilt), "seed {seed}");
    }
}

#[test]
fn every_node_is_found_by_name_after_removals() {
    let mut snapshot = Snapshot::default();
    for number in 0..5 {
        snapshot.set_node(&node(&format!("node-{number}"), 0));
    }
    snapshot.remove_node("node-1");
    for name in ["node-0", "node-2", "node-3", "node-4"] {
        assert_eq!(&*snapshot.node(name).unwrap().name, name);
    }
    assert!(snapshot.node("node-1").is_none());
}

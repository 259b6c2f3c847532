#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use super::*;
use crate::node_info::NodeInfo;
use crate::plugins::PLUGINS;

fn pod(name: &str, priority: i32) -> Arc<PodInfo> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"priority": priority, "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]},
    }))
    .unwrap();
    Arc::new(PodInfo::new(&pod))
}

fn node(cpu: &str) -> NodeInfo {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "node"}, "status": {"allocatable": {"cpu": cpu, "pods": "10"}},
    }))
    .unwrap();
    NodeInfo::new(&node)
}

fn by(plugin: &str) -> PluginSet {
    let mut set = PluginSet::default();
    set.insert(PLUGINS.iter().position(|row| row.name == plugin).unwrap());
    set
}

fn names(queue: &mut Queue, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| queue.pop(now))
        .map(|waiting| waiting.pod.name.clone())
        .collect()
}

#[test]
fn important_pods_come_first_and_equals_in_order() {
    let mut queue = Queue::default();
    for (name, priority) in [("a", 0), ("b", 10), ("c", 0), ("d", 10)] {
        queue.add(pod(name, priority));
    }
    queue.remove("c");
    assert_eq!(names(&mut queue, Instant::now()), ["b", "d", "a"]);
}

#[test]
fn a_refused_pod_wakes_only_for_events_its_plugins_care_about() {
    let (mut queue, snapshot, now) = (Queue::default(), Snapshot::default(), Instant::now());
    queue.add(pod("a", 0));
    let waiting = queue.pop(now).unwrap();
    queue.refuse(waiting, by("NodeResourcesFit"), now);
    queue.notice(&Event::NamespaceChanged, &snapshot, now);
    queue.notice(&Event::NodeAdded(&node("500m")), &snapshot, now);
    assert!(queue.pop(now).is_none());
    queue.notice(&Event::NodeAdded(&node("2")), &snapshot, now);
    assert_eq!(queue.pop(now).unwrap().attempts, 2);
}

#[test]
fn after_an_error_it_waits_longer_each_time() {
    let (mut queue, start) = (Queue::default(), Instant::now());
    queue.add(pod("a", 0));
    let mut now = start;
    let mut waits = Vec::new();
    for _ in 0..6 {
        let waiting = queue.pop(now).unwrap();
        queue.retry(waiting, now);
        let deadline = queue.next_deadline().unwrap();
        assert!(queue.pop(deadline - Duration::from_millis(1)).is_none());
        waits.push((deadline - now).as_secs());
        now = deadline;
    }
    assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn a_woken_pod_backs_off_while_others_wait_and_goes_early_when_none_do() {
    let (mut queue, snapshot, now) = (Queue::default(), Snapshot::default(), Instant::now());
    queue.add(pod("refused", 100));
    let waiting = queue.pop(now).unwrap();
    queue.refuse(waiting, by("NodeResourcesFit"), now);
    queue.notice(&Event::PodRemoved(&pod("gone", 0)), &snapshot, now);
    queue.add(pod("new", 0));
    assert_eq!(names(&mut queue, now), ["new", "refused"]);
}

#[test]
fn gates_hold_a_pod_until_the_last_is_gone() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let mut gated = (*pod("a", 0)).clone();
    gated.gates = vec!["example.com/gate".to_owned()];
    queue.add(Arc::new(gated));
    assert!(queue.pop(now).is_none());
    queue.update(pod("a", 0), now);
    assert_eq!(names(&mut queue, now), ["a"]);
}

#[test]
fn a_refused_pod_that_changes_gets_another_chance() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(pod("a", 0));
    let waiting = queue.pop(now).unwrap();
    queue.refuse(waiting, by("NodeAffinity"), now);
    let mut same = (*pod("a", 0)).clone();
    same.resource_version = "2".to_owned();
    queue.update(Arc::new(same.clone()), now);
    assert!(queue.pop(now).is_none());
    same.labels.insert("a".to_owned(), "b".to_owned());
    queue.update(Arc::new(same), now);
    assert_eq!(names(&mut queue, now), ["a"]);
}

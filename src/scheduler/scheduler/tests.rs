#![allow(clippy::unwrap_used)]

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use sampan_api::{Reason, Verb};
use sampan_client::DeleteOptions;
use sampan_client::testing::{FakeServer, failure};
use serde_json::{Value, json};

use super::*;

/// A scheduler on a server in memory.
struct World {
    server: FakeServer,
    client: Client,
    shutdown: Shutdown,
}

impl World {
    fn start() -> Self {
        let (server, shutdown) = (FakeServer::new(), Shutdown::new());
        let client = server.client();
        let informers = Informers::new(client.clone(), shutdown.clone());
        tokio::spawn(run(
            client.clone(),
            informers,
            Settings::default(),
            shutdown.clone(),
        ));
        Self {
            server,
            client,
            shutdown,
        }
    }

    async fn node(&self, name: &str, cpu: &str) {
        let node: core::Node = serde_json::from_value(json!({
            "metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "pods": "110"}},
        }))
        .unwrap();
        self.client.create(&node).await.unwrap();
    }

    async fn pod(&self, name: &str, spec: Value) {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"}, "spec": spec,
        }))
        .unwrap();
        self.client.create(&pod).await.unwrap();
    }

    fn get(&self, name: &str) -> Option<core::Pod> {
        let pods = self.server.all::<core::Pod>();
        pods.into_iter()
            .find(|pod| pod.metadata.name.as_deref() == Some(name))
    }

    fn node_of(&self, name: &str) -> Option<String> {
        self.get(name)?.spec?.node_name
    }

    fn events(&self, reason: &str) -> Vec<String> {
        let events = self.server.all::<core::Event>().into_iter();
        let wanted = events.filter(|event| event.reason.as_deref() == Some(reason));
        wanted.filter_map(|event| event.message).collect()
    }

    /// Time is paused: it passes as soon as nobody has anything to do.
    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {what}; writes: {:?}", self.server.writes());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]})
}

#[tokio::test(start_paused = true)]
async fn pods_are_bound_and_it_is_told() {
    let world = World::start();
    world.node("a", "2").await;
    world.pod("web", asking("1")).await;
    world
        .until("bound", |world| {
            world.node_of("web").as_deref() == Some("a")
        })
        .await;
    world
        .until("told", |world| {
            world.events("Scheduled") == ["Successfully assigned ns/web to a"]
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_node_says_why_and_goes_to_the_next_node_that_fits() {
    let world = World::start();
    world.node("a", "1").await;
    world.pod("web", asking("2")).await;
    let condition = |world: &World| world.get("web")?.status?.conditions?.pop();
    world
        .until("refused", |world| condition(world).is_some())
        .await;
    let refused = condition(&world).unwrap();
    assert_eq!(
        (refused.type_.as_str(), refused.status.as_str()),
        ("PodScheduled", "False")
    );
    assert_eq!(refused.reason.as_deref(), Some("Unschedulable"));
    let text = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
                1 Preemption is not helpful for scheduling.";
    assert_eq!(refused.message.as_deref(), Some(text));
    world
        .until("told", |world| world.events("FailedScheduling") == [text])
        .await;
    world.node("b", "4").await;
    world
        .until("bound", |world| {
            world.node_of("web").as_deref() == Some("b")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_binding_is_tried_again() {
    let world = World::start();
    world.node("a", "2").await;
    world
        .until("the node is known", |_| world.server.revision() > 0)
        .await;
    let refusal = failure(Reason::InternalError, "not now");
    world.pod("first", asking("2")).await;
    world
        .until("bound", |world| world.node_of("first").is_some())
        .await;
    world.pod("web", asking("2")).await;
    world
        .until("refused", |world| {
            !world.events("FailedScheduling").is_empty()
        })
        .await;
    // The create of the binding is the next one for pods.
    world.server.fail_next(Verb::Create, "pods", refusal);
    let options = DeleteOptions::default().grace_period(0);
    world
        .client
        .delete::<core::Pod>(Some("ns"), "first", &options)
        .await
        .unwrap();
    world
        .until("bound after all", |world| world.node_of("web").is_some())
        .await;
    let events = world.events("FailedScheduling");
    assert!(
        events
            .iter()
            .any(|event| event.contains("DefaultBinder") && event.contains("not now")),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_important_pod_takes_the_place_of_another() {
    let world = World::start();
    world.node("a", "2").await;
    world.pod("small", asking("2")).await;
    world
        .until("bound", |world| world.node_of("small").is_some())
        .await;
    let mut important = asking("2");
    important["priority"] = json!(1000);
    world.pod("big", important).await;
    world
        .until("nominated", |world| {
            let nominated = |pod: core::Pod| pod.status?.nominated_node_name;
            world.get("big").and_then(nominated).as_deref() == Some("a")
        })
        .await;
    world
        .until("the victim leaves", |world| {
            world
                .get("small")
                .is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
        })
        .await;
    let options = DeleteOptions::default().grace_period(0);
    if world.get("small").is_some() {
        world
            .client
            .delete::<core::Pod>(Some("ns"), "small", &options)
            .await
            .unwrap();
    }
    world
        .until("bound", |world| {
            world.node_of("big").as_deref() == Some("a")
        })
        .await;
    assert_eq!(world.events("Preempted").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_of_other_schedulers_are_not_touched() {
    let world = World::start();
    world.node("a", "2").await;
    let mut theirs = asking("1");
    theirs["schedulerName"] = json!("theirs");
    world.pod("theirs", theirs).await;
    world.pod("ours", asking("1")).await;
    world
        .until("bound", |world| world.node_of("ours").is_some())
        .await;
    assert_eq!(world.node_of("theirs"), None);
}

#[tokio::test(start_paused = true)]
async fn many_pods_fill_the_nodes_and_no_node_is_overfull() {
    let world = World::start();
    for number in 0..10 {
        world.node(&format!("node-{number}"), "4").await;
    }
    for number in 0..50 {
        world.pod(&format!("pod-{number}"), asking("1")).await;
    }
    let placed = |world: &World| {
        let mut counts = std::collections::BTreeMap::new();
        for pod in world.server.all::<core::Pod>() {
            if let Some(node) = pod.spec.unwrap().node_name {
                *counts.entry(node).or_insert(0) += 1;
            }
        }
        counts
    };
    world
        .until("all room is used", |world| {
            placed(world).values().sum::<i32>() == 40
        })
        .await;
    assert!(placed(&world).values().all(|count| *count == 4));
}

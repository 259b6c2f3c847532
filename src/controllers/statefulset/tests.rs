#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::fixtures::{at, make_ready, object};

fn set(replicas: i32, image: &str) -> StatefulSet {
    object(json!({
        "metadata": {"namespace": "ns", "name": "web", "uid": "uid-web", "generation": 1},
        "spec": {
            "replicas": replicas,
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        },
    }))
}

#[derive(Default)]
struct World {
    pods: Vec<Pod>,
    claims: Vec<PersistentVolumeClaim>,
    revisions: Vec<ControllerRevision>,
}

impl World {
    fn plan(&self, set: &StatefulSet) -> Plan {
        let observed = Observed {
            selector: selector_of(&set.spec.as_ref().unwrap().selector),
            set: Arc::new(set.clone()),
            pods: self.pods.iter().cloned().map(Arc::new).collect(),
            claims: self
                .claims
                .iter()
                .map(|claim| {
                    (
                        owner::name(&claim.metadata).to_owned(),
                        Arc::new(claim.clone()),
                    )
                })
                .collect(),
            revisions: self.revisions.iter().cloned().map(Arc::new).collect(),
            revision_names: HashSet::new(),
        };
        StatefulSetController::reconcile(&observed, at(1000))
    }

    /// Carries a plan out; pods become ready at once.
    fn run(&mut self, set: &mut StatefulSet) -> Vec<String> {
        let plan = self.plan(set);
        for step in plan.actions.iter().chain(&plan.status) {
            match &step.action {
                Action::Create { object, target } => self.create(&target.resource.resource, object),
                Action::Delete { target, .. } => {
                    self.pods.retain(|pod| pod.metadata.name != target.name);
                }
                Action::Make { .. } => {}
                Action::Write { target, change, .. } => {
                    if target.resource.resource == "statefulsets" {
                        let mut whole = crate::json::to_value(set);
                        crate::json::merge(&mut whole, change);
                        *set = object(whole);
                    }
                }
            }
        }
        let lines = plan.lines().into_iter();
        lines.filter(|line| line.contains(" pods ")).collect()
    }

    fn create(&mut self, plural: &str, made: &Value) {
        match plural {
            "pods" => {
                let mut pod: Pod = object(made.clone());
                pod.metadata.uid = pod.metadata.name.clone();
                pod.status = Some(Default::default());
                make_ready(&mut pod, at(0));
                self.pods.push(pod);
            }
            "persistentvolumeclaims" => self.claims.push(object(made.clone())),
            _ => self.revisions.push(object(made.clone())),
        }
    }
}

#[test]
fn pods_come_one_after_the_other_with_their_claims() {
    let (mut world, mut set) = (World::default(), set(3, "a"));
    assert_eq!(world.run(&mut set), ["create pods ns/web-0"]);
    assert_eq!(world.claims[0].metadata.name.as_deref(), Some("data-web-0"));
    assert_eq!(world.run(&mut set), ["create pods ns/web-1"]);
    world.pods[1].status.as_mut().unwrap().conditions = None;
    assert!(world.run(&mut set).is_empty(), "web-1 is not ready");
    make_ready(&mut world.pods[1], at(0));
    assert_eq!(world.run(&mut set), ["create pods ns/web-2"]);
    assert!(world.run(&mut set).is_empty());
    let pod = &world.pods[2];
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("web-2"));
    assert_eq!(spec.subdomain.as_deref(), Some("web"));
    assert_eq!(
        pod.metadata.labels.as_ref().unwrap()["apps.kubernetes.io/pod-index"],
        "2"
    );
    let status = set.status.unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (3, Some(3)));
}

#[test]
fn scaling_down_takes_the_highest_first() {
    let (mut world, mut three) = (World::default(), set(3, "a"));
    for _ in 0..3 {
        world.run(&mut three);
    }
    three.spec.as_mut().unwrap().replicas = Some(1);
    assert_eq!(world.run(&mut three), ["delete pods ns/web-2"]);
    assert_eq!(world.run(&mut three), ["delete pods ns/web-1"]);
    assert!(world.run(&mut three).is_empty());
    assert_eq!(world.claims.len(), 3, "claims are kept");
}

#[test]
fn in_parallel_all_come_at_once() {
    let (mut world, mut set) = (World::default(), set(2, "a"));
    set.spec.as_mut().unwrap().pod_management_policy = Some("Parallel".to_owned());
    assert_eq!(world.run(&mut set).len(), 2);
}

#[test]
fn updates_go_from_the_highest_down_to_the_partition() {
    let (mut world, mut first) = (World::default(), set(3, "a"));
    for _ in 0..4 {
        world.run(&mut first);
    }
    let mut second = set(3, "b");
    second.status = first.status.clone();
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}});
    second.spec.as_mut().unwrap().update_strategy = object(strategy);
    assert_eq!(world.run(&mut second), ["delete pods ns/web-2"]);
    assert_eq!(world.run(&mut second), ["create pods ns/web-2"]);
    assert_eq!(world.run(&mut second), ["delete pods ns/web-1"]);
    assert_eq!(world.run(&mut second), ["create pods ns/web-1"]);
    assert!(
        world.run(&mut second).is_empty(),
        "web-0 is below the partition"
    );
    let status = second.status.clone().unwrap();
    assert_eq!(
        (status.current_replicas, status.updated_replicas),
        (Some(1), Some(2))
    );
    assert_ne!(status.current_revision, status.update_revision);
    second.spec.as_mut().unwrap().update_strategy = None;
    assert_eq!(world.run(&mut second), ["delete pods ns/web-0"]);
    world.run(&mut second);
    world.run(&mut second);
    let status = second.status.unwrap();
    assert_eq!(status.current_revision, status.update_revision);
}

#[test]
fn a_failed_pod_is_made_anew() {
    let (mut world, mut set) = (World::default(), set(1, "a"));
    world.run(&mut set);
    world.pods[0].status.as_mut().unwrap().phase = Some("Failed".to_owned());
    let plan = world.plan(&set);
    assert_eq!(
        plan.events[0].message,
        "StatefulSet ns/web is recreating failed Pod web-0"
    );
    assert_eq!(world.run(&mut set), ["delete pods ns/web-0"]);
    assert_eq!(world.run(&mut set), ["create pods ns/web-0"]);
}

#[test]
fn claims_can_be_made_to_go_with_pods() {
    let (mut world, mut set) = (World::default(), set(2, "a"));
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
    set.spec
        .as_mut()
        .unwrap()
        .persistent_volume_claim_retention_policy = object(policy);
    world.run(&mut set);
    world.run(&mut set);
    set.spec.as_mut().unwrap().replicas = Some(1);
    let lines = world.plan(&set).lines();
    assert!(
        lines[0].starts_with("write persistentvolumeclaims ns/data-web-1"),
        "{lines:?}"
    );
    assert!(lines[0].contains("\"kind\":\"Pod\""), "{lines:?}");
    assert_eq!(lines[1], "delete pods ns/web-1");
}

#![allow(clippy::unwrap_used)]

use super::*;
use crate::fixture::{World, at};
use crate::state::RunState::{Created, Exited, Running};
use serde_json::json;

fn two() -> World {
    World::new(
        json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}],
        "terminationGracePeriodSeconds": 30}),
    )
}

fn with_init() -> World {
    World::new(json!({
        "initContainers": [{"name": "i", "image": "x"}, {"name": "side", "image": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "x"}],
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30}))
}

#[test]
fn a_new_pod_is_mounted_then_gets_a_sandbox_then_containers() {
    let mut world = two();
    world.volumes = Volumes::Unmounted;
    assert_eq!(world.actions(), "mount");
    world.volumes = Volumes::Mounted;
    assert_eq!(world.actions(), "create sandbox 0");
    world.busy.creating_sandbox = true;
    assert_eq!(world.actions(), "");
    world.busy.creating_sandbox = false;
    let world = world.with_sandbox();
    assert_eq!(world.actions(), "start a,b");
}

#[test]
fn what_is_under_way_is_not_asked_for_again() {
    let mut world = two().with_sandbox();
    world.busy.starting = ["b".to_owned()].into();
    let world = world.run("a", Running, 0);
    assert_eq!(world.actions(), "");
}

#[test]
fn init_containers_run_in_order_and_sidecars_stay() {
    let world = with_init().with_sandbox();
    assert_eq!(world.actions(), "start i");
    let world = world.run("i", Running, 0);
    assert_eq!(world.actions(), "");
    let mut world = world;
    world.runtime.instances.clear();
    let world = world.run("i", Exited, 0);
    assert_eq!(world.actions(), "start side");
    let world = world.run("side", Running, 0);
    assert_eq!(world.actions(), "start a");
    let mut world = world.run("a", Running, 0);
    assert_eq!(world.actions(), "");
    world.runtime.instances[1].state = Exited;
    assert_eq!(world.actions(), "start side");
}

#[test]
fn a_failed_init_container_is_fatal_only_under_never() {
    let failed = with_init().with_sandbox().run("i", Exited, 1);
    assert_eq!(failed.actions(), "start i");
    let mut never = failed;
    never.pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    let plan = never.plan();
    assert!(plan.stop.is_some());
    assert_eq!(never.actions(), "stop sandbox s0");
}

#[test]
fn a_crashing_container_waits_its_turn() {
    let mut world = two()
        .with_sandbox()
        .run("b", Running, 0)
        .run("a", Exited, 1);
    assert_eq!(world.actions(), "start a");
    let key = crash_key(&pod::spec(&world.pod).containers[0]);
    world.crashes.advance(&key, at(90), at(90));
    world.now = at(95);
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(plan.backing_off, [("a".to_owned(), at(100))]);
    assert_eq!(plan.wake_at, Some(at(100)));
    world.now = at(100);
    assert_eq!(world.actions(), "start a");
}

#[test]
fn failed_probes_kill_with_their_own_grace() {
    let mut world = World::new(json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "a", "image": "x", "livenessProbe": {"terminationGracePeriodSeconds": 5}}]}))
    .with_sandbox()
    .run("a", Running, 0);
    assert_eq!(world.actions(), "");
    let failed = ProbeState {
        liveness: Some(false),
        ..ProbeState::default()
    };
    world.probes.insert("a-0".into(), failed);
    let plan = world.plan();
    assert_eq!(world.actions(), "kill a in 5s");
    let Action::Kill { message, .. } = &plan.actions[0] else {
        panic!("not a kill");
    };
    assert_eq!(
        message,
        "Container a failed liveness probe, will be restarted"
    );
    world.busy.killing.insert("a-0".into(), 5);
    assert_eq!(world.actions(), "");
}

#[test]
fn a_changed_image_restarts_the_container() {
    let mut world = two()
        .with_sandbox()
        .run("b", Running, 0)
        .run("a", Running, 0);
    world.pod.spec.as_mut().unwrap().containers[0].image = Some("x:2".into());
    assert_eq!(world.actions(), "kill a in 30s");
    world.runtime.instances[0].state = Exited;
    world.redefined.insert("a-0".into());
    assert_eq!(world.actions(), "start a");
}

#[test]
fn a_dead_sandbox_takes_the_containers_with_it() {
    let mut world = two().with_sandbox().run("a", Running, 0);
    world.runtime.sandboxes[0].ready = false;
    assert_eq!(world.actions(), "kill a in 30s");
    world.runtime.instances[0].state = Exited;
    assert_eq!(world.actions(), "create sandbox 1");
}

#[test]
fn deletion_goes_down_step_by_step() {
    let mut world = two()
        .with_sandbox()
        .run("b", Running, 0)
        .run("a", Running, 0)
        .deleted(30);
    assert_eq!(world.actions(), "kill a in 30s; kill b in 30s");
    world.busy.killing = [("a-0".into(), 30), ("b-0".into(), 30)].into();
    assert_eq!(world.actions(), "");
    world.pod.metadata.deletion_grace_period_seconds = Some(0);
    assert_eq!(world.actions(), "kill a in 2s; kill b in 2s");
    world.busy.killing.clear();
    for instance in &mut world.runtime.instances {
        instance.state = Exited;
    }
    assert_eq!(world.actions(), "stop sandbox s0");
    world.runtime.sandboxes[0].ready = false;
    assert_eq!(world.actions(), "release");
    world.volumes = Volumes::Released;
    assert_eq!(world.actions(), "");
    world.is_reported = true;
    assert_eq!(world.actions(), "delete");
    world.is_gone = true;
    assert_eq!(world.actions(), "purge");
    world.is_purged = true;
    assert_eq!(world.actions(), "retire");
}

#[test]
fn deletion_cancels_a_start_and_stops_sidecars_last() {
    let mut world = with_init()
        .with_sandbox()
        .run("i", Exited, 0)
        .run("side", Running, 0)
        .run("a", Running, 0)
        .deleted(30);
    world.busy.starting = ["a".to_owned()].into();
    assert_eq!(world.actions(), "cancel start; kill a in 30s");
    world.busy.starting.clear();
    world.runtime.instances[0].state = Exited;
    world.stopping_since = Some(at(90));
    assert_eq!(world.actions(), "kill side in 20s");
}

#[test]
fn the_deadline_stops_the_pod() {
    let mut world = two()
        .with_sandbox()
        .run("a", Running, 0)
        .run("b", Running, 0);
    world.pod.spec.as_mut().unwrap().active_deadline_seconds = Some(60);
    world.previous.start_time = Some(crate::status::wire_time(at(50)));
    assert_eq!(world.plan().wake_at, Some(at(110)));
    world.now = at(110);
    assert_eq!(world.actions(), "kill b in 30s; kill a in 30s");
}

#[test]
fn old_runs_are_pruned() {
    let world = two()
        .with_sandbox()
        .run("b", Running, 0)
        .run("a", Exited, 1)
        .run("a", Exited, 1)
        .run("a", Running, 0);
    assert_eq!(world.actions(), "remove container a-0");
}

#[test]
fn a_refused_pod_only_reports() {
    let mut world = two();
    world.volumes = Volumes::Released;
    world.verdict = Some(Verdict {
        reason: "OutOfcpu".into(),
        message: "x".into(),
        refused: true,
        grace: None,
    });
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(plan.status.phase.as_deref(), Some("Failed"));
    assert_eq!(plan.status.reason.as_deref(), Some("OutOfcpu"));
}

#[test]
fn a_created_container_is_started_again() {
    let world = two()
        .with_sandbox()
        .run("b", Running, 0)
        .run("a", Created, 0);
    assert_eq!(world.actions(), "start a");
}

#[test]
fn resources_change_in_place_or_by_restart() {
    let spec = json!({"containers": [{"name": "a", "image": "x", "resources": {"requests": {"cpu": "200m"}}}]});
    let mut world = World::new(spec).with_sandbox().run("a", Running, 0);
    let has = json!({"requests": {"cpu": "0.2"}});
    world
        .actuated
        .insert("a-0".into(), serde_json::from_value(has).unwrap());
    assert_eq!(world.actions(), "");
    let has = json!({"requests": {"cpu": "100m"}});
    world
        .actuated
        .insert("a-0".into(), serde_json::from_value(has).unwrap());
    assert_eq!(world.actions(), "resize a");
    let status = serde_json::to_value(world.plan().status).unwrap();
    let row = &status["containerStatuses"][0];
    assert_eq!(row["resources"]["requests"]["cpu"], "100m");
    assert_eq!(row["allocatedResources"]["cpu"], "200m");
    assert_eq!(status["conditions"][0]["type"], "PodResizeInProgress");
    world.resize_pending = Some(ResizePending {
        reason: "Deferred",
        message: "m".into(),
    });
    assert_eq!(world.actions(), "");
    world.resize_pending = None;
    let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    world.pod.spec.as_mut().unwrap().containers[0].resize_policy =
        serde_json::from_value(policy).unwrap();
    assert_eq!(world.actions(), "kill a in 2s");
}

#![allow(clippy::unwrap_used)]

use crate::fixture::{World, at};
use crate::plan::{ProbeState, StartFailure, Volumes, crash_key};
use crate::pod;
use crate::state::RunState::{Exited, Running};
use serde_json::{Value, json};

fn one(policy: &str) -> World {
    World::new(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "x"}]}))
}

fn status(world: &World) -> Value {
    serde_json::to_value(world.plan().status).unwrap()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let rows = status["conditions"].as_array().unwrap();
    rows.iter().find(|c| c["type"] == kind).unwrap()
}

#[test]
fn a_new_pod_is_creating() {
    let status = status(&one("Always"));
    assert_eq!(status["phase"], "Pending");
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(status["hostIPs"], json!([{"ip": "192.168.0.1"}]));
    let row = &status["containerStatuses"][0];
    assert_eq!(
        row["state"],
        json!({"waiting": {"reason": "ContainerCreating"}})
    );
    assert_eq!(row["ready"], false);
    assert_eq!(row["started"], false);
    assert_eq!(
        condition(&status, "PodReadyToStartContainers")["status"],
        "False"
    );
    assert_eq!(condition(&status, "Initialized")["status"], "True");
    let ready = condition(&status, "Ready");
    assert_eq!(ready["reason"], "ContainersNotReady");
    assert_eq!(ready["message"], "containers with unready status: [a]");
}

#[test]
fn a_running_pod_is_ready() {
    let status = status(&one("Always").with_sandbox().run("a", Running, 0));
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["podIP"], "10.42.0.7");
    let row = &status["containerStatuses"][0];
    assert_eq!(row["containerID"], "containerd://a-0");
    assert_eq!(
        row["state"],
        json!({"running": {"startedAt": "2023-11-14T22:13:31Z"}})
    );
    assert_eq!(row["lastState"], json!({}));
    assert_eq!(row["resources"], json!({}));
    assert_eq!(condition(&status, "Ready")["status"], "True");
    assert_eq!(condition(&status, "Ready").get("reason"), None);
    assert_eq!(condition(&status, "PodScheduled")["observedGeneration"], 1);
}

#[test]
fn a_container_that_takes_input_is_ready_once_it_has_lived_a_little() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "x", "stdin": true}]});
    let mut world = World::new(spec).with_sandbox().run("a", Running, 0);
    world.now = at(11);
    assert_eq!(status(&world)["phase"], "Running");
    assert_eq!(status(&world)["containerStatuses"][0]["ready"], false);
    assert_eq!(world.plan().wake_at, Some(at(12)));
    world.now = at(12);
    assert_eq!(status(&world)["containerStatuses"][0]["ready"], true);
    assert_eq!(world.plan().wake_at, None);
}

#[test]
fn readiness_waits_for_the_probes() {
    let mut world = World::new(json!({"containers": [{"name": "a", "image": "x",
        "readinessProbe": {}, "startupProbe": {}}]}))
    .with_sandbox()
    .run("a", Running, 0);
    assert_eq!(status(&world)["containerStatuses"][0]["started"], false);
    let mut probes = ProbeState {
        startup: Some(true),
        ..ProbeState::default()
    };
    world.probes.insert("a-0".into(), probes);
    assert_eq!(status(&world)["containerStatuses"][0]["started"], true);
    assert_eq!(status(&world)["containerStatuses"][0]["ready"], false);
    probes.readiness = Some(true);
    world.probes.insert("a-0".into(), probes);
    assert_eq!(status(&world)["containerStatuses"][0]["ready"], true);
}

#[test]
fn readiness_survives_a_restart_of_the_agent() {
    let mut world =
        World::new(json!({"containers": [{"name": "a", "image": "x", "readinessProbe": {}}]}))
            .with_sandbox()
            .run("a", Running, 0);
    world.probes.insert(
        "a-0".into(),
        ProbeState {
            readiness: Some(true),
            ..ProbeState::default()
        },
    );
    world.previous = world.plan().status;
    world.probes.clear();
    assert_eq!(status(&world)["containerStatuses"][0]["ready"], true);
}

#[test]
fn a_crash_loop_shows_the_delay_and_the_last_end() {
    let mut world = one("Always").with_sandbox().run("a", Exited, 3);
    let key = crash_key(&pod::spec(&world.pod).containers[0]);
    world.crashes.advance(&key, at(90), at(90));
    world.now = at(91);
    let status = status(&world);
    assert_eq!(status["phase"], "Running");
    let row = &status["containerStatuses"][0];
    assert_eq!(row["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(
        row["state"]["waiting"]["message"],
        "back-off 10s restarting failed container=a pod=web_default(u-1)"
    );
    assert_eq!(row["lastState"]["terminated"]["exitCode"], 3);
}

#[test]
fn a_failed_pull_turns_into_waiting_for_the_next() {
    let mut world = one("Always").with_sandbox();
    world.failures.insert(
        "a".into(),
        StartFailure {
            reason: "ErrImagePull".into(),
            message: "no such host".into(),
            at: at(99),
            retry_at: at(109),
        },
    );
    let reason = |world: &World| status(world)["containerStatuses"][0]["state"]["waiting"].clone();
    assert_eq!(reason(&world)["reason"], "ErrImagePull");
    assert_eq!(world.plan().wake_at, Some(at(101)));
    world.now = at(101);
    assert_eq!(
        reason(&world),
        json!({"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\": ErrImagePull: no such host"})
    );
    assert_eq!(world.plan().wake_at, Some(at(109)));
    world.now = at(109);
    assert_eq!(world.actions(), "start a");
    // While it is tried again nobody knows better.
    world.busy.starting.insert("a".into());
    assert_eq!(reason(&world)["reason"], "ImagePullBackOff");
}

#[test]
fn success_is_reported_once_the_sandbox_is_down() {
    let mut world = one("Never").with_sandbox().run("a", Exited, 0);
    world.previous.phase = Some("Running".into());
    let plan = world.plan();
    assert!(plan.stop.is_some());
    assert_eq!(plan.status.phase.as_deref(), Some("Running"));
    world.stopping_since = Some(at(100));
    world.runtime.sandboxes[0].ready = false;
    let status = status(&world);
    assert_eq!(status["phase"], "Succeeded");
    assert_eq!(condition(&status, "Ready")["reason"], "PodCompleted");
    assert_eq!(condition(&status, "Initialized")["reason"], "PodCompleted");
    assert_eq!(
        status["containerStatuses"][0]["state"]["terminated"]["reason"],
        "Completed"
    );
}

#[test]
fn a_deleted_pod_ends_failed_or_succeeded_by_its_exits() {
    for (code, phase) in [(0, "Succeeded"), (137, "Failed")] {
        let mut world = one("Always")
            .with_sandbox()
            .run("a", Exited, code)
            .deleted(1);
        world.runtime.sandboxes[0].ready = false;
        world.volumes = Volumes::Released;
        assert_eq!(status(&world)["phase"], phase);
    }
    let never_ran = one("Always").deleted(1);
    let status = status(&never_ran);
    assert_eq!(status["phase"], "Failed");
    let state = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["reason"], "ContainerStatusUnknown");
    assert_eq!(state["exitCode"], 137);
}

#[test]
fn on_failure_retries_and_counts_only_zero_as_success() {
    let failed = one("OnFailure").with_sandbox().run("a", Exited, 1);
    assert_eq!(status(&failed)["phase"], "Running");
    let mut done = one("OnFailure").with_sandbox().run("a", Exited, 0);
    done.runtime.sandboxes[0].ready = false;
    done.stopping_since = Some(at(99));
    assert_eq!(status(&done)["phase"], "Succeeded");
}

#[test]
fn init_containers_hold_the_pod_back() {
    let world = World::new(json!({"initContainers": [{"name": "i", "image": "x"}],
        "containers": [{"name": "a", "image": "x"}]}))
    .with_sandbox()
    .run("i", Running, 0);
    let status = status(&world);
    assert_eq!(status["phase"], "Pending");
    assert_eq!(
        status["containerStatuses"][0]["state"]["waiting"]["reason"],
        "PodInitializing"
    );
    let initialized = condition(&status, "Initialized");
    assert_eq!(initialized["reason"], "ContainersNotInitialized");
    assert_eq!(
        initialized["message"],
        "containers with incomplete status: [i]"
    );
}

#[test]
fn transition_times_change_only_with_the_status() {
    let mut world = one("Always").with_sandbox();
    world.previous = world.plan().status;
    world.now = at(200);
    let before = serde_json::to_value(&world.previous).unwrap();
    let same = status(&world);
    assert_eq!(
        condition(&same, "Ready")["lastTransitionTime"],
        condition(&before, "Ready")["lastTransitionTime"]
    );
    let running = status(&world.run("a", Running, 0));
    assert_ne!(
        condition(&running, "Ready")["lastTransitionTime"],
        condition(&before, "Ready")["lastTransitionTime"]
    );
}

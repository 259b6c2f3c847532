//! Requests and limits as the kernel has them.

use std::path::Path;

use super::scene::{FOREVER, Scene, main_container};

/// Where the container sees its own bounds: cgroup v1 or v2.
struct Files {
    memory: &'static str,
    quota: &'static str,
    shares: &'static str,
}

fn files() -> Files {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        Files {
            memory: "cat /sys/fs/cgroup/memory.max",
            quota: "cut -d' ' -f1 /sys/fs/cgroup/cpu.max",
            shares: "cat /sys/fs/cgroup/cpu.weight",
        }
    } else {
        Files {
            memory: "cat /sys/fs/cgroup/memory/memory.limit_in_bytes",
            quota: "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us",
            shares: "cat /sys/fs/cgroup/cpu/cpu.shares",
        }
    }
}

fn is_v1() -> bool {
    files().shares.contains("shares")
}

pub(super) fn limits(scene: &Scene<'_>) {
    let pod = |name: &str, resources: &str| {
        scene.pod(
            name,
            &main_container(FOREVER, &format!(", resources: {{{resources}}}")),
        );
    };
    pod("guaranteed", "limits: {cpu: 200m, memory: 64Mi}");
    pod(
        "burstable",
        "requests: {cpu: 100m, memory: 16Mi}, limits: {memory: 32Mi}",
    );
    pod("best-effort", "");
    for (pod, class, memory, quota, shares) in [
        ("guaranteed", "Guaranteed", "67108864", "20000", "204"),
        ("burstable", "Burstable", "33554432", "-1", "102"),
        ("best-effort", "BestEffort", "", "-1", "2"),
    ] {
        scene.ready(&format!("pod/{pod}"));
        let quota = if quota == "-1" && !is_v1() {
            "max"
        } else {
            quota
        };
        let got = scene.field(&format!("pod/{pod}"), "{.status.qosClass}");
        scene.is("class", &got, class);
        scene.is("quota", &scene.exec(pod, files().quota), quota);
        if !memory.is_empty() {
            scene.is("memory", &scene.exec(pod, files().memory), memory);
        }
        if is_v1() {
            scene.is("shares", &scene.exec(pod, files().shares), shares);
        }
    }
    scene.pod(
        "too-large",
        &main_container(FOREVER, ", resources: {requests: {cpu: '1000'}}"),
    );
    scene.event(
        "too-large",
        "FailedScheduling",
        "Warning 0/1 nodes are available: 1 Insufficient cpu.",
    );
}

pub(super) fn resize(scene: &Scene<'_>) {
    scene.pod(
        "grow",
        &main_container(
            FOREVER,
            ", resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}",
        ),
    );
    scene.pod(
        "restart",
        &main_container(
            FOREVER,
            ", resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources: {limits: {cpu: 100m, memory: 32Mi}}",
        ),
    );
    scene.ready("pod/grow");
    scene.ready("pod/restart");
    let id = scene.field("pod/grow", "{.status.containerStatuses[0].containerID}");
    let patch = |pod: &str, resources: &str| {
        let patch = format!(
            "{{\"spec\": {{\"containers\": [{{\"name\": \"main\", \"resources\": {resources}}}]}}}}"
        );
        let mut command =
            scene.command(&["patch", "pod", pod, "--subresource", "resize", "-p", &patch]);
        crate::support::run(&mut command);
    };
    patch(
        "grow",
        r#"{"requests": {"cpu": "150m", "memory": "48Mi"}, "limits": {"cpu": "400m", "memory": "96Mi"}}"#,
    );
    scene.until_is(
        "pod/grow",
        "{.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].resources.limits.cpu}",
        "96Mi 400m",
    );
    scene.is("memory", &scene.exec("grow", files().memory), "100663296");
    scene.is("quota", &scene.exec("grow", files().quota), "40000");
    scene.is(
        "same container",
        &scene.field("pod/grow", "{.status.containerStatuses[0].containerID}"),
        &id,
    );
    scene.event("grow", "ResizeCompleted", "Normal Pod resize completed: ");
    patch(
        "restart",
        r#"{"limits": {"memory": "48Mi"}, "requests": {"memory": "48Mi"}}"#,
    );
    scene.until_is(
        "pod/restart",
        "{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].resources.limits.memory}",
        "1 48Mi",
    );
    scene.ready("pod/restart");
    scene.is("memory", &scene.exec("restart", files().memory), "50331648");
    patch(
        "grow",
        r#"{"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}}"#,
    );
    scene.until_is(
        "pod/grow",
        "{.status.conditions[?(@.type==\"PodResizePending\")].reason}",
        "Infeasible",
    );
}

pub(super) fn out_of_memory(scene: &Scene<'_>) {
    scene.pod(
        "greedy",
        &main_container(
            "exec tail -c 100000000 /dev/zero",
            ", resources: {limits: {memory: 16Mi}}",
        ),
    );
    // Whenever the end is told its cause is, too: one after the other, each container's only one.
    scene.until_is(
        "pod/greedy",
        "{.status.containerStatuses[0].lastState.terminated.reason}",
        "OOMKilled",
    );
    for number in 0..6 {
        let pod = format!("once-{number}");
        let spec = main_container(
            "exec tail -c 100000000 /dev/zero",
            ", resources: {limits: {memory: 16Mi}}",
        );
        scene.pod(&pod, &format!("restartPolicy: Never, {spec}"));
        scene.until_is(&format!("pod/{pod}"), "{.status.phase}", "Failed");
        let path = "{.status.containerStatuses[0].state.terminated.reason}";
        let got = scene.field(&format!("pod/{pod}"), path);
        scene.is("the first reason", &got, "OOMKilled");
    }
}

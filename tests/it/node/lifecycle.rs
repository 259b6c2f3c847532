//! From the first init container to the last signal.

use std::time::Instant;

use super::scene::{FOREVER, Scene, container, main_container};

pub(super) fn restart_policies(scene: &Scene<'_>) {
    let policy = |policy: &str, script: &str| {
        format!(
            "restartPolicy: {policy}, {}",
            main_container(script, ", volumeMounts: [{name: v, mountPath: /v}]")
        ) + ", volumes: [{name: v, emptyDir: {}}]"
    };
    let second_time = |code: i32| {
        format!("if [ -e /v/x ]; then {FOREVER}; fi; touch /v/x; echo first run; exit {code}")
    };
    scene.pod("always", &policy("Always", &second_time(0)));
    scene.pod("on-failure", &policy("OnFailure", &second_time(3)));
    scene.pod("success", &policy("OnFailure", "exit 0"));
    scene.pod("never", &policy("Never", "exit 3"));
    scene.phase("success", "Succeeded");
    scene.phase("never", "Failed");
    let state = "{.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}";
    scene.is("success", &scene.field("pod/success", state), "Completed 0");
    scene.is("never", &scene.field("pod/never", state), "Error 3");
    let count = "{.status.containerStatuses[0].restartCount}";
    scene.is("restarts", &scene.field("pod/success", count), "0");
    for (pod, last) in [("always", "Completed 0"), ("on-failure", "Error 3")] {
        let pod_name = format!("pod/{pod}");
        scene.until_is(&pod_name, count, "1");
        scene.ready(&pod_name);
        let path = state.replace(".state.", ".lastState.");
        scene.is(pod, &scene.field(&pod_name, &path), last);
        scene.is(
            "logs --previous",
            &scene.kubectl(&format!("logs --previous {pod}")),
            "first run",
        );
    }
    scene.has("get", &scene.kubectl("get pod success"), "Completed");
    scene.has("get", &scene.kubectl("get pod never"), "Error");
}

pub(super) fn crash_loop(scene: &Scene<'_>) {
    scene.pod("crash", &main_container("exit 1", ""));
    let reason = "{.status.containerStatuses[0].state.waiting.reason}";
    scene.until_is("pod/crash", reason, "CrashLoopBackOff");
    let uid = scene.field("pod/crash", "{.metadata.uid}");
    let message = "{.status.containerStatuses[0].state.waiting.message}";
    scene.until_is(
        "pod/crash",
        message,
        &format!(
            "back-off 10s restarting failed container=main pod=crash_{}({uid})",
            scene.namespace()
        ),
    );
    scene.event(
        "crash",
        "BackOff",
        &format!(
            "Warning Back-off restarting failed container main in pod crash_{}({uid})",
            scene.namespace()
        ),
    );
    // The second delay is twice the first.
    scene.until_has("pod/crash", message, "back-off 20s");
    scene.has("get", &scene.kubectl("get pod crash"), "CrashLoopBackOff");
    for (reason, text) in [
        (
            "Pulled",
            "Normal Container image \"sampan.test/node:1\" already present on machine",
        ),
        ("Created", "Normal Container created"),
        ("Started", "Normal Container started"),
    ] {
        scene.event("crash", reason, text);
    }
}

pub(super) fn init_containers(scene: &Scene<'_>) {
    let mounts = ", volumeMounts: [{name: v, mountPath: /v}]";
    let spec = |last: &str| {
        format!(
            "initContainers: [{}, {}], containers: [{}], volumes: [{{name: v, emptyDir: {{}}}}]",
            container("one", "echo one >> /v/order", mounts),
            container("two", &format!("echo two >> /v/order; {last}"), mounts),
            container("main", &format!("echo main >> /v/order; {FOREVER}"), mounts)
        )
    };
    scene.pod("order", &spec("true"));
    scene.pod(
        "fails",
        &format!("restartPolicy: Never, {}", spec("exit 4")),
    );
    scene.pod("again", &spec("[ $(grep -c two /v/order) = 2 ]"));
    scene.ready("pod/order");
    scene.is(
        "order",
        &scene.exec("order", "cat /v/order | tr '\\n' ' '"),
        "one two main",
    );
    scene.phase("fails", "Failed");
    scene.has("get", &scene.kubectl("get pod fails"), "Init:Error");
    scene.is(
        "exit code",
        &scene.field(
            "pod/fails",
            "{.status.initContainerStatuses[1].state.terminated.exitCode}",
        ),
        "4",
    );
    scene.ready("pod/again");
    scene.is(
        "order",
        &scene.exec("again", "cat /v/order | tr '\\n' ' '"),
        "one two two main",
    );
    let conditions = "{.status.conditions[?(@.type==\"Initialized\")].status}";
    scene.is(
        "Initialized",
        &scene.field("pod/fails", conditions),
        "False",
    );
    scene.is("Initialized", &scene.field("pod/again", conditions), "True");
}

/// Restartable init containers run beside the main ones, start before and end after them.
pub(super) fn sidecars(scene: &Scene<'_>) {
    let mounts = ", volumeMounts: [{name: v, mountPath: /v}]";
    let side = format!(
        "{mounts}, restartPolicy: Always, startupProbe: {{exec: {{command: [test, -e, /v/up]}}, periodSeconds: 1}}"
    );
    let side_script = "trap 'echo side-end >> /v/order; exit 0' TERM; sleep 1; echo side >> /v/order; touch /v/up; while :; do sleep 0.1; done";
    scene.pod(
        "runs",
        &format!(
            "initContainers: [{}, {}], containers: [{}], volumes: [{{name: v, emptyDir: {{}}}}]",
            container("side", side_script, &side),
            container("plain", "echo plain >> /v/order", mounts),
            container("main", &format!("echo main >> /v/order; {FOREVER}"), mounts)
        ),
    );
    scene.pod(
        "ends",
        &format!(
            "restartPolicy: Never, terminationGracePeriodSeconds: 20, initContainers: [{}], containers: [{}], \
             volumes: [{{name: v, hostPath: {{path: {}, type: DirectoryOrCreate}}}}]",
            container("side", side_script, &side),
            container("main", "sleep 1; echo main-end >> /v/order", mounts),
            folder(scene, "sidecar")
        ),
    );
    scene.ready("pod/runs");
    scene.is(
        "order",
        &scene.exec("runs", "cat /v/order | tr '\\n' ' '"),
        "side plain main",
    );
    scene.has("get", &scene.kubectl("get pod runs"), "2/2");
    // A sidecar that dies comes back while the main container runs on.
    scene.kubectl("exec runs -c side -- kill 1");
    scene.until_is(
        "pod/runs",
        "{.status.initContainerStatuses[0].restartCount}",
        "1",
    );
    scene.is(
        "restarts of main",
        &scene.field("pod/runs", "{.status.containerStatuses[0].restartCount}"),
        "0",
    );
    scene.phase("ends", "Succeeded");
    let order = std::fs::read_to_string(folder(scene, "sidecar") + "/order").unwrap();
    scene.is("order", &order.replace('\n', " "), "side main-end side-end");
}

pub(super) fn termination_messages(scene: &Scene<'_>) {
    let pod = |name: &str, script: &str, extra: &str| {
        scene.pod(
            name,
            &format!("restartPolicy: Never, {}", main_container(script, extra)),
        );
    };
    pod("file", "printf done > /dev/termination-log", "");
    pod(
        "path",
        "printf elsewhere > /tmp/message; exit 1",
        ", terminationMessagePath: /tmp/message",
    );
    pod(
        "log",
        "echo the log; exit 1",
        ", terminationMessagePolicy: FallbackToLogsOnError",
    );
    pod(
        "no-log",
        "echo the log",
        ", terminationMessagePolicy: FallbackToLogsOnError",
    );
    pod(
        "long",
        "seq 1 5000 | tr '\\n' ' ' > /dev/termination-log; exit 1",
        "",
    );
    let path = "{.status.containerStatuses[0].state.terminated.message}";
    for (pod, phase, message) in [
        ("file", "Succeeded", "done"),
        ("path", "Failed", "elsewhere"),
        ("log", "Failed", "the log"),
        ("no-log", "Succeeded", ""),
    ] {
        scene.phase(pod, phase);
        let message_now = scene.field(&format!("pod/{pod}"), path);
        scene.is(pod, &message_now, message);
    }
    scene.phase("long", "Failed");
    scene.is(
        "length",
        &scene.field("pod/long", path).len().to_string(),
        "4096",
    );
}

/// A folder of the node, for what a Pod leaves behind.
pub(super) fn folder(scene: &Scene<'_>, name: &str) -> String {
    let path = scene.node.scratch.path().join(format!("host-{name}"));
    std::fs::create_dir_all(&path).unwrap();
    path.display().to_string()
}

pub(super) fn graceful_end(scene: &Scene<'_>) {
    let host = folder(scene, "grace");
    let volumes = format!(", volumes: [{{name: v, hostPath: {{path: {host}}}}}]");
    let mounts = ", volumeMounts: [{name: v, mountPath: /v}]";
    let hook = format!(
        "{mounts}, lifecycle: {{postStart: {{exec: {{command: [sh, -c, 'echo post >> /v/order']}}}}, preStop: {{exec: {{command: [sh, -c, 'echo pre >> /v/order; sleep 1']}}}}}}"
    );
    let polite = "trap 'echo term >> /v/order; exit 0' TERM; while :; do sleep 0.1; done";
    let stubborn = "trap 'echo ignored >> /v/stubborn' TERM; while :; do sleep 0.1; done";
    scene.pod(
        "polite",
        &format!(
            "terminationGracePeriodSeconds: 30, {}{volumes}",
            main_container(polite, &hook)
        ),
    );
    scene.pod(
        "stubborn",
        &format!(
            "terminationGracePeriodSeconds: 3, {}{volumes}",
            main_container(stubborn, mounts)
        ),
    );
    scene.ready("pod/polite");
    scene.ready("pod/stubborn");
    let timed = |arguments: &str| {
        let since = Instant::now();
        scene.kubectl(arguments);
        since.elapsed().as_secs_f64()
    };
    let took = timed("delete pod polite");
    scene.truth(
        &format!("a polite Pod leaves soon ({took} s)"),
        (1.0..15.0).contains(&took),
    );
    let order = std::fs::read_to_string(format!("{host}/order")).unwrap();
    scene.is("order", &order.replace('\n', " "), "post pre term");
    let took = timed("delete pod stubborn");
    scene.truth(
        &format!("a stubborn Pod is killed after its grace ({took} s)"),
        (2.5..20.0).contains(&took),
    );
    scene.is(
        "the signal came",
        &std::fs::read_to_string(format!("{host}/stubborn")).unwrap(),
        "ignored",
    );
    scene.event("polite", "Killing", "Normal Stopping container main");
    scene.pod(
        "forced",
        &format!(
            "terminationGracePeriodSeconds: 300, {}{volumes}",
            main_container(stubborn, mounts)
        ),
    );
    scene.ready("pod/forced");
    let took = timed("delete pod forced --grace-period=0 --force");
    scene.truth(&format!("forced ({took} s)"), took < 15.0);
}

pub(super) fn deadline(scene: &Scene<'_>) {
    scene.pod(
        "late",
        &format!("activeDeadlineSeconds: 25, {}", main_container(FOREVER, "")),
    );
    scene.ready("pod/late");
    scene.phase("late", "Failed");
    scene.is(
        "reason",
        &scene.field("pod/late", "{.status.reason}: {.status.message}"),
        "DeadlineExceeded: Pod was active on the node longer than the specified deadline",
    );
    scene.event(
        "late",
        "DeadlineExceeded",
        "Pod was active on the node longer than the specified deadline",
    );
}

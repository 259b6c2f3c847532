//! What a container may do.

use super::scene::{FOREVER, Scene, main_container};

pub(super) fn users(scene: &Scene<'_>) {
    scene.pod(
        "user",
        &("securityContext: {runAsUser: 1001, runAsGroup: 1002, fsGroup: 1003, supplementalGroups: [1004]}, ".to_owned()
            + &main_container(
                FOREVER,
                ", volumeMounts: [{name: v, mountPath: /v}, {name: s, mountPath: /s}]",
            )
            + ", volumes: [{name: v, emptyDir: {}}, {name: s, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]"),
    );
    scene.pod(
        "own",
        &("securityContext: {runAsUser: 1001}, ".to_owned()
            + &main_container(FOREVER, ", securityContext: {runAsUser: 2001}")),
    );
    scene.ready("pod/user");
    scene.ready("pod/own");
    scene.answers(
        "user",
        &[
            ("id -u", "1001"),
            ("id -g", "1002"),
            (
                "id -G | tr ' ' '\\n' | sort | tr '\\n' ' '",
                "1002 1003 1004",
            ),
            ("stat -c %g:%a /v", "1003:2777"),
            ("touch /v/x && stat -c %u:%g /v/x", "1001:1003"),
            ("stat -L -c %g /s/name", "1003"),
            ("cat /s/name", "user"),
        ],
    );
    scene.is("own", &scene.exec("own", "id -u"), "2001");
}

pub(super) fn capabilities(scene: &Scene<'_>) {
    let pod = |name: &str, context: &str| {
        scene.pod(
            name,
            &(main_container(
                FOREVER,
                &format!(
                    ", volumeMounts: [{{name: v, mountPath: /v}}], securityContext: {{{context}}}"
                ),
            ) + ", volumes: [{name: v, emptyDir: {}}]"),
        );
    };
    pod("plain", "");
    pod(
        "dropped",
        "capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}",
    );
    pod("added", "capabilities: {add: [NET_ADMIN]}");
    pod("privileged", "privileged: true");
    pod("read-only", "readOnlyRootFilesystem: true");
    pod("no-new", "allowPrivilegeEscalation: false");
    pod("seccomp", "seccompProfile: {type: RuntimeDefault}");
    scene.ready("pod --all");
    let states: Vec<(&str, String)> = [
        "plain",
        "dropped",
        "added",
        "privileged",
        "no-new",
        "seccomp",
    ]
    .map(|pod| (pod, scene.exec(pod, "cat /proc/1/status")))
    .into();
    let status = |pod: &str, field: &str| {
        let (_, text) = states.iter().find(|(name, _)| *name == pod).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.unwrap_or_default().trim().to_owned()
    };
    // The runtime's default set; one of it; one more.
    scene.is("plain", &status("plain", "CapEff"), "00000000a80425fb");
    scene.is("dropped", &status("dropped", "CapEff"), "0000000000000400");
    scene.is("added", &status("added", "CapEff"), "00000000a80435fb");
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:\t"))
        .unwrap();
    scene.is("privileged", &status("privileged", "CapEff"), own);
    scene.truth(
        "a privileged container sees devices",
        scene
            .exec("privileged", "ls /dev | wc -l")
            .trim()
            .parse::<u32>()
            .unwrap()
            > scene
                .exec("plain", "ls /dev | wc -l")
                .trim()
                .parse::<u32>()
                .unwrap(),
    );
    scene.is(
        "read-only",
        &scene.exec(
            "read-only",
            "touch /x 2>/dev/null || echo refused; touch /v/x && echo fine",
        ),
        "refused\nfine",
    );
    scene.is("plain", &status("plain", "NoNewPrivs"), "0");
    scene.is("no-new", &status("no-new", "NoNewPrivs"), "1");
    scene.is("plain", &status("plain", "Seccomp"), "0");
    scene.is("seccomp", &status("seccomp", "Seccomp"), "2");
}

pub(super) fn refusals(scene: &Scene<'_>) {
    scene.pod(
        "root",
        &("securityContext: {runAsNonRoot: true}, ".to_owned() + &main_container(FOREVER, "")),
    );
    scene.pod(
        "not-root",
        &("securityContext: {runAsNonRoot: true, runAsUser: 5}, ".to_owned()
            + &main_container(FOREVER, "")),
    );
    scene.pod(
        "no-program",
        "containers: [{name: main, image: 'sampan.test/node:1', command: [/nothing]}]",
    );
    scene.ready("pod/not-root");
    let uid = scene.field("pod/root", "{.metadata.uid}");
    scene.until_is(
        "pod/root",
        "{.status.containerStatuses[0].state.waiting.reason}: {.status.containerStatuses[0].state.waiting.message}",
        &format!(
            "CreateContainerConfigError: container has runAsNonRoot and image will run as root (pod: \"root_{}({uid})\", container: main)",
            scene.namespace()
        ),
    );
    scene.event(
        "root",
        "Failed",
        "Warning Error: container has runAsNonRoot and image will run as root",
    );
    scene.event(
        "no-program",
        "Failed",
        "stat /nothing: no such file or directory",
    );
    scene.until_has(
        "pod/no-program",
        "{.status.containerStatuses[0].state.waiting.reason} {.status.containerStatuses[0].lastState.terminated.reason}",
        "CrashLoopBackOff StartError",
    );
}

pub(super) fn sysctls(scene: &Scene<'_>) {
    let pod = |name: &str, sysctl: &str, value: &str| {
        scene.pod(
            name,
            &format!(
                "securityContext: {{sysctls: [{{name: {sysctl}, value: '{value}'}}]}}, {}",
                main_container(FOREVER, "")
            ),
        );
    };
    pod("safe", "net.ipv4.ip_local_port_range", "20000 21000");
    // The node was started with net.core.* allowed.
    pod("allowed", "net.core.somaxconn", "100");
    pod("unsafe", "kernel.msgmax", "100");
    scene.ready("pod/safe");
    scene.is(
        "safe",
        &scene.exec(
            "safe",
            "tr '\\t' ' ' < /proc/sys/net/ipv4/ip_local_port_range",
        ),
        "20000 21000",
    );
    scene.ready("pod/allowed");
    scene.is(
        "allowed",
        &scene.exec("allowed", "cat /proc/sys/net/core/somaxconn"),
        "100",
    );
    scene.phase("unsafe", "Failed");
    scene.is(
        "reason",
        &scene.field("pod/unsafe", "{.status.reason}: {.status.message}"),
        "SysctlForbidden: Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
    );
    scene.event(
        "unsafe",
        "SysctlForbidden",
        "Warning forbidden sysctl: \"kernel.msgmax\" not allowlisted",
    );
}

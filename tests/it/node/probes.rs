//! Probes of every kind, and what follows from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::scene::{FOREVER, Scene, main_container};
use crate::support::http;

const HTTPD: &str = "mkdir -p /w; echo ok > /w/ok; httpd -f -h /w -p 8080 & trap 'exit 0' TERM; while :; do sleep 0.1; done";

pub(super) fn liveness(scene: &Scene<'_>) {
    let restarts = "{.status.containerStatuses[0].restartCount}";
    let spec = |script: &str, probe: &str| {
        main_container(
            script,
            &format!(", livenessProbe: {{{probe}, periodSeconds: 1, failureThreshold: 2}}"),
        )
    };
    scene.pod(
        "exec",
        &spec(
            FOREVER,
            "exec: {command: [sh, -c, 'echo it is gone; exit 1']}",
        ),
    );
    // Patient with a machine that is busy: what is well must not be restarted by chance.
    let patient = |probe: &str| {
        main_container(
            HTTPD,
            &format!(
                ", livenessProbe: {{{probe}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 8}}"
            ),
        )
    };
    scene.pod("tcp", &patient("tcpSocket: {port: 8080}"));
    scene.pod("tcp-closed", &spec(HTTPD, "tcpSocket: {port: 8081}"));
    scene.pod("http", &patient("httpGet: {path: /ok, port: 8080}"));
    scene.until_is("pod/exec", restarts, "1");
    scene.event(
        "exec",
        "Unhealthy",
        "Warning Liveness probe failed: it is gone",
    );
    scene.event(
        "exec",
        "Killing",
        "Normal Container main failed liveness probe, will be restarted",
    );
    scene.until_is("pod/tcp-closed", restarts, "1");
    scene.event(
        "tcp-closed",
        "Unhealthy",
        "Liveness probe failed: dial tcp ",
    );
    for pod in ["tcp", "http"] {
        scene.ready(&format!("pod/{pod}"));
        scene.is(pod, &scene.field(&format!("pod/{pod}"), restarts), "0");
    }
    scene.exec("http", "rm /w/ok");
    scene.until_is("pod/http", restarts, "1");
    scene.event(
        "http",
        "Unhealthy",
        "Warning Liveness probe failed: HTTP probe failed with statuscode: 404",
    );
}

pub(super) fn readiness(scene: &Scene<'_>) {
    scene.pod(
        "ready",
        &main_container(
            HTTPD,
            ", ports: [{containerPort: 8080, name: web}], readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, failureThreshold: 1}",
        ),
    );
    scene.phase("ready", "Running");
    scene.event(
        "ready",
        "Unhealthy",
        "Warning Readiness probe failed: HTTP probe failed with statuscode: 404",
    );
    let condition = "{.status.conditions[?(@.type==\"Ready\")].status} {.status.conditions[?(@.type==\"Ready\")].reason}";
    scene.is(
        "not ready",
        &scene.field("pod/ready", condition),
        "False ContainersNotReady",
    );
    scene.exec("ready", "touch /w/ready");
    scene.ready("pod/ready");
    scene.exec("ready", "rm /w/ready");
    scene.until_is("pod/ready", condition, "False ContainersNotReady");
    scene.is(
        "restarts",
        &scene.field("pod/ready", "{.status.containerStatuses[0].restartCount}"),
        "0",
    );
}

/// No other probe begins before the startup probe has succeeded; one that never does ends the container.
pub(super) fn startup(scene: &Scene<'_>) {
    scene.pod(
        "slow",
        &main_container(
            &format!("sleep 3; touch /tmp/up; {FOREVER}"),
            ", startupProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1, failureThreshold: 30}, \
             livenessProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1, failureThreshold: 1}",
        ),
    );
    scene.pod(
        "never",
        &main_container(
            FOREVER,
            ", startupProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 2}",
        ),
    );
    scene.until_is("pod/slow", "{.status.phase}", "Running");
    scene.is(
        "started",
        &scene.field("pod/slow", "{.status.containerStatuses[0].started}"),
        "false",
    );
    scene.ready("pod/slow");
    scene.is(
        "started and restarts",
        &scene.field(
            "pod/slow",
            "{.status.containerStatuses[0].started} {.status.containerStatuses[0].restartCount}",
        ),
        "true 0",
    );
    scene.until_is(
        "pod/never",
        "{.status.containerStatuses[0].restartCount}",
        "1",
    );
    scene.event("never", "Unhealthy", "Warning Startup probe failed: ");
    scene.event(
        "never",
        "Killing",
        "Normal Container main failed startup probe, will be restarted",
    );
}

pub(super) fn grpc(scene: &Scene<'_>) {
    const PORT: u16 = 18081;
    let status = Arc::new(AtomicU8::new(2));
    let said = Arc::clone(&status);
    let address = format!("{}:{PORT}", scene.node.itself.address);
    let _server = http::serve(&scene.node.itself, &address, move |_| {
        http::grpc_health(said.load(Ordering::Relaxed))
    });
    // The server is the test's; the Pod lends it its address.
    scene.pod(
        "grpc",
        &format!(
            "hostNetwork: true, {}",
            main_container(
                FOREVER,
                &format!(", readinessProbe: {{grpc: {{port: {PORT}}}, periodSeconds: 1, failureThreshold: 1}}"),
            )
        ),
    );
    scene.phase("grpc", "Running");
    scene.event(
        "grpc",
        "Unhealthy",
        "Warning Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
    );
    status.store(1, Ordering::Relaxed);
    scene.ready("pod/grpc");
}

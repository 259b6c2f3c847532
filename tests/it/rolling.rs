//! A rolling update under load: nobody who asks the Service goes without an answer.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::cluster::{Cluster, IMAGE, MINUTE, NEXT_IMAGE};
use crate::support::load::{Load, Tally, namespace_of_process};
use crate::support::{eventually, long};

const REPLICAS: usize = 10;
/// Together with the Pod's above the 500 a second that are promised.
const RATE_FROM_NODES: u32 = 220;
const RATE_FROM_POD: u32 = 120;
const CLIENTS: u32 = 24;

/// Serves on for a moment after SIGTERM, as servers must that don't know who still holds their address.
fn deployment() -> String {
    let line = "hostname >/www/index.html; httpd -f -h /www -p 8080 & server=$!; \
                trap 'sleep 2; kill $server; exit 0' TERM; wait $server";
    format!(
        r#"{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{
            replicas: {REPLICAS}, selector: {{matchLabels: {{app: web}}}}, template: {{
            metadata: {{labels: {{app: web}}}}, spec: {{terminationGracePeriodSeconds: 20, containers: [{{
            name: web, image: '{IMAGE}', command: [sh, -c, "{line}"], ports: [{{containerPort: 8080}}],
            readinessProbe: {{httpGet: {{port: 8080, path: /}}, periodSeconds: 1, timeoutSeconds: 5}}}}]}}}}}}}}"#
    )
}

/// How long the client sleeps: by that its process is found.
fn client_mark() -> String {
    format!("1000000.{}", std::process::id())
}

fn client_pod() -> String {
    let mark = client_mark();
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: client}}, spec: {{nodeName: b, terminationGracePeriodSeconds: 0, \
         containers: [{{name: main, image: '{IMAGE}', command: [sleep, '{mark}']}}]}}}}"
    )
}

#[test]
fn a_rolling_update_fails_no_request() {
    let cluster = Cluster::start("roll");
    cluster.server.apply(&deployment());
    cluster.server.apply(&client_pod());
    cluster.kubectl("expose deployment web --port=80 --target-port=8080");
    cluster.kubectl("rollout status deployment/web --timeout=120s");
    cluster.kubectl("wait --for=condition=Ready pod/client --timeout=60s");
    let address = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
    let target: SocketAddr = format!("{}:80", address.trim()).parse().unwrap();
    let pod = namespace_of_process(&client_mark()).expect("the client Pod's process");
    let [a, b] = [0, 1].map(|index| cluster.nodes[index].path());
    every_replica_answers(&b, target);

    let loads = [
        Load::start(&a, target, RATE_FROM_NODES, CLIENTS),
        Load::start(&b, target, RATE_FROM_NODES, CLIENTS),
        Load::start(&pod, target, RATE_FROM_POD, CLIENTS),
    ];
    let rounds = if long() { 10 } else { 3 };
    for round in 0..rounds {
        match round % 3 {
            0 => cluster.kubectl(&format!("set image deployment/web web={NEXT_IMAGE}")),
            1 => cluster.kubectl("rollout restart deployment/web"),
            _ => cluster.kubectl(&format!("set image deployment/web web={IMAGE}")),
        };
        cluster.kubectl("rollout status deployment/web --timeout=180s");
        eventually("the old Pods are gone", MINUTE, || {
            let names = cluster.kubectl("get pods -l app=web -o name");
            match names.lines().count() {
                REPLICAS => Ok(()),
                count => Err(format!("{count} Pods")),
            }
        });
    }
    report(loads.map(Load::stop), rounds);
}

/// Before anything is counted, the rules of the client's node know all replicas.
fn every_replica_answers(namespace: &str, target: SocketAddr) {
    let load = Load::start(namespace, target, 50, 4);
    eventually("every replica answers", MINUTE, || {
        match load.so_far().answers.len() {
            REPLICAS => Ok(()),
            count => Err(format!("{count} replicas")),
        }
    });
    load.stop();
}

fn report(parts: [(Tally, Duration); 3], rounds: u32) {
    let mut all = Tally::default();
    let mut lasted = Duration::ZERO;
    for (tally, took) in parts {
        lasted = lasted.max(took);
        all.merge(tally);
    }
    #[allow(clippy::cast_precision_loss)]
    let rate = all.requests as f64 / lasted.as_secs_f64();
    println!(
        "rolling update: {rounds} rounds of {REPLICAS} replicas in {:.0} s, {} requests from two nodes and a Pod, \
         {rate:.0}/s, {} Pods answered, slower than 1 s {}, failed {}",
        lasted.as_secs_f64(),
        all.requests,
        all.answers.len(),
        all.slow,
        all.failed
    );
    assert_eq!(all.failed, 0, "failed requests: {:?}", all.failures);
    assert!(rate >= 500.0, "only {rate:.0} requests/s");
    let expected = REPLICAS * (usize::try_from(rounds).unwrap() + 1);
    assert!(
        all.answers.len() >= expected,
        "{} Pods answered, {expected} lived",
        all.answers.len()
    );
}

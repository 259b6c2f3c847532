//! The spine: a Deployment runs on two nodes, with kubectl as users call it.

use std::io::Write;
use std::process::Stdio;

use crate::support::cluster::{Cluster, IMAGE, MINUTE, NEXT_IMAGE};
use crate::support::{attempt, eventually, processes_of_runtimes, run};

#[test]
fn a_deployment_runs_on_two_nodes() {
    let cluster = Cluster::start("two");
    deploys_and_scales(&cluster);
    answers_on_both_nodes(&cluster);
    streams(&cluster);
    port_forward(&cluster);
    rolls_out_and_back(&cluster);
    describes(&cluster);
    survives_restart(cluster);
}

fn deploys_and_scales(cluster: &Cluster) {
    cluster.kubectl(&format!(
        "create deployment web --image={IMAGE} --replicas=2"
    ));
    cluster.kubectl("rollout status deployment/web --timeout=60s");
    cluster.kubectl("scale deployment/web --replicas=4");
    cluster.kubectl("rollout status deployment/web --timeout=60s");
    let nodes = cluster.kubectl("get pods -l app=web -o jsonpath={.items[*].spec.nodeName}");
    assert!(
        nodes.contains('a') && nodes.contains('b'),
        "Pods on nodes: {nodes}"
    );
    cluster.kubectl("expose deployment web --port=80 --target-port=8080");
    cluster.kubectl(
        "expose deployment web --name=web-node --type=NodePort --port=80 --target-port=8080",
    );
    cluster.server.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: client}}, spec: {{nodeName: b, terminationGracePeriodSeconds: 1, \
         containers: [{{name: main, image: '{IMAGE}', command: [sh, -c, 'echo started; sleep 100000']}}]}}}}"
    ));
    cluster.kubectl("wait --for=condition=Ready pod/client --timeout=60s");
}

fn answers_on_both_nodes(cluster: &Cluster) {
    let address = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
    let port = cluster.kubectl("get service web-node -o jsonpath={.spec.ports[0].nodePort}");
    // From the Pod on b: by ClusterIP, by name, by both nodes' ports; every replica must be met in the end.
    let mut urls = vec![
        format!("http://{address}/"),
        "http://web/".to_owned(),
        "http://web.default.svc.cluster.local/".to_owned(),
    ];
    urls.extend(
        cluster
            .nodes
            .iter()
            .map(|node| format!("http://{}:{port}/", node.address)),
    );
    for url in &urls {
        let answer = eventually(&format!("{url} answers in a Pod"), MINUTE, || {
            cluster.in_pod("client", &format!("curl -sS -m 3 {url}"))
        });
        assert!(answer.starts_with("web-"), "{url}: {answer}");
    }
    let line =
        format!("for i in $(seq 100); do curl -sS -m 3 http://{address}/; done | sort -u | wc -l");
    assert_eq!(
        cluster.in_pod("client", &line).unwrap().trim(),
        "4",
        "replicas met through the ClusterIP"
    );
    // Connections made by the nodes themselves.
    for node in &cluster.nodes {
        for url in [
            format!("http://{address}/"),
            format!("http://{}:{port}/", node.address),
        ] {
            let answer = attempt(node.command("curl").args(["-sS", "-m", "3", &url]));
            assert!(
                answer.as_ref().is_ok_and(|text| text.starts_with("web-")),
                "{url} from node {}: {answer:?}",
                node.address
            );
        }
    }
}

fn streams(cluster: &Cluster) {
    assert_eq!(cluster.kubectl("logs client").trim(), "started");
    let follow = attempt(
        &mut cluster
            .server
            .kubectl("logs -f client --pod-running-timeout=5s --since=1h --limit-bytes=4"),
    );
    assert_eq!(follow.unwrap(), "star");
    assert_eq!(
        cluster
            .in_pod("client", "echo out; echo err >&2; hostname")
            .unwrap(),
        "out\nclient\n"
    );
    let failed = cluster.in_pod("client", "exit 3").unwrap_err();
    assert!(failed.contains("exit code 3"), "{failed}");
    let mut child = cluster
        .server
        .kubectl_args(&["exec", "-i", "client", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = "line\n".repeat(20_000);
    child
        .stdin
        .take()
        .unwrap()
        .write_all(sent.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout.len(), sent.len(), "bytes through exec -i");
}

fn port_forward(cluster: &Cluster) {
    let mut forward = cluster
        .server
        .kubectl("port-forward deployment/web 18080:8080")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let answer = eventually("port-forward answers", MINUTE, || {
        attempt(cluster.nodes[0].command("curl").args([
            "-sS",
            "-m",
            "3",
            "http://127.0.0.1:18080/",
        ]))
    });
    forward.kill().unwrap();
    forward.wait().unwrap();
    assert!(answer.starts_with("web-"), "{answer}");
}

fn rolls_out_and_back(cluster: &Cluster) {
    let images = |cluster: &Cluster| {
        cluster.kubectl("get pods -l app=web -o jsonpath={.items[*].spec.containers[0].image}")
    };
    cluster.kubectl(&format!("set image deployment/web web={NEXT_IMAGE}"));
    cluster.kubectl("rollout status deployment/web --timeout=90s");
    assert!(images(cluster).contains(NEXT_IMAGE));
    cluster.kubectl("rollout undo deployment/web");
    cluster.kubectl("rollout status deployment/web --timeout=90s");
    eventually("the old Pods are gone", MINUTE, || {
        let images = images(cluster);
        let all: Vec<&str> = images.split_whitespace().collect();
        if all == [IMAGE; 4] {
            Ok(())
        } else {
            Err(images)
        }
    });
    let history = cluster.kubectl("rollout history deployment/web");
    assert!(history.contains('3') && history.contains('2'), "{history}");
}

fn describes(cluster: &Cluster) {
    let text = cluster.kubectl("describe pod client");
    for event in ["Pulled", "Created", "Started"] {
        assert!(text.contains(event), "no {event} in:\n{text}");
    }
    let text = cluster.kubectl("describe pods -l app=web");
    assert!(
        text.contains("Successfully assigned default/web-"),
        "{text}"
    );
    let text = cluster.kubectl("describe deployment web");
    assert!(
        text.contains("ScalingReplicaSet") && text.contains("NewReplicaSetAvailable"),
        "{text}"
    );
    assert!(cluster.kubectl("get pods -o wide").contains("client"));
}

/// A restart adopts what runs; deletion leaves nothing.
fn survives_restart(mut cluster: Cluster) {
    let ids = |cluster: &Cluster| {
        cluster.kubectl(
            "get pods -l app=web -o jsonpath={.items[*].status.containerStatuses[0].containerID}",
        )
    };
    let before = ids(&cluster);
    cluster.agent.terminate();
    cluster.server.kill();
    cluster.start_server();
    cluster.start_agent();
    cluster.wait_ready();
    eventually("exec works again", MINUTE, || {
        cluster.in_pod("client", "curl -sS -m 3 http://web/")
    });
    assert_eq!(ids(&cluster), before, "containers after a restart");
    cluster.kubectl("delete deployment web");
    cluster.kubectl("delete service web web-node");
    cluster.kubectl("delete pod client");
    eventually("all Pods are gone", MINUTE, || {
        let left = cluster.kubectl("get pods -o name");
        if left.trim().is_empty() {
            Ok(())
        } else {
            Err(left)
        }
    });
    leaves_nothing(&cluster);
}

/// No container, no Pod address and no Pod link is left.
fn leaves_nothing(cluster: &Cluster) {
    for (sampan, namespace) in [
        (&cluster.server, &cluster.nodes[0]),
        (&cluster.agent, &cluster.nodes[1]),
    ] {
        eventually("no shim is left", MINUTE, || {
            // Containerd itself goes on.
            let node = sampan.data_dir.parent().unwrap();
            match processes_of_runtimes(node).len().saturating_sub(1) {
                0 => Ok(()),
                shims => Err(format!("{shims} shims")),
            }
        });
        let routes = run(namespace.command("ip").args(["-4", "route"]));
        let pods: Vec<&str> = routes
            .lines()
            .filter(|line| {
                line.starts_with("10.42.")
                    && line.contains("scope link")
                    && !line.contains("sampan0")
            })
            .collect();
        assert!(pods.is_empty(), "routes to Pods left: {pods:?}");
    }
}

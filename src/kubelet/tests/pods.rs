//! The kubelet against a real containerd and an API server in memory. Needs root and a network namespace of its own:
//! `unshare --net cargo test -p sampan-kubelet --test pods -- --ignored --test-threads=1`.

#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
mod node;

use node::{Node, container_status, is_ready, phase_of, sh};
use serde_json::json;
use tokio::time::Instant;

const FOREVER: &str =
    "trap 'exit 0' TERM; echo started; while :; do /bin/busybox sleep 1 & wait $!; done";

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn a_pod_lives_and_dies() {
    let node = Node::new("life").await;
    let agent = node.start().await;
    let started = Instant::now();
    node.create(
        "web",
        json!({"containers": [{"name": "main", "command": sh(FOREVER)}]}),
    )
    .await;
    let pod = node.until_ready("web").await;
    eprintln!("create to ready: {:?}", started.elapsed());
    assert_eq!(phase_of(&pod), "Running");
    let status = pod.status.as_ref().unwrap();
    assert!(status.pod_ip.as_deref().unwrap().starts_with("10.99.0."));
    assert_eq!(status.host_ip.as_deref(), Some(node::NODE_IP));
    let row = container_status(&pod, 0);
    assert_eq!(row["started"], true);
    assert!(row["imageID"].as_str().unwrap().contains("sha256:"));
    let resolv = node
        .exec(
            &agent,
            "web",
            "main",
            &["/bin/busybox", "cat", "/etc/resolv.conf"],
        )
        .await;
    assert!(resolv.contains("nameserver 10.43.0.10"), "{resolv}");
    for event in [
        "Pulled: Container image",
        "Created: Container created",
        "Started: Container started",
    ] {
        node.until_event(event).await;
    }
    let deleted = Instant::now();
    node.delete("web", 5).await;
    node.until_gone("web").await;
    eprintln!("delete to gone: {:?}", deleted.elapsed());
    node.until_event("Killing: Stopping container main").await;
    agent.stop().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn thirty_pods_at_once() {
    let node = Node::new("many").await;
    let agent = node.start().await;
    let started = Instant::now();
    for index in 0..30 {
        let spec = json!({"containers": [{"name": "main", "command": sh(FOREVER)}]});
        node.create(&format!("web-{index}"), spec).await;
    }
    for index in 0..30 {
        node.until_ready(&format!("web-{index}")).await;
    }
    eprintln!("30 pods ready: {:?}", started.elapsed());
    let deleted = Instant::now();
    for index in 0..30 {
        node.delete(&format!("web-{index}"), 5).await;
    }
    for index in 0..30 {
        node.until_gone(&format!("web-{index}")).await;
    }
    eprintln!("30 pods gone: {:?}", deleted.elapsed());
    agent.stop().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn jobs_end_and_crashes_back_off() {
    let node = Node::new("ends").await;
    let agent = node.start().await;
    node.create(
        "good",
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "command": sh("echo bye > /dev/termination-log")}]}),
    )
    .await;
    node.create(
        "bad",
        json!({"restartPolicy": "Never", "containers": [{"name": "main",
            "command": sh("echo oh no; exit 3"), "terminationMessagePolicy": "FallbackToLogsOnError"}]}),
    )
    .await;
    node.create(
        "crash",
        json!({"containers": [{"name": "main", "command": sh("exit 1")}]}),
    )
    .await;
    let good = node.until_phase("good", "Succeeded").await;
    let ended = &container_status(&good, 0)["state"]["terminated"];
    assert_eq!(ended["reason"], "Completed");
    assert_eq!(ended["message"], "bye\n");
    assert!(good.status.unwrap().pod_ip.is_some());
    let bad = node.until_phase("bad", "Failed").await;
    let ended = &container_status(&bad, 0)["state"]["terminated"];
    assert_eq!(ended["exitCode"], 3);
    assert_eq!(ended["message"], "oh no\n");
    let waits = |pod: &k8s_openapi::api::core::v1::Pod| {
        let status = pod.status.as_ref().unwrap();
        status.container_statuses.is_some() && {
            let row = container_status(pod, 0);
            row["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        }
    };
    let crash = node.until("crash", "backing off", waits).await;
    let row = container_status(&crash, 0);
    assert_eq!(row["restartCount"], 1);
    assert_eq!(row["lastState"]["terminated"]["exitCode"], 1);
    node.until_event("BackOff: Back-off restarting failed container main in pod crash_default")
        .await;
    for pod in ["good", "bad", "crash"] {
        node.delete(pod, 1).await;
        node.until_gone(pod).await;
    }
    agent.stop().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn a_restarted_agent_adopts_and_cleans_up() {
    let node = Node::new("adopt").await;
    let agent = node.start().await;
    let spec = json!({"containers": [{"name": "main", "command": sh(FOREVER)}]});
    node.create("stays", spec.clone()).await;
    node.create("goes", spec).await;
    let before = node.until_ready("stays").await;
    node.until_ready("goes").await;
    agent.stop().await;
    // While the agent is away one pod vanishes without a trace in the API.
    node.delete("goes", 0).await;
    assert!(node.get("goes").await.is_none());
    let agent = node.start().await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let after = node.get("stays").await.unwrap();
    assert!(is_ready(&after));
    assert_eq!(
        container_status(&after, 0)["containerID"],
        container_status(&before, 0)["containerID"]
    );
    let list = agent
        .runtime
        .runtime()
        .list_pod_sandbox(sampan_cri::runtime::v1::ListPodSandboxRequest::default())
        .await
        .unwrap();
    assert_eq!(list.items.len(), 1);
    node.delete("stays", 1).await;
    node.until_gone("stays").await;
    agent.stop().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn init_containers_sidecars_and_hooks() {
    let node = Node::new("init").await;
    let agent = node.start().await;
    node.create(
        "web",
        json!({
            "initContainers": [
                {"name": "one", "command": sh("echo 1 > /work/order"), "volumeMounts": [{"name": "work", "mountPath": "/work"}]},
                {"name": "side", "restartPolicy": "Always", "command": sh(FOREVER)}],
            "containers": [{"name": "main", "command": sh(FOREVER),
                "lifecycle": {
                    "postStart": {"exec": {"command": sh("echo 2 >> /work/order")}},
                    "preStop": {"exec": {"command": sh("echo 3 >> /work/order")}}},
                "volumeMounts": [{"name": "work", "mountPath": "/work"}]}],
            "volumes": [{"name": "work", "emptyDir": {}}]}),
    )
    .await;
    let pod = node.until_ready("web").await;
    let init = serde_json::to_value(pod.status.unwrap().init_container_statuses).unwrap();
    assert_eq!(init[0]["state"]["terminated"]["reason"], "Completed");
    assert_eq!(init[1]["ready"], true);
    let order = node
        .exec(
            &agent,
            "web",
            "main",
            &["/bin/busybox", "cat", "/work/order"],
        )
        .await;
    assert_eq!(order, "1\n2\n");
    node.delete("web", 5).await;
    node.until_gone("web").await;
    agent.stop().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn probes_decide_readiness_and_restart() {
    let node = Node::new("probe").await;
    let agent = node.start().await;
    node.create(
        "web",
        json!({"terminationGracePeriodSeconds": 1, "containers": [{"name": "main",
            "command": sh("mkdir /www; echo ok > /www/ready; exec /bin/busybox httpd -f -p 8080 -h /www"),
            "ports": [{"name": "http", "containerPort": 8080}],
            "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
            "livenessProbe": {"exec": {"command": ["/bin/busybox", "test", "!", "-e", "/dead"]}, "periodSeconds": 1, "failureThreshold": 1}}]}),
    )
    .await;
    node.until_ready("web").await;
    let run = |command: &'static str| {
        let (node, agent) = (&node, &agent);
        async move {
            node.exec(agent, "web", "main", &["/bin/busybox", "sh", "-c", command])
                .await
        }
    };
    run("rm /www/ready").await;
    node.until("web", "unready", |pod| !is_ready(pod)).await;
    node.until_event("Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 404")
        .await;
    run("echo ok > /www/ready").await;
    node.until_ready("web").await;
    run("touch /dead").await;
    let restarted = |pod: &k8s_openapi::api::core::v1::Pod| {
        is_ready(pod) && container_status(pod, 0)["restartCount"] == 1
    };
    node.until_event("Killing: Container main failed liveness probe, will be restarted")
        .await;
    node.until("web", "restarted", restarted).await;
    node.delete("web", 1).await;
    node.until_gone("web").await;
    agent.stop().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn configuration_reaches_containers_and_follows_changes() {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    let node = Node::new("conf").await;
    let agent = node.start().await;
    let map = |color: &str| -> ConfigMap {
        serde_json::from_value(
            json!({"metadata": {"name": "cm", "namespace": "default"}, "data": {"color": color}}),
        )
        .unwrap()
    };
    node.create(
        "web",
        json!({
            "containers": [{"name": "main", "command": sh(FOREVER),
                "env": [{"name": "PW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "pw"}}},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "volumeMounts": [
                    {"name": "cm", "mountPath": "/cm"},
                    {"name": "cm", "mountPath": "/one", "subPath": "color"},
                    {"name": "all", "mountPath": "/all", "readOnly": true},
                    {"name": "mem", "mountPath": "/mem"}]}],
            "securityContext": {"fsGroup": 1234},
            "volumes": [{"name": "cm", "configMap": {"name": "cm"}},
                {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "all", "projected": {"defaultMode": 0o400, "sources": [
                    {"secret": {"name": "sec", "items": [{"key": "pw", "path": "deep/pw"}]}},
                    {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}}]}),
    )
    .await;
    node.until_event(
        "FailedMount: MountVolume.SetUp failed for volume \"cm\" : configmap \"cm\" not found",
    )
    .await;
    node.client.create(&map("red")).await.unwrap();
    let secret: Secret = serde_json::from_value(
        json!({"metadata": {"name": "sec", "namespace": "default"}, "data": {"pw": "aHVudGVy"}}),
    )
    .unwrap();
    node.client.create(&secret).await.unwrap();
    let pod = node.until_ready("web").await;
    let run = |command: &'static str| {
        let (node, agent) = (&node, &agent);
        async move {
            node.exec(agent, "web", "main", &["/bin/busybox", "sh", "-c", command])
                .await
        }
    };
    let ip = pod.status.unwrap().pod_ip.unwrap();
    assert_eq!(run("echo $PW $IP").await, format!("hunter {ip}\n"));
    assert_eq!(run("cat /cm/color /one").await, "redred");
    assert_eq!(
        run("cat /all/deep/pw /all/labels").await,
        "hunterapp=\"web\""
    );
    assert_eq!(
        run("/bin/busybox stat -c '%a %g' -L /all/deep/pw").await,
        "440 1234\n"
    );
    assert!(run("/bin/busybox df /mem").await.contains("tmpfs"));
    node.client.update(&map("blue")).await.unwrap();
    let deadline = Instant::now() + std::time::Duration::from_secs(5);
    while run("cat /cm/color").await != "blue" {
        assert!(Instant::now() < deadline, "the volume still shows red");
    }
    node.delete("web", 1).await;
    node.until_gone("web").await;
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains("kubernetes.io~"), "{mounts}");
    agent.stop().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn what_cannot_start_says_why() {
    let node = Node::new("fail").await;
    let agent = node.start().await;
    let reason = |wanted: &'static str| {
        move |pod: &k8s_openapi::api::core::v1::Pod| {
            let status = pod.status.as_ref().unwrap();
            status.container_statuses.is_some()
                && container_status(pod, 0)["state"]["waiting"]["reason"] == wanted
        }
    };
    for (name, container, wanted) in [
        (
            "pull",
            json!({"name": "c", "image": "127.0.0.1:1/none:1"}),
            "ImagePullBackOff",
        ),
        (
            "never",
            json!({"name": "c", "image": "none:1", "imagePullPolicy": "Never"}),
            "ErrImageNeverPull",
        ),
        (
            "name",
            json!({"name": "c", "image": "BAD NAME"}),
            "InvalidImageName",
        ),
        (
            "env",
            json!({"name": "c", "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k"}}}]}),
            "CreateContainerConfigError",
        ),
        (
            "command",
            json!({"name": "c", "command": ["/nothing"]}),
            "RunContainerError",
        ),
    ] {
        node.create(name, json!({"containers": [container]})).await;
        node.until(name, wanted, reason(wanted)).await;
    }
    for name in ["pull", "never", "name", "env", "command"] {
        node.delete(name, 1).await;
        node.until_gone(name).await;
    }
    agent.stop().await;
}

/// What the runtime alone takes for the same pods: compare with the figures of the tests above.
#[tokio::test]
#[ignore = "needs root and containerd"]
async fn the_floor_of_bare_calls() {
    use sampan_cri::runtime::v1::*;
    let node = Node::new("floor").await;
    let agent = node.start().await;
    let runtime = agent.runtime.runtime();
    let one = |index: usize| {
        let (runtime, logs) = (runtime.clone(), node.dir.join("logs"));
        async move {
            let name = format!("floor-{index}");
            let config = PodSandboxConfig {
                metadata: Some(PodSandboxMetadata {
                    name: name.clone(),
                    uid: name.clone(),
                    namespace: "default".to_owned(),
                    attempt: 0,
                }),
                log_directory: logs.join(&name).display().to_string(),
                linux: Some(LinuxPodSandboxConfig::default()),
                ..PodSandboxConfig::default()
            };
            let container = ContainerConfig {
                metadata: Some(ContainerMetadata {
                    name: "main".to_owned(),
                    attempt: 0,
                }),
                image: Some(ImageSpec {
                    image: node::IMAGE.to_owned(),
                    ..ImageSpec::default()
                }),
                command: serde_json::from_value(sh(FOREVER)).unwrap(),
                linux: Some(LinuxContainerConfig::default()),
                ..ContainerConfig::default()
            };
            let sandbox = runtime
                .run_pod_sandbox(RunPodSandboxRequest {
                    config: Some(config.clone()),
                    runtime_handler: String::new(),
                })
                .await
                .unwrap()
                .pod_sandbox_id;
            let created = runtime
                .create_container(CreateContainerRequest {
                    pod_sandbox_id: sandbox.clone(),
                    config: Some(container),
                    sandbox_config: Some(config),
                })
                .await
                .unwrap();
            let start = StartContainerRequest {
                container_id: created.container_id,
            };
            runtime.start_container(start).await.unwrap();
            sandbox
        }
    };
    let started = Instant::now();
    let mut sandboxes = vec![one(0).await];
    eprintln!("floor of one: {:?}", started.elapsed());
    let started = Instant::now();
    let many: Vec<_> = (1..31).map(|index| tokio::spawn(one(index))).collect();
    for task in many {
        sandboxes.push(task.await.unwrap());
    }
    eprintln!("floor of 30: {:?}", started.elapsed());
    for id in sandboxes {
        let request = RemovePodSandboxRequest { pod_sandbox_id: id };
        runtime.remove_pod_sandbox(request).await.unwrap();
    }
    agent.stop().await;
}

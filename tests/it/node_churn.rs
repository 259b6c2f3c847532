//! A node whose agent is killed while Pods start, and one that starts while its server is away.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::cluster::{Cluster, IMAGE, MINUTE, wait_ready};
use crate::support::process::Sampan;
use crate::support::{attempt, eventually, long, run};

const PODS: usize = 6;

/// Ids and tasks of the node's own containerd.
struct Runtime {
    socket: String,
}

impl Runtime {
    fn of(agent: &Sampan) -> Self {
        let config = agent.data_dir.join("agent/containerd/config.toml");
        let text = std::fs::read_to_string(config).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("address = \""));
        Self {
            socket: line.unwrap().trim_end_matches('"').to_owned(),
        }
    }

    fn ctr(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("ctr");
        command
            .args(["-a", &self.socket, "-n", "k8s.io"])
            .args(arguments);
        let text = run(&mut command);
        text.lines().map(str::to_owned).collect()
    }

    /// Sandboxes and containers that run.
    fn running(&self) -> Vec<String> {
        let lines = self.ctr(&["tasks", "ls"]);
        let running = lines.iter().filter(|line| line.contains("RUNNING"));
        let ids = running.filter_map(|line| line.split_whitespace().next());
        let mut ids: Vec<String> = ids.map(str::to_owned).collect();
        ids.sort();
        ids
    }

    fn containers(&self) -> Vec<String> {
        self.ctr(&["containers", "ls", "-q"])
    }
}

fn pod(name: &str, label: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {label}}}}}, spec: {{nodeName: b, \
         terminationGracePeriodSeconds: 0, containers: [{{name: main, image: '{IMAGE}', command: [sleep, '100000']}}]}}}}"
    )
}

fn ids(cluster: &Cluster, label: &str) -> String {
    cluster.kubectl(&format!(
        "get pods -l app={label} -o jsonpath={{.items[*].status.containerStatuses[0].containerID}}"
    ))
}

/// Any moment of a start, which takes about a second; the clock is random enough.
fn moment() -> Duration {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    Duration::from_millis(50 + u64::from(nanos / 1000) % 1500)
}

#[test]
fn an_agent_killed_while_pods_start_takes_up_what_is_there() {
    let mut cluster = Cluster::start("churn");
    let rounds = if long() { 30 } else { 5 };
    let steady: Vec<String> = (0..2)
        .map(|i| pod(&format!("steady-{i}"), "steady"))
        .collect();
    cluster.server.apply(&steady.join("\n---\n"));
    cluster.kubectl("wait --for=condition=Ready pods -l app=steady --timeout=90s");
    let before = ids(&cluster, "steady");
    let runtime = Runtime::of(&cluster.agent);
    let (mut doubles, mut ready) = (0, 0);
    for round in 0..rounds {
        let pods: Vec<String> = (0..PODS)
            .map(|i| pod(&format!("new-{round}-{i}"), "new"))
            .collect();
        cluster.server.apply(&pods.join("\n---\n"));
        std::thread::sleep(moment());
        cluster.agent.kill();
        cluster.start_agent();
        cluster.kubectl("wait --for=condition=Ready pods -l app=new --timeout=120s");
        ready += PODS;
        // Two tasks a Pod: a sandbox and its container.
        let wanted = 2 * (PODS + steady.len());
        let running = eventually("nothing is there twice", MINUTE, || {
            let running = runtime.running();
            if running.len() == wanted {
                Ok(running)
            } else {
                Err(format!("{} run, {wanted} wanted", running.len()))
            }
        });
        doubles += running.len() - wanted;
        cluster.kubectl("delete pods -l app=new --wait=true --timeout=90s");
    }
    assert_eq!(ids(&cluster, "steady"), before, "containers of steady Pods");
    cluster.kubectl("delete pods -l app=steady --wait=true --timeout=90s");
    let orphans = eventually("nothing is left in the runtime", MINUTE, || {
        let left = runtime.containers();
        if left.is_empty() {
            Ok(0)
        } else {
            Err(left.join(" "))
        }
    });
    println!(
        "churn: agent killed {rounds} times while {ready} Pods started: {ready} Ready, {doubles} containers twice, \
         {orphans} left over, 2 steady Pods kept their containers"
    );
}

#[test]
fn a_node_starts_while_its_server_is_away() {
    let mut cluster = Cluster::start("away");
    cluster.server.apply(&pod("kept", "kept"));
    cluster.kubectl("wait --for=condition=Ready pod/kept --timeout=90s");
    let before = ids(&cluster, "kept");
    let runtime = Runtime::of(&cluster.agent);
    let tasks = runtime.running();
    cluster.agent.terminate();
    cluster.server.terminate();
    let folder = cluster.agent.data_dir.join("agent/pod-manifests");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, network) in [("host", "true"), ("own", "false")] {
        let manifest = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{hostNetwork: {network}, terminationGracePeriodSeconds: 0, \
             containers: [{{name: main, image: '{IMAGE}', command: [sh, -c, 'echo alone; exec sleep 100000']}}]}}}}"
        );
        std::fs::write(folder.join(format!("{name}.yaml")), manifest).unwrap();
    }
    let since = Instant::now();
    cluster.start_agent();
    let running = eventually("static Pods run without a server", MINUTE, || {
        let running = runtime.running();
        if running.len() == tasks.len() + 4 {
            Ok(running)
        } else {
            Err(format!("{} of {}", running.len(), tasks.len() + 4))
        }
    });
    let took = since.elapsed();
    assert!(
        tasks.iter().all(|id| running.contains(id)),
        "what ran before the restart: {tasks:?}; after: {running:?}"
    );
    cluster.start_server();
    wait_ready(&cluster.server, "b");
    for pod in ["host-b", "own-b"] {
        eventually("the API shows static Pods", MINUTE, || {
            let line = format!("wait --for=condition=Ready pod/{pod} --timeout=5s");
            attempt(&mut cluster.server.kubectl(&line))
        });
        assert_eq!(cluster.kubectl(&format!("logs {pod}")).trim(), "alone");
    }
    assert_eq!(ids(&cluster, "kept"), before, "container after the restart");
    assert_eq!(
        runtime.running(),
        running,
        "the server's return changes nothing"
    );
    println!(
        "away: agent started without its server: 2 static Pods run after {:.1} s, {} tasks kept; \
         both shown and the same containers once the server is back",
        took.as_secs_f64(),
        tasks.len()
    );
}

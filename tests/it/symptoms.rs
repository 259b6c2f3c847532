//! When a part stops, the flow stops exactly at its step and what runs keeps running.
//!
//! Each row of [`SYMPTOMS`] takes one part down while the cluster runs and the Service is under load, looks at what no
//! longer happens and at what still does, and lets the part come back. No request may fail in any of them. Whoever looks
//! for the cause finds it ([`told`]) in the log, in an event about the node and by `sampan check`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::cluster::{Cluster, IMAGE, MINUTE};
use crate::support::load::{Load, namespace_of_process};
use crate::support::process::Sampan;
use crate::support::{attempt, eventually, output, run};

/// For so long nothing may happen where a part is missing.
const QUIET: Duration = Duration::from_secs(3);

struct Symptom {
    name: &'static str,
    check: fn(&mut Scene) -> String,
}

const SYMPTOMS: &[Symptom] = &[
    Symptom {
        name: "scheduler down: new Pods stay Pending",
        check: scheduler_down,
    },
    Symptom {
        name: "controllers down: nothing is repaired",
        check: controllers_down,
    },
    Symptom {
        name: "proxy down: old rules stay",
        check: proxy_down,
    },
    Symptom {
        name: "DNS down: names fail, addresses work",
        check: dns_down,
    },
    Symptom {
        name: "runtime down: it is started again, containers go on",
        check: runtime_down,
    },
    Symptom {
        name: "API down: Pods and rules go on",
        check: api_down,
    },
    Symptom {
        name: "panics: only the part that panicked starts again",
        check: panics,
    },
];

/// The cluster and what runs in it all the time.
struct Scene {
    cluster: Cluster,
    address: String,
    /// The client Pod's network namespace.
    pod: String,
}

#[test]
fn what_fails_stops_only_its_own_step() {
    let mut scene = Scene::set();
    let target: SocketAddr = format!("{}:80", scene.address).parse().unwrap();
    let loads = [
        Load::start(&scene.cluster.nodes[0].path(), target, 20, 4),
        Load::start(&scene.pod, target, 20, 4),
    ];
    let count = || {
        loads.iter().map(Load::so_far).fold((0, 0), |sum, tally| {
            (sum.0 + tally.requests, sum.1 + tally.failed)
        })
    };
    for symptom in SYMPTOMS {
        let (before, started) = (count(), Instant::now());
        let found = (symptom.check)(&mut scene);
        let (after, took) = (count(), started.elapsed().as_secs_f64());
        println!(
            "symptom: {}; {found}; {took:.1} s, requests {}, failed {}",
            symptom.name,
            after.0 - before.0,
            after.1 - before.1
        );
    }
    for load in loads {
        let (tally, _) = load.stop();
        assert_eq!(tally.failed, 0, "failed requests: {:?}", tally.failures);
    }
}

impl Scene {
    fn set() -> Self {
        let cluster = Cluster::start("sym");
        cluster.server.apply(&format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{replicas: 4, \
             selector: {{matchLabels: {{app: web}}}}, template: {{metadata: {{labels: {{app: web}}}}, spec: {{\
             terminationGracePeriodSeconds: 1, topologySpreadConstraints: [{{maxSkew: 1, topologyKey: kubernetes.io/hostname, \
             whenUnsatisfiable: DoNotSchedule, labelSelector: {{matchLabels: {{app: web}}}}}}], \
             containers: [{{name: web, image: '{IMAGE}', readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1, timeoutSeconds: 5}}}}]}}}}}}}}"
        ));
        cluster.kubectl("expose deployment web --port=80 --target-port=8080");
        cluster.server.apply(&format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: spare}}, spec: {{replicas: 2, \
             selector: {{matchLabels: {{app: spare}}}}, template: {{metadata: {{labels: {{app: spare}}}}, spec: {{\
             terminationGracePeriodSeconds: 0, containers: [{{name: main, image: '{IMAGE}'}}]}}}}}}}}"
        ));
        let mark = format!("2000000.{}", std::process::id());
        cluster.server.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: client}}, spec: {{nodeName: b, terminationGracePeriodSeconds: 0, \
             containers: [{{name: main, image: '{IMAGE}', command: [sleep, '{mark}']}}]}}}}"
        ));
        cluster.kubectl("rollout status deployment/web --timeout=60s");
        cluster.kubectl("rollout status deployment/spare --timeout=60s");
        cluster.kubectl("wait --for=condition=Ready pod/client --timeout=60s");
        let address = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
        let pod = namespace_of_process(&mark).expect("the client Pod's process");
        let scene = Self {
            cluster,
            address,
            pod,
        };
        eventually("the Service answers by name", MINUTE, || {
            scene.in_client("curl -sS -m 3 http://web/")
        });
        scene
    }

    fn kubectl(&self, arguments: &str) -> String {
        self.cluster.kubectl(arguments)
    }

    fn in_client(&self, line: &str) -> Result<String, String> {
        self.cluster.in_pod("client", line)
    }

    /// The part shows as failed on the server, or no longer.
    fn shown(&self, part: &str, failed: bool) {
        let sign = if failed { "[-]" } else { "[+]" };
        let wanted = format!("{sign}part/{part}");
        eventually(&format!("/readyz shows {wanted}"), MINUTE, || {
            let answer = attempt(&mut self.cluster.server.kubectl("get --raw /readyz?verbose"));
            let text = answer.unwrap_or_else(|error| error);
            if text.contains(&wanted) {
                Ok(())
            } else {
                Err(text)
            }
        });
    }

    fn metric(&self, part: &str, name: &str) -> u64 {
        let text = self.kubectl("get --raw /metrics");
        let start = format!("{name}{{part=\"{part}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start}"))
            .parse()
            .unwrap()
    }

    fn ready_pods(&self, app: &str) -> usize {
        let command = format!(
            "get pods -l app={app} -o jsonpath={{.items[*].status.conditions[?(@.type==\"Ready\")].status}}"
        );
        self.kubectl(&command).matches("True").count()
    }

    fn wait_ready_pods(&self, app: &str, count: usize) -> Duration {
        let started = Instant::now();
        eventually(
            &format!("{count} Pods of {app} are Ready"),
            MINUTE,
            || match self.ready_pods(app) {
                ready if ready == count => Ok(()),
                ready => Err(format!("{ready} are")),
            },
        );
        started.elapsed()
    }
}

/// Log, event and `sampan check` name the part that is down and why, in one line each.
fn told(cluster: &Cluster, node: &str, part: &str, why: &str) {
    recorded(cluster, node, part, why);
    let namespace = &cluster.nodes[usize::from(node == "b")];
    let mut check = namespace.command(env!("CARGO_BIN_EXE_sampan"));
    check.args(["check", "--data-dir"]);
    let found = output(check.arg(&process(cluster, node).data_dir));
    let text = String::from_utf8_lossy(&found.stdout);
    let start = format!("problem: parts that run: {part}: {why}");
    assert!(
        text.lines().any(|line| line.starts_with(&start)),
        "sampan check: {text}"
    );
}

/// Log and event do, also of what is up again.
fn recorded(cluster: &Cluster, node: &str, part: &str, why: &str) {
    let about = format!("involvedObject.name={node},reason=PartFailed");
    let mut arguments = vec!["get", "events", "-A", "--field-selector", &about, "-o"];
    arguments.push("jsonpath={range .items[*]}{.message}{\"\\n\"}{end}");
    let message = format!("{part} failed and is started again: {why}");
    eventually(&format!("an event tells of {part}"), MINUTE, || {
        let text = attempt(&mut cluster.server.kubectl_args(&arguments))?;
        let found = text.lines().any(|line| line.starts_with(&message));
        found.then_some(()).ok_or(text)
    });
    let sampan = process(cluster, node);
    let log = std::fs::read_to_string(&sampan.log).unwrap();
    let mut lines = log.lines();
    assert!(
        lines.any(|line| line.contains(part) && line.contains(why)),
        "the log tells of {part}: {}",
        sampan.tail()
    );
}

fn process<'a>(cluster: &'a Cluster, node: &str) -> &'a Sampan {
    match node {
        "a" => &cluster.server,
        _ => &cluster.agent,
    }
}

const DOWN: &str = "it was taken down";

/// Checks again and again that it stays so.
fn stays(what: &str, check: impl Fn() -> Result<(), String>) {
    let deadline = Instant::now() + QUIET;
    while Instant::now() < deadline {
        if let Err(other) = check() {
            panic!("{what}, but {other}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn scheduler_down(scene: &mut Scene) -> String {
    let server = &scene.cluster.server;
    server.fail("kube-scheduler");
    scene.shown("kube-scheduler", true);
    told(&scene.cluster, "a", "kube-scheduler", DOWN);
    scene.kubectl("scale deployment/spare --replicas=3");
    eventually("the third Pod is made", MINUTE, || {
        let names = scene.kubectl("get pods -l app=spare -o name");
        (names.lines().count() == 3).then_some(()).ok_or(names)
    });
    stays("the third Pod has no node", || {
        let nodes = scene.kubectl("get pods -l app=spare -o jsonpath={.items[*].spec.nodeName}");
        let phases = scene.kubectl("get pods -l app=spare -o jsonpath={.items[*].status.phase}");
        match (
            nodes.split_whitespace().count(),
            phases.matches("Pending").count(),
        ) {
            (2, 1) => Ok(()),
            _ => Err(format!("{nodes}; {phases}")),
        }
    });
    server.heal("kube-scheduler");
    scene.shown("kube-scheduler", false);
    let back = scene.wait_ready_pods("spare", 3);
    format!(
        "1 Pod Pending, Ready {:.1} s after the scheduler was back",
        back.as_secs_f64()
    )
}

fn controllers_down(scene: &mut Scene) -> String {
    let server = &scene.cluster.server;
    server.fail("kube-controller-manager");
    scene.shown("kube-controller-manager", true);
    told(&scene.cluster, "a", "kube-controller-manager", DOWN);
    let names = scene.kubectl("get pods -l app=spare -o name");
    let victim = names.lines().next().unwrap();
    scene.kubectl(&format!("delete {victim}"));
    scene.kubectl("scale deployment/spare --replicas=4");
    stays("two Pods are left", || match scene.ready_pods("spare") {
        2 => Ok(()),
        count => Err(format!("{count} are Ready")),
    });
    // The others do their part all the same: a Pod made by hand gets its node and runs.
    scene.cluster.server.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: single}}, spec: {{terminationGracePeriodSeconds: 0, \
         containers: [{{name: main, image: '{IMAGE}'}}]}}}}"
    ));
    scene.kubectl("wait --for=condition=Ready pod/single --timeout=60s");
    scene.kubectl("delete pod single");
    server.heal("kube-controller-manager");
    let back = scene.wait_ready_pods("spare", 4);
    let metrics = scene.kubectl("get --raw /metrics");
    let queues = metrics.matches("workqueue_adds_total{name=").count();
    assert!(queues > 20, "every controller's queue shows in /metrics");
    format!(
        "1 deleted Pod not replaced, 1 scaling not done, 1 Pod made by hand ran; 4 Ready {:.1} s after they were back, \
         {queues} queues in /metrics",
        back.as_secs_f64()
    )
}

fn proxy_down(scene: &mut Scene) -> String {
    for node in [&scene.cluster.server, &scene.cluster.agent] {
        node.fail("kube-proxy");
    }
    scene.shown("kube-proxy", true);
    assert_eq!(scene.metric("kube-proxy", "sampan_part_up"), 0);
    told(&scene.cluster, "a", "kube-proxy", DOWN);
    let mut status = scene.cluster.nodes[0].command(env!("CARGO_BIN_EXE_sampan"));
    status.args(["status", "--data-dir"]);
    let status = run(status.arg(&scene.cluster.server.data_dir));
    let line = format!("server: kube-proxy failed: {DOWN}");
    assert!(status.lines().any(|one| one == line), "{status}");
    told(&scene.cluster, "b", "kube-proxy", DOWN);
    scene.kubectl("expose deployment web --name=late --port=80 --target-port=8080");
    let late = scene.kubectl("get service late -o jsonpath={.spec.clusterIP}");
    let ask = format!("curl -sS -m 1 http://{late}/");
    stays("nobody answers for the new Service", || {
        match scene.in_client(&ask) {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer),
        }
    });
    for node in [&scene.cluster.server, &scene.cluster.agent] {
        node.heal("kube-proxy");
    }
    let started = Instant::now();
    eventually("the new Service answers", MINUTE, || scene.in_client(&ask));
    let took = started.elapsed().as_secs_f64();
    scene.kubectl("delete service late");
    format!("1 new Service without rules, answered {took:.1} s after the proxy was back")
}

fn dns_down(scene: &mut Scene) -> String {
    for node in [&scene.cluster.server, &scene.cluster.agent] {
        node.fail("dns");
    }
    scene.shown("dns", true);
    told(&scene.cluster, "b", "dns", DOWN);
    eventually("names fail", MINUTE, || {
        match scene.in_client("curl -sS -m 2 http://web.default.svc.cluster.local/") {
            Ok(answer) => Err(answer),
            Err(error) if error.contains("resolv") || error.contains("exit code 28") => Ok(()),
            Err(error) => Err(error),
        }
    });
    let by_address = format!("curl -sS -m 2 http://{}/", scene.address);
    for _ in 0..5 {
        scene.in_client(&by_address).unwrap();
        assert!(scene.in_client("curl -sS -m 1 http://web/").is_err());
    }
    for node in [&scene.cluster.server, &scene.cluster.agent] {
        node.heal("dns");
    }
    let started = Instant::now();
    eventually("names work again", MINUTE, || {
        scene.in_client("curl -sS -m 3 http://web/")
    });
    format!(
        "5 of 5 names failed, 5 of 5 addresses answered; names work {:.1} s after DNS was back",
        started.elapsed().as_secs_f64()
    )
}

fn containers(scene: &Scene) -> String {
    scene.kubectl("get pods -l app=web -o jsonpath={.items[*].status.containerStatuses[0].containerID}{.items[*].status.containerStatuses[0].restartCount}")
}

fn containerd_pid(sampan: &Sampan) -> PathBuf {
    sampan.data_dir.join("agent/containerd/containerd.pid")
}

/// Status and message of a node's Ready condition.
fn ready_condition(cluster: &Cluster, node: &str) -> String {
    let path = "{.status.conditions[?(@.type==\"Ready\")]['status','message']}";
    run(&mut cluster
        .server
        .kubectl_args(&["get", "node", node, "-o", &format!("jsonpath={path}")]))
}

fn runtime_down(scene: &mut Scene) -> String {
    let before = containers(scene);
    let file = containerd_pid(&scene.cluster.agent);
    let pid = || {
        std::fs::read_to_string(&file)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let rounds = 3;
    for round in 0..rounds {
        let first = pid();
        run(Command::new("kill").args(["-9", first.split_whitespace().next().unwrap()]));
        eventually("containerd runs again", MINUTE, || match pid() {
            other if !other.is_empty() && other != first => Ok(()),
            same => Err(format!("pid {same}")),
        });
        // The node works: a new Pod starts there, and exec goes through the runtime.
        let name = format!("after{round}");
        scene.cluster.server.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{nodeName: b, terminationGracePeriodSeconds: 0, \
             containers: [{{name: main, image: '{IMAGE}'}}]}}}}"
        ));
        scene.kubectl(&format!(
            "wait --for=condition=Ready pod/{name} --timeout=60s"
        ));
        eventually("exec works", MINUTE, || scene.in_client("hostname"));
        scene.kubectl(&format!("delete pod {name}"));
    }
    recorded(
        &scene.cluster,
        "b",
        "containerd",
        "containerd ended (signal: 9",
    );
    assert_eq!(containers(scene), before, "containers and their restarts");
    format!("{rounds} times killed and back, 4 of 4 containers the same")
}

fn api_down(scene: &mut Scene) -> String {
    let before = containers(scene);
    scene.cluster.server.kill();
    // A container that ends is started again by its kubelet, without the API.
    let mark = format!("{}/", scene.pod.trim_end_matches("/ns/net"));
    let pid = mark.split('/').nth(2).unwrap().to_owned();
    run(Command::new("kill").args(["-9", &pid]));
    let sleeps = format!("2000000.{}", std::process::id());
    scene.pod = eventually("the container runs again", MINUTE, || {
        let found = namespace_of_process(&sleeps);
        // What was killed may be seen a moment longer.
        found
            .filter(|found| *found != scene.pod)
            .ok_or_else(|| "no other process".to_owned())
    });
    std::thread::sleep(QUIET);
    scene.cluster.start_server();
    scene.cluster.wait_ready();
    let restarts = eventually("the restart is told", MINUTE, || {
        let text =
            attempt(&mut scene.cluster.server.kubectl(
                "get pod client -o jsonpath={.status.containerStatuses[0].restartCount}",
            ))?;
        if text == "1" { Ok(text) } else { Err(text) }
    });
    assert_eq!(containers(scene), before, "containers and their restarts");
    format!("{restarts} container restarted meanwhile by its kubelet, 4 of 4 others the same")
}

fn panics(scene: &mut Scene) -> String {
    let before = containers(scene);
    let parts = [
        "kube-scheduler",
        "kube-controller-manager",
        "kubelet",
        "kube-proxy",
        "network",
        "dns",
        "images",
    ];
    for part in parts {
        let restarts = scene.metric(part, "sampan_part_restarts_total");
        scene.cluster.server.panic_in(part);
        eventually(&format!("{part} starts again"), MINUTE, || {
            let up = scene.metric(part, "sampan_part_up");
            match scene.metric(part, "sampan_part_restarts_total") {
                now if now == restarts + 1 && up == 1 => Ok(()),
                now => Err(format!("{now} restarts, up {up}")),
            }
        });
        scene.cluster.server.heal(part);
        recorded(&scene.cluster, "a", part, &format!("{part} panicked: "));
    }
    scene.cluster.wait_ready();
    // Every step works: a Deployment made now comes up and answers by name.
    scene.kubectl(&format!(
        "create deployment last --image={IMAGE} --replicas=2"
    ));
    scene.kubectl("expose deployment last --port=80 --target-port=8080");
    scene.wait_ready_pods("last", 2);
    eventually("the new Service answers by name", MINUTE, || {
        scene.in_client("curl -sS -m 3 http://last/")
    });
    assert_eq!(containers(scene), before, "containers and their restarts");
    format!(
        "{} of {} parts panicked and are back",
        parts.len(),
        parts.len()
    )
}

/// A kubelet that is away and a runtime that hangs take their time: a test of their own, both at once.
#[test]
fn a_silent_kubelet_loses_its_pods_a_hung_runtime_does_not() {
    let cluster = Cluster::start("symk");
    let pod = |name: &str, seconds: u32| {
        // A node whose runtime hangs is not-ready, one whose kubelet is silent unreachable.
        let tolerations: Vec<String> = [("not-ready", 300), ("unreachable", seconds)]
            .iter()
            .map(|(key, seconds)| {
                format!(
                    "{{key: node.kubernetes.io/{key}, operator: Exists, effect: NoExecute, tolerationSeconds: {seconds}}}"
                )
            })
            .collect();
        format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}}}, spec: {{replicas: 2, selector: {{matchLabels: \
             {{app: {name}}}}}, template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{tolerations: [{}], \
             topologySpreadConstraints: [{{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, \
             labelSelector: {{matchLabels: {{app: {name}}}}}}}], \
             terminationGracePeriodSeconds: 1, containers: [{{name: main, image: '{IMAGE}'}}]}}}}}}}}",
            tolerations.join(", ")
        )
    };
    cluster.server.apply(&pod("leaves", 4));
    cluster.server.apply(&pod("stays", 300));
    for name in ["leaves", "stays"] {
        cluster.kubectl(&format!("rollout status deployment/{name} --timeout=60s"));
    }
    let on_b = |app: &str, what: &str| {
        cluster.kubectl(&format!(
            "get pods -l app={app} --field-selector spec.nodeName=b -o jsonpath={{.items[*].metadata.{what}}}"
        ))
    };
    let status = || {
        cluster.kubectl("get node b -o jsonpath={.status.conditions[?(@.type==\"Ready\")].status}")
    };
    let running = on_b("leaves", "name");
    assert!(running.starts_with("leaves-"), "a Pod on b: {running}");

    let hung = std::fs::read_to_string(containerd_pid(&cluster.server)).unwrap();
    let hung = hung.split_whitespace().next().unwrap();
    run(Command::new("kill").args(["-STOP", hung]));
    cluster.agent.fail("kubelet");
    let down = Instant::now();
    eventually("the kubelet's port is closed", MINUTE, || {
        match attempt(
            &mut cluster
                .server
                .kubectl("get --raw /api/v1/nodes/b/proxy/healthz"),
        ) {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer),
        }
    });
    told(&cluster, "b", "kubelet", DOWN);
    let why = "container runtime is down: no answer within 10s";
    let hung_after = eventually("node a is not Ready", MINUTE, || {
        match ready_condition(&cluster, "a").as_str() {
            told if told == format!("False {why}") => Ok(down.elapsed()),
            other => Err(other.to_owned()),
        }
    });
    run(Command::new("kill").args(["-CONT", hung]));
    let answers = Instant::now();
    eventually("node a is Ready again", MINUTE, || {
        match ready_condition(&cluster, "a").split(' ').next() {
            Some("True") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    println!(
        "symptom: runtime hangs: NotReady after {:.0} s with its reason, Ready {:.1} s after it went on",
        hung_after.as_secs_f64(),
        answers.elapsed().as_secs_f64()
    );
    let not_ready = eventually("node b is not Ready", MINUTE * 2, || {
        match status().as_str() {
            "Unknown" => Ok(down.elapsed()),
            other => Err(other.to_owned()),
        }
    });
    let evicted = eventually("the Pod is evicted", MINUTE, || {
        match on_b("leaves", "deletionTimestamp").as_str() {
            "" => Err("it is not".to_owned()),
            _ => Ok(down.elapsed()),
        }
    });
    eventually("its replacement runs on a", MINUTE, || {
        let names = cluster.kubectl(
            "get pods -l app=leaves --field-selector spec.nodeName=a -o jsonpath={.items[*].status.containerStatuses[0].ready}",
        );
        (names.matches("true").count() == 2)
            .then_some(())
            .ok_or(names)
    });
    assert_eq!(
        on_b("stays", "deletionTimestamp"),
        "",
        "the patient Pod stays"
    );
    // Nobody ends the container: only the kubelet could.
    let shim = |pods: &str| {
        attempt(Command::new("sh").args([
            "-c",
            &format!("cat /proc/[0-9]*/environ 2>/dev/null | grep -zc HOSTNAME={pods}"),
        ]))
    };
    assert!(
        shim(&running).is_ok_and(|count| count.trim() != "0"),
        "the container of {running} goes on"
    );

    cluster.agent.heal("kubelet");
    let back = Instant::now();
    eventually("node b is Ready again", MINUTE, || {
        match status().as_str() {
            "True" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    eventually("the evicted Pod is gone", MINUTE, || {
        match on_b("leaves", "name")
            .split_whitespace()
            .any(|name| name == running)
        {
            false => Ok(()),
            true => Err(running.clone()),
        }
    });
    println!(
        "symptom: kubelet down: NotReady after {:.0} s, 1 Pod that tolerates 4 s evicted after {:.0} s and replaced, \
         1 that tolerates 300 s stays, container goes on; all in order {:.1} s after the kubelet was back",
        not_ready.as_secs_f64(),
        evicted.as_secs_f64(),
        back.elapsed().as_secs_f64()
    );
    assert!(
        (38.0..70.0).contains(&not_ready.as_secs_f64()),
        "the grace period is 50 s after the last sign of life, which is up to 10 s old"
    );
}

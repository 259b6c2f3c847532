//! kill -9 of whole processes at random moments: containers and Services do not notice.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use crate::support::cluster::{Cluster, IMAGE, MINUTE};
use crate::support::load::{Load, Tally, namespace_of_process};
use crate::support::{attempt, eventually, long};

const REPLICAS: usize = 4;
const RATE: u32 = 50;
const CLIENTS: u32 = 8;

/// Repeatable moments: the seed is printed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pause(&mut self, most_millis: u64) {
        std::thread::sleep(Duration::from_millis(self.roll(most_millis)));
    }
}

fn deployment(name: &str, replicas: usize) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}}}, spec: {{replicas: {replicas}, selector: {{matchLabels: {{app: {name}}}}}, \
         template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{terminationGracePeriodSeconds: 1, \
         topologySpreadConstraints: [{{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, \
         labelSelector: {{matchLabels: {{app: {name}}}}}}}], containers: [{{name: main, image: '{IMAGE}', \
         readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 10}}}}]}}}}}}}}"
    )
}

#[test]
fn kill_9_at_random_moments_disturbs_nothing_that_runs() {
    let seed = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    let seed = std::env::var("SAMPAN_TEST_SEED")
        .map_or(u64::try_from(seed % 1_000_000).unwrap() + 1, |text| {
            text.parse().unwrap()
        });
    println!("churn: SAMPAN_TEST_SEED={seed}");
    let mut cluster = Cluster::start("churn");
    let mark = format!("3000000.{}", std::process::id());
    cluster.server.apply(&deployment("web", REPLICAS));
    cluster.server.apply(&deployment("spare", 1));
    cluster.server.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: client}}, spec: {{nodeName: b, terminationGracePeriodSeconds: 0, \
         containers: [{{name: main, image: '{IMAGE}', command: [sleep, '{mark}']}}]}}}}"
    ));
    cluster.kubectl("expose deployment web --port=80 --target-port=8080");
    for name in ["web", "spare"] {
        cluster.kubectl(&format!("rollout status deployment/{name} --timeout=60s"));
    }
    cluster.kubectl("wait --for=condition=Ready pod/client --timeout=60s");
    let address = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
    let target: SocketAddr = format!("{address}:80").parse().unwrap();
    let pod = namespace_of_process(&mark).expect("the client Pod's process");
    let before = containers(&cluster);
    eventually("the Service answers everywhere", MINUTE, || {
        let mut curl = cluster.nodes[1].command("curl");
        attempt(curl.args(["-sS", "-m", "3", &format!("http://{address}/")]))
    });
    let loads = [cluster.nodes[0].path(), cluster.nodes[1].path(), pod]
        .map(|namespace| Load::start(&namespace, target, RATE, CLIENTS));

    let wanted_kills = if long() { 100 } else { 10 };
    let mut dice = Dice(seed);
    let (mut kills, mut rounds, mut scaled) = ([0, 0], 0, 0);
    while kills[0] + kills[1] < wanted_kills {
        rounds += 1;
        kill_some(&mut cluster, &mut dice, &mut kills);
        // Something is always going on: while the API is away the change is refused, which is fine.
        let replicas = 1 + dice.roll(3);
        let scale = format!("scale deployment/spare --replicas={replicas} --request-timeout=5s");
        if attempt(&mut cluster.server.kubectl(&scale)).is_ok() {
            scaled += 1;
        }
        if rounds % 5 == 0 {
            cluster.wait_ready();
            the_same(&cluster, &before, &format!("after {kills:?} kills"));
        }
    }
    cluster.wait_ready();
    settles(&cluster);
    the_same(&cluster, &before, "in the end");
    let mut all = Tally::default();
    for load in loads {
        all.merge(load.stop().0);
    }
    println!(
        "churn: {} kill -9 of the server and {} of the agent, {scaled} changes acknowledged in between; {} containers the same, \
         requests {}, failed {}",
        kills[0],
        kills[1],
        REPLICAS + 1,
        all.requests,
        all.failed
    );
    assert_eq!(all.failed, 0, "failed requests: {:?}", all.failures);
}

/// Kills the server, the agent or both, and starts them again a moment later.
fn kill_some(cluster: &mut Cluster, dice: &mut Dice, kills: &mut [u32; 2]) {
    dice.pause(3000);
    let which = dice.roll(3);
    let (server, agent) = (which != 1, which != 0);
    if server {
        cluster.server.kill();
        kills[0] += 1;
    }
    if agent {
        cluster.agent.kill();
        kills[1] += 1;
    }
    dice.pause(2000);
    if server {
        cluster.start_server();
    }
    if agent {
        cluster.start_agent();
    }
}

/// Containers and their restarts are as before; if not, says how the former ones ended.
fn the_same(cluster: &Cluster, before: &str, when: &str) {
    let now = containers(cluster);
    if now != before {
        let ends = "jsonpath={range .items[*]}{.metadata.name} on {.spec.nodeName}: {.status.containerStatuses[*].lastState}{\"\\n\"}{end}";
        let ends =
            crate::support::run(&mut cluster.server.kubectl_args(&["get", "pods", "-o", ends]));
        let events = cluster.kubectl("get events --sort-by=.metadata.creationTimestamp");
        panic!("containers {when}:\n{now}\nbefore:\n{before}\nends:\n{ends}\nevents:\n{events}");
    }
}

fn containers(cluster: &Cluster) -> String {
    let path = "{range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    let select = |selector: &str| {
        let mut command = cluster.server.kubectl_args(&[
            "get",
            "pods",
            "-l",
            selector,
            "-o",
            &format!("jsonpath={path}"),
        ]);
        crate::support::run(&mut command)
    };
    select("app=web") + &select("!app")
}

/// What was asked for in between is so in the end, and new things work.
fn settles(cluster: &Cluster) {
    eventually("the scaled Deployment is as wanted", MINUTE, || {
        let path = "{.spec.replicas} {.status.availableReplicas} {.status.replicas}";
        let mut command = cluster.server.kubectl_args(&[
            "get",
            "deployment",
            "spare",
            "-o",
            &format!("jsonpath={path}"),
        ]);
        let text = attempt(&mut command)?;
        let mut numbers = text.split_whitespace();
        let first = numbers.next();
        let all = numbers.all(|number| Some(number) == first);
        if all { Ok(()) } else { Err(text) }
    });
    cluster.server.apply(&deployment("last", 2));
    cluster.kubectl("rollout status deployment/last --timeout=60s");
}

//! Nodes among themselves and with their server: what each tells about itself, what it keeps, how it comes back.

mod names;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::netns::{self, Namespace};
use crate::support::process::Sampan;
use crate::support::{Scratch, attempt, eventually, run, tools};

const MINUTE: Duration = Duration::from_secs(60);
const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: NAME}, spec: {nodeName: NODE, \
    terminationGracePeriodSeconds: 0, tolerations: [{operator: Exists}], \
    containers: [{name: main, image: 'sampan.io/pause:1', imagePullPolicy: Never}]}}";

struct Cluster {
    server: Sampan,
    agent: Sampan,
    nodes: [Namespace; 2],
    scratch: Scratch,
}

impl Cluster {
    /// The server is no node, so that what happens to it is seen apart from what happens to the node `b`.
    fn start(name: &str, server_options: &[&str], agent_options: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let nodes = netns::pair();
        let server = start_server(scratch.path(), &nodes[0], server_options);
        let agent = start_agent(scratch.path(), &nodes, agent_options);
        let cluster = Self {
            server,
            agent,
            nodes,
            scratch,
        };
        cluster.wait_ready("b");
        cluster
    }

    fn kubectl(&self, arguments: &str) -> String {
        run(&mut self.server.kubectl(arguments))
    }

    fn wait_ready(&self, node: &str) {
        wait_ready(&self.server, node);
    }

    fn pod(&self, name: &str, node: &str) {
        self.server
            .apply(&POD.replace("NAME", name).replace("NODE", node));
        self.kubectl(&format!(
            "wait --for=condition=Ready pod/{name} --timeout=60s"
        ));
    }
}

fn start_server(folder: &Path, namespace: &Namespace, options: &[&str]) -> Sampan {
    let folder = folder.join("a");
    let mut all = vec![
        "--node-name=a".to_owned(),
        format!("--node-ip={}", namespace.address),
        format!("--write-kubeconfig={}", folder.join("kubeconfig").display()),
    ];
    all.extend(options.iter().map(|&option| option.to_owned()));
    let server = Sampan::start("server", &folder, Some(namespace), &all);
    eventually("the API is ready", MINUTE, || {
        attempt(&mut server.kubectl("get --raw /readyz"))
    });
    server
}

fn start_agent(folder: &Path, nodes: &[Namespace; 2], options: &[&str]) -> Sampan {
    let token = folder.join("a/d/server/node-token");
    let mut all = vec![
        "--node-name=b".to_owned(),
        format!("--token-file={}", token.display()),
    ];
    if !options.iter().any(|option| option.starts_with("--server=")) {
        all.push(format!("--server=https://{}:6443", nodes[0].address));
    }
    all.extend(options.iter().map(|&option| option.to_owned()));
    Sampan::start("agent", &folder.join("b"), Some(&nodes[1]), &all)
}

fn wait_ready(server: &Sampan, node: &str) {
    eventually(&format!("node {node} is Ready"), MINUTE, || {
        let command = format!("wait --for=condition=Ready node/{node} --timeout=1s");
        attempt(&mut server.kubectl(&command))
    });
}

/// The code and body of an answer, or what curl says.
fn ask(namespace: &Namespace, url: &str, more: &[&str]) -> Result<(String, String), String> {
    let mut command = namespace.command("curl");
    command
        .args(["-sk", "-m", "5", "-w", "\n%{http_code}", url])
        .args(more);
    let text = attempt(&mut command)?;
    let (body, code) = text.rsplit_once('\n').unwrap_or_default();
    Ok((code.to_owned(), body.to_owned()))
}

struct Taken(Child);

impl Drop for Taken {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _waited = self.0.wait();
    }
}

/// A program that has a port on loopback, as another Kubernetes on the same machine would.
fn take_port(namespace: &Namespace, port: u16) -> Taken {
    let busybox = tools().join("busybox/bin/busybox");
    let child = namespace
        .command(&busybox.display().to_string())
        .args(["nc", "-ll", "-p", &port.to_string(), "-e", "/bin/true"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let taken = Taken(child);
    eventually("the port is taken", MINUTE, || {
        let listening = run(namespace.command("ss").args(["-Hltn"]));
        match listening.contains(&format!(":{port} ")) {
            true => Ok(()),
            false => Err(listening),
        }
    });
    taken
}

#[test]
fn components_tell_their_health_on_loopback() {
    let scratch = Scratch::new("ports");
    let nodes = netns::pair();
    let other = take_port(&nodes[0], 10259);
    let server = start_server(scratch.path(), &nodes[0], &[]);
    let agent = start_agent(scratch.path(), &nodes, &[]);
    wait_ready(&server, "a");
    wait_ready(&server, "b");
    let mut answers = 0;
    for node in &nodes {
        for path in [
            "10248/healthz",
            "10256/healthz",
            "10256/livez",
            "10256/metrics",
        ] {
            let url = format!("http://127.0.0.1:{path}");
            eventually(&url, MINUTE, || match ask(node, &url, &[])? {
                (code, _) if code == "200" => Ok(()),
                other => Err(format!("{other:?}")),
            });
            answers += 1;
        }
        for port in [10255, 10248, 10256, 10257, 10259] {
            let outside = ask(
                node,
                &format!("http://{}:{port}/healthz", node.address),
                &[],
            );
            assert!(
                outside.is_err(),
                "port {port} is open to the network: {outside:?}"
            );
        }
        assert!(ask(node, "http://127.0.0.1:10255/healthz", &[]).is_err());
    }
    let controllers = "https://127.0.0.1:10257";
    for path in ["healthz", "livez", "readyz", "readyz?verbose"] {
        let (code, body) = ask(&nodes[0], &format!("{controllers}/{path}"), &[]).unwrap();
        assert!(
            code == "200" && body.contains("ok"),
            "{path}: {code} {body}"
        );
        answers += 1;
    }
    let metrics = format!("{controllers}/metrics");
    assert_eq!(ask(&nodes[0], &metrics, &[]).unwrap().0, "403");
    let tls = server.data_dir.join("server/tls");
    let file = |name: &str| tls.join(name).display().to_string();
    let admin = [
        "--cert",
        &file("client-admin.crt"),
        "--key",
        &file("client-admin.key"),
    ];
    let (code, body) = ask(&nodes[0], &metrics, &admin).unwrap();
    assert!(
        code == "200" && body.contains("workqueue_depth{name=\"node-ipam"),
        "{code} {body}"
    );
    assert!(body.contains("process_resident_memory_bytes "));
    answers += 1;
    let log = std::fs::read_to_string(&server.log).unwrap();
    let taken = log.lines().find(|line| line.contains("127.0.0.1:10259"));
    assert!(
        taken.is_some_and(|line| line.contains("another program has its port")),
        "{log}"
    );
    drop(other);
    println!(
        "health: {answers} answers of 4 components on 2 nodes; 10 ports closed to the network; 10255 never; \
         a taken 10259 was logged and both nodes are Ready"
    );
    drop(agent);
}

#[test]
fn addresses_that_no_sandbox_holds_come_back_at_start() {
    let mut cluster = Cluster::start("leak", &["--disable-agent"], &[]);
    cluster.pod("kept", "b");
    let kept = cluster.kubectl("get pod kept -o jsonpath={.status.podIP}");
    cluster.agent.terminate();
    // Sandboxes whose network namespace is there, but of which the runtime knows nothing (any more).
    let folder = cluster.agent.data_dir.join("agent/network/addresses");
    const LEAKED: usize = 50;
    for number in 0..LEAKED {
        let text = serde_json::json!({
            "sandbox": format!("dead{number}"), "interface": "eth0", "hostLink": format!("spdead{number}"),
            "addresses": [format!("10.42.0.{}", 100 + number)], "namespace": "/proc/self/ns/net"
        });
        let file = folder.join(format!("dead{number}_eth0.json"));
        std::fs::write(file, text.to_string()).unwrap();
    }
    cluster.agent = start_agent(cluster.scratch.path(), &cluster.nodes, &[]);
    eventually("the leaked addresses are released", MINUTE, || {
        let files = std::fs::read_dir(&folder).unwrap().flatten();
        let names: Vec<String> = files
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".json"))
            .collect();
        match names.as_slice() {
            [one] if !one.starts_with("dead") => Ok(()),
            _ => Err(format!("{names:?}")),
        }
    });
    cluster.wait_ready("b");
    let after = cluster.kubectl("get pod kept -o jsonpath={.status.podIP}");
    assert_eq!(after, kept);
    println!("addresses: {LEAKED} leaked ones released at start, 1 in use kept ({kept})");
}

/// Everything of a node that lies outside of its data directory.
fn traces(namespace: &Namespace, data_dir: &Path) -> String {
    let mut text = run(namespace.command("nft").args(["list", "tables"]));
    text += &run(Command::new("sh").args([
        "-c",
        "ls -d /sys/fs/cgroup/*/sampan-* /sys/fs/cgroup/sampan-* 2>/dev/null || true",
    ]))
    .lines()
    .filter(|line| line.ends_with(&node_id(data_dir)))
    .map(|line| format!("{line}\n"))
    .collect::<String>();
    let links = run(namespace.command("ip").args(["-o", "link"]));
    text.extend(
        links
            .lines()
            .filter(|line| line.contains(": sp") || line.contains(": sampan")),
    );
    let routes = run(namespace.command("ip").args(["route"]));
    text.extend(
        routes
            .lines()
            .filter(|line| line.starts_with("10.42.") || line.starts_with("10.43.")),
    );
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = |line: &&str| {
        line.contains(&*data_dir.to_string_lossy()) || line.contains(&node_id(data_dir))
    };
    text.extend(mounts.lines().filter(ours));
    let processes = run(Command::new("ps").args(["ax", "-o", "args"]));
    text.extend(
        processes
            .lines()
            .filter(ours)
            .filter(|line| !line.contains("uninstall")),
    );
    text
}

/// What names the node's control groups and its folder in `/run`.
fn node_id(data_dir: &Path) -> String {
    let digest = run(Command::new("sh").args([
        "-c",
        &format!(
            "printf %s '{}' | sha256sum",
            data_dir.join("agent").display()
        ),
    ]));
    digest[..12].to_owned()
}

#[test]
fn an_uninstall_that_is_killed_is_finished_by_the_next_one() {
    let mut cluster = Cluster::start("off", &["--disable-agent"], &[]);
    let rounds = if std::env::var("SAMPAN_TEST_LONG").is_ok_and(|v| v == "1") {
        10
    } else {
        3
    };
    let mut kills = 0;
    for round in 0..rounds {
        let name = format!("p{round}");
        cluster.pod(&name, "b");
        let data_dir = cluster.agent.data_dir.clone();
        assert!(!traces(&cluster.nodes[1], &data_dir).is_empty());
        let uninstall = |more: &[&str]| {
            let mut command = cluster.nodes[1].command(env!("CARGO_BIN_EXE_sampan"));
            command
                .args(["uninstall", "--data-dir"])
                .arg(&data_dir)
                .args(more);
            command
        };
        let said = run(&mut uninstall(&["--dry-run"]));
        assert!(
            said.contains("would end all containers (1 shims)"),
            "{said}"
        );
        for delay in [0, 5, 20, 60, 150, 250].map(|ms| Duration::from_millis(ms + 7 * round)) {
            let mut child = uninstall(&[])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(delay);
            if child.try_wait().unwrap().is_none() {
                kills += 1;
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        run(&mut uninstall(&[]));
        let again = run(&mut uninstall(&[]));
        assert!(
            !again.contains("remove link") && again.contains("kept: "),
            "{again}"
        );
        assert_eq!(
            traces(&cluster.nodes[1], &data_dir),
            "",
            "after an uninstall"
        );
        let forwarding = run(cluster.nodes[1]
            .command("cat")
            .arg("/proc/sys/net/ipv4/ip_forward"));
        assert_eq!(forwarding.trim(), "0");
        assert!(
            data_dir.join("agent/tls/client-kubelet.key").exists(),
            "data is kept"
        );
        // With its data the node comes back as it was, and its Pods with it.
        cluster.agent = start_agent(cluster.scratch.path(), &cluster.nodes, &[]);
        eventually("the Pod runs again", MINUTE, || {
            let command = format!("wait --for=condition=Ready pod/{name} --timeout=1s");
            attempt(&mut cluster.server.kubectl(&command))
        });
        cluster.kubectl(&format!("delete pod {name} --wait=true"));
    }
    assert!(kills > 0);
    println!(
        "uninstall: {rounds} rounds, killed {kills} times on the way, finished by the next, nothing left; data kept, the node came back"
    );
}

/// A second address of a machine: its last number is another.
fn other_address(namespace: &Namespace, last: u8) -> String {
    let (network, _) = namespace.address.rsplit_once('.').unwrap();
    format!("{network}.{last}")
}

fn change_address(namespace: &Namespace, action: &str, address: &str) {
    run(namespace
        .command("ip")
        .args(["addr", action, &format!("{address}/24"), "dev", "eth0"]));
}

#[test]
fn an_agent_starts_without_the_server_and_finds_it_elsewhere() {
    let scratch = Scratch::new("away");
    let nodes = netns::pair();
    let door = other_address(&nodes[0], 101);
    change_address(&nodes[0], "add", &door);
    let advertise = format!("--advertise-address={}", nodes[0].address);
    let san = format!("--tls-san={door}");
    let sans = ["--disable-agent", &advertise, &san];
    let mut server = start_server(scratch.path(), &nodes[0], &sans);
    let by_door = format!("--server=https://{door}:6443");
    let mut agent = start_agent(scratch.path(), &nodes, &[&by_door]);
    wait_ready(&server, "b");
    server.apply(&POD.replace("NAME", "stays").replace("NODE", "b"));
    run(&mut server.kubectl("wait --for=condition=Ready pod/stays --timeout=60s"));
    let id = |server: &Sampan| {
        run(&mut server
            .kubectl("get pod stays -o jsonpath={.status.containerStatuses[0].containerID}"))
    };
    let before = id(&server);

    // The server is away; the agent is killed and starts all the same.
    server.terminate();
    agent.kill();
    agent = start_agent(scratch.path(), &nodes, &[&by_door]);
    for (what, url) in [
        ("the kubelet runs", "http://127.0.0.1:10248/healthz"),
        ("the proxy answers", "http://127.0.0.1:10256/metrics"),
    ] {
        eventually(what, MINUTE, || match ask(&nodes[1], url, &[])? {
            (code, _) if code == "200" => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    let log = std::fs::read_to_string(&agent.log).unwrap();
    assert!(
        log.contains("the node starts with what it said last"),
        "{log}"
    );

    // It comes back, and the address by which the agent joined is gone.
    change_address(&nodes[0], "del", &door);
    server = start_server(scratch.path(), &nodes[0], &sans);
    wait_ready(&server, "b");
    server.apply(&POD.replace("NAME", "next").replace("NODE", "b"));
    run(&mut server.kubectl("wait --for=condition=Ready pod/next --timeout=60s"));
    assert_eq!(id(&server), before, "the container went on");
    println!(
        "away: agent killed and started without its server; server found at its second address; 1 container went on, 1 new Pod runs"
    );
}

/// The certificate that a port shows, which must be of this authority.
fn shown(namespace: &Namespace, address: &str, authority: &Path) -> String {
    try_shown(namespace, address, authority).unwrap()
}

fn try_shown(namespace: &Namespace, address: &str, authority: &Path) -> Result<String, String> {
    let mut command = namespace.command("curl");
    command.args([
        "-s",
        "-m",
        "5",
        "-o",
        "/dev/null",
        "-w",
        "%{certs}",
        "--cacert",
    ]);
    attempt(
        command
            .arg(authority)
            .arg(format!("https://{address}/healthz")),
    )
}

/// Makes a node's folder hold what a version signed that had one authority for all servers.
fn sign_as_before(tls: &Path, node: &str, namespace: &Namespace, folder: &Path) {
    use sampan_pki::{Authority, LeafSpec};
    let read = |name: &str| std::fs::read_to_string(tls.join(name)).unwrap();
    let authority = Authority::load(&read("server-ca.crt"), &read("server-ca.key")).unwrap();
    let mut spec = LeafSpec::server(
        &format!("system:node:{node}"),
        vec![node.to_owned()],
        vec![namespace.address.parse().unwrap()],
    );
    spec.organizations = vec!["system:nodes".to_owned()];
    let leaf = authority.issue(&spec, std::time::SystemTime::now());
    let leaf = leaf.unwrap();
    std::fs::write(folder.join("serving-kubelet.crt"), leaf.certificate_pem).unwrap();
    std::fs::write(folder.join("serving-kubelet.key"), leaf.key_pem).unwrap();
}

#[test]
fn kubelets_get_certificates_of_an_authority_that_clients_do_not_know() {
    let scratch = Scratch::new("kubelet-ca");
    let nodes = netns::pair();
    let tls = scratch.path().join("a/d/server/tls");
    let earlier = std::time::SystemTime::now() - Duration::from_secs(7200);
    sampan_pki::Authority::ensure(&tls, "server-ca", "sampan-server-ca@1", earlier).unwrap();
    let mut server = start_server(scratch.path(), &nodes[0], &[]);
    let mut agent = start_agent(scratch.path(), &nodes, &[]);
    wait_ready(&server, "a");
    wait_ready(&server, "b");
    server.apply(&POD.replace("NAME", "p").replace("NODE", "b"));
    run(&mut server.kubectl("wait --for=condition=Ready pod/p --timeout=60s"));

    // Both go down and find their data as a version without the authority had it.
    agent.terminate();
    server.terminate();
    for suffix in ["crt", "key"] {
        std::fs::remove_file(tls.join(format!("kubelet-ca.{suffix}"))).unwrap();
    }
    sign_as_before(&tls, "a", &nodes[0], &server.data_dir.join("agent/tls"));
    sign_as_before(&tls, "b", &nodes[1], &agent.data_dir.join("agent/tls"));
    let door = |node: usize| format!("{}:10250", nodes[node].address);
    let (clients, kubelets) = (tls.join("server-ca.crt"), tls.join("kubelet-ca.crt"));
    server = start_server(scratch.path(), &nodes[0], &[]);
    agent = start_agent(scratch.path(), &nodes, &[]);
    let mut asked = 0;
    for node in [0, 1] {
        eventually(
            "the kubelet has a certificate of its own kind",
            MINUTE,
            || {
                asked += 1;
                try_shown(&nodes[node], &door(node), &kubelets).map(|_| ())
            },
        );
        // The same door, and clients' authority does not vouch for it.
        let refused = try_shown(&nodes[node], &door(node), &clients);
        assert!(refused.is_err(), "{refused:?}");
    }
    wait_ready(&server, "b");
    run(&mut server.kubectl("logs p"));
    run(&mut server.kubectl("get --raw /api/v1/nodes/a/proxy/healthz"));
    // Nothing that clients are given names it.
    let own = std::fs::read_to_string(&kubelets).unwrap();
    let given = [
        run(&mut server.kubectl("get configmap kube-root-ca.crt -o jsonpath={.data}")),
        ask(&nodes[0], "https://127.0.0.1:6443/cacerts", &[])
            .unwrap()
            .1,
        std::fs::read_to_string(server.kubeconfig()).unwrap(),
    ];
    let line = own.lines().nth(2).unwrap();
    assert!(given.iter().all(|text| !text.contains(line)));
    println!(
        "kubelet authority: made for a data directory without it; 2 of 2 kubelets shown by the new one after {asked} looks,          refused by clients' authority 2 of 2; logs and proxy work; {} places do not give it out",
        given.len()
    );
    drop(agent);
}

#[test]
fn certificates_are_renewed_while_everything_runs() {
    let cluster = Cluster::start("renew", &["--certificate-lifetime=20s"], &[]);
    cluster.wait_ready("a");
    cluster
        .server
        .apply(&POD.replace("NAME", "p").replace("NODE", "b"));
    cluster.kubectl("wait --for=condition=Ready pod/p --timeout=60s");
    let authority = |name: &str| {
        cluster
            .server
            .data_dir
            .join(format!("server/tls/{name}.crt"))
    };
    let (server, kubelet) = (authority("server-ca"), authority("kubelet-ca"));
    let doors = [
        (0, format!("{}:6443", cluster.nodes[0].address), &server),
        (0, "127.0.0.1:10257".to_owned(), &server),
        (0, format!("{}:10250", cluster.nodes[0].address), &kubelet),
        (1, format!("{}:10250", cluster.nodes[1].address), &kubelet),
    ];
    let mut seen = vec![std::collections::BTreeSet::new(); doors.len()];
    let lives = if std::env::var("SAMPAN_TEST_LONG").is_ok_and(|v| v == "1") {
        10
    } else {
        2
    };
    let until = std::time::Instant::now() + Duration::from_secs(20 * lives + 4);
    let mut requests = 0;
    while std::time::Instant::now() < until {
        for ((node, door, authority), certificates) in doors.iter().zip(&mut seen) {
            certificates.insert(shown(&cluster.nodes[*node], door, authority));
        }
        // By the administrator's file, through the API server to either kubelet; nothing may fail.
        cluster.kubectl("get nodes");
        cluster.kubectl("logs p");
        cluster.kubectl("get --raw /api/v1/nodes/a/proxy/healthz");
        requests += 3;
        std::thread::sleep(Duration::from_millis(300));
    }
    for (certificates, (_, door, _)) in seen.iter().zip(&doors) {
        assert!(
            certificates.len() as u64 >= lives,
            "{door} showed {} certificates",
            certificates.len()
        );
    }
    cluster.wait_ready("a");
    cluster.wait_ready("b");
    cluster.pod("late", "b");
    let counts: Vec<usize> = seen.iter().map(std::collections::BTreeSet::len).collect();
    println!(
        "certificates: lives of 20 s, {lives} lives; {counts:?} different ones shown by API server, controllers and 2 kubelets; \
         {requests} requests through them, 0 failed; no restart"
    );
}

#[test]
fn a_node_follows_its_address() {
    let scratch = Scratch::new("moves");
    let nodes = netns::pair();
    for node in &nodes {
        // Or an address takes all that came after it along.
        let key = "net.ipv4.conf.all.promote_secondaries=1";
        run(node.command("sysctl").args(["-qw", key]));
    }
    let door = other_address(&nodes[0], 101);
    change_address(&nodes[0], "add", &door);
    let kubeconfig = format!(
        "--write-kubeconfig={}",
        scratch.path().join("a/kubeconfig").display()
    );
    let san = format!("--tls-san={door}");
    let server = Sampan::start(
        "server",
        &scratch.path().join("a"),
        Some(&nodes[0]),
        &["--node-name=a".to_owned(), kubeconfig, san],
    );
    wait_ready(&server, "a");
    let agent = start_agent(
        scratch.path(),
        &nodes,
        &[&format!("--server=https://{door}:6443")],
    );
    wait_ready(&server, "b");
    server.apply(&POD.replace("NAME", "p").replace("NODE", "b"));
    run(&mut server.kubectl("wait --for=condition=Ready pod/p --timeout=60s"));
    let id = || {
        run(&mut server.kubectl("get pod p -o jsonpath={.status.containerStatuses[0].containerID}"))
    };
    let before = id();
    let address = |node: &str| {
        let path = r#"jsonpath={.status.addresses[?(@.type=="InternalIP")].address}"#;
        attempt(&mut server.kubectl_args(&["get", "node", node, "-o", path]))
    };
    let started = std::time::Instant::now();
    let mut took = Vec::new();
    for (node, namespace) in ["a", "b"].into_iter().zip(&nodes) {
        let moved = started.elapsed();
        let new = other_address(namespace, 51 + u8::from(node == "b"));
        change_address(namespace, "add", &new);
        change_address(namespace, "del", &namespace.address);
        eventually("the Node has its new address", MINUTE, || {
            match address(node)? {
                found if found == new => Ok(()),
                found => Err(found),
            }
        });
        // The API server reaches the kubelet at its new address, whose certificate names it.
        eventually("the kubelet answers", MINUTE, || {
            attempt(&mut server.kubectl(&format!("get --raw /api/v1/nodes/{node}/proxy/healthz")))
        });
        took.push((started.elapsed() - moved).as_secs_f32());
    }
    let [a, b] = [other_address(&nodes[0], 51), other_address(&nodes[1], 52)];
    let endpoints = || {
        attempt(
            &mut server
                .kubectl("get endpoints kubernetes -o jsonpath={.subsets[*].addresses[*].ip}"),
        )
    };
    assert_eq!(endpoints().unwrap(), a);
    let authority = server.data_dir.join("server/tls/server-ca.crt");
    shown(&nodes[1], &format!("{a}:6443"), &authority);
    eventually(
        "the route to b's Pods leads to its new address",
        MINUTE,
        || {
            let routes = run(nodes[0].command("ip").args(["route"]));
            match routes
                .lines()
                .any(|line| line.starts_with("10.42.") && line.contains(&format!("via {b} ")))
            {
                true => Ok(()),
                false => Err(routes),
            }
        },
    );
    run(&mut server.kubectl("logs p"));
    wait_ready(&server, "b");
    assert_eq!(id(), before, "the container went on");
    println!(
        "addresses: server and agent moved while running; status, certificate, endpoints, routes followed after {took:.1?} s; 1 container went on"
    );
    drop(agent);
}

/// Keys and secrets are their owner's alone, on a server and on an agent.
#[test]
fn keys_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let cluster = Cluster::start("keys", &[], &[]);
    cluster.wait_ready("a");
    let mut looked_at = 0;
    let mut folders = vec![
        cluster.server.data_dir.clone(),
        cluster.agent.data_dir.clone(),
    ];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            // What runs in containers has modes of its own.
            if kind.is_dir() && !path.ends_with("agent/containerd") && !path.ends_with("agent/pods")
            {
                folders.push(path);
                continue;
            }
            let text = std::fs::read(&path).unwrap_or_default();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let holds_key = text.windows(12).any(|part| part == b"PRIVATE KEY-");
            if kind.is_file()
                && (holds_key
                    || name.contains("token")
                    || folder.ends_with("cred")
                    || folder.ends_with("db"))
            {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
                looked_at += 1;
            }
        }
    }
    let kubeconfig = std::fs::metadata(cluster.server.kubeconfig()).unwrap();
    assert_eq!(kubeconfig.permissions().mode() & 0o777, 0o600);
    assert!(looked_at > 12, "{looked_at} files");
    println!(
        "keys: {looked_at} files with keys, tokens or data on a server and an agent, readable by root alone"
    );
}

//! What a Pod shares with its node, and what it is called.

use super::scene::{FOREVER, Scene, container, main_container};
use crate::support::attempt;

const WEB: &str = "mkdir -p /w; hostname > /w/index.html; exec httpd -f -h /w -p 8080";

pub(super) fn host_port(scene: &Scene<'_>) {
    scene.pod(
        "port",
        &main_container(
            WEB,
            ", ports: [{containerPort: 8080, hostPort: 18080}], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}",
        ),
    );
    scene.pod("client", &main_container(FOREVER, ""));
    scene.ready("pod/port");
    scene.ready("pod/client");
    let url = format!("http://{}:18080/", scene.node.itself.address);
    let curl = ["-sS", "-m", "3", url.as_str()];
    for (place, namespace) in [
        ("outside", &scene.node.outside),
        ("itself", &scene.node.itself),
    ] {
        let got = attempt(namespace.command("curl").args(curl));
        scene.is(place, &got.unwrap_or_else(|e| e), "port");
    }
    scene.is(
        "from a Pod",
        &scene.exec("client", &format!("curl -sS -m 3 {url}")),
        "port",
    );
    // The port is taken: a second Pod waits, and follows when the first one goes.
    scene.pod(
        "second",
        &main_container(WEB, ", ports: [{containerPort: 8080, hostPort: 18080}]"),
    );
    scene.event(
        "second",
        "FailedScheduling",
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
    );
    scene.kubectl("delete pod port");
    scene.ready("pod/second");
    scene.until("the second answers", || {
        let got = attempt(scene.node.outside.command("curl").args(curl))?;
        if got.trim() == "second" {
            Ok(())
        } else {
            Err(got)
        }
    });
    scene.kubectl("delete pod second");
    scene.until("nobody answers", || {
        match attempt(scene.node.outside.command("curl").args(curl)) {
            Ok(got) => Err(got),
            Err(_) => Ok(()),
        }
    });
}

pub(super) fn host_namespaces(scene: &Scene<'_>) {
    scene.pod(
        "network",
        &format!("hostNetwork: true, {}", main_container(FOREVER, "")),
    );
    scene.pod(
        "pid",
        &format!("hostPID: true, {}", main_container(FOREVER, "")),
    );
    scene.pod(
        "ipc",
        &format!("hostIPC: true, {}", main_container(FOREVER, "")),
    );
    scene.pod("own", &main_container(FOREVER, ""));
    scene.pod(
        "shared",
        &format!(
            "shareProcessNamespace: true, containers: [{}, {}]",
            container("main", FOREVER, ""),
            container("other", "exec sleep 98765", "")
        ),
    );
    scene.ready("pod --all");
    scene.is(
        "address",
        &scene.field("pod/network", "{.status.podIP} {.status.hostIP}"),
        &format!("{0} {0}", scene.node.itself.address),
    );
    let interfaces = scene.exec("network", "ls /sys/class/net; cat /proc/net/dev");
    scene.has("interfaces", &interfaces, "eth0");
    let own_pid = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let own_ipc = std::fs::read_link("/proc/self/ns/ipc").unwrap();
    let link = |pod: &str, kind: &str| scene.exec(pod, &format!("readlink /proc/self/ns/{kind}"));
    scene.is("pid", &link("pid", "pid"), &own_pid.to_string_lossy());
    scene.is("ipc", &link("ipc", "ipc"), &own_ipc.to_string_lossy());
    scene.truth("own pid", link("own", "pid") != link("pid", "pid"));
    scene.truth("own ipc", link("own", "ipc") != link("ipc", "ipc"));
    scene.has("shared", &scene.exec("shared", "ps -o args"), "sleep 98765");
}

pub(super) fn names(scene: &Scene<'_>) {
    scene.apply("{apiVersion: v1, kind: Service, metadata: {name: sub}, spec: {clusterIP: None, selector: {app: named}}}");
    scene.pod_with(
        "named",
        ", labels: {app: named}",
        &format!(
            "hostname: host, subdomain: sub, hostAliases: [{{ip: 10.1.2.3, hostnames: [alias.test]}}], {}",
            main_container(FOREVER, "")
        ),
    );
    scene.pod(
        "own-dns",
        &format!(
            "dnsPolicy: None, dnsConfig: {{nameservers: [10.9.9.9], searches: [my.test], options: [{{name: ndots, value: '2'}}]}}, {}",
            main_container(FOREVER, "")
        ),
    );
    scene.ready("pod/named");
    scene.ready("pod/own-dns");
    let full = format!("host.sub.{}.svc.cluster.local", scene.namespace());
    scene.is("hostname", &scene.exec("named", "hostname"), "host");
    let ip = scene.field("pod/named", "{.status.podIP}");
    scene.has(
        "hosts",
        &scene.exec("named", "cat /etc/hosts"),
        &format!("{ip}\t{full}\thost"),
    );
    scene.has(
        "hosts",
        &scene.exec("named", "cat /etc/hosts"),
        "10.1.2.3\talias.test",
    );
    scene.until("the name resolves", || {
        let got = scene.try_exec("named", &format!("nslookup {full}"))?;
        if got.contains(&ip) { Ok(()) } else { Err(got) }
    });
    scene.is(
        "resolv.conf",
        &scene.exec("own-dns", "cat /etc/resolv.conf"),
        "search my.test\nnameserver 10.9.9.9\noptions ndots:2",
    );
    scene.has(
        "resolv.conf",
        &scene.exec("named", "cat /etc/resolv.conf"),
        &format!(
            "search {}.svc.cluster.local svc.cluster.local cluster.local",
            scene.namespace()
        ),
    );
}

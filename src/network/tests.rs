//! Pods, nodes and a client against the real kernel, in network namespaces of the test's own
//! (needs root).
#![allow(clippy::unwrap_used)]

mod lab;

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use sampan_client::Informers;
use sampan_client::testing::FakeServer;
use sampan_host::Journal;
use sampan_netlink::Namespace;
use sampan_netlink::route::Connection;
use sampan_util::Shutdown;
use serde_json::{Value, json};

use crate::cni::protocol::{Reply, code};
use crate::{Health, HostNetwork, run, undo};
use lab::{Lab, Pod};

fn failure(reply: Reply) -> (u32, String) {
    match reply {
        Reply::Error(failure) => (failure.code, failure.message),
        Reply::Result(value) => panic!("expected a failure, got {value}"),
    }
}

#[test]
fn pods_come_and_go_without_a_trace() {
    let lab = Lab::new("cycle");
    let before = lab
        .node
        .run(|| Connection::open().unwrap().routes().unwrap().len())
        .unwrap();
    let entries = lab.journal.entries().len();
    let mut seen = HashSet::new();
    for round in 0..30 {
        let pods: Vec<_> = (0..3).map(|i| Pod::new(&format!("s{round}-{i}"))).collect();
        for pod in &pods {
            let result = lab.call("ADD", pod, json!({}));
            let Reply::Result(result) = result else {
                panic!("{result:?}")
            };
            let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
            assert!(
                seen.insert(address),
                "an address was given out again too early"
            );
            assert_eq!(
                lab.call("CHECK", pod, json!({})),
                Reply::Result(Value::Null)
            );
        }
        for pod in &pods {
            assert_eq!(lab.call("DEL", pod, json!({})), Reply::Result(Value::Null));
            assert_eq!(lab.call("DEL", pod, json!({})), Reply::Result(Value::Null));
        }
    }
    let links = lab
        .node
        .run(|| Connection::open().unwrap().links().unwrap())
        .unwrap();
    assert!(
        links
            .iter()
            .all(|l| !l.name.starts_with("sp0") && l.name != "eth0"),
        "{links:?}"
    );
    let after = lab
        .node
        .run(|| Connection::open().unwrap().routes().unwrap().len())
        .unwrap();
    assert_eq!(after, before);
    assert_eq!(lab.journal.entries().len(), entries);
    let files = std::fs::read_dir(lab.settings.paths.addresses()).unwrap();
    assert_eq!(
        files.count(),
        1,
        "only the note of the last address remains"
    );
}

#[test]
fn pods_reach_each_other_the_node_and_the_outside() {
    let lab = Lab::new("reach");
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let (a_address, b_address) = (lab.add(&a), lab.add(&b));
    lab::serve(&a.namespace, 8080);
    lab::serve(&b.namespace, 8080);
    lab::serve(&lab.node, 8080);
    lab::serve(&lab.outside, 8080);
    let connect = lab::connect;
    assert_eq!(
        connect(&b.namespace, &format!("{a_address}:8080")).unwrap(),
        b_address
    );
    assert_eq!(
        connect(&a.namespace, &format!("{b_address}:8080")).unwrap(),
        a_address
    );
    assert_eq!(
        connect(&lab.node, &format!("{a_address}:8080")).unwrap(),
        "10.42.0.1"
    );
    assert_eq!(connect(&a.namespace, "10.42.0.1:8080").unwrap(), a_address);
    assert_eq!(connect(&a.namespace, "192.0.2.1:8080").unwrap(), a_address);
    assert_eq!(
        connect(&a.namespace, "192.0.2.9:8080").unwrap(),
        "192.0.2.1",
        "masqueraded"
    );
    assert_eq!(lab.mtu(&a), 1450, "as on the node's own link");
}

#[test]
fn a_pod_cannot_speak_under_another_address() {
    let lab = Lab::new("spoof");
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let (_, b_address) = (lab.add(&a), lab.add(&b));
    lab::serve(&b.namespace, 8080);
    let mut pod = Connection::open_in(&a.namespace).unwrap();
    let link = pod.link("eth0").unwrap().index;
    let network = "10.42.0.200/32".parse().unwrap();
    pod.add_address(&sampan_netlink::route::Address { link, network })
        .unwrap();
    let from = |source: &str| lab::connect_from(&a.namespace, source, &format!("{b_address}:8080"));
    assert!(from("10.42.0.200").is_err());
    assert!(from("10.42.0.2").is_ok());
}

#[test]
fn host_ports_lead_to_their_pod_and_end_with_it() {
    let lab = Lab::new("ports");
    let (web, bound) = (Pod::new("web"), Pod::new("bound"));
    let ports = json!({"portMappings": [
        {"hostPort": 8081, "containerPort": 8080, "protocol": "tcp", "hostIP": ""}]});
    let reply = lab.call("ADD", &web, json!({"runtimeConfig": ports}));
    assert!(matches!(reply, Reply::Result(_)), "{reply:?}");
    let ports = json!({"portMappings": [
        {"HostPort": 8081, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": "127.0.0.1"}]});
    let reply = lab.call("ADD", &bound, json!({"runtimeConfig": ports}));
    assert!(matches!(reply, Reply::Result(_)), "{reply:?}");
    lab::serve_name(&web.namespace, 8080, "web");
    lab::serve_name(&bound.namespace, 8080, "bound");
    let connect = lab::connect;
    assert_eq!(connect(&lab.outside, "192.0.2.1:8081").unwrap(), "web");
    assert_eq!(connect(&lab.node, "192.0.2.1:8081").unwrap(), "web");
    assert_eq!(connect(&lab.node, "127.0.0.1:8081").unwrap(), "bound");
    assert_eq!(
        connect(&web.namespace, "192.0.2.1:8081").unwrap(),
        "web",
        "to itself"
    );
    assert_eq!(lab.call("DEL", &web, json!({})), Reply::Result(Value::Null));
    assert!(connect(&lab.outside, "192.0.2.1:8081").is_err());
    assert_eq!(connect(&lab.node, "127.0.0.1:8081").unwrap(), "bound");
}

#[test]
fn a_restart_keeps_what_lives_and_releases_what_died() {
    let lab = Lab::new("restart");
    let (lives, dies) = (Pod::new("lives"), Pod::new("dies"));
    let address = lab.add(&lives);
    lab.add(&dies);
    drop(dies);
    let lab = lab.restarted();
    lab::serve(&lives.namespace, 8080);
    assert!(lab::connect(&lab.node, &format!("{address}:8080")).is_ok());
    let new = Pod::new("new");
    assert_ne!(lab.add(&new), address);
    let known: Vec<_> = std::fs::read_dir(lab.settings.paths.addresses())
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    assert_eq!(known.len(), 2, "{known:?}");
    // Garbage collection by the runtime's list.
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "new", "ifname": "eth0"}]});
    assert_eq!(lab.call("GC", &new, valid), Reply::Result(Value::Null));
    assert_eq!(
        failure(lab.call("CHECK", &lives, json!({}))).0,
        code::UNKNOWN_CONTAINER
    );
    assert_eq!(
        lab.call("CHECK", &new, json!({})),
        Reply::Result(Value::Null)
    );
}

#[test]
fn bad_calls_get_the_codes_of_the_specification() {
    let lab = Lab::new("bad");
    let pod = Pod::new("a");
    let mut bad = lab.request("ADD", &pod, json!({}));
    bad.netns = "/nowhere".into();
    let (number, message) = failure(lab.answer(&bad));
    assert_eq!(number, code::FAILED);
    assert!(message.contains("/nowhere"), "{message}");
    bad.container_id = "../x".into();
    assert_eq!(failure(lab.answer(&bad)).0, code::INVALID_ENVIRONMENT);
    assert_eq!(
        failure(lab.call("DANCE", &pod, json!({}))).0,
        code::INVALID_ENVIRONMENT
    );
    let old = json!({"cniVersion": "9.0.0"});
    assert_eq!(
        failure(lab.call("ADD", &pod, old)).0,
        code::INCOMPATIBLE_VERSION
    );
    let too_large = json!([{"hostPort": 70000, "containerPort": 1}]);
    for bad in [json!("x"), json!([{"hostPort": 1}]), too_large] {
        let ports = json!({"runtimeConfig": {"portMappings": bad}});
        let (number, _) = failure(lab.call("ADD", &pod, ports));
        assert_eq!(number, code::INVALID_CONFIG);
    }
    let left = std::fs::read_dir(lab.settings.paths.addresses()).unwrap();
    assert!(left.count() <= 1, "nothing stays allocated");
}

fn node(name: &str, cidr: Option<&str>, address: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"podCIDR": cidr},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]}
    }))
    .unwrap()
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no {what} in five seconds");
}

async fn follow(lab: &Lab) {
    let api = FakeServer::new();
    let client = api.client();
    let shutdown = Shutdown::new();
    let informers = Informers::new(client.clone(), shutdown.clone());
    let health = Health::default();
    let forwarding = sampan_host::sysctl::read("net.ipv4.ip_forward").unwrap();
    let task = {
        let (settings, journal) = (lab.settings.clone(), lab.journal.clone());
        let (informers, health, shutdown) = (informers.clone(), health.clone(), shutdown.clone());
        tokio::spawn(async move { run(settings, &informers, &journal, health, shutdown).await })
    };
    let conflist = lab.settings.paths.cni_conf.join("10-sampan.conflist");
    client
        .create(&node("here", None, "192.0.2.1"))
        .await
        .unwrap();
    informers
        .lister::<Node>()
        .wait_until(|l| l.get(None, "here").is_some())
        .await;
    assert!(!conflist.exists() && !health.state().ready);

    let patch = sampan_client::Patch::Merge(json!({"spec": {"podCIDR": "10.42.0.0/24"}}));
    client.patch::<Node>(None, "here", &patch).await.unwrap();
    let state = health.ready().await;
    assert_eq!(state.gateways[0].to_string(), "10.42.0.1");
    let config: Value = serde_json::from_slice(&std::fs::read(&conflist).unwrap()).unwrap();
    let plugin = &config["plugins"][0];
    assert_eq!(plugin["type"], "sampan-cni");
    assert!(lab.settings.paths.cni_bin.join("loopback").is_symlink());

    // The plugin's way in: one line each way on the socket.
    let pod = Pod::new("a");
    let request = lab.request("ADD", &pod, plugin.clone());
    let reply = lab::over_socket(plugin["socket"].as_str().unwrap(), &request).await;
    assert!(
        matches!(&reply, Reply::Result(r) if r["ips"][0]["address"] == "10.42.0.2/32"),
        "{reply:?}"
    );

    // Another node joins, moves, and leaves.
    let routes = || Connection::open().unwrap().routes().unwrap();
    let via = || {
        let to = "10.42.7.0/24".parse().unwrap();
        routes()
            .into_iter()
            .find(|r| r.destination == to)
            .and_then(|r| r.gateway)
    };
    let until = async |expected: Option<&str>| {
        let expected = expected.map(|a| a.parse().unwrap());
        eventually("route", || via() == expected).await;
    };
    client
        .create(&node("there", Some("10.42.7.0/24"), "192.0.2.9"))
        .await
        .unwrap();
    until(Some("192.0.2.9")).await;
    // Somebody removes what we need: it comes back.
    let taken = routes().into_iter().find(|r| r.gateway.is_some()).unwrap();
    Connection::open().unwrap().delete_route(&taken).unwrap();
    until(Some("192.0.2.9")).await;
    Connection::open().unwrap().delete_link("sampan0").unwrap();
    let services = "10.43.0.0/16".parse().unwrap();
    eventually("service route", || {
        routes().iter().any(|r| r.destination == services)
    })
    .await;
    let table = crate::settings::table(sampan_netlink::nft::Family::Ip);
    let nft = || sampan_netlink::nft::Connection::open().unwrap();
    nft().delete_table(&table).unwrap();
    eventually("table", || nft().tables().unwrap().contains(&table)).await;

    let addresses =
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.8"}]}});
    let patch = sampan_client::Patch::Merge(addresses);
    client
        .patch_status::<Node>(None, "there", &patch)
        .await
        .unwrap();
    until(Some("192.0.2.8")).await;
    let options = sampan_client::DeleteOptions::default();
    client
        .delete::<Node>(None, "there", &options)
        .await
        .unwrap();
    until(None).await;

    shutdown.trigger();
    task.await.unwrap().unwrap();
    let report = lab.journal.undo_all(&HostNetwork, false).unwrap();
    assert!(report.len() >= 4, "{report:?}");
    assert!(
        lab.journal.entries().is_empty(),
        "{:?}",
        lab.journal.entries()
    );
    let names: Vec<_> = Connection::open().unwrap().links().unwrap();
    assert!(
        names
            .iter()
            .all(|l| !l.name.starts_with("sampan") && !l.name.starts_with("sp0"))
    );
    assert!(
        sampan_netlink::nft::Connection::open()
            .unwrap()
            .tables()
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        sampan_host::sysctl::read("net.ipv4.ip_forward").unwrap(),
        forwarding,
        "as before"
    );
}

#[test]
fn the_network_follows_the_api_and_can_be_taken_back() {
    let lab = Lab::bare("follow");
    let work = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(follow(&lab));
    };
    lab.node.run(work).unwrap();
}

#[test]
fn without_the_api_the_network_comes_up_as_it_was() {
    let lab = Lab::bare("offline");
    let facts =
        json!([{"name": "here", "pod_cidrs": ["10.42.0.0/24"], "addresses": ["192.0.2.1"]}]);
    std::fs::create_dir_all(&lab.settings.paths.state).unwrap();
    std::fs::write(lab.settings.paths.last_node(), facts.to_string()).unwrap();
    let work = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let shutdown = Shutdown::new();
            let informers = Informers::new(FakeServer::new().client(), shutdown.clone());
            let health = Health::default();
            let running = run(
                lab.settings.clone(),
                &informers,
                &lab.journal,
                health.clone(),
                shutdown.clone(),
            );
            tokio::select! {
                result = running => panic!("{result:?}"),
                state = tokio::time::timeout(Duration::from_secs(10), health.ready()) => {
                    assert!(state.unwrap().ready);
                }
            }
        });
    };
    lab.node.run(work).unwrap();
}

#[test]
fn an_undo_of_nothing_is_fine() {
    let namespace = Namespace::create().expect("this test needs root");
    let dir = lab::scratch("undo");
    let work = || {
        let journal = Journal::open(dir.join("host-journal")).unwrap();
        let number = sampan_host::change::current_namespace();
        let route = sampan_host::Change::Route {
            destination: "10.42.9.0/24".into(),
            gateway: Some("192.0.2.9".into()),
            link: None,
            namespace: number,
        };
        let link = sampan_host::Change::Link {
            name: "nosuch".into(),
            namespace: number,
        };
        let address = sampan_host::Change::Address {
            link: "nosuch".into(),
            address: "10.0.0.1/32".into(),
            namespace: number,
        };
        for change in [route, link, address] {
            journal.record(change).unwrap();
        }
        journal.undo_all(&undo::HostNetwork, false).unwrap();
        assert!(journal.entries().is_empty());
    };
    namespace.run(work).unwrap();
}

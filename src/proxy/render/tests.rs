//! Rule sets, and packets that follow them: the latter in network namespaces of the test's own
//! (needs root).
#![allow(clippy::unwrap_used)]

mod lab;

use std::io::ErrorKind;

use sampan_netlink::nft::build::UDP;
use serde_json::{Value, json};

use super::*;
use crate::conntrack::{self, UdpServices};
use crate::model;
use crate::settings::Settings;
use lab::Lab;
use sampan_netlink::nft::Family;

fn settings() -> Settings {
    let mut settings = Settings::new("here");
    settings.node_ips = vec!["192.0.2.1".parse().unwrap()];
    settings.cluster_cidrs = vec!["10.42.0.0/16".parse().unwrap()];
    settings.service_cidrs = vec!["10.43.0.0/16".parse().unwrap()];
    settings
}

fn node() -> Node {
    settings().node(Family::Ip, None)
}

fn service(mut spec: Value) -> Arc<Service> {
    spec["clusterIP"] = json!("10.43.0.10");
    let object = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec});
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Endpoints as `address` (ready), with `!` at its end for one on another node.
fn slices(protocol: &str, port: u16, addresses: &[&str]) -> Slices {
    let endpoint = |address: &&str| {
        let node = if address.ends_with('!') {
            "there"
        } else {
            "here"
        };
        json!({"addresses": [address.trim_end_matches('!')], "nodeName": node})
    };
    let slice = json!({
        "metadata": {"name": "web-1", "namespace": "default",
                     "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": port, "protocol": protocol}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>()
    });
    let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
    [(ServiceName::new("default", "web"), vec![Arc::new(slice)])].into()
}

fn tcp(addresses: &[&str]) -> Slices {
    slices("TCP", 8080, addresses)
}

fn names(rules: &Ruleset) -> Vec<&str> {
    let own = |name: &&str| name.contains('/');
    rules
        .chains
        .keys()
        .map(String::as_str)
        .filter(own)
        .collect()
}

fn count(rules: &Ruleset, set: &str) -> usize {
    rules.elements.get(set).map_or(0, BTreeMap::len)
}

/// The sizes of (service-ips, nodeports, no-endpoint-services, no-endpoint-nodeports).
fn check(spec: Value, endpoints: &[&str], chains: &[&str], sizes: [usize; 4]) {
    let rules = render(&[service(spec.clone())], &tcp(endpoints), &node());
    assert_eq!(names(&rules), chains, "{spec}");
    let found = [
        names::SERVICE_IPS,
        names::SERVICE_NODE_PORTS,
        names::NO_ENDPOINT_SERVICES,
        names::NO_ENDPOINT_NODE_PORTS,
    ]
    .map(|set| count(&rules, set));
    assert_eq!(found, sizes, "{spec}");
}

#[test]
fn chains_and_elements_follow_policies_and_endpoints() {
    let (cluster, local, external) = (
        "cluster-default/web/tcp/",
        "local-default/web/tcp/",
        "external-default/web/tcp/",
    );
    let ports = json!([{"port": 80}]);
    let node_port = json!([{"port": 80, "nodePort": 30080}]);
    check(
        json!({"ports": ports}),
        &["10.42.0.2"],
        &[cluster],
        [1, 0, 0, 0],
    );
    check(json!({"ports": ports}), &[], &[], [0, 0, 1, 0]);
    let np = json!({"ports": node_port, "type": "NodePort"});
    check(
        np.clone(),
        &["10.42.0.2"],
        &[cluster, external],
        [1, 1, 0, 0],
    );
    check(np, &[], &[], [0, 0, 1, 1]);
    let etp =
        json!({"ports": node_port, "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.9"]});
    check(
        etp.clone(),
        &["10.42.0.2"],
        &[cluster, external, local],
        [2, 1, 0, 0],
    );
    check(etp, &["10.42.1.2!"], &[cluster, external], [2, 1, 1, 1]);
    let itp = json!({"ports": ports, "internalTrafficPolicy": "Local"});
    check(
        itp.clone(),
        &["10.42.0.2", "10.42.1.2!"],
        &[local],
        [1, 0, 0, 0],
    );
    check(itp, &["10.42.1.2!"], &[], [0, 0, 1, 0]);
}

#[test]
fn connections_reach_pods_from_everywhere() {
    let lab = Lab::new();
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    lab.apply(&render(
        &[service(spec)],
        &tcp(&["10.42.0.2", "10.42.0.3"]),
        &node(),
    ));
    lab.serve_tcp(8080);
    for from in [&lab.node, &lab.pods[0], &lab.client] {
        let mut seen: Vec<_> = (0..40)
            .map(|_| lab.connect(from, "10.43.0.10:80").unwrap().0)
            .collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen, ["10.42.0.2", "10.42.0.3"]);
    }
    for address in ["192.0.2.1:30080", "10.42.0.1:30080"] {
        assert!(lab.connect(&lab.node, address).is_ok(), "{address}");
        assert!(lab.connect(&lab.pods[1], address).is_ok(), "{address}");
    }
    let (_, source) = lab.connect(&lab.client, "192.0.2.1:30080").unwrap();
    assert_ne!(
        source, "192.0.2.2",
        "an endpoint elsewhere could not answer the client itself"
    );
    let (_, source) = lab.connect(&lab.pods[0], "10.43.0.10:80").unwrap();
    assert!(source == "10.42.0.2" || source == "10.42.0.1", "{source}");
}

#[test]
fn a_pod_reaches_itself_and_only_then_under_another_name() {
    let lab = Lab::new();
    let spec = json!({"ports": [{"port": 80}]});
    lab.apply(&render(&[service(spec)], &tcp(&["10.42.0.2"]), &node()));
    lab.serve_tcp(8080);
    let (served, source) = lab.connect(&lab.pods[0], "10.43.0.10:80").unwrap();
    assert_eq!(served, "10.42.0.2");
    assert_ne!(source, "10.42.0.2");
    let (_, source) = lab.connect(&lab.pods[1], "10.43.0.10:80").unwrap();
    assert_eq!(source, "10.42.0.3");
}

#[test]
fn local_policy_keeps_the_clients_address_and_pods_may_go_on() {
    let lab = Lab::new();
    let spec = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
                      "ports": [{"port": 80, "nodePort": 30080}]});
    let service = service(spec);
    lab.apply(&render(
        &[Arc::clone(&service)],
        &tcp(&["10.42.0.2", "10.42.0.3!"]),
        &node(),
    ));
    lab.serve_tcp(8080);
    for _ in 0..10 {
        let (served, source) = lab.connect(&lab.client, "192.0.2.1:30080").unwrap();
        assert_eq!(
            (served.as_str(), source.as_str()),
            ("10.42.0.2", "192.0.2.2")
        );
    }
    // No endpoint here: silence for the client, but pods and the node itself are served.
    lab.apply(&render(&[service], &tcp(&["10.42.0.3!"]), &node()));
    let error = lab.connect(&lab.client, "192.0.2.1:30080").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(
        lab.connect(&lab.pods[0], "192.0.2.1:30080").unwrap().0,
        "10.42.0.3"
    );
    assert_eq!(
        lab.connect(&lab.node, "192.0.2.1:30080").unwrap().0,
        "10.42.0.3"
    );
}

#[test]
fn what_nobody_serves_is_refused_at_once() {
    let lab = Lab::new();
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    lab.apply(&render(&[service(spec)], &tcp(&[]), &node()));
    for from in [&lab.node, &lab.pods[0], &lab.client] {
        for address in ["10.43.0.10:80", "10.43.0.10:81", "192.0.2.1:30080"] {
            let error = lab.connect(from, address).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionRefused,
                "{address} {from:?}"
            );
        }
    }
}

#[test]
fn load_balancer_addresses_admit_only_the_listed() {
    let lab = Lab::new();
    let object = |range: &str| {
        let mut service = service(json!({"type": "LoadBalancer", "ports": [{"port": 80}],
                                         "loadBalancerSourceRanges": [range]}));
        let status = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}});
        Arc::make_mut(&mut service).status = serde_json::from_value(status).unwrap();
        service
    };
    lab.serve_tcp(8080);
    let endpoints = tcp(&["10.42.0.2"]);
    lab.apply(&render(&[object("192.0.2.0/24")], &endpoints, &node()));
    assert!(lab.connect(&lab.client, "198.51.100.7:80").is_ok());
    lab.apply(&render(&[object("203.0.113.0/24")], &endpoints, &node()));
    let error = lab.connect(&lab.client, "198.51.100.7:80").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn a_client_stays_with_its_endpoint_while_that_exists() {
    let lab = Lab::new();
    let spec = json!({"sessionAffinity": "ClientIP", "ports": [{"port": 80}]});
    let service = service(spec);
    let both = render(
        &[Arc::clone(&service)],
        &tcp(&["10.42.0.2", "10.42.0.3"]),
        &node(),
    );
    lab.apply(&both);
    lab.serve_tcp(8080);
    let ask = || lab.connect(&lab.client, "10.43.0.10:80").unwrap().0;
    let first = ask();
    assert!((0..20).all(|_| ask() == first));
    // Its endpoint goes: the client moves, and stays moved when the old one returns.
    let other = if first == "10.42.0.2" {
        "10.42.0.3"
    } else {
        "10.42.0.2"
    };
    let without = render(&[service], &tcp(&[other]), &node());
    lab.change(&both, &without);
    assert_eq!(ask(), other);
    lab.change(&without, &both);
    assert!((0..20).all(|_| ask() == other));
}

#[test]
fn udp_flows_to_a_vanished_endpoint_are_forgotten() {
    let lab = Lab::new();
    let spec = json!({"ports": [{"port": 53, "protocol": "UDP"}]});
    let service = service(spec);
    let before = render(
        &[Arc::clone(&service)],
        &slices("UDP", 5353, &["10.42.0.2"]),
        &node(),
    );
    lab.apply(&before);
    lab.serve_udp(5353);
    let socket = lab.udp_client("10.43.0.10:53");
    assert_eq!(lab::ask(&socket), "10.42.0.2");

    let endpoints = slices("UDP", 5353, &["10.42.0.3"]);
    lab.change(
        &before,
        &render(&[Arc::clone(&service)], &endpoints, &node()),
    );
    assert_eq!(
        lab::ask(&socket),
        "10.42.0.2",
        "the kernel remembers the flow"
    );
    let mut services = UdpServices::default();
    for port in model::service_ports(&service, Family::Ip) {
        assert_eq!(port.protocol, UDP);
        let slices = &endpoints[&port.service];
        services.add(&port, &model::endpoints(slices, &port, Family::Ip, "here"));
    }
    let mut kernel = lab.conntrack();
    assert_eq!(
        conntrack::clean(&mut kernel, Family::Ip, &services, &[]).unwrap(),
        1
    );
    assert_eq!(lab::ask(&socket), "10.42.0.3");
    assert_eq!(
        conntrack::clean(&mut kernel, Family::Ip, &services, &[]).unwrap(),
        0
    );
}

/// Prints how long the kernel takes; the bound is generous.
#[test]
fn a_thousand_services_are_committed_quickly() {
    let lab = Lab::new();
    let mut services = Vec::new();
    let mut all = Slices::new();
    for i in 0..1000u32 {
        let name = format!("web{i}");
        let ip = format!("10.43.{}.{}", 1 + i / 250, 1 + i % 250);
        let mut service = service(json!({"ports": [{"port": 80}]}));
        let object = Arc::make_mut(&mut service);
        object.metadata.name = Some(name.clone());
        object.spec.as_mut().unwrap().cluster_ip = Some(ip);
        services.push(service);
        let slices = tcp(&["10.42.0.2", "10.42.0.3"])
            .into_values()
            .next()
            .unwrap();
        all.insert(ServiceName::new("default", name), slices);
    }
    let start = std::time::Instant::now();
    let rules = render(&services, &all, &node());
    let rendered = start.elapsed();
    lab.apply(&rules);
    let committed = start.elapsed();
    let fewer = render(&services[1..], &all, &node());
    let diffing = std::time::Instant::now();
    lab.change(&rules, &fewer);
    eprintln!(
        "1000 services: rendered in {rendered:?}, in place after {committed:?}, one removed in {:?}",
        diffing.elapsed()
    );
    assert!(committed.as_secs() < 10);
}

#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::*;

fn service(namespace: &str, name: &str, spec: Value) -> v1::Service {
    serde_json::from_value(
        json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}),
    )
    .unwrap()
}

fn slice(name: &str, service: &str, endpoints: Value, ports: Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    }))
    .unwrap()
}

fn ports() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}])
}

fn records() -> Records {
    let mut records = Records::new("cluster.local").unwrap();
    for namespace in ["default", "kube-system", "shop"] {
        records.set_namespace(namespace);
    }
    let cluster = |ip: &str| json!({"clusterIP": ip, "clusterIPs": [ip], "ports": ports()});
    records.set_service(&service("default", "kubernetes", cluster("10.43.0.1")));
    records.set_service(&service("kube-system", "kube-dns", cluster("10.43.0.10")));
    records.set_service(&service("shop", "web", cluster("10.43.1.1")));
    let dual =
        json!({"clusterIP": "10.43.1.2", "clusterIPs": ["10.43.1.2", "fd43::2"], "ports": ports()});
    records.set_service(&service("shop", "dual", dual));
    records.set_service(&service(
        "shop",
        "db",
        json!({"clusterIP": "None", "ports": ports()}),
    ));
    records.set_service(&service(
        "shop",
        "empty",
        json!({"clusterIP": "None", "ports": ports()}),
    ));
    records.set_service(&service("shop", "portless", json!({"clusterIP": "None"})));
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    records.set_service(&service("shop", "away", external));
    records.set_service(&service("gone", "web", cluster("10.43.9.9")));
    let endpoints = json!([
        {"addresses": ["10.42.0.5"], "hostname": "db-0"},
        {"addresses": ["10.42.1.6"], "conditions": {"ready": true}},
        {"addresses": ["10.42.1.7"], "conditions": {"ready": false}},
    ]);
    records.set_slice(&slice("db-1", "db", endpoints, ports()));
    records.set_slice(&slice(
        "portless-1",
        "portless",
        json!([{"addresses": ["10.42.0.9"]}]),
        json!([]),
    ));
    records.set_slice(&slice(
        "web-1",
        "web",
        json!([{"addresses": ["10.42.0.5"]}]),
        ports(),
    ));
    records
}

/// The reply as lines: the code, then answers, then `+` additional records. An SOA is there exactly
/// when nothing is answered.
fn ask(records: &Records, name: &str, kind: RecordType) -> Vec<String> {
    let name = Name::from_ascii(name).unwrap();
    match answer(&Query::query(name, kind), records) {
        Answer::Forward => vec!["forward".to_owned()],
        Answer::Reply(reply) => {
            let negative = reply.answers.is_empty();
            assert_eq!(
                negative,
                reply
                    .authorities
                    .iter()
                    .any(|record| record.record_type() == RecordType::SOA)
            );
            let mut lines = vec![match (reply.code, negative) {
                (ResponseCode::NoError, false) => "ok".to_owned(),
                (ResponseCode::NoError, true) => "no data".to_owned(),
                (ResponseCode::NXDomain, true) => "no name".to_owned(),
                other => format!("{other:?}"),
            }];
            let line = |record: &Record| format!("{} {}", record.record_type(), record.data);
            let mut answers: Vec<String> = reply.answers.iter().map(line).collect();
            answers.sort();
            let mut more: Vec<String> = reply
                .additionals
                .iter()
                .map(|record| format!("+{} {}", record.name, line(record)))
                .collect();
            more.sort();
            lines.extend(answers);
            lines.extend(more);
            assert!(reply.answers.iter().all(|record| record.ttl == 5));
            lines
        }
    }
}

#[track_caller]
fn check(name: &str, kind: RecordType, expected: &[&str]) {
    assert_eq!(ask(&records(), name, kind), expected, "{name} {kind}");
}

use RecordType::{A, AAAA, CNAME, MX, NS, PTR, SRV, TXT};

#[test]
fn services_by_address() {
    check("web.shop.svc.cluster.local.", A, &["ok", "A 10.43.1.1"]);
    check("WEB.Shop.svc.CLUSTER.local.", A, &["ok", "A 10.43.1.1"]);
    check(
        "kubernetes.default.svc.cluster.local.",
        A,
        &["ok", "A 10.43.0.1"],
    );
    check("web.shop.svc.cluster.local.", AAAA, &["no data"]);
    check("web.shop.svc.cluster.local.", MX, &["no data"]);
    check("dual.shop.svc.cluster.local.", A, &["ok", "A 10.43.1.2"]);
    check(
        "dual.shop.svc.cluster.local.",
        AAAA,
        &["ok", "AAAA fd43::2"],
    );
    check("missing.shop.svc.cluster.local.", A, &["no name"]);
    check("web.missing.svc.cluster.local.", A, &["no name"]);
    check("web.gone.svc.cluster.local.", A, &["no name"]);
    check("example.com.shop.svc.cluster.local.", A, &["no name"]);
    check("example.com.svc.cluster.local.", A, &["no name"]);
}

#[test]
fn headless_services() {
    check(
        "db.shop.svc.cluster.local.",
        A,
        &["ok", "A 10.42.0.5", "A 10.42.1.6"],
    );
    check("db.shop.svc.cluster.local.", AAAA, &["no data"]);
    check("db-0.db.shop.svc.cluster.local.", A, &["ok", "A 10.42.0.5"]);
    check(
        "10-42-1-6.db.shop.svc.cluster.local.",
        A,
        &["ok", "A 10.42.1.6"],
    );
    check("10-42-1-7.db.shop.svc.cluster.local.", A, &["no name"]);
    check("empty.shop.svc.cluster.local.", A, &["no name"]);
    check(
        "portless.shop.svc.cluster.local.",
        A,
        &["ok", "A 10.42.0.9"],
    );
    check("portless.shop.svc.cluster.local.", SRV, &["no data"]);
}

#[test]
fn srv_records() {
    check(
        "_http._tcp.web.shop.svc.cluster.local.",
        SRV,
        &[
            "ok",
            "SRV 0 100 80 web.shop.svc.cluster.local.",
            "+web.shop.svc.cluster.local. A 10.43.1.1",
        ],
    );
    check(
        "_http._tcp.db.shop.svc.cluster.local.",
        SRV,
        &[
            "ok",
            "SRV 0 50 80 10-42-1-6.db.shop.svc.cluster.local.",
            "SRV 0 50 80 db-0.db.shop.svc.cluster.local.",
            "+10-42-1-6.db.shop.svc.cluster.local. A 10.42.1.6",
            "+db-0.db.shop.svc.cluster.local. A 10.42.0.5",
        ],
    );
    check(
        "_http._tcp.web.shop.svc.cluster.local.",
        A,
        &["ok", "A 10.43.1.1"],
    );
    check("_http._udp.web.shop.svc.cluster.local.", SRV, &["no name"]);
    check("_ftp._tcp.web.shop.svc.cluster.local.", SRV, &["no name"]);
    check("_tcp.web.shop.svc.cluster.local.", SRV, &["no data"]);
    assert_eq!(ask(&records(), "web.shop.svc.cluster.local.", SRV).len(), 4);
}

#[test]
fn pods() {
    check(
        "10-42-0-5.shop.pod.cluster.local.",
        A,
        &["ok", "A 10.42.0.5"],
    );
    check("10-42-0-5.shop.pod.cluster.local.", AAAA, &["no data"]);
    check(
        "fd00--5.shop.pod.cluster.local.",
        AAAA,
        &["ok", "AAAA fd00::5"],
    );
    check("10-42-0-5.missing.pod.cluster.local.", A, &["no name"]);
    check("10-42-0.shop.pod.cluster.local.", A, &["no name"]);
}

#[test]
fn aliases() {
    check(
        "away.shop.svc.cluster.local.",
        CNAME,
        &["ok", "CNAME example.com."],
    );
    check(
        "away.shop.svc.cluster.local.",
        A,
        &["ok", "CNAME example.com."],
    );
    check("away.shop.svc.cluster.local.", TXT, &["no data"]);
    let query = Query::query(Name::from_ascii("away.shop.svc.cluster.local.").unwrap(), A);
    let Answer::Reply(reply) = answer(&query, &records()) else {
        panic!("forwarded")
    };
    assert_eq!(reply.chase, Some(Name::from_ascii("example.com.").unwrap()));
}

#[test]
fn the_domain_itself() {
    check("dns-version.cluster.local.", TXT, &["ok", "TXT 1.1.0"]);
    check("dns-version.cluster.local.", A, &["no data"]);
    check(
        "cluster.local.",
        NS,
        &[
            "ok",
            "NS ns.dns.cluster.local.",
            "+ns.dns.cluster.local. A 10.43.0.10",
        ],
    );
    check("cluster.local.", A, &["no data"]);
    check("ns.dns.cluster.local.", A, &["ok", "A 10.43.0.10"]);
    check("svc.cluster.local.", A, &["no data"]);
    check("shop.svc.cluster.local.", A, &["no data"]);
    check("missing.svc.cluster.local.", A, &["no name"]);
}

#[test]
fn addresses_to_names() {
    check(
        "1.1.43.10.in-addr.arpa.",
        PTR,
        &["ok", "PTR web.shop.svc.cluster.local."],
    );
    check(
        "5.0.42.10.in-addr.arpa.",
        PTR,
        &[
            "ok",
            "PTR 10-42-0-5.web.shop.svc.cluster.local.",
            "PTR db-0.db.shop.svc.cluster.local.",
        ],
    );
    check("8.8.8.8.in-addr.arpa.", PTR, &["forward"]);
}

#[test]
fn everything_else_is_somebody_elses() {
    check("example.com.", A, &["forward"]);
    check("local.", A, &["forward"]);
    check("web.", A, &["forward"]);
}

#[test]
fn changes_leave_nothing_behind() {
    let mut records = records();
    records.set_slice(&slice("db-1", "other", json!([]), ports()));
    assert_eq!(ask(&records, "db.shop.svc.cluster.local.", A), ["no name"]);
    assert_eq!(
        ask(&records, "5.0.42.10.in-addr.arpa.", PTR),
        ["ok", "PTR 10-42-0-5.web.shop.svc.cluster.local."]
    );
    records.remove_slice(&ObjectKey::new("shop", "web-1"));
    assert_eq!(ask(&records, "5.0.42.10.in-addr.arpa.", PTR), ["forward"]);
    records.set_service(&service("shop", "web", json!({"clusterIP": "None"})));
    assert_eq!(ask(&records, "1.1.43.10.in-addr.arpa.", PTR), ["forward"]);
    records.remove_namespace("shop");
    assert_eq!(
        ask(&records, "dual.shop.svc.cluster.local.", A),
        ["no name"]
    );
}

//! The whole loop against an API in memory and the real kernel (needs root).
#![allow(clippy::unwrap_used)]

use sampan_client::testing::FakeServer;
use sampan_client::{Client, DeleteOptions, Patch};
use sampan_netlink::Namespace;
use sampan_netlink::nft::{Batch, Command, Connection, Remembered};
use serde_json::{Value, json};

use super::*;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn service(name: &str, ip: &str) -> Service {
    object(json!({"metadata": {"name": name, "namespace": "default"},
                  "spec": {"clusterIP": ip, "ports": [{"port": 80}]}}))
}

fn slice(name: &str, address: &str) -> EndpointSlice {
    object(json!({
        "metadata": {"name": format!("{name}-1"), "namespace": "default",
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]}]}))
}

fn size(settings: &Settings, set: &str) -> usize {
    let table = settings.table(settings.families()[0]);
    let mut kernel = Connection::open().unwrap();
    kernel
        .elements(&table, set)
        .map_or(usize::MAX, |all| all.len())
}

/// Waits until the kernel shows what the API was told.
async fn until(health: &Health, mut holds: impl FnMut() -> bool) {
    let wait = async {
        loop {
            let syncs = health.state().syncs;
            if holds() {
                return;
            }
            health.synced_after(syncs).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .expect("rules did not follow");
}

async fn follow() {
    let server = FakeServer::new();
    let client = server.client();
    let shutdown = Shutdown::new();
    let informers = Informers::new(client.clone(), shutdown.clone());
    let health = Health::default();
    let mut settings = Settings::new("here");
    settings.service_cidrs = vec!["10.43.0.0/16".parse().unwrap()];
    let dir = std::env::temp_dir().join(format!("sampan-proxy-{}", std::process::id()));
    let journal = Journal::open(dir.join("host-journal")).unwrap();
    client.create(&service("a", "10.43.0.1")).await.unwrap();
    let task = {
        let (settings, health, shutdown) = (settings.clone(), health.clone(), shutdown.clone());
        let (informers, journal) = (informers.clone(), journal.clone());
        tokio::spawn(async move { run(settings, &informers, &journal, health, shutdown).await })
    };
    let reached = |n| size(&settings, "service-ips") == n;
    let refused = |n| size(&settings, "no-endpoint-services") == n;
    until(&health, || refused(1)).await;
    client.create(&slice("a", "10.42.0.2")).await.unwrap();
    until(&health, || reached(1) && refused(0)).await;
    for i in 2..20 {
        let name = format!("s{i}");
        client
            .create(&service(&name, &format!("10.43.0.{i}")))
            .await
            .unwrap();
        client.create(&slice(&name, "10.42.0.3")).await.unwrap();
    }
    until(&health, || reached(19) && refused(0)).await;
    // Somebody else removes our table: it comes back although nothing else has changed.
    let table = settings.table(settings.families()[0]);
    Connection::open().unwrap().delete_table(&table).unwrap();
    until(&health, || reached(19)).await;
    remember(&client, &settings, &health).await;
    let options = DeleteOptions::default();
    client
        .delete::<Service>(Some("default"), "s5", &options)
        .await
        .unwrap();
    until(&health, || reached(18)).await;
    assert_eq!(journal.entries().len(), 1);
    shutdown.trigger();
    task.await.unwrap().unwrap();
    assert!(reached(18), "the rules stay when the proxy ends");
}

/// Clients keep their endpoints when everything is put in place anew.
async fn remember(client: &Client, settings: &Settings, health: &Health) {
    let patch = Patch::Merge(json!({"spec": {"sessionAffinity": "ClientIP"}}));
    let patched = client.patch::<Service>(Some("default"), "a", &patch).await;
    patched.unwrap();
    let table = settings.table(settings.families()[0]);
    let map = "affinity-cluster-default/a/tcp/";
    let sets = || Connection::open().unwrap().sets(&table).unwrap();
    until(health, || sets().contains(&map.to_owned())).await;
    let mut batch = Batch::new(table.clone());
    batch.push(Command::Remember {
        set: map.into(),
        elements: vec![Remembered {
            key: vec![192, 0, 2, 2],
            value: vec![10, 42, 0, 2, 31, 144, 0, 0],
            timeout: Duration::from_secs(600),
            expires_in: Duration::from_secs(300),
        }],
    });
    // A change that the proxy must notice.
    batch.push(Command::AddChain {
        name: "intruder".into(),
        base: None,
    });
    Connection::open().unwrap().commit(&batch).unwrap();
    let chains = || Connection::open().unwrap().chains().unwrap();
    until(health, || chains().iter().all(|c| c.name != "intruder")).await;
    let kept = Connection::open().unwrap().remembered(&table, map).unwrap();
    assert_eq!(kept.len(), 1);
}

#[test]
fn rules_follow_the_api() {
    let namespace = Namespace::create().expect("this test needs root");
    namespace
        .run(|| {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap().block_on(follow());
        })
        .unwrap();
}

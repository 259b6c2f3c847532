//! The whole server on the loopback address, over a Kubernetes API in memory.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_client::testing::FakeServer;
use serde_json::json;
use tokio::net::{TcpStream, UdpSocket};

use super::*;
use crate::forward::{read_framed, write_framed};

/// A resolver that knows one address for every name.
async fn resolver() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..length]).unwrap();
            let mut reply = Message::response(query.metadata.id, OpCode::Query);
            reply.queries.clone_from(&query.queries);
            let name = query.queries[0].name.clone();
            reply.add_answer(Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, 1))));
            socket
                .send_to(&reply.to_vec().unwrap(), from)
                .await
                .unwrap();
        }
    });
    address
}

async fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.local_addr().unwrap()
}

struct World {
    server: FakeServer,
    address: SocketAddr,
    shutdown: Shutdown,
    running: Option<tokio::task::JoinHandle<Result<(), Error>>>,
}

impl World {
    async fn start() -> Self {
        let (server, shutdown) = (FakeServer::new(), Shutdown::new());
        let client = server.client();
        let object = |json: serde_json::Value| json;
        let node: Node =
            serde_json::from_value(object(json!({"metadata": {"name": "a"}}))).unwrap();
        client.create(&node).await.unwrap();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
        client.create(&namespace).await.unwrap();
        let address = free_address().await;
        let settings = Settings {
            listen: vec![address],
            domain: "cluster.local".to_owned(),
            upstreams: Upstreams::List(vec![resolver().await]),
            own_addresses: vec![],
            node_name: "a".to_owned(),
        };
        let informers = Informers::new(client.clone(), shutdown.clone());
        let running = tokio::spawn(run(informers, client, settings, shutdown.clone()));
        let mut world = Self {
            server,
            address,
            shutdown,
            running: Some(running),
        };
        world
            .until("published", |world| world.slice().is_some())
            .await;
        world
    }

    fn slice(&self) -> Option<EndpointSlice> {
        self.server.all::<EndpointSlice>().into_iter().next()
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..3000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {what}");
    }

    fn query(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 77;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Message {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket
            .send_to(&Self::query(name, kind), self.address)
            .await
            .unwrap();
        let mut buffer = [0; 4096];
        let (length, _) =
            tokio::time::timeout(Duration::from_secs(5), socket.recv_from(&mut buffer))
                .await
                .unwrap()
                .unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    }

    async fn ask_on_stream(&self, name: &str) -> Message {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        write_framed(&mut stream, &Self::query(name, RecordType::A))
            .await
            .unwrap();
        Message::from_vec(&read_framed(&mut stream).await.unwrap()).unwrap()
    }
}

fn service(spec: serde_json::Value, name: &str) -> Service {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}))
        .unwrap()
}

#[tokio::test]
async fn names_appear_with_their_services_over_both_transports() {
    let world = World::start().await;
    let name = "web.shop.svc.cluster.local.";
    let missing = world.ask(name, RecordType::A).await;
    assert_eq!(
        (missing.metadata.id, missing.metadata.response_code),
        (77, ResponseCode::NXDomain)
    );
    let client = world.server.client();
    let spec = json!({"clusterIP": "10.43.0.7", "ports": [{"port": 80}]});
    client.create(&service(spec, "web")).await.unwrap();
    let mut reply = world.ask(name, RecordType::A).await;
    while reply.answers.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        reply = world.ask(name, RecordType::A).await;
    }
    assert_eq!(reply.answers[0].data, RData::A(A::new(10, 43, 0, 7)));
    assert!(reply.metadata.authoritative);
    assert_eq!(world.ask_on_stream(name).await.answers, reply.answers);
    world.shutdown.trigger();
}

#[tokio::test]
async fn other_names_and_the_targets_of_aliases_come_from_the_resolver() {
    let world = World::start().await;
    let reply = world.ask("example.com.", RecordType::A).await;
    assert_eq!((reply.metadata.id, reply.answers.len()), (77, 1));
    let spec = json!({"type": "ExternalName", "externalName": "example.org"});
    world
        .server
        .client()
        .create(&service(spec, "away"))
        .await
        .unwrap();
    let mut reply = world
        .ask("away.shop.svc.cluster.local.", RecordType::A)
        .await;
    while reply.answers.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        reply = world
            .ask("away.shop.svc.cluster.local.", RecordType::A)
            .await;
    }
    let kinds: Vec<RecordType> = reply.answers.iter().map(Record::record_type).collect();
    assert_eq!(kinds, [RecordType::CNAME, RecordType::A]);
    world.shutdown.trigger();
}

#[tokio::test]
async fn the_endpoint_is_published_repaired_and_withdrawn() {
    let mut world = World::start().await;
    let slice = world.slice().unwrap();
    assert_eq!(slice.metadata.name.as_deref(), Some("kube-dns-a"));
    assert_eq!(
        slice.metadata.owner_references.as_ref().unwrap()[0].kind,
        "Node"
    );
    let endpoint = &slice.endpoints.as_ref().unwrap()[0];
    assert_eq!(endpoint.addresses, ["127.0.0.1"]);
    let hints = endpoint.hints.as_ref().unwrap();
    assert_eq!(hints.for_nodes.as_ref().unwrap()[0].name, "a");
    let uid = slice.metadata.uid.clone();
    let client = world.server.client();
    let options = sampan_client::DeleteOptions::default();
    client
        .delete::<EndpointSlice>(Some("kube-system"), "kube-dns-a", &options)
        .await
        .unwrap();
    world
        .until("made again", |world| {
            world.slice().is_some_and(|slice| slice.metadata.uid != uid)
        })
        .await;
    world.shutdown.trigger();
    world.running.take().unwrap().await.unwrap().unwrap();
    let withdrawn = world.slice().unwrap().endpoints.unwrap();
    assert_eq!(withdrawn[0].conditions.as_ref().unwrap().ready, Some(false));
}

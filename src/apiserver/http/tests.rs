//! The front as clients see it: over TLS, before a pipeline that only notes what it was asked.

#![allow(clippy::unwrap_used)]
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use sampan_api::{Registry, Status, UserInfo, Verb};
use sampan_net::{
    CertificateChecker, ClientConfig, ClientTls, HttpClient, ServerIdentity, TcpDialer, Trust, full,
};
use sampan_pki::{Authority, LeafSpec};
use sampan_util::Shutdown;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{ApiFront, FrontConfig, MAX_RUNNING, MAX_WAITING};
use crate::auth::{Authenticator, ChangeHandler, ObjectSource, StaticTokens};
use crate::health::Health;
use crate::request::{ApiRequest, Attributes, Authorizer, Decision, Pipeline, Reply};
use crate::streams::{Relay, RelayConfig};

/// Answers every request with an object; panics when asked for one called `bug`.
#[derive(Default)]
struct Notes(Mutex<Vec<ApiRequest>>);

impl Pipeline for Notes {
    fn handle(&self, request: ApiRequest) -> BoxFuture<'static, Result<Reply, Status>> {
        let name = request.request.target.name.clone().unwrap_or_default();
        self.0.lock().unwrap().push(request);
        Box::pin(async move {
            assert_ne!(name, "bug", "a bug, for the test");
            if name == "absent" {
                return Err(Status::not_found("", "configmaps", &name));
            }
            let object =
                json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}});
            Ok(Reply::Object {
                code: 200,
                object: Bytes::from(object.to_string()),
                warnings: vec!["careful".to_owned()],
            })
        })
    }
}

struct NoObjects;

impl ObjectSource for NoObjects {
    fn object(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Bytes> {
        None
    }
    fn subscribe(&self, _: &str, _: &str, _: ChangeHandler) {}
}

/// `alice` may everything, nobody else may anything but look at health.
struct OnlyAlice;

impl Authorizer for OnlyAlice {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.username == "alice" || attributes.path == "/healthz" {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

struct Fixture {
    client: HttpClient,
    address: std::net::SocketAddr,
    notes: Arc<Notes>,
    front: ApiFront,
    shutdown: Shutdown,
}

impl Fixture {
    async fn start() -> Self {
        let now = SystemTime::now();
        let authority = Authority::create("ca", now).unwrap();
        let spec = LeafSpec::server("s", vec![], vec!["127.0.0.1".parse().unwrap()]);
        let identity = authority.issue(&spec, now).unwrap();
        let mut tokens = StaticTokens::default();
        tokens.insert("alice", UserInfo::authenticated("alice", &[]));
        tokens.insert("bob", UserInfo::authenticated("bob", &[]));
        let checker = CertificateChecker::new(authority.certificate_pem()).unwrap();
        let relay = RelayConfig {
            objects: Arc::new(NoObjects),
            kubelet_client: authority.issue(&LeafSpec::client("k", &[]), now).unwrap(),
            kubelet_authorities: authority.certificate_pem().to_owned(),
            own_node: None,
            dialer: Arc::new(TcpDialer),
        };
        let notes = Arc::new(Notes::default());
        let shutdown = Shutdown::new();
        let front = ApiFront::new(FrontConfig {
            registry: Arc::new(Registry::builtin()),
            pipeline: notes.clone(),
            authenticator: Arc::new(Authenticator::new(checker).with_static_tokens(tokens)),
            authorizer: Arc::new(OnlyAlice),
            health: Health::new(),
            metrics: Arc::default(),
            relay: Arc::new(Relay::new(relay).unwrap()),
            authorities_pem: authority.certificate_pem().to_owned(),
            public_address: "127.0.0.1:1".to_owned(),
            shutdown: shutdown.clone(),
        });
        let tls = sampan_net::tls::server_config(
            ServerIdentity::new(&identity).unwrap(),
            sampan_net::server::HTTP_PROTOCOLS,
        )
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(front.clone().serve(listener, tls, shutdown.clone()));
        let client = HttpClient::new(&ClientConfig {
            tls: ClientTls {
                trust: Trust::Authorities(authority.certificate_pem().to_owned()),
                identity: None,
            },
            dialer: Arc::new(TcpDialer),
            http2: true,
        })
        .unwrap();
        Self {
            client,
            address,
            notes,
            front,
            shutdown,
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> (StatusCode, http::HeaderMap, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self
            .client
            .send(request.body(full(body)).unwrap())
            .await
            .unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
        (parts.status, parts.headers, body)
    }

    async fn alice(&self, method: Method, path: &str, body: &str) -> (u16, Value) {
        let token = ("authorization", "Bearer alice");
        let answer = self.ask(method, path, &[token], body.to_owned()).await;
        (answer.0.as_u16(), answer.2)
    }
}

const MAPS: &str = "/api/v1/namespaces/a/configmaps";

#[tokio::test]
async fn who_may_and_who_may_not() {
    let fixture = Fixture::start().await;
    let get = |path: &'static str, token: &'static str| {
        let fixture = &fixture;
        async move {
            let headers = [("authorization", token)];
            let headers = if token.is_empty() { &[][..] } else { &headers };
            fixture.ask(Method::GET, path, headers, "").await
        }
    };
    assert_eq!(get("/healthz", "").await.2, "ok");
    assert_eq!(get("/healthz", "Bearer wrong").await.0, 401);
    assert_eq!(get("/version", "").await.0, 403);
    let (code, headers, body) = get(MAPS, "Bearer bob").await;
    assert_eq!(code, 403);
    assert_eq!(body["kind"], "Status");
    assert!(headers.contains_key("audit-id"));
    assert!(
        get("/cacerts", "")
            .await
            .2
            .as_str()
            .unwrap()
            .contains("BEGIN CERTIFICATE")
    );
    assert!(fixture.notes.0.lock().unwrap().is_empty());
    fixture.shutdown.trigger();
}

#[tokio::test]
async fn requests_reach_the_pipeline() {
    let fixture = Fixture::start().await;
    let one = format!("{MAPS}/c");
    let (code, body) = fixture.alice(Method::GET, &one, "").await;
    assert_eq!((code, body["metadata"]["name"].as_str()), (200, Some("c")));
    let body = r#"{"metadata":{"name":"c"},"data":{"a":"1","a":"2"},"mystery":1}"#;
    let create = format!("{MAPS}?dryRun=All");
    fixture.alice(Method::POST, &create, body).await;
    let notes = fixture.notes.0.lock().unwrap();
    let created = notes.last().unwrap();
    assert_eq!(created.request.verb, Verb::Create);
    assert_eq!(created.request.target.namespace.as_deref(), Some("a"));
    assert!(created.request.options.is_dry_run());
    assert_eq!(created.strict_errors.len(), 2);
    drop(notes);
    fixture.shutdown.trigger();
}

#[tokio::test]
async fn every_sort_of_wrong_request() {
    let fixture = Fixture::start().await;
    let cases = [
        (Method::GET, "/nothing", "", 404),
        (Method::GET, "/api/v1/nothings", "", 404),
        (Method::GET, "/apis/nothing.example.com/v1/things", "", 404),
        (
            Method::GET,
            "/api/v1/namespaces/a/configmaps/c/nosuch",
            "",
            404,
        ),
        (Method::GET, "/api/v1/namespaces/a/nodes", "", 404),
        (Method::GET, "/api/v1/configmaps/c", "", 404),
        (Method::PUT, "/api/v1/namespaces/a/configmaps", "{}", 405),
        (Method::POST, "/api/v1/namespaces/a/configmaps/c", "{}", 405),
        (Method::POST, "/api/v1/configmaps", "{}", 405),
        (Method::HEAD, "/api/v1/namespaces/a/configmaps/c", "", 405),
        (Method::POST, "/version", "", 405),
        (Method::POST, "/api/v1/namespaces/a/configmaps", "{", 400),
        (Method::GET, "/api/v1/configmaps?limit=x", "", 400),
        (
            Method::PATCH,
            "/api/v1/namespaces/a/configmaps/c",
            "{}",
            415,
        ),
        (
            Method::GET,
            "/api/v1/namespaces/a/configmaps/absent",
            "",
            404,
        ),
        (Method::GET, "/api/v1/namespaces/a/pods/p/log", "", 404),
        (Method::POST, "/api/v1/namespaces/a/pods/p/exec", "", 404),
    ];
    for (method, path, body, expected) in cases {
        let (code, _) = fixture.alice(method.clone(), path, body).await;
        assert_eq!(code, expected, "{method} {path}");
    }
    let large = format!("\"{}\"", "x".repeat(super::decode::MAX_BODY_BYTES));
    let (code, body) = fixture.alice(Method::POST, MAPS, &large).await;
    assert_eq!(
        (code, &body["reason"]),
        (413, &json!("RequestEntityTooLarge"))
    );
    fixture.shutdown.trigger();
}

#[tokio::test]
async fn a_bug_ends_one_request_only() {
    let fixture = Fixture::start().await;
    let (code, body) = fixture.alice(Method::GET, &format!("{MAPS}/bug"), "").await;
    assert_eq!((code, &body["reason"]), (500, &json!("InternalError")));
    let (code, _) = fixture.alice(Method::GET, &format!("{MAPS}/c"), "").await;
    assert_eq!(code, 200);
    let (_, text) = fixture.alice(Method::GET, "/metrics", "").await;
    let text = text.as_str().unwrap();
    assert!(text.contains("apiserver_request_panics_total 1\n"));
    fixture.shutdown.trigger();
}

#[tokio::test]
async fn shapes_and_warnings() {
    let fixture = Fixture::start().await;
    let one = format!("{MAPS}/c");
    let alice = ("authorization", "Bearer alice");
    let accept = |media: &'static str| {
        let (fixture, one) = (&fixture, &one);
        async move {
            let headers = [alice, ("accept", media)];
            fixture.ask(Method::GET, one, &headers, "").await
        }
    };
    let (_, headers, body) = accept("application/json;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!(body["rows"][0]["cells"][0], "c");
    assert_eq!(headers["warning"], "299 - \"careful\"");
    let (_, headers, _) = accept("application/vnd.kubernetes.protobuf").await;
    assert_eq!(
        headers["content-type"],
        "application/vnd.kubernetes.protobuf"
    );
    let (_, _, body) = accept("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").await;
    assert_eq!(body["kind"], "PartialObjectMetadata");
    assert_eq!(accept("text/html").await.0, 406);
    fixture.shutdown.trigger();
}

#[tokio::test]
async fn the_queue_for_a_turn_is_bounded_and_strangers_do_not_stand_in_it() {
    let fixture = Fixture::start().await;
    let front = &fixture.front.0;
    let all = u32::try_from(MAX_RUNNING).unwrap();
    let turns = front.running.acquire_many(all).await.unwrap();
    let wrong = [("authorization", "Bearer wrong")];
    let refused = fixture.ask(Method::GET, MAPS, &wrong, "");
    let in_time = tokio::time::timeout(std::time::Duration::from_secs(5), refused);
    assert_eq!(in_time.await.unwrap().0, 401);
    front.waiting.store(MAX_WAITING, Ordering::Relaxed);
    let refused = fixture.alice(Method::GET, MAPS, "");
    let in_time = tokio::time::timeout(std::time::Duration::from_secs(5), refused);
    assert_eq!(in_time.await.unwrap().0, 429);
    assert_eq!(front.waiting.load(Ordering::Relaxed), MAX_WAITING);
    drop(turns);
    assert_ne!(fixture.alice(Method::GET, MAPS, "").await.0, 429);
    fixture.shutdown.trigger();
}

#[tokio::test]
async fn a_request_ends_when_its_client_wanted_it_to() {
    let fixture = Fixture::start().await;
    let ask = |query: &'static str| {
        let fixture = &fixture;
        async move {
            let path = format!("{MAPS}?{query}");
            fixture.alice(Method::GET, &path, "").await
        }
    };
    let (code, body) = ask("timeout=abc").await;
    let why = "invalid timeout specified in the request URL - time: invalid duration \"abc\"";
    assert_eq!(
        (code, &body["reason"], &body["message"]),
        (400, &json!("BadRequest"), &json!(why))
    );
    // Watches have none.
    assert_ne!(ask("watch=true&timeout=abc").await.0, 400);
    for harmless in ["timeout=-1s", "timeout=0", "timeout=100000h", "timeout="] {
        assert_ne!(ask(harmless).await.0, 400, "{harmless}");
    }
    let front = &fixture.front.0;
    let all = u32::try_from(MAX_RUNNING).unwrap();
    let turns = front.running.acquire_many(all).await.unwrap();
    let in_time = tokio::time::timeout(std::time::Duration::from_secs(5), ask("timeout=50ms"));
    let (code, body) = in_time.await.unwrap();
    assert_eq!((code, &body["reason"]), (504, &json!("Timeout")));
    drop(turns);
    fixture.shutdown.trigger();
}

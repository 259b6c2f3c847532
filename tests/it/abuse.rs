//! Requests of every bad sort against a running server: the right Status, no panic, memory bounded, and it goes on.

pub mod mutate;
mod raw;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, header};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sampan_api::{ResourceDef, protobuf, schema};
use sampan_net::{ClientConfig, ClientTls, HttpClient, TcpDialer, Trust, full};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::rows;
use crate::support::long;
use crate::support::process::{ADMIN_TOKEN, ControlPlane};
use raw::Door;

/// What was sent, what came back.
#[derive(Default)]
struct Tally {
    inputs: usize,
    codes: BTreeMap<u16, usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn line(&self) -> String {
        let codes: Vec<_> = self
            .codes
            .iter()
            .map(|(code, count)| match code {
                0 => format!("closed: {count}"),
                code => format!("{code}: {count}"),
            })
            .collect();
        format!("{} inputs, answers {}", self.inputs, codes.join(", "))
    }

    fn count(&mut self, code: u16) {
        self.inputs += 1;
        *self.codes.entry(code).or_default() += 1;
    }
}

/// The administrator's client, which sends whatever it is told.
#[derive(Clone)]
struct Caller {
    http: HttpClient,
    url: String,
    tally: Arc<Mutex<Tally>>,
}

impl Caller {
    fn new(plane: &ControlPlane) -> Self {
        let config = ClientConfig {
            tls: ClientTls {
                trust: Trust::Authorities(String::from_utf8(plane.ca()).unwrap()),
                identity: None,
            },
            dialer: Arc::new(TcpDialer),
            http2: true,
        };
        Self {
            http: HttpClient::new(&config).unwrap(),
            url: plane.url.clone(),
            tally: Arc::default(),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: Vec<u8>,
    ) -> Result<Request<sampan_net::Body>, http::Error> {
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::AUTHORIZATION, format!("Bearer {ADMIN_TOKEN}"))
            .header(header::CONTENT_TYPE, media)
            .header(header::ACCEPT, "application/json")
            .body(full(body))
    }

    /// Sends it; an answer that is a failure must be a Status of the same code, and never the server's fault.
    async fn call(&self, method: Method, path: &str, media: &str, body: Vec<u8>) -> u16 {
        let what = format!("{method} {} {media}", &path[..path.len().min(200)]);
        let start = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        let Ok(request) = self.request(method, path, media, body) else {
            return 0;
        };
        let answer = tokio::time::timeout(Duration::from_secs(30), self.exchange(request)).await;
        let (code, text) = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => (0, error),
            Err(_) => (0, "no answer within 30 seconds".to_owned()),
        };
        let mut tally = self.tally.lock().unwrap();
        tally.count(code);
        let status = serde_json::from_str::<Value>(&text).unwrap_or_default();
        let is_status = status["kind"] == "Status" && status["code"] == code;
        // A path that leads nowhere at all is answered as upstream's mux does.
        let is_page = code == 404 && text.trim() == "404 page not found";
        // Two answers are the server's fault with upstream, too.
        let message = status["message"].as_str().unwrap_or_default();
        let as_upstream = is_status
            && (message.contains("strconv.ParseUint")
                || message.contains("Too large resource version"));
        let fine = (200..400).contains(&code)
            || is_page
            || as_upstream
            || (is_status && (400..500).contains(&code));
        if !fine {
            let text = &text[..text.len().min(400)];
            tally
                .wrong
                .push(format!("{what}: {code} {text}\n  body: {start}"));
        }
        code
    }

    async fn exchange(&self, request: Request<sampan_net::Body>) -> Result<(u16, String), String> {
        use http_body_util::BodyExt as _;
        let answer = self
            .http
            .send(request)
            .await
            .map_err(|error| error.to_string())?;
        let code = answer.status().as_u16();
        let body = answer
            .into_body()
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        Ok((code, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }

    fn take(&self) -> Tally {
        std::mem::take(&mut *self.tally.lock().unwrap())
    }
}

fn path_of(row: &ResourceDef) -> String {
    let version = row.storage_version();
    let gvr = row.gvr(version);
    let base = match gvr.group.is_empty() {
        true => format!("/api/{}", gvr.version),
        false => format!("/apis/{}/{}", gvr.group, gvr.version),
    };
    match row.is_namespaced() {
        true => format!("{base}/namespaces/{}/{}", rows::NAMESPACE, gvr.resource),
        false => format!("{base}/{}", gvr.resource),
    }
}

const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Runs the calls with so many at a time.
async fn all(caller: &Caller, calls: Vec<(Method, String, &'static str, Vec<u8>)>) {
    use futures_util::StreamExt as _;
    futures_util::stream::iter(calls)
        .for_each_concurrent(16, |(method, path, media, body)| {
            let caller = caller.clone();
            async move {
                caller.call(method, &path, media, body).await;
            }
        })
        .await;
}

/// Wrong types at every field of an object of every row, by create and by every patch; scrambled bytes in every encoding.
fn mutated_objects(
    random: &mut SmallRng,
    share: f64,
) -> Vec<(Method, String, &'static str, Vec<u8>)> {
    let objects = rows::objects();
    let strangers = mutate::strangers();
    let mut calls = Vec::new();
    for row in rows::stored_rows() {
        let sample = rows::sample(&objects, &row);
        let path = path_of(&row);
        for place in mutate::places(&sample) {
            for stranger in &strangers {
                if !random.random_bool(share) {
                    continue;
                }
                let wrong = mutate::replaced(&sample, &place, stranger.clone());
                let create = format!("{path}?dryRun=All&fieldValidation=Strict");
                calls.push((
                    Method::POST,
                    create,
                    "application/json",
                    wrong.to_string().into_bytes(),
                ));
            }
        }
        let gvk = row.storage_gvk();
        let schema = schema::of_kind(&gvk.group, &gvk.version, &gvk.kind);
        let wire = schema.map(|schema| {
            let raw = protobuf::encode(schema, &sample);
            protobuf::wrap(&gvk.api_version(), &gvk.kind, &raw)
        });
        let text = sample.to_string().into_bytes();
        for _ in 0..(200.0 * share) as usize {
            let create = format!("{path}?dryRun=All");
            for (media, valid) in [
                ("application/json", Some(&text)),
                ("application/yaml", Some(&text)),
                ("application/vnd.kubernetes.protobuf", wire.as_ref()),
            ] {
                if let Some(valid) = valid {
                    let body = mutate::scrambled(valid, random);
                    calls.push((Method::POST, create.clone(), media, body));
                }
            }
        }
    }
    calls
}

/// Bad patches on one Pod and one Deployment that exist.
fn bad_patches(
    random: &mut SmallRng,
    count: usize,
) -> Vec<(Method, String, &'static str, Vec<u8>)> {
    let operations = json!([
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "c"},
        {"op": "copy", "from": "/spec", "path": "/metadata/annotations/x"},
        {"op": "move", "from": "/metadata/labels", "path": "/metadata/labels/x"},
        {"op": "test", "path": "/spec/containers/-/name", "value": 1},
        {"op": "replace", "path": "/spec/containers/99999999999999999999/image", "value": "x"},
        {"op": "remove", "path": ""},
    ]);
    let merge = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "one", "image": "x",
        "ports": [{"containerPort": 80, "protocol": "TCP"}]}], "$setElementOrder/containers": [{"name": "one"}]}});
    let strangers = mutate::strangers();
    let mut calls = Vec::new();
    let target = format!("/api/v1/namespaces/{}/pods/one", rows::NAMESPACE);
    for _ in 0..count {
        for media in PATCHES {
            let base = if media == PATCHES[0] {
                &operations
            } else {
                &merge
            };
            let places = mutate::places(base);
            let place = &places[random.random_range(0..places.len())];
            let stranger = strangers[random.random_range(0..strangers.len())].clone();
            let text = mutate::replaced(base, place, stranger)
                .to_string()
                .into_bytes();
            let body = match random.random_bool(0.3) {
                true => mutate::scrambled(&text, random),
                false => text,
            };
            let path = format!("{target}?dryRun=All&fieldManager=abuse&force=true");
            calls.push((Method::PATCH, path, media, body));
        }
    }
    calls
}

/// Every parameter of a list, watch, create and delete with values that are none.
fn bad_queries() -> Vec<(Method, String, &'static str, Vec<u8>)> {
    let values = [
        "",
        "x",
        "-1",
        "0",
        "99999999999999999999",
        "%00",
        "%ff%fe",
        "%",
        "%zz",
        "a,,b",
        "a in (",
        "a in (b",
        "!",
        "a=b=c",
        "((((",
        "a%20notin%20()",
        "a>b",
        "metadata.name=a,metadata.name!=a",
        "spec.nothing=1",
        "true",
        "None",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4ifQ",
        "e30",
        "bnVsbA",
        "All",
        "Sometimes",
        "18446744073709551615",
        "1.5",
        "+1",
        "%F0%9F%92%A5",
        "NotOlderThan",
        "Exact",
        "Background",
    ];
    let names = [
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "sendInitialEvents",
        "allowWatchBookmarks",
        "pretty",
        "includeObject",
        "force",
    ];
    let path = format!("/api/v1/namespaces/{}/configmaps", rows::NAMESPACE);
    let mut calls = Vec::new();
    for name in names {
        for value in values {
            let pair = format!("{name}={value}");
            calls.push((Method::GET, format!("{path}?{pair}"), "", Vec::new()));
            calls.push((
                Method::GET,
                format!("{path}?watch=1&timeoutSeconds=1&{pair}&resourceVersion=0"),
                "",
                Vec::new(),
            ));
            calls.push((
                Method::DELETE,
                format!("{path}/nothing?{pair}"),
                "",
                Vec::new(),
            ));
            let body = json!({"metadata": {"name": "x"}}).to_string().into_bytes();
            calls.push((
                Method::POST,
                format!("{path}?dryRun=All&{pair}"),
                "application/json",
                body,
            ));
        }
    }
    let long = "a=b,".repeat(20_000);
    calls.push((
        Method::GET,
        format!("{path}?labelSelector={long}"),
        "",
        Vec::new(),
    ));
    calls.push((
        Method::GET,
        format!("{path}?{}", "x=y&".repeat(10_000)),
        "",
        Vec::new(),
    ));
    calls
}

fn unknown_paths() -> Vec<(Method, String, &'static str, Vec<u8>)> {
    let paths = [
        "/",
        "//",
        "/api",
        "/api/",
        "/api/v2",
        "/api/v1/nothing",
        "/api/v1/namespaces/x/y/z/a/b/c",
        "/apis/none/v1/x",
        "/apis/apps/v9/deployments",
        "/apis//v1",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/a/pods/%2e%2e",
        "/api/v1/namespaces/a/pods/..",
        "/api/v1/namespaces/%00/pods",
        "/api/v1/namespaces/a%2fb/pods/c",
        "/api/v1/namespaces/a/pods/%ff",
        "/api/v1/pods/x",
        "/api/v1/namespaces/default/pods/x/nothing",
        "/api/v1/namespaces/default/pods/x/exec",
        "/api/v1/namespaces/default/pods/x/log",
        "/api/v1/namespaces/default/pods/x/proxy/",
        "/api/v1/namespaces/default/services/https:x:y/proxy/",
        "/api/v1/nodes/x/proxy/metrics",
        "/api/v1/proxy/nodes/x",
        "/api/v1/watch/pods/x/y",
        "/openapi/v2/x",
        "/openapi/v3/apis/none",
        "/openapi/v3/api/v1?hash=x",
        "/healthz/none",
        "/metrics/x",
        "/version/x",
        "/.well-known/none",
        "/logs/../../etc/passwd",
        "/debug/pprof/heap",
        "/api/v1/namespaces/default/finalize",
        "/api/v1/namespaces/none/status",
        "/api/v1/componentstatuses/x",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews/x",
    ];
    let mut calls = Vec::new();
    for path in paths {
        for method in [
            "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW",
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let media = if method == Method::PATCH {
                PATCHES[1]
            } else {
                "application/json"
            };
            calls.push((method, path.to_owned(), media, b"{}".to_vec()));
        }
    }
    calls.push((
        Method::GET,
        format!("/api/v1/namespaces/{}/pods", "a".repeat(50_000)),
        "",
        Vec::new(),
    ));
    calls.push((
        Method::GET,
        format!("/{}", "a/".repeat(20_000)),
        "",
        Vec::new(),
    ));
    calls
}

/// Bodies that are too large or too deep, or grow when they are read.
async fn heavy_bodies(caller: &Caller) -> Vec<String> {
    let path = format!(
        "/api/v1/namespaces/{}/configmaps?dryRun=All",
        rows::NAMESPACE
    );
    let deep = |open: &str, close: &str, depth: usize| {
        format!(
            "{{\"metadata\":{{\"name\":\"x\"}},\"data\":{}{}}}",
            open.repeat(depth),
            close.repeat(depth)
        )
    };
    let mut laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (from, to) in "abcdefgh".chars().zip("bcdefghi".chars()) {
        laughs.push_str(&format!(
            "{to}: &{to} [{}]\n",
            vec![format!("*{from}"); 9].join(",")
        ));
    }
    let nested_wire = (0..20_000).fold(Vec::new(), |inner: Vec<u8>, _| match inner.len() {
        0..=100_000 => [&[0x0a][..], &length(inner.len()), &inner].concat(),
        _ => inner,
    });
    let crd = json!({"metadata": {"name": "x"}, "data": {"k": "x".repeat(2 << 20)}}).to_string();
    let cases = [
        (
            "3 MiB and more",
            "application/json",
            vec![b' '; (3 << 20) + 1],
            413,
        ),
        ("64 MiB", "application/json", vec![b'['; 64 << 20], 413),
        (
            "deep arrays",
            "application/json",
            deep("[", "]", 1_000_000).into_bytes(),
            400,
        ),
        (
            "deep objects",
            "application/json",
            deep("{\"a\":", "}", 400_000).into_bytes(),
            400,
        ),
        (
            "deep but small",
            "application/json",
            deep("[", "]", 5_000).into_bytes(),
            400,
        ),
        (
            "deep YAML",
            "application/yaml",
            deep("[", "]", 100_000).into_bytes(),
            400,
        ),
        (
            "YAML that laughs",
            "application/yaml",
            laughs.into_bytes(),
            400,
        ),
        (
            "deep protobuf",
            "application/vnd.kubernetes.protobuf",
            protobuf::wrap("v1", "ConfigMap", &nested_wire),
            400,
        ),
        ("2 MiB of text", "application/json", crd.into_bytes(), 422),
        ("an unknown media type", "text/plain", b"{}".to_vec(), 415),
    ];
    let mut wrong = Vec::new();
    for (what, media, body, expected) in cases {
        let code = caller.call(Method::POST, &path, media, body).await;
        if code != expected {
            wrong.push(format!("{what}: {code}, expected {expected}"));
        }
    }
    for media in PATCHES {
        let target = format!("/api/v1/namespaces/{}/pods/one", rows::NAMESPACE);
        let code = caller
            .call(
                Method::PATCH,
                &target,
                media,
                deep("[", "]", 100_000).into_bytes(),
            )
            .await;
        if code != 400 {
            wrong.push(format!("a deep {media}: {code}"));
        }
    }
    wrong
}

/// A protobuf length.
fn length(mut number: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// HTTP/1.1 that is none, and HTTP/1.1 that is too much.
async fn broken_http1(door: &Door, random: &mut SmallRng, count: usize) -> Tally {
    let valid = format!(
        "POST /api/v1/namespaces/{}/configmaps?dryRun=All HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: 27\r\nConnection: close\r\n\r\n{{\"metadata\":{{\"name\":\"x1\"}}}}",
        rows::NAMESPACE
    );
    let get = |headers: &str| {
        format!("GET /version HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n")
    };
    let mut inputs: Vec<(Vec<u8>, &[u16])> = vec![
        (get("").into_bytes(), &[200]),
        (
            get(&format!("X: {}\r\n", "y".repeat(2 << 20))).into_bytes(),
            &[431, 400, 0],
        ),
        (
            get(&"X-Y: z\r\n".repeat(20_000)).into_bytes(),
            &[431, 400, 0],
        ),
        (
            get("Authorization: Bearer \u{7f}\r\n").into_bytes(),
            &[400, 401],
        ),
        (get("Authorization: Basic !!!\r\n").into_bytes(), &[401]),
        (
            get("Content-Length: 5\r\nContent-Length: 6\r\n").into_bytes(),
            &[400, 0],
        ),
        (get("Content-Length: -1\r\n").into_bytes(), &[400, 0]),
        (
            get("Transfer-Encoding: gzip, nonsense\r\n").into_bytes(),
            &[400, 0, 501],
        ),
        (
            get("Upgrade: websocket\r\nConnection: upgrade\r\n").into_bytes(),
            &[200, 400],
        ),
        (get("Accept: \u{0}\r\n").into_bytes(), &[400, 0]),
        (
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(1 << 20)).into_bytes(),
            &[414, 400, 431, 0],
        ),
        (
            b"GET /version HTTP/9.9\r\nHost: a\r\n\r\n".to_vec(),
            &[400, 505, 0],
        ),
        (
            b"GET http://other/version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(),
            &[200],
        ),
        (b"PRI * HTTP/2.0\r\n\r\n".to_vec(), &[0, 400]),
        (
            b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(),
            &[403, 401, 404, 405],
        ),
        (vec![0; 100_000], &[400, 0]),
        (vec![b'A'; 2 << 20], &[400, 414, 431, 0]),
    ];
    let any: &[u16] = &[];
    inputs.extend((0..count).map(|_| (mutate::scrambled(valid.as_bytes(), random), any)));
    let mut tally = Tally::default();
    for (bytes, expected) in inputs {
        let (answer, _) = raw::send1(door, &bytes, Duration::from_millis(300)).await;
        let code = raw::code(&answer);
        tally.count(code);
        let bad = code >= 500 && code != 501 && code != 505;
        if bad || (!expected.is_empty() && !expected.contains(&code)) {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
            tally.wrong.push(format!("{text:?}: {code}"));
        }
    }
    tally
}

/// Frames of HTTP/2 that fit nowhere.
async fn broken_http2(door: &Door, random: &mut SmallRng, count: usize) -> Tally {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&size[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut tally = Tally::default();
    for number in 0..count {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        for _ in 0..random.random_range(1..20) {
            let mut payload = vec![0; random.random_range(0..64)];
            random.fill(&mut payload[..]);
            let kind = random.random_range(0..12);
            bytes.extend(frame(
                kind,
                random.random(),
                random.random_range(0..8),
                &payload,
            ));
        }
        match number % 10 {
            // A thousand streams opened and reset at once.
            0 => {
                for stream in 0..1_000_u32 {
                    bytes.extend(frame(
                        1,
                        5,
                        stream * 2 + 1,
                        &[0x82, 0x87, 0x84, 0x41, 0x01, b'a'],
                    ));
                    bytes.extend(frame(3, 0, stream * 2 + 1, &[0, 0, 0, 8]));
                }
            }
            // Headers that never end.
            1 => {
                bytes.extend(frame(1, 0, 1, &[0x82]));
                for _ in 0..2_000 {
                    bytes.extend(frame(9, 0, 1, &[0x40, 1, b'a', 1, b'b']));
                }
            }
            2 => bytes.extend(vec![random.random::<u8>(); 20_000]),
            // Pings and settings without end.
            3 => (0..5_000).for_each(|_| bytes.extend(frame(6, 0, 0, &[0; 8]))),
            4 => (0..5_000).for_each(|_| bytes.extend(frame(4, 0, 0, &[]))),
            _ => {}
        }
        let (_, closed) = raw::send2(door, &bytes, Duration::from_millis(200)).await;
        tally.count(if closed { 0 } else { 1 });
    }
    tally
}

/// Connections that send a little and then nothing; how many were closed within their time.
async fn slow_clients(door: Door, count: usize) -> (usize, usize) {
    let head = b"GET /version HTTP/1.1\r\nHost: a\r\nX-Slow: ";
    let mut tasks = Vec::new();
    for _ in 0..count {
        let door = door.clone();
        tasks.push(tokio::spawn(async move {
            let mut stream = door.http1().await.unwrap();
            stream.write_all(head).await.unwrap();
            // A byte now and then does not help: the whole head has a limit.
            for _ in 0..45 {
                let (_, closed) = raw::answer(&mut stream, Duration::from_secs(1)).await;
                if closed || stream.write_all(b"a").await.is_err() {
                    return true;
                }
            }
            false
        }));
    }
    let mut closed = 0;
    for task in tasks {
        closed += usize::from(task.await.unwrap());
    }
    (closed, count)
}

/// Opens many connections that do nothing and keeps them until the handle is dropped.
async fn idle_connections(
    door: &Door,
    tls: usize,
    plain: usize,
) -> (Vec<raw::Stream>, Vec<tokio::net::TcpStream>) {
    use futures_util::StreamExt as _;
    let open_tls = futures_util::stream::iter(0..tls)
        .map(|_| door.http1())
        .buffer_unordered(32)
        .filter_map(|stream| std::future::ready(stream.ok()))
        .collect::<Vec<_>>();
    let open_plain = futures_util::stream::iter(0..plain)
        .map(|_| door.tcp())
        .buffer_unordered(64)
        .filter_map(|stream| std::future::ready(stream.ok()))
        .collect::<Vec<_>>();
    (open_tls.await, open_plain.await)
}

/// Resident memory in MiB: now and at most.
fn memory(pid: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let read = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            / 1024
    };
    (read("VmRSS:"), read("VmHWM:"))
}

/// The server still does everything, and its log and its counters know of no panic.
async fn is_well(plane: &ControlPlane, caller: &Caller) {
    let path = format!("/api/v1/namespaces/{}/configmaps", rows::NAMESPACE);
    let body = json!({"metadata": {"name": "well"}})
        .to_string()
        .into_bytes();
    assert_eq!(
        caller
            .call(Method::POST, &path, "application/json", body)
            .await,
        201
    );
    assert_eq!(
        caller
            .call(Method::GET, &format!("{path}/well"), "", Vec::new())
            .await,
        200
    );
    assert_eq!(
        caller
            .call(Method::DELETE, &format!("{path}/well"), "", Vec::new())
            .await,
        200
    );
    let request = caller
        .request(Method::GET, "/metrics", "", Vec::new())
        .unwrap();
    let (_, metrics) = caller.exchange(request).await.unwrap();
    let panics = metrics
        .lines()
        .find(|line| line.starts_with("apiserver_request_panics_total"));
    assert_eq!(panics, Some("apiserver_request_panics_total 0"));
    let log = std::fs::read_to_string(&plane.sampan.log).unwrap();
    let panics: Vec<_> = log.lines().filter(|line| line.contains("panic")).collect();
    assert!(panics.is_empty(), "{panics:#?}");
}

async fn prepare(caller: &Caller) {
    let namespace = json!({"metadata": {"name": rows::NAMESPACE}})
        .to_string()
        .into_bytes();
    caller
        .call(
            Method::POST,
            "/api/v1/namespaces",
            "application/json",
            namespace,
        )
        .await;
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", rows::NAMESPACE);
    let account = json!({"metadata": {"name": "default"}})
        .to_string()
        .into_bytes();
    caller
        .call(Method::POST, &accounts, "application/json", account)
        .await;
    let pods = format!("/api/v1/namespaces/{}/pods", rows::NAMESPACE);
    let pod = json!({"metadata": {"name": "one"}, "spec": {"containers": [{"name": "one", "image": "x"}]}});
    let code = caller
        .call(
            Method::POST,
            &pods,
            "application/json",
            pod.to_string().into_bytes(),
        )
        .await;
    assert_eq!(code, 201);
    caller.take();
}

#[test]
fn no_request_brings_the_server_down() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(abuse());
}

async fn abuse() {
    let seed: u64 = rand::random();
    let mut random = SmallRng::seed_from_u64(seed);
    let plane = ControlPlane::start(&["--disable-scheduler", "--disable-controller-manager"]);
    let files = raw::many_files();
    let (caller, door) = (Caller::new(&plane), Door::new(&plane.url));
    let pid = plane.sampan.pid();
    prepare(&caller).await;
    let before = memory(pid).0;
    let slow = tokio::spawn(slow_clients(door.clone(), 40));
    let share = if long() { 1.0 } else { 0.05 };
    let mut faults = Vec::new();
    let groups = [
        ("objects made wrong", mutated_objects(&mut random, share)),
        (
            "bad patches",
            bad_patches(&mut random, (2_000.0 * share) as usize),
        ),
        ("bad queries", bad_queries()),
        ("unknown paths", unknown_paths()),
    ];
    for (name, calls) in groups {
        all(&caller, calls).await;
        let tally = caller.take();
        println!(
            "abuse, {name}: {}, wrong {}",
            tally.line(),
            tally.wrong.len()
        );
        faults.extend(tally.wrong);
    }
    faults.extend(heavy_bodies(&caller).await);
    let tally = caller.take();
    println!(
        "abuse, heavy bodies: {}, wrong {}",
        tally.line(),
        tally.wrong.len()
    );
    faults.extend(tally.wrong);
    let count = if long() { 3_000 } else { 60 };
    let tally = broken_http1(&door, &mut random, count).await;
    println!(
        "abuse, broken HTTP/1.1: {}, wrong {}",
        tally.line(),
        tally.wrong.len()
    );
    faults.extend(tally.wrong);
    let tally = broken_http2(&door, &mut random, count).await;
    println!("abuse, broken HTTP/2: {} (1: kept open)", tally.line());
    let worst = memory(pid).1;
    let tls = if long() {
        10_000.min(files as usize / 2 - 200)
    } else {
        600
    };
    let plain = if long() { 0 } else { 6_000 };
    let (kept, plain) = idle_connections(&door, tls, plain).await;
    is_well(&plane, &caller).await;
    let (held, _) = memory(pid);
    println!(
        "abuse, idle connections: {} encrypted and {} silent ones, server answers beside them, memory {held} MiB",
        kept.len(),
        plain.len()
    );
    drop((kept, plain));
    let (closed, slow) = slow.await.unwrap();
    println!("abuse, slow clients: {closed} of {slow} ended within the header limit");
    is_well(&plane, &caller).await;
    println!(
        "abuse: panics 0, wrong answers {}, memory {before} MiB before, at most {worst} MiB, {} MiB in the end (seed {seed})",
        faults.len(),
        memory(pid).0
    );
    assert!(
        faults.is_empty(),
        "{} wrong: {:#?}",
        faults.len(),
        &faults[..faults.len().min(80)]
    );
    assert_eq!(closed, slow);
    assert!(worst < 600, "memory is not bounded: {worst} MiB");
}

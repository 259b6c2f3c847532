//! Requests of every bad sort against a running server: the right Status, no panic, memory bounded, and it goes on.

mod connections;
mod inputs;
pub mod mutate;
mod raw;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, header};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use sampan_net::{ClientConfig, ClientTls, HttpClient, TcpDialer, Trust, full};
use serde_json::{Value, json};

use crate::rows;
use crate::support::long;
use crate::support::process::{ADMIN_TOKEN, ControlPlane};
use connections::{broken_http1, broken_http2, idle_connections, slow_clients};
use inputs::{Call, bad_patches, bad_queries, heavy_bodies, mutated_objects, unknown_paths};
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
        // These answers are the server's fault with upstream, too.
        let message = status["message"].as_str().unwrap_or_default();
        let as_upstream = is_status
            && (message.contains("strconv.ParseUint")
                || message.contains("Too large resource version")
                || message.contains("resourceVersion should not be set on objects to be created"));
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

/// Runs the calls with so many at a time.
async fn all(caller: &Caller, calls: Vec<Call>) {
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

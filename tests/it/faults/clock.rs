//! A running server whose wall clock jumps, forward and back.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use http::Method;
use sampan_api::Verb;
use sampan_client::{Body, Credentials, HttpsTransport};
use serde_json::{Value, json};

use crate::support::process::ControlPlane;
use crate::support::rest::{CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, Rest, revision};
use crate::support::run;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The wall clock of a server.
struct Clock(PathBuf);

impl Clock {
    fn jump(&self, seconds: i64) {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&self.0)
            .unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

fn start_at(seconds: i64) -> (ControlPlane, Clock) {
    let mut file = PathBuf::new();
    let plane = ControlPlane::spawn_on(&[], |data| {
        let library = data.with_file_name("clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/faults/clock.c");
        run(Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source));
        file = data.with_file_name("clock");
        std::fs::write(&file, seconds.to_ne_bytes()).unwrap();
        vec![
            ("LD_PRELOAD".to_owned(), library.display().to_string()),
            ("SAMPAN_TEST_CLOCK".to_owned(), file.display().to_string()),
        ]
    });
    (plane, Clock(file))
}

fn time(object: &Value) -> &str {
    object["metadata"]["creationTimestamp"].as_str().unwrap()
}

struct Jumps {
    rest: Rest,
    last: u64,
    written: u32,
}

impl Jumps {
    fn grows(&mut self, object: &Value) {
        assert!(revision(object) > self.last, "{object}");
        self.last = revision(object);
        self.written += 1;
    }

    /// Everything that has to do with time, once.
    async fn round(&mut self, number: usize) -> Value {
        let name = format!("c{number}");
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": "v"}});
        let made = self.rest.create(CONFIG_MAPS, object).await.unwrap();
        self.grows(&made);
        let mut changed = made.clone();
        changed["data"]["k"] = json!("w");
        let changed = self.rest.update(CONFIG_MAPS, &name, changed).await.unwrap();
        self.grows(&changed);
        let managed = changed["metadata"]["managedFields"].as_array().unwrap();
        assert!(
            managed.iter().all(|entry| entry["time"].is_string()),
            "{changed}"
        );
        let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": name}, "type": "Normal",
            "involvedObject": {"kind": "ConfigMap", "name": name, "namespace": "clock"}, "reason": "Jump"});
        let event = self.rest.create(EVENTS, event).await.unwrap();
        self.grows(&event);
        let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": name},
            "spec": {"holderIdentity": "a"}});
        let lease = self.rest.create(LEASES, lease).await.unwrap();
        self.grows(&lease);
        made
    }
}

async fn token(rest: &Rest) -> String {
    let path = "/api/v1/namespaces/clock/serviceaccounts/default/token";
    let body = json!({"spec": {"expirationSeconds": 3600}}).to_string();
    let answer = rest
        .transport
        .raw(Method::POST, path, "application/json", body.into())
        .await
        .unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Whether the server takes the token (what it then may do is another question).
async fn takes(plane: &ControlPlane, token: &str) -> bool {
    let authority = String::from_utf8(plane.ca()).unwrap();
    let credentials = Credentials::Token(token.to_owned());
    let transport = HttpsTransport::new(&plane.url, Some(&authority), &credentials, "t").unwrap();
    match transport.get_path("/api/v1/namespaces/clock/secrets").await {
        Ok(_) => true,
        Err(error) => error.status().unwrap_or_else(|| panic!("{error}")).code != 401,
    }
}

#[test]
fn clock_jumps_break_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut plane, clock) = start_at(0);
        plane.wait_ready();
        let rest = Rest::admin(&plane, "clock");
        let namespace =
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "clock"}});
        rest.create(NAMESPACES, namespace).await.unwrap();
        wait_for_account(&rest).await;
        let token = token(&rest).await;
        let mut jumps = Jumps {
            rest,
            last: 0,
            written: 0,
        };
        let first = jumps.round(0).await;
        assert!(takes(&plane, &token).await);
        let all = [2 * HOUR, -2 * HOUR, 300 * DAY, -300 * DAY, 30, 0];
        let (mut expired, mut times) = (0, Vec::new());
        for (number, seconds) in all.into_iter().enumerate() {
            clock.jump(seconds);
            let made = jumps.round(number + 1).await;
            times.push(time(&made).to_owned());
            // Valid for an hour from when it was made; a clock that was set back refuses it, too.
            let taken = takes(&plane, &token).await;
            assert_eq!(taken, seconds.abs() < HOUR, "the token at {seconds} s");
            expired += u32::from(!taken);
        }
        assert!(
            times[2] > times[0] && *times[0] > *time(&first) && *times[3] < *time(&first),
            "{times:?}"
        );
        assert!(plane.sampan.is_running(), "{}", plane.sampan.tail());
        let early = without_a_clock().await;
        println!(
            "clock jumps: {} back and forth by up to 300 days, {} writes with growing revisions, \
             tokens outside their time refused {expired} times; {early}",
            all.len(),
            jumps.written
        );
    });
}

async fn wait_for_account(rest: &Rest) {
    const ACCOUNTS: crate::support::rest::Plural = crate::support::rest::Plural {
        group: "",
        version: "v1",
        name: "serviceaccounts",
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while let Err(error) = rest
        .call(Verb::Get, ACCOUNTS, Some("default"), Body::None)
        .await
    {
        assert!(std::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A board without a clock of its own: first start in 1970, then the network tells the time.
async fn without_a_clock() -> &'static str {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let (plane, clock) = start_at(-i64::try_from(now.as_secs()).unwrap() + 10);
    tokio::time::sleep(Duration::from_secs(2)).await;
    clock.jump(0);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !plane
        .sampan
        .data_dir
        .join("server/tls/server-ca.crt")
        .exists()
    {
        assert!(
            std::time::Instant::now() < deadline,
            "{}",
            plane.sampan.tail()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Our clock is right: for us the certificates must be valid now.
    let rest = Rest::admin(&plane, "default");
    rest.ready(Duration::from_secs(20)).await.unwrap();
    "first start in 1970: certificates are valid when the time is known"
}

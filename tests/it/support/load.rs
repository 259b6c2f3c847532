//! Requests at a steady rate, each on a connection of its own, from inside a network namespace.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const PATIENCE: Duration = Duration::from_secs(5);
const SLOW: Duration = Duration::from_secs(1);

/// What became of the requests.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub requests: u64,
    pub failed: u64,
    /// Answered, but after more than a second.
    pub slow: u64,
    /// Answers by their text.
    pub answers: BTreeMap<String, u64>,
    /// Failures by kind, each with the first moment it was seen (seconds since the start).
    pub failures: BTreeMap<String, (u64, f64)>,
}

impl Tally {
    pub fn merge(&mut self, other: Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.slow += other.slow;
        for (answer, count) in other.answers {
            *self.answers.entry(answer).or_default() += count;
        }
        for (failure, (count, first)) in other.failures {
            let entry = self.failures.entry(failure).or_insert((0, first));
            entry.0 += count;
            entry.1 = entry.1.min(first);
        }
    }
}

/// Where requests come from and go to, and how many a second.
pub struct Load {
    stop: Arc<AtomicBool>,
    started: Instant,
    clients: Vec<JoinHandle<()>>,
    tally: Arc<Mutex<Tally>>,
}

impl Load {
    /// `clients` threads in the network namespace at `namespace`, together `rate` requests a second.
    pub fn start(namespace: &str, target: SocketAddr, rate: u32, clients: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tally = Arc::new(Mutex::new(Tally::default()));
        let started = Instant::now();
        let pause = Duration::from_secs(1) * clients / rate;
        let clients = (0..clients)
            .map(|number| {
                let (stop, tally) = (Arc::clone(&stop), Arc::clone(&tally));
                let path = PathBuf::from(namespace);
                let first = started + pause * number / clients;
                std::thread::spawn(move || {
                    enter(&path);
                    steadily(first, pause, &stop, |now| {
                        let outcome = request(target);
                        let took = now.elapsed();
                        let mut tally = tally.lock().unwrap();
                        count(&mut tally, outcome, took, now - started);
                    });
                })
            })
            .collect();
        Self {
            stop,
            started,
            clients,
            tally,
        }
    }

    pub fn so_far(&self) -> Tally {
        self.tally.lock().unwrap().clone()
    }

    /// Ends the load; the tally and how long it lasted.
    pub fn stop(self) -> (Tally, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let lasted = self.started.elapsed();
        for client in self.clients {
            client.join().unwrap();
        }
        let tally = self.tally.lock().unwrap().clone();
        (tally, lasted)
    }
}

/// Moves this thread into a network namespace.
pub fn enter(path: &Path) {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Calls `act` every `pause`. One that takes long is followed by the ones it held up, at once.
fn steadily(first: Instant, pause: Duration, stop: &AtomicBool, mut act: impl FnMut(Instant)) {
    let mut due = first;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now < due {
            std::thread::sleep(due - now);
        }
        act(Instant::now());
        due += pause;
    }
}

fn count(tally: &mut Tally, outcome: Result<String, String>, took: Duration, when: Duration) {
    tally.requests += 1;
    match outcome {
        Ok(answer) => {
            *tally.answers.entry(answer).or_default() += 1;
            tally.slow += u64::from(took > SLOW);
        }
        Err(failure) => {
            tally.failed += 1;
            let entry = tally
                .failures
                .entry(failure)
                .or_insert((0, when.as_secs_f64()));
            entry.0 += 1;
        }
    }
}

/// One GET; the body of a whole answer with status 200.
fn request(target: SocketAddr) -> Result<String, String> {
    let step = |name: &'static str| move |error: std::io::Error| describe(name, &error);
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE).map_err(step("connect"))?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .map_err(step("set"))?;
    stream
        .write_all(
            format!("GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .map_err(step("write"))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(step("read"))?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return Err(format!("no whole answer, {} bytes", answer.len()));
    };
    if head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.0 200") {
        Ok(body.trim().to_owned())
    } else {
        Err(head.lines().next().unwrap_or_default().to_owned())
    }
}

fn describe(step: &str, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("{step}: no answer in {PATIENCE:?}"),
        _ => format!("{step}: {error}"),
    }
}

/// The network namespace of the `sleep` process whose command line holds `mark`, as `nsenter --net=` takes it.
pub fn namespace_of_process(mark: &str) -> Option<String> {
    std::fs::read_dir("/proc")
        .ok()?
        .flatten()
        .find_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let first = line.split(|byte| *byte == 0).next()?;
            let matches = String::from_utf8_lossy(&line).contains(mark);
            (matches && first.ends_with(b"sleep")).then(|| format!("/proc/{pid}/ns/net"))
        })
}

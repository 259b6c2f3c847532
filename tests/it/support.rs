//! What the tests stand on: a running `sampan`, network namespaces, kubectl, images made from local files.

pub mod cluster;
pub mod http;
pub mod image;
pub mod load;
pub mod netns;
pub mod process;
pub mod registry;
pub mod rest;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A folder that goes away with the test. Short, because the paths of Unix sockets must be.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("st{}-{name}{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("SAMPAN_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.0.display());
            return;
        }
        let left = take_off(&self.0);
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
        if !std::thread::panicking() {
            assert!(left.is_empty(), "an uninstall left something: {left}");
        }
    }
}

/// Takes every node whose data lies below the folder off the machine: containers that outlived it (they are meant to),
/// mounts, control groups. Returns what could not be taken back.
fn take_off(folder: &Path) -> String {
    let mut failures = String::new();
    for data_dir in data_dirs(folder) {
        let done = Command::new(env!("CARGO_BIN_EXE_sampan"))
            .args(["uninstall", "--purge", "--data-dir"])
            .arg(&data_dir)
            .output();
        match done {
            Ok(done) if done.status.success() => {}
            Ok(done) => {
                failures += &String::from_utf8_lossy(&done.stdout);
                failures += &String::from_utf8_lossy(&done.stderr);
            }
            Err(error) => failures += &error.to_string(),
        }
    }
    failures
}

/// Folders, not too deep, in which a node has kept its journal.
fn data_dirs(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![(folder.to_owned(), 0)];
    while let Some((path, depth)) = next.pop() {
        if path.join("agent/host-journal").exists() {
            found.push(path);
        } else if depth < 3 {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let folders = entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
            next.extend(folders.map(|entry| (entry.path(), depth + 1)));
        }
    }
    found
}

/// Where the container runtimes of the nodes below a folder keep sockets and running containers.
fn runtime_states(folder: &Path) -> Vec<PathBuf> {
    let mut states = Vec::new();
    let nodes = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for node in nodes.map(|entry| entry.path()).chain([folder.to_owned()]) {
        let config = node.join("d/agent/containerd/config.toml");
        let text = std::fs::read_to_string(config).unwrap_or_default();
        let state = text.lines().find_map(|line| line.strip_prefix("state = "));
        states.extend(state.map(|path| PathBuf::from(path.trim_matches('"'))));
    }
    states
}

/// containerd and its shims, of the nodes below a folder.
pub fn processes_of_runtimes(folder: &Path) -> Vec<String> {
    let mut marks = runtime_states(folder);
    marks.push(folder.to_owned());
    let ours = |arguments: &str| {
        marks
            .iter()
            .any(|mark| arguments.contains(&*mark.to_string_lossy()))
    };
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments);
        if arguments.contains("containerd") && ours(&arguments) {
            pids.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    pids
}

/// Where `tests/tools/need` put kubectl, Helm and busybox.
pub fn tools() -> PathBuf {
    let folder = std::env::var_os("SAMPAN_TEST_TOOLS")
        .map(PathBuf::from)
        .expect("SAMPAN_TEST_TOOLS is not set: run the tests by tests/run");
    assert!(
        folder.join("bin/kubectl").exists(),
        "{} holds no kubectl: run tests/tools/need",
        folder.display()
    );
    folder
}

/// Whether the long forms of the tests are asked for.
pub fn long() -> bool {
    std::env::var("SAMPAN_TEST_LONG").is_ok_and(|value| value == "1")
}

/// Repeats `check` until it gives a value; the last `Err` is the message of the failure.
pub fn eventually<T>(
    what: &str,
    limit: Duration,
    mut check: impl FnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match check() {
            Ok(value) => return value,
            Err(last) if Instant::now() >= deadline => {
                panic!("{what}: not within {limit:?}; last: {last}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Standard output of a command that must succeed.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?} failed: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn output(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?} does not run: {error}"),
    }
}

/// Like [`run`], for use in [`eventually`].
pub fn attempt(command: &mut Command) -> Result<String, String> {
    let output = output(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// What cargo says of this workspace and everything it depends on.
pub fn cargo_metadata() -> serde_json::Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let text = run(Command::new(cargo)
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR")));
    serde_json::from_str(&text).expect("cargo writes JSON")
}

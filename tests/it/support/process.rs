//! A running `sampan`, with kubectl pointed at it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::netns::Namespace;
use super::{Scratch, attempt, eventually, run, tools};

/// How full the disk of the machine is, is not what is tested.
pub const ANY_DISK: &str = "--kubelet-arg=eviction-hard=nodefs.available<1%";
pub const ADMIN_TOKEN: &str = "admin-token";
const TOKENS: &str = "admin-token,admin,admin-uid,\"system:masters\"\nalice-token,alice,alice-uid,\"dev\"\nbob-token,bob,bob-uid\n";

/// One `sampan` process; killed with the test.
pub struct Sampan {
    child: Child,
    pub data_dir: PathBuf,
    namespace_path: Option<String>,
    pub log: PathBuf,
}

impl Sampan {
    /// Starts `sampan ROLE` with its data below `folder`, in a network namespace if one is given.
    pub fn start(
        role: &str,
        folder: &Path,
        namespace: Option<&Namespace>,
        options: &[String],
    ) -> Self {
        Self::start_with(role, folder, namespace, options, &[])
    }

    /// With environment variables of its own.
    pub fn start_with(
        role: &str,
        folder: &Path,
        namespace: Option<&Namespace>,
        options: &[String],
        environment: &[(String, String)],
    ) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let log = folder.join("log");
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let binary = env!("CARGO_BIN_EXE_sampan");
        let mut command = match namespace {
            Some(namespace) => namespace.command(binary),
            None => Command::new(binary),
        };
        let faults = folder.join("faults");
        std::fs::create_dir_all(&faults).unwrap();
        let child = command
            .env("SAMPAN_FAULTS", faults)
            .arg(role)
            .arg(format!("--data-dir={}", folder.join("d").display()))
            .args(options)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self {
            child,
            data_dir: folder.join("d"),
            namespace_path: namespace.map(Namespace::path),
            log,
        }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.with_file_name("kubeconfig")
    }

    /// kubectl as the administrator, in the server's namespace.
    pub fn kubectl(&self, arguments: &str) -> Command {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        self.kubectl_args(&words)
    }

    pub fn kubectl_args(&self, arguments: &[&str]) -> Command {
        let program = tools().join("bin/kubectl");
        let mut command = match &self.namespace_path {
            Some(path) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={path}")).arg("--").arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.data_dir.with_file_name("home"))
            .args(arguments);
        command
    }

    /// Applies a manifest given as text.
    pub fn apply(&self, manifest: &str) {
        let file = self.data_dir.with_file_name("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        run(&mut self.kubectl_args(&["apply", "-f", &file.display().to_string()]));
    }

    /// Takes a part of the process down until it is healed.
    pub fn fail(&self, part: &str) {
        std::fs::write(self.fault(part), "").unwrap();
    }

    /// Lets a task of a part panic.
    pub fn panic_in(&self, part: &str) {
        // In one step, so that no other fault is read in between.
        let whole = self.data_dir.with_file_name("fault");
        std::fs::write(&whole, "panic").unwrap();
        std::fs::rename(whole, self.fault(part)).unwrap();
    }

    pub fn heal(&self, part: &str) {
        std::fs::remove_file(self.fault(part)).unwrap();
    }

    fn fault(&self, part: &str) -> PathBuf {
        self.data_dir.with_file_name("faults").join(part)
    }

    pub fn terminate(&mut self) {
        // SIGTERM: sampan stops what it started and leaves containers running.
        let pid = self.child.id().to_string();
        run(Command::new("kill").arg(&pid));
        let status = self.child.wait().unwrap();
        assert!(
            status.success(),
            "sampan ended with {status}; log: {}",
            self.tail()
        );
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself; whether it called that a success.
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for Sampan {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of {}:\n{}", self.log.display(), self.tail());
        }
        if let Ok(None) = self.child.try_wait() {
            let pid = self.child.id().to_string();
            // A graceful end, so that the containerd child ends too.
            let _ended = Command::new("kill").arg(&pid).status();
            for _ in 0..100 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let _killed = self.child.kill();
            let _waited = self.child.wait();
        }
    }
}

/// A control plane without a node, on a free port of loopback.
pub struct ControlPlane {
    pub sampan: Sampan,
    pub url: String,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    scratch: Scratch,
}

pub fn token_file(folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join("tokens.csv");
    std::fs::write(&path, TOKENS).unwrap();
    path
}

impl ControlPlane {
    pub fn start(options: &[&str]) -> Self {
        let plane = Self::spawn(options);
        plane.wait_ready();
        plane
    }

    /// Without waiting until it is ready.
    pub fn spawn(options: &[&str]) -> Self {
        Self::spawn_on(options, |_| Vec::new())
    }

    /// `prepare` gets the (new) data folder before the server starts, and gives environment variables.
    pub fn spawn_on(
        options: &[&str],
        prepare: impl FnOnce(&Path) -> Vec<(String, String)>,
    ) -> Self {
        let scratch = Scratch::new("cp");
        let port = free_port();
        let tokens = token_file(scratch.path());
        let mut all = vec![
            "--disable-agent".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--https-listen-port={port}"),
            format!(
                "--write-kubeconfig={}",
                scratch.path().join("kubeconfig").display()
            ),
            format!("--kube-apiserver-arg=token-auth-file={}", tokens.display()),
        ];
        all.extend(options.iter().map(|option| (*option).to_owned()));
        let data = scratch.path().join("d");
        std::fs::create_dir_all(&data).unwrap();
        let environment = prepare(&data);
        let sampan = Sampan::start_with("server", scratch.path(), None, &all, &environment);
        Self {
            sampan,
            url: format!("https://127.0.0.1:{port}"),
            options: all,
            environment,
            scratch,
        }
    }

    /// The same server on the same data again, after it has ended.
    pub fn start_again(&mut self) {
        self.sampan = Sampan::start_with(
            "server",
            self.scratch.path(),
            None,
            &self.options,
            &self.environment,
        );
    }

    pub fn wait_ready(&self) {
        eventually("the API server is ready", Duration::from_secs(30), || {
            attempt(&mut self.sampan.kubectl("get --raw /readyz"))
        });
    }

    pub fn ca(&self) -> Vec<u8> {
        std::fs::read(self.sampan.data_dir.join("server/tls/server-ca.crt")).unwrap()
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

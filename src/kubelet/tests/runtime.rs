//! The runtime side of a node and its server for real: needs root, containerd and runc, so it runs only when asked for:
//! `cargo test -p sampan-kubelet --test runtime -- --ignored`.

#![allow(clippy::unwrap_used)]

use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use sampan_cri::import::{Bundle, oci};
use sampan_cri::runtime::v1::*;
use sampan_kubelet::cgroup::{Cgroups, Resources};
use sampan_kubelet::inotify::FileWatcher;
use sampan_kubelet::lookup::{ContainerRef, Lookup, LookupError, SandboxRef};
use sampan_kubelet::machine::MachineInfo;
use sampan_kubelet::runtime::images::ImageFolder;
use sampan_kubelet::runtime::{self, RuntimeHandle, RuntimeSettings};
use sampan_kubelet::server::{self, Access, ServerState};
use sampan_net::client::upgraded;
use sampan_net::{
    CertificateChecker, ClientConfig, ClientTls, HttpClient, ServerIdentity, TcpDialer, Trust,
    empty,
};
use sampan_pki::{Authority, Identity, LeafSpec};
use sampan_util::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A data directory that ends with the test.
struct Node {
    dir: PathBuf,
    settings: RuntimeSettings,
    watcher: FileWatcher,
}

impl Node {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("sk-{name}-{}", std::process::id()));
        let agent = dir.join("agent");
        let settings =
            RuntimeSettings::new(agent.clone(), agent.join("cni/bin"), agent.join("cni/conf"));
        let watcher = FileWatcher::new().unwrap();
        Self {
            dir,
            settings,
            watcher,
        }
    }

    async fn start(&self, shutdown: &Shutdown) -> RuntimeHandle {
        runtime::start(&self.settings, &self.watcher, shutdown)
            .await
            .unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.settings.containerd_dir().join("containerd.log");
            eprintln!("{}", std::fs::read_to_string(log).unwrap_or_default());
        }
        // What a failed test leaves: its containers, and the shims above them.
        if let Ok(cgroups) = Cgroups::detect(&self.settings.agent_dir) {
            drop(cgroups.remove_all());
        }
        end_shims(&self.settings.state_dir());
        unmount_all(&self.settings.state_dir());
        drop(std::fs::remove_dir_all(self.settings.state_dir()));
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn unmount_all(state: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    for target in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(target).starts_with(state) {
            let flags = rustix::mount::UnmountFlags::DETACH;
            let _unmounted = rustix::mount::unmount(target, flags);
        }
    }
}

fn end_shims(state: &Path) {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let pid = entry.file_name().into_string().unwrap().parse().ok();
        let is_ours =
            command.contains("containerd-shim") && command.contains(state.to_str().unwrap());
        if let (true, Some(pid)) = (is_ours, pid.and_then(rustix::process::Pid::from_raw)) {
            let _killed = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// An image with the host's busybox and the libraries it needs.
fn busybox(name: &str) -> Bundle {
    let mut tar = tar_member("bin/busybox", &std::fs::read("/bin/busybox").unwrap());
    for library in libraries("/bin/busybox") {
        let bytes = std::fs::read(&library).unwrap();
        tar.extend(tar_member(library.trim_start_matches('/'), &bytes));
    }
    tar.resize(tar.len() + 1024, 0);
    let layer = bytes::Bytes::from(tar);
    let config = serde_json::json!({
        "architecture": oci::host_architecture(), "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [oci::digest(&layer)]},
    });
    Bundle::from_memory(name, layer, &config)
}

fn libraries(program: &str) -> Vec<String> {
    let output = std::process::Command::new("ldd").arg(program).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let words = text.split_whitespace();
    words
        .filter(|w| w.starts_with('/'))
        .map(str::to_owned)
        .collect()
}

fn tar_member(name: &str, body: &[u8]) -> Vec<u8> {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000755");
    block[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
    block[156] = b'0';
    block[257..263].copy_from_slice(b"ustar\0");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut out = block.to_vec();
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn sandbox_config(name: &str, logs: &Path, cgroup: String) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        log_directory: logs.display().to_string(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup,
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(NamespaceOption {
                    network: NamespaceMode::Node as i32,
                    pid: NamespaceMode::Container as i32,
                    ..NamespaceOption::default()
                }),
                ..LinuxSandboxSecurityContext::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}

async fn run_container(
    runtime: &Runtime,
    sandbox: &str,
    config: &PodSandboxConfig,
    image: &str,
    script: &str,
) -> String {
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "main".to_owned(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: image.to_owned(),
            ..ImageSpec::default()
        }),
        command: ["/bin/busybox", "sh", "-c", script]
            .map(str::to_owned)
            .to_vec(),
        labels: config.labels.clone(),
        log_path: "main/0.log".to_owned(),
        linux: Some(LinuxContainerConfig::default()),
        ..ContainerConfig::default()
    };
    let created = runtime
        .create_container(CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(container),
            sandbox_config: Some(config.clone()),
        })
        .await
        .unwrap();
    runtime
        .start_container(StartContainerRequest {
            container_id: created.container_id.clone(),
        })
        .await
        .unwrap();
    created.container_id
}

use sampan_cri::Runtime;

async fn exec(runtime: &Runtime, container: &str, command: &[&str]) -> String {
    let reply = runtime
        .exec_sync(ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout: 10,
        })
        .await
        .unwrap();
    String::from_utf8(reply.stdout.to_vec()).unwrap()
}

async fn run_sandbox(runtime: &Runtime, config: &PodSandboxConfig) -> String {
    runtime
        .run_pod_sandbox(RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        })
        .await
        .unwrap()
        .pod_sandbox_id
}

async fn remove_sandbox(runtime: &Runtime, id: &str) {
    let pod_sandbox_id = id.to_owned();
    runtime
        .stop_pod_sandbox(StopPodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
        })
        .await
        .unwrap();
    runtime
        .remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id })
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn containers_survive_the_restart_and_the_death_of_containerd() {
    let node = Node::new("live");
    let shutdown = Shutdown::new();
    let mut first = node.start(&shutdown).await;
    let image = "example.com/busybox:test";
    first.importer().import(&busybox(image)).await.unwrap();
    let logs = node.dir.join("logs");
    std::fs::create_dir_all(logs.join("main")).unwrap();
    let cgroups = Cgroups::detect(&node.settings.agent_dir).unwrap();
    cgroups.prepare_node(&Resources::default()).unwrap();
    let limits = Resources {
        cpu_shares: Some(100),
        memory_limit: Some(64 << 20),
        ..Resources::default()
    };
    cgroups.apply_pod("Burstable", "live", &limits).unwrap();
    let config = sandbox_config("live", &logs, cgroups.pod_path("Burstable", "live"));
    let sandbox = run_sandbox(&first.runtime(), &config).await;
    let script = "trap 'exit 0' TERM; echo started; while :; do /bin/busybox sleep 1; done";
    let container = run_container(&first.runtime(), &sandbox, &config, image, script).await;
    let before = exec(
        &first.runtime(),
        &container,
        &["/bin/busybox", "echo", "one"],
    )
    .await;
    assert_eq!(before, "one\n");
    let usage = cgroups.pod_usage("Burstable", "live");
    assert!(usage.working_set_bytes.unwrap() > 0 && usage.processes.unwrap() >= 2);
    assert_eq!(usage.memory_limit_bytes, Some(64 << 20));
    let class = cgroups.class_path("Burstable");
    let shares = Path::new("/sys/fs/cgroup/cpu").join(class.trim_start_matches('/'));
    if let Ok(shares) = std::fs::read_to_string(shares.join("cpu.shares")) {
        assert_eq!(shares, "100\n");
    }
    let known = cgroups.pods();
    assert!(known.contains(&("Burstable", "live".to_owned())));

    shutdown.trigger();
    first.ended().await;
    let shutdown = Shutdown::new();
    let mut second = node.start(&shutdown).await;
    let after = exec(
        &second.runtime(),
        &container,
        &["/bin/busybox", "echo", "two"],
    )
    .await;
    assert_eq!(after, "two\n");

    let pid_file = node.settings.containerd_dir().join("containerd.pid");
    let pid: i32 = std::fs::read_to_string(pid_file).unwrap().parse().unwrap();
    let mut up = second.up();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    up.wait_for(Result::is_err).await.unwrap();
    up.wait_for(Result::is_ok).await.unwrap();
    let after = exec(
        &second.runtime(),
        &container,
        &["/bin/busybox", "echo", "three"],
    )
    .await;
    assert_eq!(after, "three\n");

    remove_sandbox(&second.runtime(), &sandbox).await;
    cgroups.remove_pod("Burstable", "live").unwrap();
    assert!(cgroups.pods().is_empty());
    cgroups.remove_all().unwrap();
    shutdown.trigger();
    second.ended().await;
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn archives_are_imported_when_they_appear_and_only_once() {
    let node = Node::new("arch");
    let shutdown = Shutdown::new();
    let mut handle = node.start(&shutdown).await;
    let folder = |handle: &RuntimeHandle| {
        ImageFolder::new(
            node.settings.images_dir(),
            &node.settings.containerd_dir(),
            (handle.importer(), node.watcher.clone()),
            tokio::sync::watch::Sender::new(None),
        )
    };
    let running = tokio::spawn(folder(&handle).run(shutdown.clone()));
    let image = "example.com/archived:1";
    std::fs::create_dir_all(node.settings.images_dir()).unwrap();
    let archive = docker_archive(&busybox(image), image);
    let mut file = std::fs::File::create(node.settings.images_dir().join("a.tar")).unwrap();
    for part in archive.chunks(archive.len() / 20 + 1) {
        std::io::Write::write_all(&mut file, part).unwrap();
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(
            !handle
                .importer()
                .has_all(&[image.to_owned()])
                .await
                .unwrap()
        );
    }
    drop(file);
    let mut attempts = 0;
    let names = [image.to_owned()];
    while !handle.importer().has_all(&names).await.unwrap() {
        attempts += 1;
        assert!(attempts < 100, "never imported");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    shutdown.trigger();
    running.await.unwrap().unwrap();
    handle.ended().await;

    let shutdown = Shutdown::new();
    let mut handle = node.start(&shutdown).await;
    let mut again = folder(&handle);
    assert!(again.pinned().contains(image));
    again.import_new().await.unwrap();
    let status = handle
        .images()
        .image_status(ImageStatusRequest {
            image: Some(ImageSpec {
                image: image.to_owned(),
                ..ImageSpec::default()
            }),
            verbose: false,
        })
        .await
        .unwrap();
    assert_eq!(status.image.unwrap().repo_tags, [image]);
    shutdown.trigger();
    handle.ended().await;
}

/// The bundle as `docker save` would write it.
fn docker_archive(bundle: &Bundle, name: &str) -> Vec<u8> {
    let manifest = &bundle.images[0].manifest;
    let blob = |digest: &str| bundle.blobs[digest].read_all(1 << 30).unwrap();
    let index = serde_json::json!([
        {"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]},
    ]);
    let mut tar = tar_member("manifest.json", index.to_string().as_bytes());
    tar.extend(tar_member("config.json", &blob(&manifest.config.digest)));
    tar.extend(tar_member("layer.tar", &blob(&manifest.layers[0].digest)));
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// One pod with one container, as the workers would publish it.
struct OnePod {
    pod: Arc<Pod>,
    sandbox_id: String,
    container_id: String,
    log_path: PathBuf,
}

impl OnePod {
    fn container_ref(&self) -> ContainerRef {
        ContainerRef {
            pod: Arc::clone(&self.pod),
            sandbox_id: self.sandbox_id.clone(),
            container_id: self.container_id.clone(),
            running: true,
            log_path: self.log_path.clone(),
            tty: false,
            stdin: false,
        }
    }
}

impl Lookup for OnePod {
    fn pods(&self) -> Vec<Arc<Pod>> {
        vec![Arc::clone(&self.pod)]
    }

    fn sandbox(&self, _: &str, _: &str, _: Option<&str>) -> Result<SandboxRef, LookupError> {
        Ok(SandboxRef {
            pod: Arc::clone(&self.pod),
            sandbox_id: self.sandbox_id.clone(),
        })
    }

    fn container(
        &self,
        _: &str,
        _: &str,
        _: Option<&str>,
        _: &str,
    ) -> Result<ContainerRef, LookupError> {
        Ok(self.container_ref())
    }

    fn log(&self, _: &str, _: &str, _: &str, _: bool) -> Result<ContainerRef, LookupError> {
        Ok(self.container_ref())
    }
}

/// A server over `lookup`, and clients for it.
struct Served {
    authority: Authority,
    address: std::net::SocketAddr,
}

impl Served {
    async fn start(
        node: &Node,
        handle: &RuntimeHandle,
        lookup: OnePod,
        shutdown: &Shutdown,
    ) -> Self {
        let now = SystemTime::now();
        let authority = Authority::create("ca", now).unwrap();
        let spec = LeafSpec::server("node", vec![], vec!["127.0.0.1".parse().unwrap()]);
        let identity = ServerIdentity::new(&authority.issue(&spec, now).unwrap()).unwrap();
        let checker = CertificateChecker::new(authority.certificate_pem()).unwrap();
        let client = sampan_client::testing::FakeServer::new().client();
        let state = ServerState {
            node_name: "node".to_owned(),
            lookup: Arc::new(lookup),
            runtime: handle.runtime(),
            images: handle.images(),
            watcher: node.watcher.clone(),
            access: Access::new("node", client, checker),
            cgroups: Cgroups::detect(&node.settings.agent_dir).ok(),
            machine: MachineInfo::read(),
            data_dir: node.dir.clone(),
            config: serde_json::json!({"kind": "KubeletConfiguration"}),
            metrics: Vec::new(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server::serve(listener, identity, state, shutdown.clone()));
        Self { authority, address }
    }

    fn client(&self, groups: Option<&[&str]>) -> HttpClient {
        let identity = |groups: &[&str]| -> Identity {
            let spec = LeafSpec::client("tester", groups);
            self.authority.issue(&spec, SystemTime::now()).unwrap()
        };
        HttpClient::new(&ClientConfig {
            tls: ClientTls {
                trust: Trust::Authorities(self.authority.certificate_pem().to_owned()),
                identity: groups.map(identity),
            },
            dialer: Arc::new(TcpDialer),
            http2: false,
        })
        .unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let client = self.client(Some(&["system:masters"]));
        let request = http::Request::get(self.url(path)).body(empty()).unwrap();
        let answer = client.send(request).await.unwrap();
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    fn websocket(&self, path: &str, protocol: &str) -> http::Request<sampan_net::Body> {
        http::Request::get(self.url(path))
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("Sec-WebSocket-Protocol", protocol)
            .body(empty())
            .unwrap()
    }
}

/// A masked binary frame, as clients send them.
fn frame(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x82, 0x80 | payload.len() as u8, 0, 0, 0, 0];
    out.extend_from_slice(payload);
    out
}

/// The next frame's payload; `None` at the end.
async fn next_frame(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<Vec<u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.ok()?;
    if head[0] & 0x0f == 8 {
        return None;
    }
    let length = match head[1] {
        126 => stream.read_u16().await.ok()?,
        short => u16::from(short),
    };
    let mut payload = vec![0; length.into()];
    stream.read_exact(&mut payload).await.ok()?;
    Some(payload)
}

#[tokio::test]
#[ignore = "needs root and containerd"]
async fn server_shows_logs_runs_commands_and_counts() {
    let node = Node::new("serve");
    let shutdown = Shutdown::new();
    let mut handle = node.start(&shutdown).await;
    let image = "example.com/busybox:test";
    handle.importer().import(&busybox(image)).await.unwrap();
    let logs = node.dir.join("logs");
    std::fs::create_dir_all(logs.join("main")).unwrap();
    let cgroups = Cgroups::detect(&node.settings.agent_dir).unwrap();
    cgroups.prepare_node(&Resources::default()).unwrap();
    let path = cgroups.pod_path("BestEffort", "uid-serve");
    let mut config = sandbox_config("serve", &logs, path);
    let labels = [
        ("io.kubernetes.pod.uid", "uid-serve"),
        ("io.kubernetes.container.name", "main"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    config.labels = labels.clone().into();
    let sandbox_id = run_sandbox(&handle.runtime(), &config).await;
    let script = "echo one; echo two >&2; trap 'echo bye; exit 0' TERM; while :; do /bin/busybox sleep 0.2; done";
    let container_id = run_container(&handle.runtime(), &sandbox_id, &config, image, script).await;
    let pod = serde_json::json!({
        "metadata": {"name": "serve", "namespace": "default", "uid": "uid-serve"},
        "spec": {"containers": [{"name": "main", "image": image}]},
        "status": {"phase": "Running"},
    });
    let lookup = OnePod {
        pod: Arc::new(serde_json::from_value(pod).unwrap()),
        sandbox_id: sandbox_id.clone(),
        container_id: container_id.clone(),
        log_path: logs.join("main/0.log"),
    };
    let served = Served::start(&node, &handle, lookup, &shutdown).await;

    // Who may.
    let anonymous = http::Request::get(served.url("/pods"))
        .body(empty())
        .unwrap();
    let answer = served.client(None).send(anonymous).await.unwrap();
    assert_eq!(answer.status(), 401);
    assert_eq!(served.get("/healthz").await, (200, "ok".to_owned()));

    // A command with input and an exit code.
    let client = served.client(Some(&["system:masters"]));
    let command =
        "command=/bin/busybox&command=sh&command=-c&command=read%20x;echo%20got%20$x;exit%203";
    let path = format!("/exec/default/serve/main?input=1&output=1&error=1&{command}");
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let request = served.websocket(&path, protocol);
        let answer = client.send_upgradable(request).await.unwrap();
        assert_eq!(answer.status(), 101, "{protocol}");
        let mut stream = upgraded(answer).await.unwrap();
        stream.write_all(&frame(b"\0hello\n")).await.unwrap();
        let mut output = String::new();
        let mut status = String::new();
        while let Some(payload) = next_frame(&mut stream).await {
            match payload.split_first() {
                Some((1, rest)) => output.push_str(std::str::from_utf8(rest).unwrap()),
                Some((3, rest)) => status.push_str(std::str::from_utf8(rest).unwrap()),
                _ => {}
            }
        }
        assert_eq!(output, "got hello\n", "{protocol}");
        assert!(
            status.contains("NonZeroExitCode") && status.contains("\"3\""),
            "{protocol}: {status}"
        );
    }

    // A protocol that nobody knows is refused, so that clients take SPDY.
    let request = served.websocket(&path, "v6.channel.k8s.io");
    let answer = client.send_upgradable(request).await.unwrap();
    assert_ne!(answer.status(), 101);

    // SPDY is agreed upon with the runtime, not with us.
    let request = http::Request::post(served.url(&path))
        .header("Connection", "Upgrade")
        .header("Upgrade", "SPDY/3.1")
        .header("X-Stream-Protocol-Version", "v5.channel.k8s.io")
        .header("X-Stream-Protocol-Version", "v4.channel.k8s.io")
        .body(empty())
        .unwrap();
    let answer = client.send_upgradable(request).await.unwrap();
    assert_eq!(answer.status(), 101);
    assert_eq!(
        answer.headers()["X-Stream-Protocol-Version"],
        "v4.channel.k8s.io"
    );
    drop(answer);

    // A port of the pod (which has the node's network).
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let greeted = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).await.unwrap();
        stream.write_all(b"pong").await.unwrap();
        word
    });
    let forward = format!("/portForward/default/serve?port={port}");
    let request = served.websocket(&forward, "v4.channel.k8s.io");
    let answer = client.send_upgradable(request).await.unwrap();
    assert_eq!(answer.status(), 101);
    let mut stream = upgraded(answer).await.unwrap();
    stream.write_all(&frame(b"\0ping")).await.unwrap();
    assert_eq!(&greeted.await.unwrap(), b"ping");
    loop {
        let payload = next_frame(&mut stream).await.unwrap();
        if payload == b"\0pong" {
            break;
        }
        assert_eq!(payload[1..], port.to_le_bytes());
    }
    drop(stream);

    // Figures.
    let (_, summary) = served.get("/stats/summary").await;
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["pods"][0]["podRef"]["uid"], "uid-serve");
    let used = |what: &serde_json::Value| what["memory"]["workingSetBytes"].as_u64();
    assert!(used(&summary["pods"][0]) > Some(0) && used(&summary["node"]) > Some(0));
    assert!(
        used(&summary["pods"][0]["containers"][0]) > Some(0),
        "{summary}"
    );
    assert!(summary["node"]["runtime"]["imageFs"]["capacityBytes"].as_u64() > Some(0));
    for path in ["/metrics", "/metrics/cadvisor", "/metrics/resource"] {
        let (code, text) = served.get(path).await;
        assert_eq!(code, 200, "{path}");
        assert!(path == "/metrics" || text.contains("container_cpu_usage_seconds_total{"));
    }

    // Logs: what was, and what comes until the end.
    let (_, tail) = served
        .get("/containerLogs/default/serve/main?tailLines=1")
        .await;
    assert!(tail == "one\n" || tail == "two\n");
    let (code, missing) = served.get("/containerLogs/default/serve/other").await;
    assert_eq!(
        (code, missing.as_str()),
        (404, "container \"other\" not found in pod \"serve\"")
    );
    let following = served.get("/containerLogs/default/serve/main?follow=true&stream=Stdout");
    let stop = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let request = StopContainerRequest {
            container_id: container_id.clone(),
            timeout: 5,
        };
        handle.runtime().stop_container(request).await.unwrap();
    };
    let deadline = Duration::from_secs(20);
    let both = futures_util::future::join(following, stop);
    let ((_, followed), ()) = tokio::time::timeout(deadline, both).await.unwrap();
    assert_eq!(followed, "one\nbye\n");

    remove_sandbox(&handle.runtime(), &sandbox_id).await;
    cgroups.remove_all().unwrap();
    shutdown.trigger();
    handle.ended().await;
}

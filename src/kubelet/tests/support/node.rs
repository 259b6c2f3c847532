//! A node for tests: a real containerd, a kubelet, and an API server in memory.

#![allow(clippy::unwrap_used, dead_code)]

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use sampan_client::testing::FakeServer;
use sampan_client::{Client, Informers};
use sampan_cri::import::{Bundle, oci};
use sampan_kubelet::cgroup::Cgroups;
use sampan_kubelet::inotify::FileWatcher;
use sampan_kubelet::runtime::{self, RuntimeHandle, RuntimeSettings};
use sampan_kubelet::{Kubelet, Lookup, Parts, Settings};
use sampan_util::Shutdown;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

pub const IMAGE: &str = "example.com/busybox:test";
pub const NODE: &str = "node-1";
pub const NODE_IP: &str = "10.99.0.1";

/// Gives pods addresses of 10.99.0.0/24 by a veth pair each.
const NETWORK_PLUGIN: &str = r#"#!/bin/sh
cat > /dev/null
case "$CNI_COMMAND" in
ADD)
  n=$(cat "$0.count" 2>/dev/null || echo 1); n=$((n + 1)); echo $n > "$0.count"
  exec 2>>"$0.log" 3>&1 1>&2
  ip link add "v$n" type veth peer name "p$n"
  nsenter --net="$CNI_NETNS" sleep 5 & holder=$!
  while [ "$(readlink /proc/$holder/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  ip link set "p$n" netns $holder
  kill $holder
  nsenter --net="$CNI_NETNS" sh -c "ip link set p$n name eth0; ip addr add 10.99.0.$n/32 dev eth0
    ip link set eth0 up; ip link set lo up
    ip route add 10.99.0.1 dev eth0; ip route add default via 10.99.0.1 dev eth0"
  ip link set "v$n" up
  ip route replace "10.99.0.$n" dev "v$n"
  echo "{\"cniVersion\":\"0.4.0\",\"interfaces\":[{\"name\":\"eth0\",\"sandbox\":\"$CNI_NETNS\"}],\"ips\":[{\"version\":\"4\",\"interface\":0,\"address\":\"10.99.0.$n/32\"}]}" >&3 ;;
DEL) [ -e "$CNI_NETNS" ] && nsenter --net="$CNI_NETNS" ip link del eth0 2>/dev/null; exit 0 ;;
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}' ;;
esac
"#;
const LOOPBACK_PLUGIN: &str = "#!/bin/sh\ncat > /dev/null\necho '{\"cniVersion\":\"0.4.0\"}'\n";
const NETWORK: &str = r#"{"cniVersion":"0.4.0","name":"test","plugins":[{"type":"testnet"}]}"#;

pub struct Node {
    pub dir: PathBuf,
    pub settings: RuntimeSettings,
    pub server: FakeServer,
    pub client: Client,
    watcher: FileWatcher,
}

/// A running kubelet above a running containerd.
pub struct Agent {
    pub runtime: RuntimeHandle,
    pub lookup: Arc<dyn Lookup>,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<()>,
}

impl Agent {
    pub async fn stop(mut self) {
        self.shutdown.trigger();
        self.task.await.unwrap();
        self.runtime.ended().await;
    }
}

impl Node {
    pub async fn new(name: &str) -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _again = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .try_init();
        let dir = std::env::temp_dir().join(format!("skp-{name}-{}", std::process::id()));
        let agent = dir.join("agent");
        let (bin, conf) = (agent.join("cni/bin"), agent.join("cni/conf"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&conf).unwrap();
        script(&bin.join("testnet"), NETWORK_PLUGIN);
        script(&bin.join("loopback"), LOOPBACK_PLUGIN);
        std::fs::write(conf.join("10-test.conflist"), NETWORK).unwrap();
        let server = FakeServer::new();
        let client = server.client();
        for name in ["default", "kube-node-lease"] {
            let namespace = serde_json::json!({"metadata": {"name": name}});
            let namespace: Namespace = serde_json::from_value(namespace).unwrap();
            client.create(&namespace).await.unwrap();
        }
        let _up = std::process::Command::new("sh")
            .args(["-c", "ip link set lo up; ip addr add 10.99.0.1/32 dev lo"])
            .status();
        Self {
            settings: RuntimeSettings::new(agent, bin, conf),
            watcher: FileWatcher::new().unwrap(),
            dir,
            client,
            server,
        }
    }

    pub async fn start(&self) -> Agent {
        let shutdown = Shutdown::new();
        let runtime = runtime::start(&self.settings, &self.watcher, &shutdown)
            .await
            .unwrap();
        runtime.importer().import(&busybox(IMAGE)).await.unwrap();
        let settings = Settings {
            node_ips: vec![NODE_IP.parse().unwrap()],
            cluster_dns: vec!["10.43.0.10".parse().unwrap()],
            ..Settings::new(NODE, self.settings.agent_dir.clone())
        };
        let parts = Parts {
            client: self.client.clone(),
            informers: Informers::new(self.client.clone(), shutdown.clone()),
            channel: runtime.channel.clone(),
            runtime_up: runtime.up(),
            cgroups: Cgroups::detect(&self.settings.agent_dir).ok(),
            journal: None,
            nudge: Arc::new(Notify::new()),
            watcher: self.watcher.clone(),
        };
        let kubelet = Kubelet::new(settings, parts);
        let lookup = kubelet.lookup();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { kubelet.run(stop).await.unwrap() });
        Agent {
            runtime,
            lookup,
            shutdown,
            task,
        }
    }

    /// Creates a pod bound to the node, with what the API server's defaults would add.
    pub async fn create(&self, name: &str, spec: Value) -> Pod {
        self.client.create(&pod(name, spec)).await.unwrap()
    }

    pub async fn get(&self, name: &str) -> Option<Pod> {
        self.client.get(Some("default"), name).await.ok()
    }

    /// Waits until the pod satisfies the condition.
    pub async fn until(&self, name: &str, what: &str, condition: impl Fn(&Pod) -> bool) -> Pod {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let pod = self.get(name).await;
            if let Some(pod) = pod.as_ref().filter(|p| condition(p)) {
                return pod.clone();
            }
            if Instant::now() > deadline {
                let status = serde_json::to_string_pretty(&pod.and_then(|p| p.status));
                panic!(
                    "{name} never was {what}: {}\nevents: {:#?}",
                    status.unwrap(),
                    self.events()
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_ready(&self, name: &str) -> Pod {
        self.until(name, "ready", is_ready).await
    }

    pub async fn until_phase(&self, name: &str, phase: &str) -> Pod {
        self.until(name, phase, |pod| phase_of(pod) == phase).await
    }

    pub async fn until_gone(&self, name: &str) {
        let deadline = Instant::now() + Duration::from_secs(40);
        while self.get(name).await.is_some() {
            assert!(
                Instant::now() < deadline,
                "{name} is still there: {:#?}",
                self.get(name).await
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn delete(&self, name: &str, grace: i64) {
        let options = sampan_client::DeleteOptions::default().grace_period(grace);
        let deleted = self.client.delete::<Pod>(Some("default"), name, &options);
        deleted.await.unwrap();
    }

    /// `reason: message` of all events.
    pub fn events(&self) -> Vec<String> {
        let events = self.server.all::<Event>();
        events
            .into_iter()
            .map(|e| {
                format!(
                    "{}: {}",
                    e.reason.unwrap_or_default(),
                    e.message.unwrap_or_default()
                )
            })
            .collect()
    }

    pub async fn until_event(&self, start: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.events().iter().any(|e| e.starts_with(start)) {
            assert!(
                Instant::now() < deadline,
                "no event {start}: {:#?}",
                self.events()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs a command in a pod's container and answers what it printed.
    pub async fn exec(
        &self,
        agent: &Agent,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> String {
        let found = agent
            .lookup
            .container("default", pod, None, container)
            .unwrap();
        let request = sampan_cri::runtime::v1::ExecSyncRequest {
            container_id: found.container_id,
            cmd: command.iter().map(|w| (*w).to_owned()).collect(),
            timeout: 10,
        };
        let reply = agent.runtime.runtime().exec_sync(request).await.unwrap();
        let text = [reply.stdout, reply.stderr].concat();
        String::from_utf8(text).unwrap()
    }
}

/// A pod as it would come out of the API server.
pub fn pod(name: &str, mut spec: Value) -> Pod {
    let object = spec.as_object_mut().unwrap();
    let default = |object: &mut serde_json::Map<String, Value>, key: &str, value: Value| {
        object.entry(key.to_owned()).or_insert(value);
    };
    default(object, "nodeName", NODE.into());
    default(object, "restartPolicy", "Always".into());
    default(object, "dnsPolicy", "ClusterFirst".into());
    default(object, "terminationGracePeriodSeconds", 30.into());
    default(object, "enableServiceLinks", true.into());
    default(object, "securityContext", serde_json::json!({}));
    for list in ["containers", "initContainers"] {
        let containers = object.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let container = container.as_object_mut().unwrap();
            default(container, "image", IMAGE.into());
            default(container, "imagePullPolicy", "IfNotPresent".into());
            default(
                container,
                "terminationMessagePath",
                "/dev/termination-log".into(),
            );
            default(container, "terminationMessagePolicy", "File".into());
        }
    }
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name},
            "creationTimestamp": Timestamp::now().to_string()},
        "spec": spec,
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

/// A shell script as a container's command.
pub fn sh(text: &str) -> Value {
    serde_json::json!(["/bin/busybox", "sh", "-c", text])
}

pub fn phase_of(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .unwrap_or_default()
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

pub fn container_status(pod: &Pod, index: usize) -> Value {
    let status = pod.status.as_ref().unwrap();
    let rows = status.container_statuses.as_ref().unwrap();
    serde_json::to_value(&rows[index]).unwrap()
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("KEEP").is_some() {
            eprintln!("kept {}", self.dir.display());
            return;
        }
        if let Ok(cgroups) = Cgroups::detect(&self.settings.agent_dir) {
            drop(cgroups.remove_all());
        }
        let state = self.settings.state_dir();
        end_shims(&state);
        unmount_all(&[&state, &self.dir]);
        drop(std::fs::remove_dir_all(&state));
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn unmount_all(places: &[&Path]) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let targets: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    for target in targets.into_iter().rev() {
        if places.iter().any(|p| Path::new(target).starts_with(p)) {
            let flags = rustix::mount::UnmountFlags::DETACH;
            let _busy = rustix::mount::unmount(target, flags);
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
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// An image with the host's busybox and the libraries it needs.
pub fn busybox(name: &str) -> Bundle {
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

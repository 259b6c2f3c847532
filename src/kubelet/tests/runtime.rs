//! The runtime side of a node for real: needs root, containerd and runc, so it runs only when asked for:
//! `cargo test -p sampan-kubelet --test runtime -- --ignored`.

#![allow(clippy::unwrap_used)]

use sampan_cri::import::{Bundle, oci};
use sampan_cri::runtime::v1::*;
use sampan_kubelet::cgroup::{Cgroups, Resources};
use sampan_kubelet::inotify::FileWatcher;
use sampan_kubelet::runtime::images::ImageFolder;
use sampan_kubelet::runtime::{self, RuntimeHandle, RuntimeSettings};
use sampan_util::Shutdown;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
        drop(std::fs::remove_dir_all(self.settings.state_dir()));
        drop(std::fs::remove_dir_all(&self.dir));
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
    up.wait_for(|up| !up).await.unwrap();
    up.wait_for(|up| *up).await.unwrap();
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
            handle.importer(),
            node.watcher.clone(),
        )
    };
    let running = tokio::spawn(folder(&handle).run(shutdown.clone()));
    let image = "example.com/archived:1";
    std::fs::create_dir_all(node.settings.images_dir()).unwrap();
    let archive = docker_archive(&busybox(image), image);
    std::fs::write(node.settings.images_dir().join("a.tar"), archive).unwrap();
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

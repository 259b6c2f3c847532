//! What the runtime itself needs for a Pod: the three bare CRI calls, one Pod after another and many at once.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::try_join_all;
use sampan_cri::Runtime;
use sampan_cri::runtime::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, PodSandboxConfig,
    PodSandboxMetadata, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest,
    StopPodSandboxRequest,
};

use crate::arguments::Arguments;
use crate::stats::Durations;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let single: usize = arguments.value("single", 5)?;
    let batch: usize = arguments.value("batch", 30)?;
    let image = arguments.text("image").unwrap_or("sampan.io/pause:1");
    let socket = arguments
        .text("runtime")
        .context("runtime=SOCKET of the node's containerd is missing")?;
    Arguments::runtime()?.block_on(async {
        let runtime = Runtime::new(sampan_cri::connect(Path::new(socket)).await?);
        let mut all = Vec::new();
        for number in 0..single {
            all.push(start(&runtime, image, &format!("single-{number}"), 1).await?);
        }
        println!("bare CRI calls, single: {}", Durations::new(all).line());
        let time = start(&runtime, image, "batch", batch).await?;
        println!(
            "bare CRI calls, batch of {batch}: {:.2} s",
            time.as_secs_f64()
        );
        Ok(())
    })
}

/// The time until all containers run; they are removed afterwards.
async fn start(
    runtime: &Runtime,
    image: &str,
    name: &str,
    count: usize,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let one = async |number: usize| -> anyhow::Result<String> {
        let sandbox = sandbox_config(&format!("{name}-{number}"));
        let request = RunPodSandboxRequest {
            config: Some(sandbox.clone()),
            ..RunPodSandboxRequest::default()
        };
        let id = runtime.run_pod_sandbox(request).await?.pod_sandbox_id;
        let request = CreateContainerRequest {
            pod_sandbox_id: id.clone(),
            config: Some(container_config(image)),
            sandbox_config: Some(sandbox),
        };
        let container_id = runtime.create_container(request).await?.container_id;
        let request = StartContainerRequest { container_id };
        runtime.start_container(request).await?;
        Ok(id)
    };
    let sandboxes = try_join_all((0..count).map(one)).await?;
    let time = started.elapsed();
    for pod_sandbox_id in sandboxes {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
        };
        runtime.stop_pod_sandbox(request).await?;
        let request = RemovePodSandboxRequest { pod_sandbox_id };
        runtime.remove_pod_sandbox(request).await?;
    }
    Ok(time)
}

fn sandbox_config(name: &str) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("floor-{name}"),
            namespace: "floor".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: std::env::temp_dir().display().to_string(),
        linux: Some(sampan_cri::runtime::v1::LinuxPodSandboxConfig::default()),
        ..PodSandboxConfig::default()
    }
}

fn container_config(image: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "main".to_owned(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: image.to_owned(),
            ..ImageSpec::default()
        }),
        linux: Some(sampan_cri::runtime::v1::LinuxContainerConfig::default()),
        ..ContainerConfig::default()
    }
}

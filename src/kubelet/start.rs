//! Starting containers, one after another. Upstream counterpart: `startContainer` of `kuberuntime`.

use crate::config::{self, container, sandbox, security::Profiles};
use crate::context::Context;
use crate::dirs::PodDirs;
use crate::env::{Environment, Sources, environment};
use crate::events::container_reference;
use crate::hooks;
use crate::images::FoundImage;
use crate::mounts;
use crate::objects::Held;
use crate::pod::{self, ContainerKind};
use crate::state::{PodRuntime, Sandbox};
use crate::volumes::MountedVolumes;
use crate::worker::disk::Disk;
use crate::{hosts, resolv, text};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use sampan_cri::runtime::v1::{
    CreateContainerRequest, Mount, PodSandboxConfig, StartContainerRequest, StopContainerRequest,
};
use std::sync::Arc;
use tokio::time::Duration;

/// Why a container did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    pub message: String,
}

/// What the sequence tells while it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The container exists and its process runs; its hook may still be busy.
    Running(Box<Running>),
    Started(String),
    Failed(String, Failure),
}

/// A run that has begun, and what it was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    pub id: String,
    pub resources: ResourceRequirements,
}

/// A sequence of containers to start in one sandbox.
pub struct Sequence {
    pub context: Arc<Context>,
    pub pod: Arc<Pod>,
    pub dirs: PodDirs,
    pub sandbox: Sandbox,
    pub runtime: PodRuntime,
    pub volumes: MountedVolumes,
    pub held: Arc<Held>,
    pub disk: Arc<Disk>,
    pub names: Vec<String>,
}

impl Sequence {
    /// Starts all; a plain init container that fails ends the sequence.
    pub async fn run(self, report: impl Fn(Progress)) {
        let attempt = self.sandbox.attempt;
        let config = match sandbox_config(&self.context, &self.pod, &self.dirs, attempt) {
            Ok(config) => config,
            Err(message) => {
                for name in &self.names {
                    let failure = config_failure(message.clone());
                    report(Progress::Failed(name.clone(), failure));
                }
                return;
            }
        };
        for name in &self.names {
            let Some((kind, container)) = pod::find_container(&self.pod, name) else {
                continue;
            };
            match self.start(&container, &config, &report).await {
                Ok(()) => report(Progress::Started(name.clone())),
                Err(failure) => {
                    report(Progress::Failed(name.clone(), failure));
                    if kind == ContainerKind::Init && !pod::is_sidecar(&container) {
                        return;
                    }
                }
            }
        }
    }

    fn note(&self, container: &Container, warning: bool, reason: &str, message: String) {
        let about = container_reference(&self.pod, &container.name);
        self.context
            .recorder
            .record(about, warning, reason, message);
    }

    fn failed(&self, container: &Container, failure: Failure) -> Failure {
        self.note(
            container,
            true,
            "Failed",
            format!("Error: {}", failure.message),
        );
        failure
    }

    async fn start(
        &self,
        container: &Container,
        sandbox: &PodSandboxConfig,
        report: &impl Fn(Progress),
    ) -> Result<(), Failure> {
        let puller = &self.context.puller;
        let image = puller.ensure(&self.pod, container, sandbox).await;
        let image = image.map_err(|missing| {
            self.note(
                container,
                true,
                "Failed",
                format!("Error: {}", missing.reason),
            );
            Failure {
                reason: missing.reason.to_owned(),
                message: missing.message,
            }
        })?;
        let config = self
            .configure(container, image)
            .await
            .map_err(|message| self.failed(container, config_failure(message)))?;
        let id = self.create(container, config, sandbox).await?;
        self.note(container, false, "Created", "Container created".to_owned());
        let request = StartContainerRequest {
            container_id: id.clone(),
        };
        if let Err(error) = self.context.runtime.start_container(request).await {
            let message = text::message(&error).replace(&id, &container.name);
            let reason = "RunContainerError".to_owned();
            return Err(self.failed(container, Failure { reason, message }));
        }
        self.note(container, false, "Started", "Container started".to_owned());
        report(Progress::Running(Box::new(Running {
            id: id.clone(),
            resources: container.resources.clone().unwrap_or_default(),
        })));
        self.after_start(container, &id).await
    }

    async fn create(
        &self,
        container: &Container,
        config: sampan_cri::runtime::v1::ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String, Failure> {
        let request = CreateContainerRequest {
            pod_sandbox_id: self.sandbox.id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox.clone()),
        };
        match self.context.runtime.create_container(request).await {
            Ok(reply) => Ok(reply.container_id),
            Err(error) => {
                let reason = "CreateContainerError".to_owned();
                let message = text::message(&error);
                Err(self.failed(container, Failure { reason, message }))
            }
        }
    }

    async fn configure(
        &self,
        container: &Container,
        image: FoundImage,
    ) -> Result<sampan_cri::runtime::v1::ContainerConfig, String> {
        let context = &self.context;
        // A static pod may be what the API server runs in: it does not wait for it.
        if !pod::is_static(&self.pod) {
            context.services.synced().await;
        }
        let services = context.services.list(None);
        let around = context.around(self.pod_ips());
        let environment = environment(&Sources {
            pod: &self.pod,
            container,
            objects: &*self.held,
            services: &services,
            around: &around,
        })?;
        let mounts = self.mounts(container, &environment).await?;
        let restart_count = self.restart_count(container);
        let seccomp_dir = context.dirs.seccomp.to_string_lossy();
        container::render(container::Inputs {
            pod: &self.pod,
            container,
            restart_count,
            image_ref: image.id,
            image_user: image.user,
            environment: &environment,
            mounts,
            target: self.target(container)?,
            profiles: Profiles {
                seccomp_dir: &seccomp_dir,
            },
            node_memory: context.node_memory,
            cgroup_files: context.container_files(),
        })
    }

    fn pod_ips(&self) -> &[String] {
        if pod::is_host_network(&self.pod) {
            &self.context.around.host_ips
        } else {
            &self.sandbox.ips
        }
    }

    async fn mounts(
        &self,
        container: &Container,
        environment: &Environment,
    ) -> Result<Vec<Mount>, String> {
        let (pod, container) = (Arc::clone(&self.pod), container.clone());
        let (dirs, volumes) = (self.dirs.clone(), self.volumes.clone());
        let (environment, pod_ips) = (environment.clone(), self.pod_ips().to_vec());
        let cluster_domain = self.context.names.cluster_domain.clone();
        self.disk
            .run(move || {
                let logs = dirs.container_logs(&container.name);
                std::fs::create_dir_all(&logs).map_err(|error| {
                    format!(
                        "create container log directory for container {} failed: {error}",
                        container.name
                    )
                })?;
                mounts::prepare(&mounts::Inputs {
                    pod: &pod,
                    container: &container,
                    dirs: &dirs,
                    volumes: &volumes,
                    environment: &environment,
                    pod_ips: &pod_ips,
                    cluster_domain: &cluster_domain,
                })
            })
            .await
            .unwrap_or_else(|| Err("the pod is being stopped".to_owned()))
    }

    /// One more than the last run, or than the newest log of a run the runtime has forgotten.
    fn restart_count(&self, container: &Container) -> u32 {
        if let Some(latest) = self.runtime.latest(&container.name) {
            return latest.restart_count + 1;
        }
        let logs = self.dirs.container_logs(&container.name);
        let Ok(entries) = std::fs::read_dir(logs) else {
            return 0;
        };
        let runs = entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            let (count, rest) = name.to_str()?.split_once('.')?;
            rest.starts_with("log").then_some(())?;
            count.parse::<u32>().ok()
        });
        runs.max().map_or(0, |last| last + 1)
    }

    /// The container whose processes an ephemeral one wants to see.
    fn target(&self, container: &Container) -> Result<Option<String>, String> {
        let spec = pod::spec(&self.pod);
        let mut ephemeral = spec.ephemeral_containers.iter().flatten();
        let target = ephemeral
            .find(|e| e.name == container.name)
            .and_then(|e| e.target_container_name.as_deref())
            .filter(|name| !name.is_empty());
        let Some(target) = target else {
            return Ok(None);
        };
        match self.runtime.latest(target) {
            Some(instance) => Ok(Some(instance.id.clone())),
            None => Err(format!("unable to find target container {target}")),
        }
    }

    async fn after_start(&self, container: &Container, id: &str) -> Result<(), Failure> {
        let hook = container
            .lifecycle
            .as_ref()
            .and_then(|l| l.post_start.as_ref());
        let Some(hook) = hook else {
            return Ok(());
        };
        let pod_ip = self.pod_ips().first().cloned().unwrap_or_default();
        let done = hooks::run(&self.context.handlers, hook, container, id, &pod_ip).await;
        let Err(message) = done else {
            return Ok(());
        };
        tracing::info!(pod = %pod::describe(&self.pod), container = %container.name, %message, "a postStart hook failed");
        let words = "PostStartHook failed".to_owned();
        self.note(container, true, "FailedPostStartHook", words);
        self.note(
            container,
            false,
            "Killing",
            "FailedPostStartHook".to_owned(),
        );
        let grace = crate::plan::termination_grace(&self.pod);
        let stop = stop_container(&self.context, id, grace).await;
        if let Err(error) = stop {
            tracing::warn!(%error, container = %container.name, "a container whose hook failed cannot be stopped");
        }
        Err(Failure {
            reason: "PostStartHookError".to_owned(),
            message,
        })
    }
}

fn config_failure(message: String) -> Failure {
    Failure {
        reason: "CreateContainerConfigError".to_owned(),
        message,
    }
}

/// Asks the container to end, and ends it after `grace` seconds.
pub async fn stop_container(
    context: &Context,
    id: &str,
    grace: i64,
) -> Result<(), sampan_cri::Error> {
    /// Time for the runtime to clean up after a kill.
    const SLACK: Duration = Duration::from_secs(120);
    let request = StopContainerRequest {
        container_id: id.to_owned(),
        timeout: grace,
    };
    let wait = Duration::from_secs(u64::try_from(grace).unwrap_or_default()) + SLACK;
    match tokio::time::timeout(wait, context.runtime.stop_container(request)).await {
        Ok(Err(error)) if !error.is_not_found() => Err(error),
        // Too long: the next look at the runtime decides what to do.
        _ => Ok(()),
    }
}

/// The configuration of the pod's sandbox, which goes with most calls about it.
pub fn sandbox_config(
    context: &Context,
    pod: &Pod,
    dirs: &PodDirs,
    attempt: u32,
) -> Result<PodSandboxConfig, String> {
    let (resolv, warnings) = resolv::for_pod(pod, &context.names);
    for warning in warnings {
        context.recorder.warning(pod, "DNSConfigForming", warning);
    }
    let hostname = if pod::is_host_network(pod) {
        String::new()
    } else {
        hosts::kernel_hostname(pod, &context.names.cluster_domain)?
    };
    let class = crate::qos::class(pod);
    let cgroups = context.cgroups.as_ref();
    Ok(config::sandbox::render(sandbox::Inputs {
        pod,
        attempt,
        resolv,
        hostname,
        log_directory: dirs.logs.to_string_lossy().into_owned(),
        cgroup_parent: cgroups
            .map(|c| c.pod_path(class, pod::uid(pod)))
            .unwrap_or_default(),
    }))
}

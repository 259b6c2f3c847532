//! The actions of a plan as futures. Each ends with what the worker has to know; a failed one
//! waits out its back-off before it ends, so that it is not asked for again at once.

use crate::cgroup;
use crate::config;
use crate::context::Context;
use crate::dirs::PodDirs;
use crate::events::container_reference;
use crate::objects::Held;
use crate::pod;
use crate::qos;
use crate::start::{sandbox_config, stop_container};
use crate::state::PodRuntime;
use crate::text;
use crate::volumes::token::Tokens;
use crate::volumes::{self, MountedVolumes, resolve};
use crate::worker::disk::Disk;
use crate::{hooks, plan};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use sampan_client::{DeleteOptions, Patch};
use sampan_cri::Error;
use sampan_cri::runtime::v1::{
    RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StopPodSandboxRequest,
    UpdateContainerResourcesRequest,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const RETRY: sampan_util::Backoff =
    sampan_util::Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Volumes that stand, and what failed.
#[derive(Debug, Default)]
pub struct MountOutcome {
    pub volumes: MountedVolumes,
    pub tokens: Tokens,
    pub renew_at: Option<Timestamp>,
    pub is_complete: bool,
}

/// What containers were given, and what went wrong.
#[derive(Debug, Default)]
pub struct ResizeOutcome {
    pub given: Vec<(String, ResourceRequirements)>,
    pub error: Option<String>,
}

#[derive(Debug)]
pub enum Done {
    Mounted(Box<MountOutcome>),
    SandboxCreated(Result<(), ()>),
    /// The sequence that was to start these containers has ended.
    Started(Vec<String>),
    Killed(String),
    Resized(Box<ResizeOutcome>),
    SandboxStopped(String),
    Removed(String),
    Released(bool),
    Deleted(bool),
    Purged(bool),
    Reported(Option<Box<Pod>>),
}

/// What every job of a pod needs.
#[derive(Clone)]
pub struct Scope {
    pub context: Arc<Context>,
    pub pod: Arc<Pod>,
    pub dirs: PodDirs,
    pub disk: Arc<Disk>,
}

async fn pause(failures: u32) {
    tokio::time::sleep(RETRY.delay(failures)).await;
}

impl Scope {
    fn warn(&self, reason: &str, message: String) {
        self.context.recorder.warning(&*self.pod, reason, message);
    }

    /// Sets up all volumes, or brings their content up to date.
    pub async fn mount(self, held: Arc<Held>, mut tokens: Tokens, pod_ips: Vec<String>) -> Done {
        held.synced().await;
        let around = self.context.around(&pod_ips);
        let resolved = resolve::resolve_all(
            &resolve::Sources {
                pod: &self.pod,
                objects: &*held,
                around: &around,
                client: &self.context.client,
            },
            &mut tokens,
        )
        .await;
        let group = resolve::fs_group(&self.pod);
        let dirs = self.dirs.clone();
        let work = resolved.work;
        let applied = self.disk.run(move || {
            let (mut mounted, mut failed) = (MountedVolumes::new(), Vec::new());
            for (name, work) in &work {
                match volumes::apply(&dirs, name, work, group) {
                    Ok(volume) => {
                        mounted.insert(name.clone(), volume);
                    }
                    Err(error) => failed.push((name.clone(), error.to_string())),
                }
            }
            (mounted, failed)
        });
        let (mounted, more) = applied.await.unwrap_or_default();
        let failed: Vec<(String, String)> = resolved.failed.into_iter().chain(more).collect();
        for (name, problem) in &failed {
            let message = format!("MountVolume.SetUp failed for volume {name:?} : {problem}");
            self.warn("FailedMount", message);
        }
        Done::Mounted(Box::new(MountOutcome {
            volumes: mounted,
            tokens,
            renew_at: resolved.renew_at,
            is_complete: failed.is_empty(),
        }))
    }

    pub async fn create_sandbox(
        self,
        attempt: u32,
        replaces: Option<String>,
        failures: u32,
    ) -> Done {
        match self.try_create_sandbox(attempt, replaces).await {
            Ok(()) => Done::SandboxCreated(Ok(())),
            Err(problem) => {
                let message = format!("Failed to create pod sandbox: {problem}");
                self.warn("FailedCreatePodSandBox", message);
                pause(failures).await;
                Done::SandboxCreated(Err(()))
            }
        }
    }

    async fn try_create_sandbox(
        &self,
        attempt: u32,
        replaces: Option<String>,
    ) -> Result<(), String> {
        if let Some(old) = replaces {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.context
                .recorder
                .normal(&*self.pod, "SandboxChanged", message);
            // Its network may still be set up although its process is gone.
            self.stop_sandbox_now(&old)
                .await
                .map_err(|e| text::grpc(&e))?;
        }
        self.prepare_cgroup().await?;
        let logs = self.dirs.logs.clone();
        let made = self.disk.run(move || std::fs::create_dir_all(logs));
        match made.await {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(format!("cannot create the log directory: {error}")),
            None => return Err("the pod is being stopped".to_owned()),
        }
        let config = sandbox_config(&self.context, &self.pod, &self.dirs, attempt)?;
        let request = RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: self.runtime_handler().await?,
        };
        let reply = self.context.runtime.run_pod_sandbox(request).await;
        reply.map(|_| ()).map_err(|error| text::grpc(&error))
    }

    async fn prepare_cgroup(&self) -> Result<(), String> {
        let Some(cgroups) = self.context.cgroups.clone() else {
            return Ok(());
        };
        let pod = Arc::clone(&self.pod);
        let made = self.disk.run(move || {
            let resources = cgroup::pod_resources(&pod);
            cgroups.apply_pod(qos::class(&pod), pod::uid(&pod), &resources)
        });
        match made.await {
            Some(Err(error)) => Err(format!("unable to ensure pod container exists: {error}")),
            _ => Ok(()),
        }
    }

    async fn runtime_handler(&self) -> Result<String, String> {
        use k8s_openapi::api::node::v1::RuntimeClass;
        let class = pod::spec(&self.pod).runtime_class_name.as_deref();
        let Some(name) = class.filter(|c| !c.is_empty()) else {
            return Ok(String::new());
        };
        let class: RuntimeClass = self.context.client.get(None, name).await.map_err(|error| {
            format!("failed to get sandbox runtime: RuntimeClass {name:?}: {error}")
        })?;
        Ok(class.handler)
    }

    /// Runs the hook, if the container has one and there is time, then stops it.
    pub async fn kill(
        self,
        id: String,
        name: String,
        message: String,
        grace: i64,
        with_hook: bool,
    ) -> Done {
        let about = container_reference(&self.pod, &name);
        self.context
            .recorder
            .record(about.clone(), false, "Killing", message);
        let mut left = grace;
        let mut least = i64::from(grace > 0).max(1);
        if grace <= 0 {
            least = plan::MINIMUM_GRACE;
        }
        let container = pod::find_container(&self.pod, &name).map(|(_, c)| c.into_owned());
        let hook = container
            .as_ref()
            .filter(|_| with_hook && grace > 0)
            .and_then(|c| c.lifecycle.as_ref())
            .and_then(|l| l.pre_stop.clone());
        if let (Some(container), Some(hook)) = (&container, hook) {
            let started = Instant::now();
            let pod_ip = self.pod_ip();
            let run = hooks::run(&self.context.handlers, &hook, container, &id, &pod_ip);
            let limit = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
            if let Ok(Err(problem)) = tokio::time::timeout(limit, run).await {
                tracing::info!(pod = %pod::describe(&self.pod), container = %name, %problem, "a preStop hook failed");
                let words = "PreStopHook failed".to_owned();
                self.context
                    .recorder
                    .record(about, true, "FailedPreStopHook", words);
            }
            left -= i64::try_from(started.elapsed().as_secs()).unwrap_or(i64::MAX);
            least = plan::MINIMUM_GRACE;
        }
        if let Err(error) = stop_container(&self.context, &id, left.max(least)).await {
            let message = format!("error killing pod: {}", text::grpc(&error));
            self.warn("FailedKillPod", message);
            pause(1).await;
        }
        Done::Killed(id)
    }

    fn pod_ip(&self) -> String {
        let status = self.pod.status.as_ref();
        status.and_then(|s| s.pod_ip.clone()).unwrap_or_default()
    }

    async fn stop_sandbox_now(&self, id: &str) -> Result<(), Error> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        match self.context.runtime.stop_pod_sandbox(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    pub async fn stop_sandbox(self, id: String) -> Done {
        if let Err(error) = self.stop_sandbox_now(&id).await {
            self.warn(
                "FailedKillPod",
                format!("error killing pod: {}", text::grpc(&error)),
            );
            pause(1).await;
        }
        Done::SandboxStopped(id)
    }

    async fn remove_container_now(&self, id: &str) -> Result<(), Error> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        match self.context.runtime.remove_container(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes one run with its log.
    pub async fn remove_container(self, id: String, name: String, restart_count: u32) -> Done {
        if let Err(error) = self.remove_container_now(&id).await {
            tracing::debug!(%error, "a container cannot be removed");
            pause(1).await;
        } else {
            let log = crate::config::container::log_path(&name, restart_count);
            let log = self.dirs.logs.join(log);
            let parts = crate::log_rotation::put_aside(&log).unwrap_or_default();
            for part in parts.iter().chain([&log]) {
                // A log that is not there needs no removing.
                let _gone = tokio::fs::remove_file(part).await;
            }
        }
        Done::Removed(id)
    }

    async fn remove_sandbox_now(&self, id: &str) -> Result<(), Error> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        match self.context.runtime.remove_pod_sandbox(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    pub async fn remove_sandbox(self, id: String) -> Done {
        if let Err(error) = self.remove_sandbox_now(&id).await {
            tracing::debug!(%error, "a sandbox cannot be removed");
            pause(1).await;
        }
        Done::Removed(id)
    }

    /// Gives running containers what they ask for, within a pod cgroup that holds it.
    pub async fn resize(self, runs: Vec<(String, String)>, failures: u32) -> Done {
        self.note_resize("ResizeStarted", "Pod resize started", "");
        // Growing needs the pod's bounds to grow first, shrinking needs them to shrink last.
        let _grown = self.prepare_cgroup().await;
        let mut outcome = ResizeOutcome::default();
        for (id, name) in runs {
            match self.resize_container(&id, &name).await {
                Ok(resources) => outcome.given.push((id, resources)),
                Err(error) => outcome.error = Some(error),
            }
        }
        if let Err(error) = self.prepare_cgroup().await {
            outcome.error.get_or_insert(error);
        }
        match &outcome.error {
            None => self.note_resize("ResizeCompleted", "Pod resize completed", ""),
            Some(error) => {
                self.note_resize("ResizeError", "Pod resize error", error);
                pause(failures).await;
            }
        }
        Done::Resized(Box::new(outcome))
    }

    async fn resize_container(&self, id: &str, name: &str) -> Result<ResourceRequirements, String> {
        let Some((_, container)) = pod::find_container(&self.pod, name) else {
            return Err(format!("container {name} not found"));
        };
        let node_memory = self.context.node_memory;
        let files = self.context.container_files();
        let resources = config::container::resources(&self.pod, &container, node_memory, files);
        let request = UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..UpdateContainerResourcesRequest::default()
        };
        let updated = self.context.runtime.update_container_resources(request);
        updated.await.map_err(|error| text::grpc(&error))?;
        Ok(container.resources.clone().unwrap_or_default())
    }

    fn note_resize(&self, reason: &str, words: &str, error: &str) {
        let spec = pod::spec(&self.pod);
        let rows = |containers: &[Container]| -> Vec<Value> {
            let row = |c: &Container| json!({"name": c.name, "resources": c.resources});
            containers.iter().map(row).collect()
        };
        let mut summary = json!({"containers": rows(&spec.containers),
            "generation": self.pod.metadata.generation});
        if let Some(init) = &spec.init_containers {
            summary["initContainers"] = Value::Array(rows(init));
        }
        if !error.is_empty() {
            summary["error"] = error.into();
        }
        let message = format!("{words}: {summary}");
        let recorder = &self.context.recorder;
        if error.is_empty() {
            recorder.normal(&*self.pod, reason, message);
        } else {
            recorder.warning(&*self.pod, reason, message);
        }
    }

    /// Takes down mounts and cgroup once nothing runs any more.
    pub async fn release(self, failures: u32) -> Done {
        let dirs = self.dirs.clone();
        let cgroups = self.context.cgroups.clone();
        let (class, uid) = (qos::class(&self.pod), pod::uid(&self.pod).to_owned());
        let released = self.disk.release(move || -> Result<(), String> {
            volumes::release(&dirs).map_err(|e| e.to_string())?;
            match cgroups {
                Some(cgroups) => cgroups.remove_pod(class, &uid).map_err(|e| e.to_string()),
                None => Ok(()),
            }
        });
        match released.await {
            Some(Ok(())) => Done::Released(true),
            other => {
                if let Some(Err(problem)) = other {
                    tracing::warn!(pod = %pod::describe(&self.pod), %problem, "a pod's files cannot be released");
                }
                pause(failures).await;
                Done::Released(false)
            }
        }
    }

    /// Deletes the object for good, unless it is another one by now.
    pub async fn delete(self, failures: u32) -> Done {
        let options = DeleteOptions::uid(pod::uid(&self.pod)).grace_period(0);
        let (namespace, name) = (pod::namespace(&self.pod), pod::name(&self.pod));
        let client = &self.context.client;
        match client.delete::<Pod>(Some(namespace), name, &options).await {
            Ok(()) => Done::Deleted(true),
            Err(error) if error.is_not_found() || error.is_conflict() => Done::Deleted(true),
            Err(error) => {
                tracing::warn!(pod = %pod::describe(&self.pod), %error, "a pod cannot be deleted");
                pause(failures).await;
                Done::Deleted(false)
            }
        }
    }

    /// Removes everything that is left of a pod whose object is gone.
    pub async fn purge(self, runtime: PodRuntime, failures: u32) -> Done {
        match self.try_purge(runtime).await {
            Ok(()) => Done::Purged(true),
            Err(problem) => {
                tracing::warn!(pod = %pod::describe(&self.pod), %problem, "a pod cannot be cleaned up");
                pause(failures).await;
                Done::Purged(false)
            }
        }
    }

    async fn try_purge(&self, runtime: PodRuntime) -> Result<(), String> {
        for instance in &runtime.instances {
            self.remove_container_now(&instance.id)
                .await
                .map_err(|e| text::grpc(&e))?;
        }
        for sandbox in &runtime.sandboxes {
            self.stop_sandbox_now(&sandbox.id)
                .await
                .map_err(|e| text::grpc(&e))?;
            self.remove_sandbox_now(&sandbox.id)
                .await
                .map_err(|e| text::grpc(&e))?;
        }
        let (root, logs) = (self.dirs.root.clone(), self.dirs.logs.clone());
        let removed = tokio::task::spawn_blocking(move || {
            volumes::remove(&root)?;
            volumes::remove(&logs)
        });
        match removed.await {
            Ok(result) => result.map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes the status; answers the pod as the server has it now.
    pub async fn report(self, patch: Value, failures: u32) -> Done {
        let (namespace, name) = (pod::namespace(&self.pod), pod::name(&self.pod));
        let client = &self.context.client;
        let patch = Patch::Strategic(patch);
        let reply = client.patch_status::<Pod>(Some(namespace), name, &patch);
        match reply.await {
            Ok(pod) => Done::Reported(Some(Box::new(pod))),
            Err(error) => {
                if !error.is_not_found() {
                    tracing::warn!(pod = %pod::describe(&self.pod), %error, "a pod's status cannot be written");
                }
                pause(failures).await;
                Done::Reported(None)
            }
        }
    }
}

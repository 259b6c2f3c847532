//! The configuration of a container. Upstream counterpart: `generateContainerConfig`.

use super::labels;
use super::security::{self, ImageUser, Profiles};
use crate::env::Environment;
use crate::expand::expand_all;
use crate::pod;
use crate::qos::{amount, oom_score_adjust};
use k8s_openapi::api::core::v1::{Container, Pod};
use sampan_api::quantity::Quantity;
use sampan_cri::runtime::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, Mount, Signal,
};
use std::collections::HashMap;

const CFS_PERIOD_MICROS: i64 = 100_000;
const MIN_QUOTA_MICROS: i64 = 1000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;

pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub restart_count: u32,
    pub image_ref: String,
    pub image_user: ImageUser,
    pub environment: &'a Environment,
    pub mounts: Vec<Mount>,
    /// The container whose processes an ephemeral one is to see.
    pub target: Option<String>,
    pub profiles: Profiles<'a>,
    pub node_memory: i64,
    /// Files of its cgroup (version 2) beside the limits.
    pub cgroup_files: HashMap<String, String>,
}

pub fn render(inputs: Inputs<'_>) -> Result<ContainerConfig, String> {
    let (pod, container) = (inputs.pod, inputs.container);
    let environment = inputs.environment;
    let expanded = |list: &Option<Vec<String>>| {
        expand_all(list.iter().flatten(), |name| environment.get(name))
    };
    let security_context = security::container_context(
        pod,
        container,
        &inputs.image_user,
        inputs.target.as_deref(),
        &inputs.profiles,
    )?;
    let asked_image = container.image.clone().unwrap_or_default();
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt: inputs.restart_count,
        }),
        image: Some(ImageSpec {
            image: inputs.image_ref,
            user_specified_image: asked_image,
            ..ImageSpec::default()
        }),
        command: expanded(&container.command)?,
        args: expanded(&container.args)?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment
            .iter()
            .map(|(key, value)| KeyValue {
                key: key.to_owned(),
                value: value.as_bytes().to_vec().into(),
            })
            .collect(),
        mounts: inputs.mounts,
        labels: labels::container_labels(pod, container),
        annotations: labels::container_annotations(pod, container, inputs.restart_count),
        log_path: log_path(&container.name, inputs.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources(
                pod,
                container,
                inputs.node_memory,
                inputs.cgroup_files,
            )),
            security_context: Some(security_context),
        }),
        stop_signal: stop_signal(container),
        ..ContainerConfig::default()
    })
}

/// The log of one run, below the pod's log directory.
pub fn log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

fn stop_signal(container: &Container) -> i32 {
    container
        .lifecycle
        .as_ref()
        .and_then(|l| l.stop_signal.as_deref())
        .and_then(Signal::from_str_name)
        .unwrap_or(Signal::RuntimeDefault) as i32
}

/// Limits and weights of a container.
pub fn resources(
    pod: &Pod,
    container: &Container,
    node_memory: i64,
    cgroup_files: HashMap<String, String>,
) -> LinuxContainerResources {
    let own = container.resources.clone().unwrap_or_default();
    let shared = pod::spec(pod).resources.clone().unwrap_or_default();
    let limit = |name: &str| {
        let limit = amount(own.limits.as_ref(), name);
        if limit.is_zero() {
            amount(shared.limits.as_ref(), name)
        } else {
            limit
        }
    };
    let (cpu_limit, memory_limit) = (limit("cpu"), limit("memory"));
    let requests_cpu = own.requests.as_ref().is_some_and(|r| r.contains_key("cpu"));
    let weight = if requests_cpu {
        amount(own.requests.as_ref(), "cpu")
    } else {
        cpu_limit
    };
    LinuxContainerResources {
        cpu_period: if cpu_limit.is_zero() {
            0
        } else {
            CFS_PERIOD_MICROS
        },
        cpu_quota: cpu_quota(cpu_limit),
        cpu_shares: cpu_shares(weight),
        memory_limit_in_bytes: memory_limit.value(),
        oom_score_adj: oom_score_adjust(pod, container, node_memory),
        unified: cgroup_files,
        ..LinuxContainerResources::default()
    }
}

fn cpu_quota(limit: Quantity) -> i64 {
    match limit.milli_value() {
        0 => 0,
        milli => (milli * CFS_PERIOD_MICROS / 1000).max(MIN_QUOTA_MICROS),
    }
}

fn cpu_shares(request: Quantity) -> i64 {
    (request.milli_value() * SHARES_PER_CPU / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::{Value, json};

    fn of(value: Value) -> LinuxContainerResources {
        let pod = pod_of(json!({"containers": [{"name": "a", "resources": value}]}));
        resources(
            &pod,
            &pod::spec(&pod).containers[0],
            1 << 30,
            HashMap::new(),
        )
    }

    #[test]
    fn limits_become_quota_shares_and_bytes() {
        let limited = of(json!({"limits": {"cpu": "500m", "memory": "64Mi"}}));
        assert_eq!((limited.cpu_period, limited.cpu_quota), (100_000, 50_000));
        assert_eq!(limited.cpu_shares, 512);
        assert_eq!(limited.memory_limit_in_bytes, 64 << 20);
        let free = of(json!({}));
        assert_eq!(
            (free.cpu_period, free.cpu_quota, free.cpu_shares),
            (0, 0, 2)
        );
        let tiny = of(json!({"limits": {"cpu": "5m"}, "requests": {"cpu": "0"}}));
        assert_eq!((tiny.cpu_quota, tiny.cpu_shares), (1000, 2));
    }

    #[test]
    fn commands_see_the_environment() {
        let pod =
            pod_of(json!({"containers": [{"name": "a", "image": "x", "args": ["$(A)", "$(B)"]}]}));
        let container = &pod::spec(&pod).containers[0];
        let sources = crate::env::Sources {
            pod: &pod,
            container: &serde_json::from_value(
                json!({"name": "a", "env": [{"name": "A", "value": "1"}]}),
            )
            .unwrap(),
            objects: &crate::env::NoObjects,
            services: &[],
            around: &crate::fields::Surroundings::default(),
        };
        let environment = crate::env::environment(&sources).unwrap();
        let config = render(Inputs {
            pod: &pod,
            container,
            restart_count: 3,
            image_ref: "sha256:1".into(),
            image_user: ImageUser::default(),
            environment: &environment,
            mounts: Vec::new(),
            target: None,
            profiles: Profiles { seccomp_dir: "/s" },
            node_memory: 1 << 30,
            cgroup_files: HashMap::from([("memory.oom.group".to_owned(), "1".to_owned())]),
        })
        .unwrap();
        assert_eq!(config.args, ["1", "$(B)"]);
        assert_eq!(config.log_path, "a/3.log");
        let resources = config.linux.unwrap().resources.unwrap();
        assert_eq!(resources.unified["memory.oom.group"], "1");
        assert_eq!(config.annotations[labels::RESTART_COUNT], "3");
    }
}

//! The mounts of one container, made ready on the node's side.

use crate::dirs::PodDirs;
use crate::env::Environment;
use crate::expand::expand_strict;
use crate::hosts;
use crate::pod;
use crate::volumes::{MountedVolumes, subpath};
use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use sampan_cri::runtime::v1::{Mount, MountPropagation};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const HOSTS: &str = "/etc/hosts";

pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub dirs: &'a PodDirs,
    pub volumes: &'a MountedVolumes,
    pub environment: &'a Environment,
    pub pod_ips: &'a [String],
    pub cluster_domain: &'a str,
}

/// Prepares sub paths, the hosts file and the message file, and lists all mounts. Blocking.
pub fn prepare(inputs: &Inputs<'_>) -> Result<Vec<Mount>, String> {
    let mut mounts = Vec::new();
    let wanted = inputs.container.volume_mounts.as_deref();
    let wanted = wanted.unwrap_or_default();
    for (index, mount) in wanted.iter().enumerate() {
        mounts.push(volume_mount(inputs, index, mount)?);
    }
    let wants_hosts = !inputs.pod_ips.is_empty() || pod::is_host_network(inputs.pod);
    if wants_hosts && !wanted.iter().any(|m| m.mount_path == HOSTS) {
        mounts.push(hosts_mount(inputs)?);
    }
    mounts.extend(message_mount(inputs)?);
    Ok(mounts)
}

fn volume_mount(inputs: &Inputs<'_>, index: usize, mount: &VolumeMount) -> Result<Mount, String> {
    let name = &mount.name;
    let container = &inputs.container.name;
    let volume = inputs.volumes.get(name).ok_or_else(|| {
        format!("cannot find volume {name:?} to mount into container {container:?}")
    })?;
    let sub = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        Some(text) => expand_strict(text, |name| inputs.environment.get(name))?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    let mut source = volume.path.clone();
    if !sub.is_empty() {
        subpath::validate(&sub)?;
        let target = inputs.dirs.subpath(name, container, index);
        subpath::prepare(&volume.path, &sub, &target).map_err(|error| {
            tracing::warn!(%error, volume = %name, container = %container, "a sub path cannot be mounted");
            format!("failed to prepare subPath for volumeMount {name:?} of container {container:?}")
        })?;
        source = target;
    }
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    };
    let path = &mount.mount_path;
    Ok(Mount {
        container_path: if path.starts_with('/') {
            path.clone()
        } else {
            format!("/{path}")
        },
        host_path: source.to_string_lossy().into_owned(),
        readonly: mount.read_only == Some(true) || volume.read_only,
        propagation: propagation as i32,
        ..Mount::default()
    })
}

fn hosts_mount(inputs: &Inputs<'_>) -> Result<Mount, String> {
    let path = inputs.dirs.hosts();
    let text = if pod::is_host_network(inputs.pod) {
        let node = fs::read_to_string(HOSTS).map_err(|e| format!("cannot read {HOSTS}: {e}"))?;
        hosts::of_node(&node, inputs.pod)
    } else {
        let (hostname, domain) = hosts::hostname(inputs.pod, inputs.cluster_domain);
        hosts::managed(inputs.pod_ips, &hostname, domain.as_deref(), inputs.pod)
    };
    write_shared(&path, text.as_bytes(), 0o644)?;
    Ok(plain(HOSTS, &path))
}

/// A file that the container may write its last words to.
fn message_mount(inputs: &Inputs<'_>) -> Result<Option<Mount>, String> {
    let container = inputs.container;
    let Some(target) = container
        .termination_message_path
        .as_deref()
        .filter(|p| !p.is_empty())
    else {
        return Ok(None);
    };
    let run = format!("{:08x}", rand::random::<u32>());
    let path = inputs.dirs.message(&container.name, &run);
    write_shared(&path, b"", 0o666)?;
    Ok(Some(plain(target, &path)))
}

fn plain(target: &str, source: &Path) -> Mount {
    Mount {
        container_path: target.to_owned(),
        host_path: source.to_string_lossy().into_owned(),
        ..Mount::default()
    }
}

/// Writes in place: containers that have the file mounted see the new content.
fn write_shared(path: &PathBuf, content: &[u8], mode: u32) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::write(path, content).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)
}

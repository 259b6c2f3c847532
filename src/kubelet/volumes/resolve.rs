//! From a volume's source to the work it takes.

use super::payload::{self, File, Payload, Selection};
use super::token::Tokens;
use super::{Error, Work};
use crate::env::Objects;
use crate::fields::Surroundings;
use crate::pod;
use crate::qos::amount;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, ProjectedVolumeSource,
    Volume, VolumeProjection,
};
use sampan_client::Client;
use std::path::PathBuf;

/// What volumes are made from.
pub struct Sources<'a> {
    pub pod: &'a Pod,
    pub objects: &'a dyn Objects,
    pub around: &'a Surroundings,
    pub client: &'a Client,
}

#[derive(Debug, Default)]
pub struct Resolved {
    pub work: Vec<(String, Work)>,
    /// Volumes that cannot be set up, and why.
    pub failed: Vec<(String, String)>,
    /// When a token has to be renewed.
    pub renew_at: Option<Timestamp>,
}

/// Resolves all volumes that containers of the pod could use.
pub async fn resolve_all(sources: &Sources<'_>, tokens: &mut Tokens) -> Resolved {
    let mut result = Resolved::default();
    for volume in pod::spec(sources.pod).volumes.iter().flatten() {
        let name = volume.name.clone();
        match resolve(sources, volume, tokens, &mut result.renew_at).await {
            Ok(work) => result.work.push((name, work)),
            Err(error) => result.failed.push((name, error.to_string())),
        }
    }
    result
}

async fn resolve(
    sources: &Sources<'_>,
    volume: &Volume,
    tokens: &mut Tokens,
    renew_at: &mut Option<Timestamp>,
) -> Result<Work, Error> {
    if let Some(source) = &volume.empty_dir {
        return Ok(empty_dir(sources.pod, source));
    }
    if let Some(source) = &volume.host_path {
        return Ok(Work::HostPath {
            path: PathBuf::from(&source.path),
            kind: source.type_.clone().unwrap_or_default(),
        });
    }
    if let Some(source) = &volume.projected {
        return projected(sources, source, tokens, renew_at).await;
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let read_only = claim.read_only.unwrap_or(false);
        return claimed(sources, &claim.claim_name, read_only).await;
    }
    if volume.ephemeral.is_some() {
        let claim = format!("{}-{}", pod::name(sources.pod), volume.name);
        return claimed(sources, &claim, false).await;
    }
    files(sources, volume)
}

/// Volumes that show one object, or the pod itself.
fn files(sources: &Sources<'_>, volume: &Volume) -> Result<Work, Error> {
    if let Some(source) = &volume.config_map {
        let selection = Selection {
            name: &source.name,
            items: source.items.as_deref(),
            mode: payload::mode(source.default_mode),
            optional: source.optional == Some(true),
        };
        let map = sources.objects.config_map(&source.name);
        let payload = payload::config_map(map.as_deref(), &selection).map_err(Error::Source)?;
        return Ok(shown(payload, false, "kubernetes.io~configmap"));
    }
    if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let selection = Selection {
            name,
            items: source.items.as_deref(),
            mode: payload::mode(source.default_mode),
            optional: source.optional == Some(true),
        };
        let secret = sources.objects.secret(name);
        let payload = payload::secret(secret.as_deref(), &selection).map_err(Error::Source)?;
        return Ok(shown(payload, true, "kubernetes.io~secret"));
    }
    if let Some(source) = &volume.downward_api {
        let items = source.items.as_deref().unwrap_or_default();
        let mode = payload::mode(source.default_mode);
        let payload =
            payload::downward(sources.pod, items, mode, sources.around).map_err(Error::Source)?;
        return Ok(shown(payload, false, "kubernetes.io~downward-api"));
    }
    Err(Error::Source(
        "no volume plugin matched: this kind of volume is not supported on this node".to_owned(),
    ))
}

fn shown(payload: Payload, in_memory: bool, plugin: &'static str) -> Work {
    Work::Files {
        payload,
        in_memory,
        plugin,
    }
}

fn empty_dir(pod: &Pod, source: &EmptyDirVolumeSource) -> Work {
    let medium = source.medium.as_deref().unwrap_or_default();
    if medium != "Memory" {
        return Work::EmptyDir { memory: None };
    }
    let asked = source
        .size_limit
        .as_ref()
        .and_then(|q| q.0.parse::<sampan_api::quantity::Quantity>().ok())
        .map(|q| q.value())
        .filter(|bytes| *bytes > 0);
    let limits: Option<Vec<i64>> = pod::spec(pod)
        .containers
        .iter()
        .map(|c| c.resources.as_ref().and_then(|r| r.limits.as_ref()))
        .map(|limits| Some(amount(limits, "memory").value()).filter(|bytes| *bytes > 0))
        .collect();
    let whole = limits.map(|limits| limits.iter().sum::<i64>());
    Work::EmptyDir {
        memory: Some(match (asked, whole) {
            (Some(asked), Some(whole)) => Some(asked.min(whole)),
            (asked, whole) => asked.or(whole),
        }),
    }
}

/// The user that all containers share, who is to own tokens.
fn sole_user(pod: &Pod) -> Option<u32> {
    let shared = pod::spec(pod)
        .security_context
        .as_ref()
        .and_then(|s| s.run_as_user);
    let mut users = pod::containers(pod).map(|(_, c)| {
        let own = c.security_context.as_ref().and_then(|s| s.run_as_user);
        own.or(shared)
    });
    let first = users.next().flatten()?;
    let same = users.all(|user| user == Some(first));
    same.then(|| u32::try_from(first).ok()).flatten()
}

pub fn fs_group(pod: &Pod) -> Option<u32> {
    let context = pod::spec(pod).security_context.as_ref()?;
    context.fs_group.and_then(|g| u32::try_from(g).ok())
}

async fn projected(
    sources: &Sources<'_>,
    source: &ProjectedVolumeSource,
    tokens: &mut Tokens,
    renew_at: &mut Option<Timestamp>,
) -> Result<Work, Error> {
    let mode = payload::mode(source.default_mode);
    let mut payload = Payload::new();
    let mut problems = Vec::new();
    for projection in source.sources.iter().flatten() {
        if let Some(wanted) = &projection.service_account_token {
            let token = tokens.get(sources.client, sources.pod, wanted).await;
            match token {
                Ok(token) => {
                    let at = token.renew_at;
                    *renew_at = Some(renew_at.map_or(at, |earlier| earlier.min(at)));
                    let uid = sole_user(sources.pod);
                    let is_private = uid.is_some() || fs_group(sources.pod).is_some();
                    let mode = if is_private { 0o600 } else { mode };
                    let file = File {
                        data: token.text.into_bytes(),
                        mode,
                        uid,
                    };
                    payload.insert(wanted.path.clone(), file);
                }
                Err(error) => problems.push(format!("failed to fetch token: {error}")),
            }
            continue;
        }
        match projection_files(sources, projection, mode) {
            Ok(files) => payload.extend(files),
            Err(problem) => problems.push(problem),
        }
    }
    match problems.len() {
        0 => Ok(shown(payload, true, "kubernetes.io~projected")),
        1 => Err(Error::Source(problems.remove(0))),
        _ => Err(Error::Source(format!("[{}]", problems.join(", ")))),
    }
}

fn projection_files(
    sources: &Sources<'_>,
    projection: &VolumeProjection,
    mode: u32,
) -> Result<Payload, String> {
    if let Some(source) = &projection.config_map {
        let selection = Selection {
            name: &source.name,
            items: source.items.as_deref(),
            mode,
            optional: source.optional == Some(true),
        };
        let map = sources.objects.config_map(&source.name);
        return payload::config_map(map.as_deref(), &selection);
    }
    if let Some(source) = &projection.secret {
        let selection = Selection {
            name: &source.name,
            items: source.items.as_deref(),
            mode,
            optional: source.optional == Some(true),
        };
        let secret = sources.objects.secret(&source.name);
        return payload::secret(secret.as_deref(), &selection);
    }
    if let Some(source) = &projection.downward_api {
        let items = source.items.as_deref().unwrap_or_default();
        return payload::downward(sources.pod, items, mode, sources.around);
    }
    Err("this kind of projection is not supported on this node".to_owned())
}

/// A claim bound to a volume that is a directory of this node.
async fn claimed(sources: &Sources<'_>, claim: &str, read_only: bool) -> Result<Work, Error> {
    let namespace = pod::namespace(sources.pod);
    let failed = |what: String| Error::Source(what);
    let found: PersistentVolumeClaim = sources
        .client
        .get(Some(namespace), claim)
        .await
        .map_err(|e| failed(format!("error processing PVC {namespace}/{claim}: {e}")))?;
    let spec = found.spec.unwrap_or_default();
    let phase = found.status.and_then(|s| s.phase).unwrap_or_default();
    let Some(volume) = spec.volume_name.filter(|_| phase == "Bound") else {
        return Err(failed(format!(
            "error processing PVC {namespace}/{claim}: PVC is not bound"
        )));
    };
    let volume: PersistentVolume = sources
        .client
        .get(None, &volume)
        .await
        .map_err(|e| failed(format!("error processing PVC {namespace}/{claim}: {e}")))?;
    let source = volume.spec.unwrap_or_default();
    let path = source
        .local
        .map(|l| l.path)
        .or(source.host_path.map(|h| h.path));
    match path {
        Some(path) => Ok(Work::Existing {
            path: PathBuf::from(path),
            read_only,
        }),
        None => Err(failed(
            "no volume plugin matched: only local and hostPath volumes are supported on this node"
                .to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::json;

    #[test]
    fn memory_is_bounded_by_the_smaller_limit() {
        let pod = pod_of(
            json!({"containers": [{"name": "a", "resources": {"limits": {"memory": "64Mi"}}}]}),
        );
        let source = |limit: Option<&str>| EmptyDirVolumeSource {
            medium: Some("Memory".into()),
            size_limit: limit
                .map(|l| k8s_openapi::apimachinery::pkg::api::resource::Quantity(l.into())),
        };
        let bytes = |work: Work| match work {
            Work::EmptyDir { memory } => memory,
            _ => None,
        };
        assert_eq!(bytes(empty_dir(&pod, &source(None))), Some(Some(64 << 20)));
        assert_eq!(
            bytes(empty_dir(&pod, &source(Some("1Mi")))),
            Some(Some(1 << 20))
        );
        let free = pod_of(json!({"containers": [{"name": "a"}]}));
        assert_eq!(bytes(empty_dir(&free, &source(None))), Some(None));
    }

    #[test]
    fn one_user_for_all_containers_owns_tokens() {
        let same = pod_of(
            json!({"securityContext": {"runAsUser": 7}, "containers": [{"name": "a"}, {"name": "b"}]}),
        );
        assert_eq!(sole_user(&same), Some(7));
        let mixed = pod_of(json!({"securityContext": {"runAsUser": 7}, "containers": [
            {"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 8}}]}));
        assert_eq!(sole_user(&mixed), None);
    }
}

//! Security contexts: the container's own over the pod's, in the runtime's terms.

use super::namespaces;
use crate::pod;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, Pod, PodSecurityContext, SELinuxOptions,
    SeccompProfile, SecurityContext,
};
use sampan_cri::runtime::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, NamespaceMode, SeLinuxOption,
    SecurityProfile, SupplementalGroupsPolicy, security_profile::ProfileType,
};

const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The user that an image names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub name: String,
}

pub(crate) fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

pub(crate) fn pod_groups(context: &PodSecurityContext) -> Vec<i64> {
    let own = context.supplemental_groups.iter().flatten();
    context.fs_group.iter().chain(own).copied().collect()
}

pub(crate) fn groups_policy(context: &PodSecurityContext) -> i32 {
    match context.supplemental_groups_policy.as_deref() {
        Some("Strict") => SupplementalGroupsPolicy::Strict as i32,
        _ => SupplementalGroupsPolicy::Merge as i32,
    }
}

/// Where profiles of the node lie, below the kubelet's directory.
pub struct Profiles<'a> {
    pub seccomp_dir: &'a str,
}

/// The context of a container; `target` is the container whose processes a debugger is to see.
pub fn container_context(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    target: Option<&str>,
    profiles: &Profiles<'_>,
) -> Result<LinuxContainerSecurityContext, String> {
    let shared = pod::spec(pod).security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    verify_non_root(pod, container, &shared, &own, user)?;
    let value = |value: i64| Int64Value { value };
    let run_as_user = own.run_as_user.or(shared.run_as_user);
    let mut namespace_options = namespaces(pod);
    if let Some(target) = target
        && namespace_options.pid == NamespaceMode::Container as i32
    {
        namespace_options.pid = NamespaceMode::Target as i32;
        target.clone_into(&mut namespace_options.target_id);
    }
    let masks = own.proc_mount.as_deref() != Some("Unmasked");
    let paths = |list: &[&str]| list.iter().map(|p| (*p).to_owned()).collect();
    let apparmor = own.app_armor_profile.as_ref();
    let apparmor = apparmor.or(shared.app_armor_profile.as_ref());
    Ok(LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(capabilities),
        privileged: own.privileged.unwrap_or(false),
        namespace_options: Some(namespace_options),
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or(shared.se_linux_options.as_ref())
            .map(selinux),
        run_as_user: run_as_user.or(user.uid).map(value),
        run_as_username: match run_as_user {
            Some(_) => String::new(),
            None => user.name.clone(),
        },
        run_as_group: own.run_as_group.or(shared.run_as_group).map(value),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: pod_groups(&shared),
        supplemental_groups_policy: groups_policy(&shared),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: if masks { paths(&MASKED) } else { Vec::new() },
        readonly_paths: if masks { paths(&READ_ONLY) } else { Vec::new() },
        seccomp: Some(seccomp(&shared, &own, profiles)),
        apparmor: apparmor.map(apparmor_profile),
        ..LinuxContainerSecurityContext::default()
    })
}

fn capabilities(asked: &Capabilities) -> Capability {
    Capability {
        add_capabilities: asked.add.clone().unwrap_or_default(),
        drop_capabilities: asked.drop.clone().unwrap_or_default(),
        ..Capability::default()
    }
}

fn seccomp(
    shared: &PodSecurityContext,
    own: &SecurityContext,
    profiles: &Profiles<'_>,
) -> SecurityProfile {
    let asked: Option<&SeccompProfile> = own
        .seccomp_profile
        .as_ref()
        .or(shared.seccomp_profile.as_ref());
    let kind = asked.map_or("Unconfined", |p| p.type_.as_str());
    let (profile_type, localhost_ref) = match kind {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" => {
            let name = asked.and_then(|p| p.localhost_profile.as_deref());
            let path = format!("{}/{}", profiles.seccomp_dir, name.unwrap_or_default());
            (ProfileType::Localhost, path)
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    SecurityProfile {
        profile_type: profile_type as i32,
        localhost_ref,
    }
}

fn apparmor_profile(asked: &AppArmorProfile) -> SecurityProfile {
    let profile_type = match asked.type_.as_str() {
        "Unconfined" => ProfileType::Unconfined,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::RuntimeDefault,
    };
    SecurityProfile {
        profile_type: profile_type as i32,
        localhost_ref: asked.localhost_profile.clone().unwrap_or_default(),
    }
}

fn verify_non_root(
    pod: &Pod,
    container: &Container,
    shared: &PodSecurityContext,
    own: &SecurityContext,
    user: &ImageUser,
) -> Result<(), String> {
    if own.run_as_non_root.or(shared.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let place = format!(
        "(pod: {:?}, container: {})",
        pod::describe(pod),
        container.name
    );
    match own.run_as_user.or(shared.run_as_user) {
        Some(0) => Err(format!(
            "container's runAsUser breaks non-root policy {place}"
        )),
        Some(_) => Ok(()),
        None if user.uid == Some(0) => Err(format!(
            "container has runAsNonRoot and image will run as root {place}"
        )),
        None if user.uid.is_none() && !user.name.is_empty() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root {place}",
            user.name
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::{Value, json};

    fn context(
        shared: Value,
        own: Value,
        uid: Option<i64>,
    ) -> Result<LinuxContainerSecurityContext, String> {
        let pod = pod_of(json!({"securityContext": shared,
            "containers": [{"name": "a", "securityContext": own}]}));
        let user = ImageUser {
            uid,
            name: String::new(),
        };
        let profiles = Profiles {
            seccomp_dir: "/sec",
        };
        container_context(&pod, &pod::spec(&pod).containers[0], &user, None, &profiles)
    }

    #[test]
    fn the_container_overrides_the_pod() {
        let shared = json!({"runAsUser": 1000, "runAsGroup": 5, "seccompProfile": {"type": "RuntimeDefault"}});
        let own = json!({"runAsUser": 2000, "allowPrivilegeEscalation": false,
            "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}});
        let context = context(shared, own, Some(0)).unwrap();
        assert_eq!(context.run_as_user.unwrap().value, 2000);
        assert_eq!(context.run_as_group.unwrap().value, 5);
        assert!(context.no_new_privs);
        assert_eq!(context.seccomp.unwrap().localhost_ref, "/sec/p.json");
        assert!(!context.masked_paths.is_empty());
    }

    #[test]
    fn root_is_refused_where_it_is_not_wanted() {
        let wanted = json!({"runAsNonRoot": true});
        let message = context(wanted.clone(), json!({}), Some(0)).unwrap_err();
        assert!(message.starts_with("container has runAsNonRoot and image will run as root"));
        assert!(context(wanted.clone(), json!({}), Some(1000)).is_ok());
        assert!(context(wanted, json!({"runAsUser": 0}), Some(1000)).is_err());
    }
}

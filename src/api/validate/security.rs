//! Security contexts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::one_of;
use crate::field::{ErrorList, Path};
use crate::meta::{boolean, get, items, text};
use crate::names;

fn id_member(context: &Value, key: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(id) = get(context, key).as_i64() {
        identity(id, &path.child(key), errors);
    }
}

fn identity(id: i64, path: &Path<'_>, errors: &mut ErrorList) {
    if !(0..=i64::from(i32::MAX)).contains(&id) {
        errors.invalid(path, id, names::inclusive_range(0, i32::MAX.into()));
    }
}

pub(crate) fn pod_context(context: &Value, spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for key in ["fsGroup", "runAsUser", "runAsGroup"] {
        id_member(context, key, path, errors);
    }
    let groups = path.child("supplementalGroups");
    for (index, group) in items(context, &["supplementalGroups"]).iter().enumerate() {
        identity(group.as_i64().unwrap_or(0), &groups.index(index), errors);
    }
    if boolean(spec, &["shareProcessNamespace"]) && boolean(spec, &["hostPID"]) {
        errors.invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(context, spec, &path.child("sysctls"), errors);
    for (key, valid) in [
        ("fsGroupChangePolicy", &["Always", "OnRootMismatch"][..]),
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["MountOption", "Recursive"]),
    ] {
        if let Some(value) = get(context, key).as_str() {
            one_of(value, valid, &path.child(key), errors);
        }
    }
    profiles(context, path, errors);
}

fn is_sysctl_name(name: &str) -> bool {
    let part = |part: &str| {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        match (bytes.first(), bytes.last()) {
            (Some(&first), Some(&last)) => {
                good(first)
                    && good(last)
                    && bytes
                        .iter()
                        .all(|&byte| good(byte) || b"-_".contains(&byte))
            }
            _ => false,
        }
    };
    name.len() <= 253 && name.split(['.', '/']).all(part)
}

const SYSCTL_PATTERN: &str =
    "([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?";

fn sysctls(context: &Value, spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (index, sysctl) in items(context, &["sysctls"]).iter().enumerate() {
        let at = path.index(index);
        let name = text(sysctl, &["name"]);
        let name_path = at.child("name");
        if name.is_empty() {
            errors.required(&name_path, "");
        } else if !is_sysctl_name(name) {
            let why =
                format!("must have at most 253 characters and match regex ^{SYSCTL_PATTERN}$");
            errors.invalid(&name_path, name, why);
        } else if !seen.insert(name) {
            errors.duplicate(&name_path, name);
        }
        let (namespace, host) = if name.starts_with("net.") || name.starts_with("net/") {
            ("network", boolean(spec, &["hostNetwork"]))
        } else if ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|p| name.starts_with(p))
            || name == "kernel.sem"
        {
            ("ipc", boolean(spec, &["hostIPC"]))
        } else {
            continue;
        };
        if host {
            let key = if namespace == "network" {
                "hostNet"
            } else {
                "hostIPC"
            };
            errors.invalid(
                &name_path,
                name,
                format!("may not be specified when '{key}' is true"),
            );
        }
    }
}

/// Seccomp and AppArmor profiles of a pod's or container's context.
fn profiles(context: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let seccomp = get(context, "seccompProfile");
    if seccomp.is_object() {
        profile(seccomp, &path.child("seccompProfile"), true, errors);
    }
    let apparmor = get(context, "appArmorProfile");
    if apparmor.is_object() {
        profile(apparmor, &path.child("appArmorProfile"), false, errors);
    }
}

fn profile(profile: &Value, path: &Path<'_>, seccomp: bool, errors: &mut ErrorList) {
    let kind = text(profile, &["type"]);
    let local = get(profile, "localhostProfile");
    let local_path = path.child("localhostProfile");
    match kind {
        "" => errors.required(
            &path.child("type"),
            if seccomp {
                "type is required when seccompProfile is set"
            } else {
                "type is required when appArmorProfile is set"
            },
        ),
        "Localhost" => match local.as_str() {
            None | Some("") => errors.required(
                &local_path,
                if seccomp {
                    "must be set when seccomp type is Localhost"
                } else {
                    "must be set when AppArmor type is Localhost"
                },
            ),
            Some(file) if seccomp => super::volume::descending_path(file, &local_path, errors),
            Some(_) => {}
        },
        "RuntimeDefault" | "Unconfined" => {
            if !local.is_null() {
                if seccomp {
                    errors.invalid(
                        &local_path,
                        local.clone(),
                        "can only be set when seccomp type is Localhost",
                    );
                } else {
                    errors.invalid(
                        &local_path,
                        local.clone(),
                        "can only be set when AppArmor type is Localhost",
                    );
                }
            }
        }
        other => errors.not_supported(
            &path.child("type"),
            other,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
}

pub(crate) fn container_context(
    context: &Value,
    host_users: bool,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if context.is_null() {
        return;
    }
    id_member(context, "runAsUser", path, errors);
    id_member(context, "runAsGroup", path, errors);
    if let Some(mount) = get(context, "procMount").as_str() {
        let at = path.child("procMount");
        one_of(mount, &["Default", "Unmasked"], &at, errors);
        if host_users && mount == "Unmasked" {
            errors.invalid(&at, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if get(context, "allowPrivilegeEscalation").as_bool() == Some(false) {
        if boolean(context, &["privileged"]) {
            errors.invalid(
                path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        if items(context, &["capabilities", "add"])
            .iter()
            .any(|one| one == "CAP_SYS_ADMIN")
        {
            errors.invalid(
                path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    profiles(context, path, errors);
}

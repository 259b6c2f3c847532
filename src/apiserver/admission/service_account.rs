//! ServiceAccount: every pod has an account, its token and its pull secrets.

use std::sync::Arc;

use rand::Rng;
use sampan_api::Status;
use sampan_api::meta::{self, at, get, items, items_mut, text};
use serde_json::{Value, json};

use super::{cached, forbidden, is};
use crate::registry::hooks::{Admission, AdmissionRequest, Operation};
use crate::registry::server::Core;

const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const PREFIX: &str = "kube-api-access-";
/// One hour and a little: the odd number marks tokens that the server may extend.
const TOKEN_SECONDS: i64 = 3607;
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub(super) struct ServiceAccount(pub(super) Arc<Core>);

impl Admission for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "", "pods") {
            return Ok(());
        }
        if is_mirror(&request.object) {
            return self.check(request);
        }
        let account_path = ["spec", "serviceAccountName"];
        if text(&request.object, &account_path).is_empty() {
            meta::set(&mut request.object, &account_path, "default");
            meta::set(&mut request.object, &["spec", "serviceAccount"], "default");
        }
        let account = self.account(request)?;
        let pod = &mut request.object;
        if automounts(&account, pod) {
            mount_token(pod);
        }
        let pull_secrets = items(&account, &["imagePullSecrets"]);
        if items(pod, &["spec", "imagePullSecrets"]).is_empty() && !pull_secrets.is_empty() {
            meta::set(pod, &["spec", "imagePullSecrets"], pull_secrets.to_vec());
        }
        self.check(request)
    }

    fn validate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if is(request, "", "pods") {
            self.check(request)
        } else {
            Ok(())
        }
    }
}

fn is_mirror(pod: &Value) -> bool {
    !at(pod, &["metadata", "annotations", MIRROR]).is_null()
}

impl ServiceAccount {
    fn account(&self, request: &AdmissionRequest<'_>) -> Result<Value, Status> {
        let name = text(&request.object, &["spec", "serviceAccountName"]);
        let namespace = request.namespace;
        cached(&self.0, "", "serviceaccounts", Some(namespace), name).ok_or_else(|| {
            forbidden(
                request,
                &format!(
                    "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
                ),
            )
        })
    }

    fn check(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let pod = &request.object;
        if is_mirror(pod) {
            return check_mirror(request);
        }
        let account = self.account(request)?;
        if text(&account, &["metadata", "annotations", ENFORCE_SECRETS]) == "true" {
            check_secrets(request, &account)?;
        }
        Ok(())
    }
}

/// A mirror of a static pod may not use the API's objects.
fn check_mirror(request: &AdmissionRequest<'_>) -> Result<(), Status> {
    let pod = &request.object;
    if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Err(forbidden(
            request,
            "a mirror pod may not reference service accounts",
        ));
    }
    for volume in items(pod, &["spec", "volumes"]) {
        if !get(volume, "secret").is_null() {
            return Err(forbidden(request, "a mirror pod may not reference secrets"));
        }
        let sources = items(volume, &["projected", "sources"]);
        if sources
            .iter()
            .any(|source| !get(source, "serviceAccountToken").is_null())
        {
            return Err(forbidden(
                request,
                "a mirror pod may not use ServiceAccountToken volume projections",
            ));
        }
    }
    Ok(())
}

fn check_secrets(request: &AdmissionRequest<'_>, account: &Value) -> Result<(), Status> {
    let pod = &request.object;
    let name = text(account, &["metadata", "name"]);
    let allowed = |secret: &str| {
        items(account, &["secrets"])
            .iter()
            .any(|one| text(one, &["name"]) == secret)
    };
    for volume in items(pod, &["spec", "volumes"]) {
        let secret = text(volume, &["secret", "secretName"]);
        if !secret.is_empty() && !allowed(secret) {
            let why = format!(
                "volume with secret.secretName={secret:?} is not allowed because service account {name} does not reference that secret"
            );
            return Err(forbidden(request, &why));
        }
    }
    for list in ["initContainers", "containers"] {
        for container in items(pod, &["spec", list]) {
            let by_key = items(container, &["env"]).iter().map(|env| {
                (
                    text(env, &["name"]),
                    text(env, &["valueFrom", "secretKeyRef", "name"]),
                )
            });
            for (variable, secret) in by_key {
                if !secret.is_empty() && !allowed(secret) {
                    let kind = if list == "containers" {
                        "container"
                    } else {
                        "init container"
                    };
                    let why = format!(
                        "{kind} {} with envVar {variable} referencing secret.secretName={secret:?} is not allowed because service account {name} does not reference that secret",
                        text(container, &["name"])
                    );
                    return Err(forbidden(request, &why));
                }
            }
        }
    }
    Ok(())
}

/// The pod decides if it says something, then the account; otherwise yes.
fn automounts(account: &Value, pod: &Value) -> bool {
    let of_pod = at(pod, &["spec", "automountServiceAccountToken"]).as_bool();
    let of_account = get(account, "automountServiceAccountToken").as_bool();
    of_pod.or(of_account).unwrap_or(true)
}

fn mount_token(pod: &mut Value) {
    let name = volume_name(pod);
    let mut used = false;
    for list in ["initContainers", "containers"] {
        for container in items_mut(pod, &["spec", list]) {
            let mounted = items(container, &["volumeMounts"])
                .iter()
                .any(|mount| text(mount, &["mountPath"]) == MOUNT_PATH);
            if mounted {
                continue;
            }
            used = true;
            let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
            push(container, &["volumeMounts"], mount);
        }
    }
    if used {
        push(pod, &["spec", "volumes"], token_volume(&name));
    }
}

fn push(object: &mut Value, path: &[&str], item: Value) {
    match meta::entry(object, path) {
        Value::Array(list) => list.push(item),
        slot => *slot = json!([item]),
    }
}

fn volume_name(pod: &Value) -> String {
    let taken: Vec<&str> = items(pod, &["spec", "volumes"])
        .iter()
        .map(|volume| text(volume, &["name"]))
        .collect();
    loop {
        let mut random = rand::rng();
        let suffix: String = (0..5)
            .map(|_| LETTERS[random.random_range(0..LETTERS.len())] as char)
            .collect();
        let name = format!("{PREFIX}{suffix}");
        if !taken.contains(&name.as_str()) {
            return name;
        }
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_mounted_once() {
        let mut pod = json!({"spec": {"containers": [{"name": "a"},
            {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}]}});
        assert!(automounts(&json!({}), &pod));
        mount_token(&mut pod);
        let name = &pod["spec"]["volumes"][0]["name"];
        assert!(name.as_str().is_some_and(|name| name.starts_with(PREFIX)));
        assert_eq!(
            pod["spec"]["containers"][0]["volumeMounts"][0]["name"],
            *name
        );
        assert_eq!(
            pod["spec"]["containers"][1]["volumeMounts"][0]["name"],
            "own"
        );
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        assert!(!automounts(
            &json!({"automountServiceAccountToken": true}),
            &pod
        ));
    }
}

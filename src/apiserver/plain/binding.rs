//! Binding a pod to a node: `pods/binding`, and the older `bindings`.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sampan_api::field::{ErrorList, Path};
use sampan_api::meta::{self, at, entries, items, text};
use sampan_api::resource::{GroupVersionResource, Name};
use sampan_api::{Reason, ResourceDef, Status, Verb, time};
use serde_json::{Value, json};

use super::Plain;
use crate::registry::hooks::{Subresource, Virtual};
use crate::registry::server::{ApiServer, method_not_allowed};
use crate::request::{ApiRequest, Reply};

pub(super) struct PodBinding;

impl Subresource for PodBinding {
    fn serves(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        vec![("", "pods", "binding")]
    }

    fn handle(
        &self,
        server: ApiServer,
        def: Arc<ResourceDef>,
        request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        Box::pin(
            async move { bind(Plain::new(server, def, request)?.only(&[Verb::Create])?).await },
        )
    }
}

/// A binding that names its pod itself.
pub(super) struct Bindings;

impl Virtual for Bindings {
    fn serves(&self) -> Vec<(&'static str, &'static str)> {
        vec![("", "bindings")]
    }

    fn handle(
        &self,
        server: ApiServer,
        _: Arc<ResourceDef>,
        mut request: ApiRequest,
    ) -> BoxFuture<'static, Result<Reply, Status>> {
        Box::pin(async move {
            if request.request.verb != Verb::Create {
                return Err(method_not_allowed());
            }
            let (pods, _) = super::row(&server, "", "pods")?;
            let name = match &request.request.body {
                sampan_client::Body::Object(body) => text(body, &["metadata", "name"]).to_owned(),
                _ => String::new(),
            };
            let target = &mut request.request.target;
            target.resource = GroupVersionResource {
                resource: pods.plural.clone(),
                ..target.resource.clone()
            };
            target.name = Some(name);
            target.subresource = Some(Name::Borrowed("binding"));
            bind(Plain::new(server, pods, request)?).await
        })
    }
}

async fn bind(mut plain: Plain) -> Result<Reply, Status> {
    let mut binding = plain.body("", "v1", "Binding")?;
    let name = plain.call.name().to_owned();
    let own = text(&binding, &["metadata", "name"]);
    if !own.is_empty() && own != name {
        return Err(Status::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    check(&binding)?;
    plain.admit(&mut binding, None).await?;
    let now = time::format(plain.call.now);
    let bound = plain
        .change(&|pod: &mut Value| {
            precondition(pod, &binding)?;
            assign(pod, &binding, &now)
        })
        .await;
    bound.map(|_| plain.success())
}

/// A wrong target is answered without a reason, as upstream does.
fn check(binding: &Value) -> Result<(), Status> {
    let mut errors = ErrorList::new();
    let target = Path::new("target");
    let kind = text(binding, &["target", "kind"]);
    if !kind.is_empty() && kind != "Node" {
        errors.not_supported(&target.child("kind"), kind, &["Node", "<empty>"]);
    }
    if text(binding, &["target", "name"]).is_empty() {
        errors.required(&target.child("name"), "");
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::new(Reason::Unknown, errors.aggregate()))
    }
}

fn precondition(pod: &Value, binding: &Value) -> Result<(), Status> {
    let name = text(pod, &["metadata", "name"]);
    let (wanted, own) = (
        text(binding, &["metadata", "uid"]),
        text(pod, &["metadata", "uid"]),
    );
    if !wanted.is_empty() && wanted != own {
        return Err(Status::conflict(
            "",
            "pods",
            name,
            &format!(
                "StorageError: invalid object, Code: 4, Key: {name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {own}"
            ),
        ));
    }
    let wanted = text(binding, &["metadata", "resourceVersion"]);
    let own = text(pod, &["metadata", "resourceVersion"]);
    if !wanted.is_empty() && wanted != own {
        return Err(Status::conflict(
            "",
            "pods",
            name,
            &format!(
                "StorageError: invalid object, Code: 4, Key: {name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {own}"
            ),
        ));
    }
    Ok(())
}

fn assign(pod: &mut Value, binding: &Value, now: &str) -> Result<(), Status> {
    let name = text(pod, &["metadata", "name"]).to_owned();
    let refuse = |why: String| Err(Status::conflict("", "pods/binding", &name, &why));
    if !at(pod, &["metadata", "deletionTimestamp"]).is_null() {
        return refuse(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let node = text(pod, &["spec", "nodeName"]);
    if !node.is_empty() {
        return refuse(format!("pod {name} is already assigned to node {node:?}"));
    }
    if !items(pod, &["spec", "schedulingGates"]).is_empty() {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let target = text(binding, &["target", "name"]).to_owned();
    meta::set(pod, &["spec", "nodeName"], target);
    for list in ["annotations", "labels"] {
        for (key, value) in entries(binding, &["metadata", list]) {
            meta::set(pod, &["metadata", list, key], value.clone());
        }
    }
    set_scheduled(pod, now);
    Ok(())
}

fn set_scheduled(pod: &mut Value, now: &str) {
    let condition = json!({"type": "PodScheduled", "status": "True",
        "lastProbeTime": null, "lastTransitionTime": now});
    let conditions = meta::entry(pod, &["status", "conditions"]);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else {
        return;
    };
    match list
        .iter_mut()
        .find(|one| text(one, &["type"]) == "PodScheduled")
    {
        Some(before) => *before = condition,
        None => list.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_assigned_once() {
        let mut pod =
            json!({"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending"}});
        let binding = json!({"metadata": {"annotations": {"a": "b"}}, "target": {"name": "n1"}});
        assert!(assign(&mut pod, &binding, "now").is_ok());
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["status"]["conditions"][0]["status"], "True");
        let error = assign(&mut pod, &binding, "now").err();
        assert_eq!(
            error.map(|status| status.message).unwrap_or_default(),
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
        );
    }
}

//! The admission plugins that are on by default, one file each, in upstream's order.

use std::sync::Arc;

use sampan_api::meta::text;
use sampan_api::{Meta, Status};
use serde_json::Value;

use crate::auth::rbac::Rbac;
use crate::registry::hooks::{Admission, AdmissionRequest, Chain, Operation};
use crate::registry::server::Core;
use crate::request::Authorizer;

mod certificate;
mod default_class;
mod default_toleration;
mod limit_ranger;
mod namespace_lifecycle;
mod node_names;
mod node_restriction;
mod node_taint;
mod priority;
mod role_escalation;
mod runtime_class;
mod service_account;
mod storage;

/// What plugins may be built from.
pub struct Parts<'a> {
    pub core: &'a Arc<Core>,
    pub authorizer: &'a Arc<dyn Authorizer>,
    pub rbac: &'a Arc<Rbac>,
}

/// All plugins, in the order in which they run. Plugins that are not there are named where they belong.
pub fn chain(parts: &Parts<'_>) -> Chain {
    let Parts {
        core,
        authorizer,
        rbac,
    } = parts;
    let (core, authorizer, rbac) = (*core, *authorizer, *rbac);
    let plugins: Vec<Arc<dyn Admission>> = vec![
        Arc::new(namespace_lifecycle::NamespaceLifecycle(core.clone())),
        Arc::new(limit_ranger::LimitRanger(core.clone())),
        Arc::new(service_account::ServiceAccount(core.clone())),
        Arc::new(node_restriction::NodeRestriction(core.clone())),
        // Ours.
        Arc::new(node_names::NodeNames),
        Arc::new(node_taint::TaintNodesByCondition),
        // PodSecurity
        Arc::new(priority::Priority(core.clone())),
        Arc::new(default_toleration::DefaultTolerationSeconds),
        Arc::new(default_class::DefaultStorageClass(core.clone())),
        Arc::new(storage::InUseProtection),
        Arc::new(storage::ClaimResize(core.clone())),
        Arc::new(runtime_class::RuntimeClass(core.clone())),
        Arc::new(certificate::CertificateApproval(authorizer.clone())),
        Arc::new(certificate::CertificateSigning(authorizer.clone())),
        Arc::new(certificate::CertificateSubjectRestriction),
        Arc::new(default_class::DefaultIngressClass(core.clone())),
        // MutatingAdmissionPolicy, MutatingAdmissionWebhook,
        // ValidatingAdmissionPolicy, ValidatingAdmissionWebhook, ResourceQuota
        Arc::new(role_escalation::RoleEscalation::new(
            rbac.clone(),
            authorizer.clone(),
        )),
    ];
    Chain(plugins)
}

/// Whether the request is about this resource, and about the object itself.
fn is(request: &AdmissionRequest<'_>, group: &str, plural: &str) -> bool {
    request.subresource.is_empty() && request.def.group() == group && request.def.plural == plural
}

/// The refusal of a plugin: names what the request is about.
fn forbidden(request: &AdmissionRequest<'_>, why: &str) -> Status {
    let own = text(&request.object, &["metadata", "name"]);
    let generated = text(&request.object, &["metadata", "generateName"]);
    let name = [request.name, own, generated]
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or("Unknown");
    Status::forbidden(&request.version.group, &request.def.plural, name, why)
}

/// An object of the cache as a tree.
fn cached(
    core: &Core,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    name: &str,
) -> Option<Value> {
    let object = core.get(group, plural, namespace, name)?;
    serde_json::from_slice(&object.bytes).ok()
}

/// All objects of a resource, as trees.
fn all(core: &Core, group: &str, plural: &str) -> Vec<Value> {
    under(core, group, plural, None)
}

/// All objects of a resource in a namespace, as trees.
fn all_in(core: &Core, group: &str, plural: &str, namespace: &str) -> Vec<Value> {
    under(core, group, plural, Some(namespace))
}

fn under(core: &Core, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value> {
    let Some(row) = core.row(group, plural) else {
        return Vec::new();
    };
    let prefix = row.key(namespace, "");
    let snapshot = core.cache.snapshot(&core.cache.bucket(&row));
    snapshot
        .map
        .iter_from(&prefix)
        .take_while(|object| object.key.starts_with(prefix.as_str()))
        .filter_map(|object| serde_json::from_slice(&object.bytes).ok())
        .collect()
}

/// The one object that an annotation marks as default; the newest if several are.
fn default_of(core: &Core, group: &str, plural: &str, annotations: &[&str]) -> Option<String> {
    all(core, group, plural)
        .iter()
        .filter(|object| {
            annotations
                .iter()
                .any(|key| text(object, &["metadata", "annotations", key]) == "true")
        })
        .map(Meta::from_value)
        .max_by(|a, b| {
            (&a.creation_timestamp, std::cmp::Reverse(&a.name))
                .cmp(&(&b.creation_timestamp, std::cmp::Reverse(&b.name)))
        })
        .map(|meta| meta.name)
}

fn writes(operation: Operation) -> bool {
    matches!(operation, Operation::Create | Operation::Update)
}

//! The pods behind a Service: what EndpointSlices and Endpoints have in common.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sampan_client::{Change, Lister, ObjectKey};

use crate::labels::selector_of_map;
use crate::pods;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The Service's spec if its endpoints are made from pods.
pub(crate) fn selecting_spec(service: &Service) -> Option<&ServiceSpec> {
    let spec = service.spec.as_ref()?;
    let external = spec.type_.as_deref() == Some("ExternalName");
    (spec.selector.is_some() && !external).then_some(spec)
}

pub(crate) fn is_headless(spec: &ServiceSpec) -> bool {
    matches!(spec.cluster_ip.as_deref(), None | Some("" | "None"))
}

/// The families in which the Service is offered, the preferred one first.
pub(crate) fn families(spec: &ServiceSpec) -> Vec<Family> {
    let named: Vec<Family> = spec
        .ip_families
        .iter()
        .flatten()
        .map(|family| {
            if family == "IPv6" {
                Family::V6
            } else {
                Family::V4
            }
        })
        .collect();
    if !named.is_empty() {
        return named;
    }
    let address = spec.cluster_ip.as_deref().and_then(|ip| ip.parse().ok());
    match address {
        Some(address) => vec![Family::of(address)],
        None => vec![Family::V4, Family::V6],
    }
}

/// Not finished and with an address; on its way out only if asked for.
pub(crate) fn is_backend(pod: &Pod, terminating: bool) -> bool {
    if pods::is_finished(pod) || addresses(pod).is_empty() {
        return false;
    }
    terminating || pod.metadata.deletion_timestamp.is_none()
}

pub(crate) fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let many = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut found: Vec<IpAddr> = many.filter_map(|ip| ip.parse().ok()).collect();
    if found.is_empty() {
        let one: Option<IpAddr> = status.pod_ip.as_deref().and_then(|ip| ip.parse().ok());
        found.extend(one);
    }
    found
}

/// The pod's own name under a headless Service, if it has one.
pub(crate) fn host_name(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let subdomain = spec.subdomain.as_deref() == service.metadata.name.as_deref();
    let namespace = pod.metadata.namespace == service.metadata.namespace;
    let name = spec.hostname.as_ref().filter(|name| !name.is_empty())?;
    (subdomain && namespace).then(|| name.clone())
}

pub(crate) fn pod_reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

pub(crate) fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// The number of the container port that a Service's port leads to in this pod.
pub(crate) fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let name = match &port.target_port {
        Some(IntOrString::String(name)) => name,
        Some(IntOrString::Int(number)) if *number != 0 => return Some(*number),
        _ => return Some(port.port),
    };
    let spec = pod.spec.as_ref()?;
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    spec.containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten())
        .find(|candidate| {
            candidate.name.as_ref() == Some(name)
                && candidate.protocol.as_deref().unwrap_or("TCP") == protocol(port)
        })
        .map(|found| found.container_port)
}

/// The pods that a Service selects.
pub(crate) fn selected(service: &Service, pods: &Lister<Pod>) -> Vec<Arc<Pod>> {
    let Some(spec) = selecting_spec(service) else {
        return Vec::new();
    };
    let selector = selector_of_map(spec.selector.as_ref());
    pods.select(service.metadata.namespace.as_deref(), |labels| {
        selector.matches(labels)
    })
}

/// The Services that select the changed pod, or did before, if the change is one they care for.
pub(crate) fn services_of(change: &Change<Pod>, services: &Lister<Service>) -> Vec<ObjectKey> {
    if let Change::Applied {
        old: Some(old),
        new,
    } = change
        && !matters(old, new)
    {
        return Vec::new();
    }
    let namespace = change.object().metadata.namespace.as_deref();
    let selects = |service: &&Arc<Service>| {
        let Some(spec) = selecting_spec(service) else {
            return false;
        };
        let selector = selector_of_map(spec.selector.as_ref());
        change
            .states()
            .any(|pod| selector.matches(&pod.metadata.labels))
    };
    services
        .list(namespace)
        .iter()
        .filter(selects)
        .map(|service| ObjectKey::of(&service.metadata))
        .collect()
}

/// Whether a Service's endpoints can differ between the two states of a pod.
fn matters(old: &Pod, new: &Pod) -> bool {
    let names = |pod: &Pod| {
        let spec = pod.spec.as_ref();
        spec.map(|spec| {
            (
                spec.hostname.clone(),
                spec.subdomain.clone(),
                spec.node_name.clone(),
            )
        })
    };
    old.metadata.labels != new.metadata.labels
        || old.metadata.deletion_timestamp.is_some() != new.metadata.deletion_timestamp.is_some()
        || old.metadata.uid != new.metadata.uid
        || pods::is_ready(old) != pods::is_ready(new)
        || pods::is_finished(old) != pods::is_finished(new)
        || addresses(old) != addresses(new)
        || names(old) != names(new)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::object;

    #[test]
    fn named_ports_are_looked_up_in_the_pod() {
        let pod: Pod = object(json!({"spec": {"containers": [
            {"name": "c", "ports": [
                {"name": "web", "containerPort": 53, "protocol": "UDP"},
                {"name": "web", "containerPort": 8080},
            ]},
        ]}}));
        let port = |json| object::<ServicePort>(json);
        let named = port(json!({"port": 80, "targetPort": "web"}));
        assert_eq!(target_port(&pod, &named), Some(8080));
        let missing = port(json!({"port": 80, "targetPort": "other"}));
        assert_eq!(target_port(&pod, &missing), None);
        assert_eq!(target_port(&pod, &port(json!({"port": 80}))), Some(80));
    }
}

//! Endpoints: the older form of EndpointSlices, one object a Service.
//!
//! Watches Services, pods and Endpoints; deletes what belongs to a deleted Service.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service, ServicePort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{Lister, ObjectKey};
use serde_json::json;

use crate::backends::{self, Family};
use crate::runtime::{Action, Controller, EventNote, Form, Plan, Step, Watches};
use crate::{Settings, json, owner, pods};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const HEADLESS: &str = "service.kubernetes.io/headless";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MOST_ADDRESSES: usize = 1000;

pub struct EndpointsController {
    services: Lister<Service>,
    pods: Lister<Pod>,
    endpoints: Lister<Endpoints>,
}

pub struct Observed {
    /// `None` if it is gone and its Endpoints are left.
    service: Option<Arc<Service>>,
    pods: Vec<Arc<Pod>>,
    endpoints: Option<Arc<Endpoints>>,
}

impl Controller for EndpointsController {
    const NAME: &'static str = "endpoint-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let services = watches.primary::<Service>();
        let known = services.clone();
        Self {
            pods: watches.mapped::<Pod>(move |change| backends::services_of(change, &known)),
            endpoints: watches.primary::<Endpoints>(),
            services,
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let endpoints = self.endpoints.get_key(key);
        let Some(service) = self.services.get_key(key) else {
            return Some(Observed {
                service: None,
                pods: Vec::new(),
                endpoints,
            });
        };
        backends::selecting_spec(&service)?;
        Some(Observed {
            pods: backends::selected(&service, &self.pods),
            service: Some(service),
            endpoints,
        })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match (&observed.service, &observed.endpoints) {
            (None, Some(endpoints)) if is_ours(endpoints) => {
                plan.push(Action::delete(&**endpoints))
            }
            (None, _) => {}
            (Some(service), current) => {
                plan.actions
                    .extend(plan_endpoints(service, &observed.pods, current));
            }
        }
        plan
    }
}

fn is_ours(endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    labels.is_some_and(|labels| {
        labels
            .get(MANAGED_BY)
            .is_some_and(|manager| manager == MANAGER)
    })
}

fn plan_endpoints(
    service: &Service,
    pods: &[Arc<Pod>],
    current: &Option<Arc<Endpoints>>,
) -> Option<Step> {
    let (subsets, truncated) = truncate(subsets_of(service, pods));
    let labels = labels_of(service);
    let name = owner::name(&service.metadata);
    let Some(current) = current else {
        let endpoints = Endpoints {
            metadata: ObjectMeta {
                name: service.metadata.name.clone(),
                namespace: service.metadata.namespace.clone(),
                labels: Some(labels),
                annotations: truncated
                    .then(|| [(OVER_CAPACITY.to_owned(), "truncated".to_owned())].into()),
                ..ObjectMeta::default()
            },
            subsets: (!subsets.is_empty()).then_some(subsets),
        };
        let namespace = service.metadata.namespace.clone().unwrap_or_default();
        let failed = format!("Failed to create endpoint for service {namespace}/{name}: {{}}");
        let step = Step::from(Action::create(&endpoints));
        return Some(step.on_failure(EventNote::warning(
            service,
            "FailedToCreateEndpoint",
            failed,
        )));
    };
    let mut change = json!({});
    if current.subsets.clone().unwrap_or_default() != subsets {
        change["subsets"] = if subsets.is_empty() {
            json!(null)
        } else {
            json::to_value(&subsets)
        };
    }
    let old_labels = json::to_value(&current.metadata.labels);
    if let Some(difference) = json::difference(&old_labels, &json::to_value(&labels)) {
        change["metadata"]["labels"] = difference;
    }
    let annotations = current.metadata.annotations.as_ref();
    let marked = annotations.is_some_and(|map| map.contains_key(OVER_CAPACITY));
    if marked != truncated {
        let mark = if truncated {
            json!("truncated")
        } else {
            json!(null)
        };
        change["metadata"]["annotations"][OVER_CAPACITY] = mark;
    }
    let key = ObjectKey::of(&current.metadata);
    (change != json!({})).then(|| Action::write::<Endpoints>(&key, Form::Put, change).into())
}

fn labels_of(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if service.spec.as_ref().is_some_and(backends::is_headless) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

/// An address and whether it is ready.
type Backend = (EndpointAddress, bool);

/// One subset for each set of addresses that share ports.
fn subsets_of(service: &Service, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    let Some(spec) = backends::selecting_spec(service) else {
        return Vec::new();
    };
    let unready = spec.publish_not_ready_addresses.unwrap_or(false);
    let Some(family) = backends::families(spec).first().copied() else {
        return Vec::new();
    };
    let mut by_port: Vec<(Option<EndpointPort>, Vec<Backend>)> = Vec::new();
    for pod in pods.iter().filter(|pod| backends::is_backend(pod, unready)) {
        let Some(address) = address_of(service, pod, family) else {
            continue;
        };
        let backend = (address, unready || pods::is_ready(pod));
        for port in ports_of(spec.ports.as_deref().unwrap_or_default(), pod) {
            match by_port.iter_mut().find(|(known, _)| *known == port) {
                Some((_, backends)) => backends.push(backend.clone()),
                None => by_port.push((port, vec![backend.clone()])),
            }
        }
    }
    let mut groups: Vec<(Vec<Backend>, Vec<EndpointPort>)> = Vec::new();
    for (port, mut backends) in by_port {
        backends.sort_by(|(a, _), (b, _)| a.ip.cmp(&b.ip));
        match groups.iter_mut().find(|(known, _)| *known == backends) {
            Some((_, ports)) => ports.extend(port),
            None => groups.push((backends, port.into_iter().collect())),
        }
    }
    groups.into_iter().map(subset).collect()
}

fn subset((backends, mut ports): (Vec<Backend>, Vec<EndpointPort>)) -> EndpointSubset {
    let (ready, waiting): (Vec<Backend>, Vec<Backend>) =
        backends.into_iter().partition(|(_, ready)| *ready);
    let addresses = |list: Vec<Backend>| {
        let addresses: Vec<EndpointAddress> =
            list.into_iter().map(|(address, _)| address).collect();
        (!addresses.is_empty()).then_some(addresses)
    };
    ports.sort_by(|a, b| (&a.name, a.port).cmp(&(&b.name, b.port)));
    EndpointSubset {
        addresses: addresses(ready),
        not_ready_addresses: addresses(waiting),
        ports: (!ports.is_empty()).then_some(ports),
    }
}

/// `None` stands for a headless Service without ports.
fn ports_of(ports: &[ServicePort], pod: &Pod) -> Vec<Option<EndpointPort>> {
    if ports.is_empty() {
        return vec![None];
    }
    ports
        .iter()
        .filter_map(|port| {
            Some(Some(EndpointPort {
                name: port.name.clone().filter(|name| !name.is_empty()),
                port: backends::target_port(pod, port)?,
                protocol: Some(backends::protocol(port).to_owned()),
                app_protocol: port.app_protocol.clone(),
            }))
        })
        .collect()
}

fn address_of(service: &Service, pod: &Pod, family: Family) -> Option<EndpointAddress> {
    let addresses = backends::addresses(pod);
    let address = addresses.into_iter().find(|ip| Family::of(*ip) == family)?;
    let node = pods::node_name(pod);
    Some(EndpointAddress {
        ip: address.to_string(),
        hostname: backends::host_name(pod, service),
        node_name: (!node.is_empty()).then(|| node.to_owned()),
        target_ref: Some(backends::pod_reference(pod)),
    })
}

/// At most so many addresses, ready ones first.
fn truncate(mut subsets: Vec<EndpointSubset>) -> (Vec<EndpointSubset>, bool) {
    let mut room = MOST_ADDRESSES;
    let mut truncated = false;
    let mut cut = |list: &mut Option<Vec<EndpointAddress>>| {
        if let Some(addresses) = list {
            truncated |= addresses.len() > room;
            addresses.truncate(room);
            room -= addresses.len();
        }
        if list.as_ref().is_some_and(Vec::is_empty) {
            *list = None;
        }
    };
    for subset in &mut subsets {
        cut(&mut subset.addresses);
    }
    for subset in &mut subsets {
        cut(&mut subset.not_ready_addresses);
    }
    (subsets, truncated)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{at, make_ready, object, pod};

    fn service() -> Service {
        object(json!({
            "metadata": {"namespace": "ns", "name": "web", "uid": "uid-web"},
            "spec": {
                "clusterIP": "None", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
                "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}],
            },
        }))
    }

    fn backend(name: &str, ip: &str, ready: bool) -> Arc<Pod> {
        let mut pod = pod("ns", name);
        if ready {
            make_ready(&mut pod, at(0));
        }
        pod.status.as_mut().unwrap().pod_ips = Some(vec![object(json!({"ip": ip}))]);
        Arc::new(pod)
    }

    fn plan(pods: Vec<Arc<Pod>>, endpoints: Option<Endpoints>) -> Plan {
        let observed = Observed {
            service: Some(Arc::new(service())),
            pods,
            endpoints: endpoints.map(Arc::new),
        };
        EndpointsController::reconcile(&observed, at(0))
    }

    #[test]
    fn addresses_share_one_subset_and_are_told_apart_by_readiness() {
        let pods = vec![
            backend("b", "10.42.0.3", false),
            backend("a", "10.42.0.2", true),
        ];
        let first = plan(pods.clone(), None);
        let Action::Create { object, .. } = &first.actions[0].action else {
            panic!("{first}");
        };
        let subsets = object["subsets"].as_array().unwrap();
        assert_eq!(subsets.len(), 1);
        assert_eq!(subsets[0]["addresses"][0]["ip"], "10.42.0.2");
        assert_eq!(subsets[0]["notReadyAddresses"][0]["ip"], "10.42.0.3");
        assert_eq!(subsets[0]["ports"].as_array().unwrap().len(), 2);
        assert_eq!(object["metadata"]["labels"][HEADLESS], "");

        let made: Endpoints = crate::fixtures::object(object.clone());
        assert!(plan(pods, Some(made.clone())).is_nothing());
        let emptied = plan(Vec::new(), Some(made));
        assert!(emptied.lines()[0].contains("\"subsets\":null"), "{emptied}");
    }

    #[test]
    fn what_a_service_leaves_behind_is_deleted() {
        let mut endpoints = Endpoints::default();
        endpoints.metadata.name = Some("web".to_owned());
        let gone = |endpoints: &Endpoints| {
            let observed = Observed {
                service: None,
                pods: Vec::new(),
                endpoints: Some(Arc::new(endpoints.clone())),
            };
            EndpointsController::reconcile(&observed, at(0))
        };
        assert!(gone(&endpoints).is_nothing(), "somebody else's stay");
        endpoints.metadata.labels = Some(labels_of(&service()));
        assert_eq!(gone(&endpoints).lines(), ["delete endpoints web"]);
    }
}

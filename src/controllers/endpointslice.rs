//! EndpointSlices: for each Service with a selector the addresses of its pods.
//!
//! Watches Services, pods, nodes (for zones) and its own slices; writes only slices that carry its
//! `managed-by` label. [`packing`] decides which endpoint stands in which slice.

pub(crate) mod packing;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{Change, Lister, ObjectKey};
use serde_json::{Value, json};

use crate::backends::{self, Family};
use crate::runtime::{Action, Controller, Form, Plan, Watches};
use crate::{Settings, json, owner, pods};

pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
const ZONE: &str = "topology.kubernetes.io/zone";

pub struct EndpointSliceController {
    services: Lister<Service>,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    slices: Lister<EndpointSlice>,
}

pub struct Observed {
    service: Arc<Service>,
    pods: Vec<Arc<Pod>>,
    /// Zone of each node that is there.
    zones: HashMap<String, Option<String>>,
    slices: Vec<Arc<EndpointSlice>>,
}

impl Controller for EndpointSliceController {
    const NAME: &'static str = "endpointslice-controller";
    const COMPONENT: &'static str = "endpoint-slice-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let services = watches.primary::<Service>();
        let known = services.clone();
        let pods = watches.mapped::<Pod>(move |change| backends::services_of(change, &known));
        let known = services.clone();
        let nodes = watches.mapped::<Node>(move |change| services_of_node(change, &known));
        let slices = watches.mapped::<EndpointSlice>(|change| {
            let slice = change.object();
            service_of(slice).into_iter().collect()
        });
        Self {
            services,
            pods,
            nodes,
            slices,
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let service = self.services.get_key(key)?;
        backends::selecting_spec(&service)?;
        let pods = backends::selected(&service, &self.pods);
        let mut zones = HashMap::new();
        for pod in &pods {
            let name = pods::node_name(pod);
            if let Some(node) = self.nodes.get(None, name) {
                zones.insert(name.to_owned(), zone_of(&node).map(str::to_owned));
            }
        }
        let slices = self.slices.select(key.namespace(), |labels| {
            labels.get(SERVICE_NAME) == Some(&key.name)
                && labels
                    .get(MANAGED_BY)
                    .is_some_and(|manager| manager == MANAGER)
        });
        Some(Observed {
            service,
            pods,
            zones,
            slices,
        })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(spec) = backends::selecting_spec(&observed.service) else {
            return plan;
        };
        let families = backends::families(spec);
        for family in &families {
            plan_family(observed, *family, &mut plan);
        }
        let unwanted = |slice: &&Arc<EndpointSlice>| {
            !families
                .iter()
                .any(|family| type_of(*family) == slice.address_type)
        };
        for slice in observed.slices.iter().filter(unwanted) {
            plan.push(Action::delete(&**slice));
        }
        plan
    }
}

fn zone_of(node: &Node) -> Option<&str> {
    let labels = node.metadata.labels.as_ref()?;
    labels.get(ZONE).map(String::as_str)
}

pub(crate) fn type_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The Service whose slice this is, if the slice is ours.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.metadata.labels.as_ref()?;
    if labels.get(MANAGED_BY)? != MANAGER {
        return None;
    }
    let namespace = slice.metadata.namespace.clone().unwrap_or_default();
    Some(ObjectKey::new(namespace, labels.get(SERVICE_NAME)?.clone()))
}

/// A node that comes, goes or moves to another zone may matter to every Service.
fn services_of_node(change: &Change<Node>, services: &Lister<Service>) -> Vec<ObjectKey> {
    if let Change::Applied {
        old: Some(old),
        new,
    } = change
        && zone_of(old) == zone_of(new)
    {
        return Vec::new();
    }
    services
        .list(None)
        .iter()
        .filter(|service| backends::selecting_spec(service).is_some())
        .map(|service| ObjectKey::of(&service.metadata))
        .collect()
}

/// Plans the slices of one address family.
fn plan_family(observed: &Observed, family: Family, plan: &mut Plan) {
    let service = &*observed.service;
    let ours = observed
        .slices
        .iter()
        .filter(|slice| slice.address_type == type_of(family));
    let (owned, foreign): (Vec<_>, Vec<_>) = ours.cloned().partition(|slice| {
        let owners = slice.metadata.owner_references.iter().flatten();
        let uid = owner::uid(&service.metadata);
        owners.into_iter().any(|owner| owner.uid == uid)
    });
    let mut groups = desired(observed, family);
    if groups.iter().all(|group| group.endpoints.is_empty()) {
        // A Service without endpoints keeps one empty slice.
        groups = vec![packing::Group::default()];
    }
    let packed = packing::pack(groups, &owned);
    let labels = labels_of(service);
    for slice in packed.kept {
        plan.actions.extend(update(&slice, &labels).map(Into::into));
    }
    if !owner::is_deleting(&service.metadata) {
        for content in packed.created {
            plan.push(Action::create(&new_slice(
                service, family, &labels, content,
            )));
        }
    }
    for slice in packed.deleted.iter().chain(&foreign) {
        plan.push(Action::delete(&**slice));
    }
}

/// The Service's endpoints, in groups of those with the same ports.
fn desired(observed: &Observed, family: Family) -> Vec<packing::Group> {
    let mut groups: Vec<packing::Group> = Vec::new();
    let unready = publishes_unready(&observed.service);
    for pod in &observed.pods {
        let known_node = observed.zones.contains_key(pods::node_name(pod));
        if !backends::is_backend(pod, true) || !(known_node || unready) {
            continue;
        }
        let Some(endpoint) = endpoint_of(pod, observed, family) else {
            continue;
        };
        let ports = ports_of(&observed.service, pod);
        match groups.iter_mut().find(|group| group.ports == ports) {
            Some(group) => group.endpoints.push(endpoint),
            None => groups.push(packing::Group {
                ports,
                endpoints: vec![endpoint],
            }),
        }
    }
    groups
}

fn publishes_unready(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.publish_not_ready_addresses)
        .unwrap_or(false)
}

fn endpoint_of(pod: &Pod, observed: &Observed, family: Family) -> Option<Endpoint> {
    let addresses: Vec<String> = backends::addresses(pod)
        .into_iter()
        .filter(|address| Family::of(*address) == family)
        .map(|address| address.to_string())
        .collect();
    if addresses.is_empty() {
        return None;
    }
    let service = &*observed.service;
    let serving = pods::is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let node = pods::node_name(pod);
    let zone = observed.zones.get(node).cloned().flatten();
    Some(Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(publishes_unready(service) || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: hints(service, node, zone.as_deref()),
        hostname: backends::host_name(pod, service),
        node_name: (!node.is_empty()).then(|| node.to_owned()),
        target_ref: Some(backends::pod_reference(pod)),
        zone,
        ..Endpoint::default()
    })
}

/// Where the Service wants traffic to stay, as hints to the proxies.
fn hints(service: &Service, node: &str, zone: Option<&str>) -> Option<EndpointHints> {
    let spec = service.spec.as_ref()?;
    let for_zones = zone.map(|zone| {
        vec![ForZone {
            name: zone.to_owned(),
        }]
    });
    match spec.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" => for_zones.map(|zones| EndpointHints {
            for_zones: Some(zones),
            for_nodes: None,
        }),
        "PreferSameNode" => Some(EndpointHints {
            for_zones,
            for_nodes: Some(vec![ForNode {
                name: node.to_owned(),
            }]),
        }),
        _ => None,
    }
}

fn ports_of(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(backends::target_port(pod, port)?),
                protocol: Some(backends::protocol(port).to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn labels_of(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if service.spec.as_ref().is_some_and(backends::is_headless) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let name = owner::name(&service.metadata).to_owned();
    labels.insert(SERVICE_NAME.to_owned(), name);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

fn new_slice(
    service: &Service,
    family: Family,
    labels: &BTreeMap<String, String>,
    content: packing::Group,
) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner::name(&service.metadata))),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels.clone()),
            owner_references: Some(vec![owner::controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: type_of(family).to_owned(),
        endpoints: Some(content.endpoints),
        ports: Some(content.ports),
    }
}

/// The write that brings an existing slice up to date.
pub(crate) fn update(slice: &packing::Kept, labels: &BTreeMap<String, String>) -> Option<Action> {
    let old = &slice.slice;
    let mut change = json!({});
    if slice.changed {
        change["endpoints"] = json::to_value(&slice.content.endpoints);
        change["ports"] = json::to_value(&slice.content.ports);
    }
    let old_labels = json::to_value(&old.metadata.labels);
    if let Some(difference) = json::difference(&old_labels, &json::to_value(labels)) {
        change["metadata"] = json!({"labels": difference});
    }
    let key = ObjectKey::of(&old.metadata);
    (change != Value::Object(serde_json::Map::new()))
        .then(|| Action::write::<EndpointSlice>(&key, Form::Put, change))
}

#[cfg(test)]
mod tests;

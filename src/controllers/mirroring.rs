//! EndpointSlices for Endpoints that somebody else wrote: Services without a selector.
//!
//! Watches Services, Endpoints and its own slices; the slices belong to the Endpoints and go with
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_client::{Lister, ObjectKey};

use crate::backends::Family;
use crate::endpointslice::packing::{self, Group};
use crate::endpointslice::{MANAGED_BY, SERVICE_NAME, type_of, update};
use crate::runtime::{Action, Controller, Plan, Watches};
use crate::{Settings, owner};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// So many addresses of a subset are mirrored.
const MOST_ADDRESSES: usize = 1000;

pub struct MirroringController {
    services: Lister<Service>,
    endpoints: Lister<Endpoints>,
    slices: Lister<EndpointSlice>,
}

pub struct Observed {
    /// `None` if they are gone or are not to be mirrored.
    endpoints: Option<Arc<Endpoints>>,
    slices: Vec<Arc<EndpointSlice>>,
}

impl Controller for MirroringController {
    const NAME: &'static str = "endpointslice-mirroring-controller";
    const IDENTITY: &'static str = "endpointslicemirroring-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        Self {
            services: watches.primary::<Service>(),
            endpoints: watches.primary::<Endpoints>(),
            slices: watches.mapped::<EndpointSlice>(|change| {
                let metadata = &change.object().metadata;
                let label = |key: &str| metadata.labels.as_ref()?.get(key).cloned();
                let ours = label(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
                let name = label(SERVICE_NAME).filter(|_| ours);
                let namespace = metadata.namespace.clone().unwrap_or_default();
                name.map(|name| ObjectKey::new(namespace, name))
                    .into_iter()
                    .collect()
            }),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let slices = self.slices.select(key.namespace(), |labels| {
            labels.get(SERVICE_NAME) == Some(&key.name)
                && labels
                    .get(MANAGED_BY)
                    .is_some_and(|manager| manager == MANAGER)
        });
        let service = self.services.get_key(key);
        let wanted = service.is_some_and(|service| {
            service
                .spec
                .as_ref()
                .is_some_and(|spec| spec.selector.is_none())
        });
        let endpoints = self.endpoints.get_key(key);
        Some(Observed {
            endpoints: endpoints.filter(|endpoints| wanted && is_mirrored(endpoints)),
            slices,
        })
    }

    fn reconcile(observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(endpoints) = &observed.endpoints else {
            for slice in &observed.slices {
                plan.push(Action::delete(&**slice));
            }
            return plan;
        };
        for family in [Family::V4, Family::V6] {
            plan_family(endpoints, &observed.slices, family, &mut plan);
        }
        plan
    }
}

fn is_mirrored(endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    let skipped = labels
        .and_then(|labels| labels.get(SKIP))
        .is_some_and(|value| value == "true");
    let annotations = endpoints.metadata.annotations.as_ref();
    let leads = annotations.is_some_and(|annotations| annotations.contains_key(LEADER));
    !skipped && !leads && !owner::is_deleting(&endpoints.metadata)
}

fn plan_family(
    endpoints: &Endpoints,
    slices: &[Arc<EndpointSlice>],
    family: Family,
    plan: &mut Plan,
) {
    let ours = slices
        .iter()
        .filter(|slice| slice.address_type == type_of(family));
    let existing: Vec<Arc<EndpointSlice>> = ours.cloned().collect();
    let subsets = endpoints.subsets.iter().flatten();
    let groups = subsets.map(|subset| group_of(subset, family));
    let groups: Vec<Group> = groups.filter(|group| !group.endpoints.is_empty()).collect();
    let packed = packing::pack(groups, &existing);
    let labels = labels_of(endpoints);
    for slice in packed.kept {
        plan.actions.extend(update(&slice, &labels).map(Into::into));
    }
    for content in packed.created {
        plan.push(Action::create(&new_slice(
            endpoints, family, &labels, content,
        )));
    }
    for slice in packed.deleted {
        plan.push(Action::delete(&*slice));
    }
}

fn group_of(subset: &EndpointSubset, family: Family) -> Group {
    let ready = subset
        .addresses
        .iter()
        .flatten()
        .map(|address| (address, true));
    let waiting = subset
        .not_ready_addresses
        .iter()
        .flatten()
        .map(|address| (address, false));
    let addresses = ready.chain(waiting).take(MOST_ADDRESSES);
    let ports = subset.ports.iter().flatten();
    Group {
        ports: ports
            .map(|port| EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(port.port),
                protocol: port.protocol.clone(),
                app_protocol: port.app_protocol.clone(),
            })
            .collect(),
        endpoints: addresses
            .filter(|(address, _)| is_of(address, family))
            .map(|(address, ready)| endpoint_of(address, ready))
            .collect(),
    }
}

fn is_of(address: &EndpointAddress, family: Family) -> bool {
    address.ip.parse().is_ok_and(|ip| Family::of(ip) == family)
}

fn endpoint_of(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn labels_of(endpoints: &Endpoints) -> BTreeMap<String, String> {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    let name = owner::name(&endpoints.metadata).to_owned();
    labels.insert(SERVICE_NAME.to_owned(), name);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

fn new_slice(
    endpoints: &Endpoints,
    family: Family,
    labels: &BTreeMap<String, String>,
    content: Group,
) -> EndpointSlice {
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    annotations.remove("endpoints.kubernetes.io/last-change-trigger-time");
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner::name(&endpoints.metadata))),
            namespace: endpoints.metadata.namespace.clone(),
            labels: Some(labels.clone()),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: Some(vec![owner::controller_reference(endpoints)]),
            ..ObjectMeta::default()
        },
        address_type: type_of(family).to_owned(),
        endpoints: Some(content.endpoints),
        ports: Some(content.ports),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::fixtures::{at, object};

    fn endpoints() -> Endpoints {
        object(json!({
            "metadata": {"namespace": "ns", "name": "db", "uid": "uid-db"},
            "subsets": [{
                "addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}],
                "ports": [{"port": 5432}],
            }],
        }))
    }

    fn plan(endpoints: Option<Endpoints>, slices: Vec<EndpointSlice>) -> Plan {
        let observed = Observed {
            endpoints: endpoints.map(Arc::new),
            slices: slices.into_iter().map(Arc::new).collect(),
        };
        MirroringController::reconcile(&observed, at(0))
    }

    #[test]
    fn each_family_gets_its_slice_and_nothing_is_written_twice() {
        let first = plan(Some(endpoints()), Vec::new());
        let slices: Vec<EndpointSlice> = first
            .actions
            .iter()
            .map(|step| match &step.action {
                Action::Create { object: made, .. } => object(made.clone()),
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(slices[0].address_type, "IPv4");
        assert_eq!(
            slices[1].endpoints.as_ref().unwrap()[0].addresses,
            ["2001:db8::1"]
        );
        assert!(plan(Some(endpoints()), slices.clone()).is_nothing());
        assert_eq!(plan(None, slices).lines().len(), 2);
    }

    #[test]
    fn leaders_and_those_who_ask_for_it_are_skipped() {
        let mut skipped = endpoints();
        skipped.metadata.labels = Some([(SKIP.to_owned(), "true".to_owned())].into());
        assert!(!is_mirrored(&skipped));
        assert!(is_mirrored(&endpoints()));
    }
}

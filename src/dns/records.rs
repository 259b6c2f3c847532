//! What the server knows: Services, their endpoints, namespaces; kept change by change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use hickory_proto::rr::Name;
use k8s_openapi::api::core::v1::{self, Namespace};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use sampan_client::{Change, Informers, ObjectKey};

use crate::name::address_label;

const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// A named port; the protocol in lower case, as it stands in names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Cluster(Vec<IpAddr>),
    Headless,
    External(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub kind: Kind,
    pub ports: Vec<Port>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub hostname: Option<String>,
}

impl Endpoint {
    pub fn label(&self) -> String {
        self.hostname
            .clone()
            .unwrap_or_else(|| address_label(self.address))
    }
}

/// The ready endpoints of one slice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    pub endpoints: Vec<Endpoint>,
    pub ports: Vec<Port>,
}

#[derive(Debug, Clone)]
pub struct Records {
    pub domain: Name,
    namespaces: HashSet<String>,
    services: HashMap<ObjectKey, Service>,
    /// By Service, then by the slice's name.
    slices: HashMap<ObjectKey, BTreeMap<String, Slice>>,
    /// The Service of each slice, to find it when its label changes.
    service_of: HashMap<ObjectKey, ObjectKey>,
    by_cluster_ip: HashMap<IpAddr, ObjectKey>,
    /// Services that have an endpoint with this address, and how many.
    by_endpoint_ip: HashMap<IpAddr, BTreeMap<ObjectKey, usize>>,
}

impl Records {
    pub fn new(domain: &str) -> Result<Self, hickory_proto::ProtoError> {
        let mut domain = Name::from_ascii(domain.trim_end_matches('.'))?.to_lowercase();
        domain.set_fqdn(true);
        Ok(Self {
            domain,
            namespaces: HashSet::new(),
            services: HashMap::new(),
            slices: HashMap::new(),
            service_of: HashMap::new(),
            by_cluster_ip: HashMap::new(),
            by_endpoint_ip: HashMap::new(),
        })
    }

    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    pub fn service(&self, key: &ObjectKey) -> Option<&Service> {
        self.services.get(key)
    }

    pub fn slices(&self, service: &ObjectKey) -> impl Iterator<Item = &Slice> {
        self.slices
            .get(service)
            .into_iter()
            .flat_map(BTreeMap::values)
    }

    pub fn by_cluster_ip(&self, address: IpAddr) -> Option<&ObjectKey> {
        self.by_cluster_ip.get(&address)
    }

    /// Every endpoint with this address and its Service.
    pub fn by_endpoint_ip(&self, address: IpAddr) -> impl Iterator<Item = (&ObjectKey, &Endpoint)> {
        let services = self
            .by_endpoint_ip
            .get(&address)
            .into_iter()
            .flat_map(BTreeMap::keys);
        services.flat_map(move |service| {
            let endpoints = self.slices(service).flat_map(|slice| &slice.endpoints);
            endpoints
                .filter(move |each| each.address == address)
                .map(move |each| (service, each))
        })
    }

    // === changes ===

    pub fn set_namespace(&mut self, name: &str) {
        self.namespaces.insert(name.to_owned());
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    pub fn set_service(&mut self, service: &v1::Service) {
        let key = ObjectKey::of(&service.metadata);
        self.remove_service(&key);
        let service = read_service(service);
        if let Kind::Cluster(addresses) = &service.kind {
            for address in addresses {
                self.by_cluster_ip.insert(*address, key.clone());
            }
        }
        self.services.insert(key, service);
    }

    pub fn remove_service(&mut self, key: &ObjectKey) {
        let Some(Service {
            kind: Kind::Cluster(addresses),
            ..
        }) = self.services.remove(key)
        else {
            return;
        };
        for address in addresses {
            if self.by_cluster_ip.get(&address) == Some(key) {
                self.by_cluster_ip.remove(&address);
            }
        }
    }

    pub fn set_slice(&mut self, slice: &EndpointSlice) {
        let key = ObjectKey::of(&slice.metadata);
        self.remove_slice(&key);
        let Some(service) = slice
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(SERVICE_LABEL))
        else {
            return;
        };
        let service = ObjectKey::new(key.namespace.clone(), service.clone());
        let slice = read_slice(slice);
        for endpoint in &slice.endpoints {
            *self
                .by_endpoint_ip
                .entry(endpoint.address)
                .or_default()
                .entry(service.clone())
                .or_default() += 1;
        }
        self.slices
            .entry(service.clone())
            .or_default()
            .insert(key.name.clone(), slice);
        self.service_of.insert(key, service);
    }

    pub fn remove_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.service_of.remove(key) else {
            return;
        };
        let Some(slices) = self.slices.get_mut(&service) else {
            return;
        };
        let gone = slices.remove(&key.name).unwrap_or_default();
        if slices.is_empty() {
            self.slices.remove(&service);
        }
        for endpoint in gone.endpoints {
            self.forget_endpoint(endpoint.address, &service);
        }
    }

    fn forget_endpoint(&mut self, address: IpAddr, service: &ObjectKey) {
        let Some(services) = self.by_endpoint_ip.get_mut(&address) else {
            return;
        };
        if let Some(count) = services.get_mut(service) {
            *count -= 1;
            if *count == 0 {
                services.remove(service);
            }
        }
        if services.is_empty() {
            self.by_endpoint_ip.remove(&address);
        }
    }
}

fn read_service(service: &v1::Service) -> Service {
    let empty = v1::ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&empty);
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        Some(Port {
            name: port
                .name
                .as_deref()
                .unwrap_or_default()
                .to_ascii_lowercase(),
            protocol: port
                .protocol
                .as_deref()
                .unwrap_or("TCP")
                .to_ascii_lowercase(),
            port: u16::try_from(port.port).ok()?,
        })
    });
    Service {
        kind: kind_of(spec),
        ports: ports.collect(),
    }
}

fn kind_of(spec: &v1::ServiceSpec) -> Kind {
    if spec.type_.as_deref() == Some("ExternalName") {
        return Kind::External(spec.external_name.clone().unwrap_or_default());
    }
    let listed = spec.cluster_ips.iter().flatten();
    let addresses: Vec<IpAddr> = listed
        .chain(&spec.cluster_ip)
        .filter_map(|text| text.parse().ok())
        .collect();
    let mut unique: Vec<IpAddr> = Vec::new();
    for address in addresses {
        if !unique.contains(&address) {
            unique.push(address);
        }
    }
    if unique.is_empty() {
        Kind::Headless
    } else {
        Kind::Cluster(unique)
    }
}

fn read_slice(slice: &EndpointSlice) -> Slice {
    let ready = |ready: Option<bool>| ready.unwrap_or(true);
    let endpoints = slice
        .endpoints
        .iter()
        .flatten()
        .filter(|each| {
            ready(
                each.conditions
                    .as_ref()
                    .and_then(|conditions| conditions.ready),
            )
        })
        .flat_map(|each| {
            let hostname = each
                .hostname
                .as_deref()
                .filter(|name| !name.is_empty())
                .map(str::to_ascii_lowercase);
            let addresses = each.addresses.iter().filter_map(|text| text.parse().ok());
            addresses.map(move |address| Endpoint {
                address,
                hostname: hostname.clone(),
            })
        });
    let ports = slice.ports.iter().flatten().filter_map(|port| {
        Some(Port {
            name: port
                .name
                .as_deref()
                .unwrap_or_default()
                .to_ascii_lowercase(),
            protocol: port
                .protocol
                .as_deref()
                .unwrap_or("TCP")
                .to_ascii_lowercase(),
            port: u16::try_from(port.port?).ok()?,
        })
    });
    Slice {
        endpoints: endpoints.collect(),
        ports: ports.collect(),
    }
}

/// Applies every change of the cluster to the records.
pub fn follow(informers: &Informers, records: &Arc<RwLock<Records>>) {
    fn on<K: sampan_client::Resource>(
        informers: &Informers,
        records: &Arc<RwLock<Records>>,
        apply: fn(&mut Records, &Change<K>),
    ) {
        let records = records.clone();
        informers.lister::<K>().on_change(move |change| {
            apply(
                &mut records.write().unwrap_or_else(PoisonError::into_inner),
                change,
            )
        });
    }
    on::<Namespace>(informers, records, |records, change| {
        let name = change.object().metadata.name.as_deref().unwrap_or_default();
        match change {
            Change::Applied { .. } => records.set_namespace(name),
            Change::Deleted(_) => records.remove_namespace(name),
        }
    });
    on::<v1::Service>(informers, records, |records, change| match change {
        Change::Applied { new, .. } => records.set_service(new),
        Change::Deleted(service) => records.remove_service(&ObjectKey::of(&service.metadata)),
    });
    on::<EndpointSlice>(informers, records, |records, change| match change {
        Change::Applied { new, .. } => records.set_slice(new),
        Change::Deleted(slice) => records.remove_slice(&ObjectKey::of(&slice.metadata)),
    });
}

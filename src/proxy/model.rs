//! Services and EndpointSlices as the plain data that rules are made from. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort as ApiPort};
use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sampan_netlink::nft::Family;
use sampan_netlink::nft::build::{SCTP, TCP, UDP};

/// Whose slice it is.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Set where another program is to serve this Service.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
const DEFAULT_AFFINITY_SECS: i32 = 10800;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    pub namespace: String,
    pub name: String,
}

impl ServiceName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }

    /// The Service that a slice belongs to.
    pub fn of_slice(slice: &EndpointSlice) -> Option<Self> {
        let name = slice.metadata.labels.as_ref()?.get(LABEL_SERVICE_NAME)?;
        let namespace = slice.metadata.namespace.clone().unwrap_or_default();
        Some(Self::new(namespace, name.clone()))
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One port of a Service in one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    pub service: ServiceName,
    /// Its name; empty for the only port of a Service.
    pub name: String,
    pub protocol: u8,
    pub port: u16,
    pub node_port: Option<u16>,
    pub cluster_ip: IpAddr,
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    /// Who may come in through the load balancer; empty: everybody.
    pub source_ranges: Vec<IpNet>,
    /// How long a client stays with an endpoint, if it does.
    pub affinity: Option<Duration>,
    pub internal_local: bool,
    pub external_local: bool,
}

impl ServicePort {
    pub fn is_external(&self) -> bool {
        self.node_port.is_some()
            || !self.external_ips.is_empty()
            || !self.load_balancer_ips.is_empty()
    }

    /// Whether endpoints on other nodes are used. Even a Service that is `Local` to the outside
    /// serves this node's own pods from everywhere.
    pub fn uses_cluster_endpoints(&self) -> bool {
        !self.internal_local || self.is_external()
    }

    pub fn uses_local_endpoints(&self) -> bool {
        self.internal_local || (self.external_local && self.is_external())
    }

    pub fn protocol_name(&self) -> &'static str {
        match self.protocol {
            UDP => "udp",
            SCTP => "sctp",
            _ => "tcp",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub port: u16,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// On this node.
    pub local: bool,
    pub for_nodes: Vec<String>,
    pub for_zones: Vec<String>,
}

impl Endpoint {
    /// Still answers although it is going away: better than nothing.
    pub fn is_last_resort(&self) -> bool {
        self.serving && self.terminating
    }

    fn rank(&self) -> u8 {
        u8::from(self.ready) << 1 | u8::from(self.serving)
    }
}

/// The ports that this proxy serves; none for headless Services and those of other proxies.
pub fn service_ports(service: &Service, family: Family) -> Vec<ServicePort> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    if spec.type_.as_deref() == Some("ExternalName") || is_left_to_others(&service.metadata) {
        return Vec::new();
    }
    let addresses = spec.cluster_ips.as_deref().unwrap_or_default();
    let first = spec.cluster_ip.iter();
    let Some(cluster_ip) = parse_addresses(addresses.iter().chain(first), family)
        .first()
        .copied()
    else {
        return Vec::new();
    };
    let template = ServicePort {
        service: ServiceName::of(&service.metadata),
        name: String::new(),
        protocol: TCP,
        port: 0,
        node_port: None,
        cluster_ip,
        external_ips: parse_addresses(spec.external_ips.iter().flatten(), family),
        load_balancer_ips: load_balancer_ips(service, family),
        source_ranges: parse_ranges(spec.load_balancer_source_ranges.iter().flatten(), family),
        affinity: affinity(service),
        internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
    };
    let ports = spec.ports.iter().flatten();
    ports
        .filter_map(|port| service_port(&template, port))
        .collect()
}

fn service_port(template: &ServicePort, port: &ApiPort) -> Option<ServicePort> {
    Some(ServicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol: protocol_number(port.protocol.as_deref())?,
        port: u16::try_from(port.port).ok().filter(|p| *p != 0)?,
        node_port: port
            .node_port
            .and_then(|p| u16::try_from(p).ok())
            .filter(|p| *p != 0),
        ..template.clone()
    })
}

/// The port on which load balancers ask whether this node has endpoints.
pub fn health_check_port(service: &Service) -> Option<u16> {
    let spec = service.spec.as_ref()?;
    let balanced = spec.type_.as_deref() == Some("LoadBalancer");
    let local = spec.external_traffic_policy.as_deref() == Some("Local");
    let port = u16::try_from(spec.health_check_node_port?).ok()?;
    (balanced && local && port != 0).then_some(port)
}

fn is_left_to_others(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    labels.is_some_and(|l| l.contains_key(LABEL_PROXY_NAME) || l.contains_key(LABEL_HEADLESS))
}

fn protocol_number(name: Option<&str>) -> Option<u8> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(TCP),
        "UDP" => Some(UDP),
        "SCTP" => Some(SCTP),
        _ => None,
    }
}

fn affinity(service: &Service) -> Option<Duration> {
    let spec = service.spec.as_ref()?;
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref();
    let secs = config
        .and_then(|c| c.client_ip.as_ref())
        .and_then(|c| c.timeout_seconds)
        .unwrap_or(DEFAULT_AFFINITY_SECS);
    Some(Duration::from_secs(
        u64::try_from(secs).unwrap_or_default().max(1),
    ))
}

/// Addresses of the load balancer that arrive here unchanged (mode VIP, the default).
fn load_balancer_ips(service: &Service, family: Family) -> Vec<IpAddr> {
    let status = service
        .status
        .as_ref()
        .and_then(|s| s.load_balancer.as_ref());
    let ingress = status.and_then(|l| l.ingress.as_ref());
    let ours = ingress
        .into_iter()
        .flatten()
        .filter(|i| i.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|i| i.ip.as_ref());
    parse_addresses(ours, family)
}

fn is_of(address: IpAddr, family: Family) -> bool {
    address.is_ipv6() == (family == Family::Ip6)
}

fn parse_addresses<'a>(texts: impl Iterator<Item = &'a String>, family: Family) -> Vec<IpAddr> {
    texts
        .filter_map(|text| text.parse().ok())
        .filter(|address| is_of(*address, family))
        .collect()
}

fn parse_ranges<'a>(texts: impl Iterator<Item = &'a String>, family: Family) -> Vec<IpNet> {
    texts
        .filter_map(|text| text.trim().parse().ok())
        .filter(|range: &IpNet| is_of(range.addr(), family))
        .collect()
}

/// The endpoints behind one port, from all slices of its Service, each (address, port) once.
pub fn endpoints(
    slices: &[Arc<EndpointSlice>],
    port: &ServicePort,
    family: Family,
    node_name: &str,
) -> Vec<Endpoint> {
    let address_type = if family == Family::Ip6 {
        "IPv6"
    } else {
        "IPv4"
    };
    let mut found: BTreeMap<(IpAddr, u16), Endpoint> = BTreeMap::new();
    for slice in slices.iter().filter(|s| s.address_type == address_type) {
        let Some(number) = port_number(slice, port) else {
            continue;
        };
        for endpoint in slice.endpoints.iter().flatten() {
            let Some(endpoint) = read_endpoint(endpoint, number, node_name) else {
                continue;
            };
            // While a pod moves between slices it may be in two; the better news is the newer.
            let key = (endpoint.address, endpoint.port);
            let known = found.get(&key).map(Endpoint::rank);
            if known.is_none_or(|rank| rank < endpoint.rank()) {
                found.insert(key, endpoint);
            }
        }
    }
    found.into_values().collect()
}

fn port_number(slice: &EndpointSlice, wanted: &ServicePort) -> Option<u16> {
    let matches = |port: &&k8s_openapi::api::discovery::v1::EndpointPort| {
        port.name.as_deref().unwrap_or_default() == wanted.name
            && protocol_number(port.protocol.as_deref()) == Some(wanted.protocol)
    };
    let port = slice.ports.iter().flatten().find(matches)?;
    port.port.and_then(|p| u16::try_from(p).ok())
}

fn read_endpoint(endpoint: &ApiEndpoint, port: u16, node_name: &str) -> Option<Endpoint> {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let hints = endpoint.hints.as_ref();
    Some(Endpoint {
        address: endpoint.addresses.first()?.parse().ok()?,
        port,
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(node_name),
        for_nodes: hints
            .and_then(|h| h.for_nodes.as_ref())
            .map(|all| all.iter().map(|n| n.name.clone()).collect())
            .unwrap_or_default(),
        for_zones: hints
            .and_then(|h| h.for_zones.as_ref())
            .map(|all| all.iter().map(|z| z.name.clone()).collect())
            .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn service(spec: serde_json::Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default"}, "spec": spec,
            "status": {"loadBalancer": {"ingress": [
                {"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "Proxy"}, {"hostname": "x"}]}}
        }))
        .unwrap()
    }

    #[test]
    fn a_service_is_read_per_family() {
        let service = service(json!({
            "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd00::9"],
            "type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "externalIPs": ["198.51.100.1", "2001:db8::1"], "sessionAffinity": "ClientIP",
            "loadBalancerSourceRanges": ["192.0.2.0/24", "bad"],
            "ports": [
                {"name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP"},
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "odd", "port": 1, "protocol": "ICMP"}]
        }));
        let v4 = service_ports(&service, Family::Ip);
        assert_eq!(v4.len(), 2);
        assert_eq!((v4[0].node_port, v4[1].protocol), (Some(30080), UDP));
        assert_eq!(
            v4[0].load_balancer_ips,
            ["203.0.113.1".parse::<IpAddr>().unwrap()]
        );
        assert_eq!(
            v4[0].external_ips,
            ["198.51.100.1".parse::<IpAddr>().unwrap()]
        );
        assert_eq!(v4[0].affinity, Some(Duration::from_secs(10800)));
        assert_eq!(v4[0].source_ranges.len(), 1);
        assert!(v4[0].external_local && !v4[0].internal_local);
        let v6 = service_ports(&service, Family::Ip6);
        assert_eq!(v6[0].cluster_ip, "fd00::9".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn services_without_an_address_or_for_others_have_no_ports() {
        let ports = json!([{"port": 80}]);
        for spec in [
            json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
            json!({"type": "ExternalName", "externalName": "x", "ports": ports}),
        ] {
            assert_eq!(service_ports(&service(spec), Family::Ip), []);
        }
        let mut other = service(json!({"clusterIP": "10.43.0.9", "ports": ports}));
        assert_eq!(service_ports(&other, Family::Ip).len(), 1);
        let label = (LABEL_PROXY_NAME.to_owned(), "theirs".to_owned());
        other.metadata.labels = Some([label].into());
        assert_eq!(service_ports(&other, Family::Ip), []);
    }

    #[test]
    fn endpoints_of_all_slices_are_joined_once() {
        let spec = json!({"clusterIP": "10.43.0.9", "ports": [{"name": "http", "port": 80}]});
        let port = service_ports(&service(spec), Family::Ip).remove(0);
        let slice = |address_type: &str, endpoints: serde_json::Value| {
            let slice = json!({"metadata": {"name": "x"}, "addressType": address_type,
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints});
            Arc::new(serde_json::from_value::<EndpointSlice>(slice).unwrap())
        };
        let not_ready = json!({"ready": false, "serving": false});
        let slices = [
            slice(
                "IPv4",
                json!([{"addresses": ["10.42.0.2"], "nodeName": "n1"},
                {"addresses": ["10.42.0.3"], "conditions": not_ready}]),
            ),
            slice(
                "IPv4",
                json!([{"addresses": ["10.42.0.2"], "conditions": not_ready},
                {"addresses": ["10.42.0.3"]}]),
            ),
            slice("IPv6", json!([{"addresses": ["fd00::2"]}])),
        ];
        let found = endpoints(&slices, &port, Family::Ip, "n1");
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|e| e.ready && e.port == 8080));
        assert!(found[0].local && !found[1].local);
    }
}

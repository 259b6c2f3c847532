//! Names of what the table holds.

use crate::model::ServicePort;

pub(super) const CLUSTER_IPS: &str = "cluster-ips";
pub(super) const SERVICE_IPS: &str = "service-ips";
pub(super) const SERVICE_NODE_PORTS: &str = "service-nodeports";
pub(super) const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
pub(super) const NO_ENDPOINT_NODE_PORTS: &str = "no-endpoint-nodeports";
pub(super) const FIREWALL_IPS: &str = "firewall-ips";
pub(super) const HAIRPIN: &str = "hairpin-connections";

pub(super) const SERVICES: &str = "services";
pub(super) const MASQUERADING: &str = "masquerading";
pub(super) const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";
pub(super) const ENDPOINTS_CHECK: &str = "service-endpoints-check";
pub(super) const NODE_PORTS_CHECK: &str = "nodeport-endpoints-check";
pub(super) const FIREWALL_CHECK: &str = "firewall-check";
pub(super) const REJECT: &str = "reject-chain";

/// Namespace, name and port name are DNS labels, so the result is unambiguous and short enough.
fn of(prefix: &str, port: &ServicePort) -> String {
    format!(
        "{prefix}-{}/{}/{}/{}",
        port.service.namespace,
        port.service.name,
        port.protocol_name(),
        port.name
    )
}

pub(super) fn cluster_chain(port: &ServicePort) -> String {
    of("cluster", port)
}

pub(super) fn local_chain(port: &ServicePort) -> String {
    of("local", port)
}

pub(super) fn external_chain(port: &ServicePort) -> String {
    of("external", port)
}

pub(super) fn firewall_chain(port: &ServicePort) -> String {
    of("firewall", port)
}

pub(super) fn affinity_map(chain: &str) -> String {
    format!("affinity-{chain}")
}

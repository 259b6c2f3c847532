//! Services, slices, ingresses and network policies.

use serde_json::{Value, json};

use super::Rule;
use crate::meta::{self, default, default_text, get, integer, items_mut, text};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("core.v1.Service", service),
    ("core.v1.ServiceSpec", spec),
    ("discovery.v1.EndpointPort", slice_port),
    ("networking.v1.NetworkPolicySpec", policy),
    ("networking.v1.NetworkPolicyPort", policy_port),
    ("networking.v1.IngressClassSpec", ingress_class),
];

/// Seconds that a client sticks to its endpoint.
const AFFINITY_SECONDS: i64 = 10_800;

fn service(service: &mut Value) {
    if text(service, &["spec", "type"]) == "LoadBalancer" {
        for ingress in items_mut(service, &["status", "loadBalancer", "ingress"]) {
            if !text(ingress, &["ip"]).is_empty() {
                default(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn spec(spec: &mut Value) {
    affinity(spec);
    default_text(spec, "type", "ClusterIP");
    for port in items_mut(spec, &["ports"]) {
        default_text(port, "protocol", "TCP");
        let target = get(port, "targetPort");
        if target.is_null() || *target == json!(0) || *target == json!("") {
            let own = get(port, "port").clone();
            port["targetPort"] = own;
        }
    }
    if is_externally_accessible(spec) {
        default_text(spec, "externalTrafficPolicy", "Cluster");
    }
    let kind = text(spec, &["type"]).to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

fn affinity(spec: &mut Value) {
    default_text(spec, "sessionAffinity", "None");
    match text(spec, &["sessionAffinity"]) {
        "None" => {
            meta::remove(spec, &["sessionAffinityConfig"]);
        }
        "ClientIP" => {
            let seconds = ["sessionAffinityConfig", "clientIP", "timeoutSeconds"];
            if integer(spec, &seconds).is_none() {
                meta::set(spec, &seconds, AFFINITY_SECONDS);
            }
        }
        _ => {}
    }
}

/// Whether traffic from outside the cluster can reach it.
pub(crate) fn is_externally_accessible(spec: &Value) -> bool {
    match text(spec, &["type"]) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !meta::items(spec, &["externalIPs"]).is_empty(),
        _ => false,
    }
}

fn slice_port(port: &mut Value) {
    default(port, "name", "");
    default(port, "protocol", "TCP");
}

fn policy(spec: &mut Value) {
    if meta::items(spec, &["policyTypes"]).is_empty() {
        spec["policyTypes"] = if meta::items(spec, &["egress"]).is_empty() {
            json!(["Ingress"])
        } else {
            json!(["Ingress", "Egress"])
        };
    }
}

fn policy_port(port: &mut Value) {
    default(port, "protocol", "TCP");
}

fn ingress_class(spec: &mut Value) {
    if let Some(parameters) = spec.get_mut("parameters") {
        default(parameters, "scope", "Cluster");
    }
}

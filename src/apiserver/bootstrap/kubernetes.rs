//! The Service `kubernetes` with its endpoints, and the service ranges.

use std::net::IpAddr;

use sampan_api::meta::get;
use serde_json::{Value, json};

use super::Settings;

pub(super) fn objects(settings: &Settings) -> Vec<Value> {
    let cidrs: Vec<String> = settings
        .service_ranges
        .iter()
        .map(|range| format!("{}/{}", range.network, range.prefix))
        .collect();
    let addresses: Vec<String> = settings
        .service_ranges
        .iter()
        .take(1)
        .map(|range| range.at(1).to_string())
        .collect();
    let mut objects = vec![
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}}),
    ];
    if let Some(first) = addresses.first() {
        objects.push(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"provider": "kubernetes", "component": "apiserver"}},
            "spec": {"type": "ClusterIP", "clusterIP": first, "clusterIPs": addresses,
                "sessionAffinity": "None",
                "ports": [{"name": "https", "protocol": "TCP", "port": 443,
                    "targetPort": settings.port}]}}));
    }
    objects
}

/// Where the servers are reached: as Endpoints and as slices, one a family.
pub(super) fn endpoints(settings: &Settings) -> Vec<Value> {
    let family_of = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let Some(first) = settings.advertise.first() else {
        return Vec::new();
    };
    let family = family_of(first);
    let addresses: Vec<String> = settings
        .advertise
        .iter()
        .filter(|address| family_of(address) == family)
        .map(IpAddr::to_string)
        .collect();
    let port = json!({"name": "https", "port": settings.port, "protocol": "TCP"});
    let listed: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let ready: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    vec![
        json!({"apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": listed, "ports": [port]}]}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": family, "endpoints": ready, "ports": [port]}),
    ]
}

/// Whether the addresses and ports that are stored are the wanted ones.
pub(super) fn is_current(current: &Value, wanted: &Value) -> bool {
    ["subsets", "endpoints", "ports", "addressType"]
        .iter()
        .all(|key| get(current, key) == get(wanted, key))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::allocate::Range;

    #[test]
    fn the_service_has_the_first_address() {
        let settings = Settings {
            advertise: vec!["192.0.2.1".parse().unwrap()],
            port: 6443,
            service_ranges: vec![Range {
                network: "10.43.0.0".parse().unwrap(),
                prefix: 16,
            }],
        };
        let service = objects(&settings).pop().unwrap();
        assert_eq!(service["spec"]["clusterIP"], "10.43.0.1");
        let endpoints = endpoints(&settings);
        assert_eq!(
            endpoints[0]["subsets"][0]["addresses"][0]["ip"],
            "192.0.2.1"
        );
        assert!(is_current(&endpoints[1], &endpoints[1]));
    }
}

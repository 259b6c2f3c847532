//! Services.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::network::{cidr, endpoint_ip};
use super::{dns_label, dns_subdomain, label_name, legacy_ip, one_of, required_one_of};
use crate::field::{ErrorList, Path};
use crate::kinds::service::needs_health_check;
use crate::meta::{at, get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");
const ANNOTATIONS: Path<'static> = Path::new("metadata.annotations");

fn is_headless(service: &Value) -> bool {
    matches!(items(service, &["spec", "clusterIPs"]), [one] if one == "None")
}

fn kind(service: &Value) -> &str {
    text(service, &["spec", "type"])
}

pub(crate) fn service(service: &Value, errors: &mut ErrorList) {
    topology(service, errors);
    let spec = get(service, "spec");
    by_type(service, spec, errors);
    ports(service, spec, errors);
    super::labels(get(spec, "selector"), &SPEC.child("selector"), errors);
    affinity(spec, errors);
    cluster_ips(service, errors);
    external_ips(spec, errors);
    required_one_of(
        kind(service),
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        &SPEC.child("type"),
        errors,
    );
    node_ports(service, spec, errors);
    source_ranges(service, spec, errors);
    load_balancer(service, spec, errors);
    traffic(service, spec, errors);
}

fn topology(service: &Value, errors: &mut ErrorList) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    const MODE: &str = "service.kubernetes.io/topology-mode";
    let annotation = |key: &str| at(service, &["metadata", "annotations", key]).as_str();
    if let (Some(hints), Some(mode)) = (annotation(HINTS), annotation(MODE))
        && hints != mode
    {
        let why = format!("must match annotations[{HINTS}] when both are specified");
        errors.invalid(&ANNOTATIONS.key(MODE), mode, why);
    }
}

fn by_type(service: &Value, spec: &Value, errors: &mut ErrorList) {
    let headless = is_headless(service);
    let kind = kind(service);
    if items(spec, &["ports"]).is_empty() && !headless && kind != "ExternalName" {
        errors.required(&SPEC.child("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let why = format!("may not be set to 'None' for {kind} services");
            errors.invalid(&SPEC.child("clusterIPs").index(0), "None", why);
        }
        "ExternalName" => {
            for key in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                let value = get(spec, key);
                let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
                if !empty {
                    let why = "may not be set for ExternalName services";
                    errors.forbidden(&SPEC.child(key), why);
                }
            }
            let name = text(spec, &["externalName"]);
            let name = name.strip_suffix('.').unwrap_or(name);
            if name.is_empty() {
                errors.required(&SPEC.child("externalName"), "");
            } else {
                dns_subdomain(name, &SPEC.child("externalName"), errors);
            }
        }
        _ => {}
    }
}

fn ports(_service: &Value, spec: &Value, errors: &mut ErrorList) {
    let list = items(spec, &["ports"]);
    let path = SPEC.child("ports");
    let mut seen = BTreeSet::new();
    for (index, port) in list.iter().enumerate() {
        let at = path.index(index);
        let name = text(port, &["name"]);
        if !name.is_empty() {
            dns_label(name, &at.child("name"), errors);
            if !seen.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
        } else if list.len() > 1 {
            errors.required(&at.child("name"), "");
        }
        let number = integer(port, &["port"]).unwrap_or(0);
        for message in names::port_number(number) {
            errors.invalid(&at.child("port"), number, message);
        }
        let protocol = text(port, &["protocol"]);
        required_one_of(
            protocol,
            &["SCTP", "TCP", "UDP"],
            &at.child("protocol"),
            errors,
        );
        super::port(get(port, "targetPort"), &at.child("targetPort"), errors);
        if let Some(protocol) = get(port, "appProtocol").as_str() {
            label_name(protocol, &at.child("appProtocol"), errors);
        }
    }
}

fn affinity(spec: &Value, errors: &mut ErrorList) {
    let affinity = text(spec, &["sessionAffinity"]);
    let path = SPEC.child("sessionAffinity");
    required_one_of(affinity, &["ClientIP", "None"], &path, errors);
    let config = get(spec, "sessionAffinityConfig");
    let path = SPEC.child("sessionAffinityConfig");
    match affinity {
        "ClientIP" => client_ip(config, &path, errors),
        "None" if !config.is_null() => {
            errors.forbidden(&path, "must not be set when session affinity is None");
        }
        _ => {}
    }
}

fn client_ip(config: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if config.is_null() {
        errors.required(path, "when session affinity type is ClientIP");
        return;
    }
    let client = path.child("clientIP");
    if get(config, "clientIP").is_null() {
        errors.required(&client, "when session affinity type is ClientIP");
        return;
    }
    let timeout = client.child("timeoutSeconds");
    match integer(config, &["clientIP", "timeoutSeconds"]) {
        None => errors.required(&timeout, "when session affinity type is ClientIP"),
        Some(seconds) if !(1..=86400).contains(&seconds) => {
            errors.invalid(
                &timeout,
                seconds,
                "must be greater than 0 and less than 86400",
            );
        }
        Some(_) => {}
    }
}

/// Addresses and families, which belong together.
pub(crate) fn cluster_ips(service: &Value, errors: &mut ErrorList) {
    if kind(service) == "ExternalName" {
        return;
    }
    let spec = get(service, "spec");
    let path = SPEC.child("clusterIPs");
    let all = items(spec, &["clusterIPs"]);
    let first = text(spec, &["clusterIP"]);
    if first.is_empty() {
        if !all.is_empty() {
            let why = "must be empty when `clusterIP` is not specified";
            errors.invalid(&path, all.to_vec(), why);
        }
    } else if all.is_empty() {
        errors.required(&path, "");
    } else if all[0] != first {
        errors.invalid(&path, all.to_vec(), "first value must match `clusterIP`");
    }
    families(spec, errors);
    addresses(spec, all, errors);
}

fn families(spec: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("ipFamilies");
    let mut seen = BTreeSet::new();
    for (index, family) in items(spec, &["ipFamilies"]).iter().enumerate() {
        let family = family.as_str().unwrap_or_default();
        one_of(family, &["IPv4", "IPv6"], &path.index(index), errors);
        if !seen.insert(family) {
            errors.duplicate(&path.index(index), family);
        }
    }
    if let Some(policy) = get(spec, "ipFamilyPolicy").as_str() {
        let valid = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        one_of(policy, &valid, &SPEC.child("ipFamilyPolicy"), errors);
    }
}

fn addresses(spec: &Value, all: &[Value], errors: &mut ErrorList) {
    let path = SPEC.child("clusterIPs");
    let before = errors.len();
    for (index, address) in all.iter().enumerate() {
        let address = address.as_str().unwrap_or_default();
        if index == 0 && address == "None" {
            if all.len() > 1 {
                let why = "'None' must be the first and only value";
                errors.invalid(&path, all.to_vec(), why);
            }
            continue;
        }
        legacy_ip(address, &path.index(index), errors);
    }
    let bad = errors.len() > before;
    if all.len() > 2 {
        errors.invalid(&path, all.to_vec(), "may only hold up to 2 values");
    }
    if bad {
        return;
    }
    let is_v6 = |address: &Value| address.as_str().is_some_and(|text| text.contains(':'));
    if all.len() > 1 && !(all.len() == 2 && is_v6(&all[0]) != is_v6(&all[1])) {
        let why = "may specify no more than one IP for each IP family";
        errors.invalid(&path, all.to_vec(), why);
    }
    if matches!(all, [one] if one == "None") {
        return;
    }
    for (index, (address, family)) in all.iter().zip(items(spec, &["ipFamilies"])).enumerate() {
        let wrong = match family.as_str() {
            Some("IPv4") => is_v6(address),
            Some("IPv6") => !is_v6(address),
            _ => false,
        };
        if wrong {
            let family = family.as_str().unwrap_or_default();
            let why = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            errors.invalid(&path.index(index), address.clone(), why);
        }
    }
}

fn external_ips(spec: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("externalIPs");
    for (index, address) in items(spec, &["externalIPs"]).iter().enumerate() {
        let address = address.as_str().unwrap_or_default();
        if names::parse_legacy_ip(address).is_some() {
            endpoint_ip(address, &path.index(index), errors);
        } else {
            legacy_ip(address, &path.index(index), errors);
        }
    }
}

fn node_ports(service: &Value, spec: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("ports");
    let list = items(spec, &["ports"]);
    let node_port = |port: &Value| integer(port, &["nodePort"]).unwrap_or(0);
    if kind(service) == "ClusterIP" {
        for (index, port) in list.iter().enumerate() {
            if node_port(port) != 0 {
                let why = "may not be used when `type` is 'ClusterIP'";
                errors.forbidden(&path.index(index).child("nodePort"), why);
            }
        }
    }
    let mut seen = BTreeSet::new();
    for (index, port) in list.iter().enumerate() {
        let number = node_port(port);
        if number != 0 && !seen.insert((text(port, &["protocol"]), number)) {
            errors.duplicate(&path.index(index).child("nodePort"), number);
        }
    }
    let mut seen = BTreeSet::new();
    for (index, port) in list.iter().enumerate() {
        let number = integer(port, &["port"]).unwrap_or(0);
        let protocol = text(port, &["protocol"]);
        if !seen.insert((protocol, number)) {
            errors.duplicate(
                &path.index(index),
                json!({"protocol": protocol, "port": number}),
            );
        }
    }
}

fn source_ranges(service: &Value, spec: &Value, errors: &mut ErrorList) {
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let ranges = items(spec, &["loadBalancerSourceRanges"]);
    let wrong_type = kind(service) != "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    if !ranges.is_empty() {
        let path = SPEC.child("LoadBalancerSourceRanges");
        if wrong_type {
            errors.forbidden(&path, only);
        }
        for (index, range) in ranges.iter().enumerate() {
            cidr(
                range.as_str().unwrap_or_default().trim(),
                &path.index(index),
                errors,
            );
        }
    } else if let Some(value) = at(service, &["metadata", "annotations", ANNOTATION]).as_str() {
        let path = ANNOTATIONS.key(ANNOTATION);
        if wrong_type {
            errors.forbidden(&path, only);
        }
        let value = value.trim();
        if !value.is_empty() {
            value
                .split(',')
                .for_each(|range| cidr(range.trim(), &path, errors));
        }
    }
}

fn load_balancer(service: &Value, spec: &Value, errors: &mut ErrorList) {
    let allocates = get(spec, "allocateLoadBalancerNodePorts");
    let is_balancer = kind(service) == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    if !is_balancer && !allocates.is_null() {
        errors.forbidden(&SPEC.child("allocateLoadBalancerNodePorts"), only);
    }
    if is_balancer && allocates.is_null() {
        errors.required(&Path::new("allocateLoadBalancerNodePorts"), "");
    }
    if let Some(class) = get(spec, "loadBalancerClass").as_str() {
        let path = SPEC.child("loadBalancerClass");
        if is_balancer {
            label_name(class, &path, errors);
        } else {
            errors.forbidden(&path, only);
        }
    }
}

fn traffic(service: &Value, spec: &Value, errors: &mut ErrorList) {
    let kind = kind(service);
    let policy = text(spec, &["externalTrafficPolicy"]);
    let path = SPEC.child("externalTrafficPolicy");
    let reachable = matches!(kind, "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && !items(spec, &["externalIPs"]).is_empty());
    if reachable {
        required_one_of(policy, &["Cluster", "Local"], &path, errors);
    } else if !policy.is_empty() {
        errors.invalid(
            &path,
            policy,
            "may only be set for externally-accessible services",
        );
    }
    health_check(service, spec, errors);
    let path = SPEC.child("internalTrafficPolicy");
    match get(spec, "internalTrafficPolicy").as_str() {
        Some(policy) => one_of(policy, &["Cluster", "Local"], &path, errors),
        None if matches!(kind, "NodePort" | "LoadBalancer" | "ClusterIP") => {
            errors.required(&path, "");
        }
        None => {}
    }
    if let Some(distribution) = get(spec, "trafficDistribution").as_str() {
        let valid = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        one_of(
            distribution,
            &valid,
            &SPEC.child("trafficDistribution"),
            errors,
        );
    }
}

fn health_check(service: &Value, spec: &Value, errors: &mut ErrorList) {
    let port = integer(spec, &["healthCheckNodePort"]).unwrap_or(0);
    let path = SPEC.child("healthCheckNodePort");
    if !needs_health_check(service) {
        if port != 0 {
            let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(&path, port, why);
        }
    } else if port != 0 {
        for message in names::port_number(port) {
            errors.invalid(&path, port, message);
        }
    }
}

pub(crate) fn update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let external = |service: &Value| kind(service) == "ExternalName";
    if !external(new) && !external(old) {
        kept_addresses(new, old, errors);
        kept_families(new, old, errors);
    }
    let class = |service: &Value| at(service, &["spec", "loadBalancerClass"]).clone();
    let balancer = |service: &Value| kind(service) == "LoadBalancer";
    if balancer(new) && balancer(old) && class(new) != class(old) {
        let path = SPEC.child("loadBalancerClass");
        errors.invalid(&path, class(new), "may not change once set");
    }
    let port = |service: &Value| integer(service, &["spec", "healthCheckNodePort"]).unwrap_or(0);
    if needs_health_check(new) && needs_health_check(old) && port(new) != port(old) {
        errors.forbidden(&SPEC.child("healthCheckNodePort"), "field is immutable");
    }
    service(new, errors);
}

fn kept_addresses(new: &Value, old: &Value, errors: &mut ErrorList) {
    if is_headless(new) && is_headless(old) {
        return;
    }
    kept_list(new, old, "clusterIPs", ("clusterIP", "clusterIP"), errors);
}

fn kept_families(new: &Value, old: &Value, errors: &mut ErrorList) {
    if is_headless(new) || is_headless(old) {
        return;
    }
    kept_list(new, old, "ipFamilies", ("ipFamily", "ipFamily"), errors);
}

/// The first entry never changes; the second may come and go, the latter only by the policy.
fn kept_list(new: &Value, old: &Value, key: &str, what: (&str, &str), errors: &mut ErrorList) {
    let path = SPEC.child(key);
    let now = items(new, &["spec", key]);
    let before = items(old, &["spec", key]);
    let changed = "may not change once set";
    if now.len() == before.len() {
        for (index, (now_one, before_one)) in now.iter().zip(before).enumerate() {
            if now_one != before_one {
                errors.invalid(&path.index(index), now.to_vec(), changed);
            }
        }
        return;
    }
    if now.len() < before.len() && now.is_empty() {
        let why = format!("primary {} can not be unset", what.0);
        errors.invalid(&path.index(0), now.to_vec(), why);
    }
    if let (Some(now_one), Some(before_one)) = (now.first(), before.first())
        && now_one != before_one
    {
        errors.invalid(&path.index(0), now.to_vec(), changed);
    }
    let policy = at(new, &["spec", "ipFamilyPolicy"]);
    if now.len() == 1 && before.len() > 1 && policy != "SingleStack" {
        let why = format!(
            "must be set to 'SingleStack' when releasing the secondary {}",
            what.1
        );
        errors.invalid(&SPEC.child("ipFamilyPolicy"), policy.clone(), why);
    }
}

pub(crate) fn status(new: &Value, errors: &mut ErrorList) {
    let path = Path::new("status.loadBalancer.ingress");
    let list = items(new, &["status", "loadBalancer", "ingress"]);
    if kind(new) != "LoadBalancer" && !list.is_empty() {
        errors.forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'");
        return;
    }
    for (index, ingress) in list.iter().enumerate() {
        ingress_point(ingress, &path.index(index), errors);
    }
}

fn ingress_point(ingress: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let address = text(ingress, &["ip"]);
    if !address.is_empty() {
        legacy_ip(address, &path.child("ip"), errors);
    }
    let mode_path = path.child("ipMode");
    match get(ingress, "ipMode").as_str() {
        None if !address.is_empty() => {
            errors.required(&mode_path, "must be specified when `ip` is set");
        }
        Some(_) if address.is_empty() => {
            errors.forbidden(&mode_path, "may not be specified when `ip` is not set");
        }
        Some(mode) => one_of(mode, &["Proxy", "VIP"], &mode_path, errors),
        None => {}
    }
    let host = text(ingress, &["hostname"]);
    if !host.is_empty() {
        dns_subdomain(host, &path.child("hostname"), errors);
        if names::parse_legacy_ip(host).is_some() {
            let why = "must be a DNS name, not an IP address";
            errors.invalid(&path.child("hostname"), host, why);
        }
    }
}

//! Addresses, and the kinds of networking.k8s.io and discovery.k8s.io.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::job::domain_prefixed;
use super::{dns_label, dns_subdomain, immutable, label_name, label_selector, legacy_ip, one_of};
use crate::field::{ErrorList, Path};
use crate::meta::{at, get, integer, items, text};
use crate::names;

const SPEC: Path<'static> = Path::new("spec");

/// An address that a packet of another host may go to.
pub(crate) fn endpoint_ip(address: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(ip) = names::parse_legacy_ip(address) else {
        errors.invalid(path, address, "must be a valid IP address");
        return;
    };
    // An IPv4 address written as an IPv6 one is the IPv4 address.
    let ip = ip.to_canonical();
    let mut bad = |why: &str| errors.invalid(path, address, why);
    if ip.is_unspecified() {
        bad(&format!("may not be unspecified ({address})"));
    }
    if ip.is_loopback() {
        bad("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link_local, local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (
            v6.segments()[0] & 0xffc0 == 0xfe80,
            v6.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    if link_local {
        bad("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if local_multicast {
        bad("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// A network and its prefix's length.
fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = names::parse_legacy_ip(address)?;
    let length: u8 = length.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    (length <= most).then_some((address, length))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => v6.into(),
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// A network as old fields take it.
pub(crate) fn cidr(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if parse_cidr(text).is_none() {
        errors.invalid(path, text, NO_CIDR);
    }
}

/// A network in canonical form.
fn strict_cidr(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let Some((address, length)) = parse_cidr(text) else {
        errors.invalid(path, text, NO_CIDR);
        return;
    };
    let written = text.split_once('/').map_or("", |(address, _)| address);
    if written.parse::<IpAddr>().is_err() {
        errors.invalid(path, text, "must not have leading 0s in IP");
    } else if bits(address) & !mask(length) != 0 {
        errors.invalid(
            path,
            text,
            "must not have bits set beyond the prefix length",
        );
    } else {
        let canonical = format!("{address}/{length}");
        if canonical != text {
            errors.invalid(
                path,
                text,
                format!("must be in canonical form ({canonical:?})"),
            );
        }
    }
}

/// An address in canonical form.
pub(crate) fn strict_ip(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    match text.parse::<IpAddr>() {
        Ok(address) if address.to_string() == text => {}
        Ok(address) => {
            errors.invalid(
                path,
                text,
                format!("must be in canonical form ({:?})", address.to_string()),
            );
        }
        Err(_) if names::parse_legacy_ip(text).is_some() => {
            errors.invalid(path, text, "must not have leading 0s");
        }
        Err(_) => legacy_ip(text, path, errors),
    }
}

pub(crate) fn policy(policy: &Value, errors: &mut ErrorList) {
    let spec = get(policy, "spec");
    label_selector(get(spec, "podSelector"), &SPEC.child("podSelector"), errors);
    for (list, peers) in [("ingress", "from"), ("egress", "to")] {
        let path = SPEC.child(list);
        for (index, rule) in items(spec, &[list]).iter().enumerate() {
            let at = path.index(index);
            let ports = at.child("ports");
            for (index, port) in items(rule, &["ports"]).iter().enumerate() {
                policy_port(port, &ports.index(index), errors);
            }
            let peers_path = at.child(peers);
            for (index, one) in items(rule, &[peers]).iter().enumerate() {
                peer(one, &peers_path.index(index), errors);
            }
        }
    }
    let types = items(spec, &["policyTypes"]);
    let path = SPEC.child("policyTypes");
    if types.len() > 2 {
        errors.invalid(
            &path,
            types.to_vec(),
            "may not specify more than two policyTypes",
        );
        return;
    }
    for (index, kind) in types.iter().enumerate() {
        let kind = kind.as_str().unwrap_or_default();
        one_of(kind, &["Ingress", "Egress"], &path.index(index), errors);
    }
}

fn policy_port(port: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(protocol) = get(port, "protocol").as_str() {
        one_of(
            protocol,
            &["TCP", "UDP", "SCTP"],
            &path.child("protocol"),
            errors,
        );
    }
    let end = integer(port, &["endPort"]);
    let end_path = path.child("endPort");
    let number = get(port, "port");
    if !number.is_null() {
        super::port(number, &path.child("port"), errors);
    }
    match (number, end) {
        (_, None) => {}
        (Value::Null, Some(end)) => {
            errors.invalid(
                &end_path,
                end,
                "may not be specified when `port` is not specified",
            );
        }
        (Value::String(_), Some(end)) => {
            errors.invalid(
                &end_path,
                end,
                "may not be specified when `port` is non-numeric",
            );
        }
        (number, Some(end)) => {
            let first = number.as_i64().unwrap_or(0);
            if end < first {
                errors.invalid(&end_path, first, "must be greater than or equal to `port`");
            }
            for message in names::port_number(end) {
                errors.invalid(&end_path, end, message);
            }
        }
    }
}

fn peer(peer: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut count = 0;
    for key in ["podSelector", "namespaceSelector"] {
        let selector = get(peer, key);
        if !selector.is_null() {
            count += 1;
            label_selector(selector, &path.child(key), errors);
        }
    }
    let block = get(peer, "ipBlock");
    if !block.is_null() {
        count += 1;
        ip_block(block, &path.child("ipBlock"), errors);
    }
    if count == 0 {
        errors.required(path, "must specify a peer");
    } else if count > 1 && !block.is_null() {
        errors.forbidden(path, "may not specify both ipBlock and another peer");
    }
}

fn ip_block(block: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let whole = text(block, &["cidr"]);
    if whole.is_empty() {
        errors.required(&path.child("cidr"), "");
        return;
    }
    cidr(whole, &path.child("cidr"), errors);
    let Some((network, length)) = parse_cidr(whole) else {
        return;
    };
    let list = path.child("except");
    for (index, part) in items(block, &["except"]).iter().enumerate() {
        let part = part.as_str().unwrap_or_default();
        let at = list.index(index);
        cidr(part, &at, errors);
        let Some((inner, inner_length)) = parse_cidr(part) else {
            continue;
        };
        let inside = network.is_ipv4() == inner.is_ipv4()
            && (bits(network) ^ bits(inner)) & mask(length) == 0;
        if !inside || length >= inner_length {
            errors.invalid(&at, part, "must be a strict subset of `cidr`");
        }
    }
}

pub(crate) fn ingress(ingress: &Value, errors: &mut ErrorList) {
    let spec = get(ingress, "spec");
    let rules = items(spec, &["rules"]);
    let backend = get(spec, "defaultBackend");
    if rules.is_empty() && backend.is_null() {
        let why = "either `defaultBackend` or `rules` must be specified";
        errors.invalid(&SPEC, get(spec, "rules").clone(), why);
    }
    if !backend.is_null() {
        ingress_backend(backend, &SPEC.child("defaultBackend"), errors);
    }
    let path = SPEC.child("rules");
    for (index, rule) in rules.iter().enumerate() {
        ingress_rule(rule, &path.index(index), errors);
    }
    let path = SPEC.child("tls");
    for (index, tls) in items(spec, &["tls"]).iter().enumerate() {
        let at = path.index(index);
        let hosts = at.child("hosts");
        for (index, host) in items(tls, &["hosts"]).iter().enumerate() {
            maybe_wildcard(
                host.as_str().unwrap_or_default(),
                &hosts.index(index),
                errors,
            );
        }
        let secret = text(tls, &["secretName"]);
        if !secret.is_empty() {
            dns_subdomain(secret, &at.child("secretName"), errors);
        }
    }
    if let Some(class) = get(spec, "ingressClassName").as_str() {
        dns_subdomain(class, &SPEC.child("ingressClassName"), errors);
    }
}

fn maybe_wildcard(host: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if host.contains('*') {
        errors.invalid_each(path, host, names::wildcard_dns1123_subdomain(host));
    } else {
        dns_subdomain(host, path, errors);
    }
}

fn ingress_rule(rule: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let host = text(rule, &["host"]);
    if !host.is_empty() {
        let at = path.child("host");
        if names::parse_legacy_ip(host).is_some() {
            errors.invalid(&at, host, "must be a DNS name, not an IP address");
        }
        maybe_wildcard(host, &at, errors);
    }
    let http = get(rule, "http");
    if http.is_null() {
        return;
    }
    let http_path = path.child("http");
    let list = http_path.child("paths");
    let paths = items(http, &["paths"]);
    if paths.is_empty() {
        errors.required(&list, "");
    }
    for (index, one) in paths.iter().enumerate() {
        ingress_path(one, &list.index(index), errors);
    }
}

fn ingress_path(one: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let target = text(one, &["path"]);
    let at = path.child("path");
    let Some(kind) = get(one, "pathType").as_str() else {
        errors.required(&path.child("pathType"), "pathType must be specified");
        return;
    };
    let absolute = target.starts_with('/');
    match kind {
        "Exact" | "Prefix" => {
            if !absolute {
                errors.invalid(&at, target, "must be an absolute path");
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if target.contains(bad) {
                    errors.invalid(&at, target, format!("must not contain '{bad}'"));
                }
            }
            for bad in ["/..", "/."] {
                if target.ends_with(bad) {
                    errors.invalid(&at, target, format!("cannot end with '{bad}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !target.is_empty() && !absolute {
                errors.invalid(&at, target, "must be an absolute path");
            }
        }
        other => {
            let valid = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.not_supported(&path.child("pathType"), other, &valid);
        }
    }
    ingress_backend(get(one, "backend"), &path.child("backend"), errors);
}

fn ingress_backend(backend: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (resource, service) = (get(backend, "resource"), get(backend, "service"));
    match (resource.is_null(), service.is_null()) {
        (false, false) => errors.invalid(path, "", "cannot set both resource and service backends"),
        (true, true) => errors.invalid(path, "", "resource or service backend is required"),
        (false, true) => typed_reference(resource, &path.child("resource"), errors),
        (true, false) => service_backend(service, path, errors),
    }
}

fn service_backend(service: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let at = path.child("service");
    let name = text(service, &["name"]);
    if name.is_empty() {
        errors.required(&at.child("name"), "");
    } else {
        dns_label(name, &at.child("name"), errors);
    }
    let port_name = text(service, &["port", "name"]);
    let number = integer(service, &["port", "number"]).unwrap_or(0);
    let port = at.child("port");
    match (port_name.is_empty(), number) {
        (false, 0) => {
            errors.invalid_each(&port.child("name"), port_name, names::port_name(port_name));
        }
        (false, _) => errors.invalid(path, "", "cannot set both port name & port number"),
        (true, 0) => errors.required(path, "port name or number is required"),
        (true, number) => {
            for message in names::port_number(number) {
                errors.invalid(&port.child("number"), number, message);
            }
        }
    }
}

fn typed_reference(reference: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(group) = get(reference, "apiGroup").as_str() {
        dns_subdomain(group, &path.child("apiGroup"), errors);
    }
    for key in ["kind", "name"] {
        segment(text(reference, &[key]), &path.child(key), errors);
    }
}

/// A name that is there and may stand in a URL.
pub(crate) fn segment(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        errors.invalid_each(path, name, names::path_segment(name));
    }
}

/// An annotation of old beside the field that took its place.
pub(crate) fn ingress_create(object: &Value, errors: &mut ErrorList) {
    const CLASS: &str = "kubernetes.io/ingress.class";
    ingress(object, errors);
    let annotation = at(object, &["metadata", "annotations", CLASS]).as_str();
    let class = at(object, &["spec", "ingressClassName"]).as_str();
    if let (Some(annotation), Some(class)) = (annotation, class)
        && annotation != class
    {
        let path = Path::new("annotations");
        let why = "must match `ingressClassName` when both are specified";
        errors.invalid(&path.child(CLASS), annotation, why);
    }
}

pub(crate) fn ingress_status(object: &Value, errors: &mut ErrorList) {
    let path = Path::new("status.loadBalancer.ingress");
    for (index, point) in items(object, &["status", "loadBalancer", "ingress"])
        .iter()
        .enumerate()
    {
        let at = path.index(index);
        let address = text(point, &["ip"]);
        if !address.is_empty() {
            legacy_ip(address, &at.child("ip"), errors);
        }
        let host = text(point, &["hostname"]);
        if !host.is_empty() {
            dns_subdomain(host, &at.child("hostname"), errors);
            if names::parse_legacy_ip(host).is_some() {
                let why = "must be a DNS name, not an IP address";
                errors.invalid(&at.child("hostname"), host, why);
            }
        }
    }
}

pub(crate) fn ingress_class(class: &Value, errors: &mut ErrorList) {
    let controller = text(class, &["spec", "controller"]);
    let path = SPEC.child("controller");
    if controller.len() > 250 {
        errors.too_long(&path, 250);
    }
    domain_prefixed(controller, &path, errors);
    let parameters = at(class, &["spec", "parameters"]);
    if parameters.is_null() {
        return;
    }
    let path = SPEC.child("parameters");
    typed_reference(parameters, &path, errors);
    let namespace = get(parameters, "namespace").as_str();
    let namespace_path = path.child("namespace");
    match get(parameters, "scope").as_str() {
        None => errors.required(&path.child("scope"), ""),
        Some("Namespace") => match namespace {
            None => errors.required(&namespace_path, "`parameters.scope` is set to 'Namespace'"),
            Some(namespace) => dns_label(namespace, &namespace_path, errors),
        },
        Some("Cluster") => {
            if namespace.is_some() {
                errors.forbidden(&namespace_path, "`parameters.scope` is set to 'Cluster'");
            }
        }
        Some(other) => {
            errors.not_supported(&path.child("scope"), other, &["Cluster", "Namespace"]);
        }
    }
}

pub(crate) fn ingress_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    immutable(
        at(new, &["spec", "controller"]),
        at(old, &["spec", "controller"]),
        &SPEC.child("controller"),
        errors,
    );
    ingress_class(new, errors);
}

pub(crate) fn ip_address(address: &Value, errors: &mut ErrorList) {
    strict_ip(
        text(address, &["metadata", "name"]),
        &Path::new("metadata.name"),
        errors,
    );
    let parent = at(address, &["spec", "parentRef"]);
    let path = SPEC.child("parentRef");
    if parent.is_null() {
        errors.required(&path, "");
        return;
    }
    let group = text(parent, &["group"]);
    if !group.is_empty() {
        dns_subdomain(group, &path.child("group"), errors);
    }
    for key in ["resource", "name"] {
        segment(text(parent, &[key]), &path.child(key), errors);
    }
    let namespace = text(parent, &["namespace"]);
    errors.invalid_each(
        &path.child("namespace"),
        namespace,
        names::path_segment(namespace),
    );
}

pub(crate) fn ip_address_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    immutable(
        at(new, &["spec", "parentRef"]),
        at(old, &["spec", "parentRef"]),
        &SPEC.child("parentRef"),
        errors,
    );
}

pub(crate) fn service_cidr(range: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("cidrs");
    let all = items(range, &["spec", "cidrs"]);
    if all.is_empty() {
        errors.required(&path, "at least one CIDR required");
        return;
    }
    if all.len() > 2 {
        errors.invalid(
            &path,
            get(range, "spec").clone(),
            "may only hold up to 2 values",
        );
        return;
    }
    for (index, one) in all.iter().enumerate() {
        strict_cidr(one.as_str().unwrap_or_default(), &path.index(index), errors);
    }
    let family = |one: &Value| {
        one.as_str()
            .and_then(parse_cidr)
            .map(|(network, _)| network.is_ipv4())
    };
    if let [first, second] = all
        && family(first).is_some()
        && family(first) == family(second)
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.invalid(&path, all.to_vec(), why);
    }
}

pub(crate) fn service_cidr_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = SPEC.child("cidrs");
    let (now, before) = (
        items(new, &["spec", "cidrs"]),
        items(old, &["spec", "cidrs"]),
    );
    let grows = before.len() == 1 && now.len() == 2;
    if now.len() != before.len() && !grows {
        errors.invalid(&path, now.to_vec(), super::IMMUTABLE);
        return;
    }
    for (index, (now, before)) in now.iter().zip(before).enumerate() {
        immutable(now, before, &path.index(index), errors);
    }
    if grows {
        service_cidr(new, errors);
    }
}

pub(crate) fn endpoint_slice(slice: &Value, errors: &mut ErrorList) {
    let kind = text(slice, &["addressType"]);
    let valid = ["FQDN", "IPv4", "IPv6"];
    super::required_one_of(kind, &valid, &Path::new("addressType"), errors);
    slice_ports(slice, errors);
    let path = Path::new("endpoints");
    let endpoints = items(slice, &["endpoints"]);
    if endpoints.len() > 1000 {
        errors.too_many(&path, endpoints.len(), 1000);
        return;
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        slice_endpoint(endpoint, kind, &path.index(index), errors);
    }
}

fn slice_ports(slice: &Value, errors: &mut ErrorList) {
    let path = Path::new("ports");
    let ports = items(slice, &["ports"]);
    if ports.len() > 20_000 {
        errors.too_many(&path, ports.len(), 20_000);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = path.index(index);
        let name = text(port, &["name"]);
        if !name.is_empty() {
            dns_label(name, &at.child("name"), errors);
        }
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        let protocol = text(port, &["protocol"]);
        super::required_one_of(
            protocol,
            &["SCTP", "TCP", "UDP"],
            &at.child("protocol"),
            errors,
        );
        if let Some(protocol) = get(port, "appProtocol").as_str() {
            label_name(protocol, &at.child("appProtocol"), errors);
        }
    }
}

fn slice_endpoint(endpoint: &Value, kind: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let list = path.child("addresses");
    let addresses = items(endpoint, &["addresses"]);
    if addresses.is_empty() {
        errors.required(&list, "must contain at least 1 address");
    } else if addresses.len() > 100 {
        errors.too_many(&list, addresses.len(), 100);
    }
    for (index, address) in addresses.iter().enumerate() {
        let address = address.as_str().unwrap_or_default();
        slice_address(address, kind, &list, &list.index(index), errors);
    }
    if let Some(node) = get(endpoint, "nodeName").as_str() {
        dns_subdomain(node, &path.child("nodeName"), errors);
    }
    super::labels(
        get(endpoint, "deprecatedTopology"),
        &path.child("deprecatedTopology"),
        errors,
    );
    if let Some(host) = get(endpoint, "hostname").as_str() {
        dns_label(host, &path.child("hostname"), errors);
    }
    let hints = path.child("hints");
    for key in ["forZones", "forNodes"] {
        let list = hints.child(key);
        let entries = items(endpoint, &["hints", key]);
        if entries.len() > 8 {
            errors.too_many(&list, entries.len(), 8);
            continue;
        }
        let mut seen = BTreeSet::new();
        for (index, entry) in entries.iter().enumerate() {
            let at = list.index(index);
            let name = text(entry, &["name"]);
            if !seen.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
            if key == "forZones" {
                errors.invalid_each(&at.child("name"), name, names::label_value(name));
            } else {
                dns_subdomain(name, &at.child("name"), errors);
            }
        }
    }
}

fn slice_address(
    address: &str,
    kind: &str,
    list: &Path<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    match kind {
        "IPv4" | "IPv6" => {
            let Some(ip) = names::parse_legacy_ip(address) else {
                legacy_ip(address, path, errors);
                return;
            };
            if ip.is_ipv4() != (kind == "IPv4") {
                errors.invalid(list, address, format!("must be an {kind} address"));
            }
            endpoint_ip(address, path, errors);
        }
        "FQDN" => {
            for message in names::fully_qualified(address) {
                errors.invalid(path, address, message);
            }
        }
        _ => {}
    }
}

pub(crate) fn endpoint_slice_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    endpoint_slice(new, errors);
    immutable(
        get(new, "addressType"),
        get(old, "addressType"),
        &Path::new("addressType"),
        errors,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        assert_eq!(mask(0), 0);
        assert_eq!(mask(128), u128::MAX);
        let faults = |text: &str| {
            let mut errors = ErrorList::new();
            strict_cidr(text, &SPEC, &mut errors);
            errors.aggregate()
        };
        assert!(faults("10.1.2.3/16").contains("beyond the prefix length"));
        assert!(faults("nope").contains("must be a valid CIDR value"));
        assert_eq!(faults("10.1.0.0/16"), "[]");
    }
}

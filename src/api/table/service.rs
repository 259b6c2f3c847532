//! Services, endpoints, ingress, addresses.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{AGE, Item, Printer, Row, plain, plain_name, printer_of, shortened, text, wide};
use crate::meta;

pub(super) const KINDS: &[Row] = &[
    ("", "Endpoints", &ENDPOINTS),
    ("", "Service", &SERVICE),
    ("discovery.k8s.io", "EndpointSlice", &SLICE),
    ("networking.k8s.io", "IPAddress", &ADDRESS),
    ("networking.k8s.io", "Ingress", &INGRESS),
    ("networking.k8s.io", "IngressClass", &INGRESS_CLASS),
    ("networking.k8s.io", "NetworkPolicy", &POLICY),
    ("networking.k8s.io", "ServiceCIDR", &CIDR),
];

static SERVICE: Printer = printer_of(
    &[
        text("Type"),
        text("Cluster-IP"),
        text("External-IP"),
        text("Port(s)"),
        AGE,
        wide("Selector"),
    ],
    |item| {
        let own = item.items(&["spec", "clusterIPs"]).first();
        vec![
            item.text(&["spec", "type"]),
            own.and_then(Value::as_str).unwrap_or("<none>").into(),
            external(item).into(),
            ports(item).into(),
            item.age(),
            item.labels(&["spec", "selector"]),
        ]
    },
);

fn texts<'a>(item: &Item<'a>, path: &[&str]) -> Vec<&'a str> {
    meta::items(item.object, path)
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

fn external(item: &Item<'_>) -> String {
    let own = texts(item, &["spec", "externalIPs"]);
    match meta::text(item.object, &["spec", "type"]) {
        "ClusterIP" | "NodePort" if own.is_empty() => "<none>".to_owned(),
        "ClusterIP" | "NodePort" => own.join(","),
        "LoadBalancer" => {
            let mut all = load_balancer(item);
            all.extend(own.iter().map(|&ip| ip.to_owned()));
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        "ExternalName" => meta::text(item.object, &["spec", "externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Addresses that a load balancer has given, sorted.
fn load_balancer(item: &Item<'_>) -> Vec<String> {
    item.items(&["status", "loadBalancer", "ingress"])
        .iter()
        .map(|one| match meta::text(one, &["ip"]) {
            "" => meta::text(one, &["hostname"]),
            ip => ip,
        })
        .filter(|text| !text.is_empty())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(str::to_owned)
        .collect()
}

fn ports(item: &Item<'_>) -> String {
    let all: Vec<String> = item
        .items(&["spec", "ports"])
        .iter()
        .map(|port| {
            let number = meta::integer(port, &["port"]).unwrap_or_default();
            let protocol = meta::text(port, &["protocol"]);
            match meta::integer(port, &["nodePort"]) {
                Some(node_port) if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    if all.is_empty() {
        "<none>".to_owned()
    } else {
        all.join(",")
    }
}

static ENDPOINTS: Printer = printer_of(&[text("Endpoints"), AGE], |item| {
    let subsets = item.items(&["subsets"]);
    if subsets.is_empty() {
        return vec!["<none>".into(), item.age()];
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses: Vec<&str> = meta::items(subset, &["addresses"])
            .iter()
            .map(|one| meta::text(one, &["ip"]))
            .collect();
        let ports = meta::items(subset, &["ports"]);
        if ports.is_empty() {
            all.extend(addresses.iter().map(|&ip| ip.to_owned()));
        }
        for port in ports {
            let port = meta::integer(port, &["port"]).unwrap_or_default();
            all.extend(addresses.iter().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    vec![shortened(all, 3, ",").into(), item.age()]
});

static SLICE: Printer = printer_of(
    &[text("AddressType"), text("Ports"), text("Endpoints"), AGE],
    |item| {
        vec![
            item.text(&["addressType"]),
            slice_ports(item).into(),
            slice_endpoints(item).into(),
            item.age(),
        ]
    },
);

fn slice_ports(item: &Item<'_>) -> String {
    let ports = item.items(&["ports"]);
    if ports.is_empty() {
        return "<unset>".to_owned();
    }
    let all = ports
        .iter()
        .map(|port| {
            let number = meta::get(port, "port");
            if number.is_null() {
                match meta::text(port, &["name"]) {
                    "" => "*".to_owned(),
                    name => name.to_owned(),
                }
            } else {
                plain(number)
            }
        })
        .collect();
    shortened(all, 3, ",")
}

fn slice_endpoints(item: &Item<'_>) -> String {
    let all: Vec<String> = item
        .items(&["endpoints"])
        .iter()
        .flat_map(|endpoint| meta::items(endpoint, &["addresses"]))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if all.is_empty() {
        "<unset>".to_owned()
    } else {
        shortened(all, 3, ",")
    }
}

static INGRESS: Printer = printer_of(
    &[
        text("Class"),
        text("Hosts"),
        text("Address"),
        text("Ports"),
        AGE,
    ],
    |item| {
        let ports = if item.items(&["spec", "tls"]).is_empty() {
            "80"
        } else {
            "80, 443"
        };
        vec![
            item.text_or(&["spec", "ingressClassName"], "<none>"),
            hosts(item).into(),
            load_balancer(item).join(",").into(),
            ports.into(),
            item.age(),
        ]
    },
);

fn hosts(item: &Item<'_>) -> String {
    const MAX: usize = 3;
    let rules = item.items(&["spec", "rules"]);
    let mut list: Vec<&str> = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= list.len() == MAX;
        let host = meta::text(rule, &["host"]);
        if !more && !host.is_empty() {
            list.push(host);
        }
    }
    if list.is_empty() {
        return "*".to_owned();
    }
    let text = list.join(",");
    if more {
        format!("{text} + {} more...", rules.len() - MAX)
    } else {
        text
    }
}

/// The name, marked if it is the default of its kind.
pub(super) fn with_default(object: &Value, annotations: &[&str]) -> String {
    let name = plain_name(object);
    let is_default = annotations
        .iter()
        .any(|key| meta::text(object, &["metadata", "annotations", key]) == "true");
    if is_default {
        format!("{name} (default)")
    } else {
        name
    }
}

static INGRESS_CLASS: Printer = Printer {
    columns: &[text("Controller"), text("Parameters"), AGE],
    cells: |item| {
        let parameters = meta::at(item.object, &["spec", "parameters"]);
        let parameters = if parameters.is_null() {
            "<none>".to_owned()
        } else {
            let kind = meta::text(parameters, &["kind"]);
            let name = meta::text(parameters, &["name"]);
            match meta::text(parameters, &["apiGroup"]) {
                "" => format!("{kind}/{name}"),
                group => format!("{kind}.{group}/{name}"),
            }
        };
        vec![
            item.text(&["spec", "controller"]),
            parameters.into(),
            item.age(),
        ]
    },
    name_last: false,
    name: |object| with_default(object, &["ingressclass.kubernetes.io/is-default-class"]),
};

static POLICY: Printer = printer_of(&[text("Pod-Selector"), AGE], |item| {
    vec![item.selector(&["spec", "podSelector"]), item.age()]
});

static CIDR: Printer = printer_of(&[text("CIDRs"), AGE], |item| {
    vec![texts(item, &["spec", "cidrs"]).join(",").into(), item.age()]
});

static ADDRESS: Printer = printer_of(&[text("ParentRef")], |item| {
    let parent = meta::at(item.object, &["spec", "parentRef"]);
    let text = if parent.is_null() {
        "<none>".to_owned()
    } else {
        let part = |key: &str| meta::text(parent, &[key]);
        let mut text = part("resource").to_lowercase();
        if !part("group").is_empty() {
            text = format!("{text}.{}", part("group").to_lowercase());
        }
        if !part("namespace").is_empty() {
            text = format!("{text}/{}", part("namespace"));
        }
        format!("{text}/{}", part("name"))
    };
    vec![text.into(), item.age()]
});

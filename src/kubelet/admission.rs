//! Whether a new pod fits on this node. The scheduler has decided before, but it may have been wrong,
//! and pods can be bound without it. Upstream counterpart: `lifecycle/predicate`.

use crate::cgroup::resources::request;
use crate::plan::{ResizePending, Verdict};
use crate::pod;
use crate::qos::{Amounts, amount};
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use std::collections::{BTreeMap, BTreeSet};

/// The node and what already runs on it.
pub struct NodeRoom<'a> {
    pub node: Option<&'a Node>,
    pub allocatable: &'a Amounts,
    pub pods: &'a [&'a Pod],
    /// Kernel parameters allowed beside the safe ones.
    pub unsafe_sysctls: &'a [String],
}

/// Why the pod cannot run here, if it cannot.
pub fn judge(pod: &Pod, room: &NodeRoom<'_>) -> Option<Verdict> {
    unsafe_sysctl(pod, room.unsafe_sysctls)
        .or_else(|| too_large(pod, room))
        .or_else(|| wrong_node(pod, room))
        .or_else(|| taken_ports(pod, room))
}

fn refused(reason: &str, message: String) -> Verdict {
    Verdict {
        reason: reason.to_owned(),
        message,
        refused: true,
        grace: None,
    }
}

/// Kernel parameters that a pod may set, since they touch nothing but its own namespaces.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

fn unsafe_sysctl(pod: &Pod, allowed: &[String]) -> Option<Verdict> {
    let context = pod::spec(pod).security_context.as_ref()?;
    let names = context.sysctls.iter().flatten();
    let mut names = names.map(|s| s.name.replace('/', "."));
    let is_allowed = |name: &str| {
        SAFE_SYSCTLS.contains(&name)
            || allowed.iter().any(|a| match a.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => a == name,
            })
    };
    let forbidden = names.find(|name| !is_allowed(name))?;
    Some(refused(
        "SysctlForbidden",
        format!("forbidden sysctl: {forbidden:?} not allowlisted"),
    ))
}

/// Why a running pod cannot have what it asks for.
pub fn judge_resize(pod: &Pod, allocatable: &Amounts, others: &[&Pod]) -> Option<ResizePending> {
    let short = |others: &[&Pod]| shortage(pod, allocatable, others);
    let pending = |reason: &'static str, short: Shortage| ResizePending {
        reason,
        message: short.message,
    };
    short(&[])
        .map(|s| pending("Infeasible", s))
        .or_else(|| short(others).map(|s| pending("Deferred", s)))
}

struct Shortage {
    resource: String,
    message: String,
}

fn too_large(pod: &Pod, room: &NodeRoom<'_>) -> Option<Verdict> {
    let count = i64::try_from(room.pods.len()).unwrap_or(i64::MAX);
    let capacity = amount(Some(room.allocatable), "pods").value();
    if capacity > 0 && count + 1 > capacity {
        let message = format!(
            "Node didn't have enough resource: pods, requested: 1, used: {count}, capacity: {capacity}"
        );
        return Some(refused("OutOfpods", message));
    }
    shortage(pod, room.allocatable, room.pods)
        .map(|short| refused(&format!("OutOf{}", short.resource), short.message))
}

fn shortage(pod: &Pod, allocatable: &Amounts, others: &[&Pod]) -> Option<Shortage> {
    for name in requested(pod) {
        let wanted = request(pod, &name);
        if wanted.is_zero() {
            continue;
        }
        let used: i128 = others.iter().map(|p| request(p, &name).nano_value()).sum();
        let available = amount(Some(allocatable), &name);
        if used + wanted.nano_value() <= available.nano_value() {
            continue;
        }
        let scale: i128 = if name == "cpu" {
            1_000_000
        } else {
            1_000_000_000
        };
        let message = format!(
            "Node didn't have enough resource: {name}, requested: {}, used: {}, capacity: {}",
            wanted.nano_value() / scale,
            used / scale,
            available.nano_value() / scale
        );
        return Some(Shortage {
            resource: name,
            message,
        });
    }
    None
}

fn requested(pod: &Pod) -> BTreeSet<String> {
    let containers = pod::containers(pod).filter_map(|(_, c)| c.resources.clone());
    let mut names: BTreeSet<String> = containers
        .filter_map(|r| r.requests)
        .flat_map(|list| list.into_keys())
        .collect();
    let whole = pod::spec(pod).resources.as_ref();
    let whole = whole.and_then(|r| r.requests.as_ref());
    names.extend(whole.into_iter().flat_map(|list| list.keys().cloned()));
    names
}

fn wrong_node(pod: &Pod, room: &NodeRoom<'_>) -> Option<Verdict> {
    let node = room.node?;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let spec = pod::spec(pod);
    let selector = spec.node_selector.iter().flatten();
    let selects = selector.into_iter().all(|(k, v)| labels.get(k) == Some(v));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let fits = required.is_none_or(|selector| {
        let mut terms = selector.node_selector_terms.iter();
        terms.any(|term| matches(term, &labels, name))
    });
    (!selects || !fits).then(|| {
        let words =
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        refused("NodeAffinity", words.to_owned())
    })
}

fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node_name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions
        .iter()
        .all(|r| holds(r, labels.get(&r.key).map(String::as_str)))
        && fields
            .iter()
            .all(|r| r.key == "metadata.name" && holds(r, Some(node_name)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|v| values.iter().any(|w| w == v));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = value
        .and_then(number)
        .zip(values.first().and_then(|v| number(v)));
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared.is_some_and(|(have, want)| have > want),
        "Lt" => compared.is_some_and(|(have, want)| have < want),
        _ => false,
    }
}

/// Protocol, address and port on the node.
type HostPort = (String, String, i32);

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let ports = pod::containers(pod).flat_map(|(_, c)| c.ports.clone().unwrap_or_default());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|p| *p > 0)?;
            let protocol = port.protocol.unwrap_or_else(|| "TCP".to_owned());
            let ip = port.host_ip.filter(|ip| !ip.is_empty());
            Some((protocol, ip.unwrap_or_else(|| "0.0.0.0".to_owned()), number))
        })
        .collect()
}

fn taken_ports(pod: &Pod, room: &NodeRoom<'_>) -> Option<Verdict> {
    let wanted = host_ports(pod);
    if wanted.is_empty() {
        return None;
    }
    let taken: Vec<HostPort> = room.pods.iter().flat_map(|p| host_ports(p)).collect();
    let clashes = |a: &HostPort, b: &HostPort| {
        let any = |ip: &str| matches!(ip, "0.0.0.0" | "::");
        a.0 == b.0 && a.2 == b.2 && (a.1 == b.1 || any(&a.1) || any(&b.1))
    };
    let clash = wanted.iter().any(|w| taken.iter().any(|t| clashes(w, t)));
    clash.then(|| {
        let words = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        refused("NodePorts", words.to_owned())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fields::amounts;
    use crate::fixture::pod_of;
    use serde_json::json;

    fn reason(pod: &Pod, others: &[&Pod]) -> Option<(String, String)> {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"disk": "ssd"}}}))
                .unwrap();
        let allocatable = amounts([("cpu", "1".to_owned()), ("pods", "3".to_owned())]);
        let room = NodeRoom {
            node: Some(&node),
            allocatable: &allocatable,
            pods: others,
            unsafe_sysctls: &[],
        };
        judge(pod, &room).map(|v| (v.reason, v.message))
    }

    #[test]
    fn resources_must_fit_beside_the_others() {
        let pod = |cpu: &str| {
            pod_of(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}))
        };
        let (small, big) = (pod("300m"), pod("800m"));
        assert_eq!(reason(&big, &[]), None);
        let (reason_text, message) = reason(&big, &[&small]).unwrap();
        assert_eq!(reason_text, "OutOfcpu");
        assert_eq!(
            message,
            "Node didn't have enough resource: cpu, requested: 800, used: 300, capacity: 1000"
        );
        let none = pod("0");
        let full = [&none, &none, &none];
        assert_eq!(reason(&none, &full).unwrap().0, "OutOfpods");
    }

    #[test]
    fn unsafe_sysctls_are_refused() {
        let sets = |name: &str| {
            let sysctls = json!([{"name": name, "value": "1"}]);
            pod_of(json!({"containers": [], "securityContext": {"sysctls": sysctls}}))
        };
        assert_eq!(reason(&sets("kernel/shm_rmid_forced"), &[]), None);
        let refused = reason(&sets("kernel.msgmax"), &[]).unwrap();
        assert_eq!(
            refused,
            (
                "SysctlForbidden".to_owned(),
                "forbidden sysctl: \"kernel.msgmax\" not allowlisted".to_owned()
            )
        );
    }

    #[test]
    fn labels_and_ports_must_match() {
        let wants =
            |label: &str| pod_of(json!({"containers": [], "nodeSelector": {"disk": label}}));
        assert_eq!(reason(&wants("ssd"), &[]), None);
        assert_eq!(reason(&wants("hdd"), &[]).unwrap().0, "NodeAffinity");
        let port = pod_of(
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
        );
        assert_eq!(reason(&port, &[]), None);
        assert_eq!(reason(&port, &[&port]).unwrap().0, "NodePorts");
    }
}

//! Services: the fields that belong together (types, addresses, families, ports).

use std::net::IpAddr;

use crate::field::{ErrorList, Path};
use crate::meta::{self, get, integer, items, items_mut, set, text};
use crate::status::Status;
use serde_json::{Value, json};

use super::Kind;
use crate::strategy::{self, Context, NameRule};

pub(super) const SERVICE: Kind = Kind {
    names: NameRule::Label,
    creates_on_update: true,
    shows_deleted: true,
    prepare_update,
    ..Kind::DEFAULT
};

fn prepare_update(context: &Context<'_>, service: &mut Value, old: &Value) {
    strategy::keep_status(context, service, old);
    drop_type_dependent(service, old);
    if text(service, &["spec", "type"]) != "LoadBalancer" {
        set(service, &["status"], json!({"loadBalancer": {}}));
        if let Some(conditions) = meta::at(old, &["status"]).get("conditions") {
            set(service, &["status", "conditions"], conditions.clone());
        }
    }
}

/// The address families of the cluster.
pub struct Cluster<'a> {
    pub default_family: &'a str,
    pub families: &'a [&'static str],
}

pub fn needs_cluster_ip(service: &Value) -> bool {
    text(service, &["spec", "type"]) != "ExternalName"
}

pub fn needs_node_ports(service: &Value) -> bool {
    matches!(
        text(service, &["spec", "type"]),
        "NodePort" | "LoadBalancer"
    )
}

pub fn needs_health_check(service: &Value) -> bool {
    text(service, &["spec", "type"]) == "LoadBalancer"
        && text(service, &["spec", "externalTrafficPolicy"]) == "Local"
}

/// False for load balancers that do without node ports.
pub fn allocates_node_ports(service: &Value) -> bool {
    match text(service, &["spec", "type"]) {
        "NodePort" => true,
        "LoadBalancer" => meta::boolean(service, &["spec", "allocateLoadBalancerNodePorts"]),
        _ => false,
    }
}

pub fn collect_node_ports(service: &Value) -> Vec<u16> {
    items(service, &["spec", "ports"])
        .iter()
        .filter_map(|port| u16::try_from(integer(port, &["nodePort"])?).ok())
        .filter(|port| *port != 0)
        .collect()
}

/// What the server once gave stays if the client leaves it out.
pub fn keep_allocated(service: &mut Value, old: &Value) {
    if needs_cluster_ip(service) && needs_cluster_ip(old) {
        if text(service, &["spec", "clusterIP"]).is_empty() {
            copy(service, old, "clusterIP");
        }
        if items(service, &["spec", "clusterIPs"]).is_empty() {
            copy(service, old, "clusterIPs");
        }
    }
    if needs_node_ports(service) && needs_node_ports(old) {
        let new_ports = collect_node_ports(service);
        let used: Vec<u16> = collect_node_ports(old)
            .into_iter()
            .filter(|port| new_ports.contains(port))
            .collect();
        for port in items_mut(service, &["spec", "ports"]) {
            if integer(port, &["nodePort"]).unwrap_or(0) != 0 {
                continue;
            }
            let name = text(port, &["name"]);
            let before = items(old, &["spec", "ports"])
                .iter()
                .rev()
                .find(|one| text(one, &["name"]) == name)
                .and_then(|one| integer(one, &["nodePort"]))
                .and_then(|number| u16::try_from(number).ok())
                .filter(|number| *number != 0 && !used.contains(number));
            if let Some(number) = before {
                port["nodePort"] = json!(number);
            }
        }
    }
    if needs_health_check(service)
        && needs_health_check(old)
        && integer(service, &["spec", "healthCheckNodePort"]).unwrap_or(0) == 0
    {
        copy(service, old, "healthCheckNodePort");
    }
}

fn copy(service: &mut Value, old: &Value, key: &str) {
    let value = meta::at(old, &["spec", key]);
    if !value.is_null() {
        let value = value.clone();
        set(service, &["spec", key], value);
    }
}

/// The single address and the list agree, whichever of them the client knows.
pub fn sync_cluster_ips(service: &mut Value, old: Option<&Value>) {
    let single = text(service, &["spec", "clusterIP"]).to_owned();
    let list = items(service, &["spec", "clusterIPs"]).to_vec();
    let Some(old) = old else {
        if !single.is_empty() && list.is_empty() {
            set(service, &["spec", "clusterIPs"], json!([single]));
        }
        return;
    };
    let old_single = text(old, &["spec", "clusterIP"]);
    let old_list = items(old, &["spec", "clusterIPs"]);
    if old_single == single {
        if list.is_empty() && !old_list.is_empty() {
            set(service, &["spec", "clusterIPs"], old_list.to_vec());
        }
    } else if list == old_list {
        if single.is_empty() {
            meta::remove(service, &["spec", "clusterIPs"]);
        } else {
            set(service, &["spec", "clusterIPs"], json!([single]));
        }
    }
}

fn family_of(address: &str) -> &'static str {
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => "IPv4",
        Ok(IpAddr::V6(_)) => "IPv6",
        Err(_) => "unknown",
    }
}

fn other_family(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

fn texts(service: &Value, key: &str) -> Vec<String> {
    items(service, &["spec", key])
        .iter()
        .filter_map(|one| one.as_str().map(str::to_owned))
        .collect()
}

/// Fills `ipFamilyPolicy` and `ipFamilies` in, or says why what the client asks cannot be.
pub fn init_families(
    service: &mut Value,
    old: Option<&Value>,
    cluster: &Cluster<'_>,
) -> Result<(), Status> {
    if !needs_cluster_ip(service) {
        return Ok(());
    }
    let headless = text(service, &["spec", "clusterIP"]) == "None";
    let selectorless = meta::at(service, &["spec", "selector"])
        .as_object()
        .is_none_or(serde_json::Map::is_empty);
    init_policy(service, old, headless && selectorless);
    let policy = text(service, &["spec", "ipFamilyPolicy"]).to_owned();
    let mut errors = ErrorList::new();
    let finish = |service: &Value, errors: ErrorList| {
        errors.into_result("", "Service", text(service, &["metadata", "name"]))
    };
    if let Some(old) = old {
        reduce_families(service, old, &policy, &mut errors);
    }
    let spec = Path::new("spec");
    if policy == "SingleStack" {
        let path = spec.child("ipFamilyPolicy");
        for (key, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if items(service, &["spec", key]).len() == 2 {
                errors.invalid(&path, policy.as_str(), format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                ));
            }
        }
    }
    let mut families = infer_families(service, cluster, &mut errors);
    finish(service, std::mem::take(&mut errors))?;
    if headless && selectorless {
        if families.is_empty() {
            families.push(cluster.default_family.to_owned());
        }
        if families.len() < 2 && policy != "SingleStack" {
            families.push(other_family(&families[0]).to_owned());
        }
        set(service, &["spec", "ipFamilies"], families);
        return Ok(());
    }
    if policy == "RequireDualStack" && cluster.families.len() < 2 {
        errors.invalid(
            &spec.child("ipFamilyPolicy"),
            policy.as_str(),
            "this cluster is not configured for dual-stack services",
        );
    }
    let list = spec.child("ipFamilies");
    for (index, family) in families.iter().enumerate() {
        if !matches!(family.as_str(), "IPv4" | "IPv6") {
            errors.not_supported(&list.index(index), family.as_str(), &["IPv4", "IPv6"]);
        } else if !cluster.families.contains(&family.as_str()) {
            errors.invalid(
                &list.index(index),
                family.as_str(),
                "not configured on this cluster",
            );
        }
    }
    finish(service, errors)?;
    if families.is_empty() {
        families.push(cluster.default_family.to_owned());
    }
    if policy != "SingleStack" && families.len() == 1 && cluster.families.len() == 2 {
        families.push(other_family(&families[0]).to_owned());
    }
    set(service, &["spec", "ipFamilies"], families);
    Ok(())
}

fn init_policy(service: &mut Value, old: Option<&Value>, headless_without_selector: bool) {
    let path = ["spec", "ipFamilyPolicy"];
    if !text(service, &path).is_empty() {
        return;
    }
    let before = old
        .map(|old| text(old, &path))
        .filter(|policy| !policy.is_empty());
    let policy = match before {
        Some(policy) => policy,
        None if headless_without_selector => "RequireDualStack",
        None => "SingleStack",
    };
    set(service, &path, policy.to_owned());
}

/// Going back to one family, which only the policy may ask for.
fn reduce_families(service: &mut Value, old: &Value, policy: &str, errors: &mut ErrorList) {
    for (key, what) in [
        ("clusterIPs", "secondary cluster IP"),
        ("ipFamilies", "secondary IP family"),
    ] {
        let (new_list, old_list) = (
            items(service, &["spec", key]).to_vec(),
            items(old, &["spec", key]),
        );
        if policy == "SingleStack" {
            if new_list == old_list && new_list.len() > 1 {
                set(service, &["spec", key], json!([new_list[0]]));
            }
        } else if !new_list.is_empty() && new_list.len() < old_list.len() {
            errors.invalid(
                &Path::new("spec").child("ipFamilyPolicy"),
                policy,
                format!("must be 'SingleStack' to release the {what}"),
            );
        }
    }
}

/// The families that are named, and those of addresses that are named.
fn infer_families(service: &Value, cluster: &Cluster<'_>, errors: &mut ErrorList) -> Vec<String> {
    let mut families = texts(service, "ipFamilies");
    let addresses = texts(service, "clusterIPs");
    let spec = Path::new("spec");
    let list = spec.child("clusterIPs");
    for (index, address) in addresses.iter().enumerate() {
        if address == "None" {
            break;
        }
        let family = family_of(address);
        if index < families.len() || family == "unknown" {
            continue;
        }
        if cluster.families.contains(&family) {
            families.push(family.to_owned());
        } else {
            errors.invalid(
                &list.index(index),
                json!(addresses),
                format!("{family} is not configured on this cluster"),
            );
        }
    }
    families
}

/// Fields that a change of type leaves without meaning go, unless the client changed them too.
fn drop_type_dependent(service: &mut Value, old: &Value) {
    let same = |service: &Value, key: &str| get(&service["spec"], key) == get(&old["spec"], key);
    let wipe = |service: &mut Value, key: &str| {
        meta::remove(service, &["spec", key]);
    };
    if needs_cluster_ip(old) && !needs_cluster_ip(service) {
        if same(service, "clusterIP") && same(service, "clusterIPs") {
            wipe(service, "clusterIP");
            wipe(service, "clusterIPs");
        }
        for key in ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            if same(service, key) {
                wipe(service, key);
            }
        }
    }
    if needs_node_ports(old) && !needs_node_ports(service) {
        let before = collect_node_ports(old);
        if collect_node_ports(service)
            .iter()
            .all(|port| before.contains(port))
        {
            for port in items_mut(service, &["spec", "ports"]) {
                meta::remove(port, &["nodePort"]);
            }
        }
    }
    if needs_health_check(old)
        && !needs_health_check(service)
        && same(service, "healthCheckNodePort")
    {
        wipe(service, "healthCheckNodePort");
    }
    let was_balancer = text(old, &["spec", "type"]) == "LoadBalancer";
    if was_balancer && text(service, &["spec", "type"]) != "LoadBalancer" {
        for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(service, key) {
                wipe(service, key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SINGLE: Cluster<'static> = Cluster {
        default_family: "IPv4",
        families: &["IPv4"],
    };

    fn families(mut service: Value) -> Result<Value, String> {
        init_families(&mut service, None, &SINGLE)
            .map(|()| service["spec"]["ipFamilies"].clone())
            .map_err(|status| status.message)
    }

    #[test]
    fn families_are_filled_in() {
        assert_eq!(
            families(json!({"spec": {"type": "ClusterIP"}})).unwrap(),
            json!(["IPv4"])
        );
        let headless =
            json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}});
        assert_eq!(families(headless).unwrap(), json!(["IPv4", "IPv6"]));
        let dual = json!({"spec": {"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"}});
        assert!(
            families(dual)
                .unwrap_err()
                .contains("not configured for dual-stack")
        );
        let foreign = json!({"spec": {"type": "ClusterIP", "clusterIPs": ["fd00::1"]}});
        assert!(
            families(foreign)
                .unwrap_err()
                .contains("IPv6 is not configured")
        );
    }

    #[test]
    fn allocated_values_stay() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"],
            "ports": [{"name": "a", "port": 80, "nodePort": 30080}]}});
        let mut new = json!({"spec": {"type": "NodePort", "ports": [{"name": "a", "port": 81}]}});
        keep_allocated(&mut new, &old);
        assert_eq!(new["spec"]["clusterIP"], "10.0.0.5");
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30080);
        let mut plain = old.clone();
        plain["spec"]["type"] = json!("ClusterIP");
        drop_type_dependent(&mut plain, &old);
        assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
    }
}

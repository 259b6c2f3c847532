//! Name resolution of a pod: what goes into its resolv.conf. Upstream counterpart: `network/dns`.

use crate::pod;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_DOMAIN_CHARS: usize = 255;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolv {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// The cluster's names and those of the node.
#[derive(Debug, Clone, Default)]
pub struct Names {
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// The node's own resolv.conf.
    pub host: Resolv,
}

/// Reads a resolv.conf: servers add up, of searches the last line counts, options merge by name.
pub fn parse(text: &str) -> Resolv {
    let mut result = Resolv::default();
    for line in text.lines().map(str::trim) {
        if line.starts_with('#') || line.starts_with(';') {
            continue;
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => result.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                result.searches = words
                    .filter(|w| *w != ".")
                    .map(|w| w.strip_suffix('.').unwrap_or(w).to_owned())
                    .collect();
            }
            Some("options") => words.for_each(|w| set_option(&mut result.options, w.to_owned())),
            _ => {}
        }
    }
    result
}

fn set_option(options: &mut Vec<String>, option: String) {
    let name = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|o| name(o) == name(&option)) {
        Some(same) => *same = option,
        None => options.push(option),
    }
}

/// The resolver settings of a pod, and a warning if limits cut something off.
pub fn for_pod(pod: &Pod, names: &Names) -> (Resolv, Vec<String>) {
    let spec = pod::spec(pod);
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let is_cluster = policy == "ClusterFirstWithHostNet"
        || (policy == "ClusterFirst" && !pod::is_host_network(pod));
    let mut result = match policy {
        "None" => Resolv::default(),
        _ if is_cluster && !names.cluster_dns.is_empty() => cluster(pod, names),
        _ => names.host.clone(),
    };
    if let Some(config) = &spec.dns_config {
        merge(&mut result, config);
    }
    fit_limits(result)
}

fn cluster(pod: &Pod, names: &Names) -> Resolv {
    let domain = &names.cluster_domain;
    let mut searches = Vec::new();
    if !domain.is_empty() {
        searches = vec![
            format!("{}.svc.{domain}", pod::namespace(pod)),
            format!("svc.{domain}"),
            domain.clone(),
        ];
    }
    for search in &names.host.searches {
        push_new(&mut searches, search.clone());
    }
    Resolv {
        servers: names.cluster_dns.clone(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

fn push_new(list: &mut Vec<String>, value: String) {
    if !list.contains(&value) {
        list.push(value);
    }
}

fn merge(result: &mut Resolv, config: &PodDNSConfig) {
    for server in config.nameservers.iter().flatten() {
        push_new(&mut result.servers, server.clone());
    }
    for search in config.searches.iter().flatten() {
        push_new(&mut result.searches, search.clone());
    }
    for option in config.options.iter().flatten() {
        let Some(name) = &option.name else {
            continue;
        };
        let text = match option.value.as_deref().filter(|v| !v.is_empty()) {
            Some(value) => format!("{name}:{value}"),
            None => name.clone(),
        };
        set_option(&mut result.options, text);
    }
}

fn fit_limits(mut result: Resolv) -> (Resolv, Vec<String>) {
    let mut warnings = Vec::new();
    if result.servers.len() > MAX_SERVERS {
        result.servers.truncate(MAX_SERVERS);
        warnings.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            result.servers.join(" ")
        ));
    }
    let before = result.searches.len();
    result.searches.retain(|s| s.len() <= MAX_DOMAIN_CHARS);
    result.searches.truncate(MAX_SEARCHES);
    while result.searches.join(" ").len() > MAX_SEARCH_CHARS {
        result.searches.pop();
    }
    if result.searches.len() < before {
        warnings.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            result.searches.join(" ")
        ));
    }
    (result, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::{Value, json};

    fn resolve(spec: Value) -> Resolv {
        let names = Names {
            cluster_dns: vec!["10.43.0.10".into()],
            cluster_domain: "cluster.local".into(),
            host: parse("# c\nnameserver 9.9.9.9\nsearch example.com. .\noptions edns0 ndots:2\n"),
        };
        for_pod(&pod_of(spec), &names).0
    }

    #[test]
    fn cluster_first_puts_the_cluster_before_the_node() {
        assert_eq!(
            resolve(json!({"containers": []})),
            Resolv {
                servers: vec!["10.43.0.10".into()],
                searches: vec![
                    "default.svc.cluster.local".into(),
                    "svc.cluster.local".into(),
                    "cluster.local".into(),
                    "example.com".into()
                ],
                options: vec!["ndots:5".into()],
            }
        );
    }

    #[test]
    fn host_network_uses_the_node_unless_told_otherwise() {
        let host = resolve(json!({"containers": [], "hostNetwork": true}));
        assert_eq!(host.servers, ["9.9.9.9"]);
        assert_eq!(host.options, ["edns0", "ndots:2"]);
        let cluster = resolve(
            json!({"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
        );
        assert_eq!(cluster.servers, ["10.43.0.10"]);
    }

    #[test]
    fn own_settings_are_merged() {
        let own = resolve(json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["1.1.1.1"], "searches": ["a.b"], "options": [{"name": "ndots", "value": "1"}, {"name": "debug"}]}}));
        assert_eq!(own.servers, ["1.1.1.1"]);
        assert_eq!(own.options, ["ndots:1", "debug"]);
        let merged = resolve(json!({"containers": [], "dnsConfig": {
            "nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3"], "options": [{"name": "ndots", "value": "1"}]}}));
        assert_eq!(merged.servers, ["10.43.0.10", "1.1.1.1", "2.2.2.2"]);
        assert_eq!(merged.options, ["ndots:1"]);
    }
}

//! Host name and /etc/hosts of a pod.

use crate::pod;
use k8s_openapi::api::core::v1::{HostAlias, Pod};

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
const MAX_HOSTNAME: usize = 63;

/// The pod's host name, and its domain if it has one.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> (String, Option<String>) {
    let spec = pod::spec(pod);
    if let Some(name) = spec.hostname_override.as_deref().filter(|n| !n.is_empty()) {
        return (truncated(name), None);
    }
    let own = spec.hostname.as_deref().filter(|h| !h.is_empty());
    let hostname = truncated(own.unwrap_or_else(|| pod::name(pod)));
    let domain = spec
        .subdomain
        .as_deref()
        .filter(|s| !s.is_empty())
        .map(|sub| format!("{sub}.{}.svc.{cluster_domain}", pod::namespace(pod)));
    (hostname, domain)
}

/// What the kernel of the pod calls its host: the full name only if the pod asks for it.
pub fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    const MAX_KERNEL_NAME: usize = 64;
    let (hostname, domain) = hostname(pod, cluster_domain);
    let wants_fqdn = pod::spec(pod).set_hostname_as_fqdn == Some(true);
    let Some(domain) = domain.filter(|_| wants_fqdn) else {
        return Ok(hostname);
    };
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > MAX_KERNEL_NAME {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({MAX_KERNEL_NAME} characters is the max, {} characters requested)",
            fqdn.len()
        ));
    }
    Ok(fqdn)
}

fn truncated(name: &str) -> String {
    if name.len() <= MAX_HOSTNAME {
        return name.to_owned();
    }
    name[..MAX_HOSTNAME].trim_end_matches(['-', '.']).to_owned()
}

/// The hosts file of a pod with its own network.
pub fn managed(ips: &[String], hostname: &str, domain: Option<&str>, pod: &Pod) -> String {
    let mut text = HEADER.to_owned();
    text.push_str("127.0.0.1\tlocalhost\n");
    text.push_str("::1\tlocalhost ip6-localhost ip6-loopback\n");
    text.push_str("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n");
    text.push_str("fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n");
    for ip in ips {
        match domain {
            Some(domain) => text.push_str(&format!("{ip}\t{hostname}.{domain}\t{hostname}\n")),
            None => text.push_str(&format!("{ip}\t{hostname}\n")),
        }
    }
    push_aliases(&mut text, pod);
    text
}

/// The hosts file of a pod in the node's network: the node's own plus the pod's aliases.
pub fn of_node(node_hosts: &str, pod: &Pod) -> String {
    let mut text = HEADER_HOST_NETWORK.to_owned();
    text.push_str(node_hosts);
    push_aliases(&mut text, pod);
    text
}

fn push_aliases(text: &mut String, pod: &Pod) {
    let aliases: &[HostAlias] = pod::spec(pod).host_aliases.as_deref().unwrap_or_default();
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::json;

    #[test]
    fn names_with_and_without_a_domain() {
        let plain = pod_of(json!({"containers": []}));
        assert_eq!(hostname(&plain, "cluster.local"), ("web".into(), None));
        let full = pod_of(
            json!({"containers": [], "hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true}),
        );
        let domain = "s.default.svc.cluster.local";
        assert_eq!(
            hostname(&full, "cluster.local"),
            ("h".into(), Some(domain.into()))
        );
        assert_eq!(
            kernel_hostname(&full, "cluster.local"),
            Ok(format!("h.{domain}"))
        );
    }

    #[test]
    fn long_names_are_cut_without_a_trailing_dash() {
        let name = format!("{}-{}", "a".repeat(62), "b".repeat(10));
        assert_eq!(truncated(&name), "a".repeat(62));
    }

    #[test]
    fn aliases_follow_the_managed_part() {
        let pod = pod_of(
            json!({"containers": [], "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}),
        );
        let text = managed(&["10.0.0.1".into()], "web", None, &pod);
        assert!(text.starts_with(HEADER));
        assert!(
            text.ends_with("10.0.0.1\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n")
        );
    }
}

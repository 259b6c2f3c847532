//! The configuration of a pod's sandbox. Upstream counterpart: `generatePodSandboxConfig`.

use super::{labels, namespaces, security};
use crate::pod;
use crate::resolv::Resolv;
use k8s_openapi::api::core::v1::Pod;
use sampan_cri::runtime::v1::{
    DnsConfig, Int64Value, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig,
    PodSandboxMetadata, PortMapping, Protocol, SecurityProfile,
};

pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub attempt: u32,
    pub resolv: Resolv,
    /// Empty for pods in the node's network.
    pub hostname: String,
    pub log_directory: String,
    pub cgroup_parent: String,
}

pub fn render(inputs: Inputs<'_>) -> PodSandboxConfig {
    let pod = inputs.pod;
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod::name(pod).to_owned(),
            uid: pod::uid(pod).to_owned(),
            namespace: pod::namespace(pod).to_owned(),
            attempt: inputs.attempt,
        }),
        hostname: inputs.hostname,
        log_directory: inputs.log_directory,
        dns_config: Some(DnsConfig {
            servers: inputs.resolv.servers,
            searches: inputs.resolv.searches,
            options: inputs.resolv.options,
        }),
        port_mappings: port_mappings(pod),
        labels: labels::pod_labels(pod),
        annotations: annotations.into_iter().collect(),
        linux: Some(linux(pod, inputs.cgroup_parent)),
        windows: None,
    }
}

fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    let sidecars = pod::init_containers(pod)
        .iter()
        .filter(|c| pod::is_sidecar(c));
    let all = pod::spec(pod).containers.iter().chain(sidecars);
    let ports = all.flat_map(|c| c.ports.iter().flatten());
    ports
        .map(|port| PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            } as i32,
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

fn linux(pod: &Pod, cgroup_parent: String) -> LinuxPodSandboxConfig {
    let context = pod::spec(pod).security_context.clone().unwrap_or_default();
    let sysctls = context.sysctls.iter().flatten();
    let value = |value: i64| Int64Value { value };
    LinuxPodSandboxConfig {
        cgroup_parent,
        sysctls: sysctls
            .map(|s| (s.name.replace('/', "."), s.value.clone()))
            .collect(),
        security_context: Some(LinuxSandboxSecurityContext {
            namespace_options: Some(namespaces(pod)),
            selinux_options: context.se_linux_options.as_ref().map(security::selinux),
            run_as_user: context.run_as_user.map(value),
            run_as_group: context.run_as_group.map(value),
            supplemental_groups: security::pod_groups(&context),
            supplemental_groups_policy: security::groups_policy(&context),
            privileged: has_privileged_container(pod),
            seccomp: Some(SecurityProfile::default()),
            ..LinuxSandboxSecurityContext::default()
        }),
        ..LinuxPodSandboxConfig::default()
    }
}

fn has_privileged_container(pod: &Pod) -> bool {
    pod::containers(pod).any(|(_, c)| {
        c.security_context
            .as_ref()
            .is_some_and(|s| s.privileged == Some(true))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::pod_of;
    use sampan_cri::runtime::v1::NamespaceMode;
    use serde_json::json;

    #[test]
    fn namespaces_sysctls_and_ports() {
        let pod = pod_of(json!({
            "hostPID": true, "securityContext": {"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}], "fsGroup": 7},
            "containers": [{"name": "a", "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}]}]}));
        let config = render(Inputs {
            pod: &pod,
            attempt: 2,
            resolv: Resolv::default(),
            hostname: "web".into(),
            log_directory: "/logs".into(),
            cgroup_parent: "/x".into(),
        });
        let linux = config.linux.unwrap();
        assert_eq!(linux.sysctls["kernel.shm_rmid_forced"], "1");
        let context = linux.security_context.unwrap();
        assert_eq!(context.supplemental_groups, [7]);
        let namespaces = context.namespace_options.unwrap();
        assert_eq!(namespaces.pid, NamespaceMode::Node as i32);
        assert_eq!(namespaces.network, NamespaceMode::Pod as i32);
        assert_eq!(config.port_mappings[0].protocol, Protocol::Udp as i32);
        assert_eq!(config.labels[labels::POD_UID], "u-1");
    }
}

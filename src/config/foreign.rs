//! Flags that users of k3s bring along, and what to use here instead.

/// k3s flag, then the advice that the error gives.
static ADVICE: &[(&str, &str)] = &[
    (
        "flannel-backend",
        "the pod network is built in and needs no back end; leave it out",
    ),
    (
        "flannel-iface",
        "use --node-ip with the address of that interface",
    ),
    (
        "node-external-ip",
        "external addresses are not supported yet; use --node-ip",
    ),
    (
        "docker",
        "Docker is not used; sampan runs containerd itself, or use --container-runtime-endpoint",
    ),
    (
        "disable-network-policy",
        "network policies are not enforced yet, so there is nothing to switch off",
    ),
    ("disable-kube-proxy", "use --disable=kube-proxy"),
    (
        "disable-cloud-controller",
        "there is no cloud controller; leave it out",
    ),
    (
        "disable-helm-controller",
        "there is no Helm controller yet; leave it out",
    ),
    (
        "cluster-init",
        "a replicated store is not supported yet; a single server uses SQLite",
    ),
    ("cluster-reset", "a replicated store is not supported yet"),
    (
        "datastore-endpoint",
        "external stores are not supported yet; the store is SQLite under --data-dir",
    ),
    (
        "etcd-snapshot-schedule-cron",
        "there is no etcd; the store is SQLite under --data-dir",
    ),
    ("agent-token", "use --token"),
    (
        "kube-controller-manager-arg",
        "the controllers take no arguments of their own",
    ),
    (
        "kube-scheduler-arg",
        "the scheduler takes no arguments of its own",
    ),
    (
        "kube-proxy-arg",
        "the service proxy takes no arguments of its own",
    ),
    (
        "snapshotter",
        "containerd's overlayfs snapshotter is used; for another one use --container-runtime-endpoint",
    ),
    (
        "secrets-encryption",
        "Secrets are always encrypted at rest; leave it out",
    ),
    (
        "rootless",
        "running without root is only possible with --disable-agent",
    ),
    ("selinux", "SELinux is not supported yet"),
    (
        "log",
        "redirect the standard error stream, or use the service manager's log",
    ),
    ("v", "use --debug"),
    (
        "prefer-bundled-bin",
        "nothing is bundled; containerd and runc are taken from PATH",
    ),
    (
        "default-local-storage-path",
        "a local storage provisioner is not supported yet",
    ),
    (
        "lb-server-port",
        "agents need no local load balancer yet; leave it out",
    ),
    (
        "egress-selector-mode",
        "agents need no tunnel yet; leave it out",
    ),
    (
        "supervisor-metrics",
        "metrics are always served at /metrics of the API",
    ),
    (
        "kube-cloud-controller-manager-arg",
        "there is no cloud controller; leave it out",
    ),
    ("with-node-id", "use --node-name"),
];

/// Advice for a flag of another distribution, if this is one.
pub fn advice(name: &str) -> Option<&'static str> {
    ADVICE
        .iter()
        .find(|(flag, _)| *flag == name)
        .map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    #[test]
    fn advice_is_only_for_flags_we_do_not_have() {
        for (flag, _) in super::ADVICE {
            assert!(crate::options::find(flag).is_none(), "{flag}");
        }
    }
}

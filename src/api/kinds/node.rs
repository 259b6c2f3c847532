//! Nodes: which labels are whose.

/// For administrators alone: what is to run on some nodes only must not be drawn to others by their kubelets.
const RESTRICTED: &str = "node-restriction.kubernetes.io";
/// Labels with Kubernetes' own prefixes that a kubelet sets on its node.
const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "beta.kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/arch",
];
const KUBELET_LABEL_NAMESPACES: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Whether a kubelet may set this label on its own node.
pub fn kubelet_may_label(key: &str) -> bool {
    let within = |namespace: &str, domain: &str| {
        namespace == domain || namespace.ends_with(&format!(".{domain}"))
    };
    let Some((namespace, _)) = key.split_once('/') else {
        return true;
    };
    if within(namespace, RESTRICTED) {
        return false;
    }
    if !within(namespace, "kubernetes.io") && !within(namespace, "k8s.io") {
        return true;
    }
    KUBELET_LABELS.contains(&key)
        || KUBELET_LABEL_NAMESPACES
            .iter()
            .any(|domain| within(namespace, domain))
}

#[cfg(test)]
mod tests {
    use super::kubelet_may_label;

    #[test]
    fn labels_of_kubernetes_are_few_and_all_others_free() {
        for key in [
            "example.com/a",
            "plain",
            "kubernetes.io/os",
            "a.node.kubernetes.io/b",
        ] {
            assert!(kubelet_may_label(key), "{key}");
        }
        for key in [
            "node-role.kubernetes.io/worker",
            "node-restriction.kubernetes.io/a",
            "x.k8s.io/a",
            "kubernetes.io/a",
        ] {
            assert!(!kubelet_may_label(key), "{key}");
        }
    }
}

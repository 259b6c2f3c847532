//! The built-in rows, core group first. A new kind is one row here; its fields stand in `data/types.txt`.

use super::{ResourceDef, Scope, ServedVersion, SubresourceDef};
use crate::kinds;
use crate::resource::{GroupVersionKind, Name, Verb};

const ALL: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
const NO_COLLECTION: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
const CREATE: &[Verb] = &[Verb::Create];
const READ: &[Verb] = &[Verb::Get, Verb::List];
const OWN: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
const STREAM: &[Verb] = &[Verb::Create, Verb::Get];
const PROXY: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::Get,
    Verb::Patch,
    Verb::Update,
];

type Kind = (&'static str, &'static str, &'static str);

/// A subresource as the table writes it.
#[derive(Clone, Copy)]
pub struct SubRow {
    name: &'static str,
    verbs: &'static [Verb],
    kind: Option<Kind>,
}

/// A resource as the table writes it; [`Row::build`] makes the [`ResourceDef`].
#[derive(Clone, Copy)]
pub struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    also: Option<(&'static str, &'static str)>,
    cluster: bool,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    verbs: &'static [Verb],
    subresources: &'static [SubRow],
    generations: bool,
    volatile: bool,
    selectable: &'static [&'static str],
}

/// A namespaced resource with all verbs.
const fn row(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Row {
    Row {
        group,
        version,
        kind,
        plural,
        also: None,
        cluster: false,
        short: &[],
        categories: &[],
        verbs: ALL,
        subresources: &[],
        generations: false,
        volatile: false,
        selectable: &[],
    }
}

const fn sub(name: &'static str, verbs: &'static [Verb], kind: Option<Kind>) -> SubRow {
    SubRow { name, verbs, kind }
}

/// A part of the object itself: get, patch, update.
const fn own(name: &'static str) -> SubRow {
    sub(name, OWN, None)
}

const SCALE: SubRow = sub("scale", OWN, Some(("autoscaling", "v1", "Scale")));

impl Row {
    /// Served under a second group or version, stored once.
    const fn also(mut self, group: &'static str, version: &'static str) -> Self {
        self.also = Some((group, version));
        self
    }

    const fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short = names;
        self
    }

    const fn categories(mut self, names: &'static [&'static str]) -> Self {
        self.categories = names;
        self
    }

    const fn verbs(mut self, verbs: &'static [Verb]) -> Self {
        self.verbs = verbs;
        self
    }

    const fn subresources(mut self, rows: &'static [SubRow]) -> Self {
        self.subresources = rows;
        self
    }

    const fn generations(mut self) -> Self {
        self.generations = true;
        self
    }

    const fn volatile(mut self) -> Self {
        self.volatile = true;
        self
    }

    const fn selectable(mut self, fields: &'static [&'static str]) -> Self {
        self.selectable = fields;
        self
    }

    pub fn build(&self) -> ResourceDef {
        let served = |group: &'static str, version: &'static str| ServedVersion {
            group: Name::Borrowed(group),
            version: Name::Borrowed(version),
            served: true,
        };
        let mut versions = vec![served(self.group, self.version)];
        versions.extend(self.also.map(|(group, version)| served(group, version)));
        ResourceDef {
            plural: Name::Borrowed(self.plural),
            singular: Name::Owned(self.kind.to_lowercase()),
            kind: Name::Borrowed(self.kind),
            list_kind: Name::Owned(format!("{}List", self.kind)),
            short_names: names(self.short),
            categories: names(self.categories),
            scope: if self.cluster {
                Scope::Cluster
            } else {
                Scope::Namespaced
            },
            verbs: self.verbs.to_vec(),
            versions,
            storage: 0,
            subresources: self.subresources.iter().map(SubRow::build).collect(),
            generations: self.generations,
            volatile: self.volatile,
            selectable: names(self.selectable),
            strategy: kinds::strategy(self.group, self.kind),
            custom: None,
        }
    }
}

impl SubRow {
    fn build(&self) -> SubresourceDef {
        SubresourceDef {
            name: Name::Borrowed(self.name),
            verbs: self.verbs.to_vec(),
            kind: self.kind.map(|(group, version, kind)| GroupVersionKind {
                group: Name::Borrowed(group),
                version: Name::Borrowed(version),
                kind: Name::Borrowed(kind),
            }),
        }
    }
}

fn names(texts: &'static [&'static str]) -> Vec<Name> {
    texts.iter().map(|text| Name::Borrowed(*text)).collect()
}

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    // core
    row("", "v1", "Binding", "bindings").verbs(CREATE),
    row("", "v1", "ComponentStatus", "componentstatuses").cluster().short(&["cs"]).verbs(READ),
    row("", "v1", "ConfigMap", "configmaps").short(&["cm"]),
    row("", "v1", "Endpoints", "endpoints").short(&["ep"]),
    row("", "v1", "Event", "events").also("events.k8s.io", "v1").short(&["ev"]).volatile().selectable(&["involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"]),
    row("", "v1", "LimitRange", "limitranges").short(&["limits"]),
    row("", "v1", "Namespace", "namespaces").cluster().short(&["ns"]).verbs(NO_COLLECTION).subresources(&[sub("finalize", &[Verb::Update], None), own("status")]).selectable(&["status.phase"]),
    row("", "v1", "Node", "nodes").cluster().short(&["no"]).subresources(&[sub("proxy", PROXY, Some(("", "v1", "NodeProxyOptions"))), own("status")]).selectable(&["spec.unschedulable"]),
    row("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims").short(&["pvc"]).subresources(&[own("status")]),
    row("", "v1", "PersistentVolume", "persistentvolumes").cluster().short(&["pv"]).subresources(&[own("status")]),
    row("", "v1", "Pod", "pods").short(&["po"]).categories(&["all"]).subresources(&[sub("attach", STREAM, Some(("", "v1", "PodAttachOptions"))), sub("binding", CREATE, Some(("", "v1", "Binding"))), own("ephemeralcontainers"), sub("eviction", CREATE, Some(("policy", "v1", "Eviction"))), sub("exec", STREAM, Some(("", "v1", "PodExecOptions"))), sub("log", &[Verb::Get], None), sub("portforward", STREAM, Some(("", "v1", "PodPortForwardOptions"))), sub("proxy", PROXY, Some(("", "v1", "PodProxyOptions"))), own("resize"), own("status")]).generations().selectable(&["spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"]),
    row("", "v1", "PodTemplate", "podtemplates").generations(),
    row("", "v1", "ReplicationController", "replicationcontrollers").short(&["rc"]).categories(&["all"]).subresources(&[SCALE, own("status")]).generations().selectable(&["status.replicas"]),
    row("", "v1", "ResourceQuota", "resourcequotas").short(&["quota"]).subresources(&[own("status")]),
    row("", "v1", "Secret", "secrets").selectable(&["type"]),
    row("", "v1", "ServiceAccount", "serviceaccounts").short(&["sa"]).subresources(&[sub("token", CREATE, Some(("authentication.k8s.io", "v1", "TokenRequest")))]),
    row("", "v1", "Service", "services").short(&["svc"]).categories(&["all"]).subresources(&[sub("proxy", PROXY, Some(("", "v1", "ServiceProxyOptions"))), own("status")]).selectable(&["spec.clusterIP", "spec.type"]),
    // apiregistration.k8s.io
    row("apiregistration.k8s.io", "v1", "APIService", "apiservices").cluster().categories(&["api-extensions"]).subresources(&[own("status")]),
    // apps
    row("apps", "v1", "ControllerRevision", "controllerrevisions"),
    row("apps", "v1", "DaemonSet", "daemonsets").short(&["ds"]).categories(&["all"]).subresources(&[own("status")]).generations(),
    row("apps", "v1", "Deployment", "deployments").short(&["deploy"]).categories(&["all"]).subresources(&[SCALE, own("status")]).generations(),
    row("apps", "v1", "ReplicaSet", "replicasets").short(&["rs"]).categories(&["all"]).subresources(&[SCALE, own("status")]).generations().selectable(&["status.replicas"]),
    row("apps", "v1", "StatefulSet", "statefulsets").short(&["sts"]).categories(&["all"]).subresources(&[SCALE, own("status")]).generations(),
    // authentication.k8s.io
    row("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews").cluster().verbs(CREATE),
    row("authentication.k8s.io", "v1", "TokenReview", "tokenreviews").cluster().verbs(CREATE),
    // authorization.k8s.io
    row("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews").verbs(CREATE),
    row("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews").cluster().verbs(CREATE),
    row("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews").cluster().verbs(CREATE),
    row("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews").cluster().verbs(CREATE),
    // autoscaling
    row("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers").also("autoscaling", "v1").short(&["hpa"]).categories(&["all"]).subresources(&[own("status")]),
    // batch
    row("batch", "v1", "CronJob", "cronjobs").short(&["cj"]).categories(&["all"]).subresources(&[own("status")]).generations(),
    row("batch", "v1", "Job", "jobs").categories(&["all"]).subresources(&[own("status")]).generations().selectable(&["status.successful"]),
    // certificates.k8s.io
    row("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests").cluster().short(&["csr"]).subresources(&[own("approval"), own("status")]).selectable(&["spec.signerName"]),
    // networking.k8s.io
    row("networking.k8s.io", "v1", "IngressClass", "ingressclasses").cluster().generations(),
    row("networking.k8s.io", "v1", "Ingress", "ingresses").short(&["ing"]).subresources(&[own("status")]).generations(),
    row("networking.k8s.io", "v1", "IPAddress", "ipaddresses").cluster().short(&["ip"]),
    row("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies").short(&["netpol"]).generations(),
    row("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs").cluster().subresources(&[own("status")]),
    // policy
    row("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets").short(&["pdb"]).subresources(&[own("status")]).generations(),
    // rbac.authorization.k8s.io
    row("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings").cluster(),
    row("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles").cluster(),
    row("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    row("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    // storage.k8s.io
    row("storage.k8s.io", "v1", "CSIDriver", "csidrivers").cluster().generations(),
    row("storage.k8s.io", "v1", "CSINode", "csinodes").cluster(),
    row("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities"),
    row("storage.k8s.io", "v1", "StorageClass", "storageclasses").cluster().short(&["sc"]),
    row("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments").cluster().subresources(&[own("status")]),
    row("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses").cluster().short(&["vac"]),
    // admissionregistration.k8s.io
    row("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies").cluster().categories(&["api-extensions"]).generations(),
    row("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings").cluster().categories(&["api-extensions"]).generations(),
    row("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations").cluster().categories(&["api-extensions"]).generations(),
    row("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies").cluster().categories(&["api-extensions"]).subresources(&[own("status")]).generations(),
    row("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings").cluster().categories(&["api-extensions"]).generations(),
    row("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations").cluster().categories(&["api-extensions"]).generations(),
    // apiextensions.k8s.io
    row("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions").cluster().short(&["crd", "crds"]).categories(&["api-extensions"]).subresources(&[own("status")]).generations(),
    // scheduling.k8s.io
    row("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses").cluster().short(&["pc"]).generations(),
    // coordination.k8s.io
    row("coordination.k8s.io", "v1", "Lease", "leases"),
    // node.k8s.io
    row("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses").cluster(),
    // discovery.k8s.io
    row("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices").generations(),
    // resource.k8s.io
    row("resource.k8s.io", "v1", "DeviceClass", "deviceclasses").cluster().generations(),
    row("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims").subresources(&[own("status")]),
    row("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    row("resource.k8s.io", "v1", "ResourceSlice", "resourceslices").cluster().generations().selectable(&["spec.nodeName", "spec.driver"]),
    // flowcontrol.apiserver.k8s.io
    row("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas").cluster().subresources(&[own("status")]).generations(),
    row("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations").cluster().subresources(&[own("status")]).generations(),
];

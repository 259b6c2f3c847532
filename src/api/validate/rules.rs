//! Which rules hold for which kind.

use serde_json::Value;

use super::{
    access, admission, certificate, core, flow, job, network, pod, pod_update, scaling, service,
    storage, various, warning, workload,
};
use crate::custom::definition;
use crate::field::ErrorList;
use crate::strategy::Context;

type Check = fn(&Value, &mut ErrorList);
type Compare = fn(&Value, &Value, &mut ErrorList);

/// The rules of a kind.
pub(crate) struct Rules {
    create: Check,
    /// `None`: as for a create.
    update: Option<Compare>,
    /// Through `status` and doors that are not named below.
    status: Compare,
    /// Through other doors, by subresource.
    doors: &'static [(&'static str, Compare)],
    /// Through the other group in which the kind is served.
    elsewhere: Option<&'static Rules>,
    /// Texts for the client about things that are allowed but unwise; the old object may be null.
    pub(crate) warnings: fn(&Value, &Value) -> Vec<String>,
}

impl Rules {
    const NONE: Self = Self {
        create: |_, _| {},
        update: None,
        status: |_, _, _| {},
        doors: &[],
        elsewhere: None,
        warnings: |_, _| Vec::new(),
    };

    const fn of(create: Check) -> Self {
        Self {
            create,
            ..Self::NONE
        }
    }

    const fn with(create: Check, update: Compare) -> Self {
        Self {
            create,
            update: Some(update),
            ..Self::NONE
        }
    }

    const fn all(create: Check, update: Compare, status: Compare) -> Self {
        Self {
            create,
            update: Some(update),
            status,
            ..Self::NONE
        }
    }

    fn seen_from(&self, context: &Context<'_>) -> &Self {
        match self.elsewhere {
            Some(other) if context.group != context.def.group() => other,
            _ => self,
        }
    }

    pub(crate) fn create(&self, context: &Context<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        (self.seen_from(context).create)(object, &mut errors);
        errors
    }

    pub(crate) fn update(&self, context: &Context<'_>, object: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let rules = self.seen_from(context);
        match rules.update {
            Some(update) => update(object, old, &mut errors),
            None => (rules.create)(object, &mut errors),
        }
        errors
    }

    /// An update through a subresource.
    pub(crate) fn door(&self, context: &Context<'_>, object: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let door = self.doors.iter().find(|row| row.0 == context.subresource);
        let check = door.map_or(self.status, |row| row.1);
        check(object, old, &mut errors);
        errors
    }
}

const ADMISSION: &str = "admissionregistration.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const RESOURCE: &str = "resource.k8s.io";

const STRICT_EVENT: Rules = Rules::with(
    |event, errors| {
        various::event(event, false, errors);
        various::strict_event(event, errors);
    },
    |event, old, errors| {
        various::event(event, false, errors);
        various::strict_event_update(event, old, errors);
    },
);

const POD: Rules = Rules {
    doors: &[
        ("ephemeralcontainers", pod_update::ephemeral_containers),
        ("resize", pod_update::resize),
    ],
    warnings: warning::pod,
    ..Rules::all(pod::create, pod_update::update, pod_update::status)
};

const EVENT: Rules = Rules {
    elsewhere: Some(&STRICT_EVENT),
    ..Rules::of(|event, errors| various::event(event, true, errors))
};

const SERVICE: Rules = Rules {
    warnings: warning::service,
    ..Rules::all(service::service, service::update, |new, _, errors| {
        service::status(new, errors)
    })
};

const DEPLOYMENT: Rules = Rules {
    warnings: warning::workload,
    ..Rules::all(
        workload::deployment,
        |new, old, errors| {
            workload::deployment(new, errors);
            workload::same_selector(new, old, errors);
        },
        workload::deployment_status,
    )
};

const REPLICA_SET: Rules = Rules {
    warnings: warning::workload,
    ..Rules::all(
        workload::replica_set,
        |new, old, errors| {
            workload::replica_set(new, errors);
            workload::same_selector(new, old, errors);
        },
        |new, _, errors| workload::replica_set_status(new, errors),
    )
};

const DAEMON_SET: Rules = Rules {
    warnings: warning::workload,
    ..Rules::all(
        workload::daemon_set,
        |new, old, errors| {
            workload::same_selector(new, old, errors);
            workload::daemon_set(new, errors);
        },
        workload::daemon_set_status,
    )
};

const STATEFUL_SET: Rules = Rules {
    warnings: warning::stateful_set,
    ..Rules::all(
        workload::stateful_set,
        workload::stateful_set_update,
        workload::stateful_set_status,
    )
};

const JOB: Rules = Rules {
    warnings: warning::job,
    ..Rules::all(job::job, job::job_update, job::job_status)
};

const CRON_JOB: Rules = Rules {
    warnings: warning::cron_job,
    ..Rules::with(job::cron_job, job::cron_job_update)
};

const REVISION: Rules = Rules::with(
    |revision, errors| {
        workload::controller_revision(revision, errors);
        workload::revision_data(revision, errors);
    },
    |new, old, errors| {
        workload::controller_revision(new, errors);
        let path = crate::field::Path::new("data");
        super::immutable(&new["data"], &old["data"], &path, errors);
    },
);

const REQUEST: Rules = Rules {
    doors: &[("approval", |new, old, errors| {
        certificate::update(new, old, true, false, errors);
    })],
    ..Rules::all(
        certificate::request,
        |new, old, errors| certificate::update(new, old, false, false, errors),
        |new, old, errors| certificate::update(new, old, false, true, errors),
    )
};

const ROLE_BINDING: Rules = Rules::with(access::role_binding, |new, old, errors| {
    access::role_binding(new, errors);
    access::same_role(new, old, errors);
});

const CLUSTER_ROLE_BINDING: Rules =
    Rules::with(access::cluster_role_binding, |new, old, errors| {
        access::cluster_role_binding(new, errors);
        access::same_role(new, old, errors);
    });

const NAMESPACE: Rules = Rules {
    status: |new, _, errors| core::namespace_status(new, errors),
    doors: &[("finalize", |new, _, errors| core::finalize(new, errors))],
    ..Rules::of(core::namespace)
};

const NODE: Rules = Rules {
    status: core::node_update,
    warnings: warning::node,
    ..Rules::with(core::node, core::node_update)
};

const VOLUME: Rules = Rules {
    warnings: warning::persistent_volume,
    ..Rules::with(storage::volume, storage::volume_update)
};

const AUTOSCALER: Rules = Rules {
    status: |new, _, errors| scaling::autoscaler_status(new, errors),
    ..Rules::of(scaling::autoscaler)
};

const BUDGET: Rules = Rules {
    status: |new, _, errors| scaling::budget_status(new, errors),
    ..Rules::of(scaling::budget)
};

const DEFINITION: Rules = Rules {
    warnings: definition::warnings,
    ..Rules::with(definition::create, |new, old, errors| {
        definition::update(new, old, errors);
    })
};

const INGRESS: Rules = Rules::all(
    network::ingress_create,
    |new, _, errors| network::ingress(new, errors),
    |new, _, errors| network::ingress_status(new, errors),
);

/// Rules by group and kind.
const RULES: &[(&str, &str, &Rules)] = &[
    (
        "",
        "ConfigMap",
        &Rules::with(core::config_map, core::config_map_update),
    ),
    ("", "Endpoints", &Rules::of(core::endpoints)),
    ("", "Event", &EVENT),
    ("", "LimitRange", &Rules::of(core::limit_range)),
    ("", "Namespace", &NAMESPACE),
    ("", "Node", &NODE),
    ("", "PersistentVolume", &VOLUME),
    (
        "",
        "PersistentVolumeClaim",
        &Rules {
            warnings: warning::claim,
            ..Rules::with(storage::claim, storage::claim_update)
        },
    ),
    ("", "Pod", &POD),
    ("", "PodTemplate", &Rules::of(core::pod_template)),
    (
        "",
        "ReplicationController",
        &Rules {
            status: |new, _, errors| workload::replica_set_status(new, errors),
            warnings: warning::workload,
            ..Rules::of(workload::replication_controller)
        },
    ),
    (
        "",
        "ResourceQuota",
        &Rules::with(core::quota, core::quota_update),
    ),
    (
        "",
        "Secret",
        &Rules {
            warnings: warning::secret,
            ..Rules::with(core::secret, core::secret_update)
        },
    ),
    ("", "Service", &SERVICE),
    (
        "",
        "ServiceAccount",
        &Rules {
            warnings: warning::service_account,
            ..Rules::NONE
        },
    ),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &DEFINITION,
    ),
    (
        ADMISSION,
        "MutatingAdmissionPolicy",
        &Rules::of(admission::mutating_policy),
    ),
    (
        ADMISSION,
        "MutatingAdmissionPolicyBinding",
        &Rules::of(admission::mutating_binding),
    ),
    (
        ADMISSION,
        "MutatingWebhookConfiguration",
        &Rules::of(admission::webhooks),
    ),
    (
        ADMISSION,
        "ValidatingAdmissionPolicy",
        &Rules::of(admission::validating_policy),
    ),
    (
        ADMISSION,
        "ValidatingAdmissionPolicyBinding",
        &Rules::of(admission::validating_binding),
    ),
    (
        ADMISSION,
        "ValidatingWebhookConfiguration",
        &Rules::of(admission::webhooks),
    ),
    (
        "apiregistration.k8s.io",
        "APIService",
        &Rules::of(various::api_service),
    ),
    ("apps", "ControllerRevision", &REVISION),
    ("apps", "DaemonSet", &DAEMON_SET),
    ("apps", "Deployment", &DEPLOYMENT),
    ("apps", "ReplicaSet", &REPLICA_SET),
    ("apps", "StatefulSet", &STATEFUL_SET),
    ("autoscaling", "HorizontalPodAutoscaler", &AUTOSCALER),
    ("batch", "CronJob", &CRON_JOB),
    ("batch", "Job", &JOB),
    ("certificates.k8s.io", "CertificateSigningRequest", &REQUEST),
    ("coordination.k8s.io", "Lease", &Rules::of(various::lease)),
    (
        "discovery.k8s.io",
        "EndpointSlice",
        &Rules::with(network::endpoint_slice, network::endpoint_slice_update),
    ),
    (FLOW, "FlowSchema", &Rules::of(flow::schema)),
    (FLOW, "PriorityLevelConfiguration", &Rules::of(flow::level)),
    (
        NETWORKING,
        "IPAddress",
        &Rules::with(network::ip_address, network::ip_address_update),
    ),
    (NETWORKING, "Ingress", &INGRESS),
    (
        NETWORKING,
        "IngressClass",
        &Rules::with(network::ingress_class, network::ingress_class_update),
    ),
    (NETWORKING, "NetworkPolicy", &Rules::of(network::policy)),
    (
        NETWORKING,
        "ServiceCIDR",
        &Rules::with(network::service_cidr, network::service_cidr_update),
    ),
    (
        "node.k8s.io",
        "RuntimeClass",
        &Rules::with(various::runtime_class, various::runtime_class_update),
    ),
    ("policy", "PodDisruptionBudget", &BUDGET),
    (RBAC, "ClusterRole", &Rules::of(access::cluster_role)),
    (RBAC, "ClusterRoleBinding", &CLUSTER_ROLE_BINDING),
    (RBAC, "Role", &Rules::of(access::role)),
    (RBAC, "RoleBinding", &ROLE_BINDING),
    (
        RESOURCE,
        "ResourceClaim",
        &Rules::with(various::resource_claim, various::resource_claim_update),
    ),
    (
        RESOURCE,
        "ResourceClaimTemplate",
        &Rules::with(
            various::resource_claim_template,
            various::resource_claim_update,
        ),
    ),
    (
        RESOURCE,
        "ResourceSlice",
        &Rules::of(various::resource_slice),
    ),
    (
        "scheduling.k8s.io",
        "PriorityClass",
        &Rules::with(various::priority_class, various::priority_class_update),
    ),
    (
        STORAGE,
        "CSIDriver",
        &Rules {
            warnings: warning::csi_driver,
            ..Rules::with(storage::csi_driver, storage::csi_driver_update)
        },
    ),
    (
        STORAGE,
        "CSINode",
        &Rules::with(storage::csi_node, storage::csi_node_update),
    ),
    (
        STORAGE,
        "CSIStorageCapacity",
        &Rules::with(storage::capacity_object, storage::capacity_update),
    ),
    (
        STORAGE,
        "StorageClass",
        &Rules {
            warnings: warning::storage_class,
            ..Rules::with(storage::class, storage::class_update)
        },
    ),
    (
        STORAGE,
        "VolumeAttachment",
        &Rules::with(storage::attachment, storage::attachment_update),
    ),
    (
        STORAGE,
        "VolumeAttributesClass",
        &Rules::with(storage::attributes, storage::attributes_update),
    ),
];

/// The rules of a built-in kind.
pub(crate) fn of(group: &str, kind: &str) -> &'static Rules {
    RULES
        .iter()
        .find(|row| row.0 == group && row.1 == kind)
        .map_or(&Rules::NONE, |row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_kinds_of_the_registry() {
        let registry = crate::Registry::builtin();
        let snapshot = registry.snapshot();
        for (group, kind, _) in RULES {
            let known = snapshot
                .rows()
                .iter()
                .any(|row| row.group() == *group && row.kind == *kind);
            assert!(known, "{group} {kind}");
        }
    }
}

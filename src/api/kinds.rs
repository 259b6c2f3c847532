//! What single kinds do differently, as rows of one table.
//!
//! A [`Kind`] holds a few flags and functions; whatever it leaves out is as for all other kinds.
//! Kinds with much to say have a file of their own below.

use std::sync::Arc;

use serde_json::Value;

use crate::field::ErrorList;
use crate::meta;
use crate::registry::ResourceDef;
use crate::strategy::{self, Context, Grace, NameRule, Strategy};
use crate::validate::rules::{self, Rules};

mod certificates;
mod definition;
mod lease;
mod namespace;
pub mod node;
pub mod pod;
pub mod service;
mod storage;
mod workload;

type Prepare = fn(&Context<'_>, &mut Value);
type PrepareUpdate = fn(&Context<'_>, &mut Value, &Value);

/// One row.
pub(crate) struct Kind {
    names: NameRule,
    /// A PUT creates.
    creates_on_update: bool,
    /// A PUT must name a resourceVersion.
    needs_version: bool,
    orphans: bool,
    /// The rules of a create hold for updates as well.
    checks_twice: bool,
    /// Told when dependents are orphaned because the delete did not say.
    orphans_warning: Option<&'static str>,
    /// A delete answers with the object.
    shows_deleted: bool,
    prepare_create: Prepare,
    prepare_update: PrepareUpdate,
    prepare_status: PrepareUpdate,
    canonicalize: fn(&mut Value),
    grace: fn(&Value, Option<i64>) -> Grace,
    mark_deleting: fn(&mut Value),
    is_held: fn(&Value) -> bool,
    is_renewal: fn(&Value, &Value) -> bool,
}

impl Kind {
    const DEFAULT: Self = Self {
        names: NameRule::Subdomain,
        creates_on_update: false,
        needs_version: false,
        orphans: false,
        checks_twice: false,
        orphans_warning: None,
        shows_deleted: false,
        prepare_create,
        prepare_update,
        prepare_status: |_, object, old| strategy::only_status(object, old),
        canonicalize: |_| {},
        grace: |_, _| Grace::None,
        mark_deleting: |_| {},
        is_held: |_| false,
        is_renewal: |_, _| false,
    };

    const SHOWS_DELETED: Self = Self {
        shows_deleted: true,
        ..Self::DEFAULT
    };

    /// Counts changes, but not from the first.
    const DRIVER: Self = Self {
        prepare_create: strategy::drop_status,
        ..Self::NEEDS_VERSION_SHOWS_DELETED
    };

    /// Labels count as a change, too: they say which service it belongs to.
    const SLICE: Self = Self {
        prepare_update: |context, slice, old| {
            prepare_update(context, slice, old);
            let path = ["metadata", "labels"];
            if meta::at(slice, &path) != meta::at(old, &path)
                && meta::at(slice, &["metadata", "generation"])
                    == meta::at(old, &["metadata", "generation"])
            {
                let generation = meta::integer(old, &["metadata", "generation"]).unwrap_or(0);
                meta::set(slice, &["metadata", "generation"], generation + 1);
            }
        },
        ..Self::DEFAULT
    };

    const NEEDS_VERSION_SHOWS_DELETED: Self = Self {
        needs_version: true,
        shows_deleted: true,
        ..Self::DEFAULT
    };

    const CHECKED_TWICE: Self = Self {
        checks_twice: true,
        ..Self::DEFAULT
    };

    const SEGMENT: Self = Self {
        names: NameRule::PathSegment,
        creates_on_update: true,
        ..Self::DEFAULT
    };

    const NEEDS_VERSION: Self = Self {
        needs_version: true,
        ..Self::DEFAULT
    };

    const ANY_NAME_NEEDS_VERSION: Self = Self {
        names: NameRule::PathSegment,
        needs_version: true,
        ..Self::DEFAULT
    };

    const CREATES: Self = Self {
        creates_on_update: true,
        ..Self::DEFAULT
    };

    const CREATES_NEEDS_VERSION: Self = Self {
        creates_on_update: true,
        needs_version: true,
        ..Self::DEFAULT
    };
}

fn prepare_create(context: &Context<'_>, object: &mut Value) {
    strategy::drop_status(context, object);
    strategy::start_generation(context, object);
}

fn prepare_update(context: &Context<'_>, object: &mut Value, old: &Value) {
    strategy::keep_status(context, object, old);
    strategy::count_generation(context, object, old);
}

/// The strategy of a row of the table.
struct Row(&'static Kind, &'static Doors, &'static Rules);

/// What the doors of a kind leave alone, and whether `status` leaves all metadata alone.
struct Doors {
    main: &'static [&'static str],
    status: &'static [&'static str],
    status_keeps_metadata: bool,
}

const DOORS: Doors = Doors {
    main: &["status"],
    status: &["spec"],
    status_keeps_metadata: false,
};

/// Updates of `status` change no metadata.
const STATUS_ONLY: Doors = Doors {
    main: &["status"],
    status: &["spec", "metadata"],
    status_keeps_metadata: true,
};

/// The doors of kinds that differ.
const ALL_DOORS: &[(&str, &str, &Doors)] = &[
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        &STATUS_ONLY,
    ),
    ("apiregistration.k8s.io", "APIService", &STATUS_ONLY),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema", &STATUS_ONLY),
    (
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        &STATUS_ONLY,
    ),
    ("networking.k8s.io", "ServiceCIDR", &STATUS_ONLY),
    ("resource.k8s.io", "ResourceClaim", &STATUS_ONLY),
    ("storage.k8s.io", "VolumeAttachment", &STATUS_ONLY),
    (
        "",
        "Pod",
        &Doors {
            main: &["status"],
            status: &[
                "spec",
                "metadata.deletionTimestamp",
                "metadata.ownerReferences",
            ],
            status_keeps_metadata: false,
        },
    ),
    (
        "apps",
        "Deployment",
        &Doors {
            main: &["status"],
            status: &["spec", "metadata.labels"],
            status_keeps_metadata: false,
        },
    ),
    (
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &Doors {
            main: &["spec", "status"],
            status: &["spec", "status.conditions"],
            status_keeps_metadata: false,
        },
    ),
];

impl Strategy for Row {
    fn prepare_for_create(&self, context: &Context<'_>, object: &mut Value) {
        (self.0.prepare_create)(context, object);
    }

    fn prepare_for_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        (self.0.prepare_update)(context, object, old);
    }

    fn prepare_for_status_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        (self.0.prepare_status)(context, object, old);
        if self.1.status_keeps_metadata && context.subresource == "status" {
            strategy::reset_metadata(object, old);
        }
    }

    fn reset_fields(&self, def: &ResourceDef, subresource: &str) -> &'static [&'static str] {
        match subresource {
            "" if def.has_status() => self.1.main,
            "scale" => &["status"],
            "status" => self.1.status,
            "finalize" => &["status"],
            "approval" => &["spec", "status.certificate"],
            "ephemeralcontainers" | "resize" => &["metadata", "status"],
            _ => &[],
        }
    }

    fn validate(&self, context: &Context<'_>, object: &Value) -> ErrorList {
        self.2.create(context, object)
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> ErrorList {
        self.2.update(context, object, old)
    }

    fn validate_status_update(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> ErrorList {
        self.2.door(context, object, old)
    }

    fn checks_update_twice(&self) -> bool {
        self.0.checks_twice
    }

    fn name_rule(&self) -> NameRule {
        self.0.names
    }

    fn warnings(&self, object: &Value, old: &Value) -> Vec<String> {
        (self.2.warnings)(object, old)
    }

    fn canonicalize(&self, object: &mut Value) {
        (self.0.canonicalize)(object);
    }

    fn allow_create_on_update(&self) -> bool {
        self.0.creates_on_update
    }

    fn allow_unconditional_update(&self) -> bool {
        !self.0.needs_version
    }

    fn grace(&self, object: &Value, requested: Option<i64>) -> Grace {
        (self.0.grace)(object, requested)
    }

    fn orphans_by_default(&self) -> bool {
        self.0.orphans
    }

    fn orphans_warning(&self) -> Option<&'static str> {
        self.0.orphans_warning
    }

    fn mark_deleting(&self, object: &mut Value) {
        (self.0.mark_deleting)(object);
    }

    fn is_held(&self, object: &Value) -> bool {
        (self.0.is_held)(object)
    }

    fn shows_deleted(&self) -> bool {
        self.0.shows_deleted
    }

    fn is_renewal(&self, object: &Value, old: &Value) -> bool {
        (self.0.is_renewal)(object, old)
    }
}

/// Rows of all kinds that differ from the default, by group and kind.
const KINDS: &[(&str, &str, &Kind)] = &[
    ("", "ConfigMap", &Kind::CHECKED_TWICE),
    ("", "Endpoints", &Kind::CREATES),
    ("", "Event", &Kind::CREATES),
    ("", "LimitRange", &Kind::CREATES),
    ("", "Namespace", &namespace::NAMESPACE),
    ("", "Node", &workload::NODE),
    ("", "PersistentVolume", &storage::VOLUME),
    ("", "PersistentVolumeClaim", &storage::CLAIM),
    ("", "Pod", &pod::POD),
    ("", "PodTemplate", &workload::POD_TEMPLATE),
    (
        "",
        "ReplicationController",
        &workload::REPLICATION_CONTROLLER,
    ),
    ("", "ResourceQuota", &Kind::SHOWS_DELETED),
    ("", "Service", &service::SERVICE),
    ("", "ServiceAccount", &workload::SERVICE_ACCOUNT),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        &Kind::NEEDS_VERSION,
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        &Kind::NEEDS_VERSION,
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        &Kind::NEEDS_VERSION,
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        &Kind::NEEDS_VERSION,
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
        &Kind::NEEDS_VERSION,
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        &Kind::NEEDS_VERSION,
    ),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &definition::DEFINITION,
    ),
    (
        "apiregistration.k8s.io",
        "APIService",
        &Kind::ANY_NAME_NEEDS_VERSION,
    ),
    ("apps", "DaemonSet", &workload::DAEMON_SET),
    ("apps", "Deployment", &workload::DEPLOYMENT),
    ("apps", "ReplicaSet", &workload::REPLICA_SET),
    ("apps", "StatefulSet", &workload::STATEFUL_SET),
    ("batch", "CronJob", &workload::CRON_JOB),
    ("batch", "Job", &workload::JOB),
    (
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &certificates::REQUEST,
    ),
    ("coordination.k8s.io", "Lease", &lease::LEASE),
    (
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        &Kind::NEEDS_VERSION,
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        &Kind::NEEDS_VERSION,
    ),
    ("node.k8s.io", "RuntimeClass", &Kind::CREATES_NEEDS_VERSION),
    ("discovery.k8s.io", "EndpointSlice", &Kind::SLICE),
    (
        "policy",
        "PodDisruptionBudget",
        &Kind::ANY_NAME_NEEDS_VERSION,
    ),
    ("rbac.authorization.k8s.io", "ClusterRole", &Kind::SEGMENT),
    (
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        &Kind::SEGMENT,
    ),
    ("rbac.authorization.k8s.io", "Role", &Kind::SEGMENT),
    ("rbac.authorization.k8s.io", "RoleBinding", &Kind::SEGMENT),
    ("storage.k8s.io", "CSIDriver", &Kind::DRIVER),
    (
        "storage.k8s.io",
        "CSINode",
        &Kind::NEEDS_VERSION_SHOWS_DELETED,
    ),
    ("storage.k8s.io", "CSIStorageCapacity", &Kind::NEEDS_VERSION),
    (
        "storage.k8s.io",
        "VolumeAttachment",
        &Kind::NEEDS_VERSION_SHOWS_DELETED,
    ),
    ("storage.k8s.io", "StorageClass", &Kind::SHOWS_DELETED),
    (
        "storage.k8s.io",
        "VolumeAttributesClass",
        &Kind::SHOWS_DELETED,
    ),
    ("resource.k8s.io", "DeviceClass", &Kind::SHOWS_DELETED),
    ("resource.k8s.io", "ResourceClaim", &Kind::SHOWS_DELETED),
    (
        "resource.k8s.io",
        "ResourceClaimTemplate",
        &Kind::SHOWS_DELETED,
    ),
    ("resource.k8s.io", "ResourceSlice", &Kind::SHOWS_DELETED),
];

/// The strategy of a built-in kind.
pub fn strategy(group: &str, kind: &str) -> Arc<dyn Strategy> {
    let row = KINDS
        .iter()
        .find(|row| row.0 == group && row.1 == kind)
        .map_or(&Kind::DEFAULT, |row| row.2);
    let doors = ALL_DOORS
        .iter()
        .find(|row| row.0 == group && row.1 == kind)
        .map_or(&DOORS, |row| row.2);
    Arc::new(Row(row, doors, rules::of(group, kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_kinds_of_the_registry() {
        let registry = crate::Registry::builtin();
        let snapshot = registry.snapshot();
        let doors = ALL_DOORS.iter().map(|row| (row.0, row.1));
        for (group, kind) in KINDS.iter().map(|row| (row.0, row.1)).chain(doors) {
            let known = |row: &Arc<crate::ResourceDef>| row.group() == group && row.kind == kind;
            assert!(snapshot.rows().iter().any(known), "{group} {kind}");
        }
    }
}

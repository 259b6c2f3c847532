//! Nodes, and everything that makes pods.

use serde_json::{Value, json};

use super::Kind;
use crate::meta::{self, at, boolean, default, integer, text};
use crate::strategy;

pub(super) const NODE: Kind = Kind {
    // A node is created together with its status.
    prepare_create: |_, _| {},
    ..Kind::DEFAULT
};

pub(super) const SERVICE_ACCOUNT: Kind = Kind {
    shows_deleted: true,
    ..Kind::DEFAULT
};

pub(super) const POD_TEMPLATE: Kind = Kind {
    shows_deleted: true,
    ..Kind::DEFAULT
};

pub(super) const REPLICATION_CONTROLLER: Kind = Kind {
    orphans: true,
    ..Kind::DEFAULT
};

pub(super) const DEPLOYMENT: Kind = Kind {
    prepare_update: |context, deployment, old| {
        strategy::keep_status(context, deployment, old);
        strategy::count_generation(context, deployment, old);
        // Annotations of a deployment travel to its replica sets, so they count too.
        let annotations = ["metadata", "annotations"];
        if at(deployment, &annotations) != at(old, &annotations) {
            let generation = integer(old, &["metadata", "generation"]).unwrap_or(0);
            meta::set(deployment, &["metadata", "generation"], generation + 1);
        }
    },
    prepare_status: |_, deployment, old| {
        strategy::only_status(deployment, old);
        match at(old, &["metadata", "labels"]) {
            Value::Null => {
                meta::remove(deployment, &["metadata", "labels"]);
            }
            labels => meta::set(deployment, &["metadata", "labels"], labels.clone()),
        }
    },
    ..Kind::DEFAULT
};

pub(super) const REPLICA_SET: Kind = Kind::DEFAULT;

pub(super) const STATEFUL_SET: Kind = Kind::DEFAULT;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(super) const DAEMON_SET: Kind = Kind {
    prepare_create: |context, set| {
        super::prepare_create(context, set);
        let path = ["metadata", "annotations", TEMPLATE_GENERATION];
        if text(set, &path).parse::<i64>().unwrap_or(0) < 1 {
            meta::set(set, &path, "1");
        }
    },
    prepare_update: |context, set, old| {
        super::prepare_update(context, set, old);
        let path = ["metadata", "annotations", TEMPLATE_GENERATION];
        let mut generation = text(old, &path).parse::<i64>().unwrap_or(1);
        if at(set, &["spec", "template"]) != at(old, &["spec", "template"]) {
            generation += 1;
        }
        meta::set(set, &path, generation.to_string());
    },
    ..Kind::DEFAULT
};

pub(super) const CRON_JOB: Kind = Kind {
    needs_version: true,
    ..Kind::DEFAULT
};

pub(super) const JOB: Kind = Kind {
    needs_version: true,
    orphans: true,
    orphans_warning: Some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    ),
    prepare_create: |context, job| {
        if !boolean(job, &["spec", "manualSelector"]) {
            generate_selector(job);
        }
        super::prepare_create(context, job);
    },
    ..Kind::DEFAULT
};

/// Jobs find their pods by the uid that the server gave them.
fn generate_selector(job: &mut Value) {
    let name = text(job, &["metadata", "name"]).to_owned();
    let uid = text(job, &["metadata", "uid"]).to_owned();
    let labels = meta::entry(job, &["spec", "template", "metadata", "labels"]);
    if labels.is_null() {
        *labels = json!({});
    }
    for (key, value) in [
        ("job-name", &name),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/controller-uid", &uid),
    ] {
        default(labels, key, value.as_str());
    }
    let selector = meta::entry(job, &["spec", "selector", "matchLabels"]);
    if selector.is_null() {
        *selector = json!({});
    }
    default(selector, "batch.kubernetes.io/controller-uid", uid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_jobs() {
        let mut job = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {}}});
        generate_selector(&mut job);
        assert_eq!(
            job["spec"]["template"]["metadata"]["labels"]["job-name"],
            "j"
        );
        assert_eq!(
            job["spec"]["selector"]["matchLabels"],
            json!({"batch.kubernetes.io/controller-uid": "u"})
        );
    }
}

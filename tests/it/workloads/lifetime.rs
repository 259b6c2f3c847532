//! What goes when its owner, its node or its namespace goes.

use std::time::Instant;

use super::Space;
use crate::support::cluster::{IMAGE, MINUTE};
use crate::support::eventually;

fn deployment(name: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}}}, spec: {{replicas: 2, selector: {{matchLabels: {{app: {name}}}}}, \
         template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{terminationGracePeriodSeconds: 0, containers: [{{name: main, image: '{IMAGE}'}}]}}}}}}}}"
    )
}

pub fn garbage_collection(space: &Space<'_>) -> String {
    for name in ["back", "fore", "orphan"] {
        space.apply(&deployment(name));
    }
    for name in ["back", "fore", "orphan"] {
        space.kubectl(&format!("rollout status deployment/{name} --timeout=60s"));
    }
    space.kubectl("delete deployment back");
    space.count_becomes("replicasets,pods -l app=back", 0);

    // A finalizer holds one Pod, the Pod its ReplicaSet, that the Deployment.
    let held = space.names("pods -l app=fore").remove(0);
    space.kubectl(&format!(
        "patch {held} -p {{\"metadata\":{{\"finalizers\":[\"sampan.test/hold\"]}}}}"
    ));
    space.kubectl("delete deployment fore --cascade=foreground --wait=false");
    space.count_becomes("pods -l app=fore", 1);
    let deleting = space.get(
        "deployment fore",
        "{.metadata.finalizers}{.metadata.deletionTimestamp}",
    );
    assert!(deleting.contains("foregroundDeletion"), "{deleting}");
    assert_eq!(space.names("replicasets -l app=fore").len(), 1);
    space.kubectl(&format!(
        "patch {held} -p {{\"metadata\":{{\"finalizers\":null}}}}"
    ));
    space.count_becomes("deployments,replicasets,pods -l app=fore", 0);
    eventually("the Deployment is gone", MINUTE, || {
        match space
            .names("deployments")
            .iter()
            .any(|name| name.ends_with("/fore"))
        {
            true => Err("it is there".to_owned()),
            false => Ok(()),
        }
    });

    let pods = space.get("pods -l app=orphan", "{.items[*].metadata.uid}");
    let set = space.get("replicasets -l app=orphan", "{.items[*].metadata.uid}");
    space.kubectl("delete deployment orphan --cascade=orphan");
    space.becomes(
        "replicasets -l app=orphan",
        "{.items[*].metadata.ownerReferences}",
        "",
    );
    assert_eq!(
        space.get("pods -l app=orphan", "{.items[*].metadata.uid}"),
        pods
    );
    space.apply(&deployment("orphan"));
    space.kubectl("rollout status deployment/orphan --timeout=60s");
    space.becomes(
        "replicasets -l app=orphan",
        "{.items[*].metadata.ownerReferences[0].kind}",
        "Deployment",
    );
    assert_eq!(
        space.get("replicasets -l app=orphan", "{.items[*].metadata.uid}"),
        set,
        "adopted"
    );
    assert_eq!(
        space.get("pods -l app=orphan", "{.items[*].metadata.uid}"),
        pods,
        "adopted"
    );
    "background 3 gone, foreground 4 gone after their last Pod, orphans 3 stayed and were adopted"
        .to_owned()
}

pub fn namespace_deletion(space: &Space<'_>) -> String {
    space.apply(&deployment("web"));
    space.kubectl("expose deployment web --port=80");
    space.kubectl("create secret generic secret --from-literal=a=b");
    space.kubectl("create serviceaccount robot");
    space.kubectl("create role reader --verb=get --resource=pods");
    space.apply(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: held, finalizers: [sampan.test/hold]}}",
    );
    space.kubectl("rollout status deployment/web --timeout=60s");
    space.kubectl("delete namespace namespace --wait=false");
    space.becomes("namespace namespace", "{.status.phase}", "Terminating");
    let condition = |kind: &str| format!("{{.status.conditions[?(@.type==\"{kind}\")].status}}");
    space.becomes(
        "namespace namespace",
        &condition("NamespaceFinalizersRemaining"),
        "True",
    );
    space.becomes(
        "namespace namespace",
        &condition("NamespaceContentRemaining"),
        "True",
    );
    let message = "{.status.conditions[?(@.type==\"NamespaceFinalizersRemaining\")].message}";
    let message = space.get("namespace namespace", message);
    assert!(
        message.contains("sampan.test/hold in 1 resource instances"),
        "{message}"
    );
    let refused = space.try_kubectl("create configmap late").unwrap_err();
    assert!(
        refused.contains("because it is being terminated"),
        "{refused}"
    );
    space.count_becomes("deployments,replicasets,pods,services,secrets,roles", 0);
    space.kubectl("patch configmap held -p {\"metadata\":{\"finalizers\":null}}");
    let freed = Instant::now();
    eventually("the namespace is gone", MINUTE, || {
        match space.try_kubectl("get namespace namespace") {
            Ok(text) => Err(text),
            Err(_) => Ok(()),
        }
    });
    let took = freed.elapsed().as_secs_f64();
    assert!(
        took < 2.0,
        "gone {took:.1} s after its last object, not at once"
    );
    format!("9 objects and 2 Pods gone, held by 1 finalizer, gone {took:.1} s after it")
}

/// A Pod of a node that does not exist goes after the quarantine; so does one whose node is deleted.
pub fn pod_garbage(space: &Space<'_>) -> String {
    space.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: lost}}, spec: {{nodeName: ghost, containers: [{{name: main, image: '{IMAGE}'}}]}}}}"
    ));
    let made = Instant::now();
    eventually("the Pod of no node is gone", MINUTE * 2, || {
        let names = space.names("pods");
        if names.is_empty() {
            Ok(())
        } else {
            Err(names.join(" "))
        }
    });
    format!(
        "1 Pod of a node that is not there gone after {:.0} s",
        made.elapsed().as_secs_f64()
    )
}

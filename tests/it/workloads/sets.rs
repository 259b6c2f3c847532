//! DaemonSets, StatefulSets, and the rollouts of Deployments.

use super::Space;
use crate::support::cluster::{IMAGE, MINUTE, NEXT_IMAGE};
use crate::support::eventually;

fn template(name: &str) -> String {
    format!(
        "{{metadata: {{labels: {{app: {name}}}}}, spec: {{terminationGracePeriodSeconds: 0, containers: [{{name: main, image: '{IMAGE}', \
         readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1, timeoutSeconds: 5}}}}]}}}}"
    )
}

pub fn daemon_sets(space: &Space<'_>) -> String {
    space.apply(&format!(
        "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: every}}, spec: {{selector: {{matchLabels: {{app: every}}}}, template: {}}}}}",
        template("every")
    ));
    space.kubectl("rollout status daemonset/every --timeout=60s");
    let nodes = || {
        let text = space.get("pods -l app=every", "{.items[*].spec.nodeName}");
        let mut nodes: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        nodes.sort();
        nodes
    };
    assert_eq!(nodes(), ["a", "b"]);
    space.kubectl(&format!("set image daemonset/every main={NEXT_IMAGE}"));
    space.kubectl("rollout status daemonset/every --timeout=60s");
    let images = space.get("pods -l app=every", "{.items[*].spec.containers[0].image}");
    assert_eq!(images, format!("{NEXT_IMAGE} {NEXT_IMAGE}"));
    space.kubectl("rollout undo daemonset/every");
    space.kubectl("rollout status daemonset/every --timeout=60s");
    assert_eq!(nodes(), ["a", "b"]);
    // By a label that only one node has.
    space.kubectl("label node b --overwrite disk=fast");
    space.kubectl("patch daemonset every -p {\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"disk\":\"fast\"}}}}}");
    eventually("only b has a Pod", MINUTE, || {
        let nodes = nodes();
        if nodes == ["b"] {
            Ok(())
        } else {
            Err(nodes.join(" "))
        }
    });
    "1 Pod on each of 2 nodes, updated and undone, 1 by node label".to_owned()
}

fn stateful(name: &str, policy: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: None, selector: {{app: {name}}}, ports: [{{port: 8080}}]}}}}\n---\n\
         {{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: {name}}}, spec: {{serviceName: {name}, replicas: 3, podManagementPolicy: {policy}, \
         selector: {{matchLabels: {{app: {name}}}}}, template: {}}}}}",
        template(name)
    )
}

pub fn stateful_sets(space: &Space<'_>) -> String {
    space.apply(&stateful("db", "OrderedReady"));
    space.kubectl("rollout status statefulset/db --timeout=90s");
    let ready = |pod: &str| {
        space.get(
            &format!("pod {pod}"),
            "{.status.conditions[?(@.type==\"Ready\")].lastTransitionTime}",
        )
    };
    let created = |pod: &str| space.get(&format!("pod {pod}"), "{.metadata.creationTimestamp}");
    assert!(
        created("db-1") >= ready("db-0"),
        "db-1 is made when db-0 is Ready"
    );
    assert!(
        created("db-2") >= ready("db-1"),
        "db-2 is made when db-1 is Ready"
    );
    for pod in ["db-0", "db-1", "db-2"] {
        let line = format!("http://{pod}.db:8080/");
        let answer = eventually("a Pod answers by its name", MINUTE, || {
            space.try_kubectl(&format!("exec db-0 -- curl -sS -m 3 {line}"))
        });
        assert_eq!(answer.trim(), pod);
    }
    let uid = space.get("pod db-1", "{.metadata.uid}");
    space.kubectl("delete pod db-1");
    eventually("db-1 is made anew", MINUTE, || {
        let text = space.try_kubectl("get pod db-1 -o jsonpath={.metadata.uid}")?;
        if text == uid { Err(text) } else { Ok(()) }
    });
    partition(space);
    space.kubectl("scale statefulset db --replicas=1");
    space.becomes("pods -l app=db", "{.items[*].metadata.name}", "db-0");
    space.apply(&stateful("many", "Parallel"));
    space.count_becomes("pods -l app=many", 3);
    space.kubectl("rollout status statefulset/many --timeout=60s");
    "3 Pods in order, each by its name, 1 replaced under its name, partition kept 2 of 3 back, scaled to 1, 3 side by side".to_owned()
}

fn partition(space: &Space<'_>) {
    let images = "{.items[*].spec.containers[0].image}";
    space.kubectl("rollout status statefulset/db --timeout=60s");
    let update = |partition: u32| {
        space.kubectl(&format!(
            "patch statefulset db -p {{\"spec\":{{\"updateStrategy\":{{\"rollingUpdate\":{{\"partition\":{partition}}}}}}}}}"
        ));
    };
    update(2);
    space.kubectl(&format!("set image statefulset/db main={NEXT_IMAGE}"));
    space.becomes(
        "pods -l app=db",
        images,
        &format!("{IMAGE} {IMAGE} {NEXT_IMAGE}"),
    );
    space.becomes("statefulset db", "{.status.updatedReplicas}", "1");
    update(0);
    space.kubectl("rollout status statefulset/db --timeout=90s");
    space.becomes(
        "pods -l app=db",
        images,
        &format!("{NEXT_IMAGE} {NEXT_IMAGE} {NEXT_IMAGE}"),
    );
}

pub fn rollouts(space: &Space<'_>) -> String {
    space.apply(&format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{replicas: 2, selector: {{matchLabels: {{app: web}}}}, template: {}}}}}",
        template("web")
    ));
    space.kubectl("rollout status deployment/web --timeout=60s");
    space.kubectl("rollout pause deployment/web");
    space.kubectl(&format!("set image deployment/web main={NEXT_IMAGE}"));
    space.kubectl("set env deployment/web GREETING=hello");
    // The controller has seen the change and made nothing of it.
    let generation = space.get("deployment web", "{.metadata.generation}");
    space.becomes(
        "deployment web",
        "{.status.observedGeneration}",
        &generation,
    );
    assert_eq!(space.names("replicasets -l app=web").len(), 1, "paused");
    space.kubectl("rollout resume deployment/web");
    space.kubectl("rollout status deployment/web --timeout=60s");
    assert_eq!(
        space.names("replicasets -l app=web").len(),
        2,
        "both changes in one revision"
    );
    let history = space.kubectl("rollout history deployment/web");
    let revisions = history
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .count();
    assert_eq!(revisions, 2, "{history}");
    let second = space.kubectl("rollout history deployment/web --revision=2");
    assert!(
        second.contains(NEXT_IMAGE) && second.contains("GREETING"),
        "{second}"
    );
    space.kubectl("rollout undo deployment/web --to-revision=1");
    space.kubectl("rollout status deployment/web --timeout=60s");
    space.becomes(
        "deployment web",
        "{.spec.template.spec.containers[0].image}",
        IMAGE,
    );
    // One that cannot succeed says so, and what ran goes on.
    space.kubectl("patch deployment web -p {\"spec\":{\"progressDeadlineSeconds\":3}}");
    space.kubectl("set image deployment/web main=sampan.test/missing:1");
    space.becomes(
        "deployment web",
        "{.status.conditions[?(@.type==\"Progressing\")].reason}",
        "ProgressDeadlineExceeded",
    );
    assert!(
        space
            .try_kubectl("rollout status deployment/web --timeout=10s")
            .is_err()
    );
    assert_eq!(
        space.get("deployment web", "{.status.availableReplicas}"),
        "2"
    );
    space.kubectl("rollout undo deployment/web");
    space.kubectl("rollout status deployment/web --timeout=60s");
    "paused and resumed as 1 revision, undone to 1, deadline of a bad image told, 2 of 2 replicas stayed".to_owned()
}

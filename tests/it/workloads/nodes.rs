//! Nodes that are drained and tainted.

use std::time::{Duration, Instant};

use super::Space;
use crate::support::cluster::{IMAGE, MINUTE};
use crate::support::eventually;

fn spread(name: &str, replicas: u32, tolerations: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}}}, spec: {{replicas: {replicas}, selector: {{matchLabels: {{app: {name}}}}}, \
         template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{terminationGracePeriodSeconds: 1, tolerations: [{tolerations}], \
         topologySpreadConstraints: [{{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, \
         labelSelector: {{matchLabels: {{app: {name}}}}}}}], containers: [{{name: main, image: '{IMAGE}', \
         readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1, timeoutSeconds: 5}}}}]}}}}}}}}"
    )
}

const DRAIN: &str = "drain b --ignore-daemonsets --force --delete-emptydir-data";

pub fn drain(space: &Space<'_>) -> String {
    space.apply(&spread("web", 4, ""));
    space.apply(
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: web}, spec: {minAvailable: 4, selector: {matchLabels: {app: web}}}}",
    );
    space.kubectl("rollout status deployment/web --timeout=60s");
    space.becomes("pdb web", "{.status.currentHealthy}", "4");
    let on_b = || {
        space
            .names("pods -l app=web --field-selector spec.nodeName=b")
            .len()
    };
    let before = on_b();
    assert!(before >= 1, "Pods on b");
    let refused = space
        .try_kubectl(&format!("{DRAIN} --timeout=4s"))
        .unwrap_err();
    assert!(
        refused.contains("violate the pod's disruption budget"),
        "{refused}"
    );
    assert_eq!(on_b(), before, "nobody was evicted");
    space.kubectl("patch pdb web --type=merge -p {\"spec\":{\"minAvailable\":3}}");
    space.becomes("pdb web", "{.status.disruptionsAllowed}", "1");
    let mut draining = space
        .command(&format!("{DRAIN} --timeout=90s"))
        .spawn()
        .unwrap();
    let (mut looks, mut fewest) = (0, 4);
    let status = loop {
        if let Some(status) = draining.try_wait().unwrap() {
            break status;
        }
        let ready = space.get(
            "pods -l app=web",
            "{.items[*].status.conditions[?(@.type==\"Ready\")].status}",
        );
        fewest = fewest.min(ready.matches("True").count());
        looks += 1;
    };
    assert!(status.success(), "kubectl drain: {status}");
    assert!(fewest >= 3, "only {fewest} of 4 were Ready");
    assert_eq!(on_b(), 0);
    space.kubectl("rollout status deployment/web --timeout=60s");
    space.kubectl("uncordon b");
    format!(
        "refused by the budget, then {before} Pods evicted with never fewer than {fewest} of 4 Ready in {looks} looks"
    )
}

pub fn taints(space: &Space<'_>) -> String {
    let tolerate = |seconds: &str| {
        format!("{{key: maintenance, operator: Exists, effect: NoExecute{seconds}}}")
    };
    space.apply(&spread("none", 2, ""));
    space.apply(&spread("some", 2, &tolerate(", tolerationSeconds: 4")));
    space.apply(&spread("all", 2, &tolerate("")));
    for name in ["none", "some", "all"] {
        space.kubectl(&format!("rollout status deployment/{name} --timeout=60s"));
    }
    let on_b = |name: &str| {
        let what = format!("pods -l app={name} --field-selector spec.nodeName=b");
        space.get(&what, "{.items[*].metadata.uid}")
    };
    let (patient, tolerant) = (on_b("some"), on_b("all"));
    assert!(![&patient, &tolerant].contains(&&String::new()) && !on_b("none").is_empty());
    let tainted = Instant::now();
    space.kubectl("taint node b maintenance=now:NoExecute");
    let gone = |name: &str, first: &str| {
        eventually(&format!("the Pod of {name} leaves b"), MINUTE, || {
            let now = on_b(name);
            if !first.is_empty() && now.contains(first) || first.is_empty() && !now.is_empty() {
                Err(now)
            } else {
                Ok(())
            }
        });
        tainted.elapsed()
    };
    let at_once = gone("none", "");
    let later = gone("some", &patient);
    assert!(
        later >= Duration::from_secs(4),
        "tolerated for 4 s, left after {later:?}"
    );
    assert_eq!(on_b("all"), tolerant);
    space.kubectl("taint node b maintenance-");
    for name in ["none", "some", "all"] {
        space.kubectl(&format!("rollout status deployment/{name} --timeout=60s"));
    }
    format!(
        "1 Pod left after {:.1} s, 1 that tolerates 4 s after {:.1} s, 1 that tolerates stayed",
        at_once.as_secs_f64(),
        later.as_secs_f64()
    )
}

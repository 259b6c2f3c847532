//! Each controller that makes Pods, once for real.

use super::scene::{FOREVER, Scene, container};

fn template(labels: &str, policy: &str, script: &str) -> String {
    format!(
        "{{metadata: {{labels: {labels}}}, spec: {{terminationGracePeriodSeconds: 1, restartPolicy: {policy}, containers: [{}]}}}}",
        container("main", script, "")
    )
}

pub(super) fn daemon_set(scene: &Scene<'_>) {
    let manifest = |script: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: each}}, spec: {{selector: {{matchLabels: {{app: each}}}}, template: {}}}}}",
            template("{app: each}", "Always", script)
        )
    };
    scene.apply(&manifest(FOREVER));
    scene.kubectl("rollout status daemonset/each --timeout=90s");
    scene.is(
        "counts",
        &scene.field(
            "daemonset/each",
            "{.status.desiredNumberScheduled} {.status.numberReady}",
        ),
        "1 1",
    );
    let first = scene.field("pods", "{.items[*].metadata.uid}");
    scene.apply(&manifest(&format!("true; {FOREVER}")));
    scene.kubectl("rollout status daemonset/each --timeout=90s");
    scene.truth(
        "a new Pod",
        scene.field("pods", "{.items[*].metadata.uid}") != first,
    );
}

pub(super) fn job(scene: &Scene<'_>) {
    scene.apply(&format!(
        "{{apiVersion: batch/v1, kind: Job, metadata: {{name: work}}, spec: {{completions: 3, parallelism: 2, template: {}}}}}",
        template("{app: work}", "Never", "echo done")
    ));
    scene.apply(&format!(
        "{{apiVersion: batch/v1, kind: Job, metadata: {{name: fails}}, spec: {{backoffLimit: 0, template: {}}}}}",
        template("{app: fails}", "Never", "exit 1")
    ));
    scene.kubectl("wait --for=condition=Complete job/work --timeout=90s");
    scene.is(
        "succeeded",
        &scene.field("job/work", "{.status.succeeded}"),
        "3",
    );
    scene.is("logs", &scene.kubectl("logs job/work"), "done");
    scene.kubectl("wait --for=condition=Failed job/fails --timeout=90s");
    scene.is(
        "reason",
        &scene.field(
            "job/fails",
            "{.status.conditions[?(@.type==\"Failed\")].reason}",
        ),
        "BackoffLimitExceeded",
    );
}

pub(super) fn stateful_set(scene: &Scene<'_>) {
    scene.apply("{apiVersion: v1, kind: Service, metadata: {name: set}, spec: {clusterIP: None, selector: {app: set}}}");
    scene.apply(&format!(
        "{{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: set}}, spec: {{serviceName: set, replicas: 2, selector: {{matchLabels: {{app: set}}}}, template: {}}}}}",
        template("{app: set}", "Always", FOREVER)
    ));
    scene.kubectl("rollout status statefulset/set --timeout=90s");
    scene.is(
        "names",
        &scene.field("pods", "{.items[*].metadata.name}"),
        "set-0 set-1",
    );
    scene.until("a Pod resolves its neighbour", || {
        scene
            .try_exec(
                "set-0",
                &format!("nslookup set-1.set.{}.svc.cluster.local", scene.namespace()),
            )
            .map(|_| ())
    });
    let first = scene.field("pod/set-1", "{.metadata.uid}");
    scene.kubectl("delete pod set-1");
    scene.until("the same name comes back", || {
        let uid = scene.attempt("get pod set-1 -o jsonpath={.metadata.uid}")?;
        if uid == first { Err(uid) } else { Ok(()) }
    });
    scene.ready("pod/set-1");
    scene.kubectl("scale statefulset/set --replicas=1");
    scene.until_is("pods", "{.items[*].metadata.name}", "set-0");
}

pub(super) fn cron_job(scene: &Scene<'_>) {
    scene.apply(&format!(
        "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: tick}}, spec: {{schedule: '* * * * *', jobTemplate: {{spec: {{template: {}}}}}}}}}",
        template("{app: tick}", "Never", "echo tick")
    ));
    scene.kubectl("create job now --from=cronjob/tick");
    scene.kubectl("wait --for=condition=Complete job/now --timeout=90s");
    scene.until("the next minute brings a Job", || {
        let got = scene.field("jobs", "{.items[?(@.status.succeeded==1)].metadata.name}");
        if got.contains("tick-") {
            Ok(())
        } else {
            Err(got)
        }
    });
    scene.until_has("cronjob/tick", "{.status.lastSuccessfulTime}", "20");
}

//! Jobs and CronJobs.

use super::Space;
use crate::support::cluster::{IMAGE, MINUTE};
use crate::support::eventually;

fn job(name: &str, spec: &str, line: &str) -> String {
    format!(
        "{{apiVersion: batch/v1, kind: Job, metadata: {{name: {name}}}, spec: {{{spec}, template: {{spec: {{restartPolicy: Never, \
         containers: [{{name: main, image: '{IMAGE}', command: [sh, -c, '{line}']}}]}}}}}}}}"
    )
}

pub fn jobs(space: &Space<'_>) -> String {
    space.apply(&job(
        "indexed",
        "completions: 4, parallelism: 2, completionMode: Indexed",
        "echo index $JOB_COMPLETION_INDEX; hostname",
    ));
    space.apply(&job("fails", "backoffLimit: 1", "exit 1"));
    space.apply(&job(
        "judged",
        "backoffLimit: 6, podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {containerName: main, operator: In, values: [42]}}]}",
        "exit 42",
    ));
    space.apply(&job(
        "ignored",
        "backoffLimitPerIndex: 0, completions: 2, parallelism: 2, completionMode: Indexed",
        "exit $JOB_COMPLETION_INDEX",
    ));
    space.kubectl("wait --for=condition=Complete job/indexed --timeout=90s");
    assert_eq!(
        space.get("job indexed", "{.status.completedIndexes}"),
        "0-3"
    );
    assert_eq!(space.get("job indexed", "{.status.succeeded}"), "4");
    for index in 0..4 {
        let selector =
            format!("pods -l batch.kubernetes.io/job-completion-index={index},job-name=indexed");
        let pod = space.get(&selector, "{.items[0].metadata.name}");
        let log = space.kubectl(&format!("logs {pod}"));
        assert!(
            log.starts_with(&format!("index {index}\nindexed-{index}")),
            "{log}"
        );
    }
    let reason = "{.status.conditions[?(@.type==\"Failed\")].reason}";
    space.becomes("job fails", reason, "BackoffLimitExceeded");
    assert_eq!(space.get("job fails", "{.status.failed}"), "2", "tries");
    space.becomes("job judged", reason, "PodFailurePolicy");
    assert_eq!(space.get("job judged", "{.status.failed}"), "1", "tries");
    space.becomes("job ignored", reason, "FailedIndexes");
    assert_eq!(space.get("job ignored", "{.status.failedIndexes}"), "1");
    assert_eq!(space.get("job ignored", "{.status.completedIndexes}"), "0");
    "4 of 4 indexes done, backoffLimit 1 made 2 tries, exit code 42 failed the Job at once, 1 index of 2 failed alone".to_owned()
}

pub fn cron_jobs(space: &Space<'_>) -> String {
    space.apply(&format!(
        "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: tick}}, spec: {{schedule: '* * * * *', successfulJobsHistoryLimit: 1, \
         jobTemplate: {{spec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: main, image: '{IMAGE}', \
         command: ['true']}}]}}}}}}}}}}}}"
    ));
    space.kubectl("create job by-hand --from=cronjob/tick");
    space.kubectl("wait --for=condition=Complete job/by-hand --timeout=60s");
    let made = eventually("the CronJob makes a Job", MINUTE * 2, || {
        let names = space.names("jobs");
        let made = names.iter().find(|name| name.contains("/tick-"));
        made.cloned().ok_or_else(|| names.join(" "))
    });
    space.kubectl(&format!(
        "wait --for=condition=Complete {made} --timeout=60s"
    ));
    let controller = space.get(&made, "{.metadata.ownerReferences[0].kind}");
    assert_eq!(controller, "CronJob");
    space.kubectl("patch cronjob tick -p {\"spec\":{\"suspend\":true}}");
    space.kubectl("delete cronjob tick");
    eventually("its Jobs go with it", MINUTE, || {
        let names = space.names("jobs");
        if names.iter().any(|name| name.contains("/tick-")) {
            Err(names.join(" "))
        } else {
            Ok(())
        }
    });
    "1 Job by schedule, 1 by hand, all done".to_owned()
}

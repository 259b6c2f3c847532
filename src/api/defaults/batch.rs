//! Jobs and cron jobs.

use serde_json::Value;

use super::Rule;
use crate::meta::{self, at, default, default_text, get};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("batch.v1.Job", job),
    ("batch.v1.CronJobSpec", cron_job),
    (
        "batch.v1.PodFailurePolicyOnPodConditionsPattern",
        condition_pattern,
    ),
];

fn job(job: &mut Value) {
    let labels = at(job, &["spec", "template", "metadata", "labels"]).clone();
    let unlabelled = at(job, &["metadata", "labels"])
        .as_object()
        .is_none_or(serde_json::Map::is_empty);
    if unlabelled && labels.is_object() {
        meta::set(job, &["metadata", "labels"], labels);
    }
    let Some(spec) = job.get_mut("spec") else {
        return;
    };
    if get(spec, "completions").is_null() && get(spec, "parallelism").is_null() {
        default(spec, "completions", 1);
    }
    default(spec, "parallelism", 1);
    let limit = if get(spec, "backoffLimitPerIndex").is_null() {
        6
    } else {
        i32::MAX
    };
    default(spec, "backoffLimit", limit);
    default(spec, "completionMode", "NonIndexed");
    default(spec, "suspend", false);
    let replacement = if get(spec, "podFailurePolicy").is_null() {
        "TerminatingOrFailed"
    } else {
        "Failed"
    };
    default(spec, "podReplacementPolicy", replacement);
    default(spec, "manualSelector", false);
}

fn cron_job(spec: &mut Value) {
    default_text(spec, "concurrencyPolicy", "Allow");
    default(spec, "suspend", false);
    default(spec, "successfulJobsHistoryLimit", 3);
    default(spec, "failedJobsHistoryLimit", 1);
}

fn condition_pattern(pattern: &mut Value) {
    default_text(pattern, "status", "True");
}

//! Which of a Job's pods come and go while it runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec,
};

use super::indexes::{ANNOTATION, Indexes, index_of, inherited};
use super::policy::Reaction;
use super::tally::{
    INDEX_FAILURES, INDEX_IGNORED, Tally, completions, creation_delay, delay_after, finish_time,
    has_valid_index, is_failed, reaction,
};
use super::{Case, FINALIZER, has_finalizer};
use crate::runtime::{Action, EventNote, Plan, Step};
use crate::{owner, pods};

/// So many pods come or go in one reconcile.
const MOST_AT_ONCE: usize = 500;
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

fn size(count: i32) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// Plans creations or deletions, never both: a pod that goes must be seen gone first.
pub(crate) fn manage(case: &Case<'_>, tally: &Tally, plan: &mut Plan) {
    if case.is_suspended() {
        remove(case, tally.active.iter(), plan);
        return;
    }
    let active = tally.active_count();
    let wanted = match case.spec.completions {
        None if tally.succeeded > 0 => active,
        None => case.parallelism(),
        Some(completions) => (completions - tally.succeeded)
            .min(case.parallelism())
            .max(0),
    };
    let surplus = surplus(case, &tally.active, size(active - wanted));
    if !surplus.is_empty() {
        remove(case, surplus.iter().take(MOST_AT_ONCE), plan);
        return;
    }
    let leaving = if case.replaces_only_failed() {
        tally.terminating
    } else {
        0
    };
    let missing = size(wanted - leaving - active).min(MOST_AT_ONCE);
    if missing > 0 {
        create(case, tally, missing, plan);
    }
}

/// Removes all active pods, for the Job has ended.
pub(crate) fn remove_all(case: &Case<'_>, tally: &Tally, plan: &mut Plan) {
    remove(case, tally.active.iter(), plan);
}

fn remove<'a>(case: &Case<'_>, gone: impl Iterator<Item = &'a Arc<Pod>>, plan: &mut Plan) {
    for pod in gone {
        plan.push(
            Step::from(Action::delete(&**pod))
                .on_success(EventNote::normal(
                    case.job,
                    "SuccessfulDelete",
                    "Deleted pod: {}",
                ))
                .on_failure(EventNote::warning(
                    case.job,
                    "FailedDelete",
                    "Error deleting: {}",
                )),
        );
    }
}

/// Pods with wrong or doubled indexes, then the least useful until `at_least` are found.
fn surplus(case: &Case<'_>, active: &[Arc<Pod>], at_least: usize) -> Vec<Arc<Pod>> {
    let order = |pods: &mut Vec<Arc<Pod>>| {
        let nobody = HashMap::new();
        pods.sort_by(|a, b| pods::deletion_order(a, b, &nobody, case.now));
    };
    let mut gone = Vec::new();
    let mut rest = Vec::new();
    if case.is_indexed() {
        let mut by_index: BTreeMap<i32, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in active {
            match index_of(pod).filter(|_| has_valid_index(case, pod)) {
                Some(index) => by_index.entry(index).or_default().push(Arc::clone(pod)),
                None => gone.push(Arc::clone(pod)),
            }
        }
        for mut pods in by_index.into_values() {
            order(&mut pods);
            rest.extend(pods.pop());
            gone.extend(pods);
        }
    } else {
        rest = active.to_vec();
    }
    order(&mut rest);
    let more = at_least.saturating_sub(gone.len());
    gone.extend(rest.into_iter().take(more));
    gone
}

fn create(case: &Case<'_>, tally: &Tally, count: usize, plan: &mut Plan) {
    if case.spec.backoff_limit_per_index.is_none() {
        let delay = creation_delay(case);
        if !delay.is_zero() {
            plan.requeue_within(delay);
            return;
        }
    }
    let pods: Vec<Pod> = if case.is_indexed() {
        let indexes = pending_indexes(case, tally, count);
        let replaced = replaced_by_index(case, tally);
        let (ready, delay) = ready_indexes(case, indexes, &replaced);
        if let Some(delay) = delay {
            plan.requeue_within(delay);
        }
        ready
            .into_iter()
            .map(|index| indexed_pod(case, index, replaced.get(&index)))
            .collect()
    } else {
        vec![plain_pod(case); count]
    };
    for pod in &pods {
        plan.push(
            Step::from(Action::create(pod))
                .on_success(EventNote::normal(
                    case.job,
                    "SuccessfulCreate",
                    "Created pod: {}",
                ))
                .on_failure(EventNote::warning(
                    case.job,
                    "FailedCreate",
                    "Error creating: {}",
                )),
        );
    }
}

/// The lowest indexes that nobody works on.
fn pending_indexes(case: &Case<'_>, tally: &Tally, count: usize) -> Vec<i32> {
    let mut taken = tally.succeeded_indexes.clone();
    let active: Indexes = tally
        .active
        .iter()
        .filter_map(|pod| index_of(pod))
        .collect();
    taken.extend(&active);
    if case.replaces_only_failed() {
        let leaving = case.pods.iter().filter(|pod| pods::is_terminating(pod));
        taken.extend(&leaving.filter_map(|pod| index_of(pod)).collect());
    }
    if let Some(failed) = &tally.failed_indexes {
        taken.extend(failed);
    }
    let free = (0..completions(case)).filter(|index| !taken.has(*index));
    free.take(count).collect()
}

/// Of each index without a living pod the failed one whose counts its successor inherits. Those are
/// held back until the successor is there.
pub(crate) fn replaced_by_index(case: &Case<'_>, tally: &Tally) -> BTreeMap<i32, Arc<Pod>> {
    let mut replaced: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
    let Some(failed_indexes) = &tally.failed_indexes else {
        return replaced;
    };
    let active: Indexes = tally
        .active
        .iter()
        .filter_map(|pod| index_of(pod))
        .collect();
    let failures = |pod: &Pod| inherited(pod, INDEX_FAILURES) + inherited(pod, INDEX_IGNORED);
    for pod in &case.pods {
        if !has_finalizer(pod) || !is_failed(case, pod) || !has_valid_index(case, pod) {
            continue;
        }
        let Some(index) = index_of(pod) else { continue };
        if tally.succeeded_indexes.has(index) || failed_indexes.has(index) || active.has(index) {
            continue;
        }
        let newer = |known: &Arc<Pod>| {
            failures(pod) >= failures(known) && finish_time(pod) >= finish_time(known)
        };
        if replaced.get(&index).is_none_or(newer) {
            replaced.insert(index, Arc::clone(pod));
        }
    }
    replaced
}

/// Those whose back-off is over, else how long until the first is.
fn ready_indexes(
    case: &Case<'_>,
    indexes: Vec<i32>,
    replaced: &BTreeMap<i32, Arc<Pod>>,
) -> (Vec<i32>, Option<Duration>) {
    let delay = |index: &i32| -> Duration {
        let Some(pod) = replaced.get(index) else {
            return Duration::ZERO;
        };
        let failures = inherited(pod, INDEX_FAILURES) + inherited(pod, INDEX_IGNORED) + 1;
        delay_after(
            u32::try_from(failures).unwrap_or(0),
            finish_time(pod),
            case.now,
        )
    };
    let first = indexes
        .iter()
        .map(delay)
        .filter(|delay| !delay.is_zero())
        .min();
    let ready = indexes.into_iter().filter(|index| delay(index).is_zero());
    (ready.collect(), first)
}

fn plain_pod(case: &Case<'_>) -> Pod {
    let mut pod = pods::from_template(&case.spec.template, case.job);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|name| name == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    pod
}

fn indexed_pod(case: &Case<'_>, index: i32, replaced: Option<&Arc<Pod>>) -> Pod {
    let mut pod = plain_pod(case);
    let name = owner::name(&case.job.metadata);
    let tail = format!("-{index}-");
    // Names made from a prefix longer than this would be cut.
    let head = name
        .get(..58usize.saturating_sub(tail.len()))
        .unwrap_or(name);
    pod.metadata.generate_name = Some(format!("{head}{tail}"));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(ANNOTATION.to_owned(), index.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION.to_owned(), index.to_string());
    if case.spec.backoff_limit_per_index.is_some() {
        let (failures, ignored) = counts_after(case, replaced);
        annotations.insert(INDEX_FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            annotations.insert(INDEX_IGNORED.to_owned(), ignored.to_string());
        }
    }
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{name}-{index}"));
        add_index_variable(spec);
    }
    pod
}

/// The counts that a pod inherits from the failed one it replaces.
fn counts_after(case: &Case<'_>, replaced: Option<&Arc<Pod>>) -> (i32, i32) {
    let Some(pod) = replaced else { return (0, 0) };
    let (failures, ignored) = (
        inherited(pod, INDEX_FAILURES),
        inherited(pod, INDEX_IGNORED),
    );
    match reaction(case, pod) {
        Reaction::Ignore => (failures, ignored + 1),
        _ => (failures + 1, ignored),
    }
}

fn add_index_variable(spec: &mut PodSpec) {
    let add = |container: &mut Container| {
        let variables = container.env.get_or_insert_default();
        if variables
            .iter()
            .any(|variable| variable.name == INDEX_VARIABLE)
        {
            return;
        }
        variables.push(EnvVar {
            name: INDEX_VARIABLE.to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: format!("metadata.labels['{ANNOTATION}']"),
                    api_version: None,
                }),
                ..EnvVarSource::default()
            }),
        });
    };
    spec.init_containers.iter_mut().flatten().for_each(add);
    spec.containers.iter_mut().for_each(add);
}

//! CronJobs: a Job whenever the schedule says so.

mod schedule;

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use sampan_client::recorder::reference_to;
use sampan_client::{DeleteOptions, Lister, ObjectKey, Propagation};

use crate::runtime::{Action, Controller, EventNote, Plan, Step, Watches};
use crate::{Settings, owner, pods};
use schedule::Schedule;

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// More missed times than this are reported.
const MANY_MISSED: usize = 100;

pub struct CronJobController {
    crons: Lister<CronJob>,
    jobs: Lister<Job>,
}

pub struct Observed {
    cron: Arc<CronJob>,
    jobs: Vec<Arc<Job>>,
}

impl Controller for CronJobController {
    const NAME: &'static str = "cronjob-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        Self {
            crons: watches.primary::<CronJob>(),
            jobs: watches.owned::<Job, CronJob>(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let cron = self.crons.get_key(key)?;
        let uid = owner::uid(&cron.metadata);
        let mut jobs = self.jobs.by_owner(uid);
        jobs.retain(|job| owner::is_controlled_by(&job.metadata, uid));
        jobs.sort_by(|a, b| {
            let time = |job: &Job| job.metadata.creation_timestamp.clone();
            (time(a), &a.metadata.name).cmp(&(time(b), &b.metadata.name))
        });
        Some(Observed { cron, jobs })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let cron = &*observed.cron;
        let mut plan = Plan::default();
        let spec = &cron.spec;
        let mut status = cron.status.clone().unwrap_or_default();
        forget_finished(observed, &mut status, &mut plan);
        clean_history(observed, spec, &mut plan);
        if !owner::is_deleting(&cron.metadata) && !spec.suspend.unwrap_or(false) {
            start(observed, spec, &mut status, now, &mut plan);
        }
        status.active = status.active.take().filter(|list| !list.is_empty());
        let key = ObjectKey::of(&cron.metadata);
        let action = Action::replace_status::<CronJob, _>(&key, &cron.status, &status);
        plan.status = action.map(Step::from);
        plan
    }
}

fn end_of(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    let end = conditions.find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })?;
    Some(&end.type_)
}

/// Takes Jobs off the active list that have ended or are gone, and puts lost ones on it.
fn forget_finished(observed: &Observed, status: &mut CronJobStatus, plan: &mut Plan) {
    let cron = &*observed.cron;
    let job_of = |reference: &ObjectReference| {
        let mut jobs = observed.jobs.iter();
        jobs.find(|job| job.metadata.uid == reference.uid)
    };
    let mut active = status.active.take().unwrap_or_default();
    active.retain(|reference| {
        let name = reference.name.clone().unwrap_or_default();
        match job_of(reference) {
            None => {
                let message = format!("Active job went missing: {name}");
                plan.events
                    .push(EventNote::normal(cron, "MissingJob", message));
                false
            }
            Some(job) => match end_of(job) {
                None => true,
                Some(end) => {
                    let message = format!("Saw completed job: {name}, condition: {end}");
                    plan.events
                        .push(EventNote::normal(cron, "SawCompletedJob", message));
                    false
                }
            },
        }
    });
    for job in &observed.jobs {
        let known = |reference: &ObjectReference| reference.uid == job.metadata.uid;
        if end_of(job).is_none() && !active.iter().any(known) {
            active.push(reference(job));
        }
        let completed = job
            .status
            .as_ref()
            .and_then(|status| status.completion_time.clone());
        if end_of(job) == Some("Complete") && completed > status.last_successful_time {
            status.last_successful_time = completed;
        }
    }
    status.active = Some(active);
}

fn reference(job: &Job) -> ObjectReference {
    reference_to(job)
}

/// The oldest ended Jobs beyond the limits go.
fn clean_history(observed: &Observed, spec: &CronJobSpec, plan: &mut Plan) {
    let limits = [
        ("Complete", spec.successful_jobs_history_limit),
        ("Failed", spec.failed_jobs_history_limit),
    ];
    for (end, limit) in limits {
        let Some(limit) = limit else { continue };
        let ended = observed.jobs.iter().filter(|job| end_of(job) == Some(end));
        let mut ended: Vec<&Arc<Job>> = ended.collect();
        ended.sort_by_key(|job| {
            job.status
                .as_ref()
                .and_then(|status| status.start_time.clone())
        });
        let surplus = ended
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        for job in &ended[..surplus] {
            plan.push(delete(observed, job));
        }
    }
}

fn delete(observed: &Observed, job: &Job) -> Step {
    let cron = &*observed.cron;
    let options = DeleteOptions::default().propagation(Propagation::Background);
    Step::from(Action::delete_with(job, options))
        .on_success(EventNote::normal(
            cron,
            "SuccessfulDelete",
            "Deleted job {}",
        ))
        .on_failure(EventNote::warning(cron, "FailedDelete", "Deleted job: {}"))
}

/// Starts the Job that is due, if one is, and says when the next will be.
fn start(
    observed: &Observed,
    spec: &CronJobSpec,
    status: &mut CronJobStatus,
    now: Timestamp,
    plan: &mut Plan,
) {
    let cron = &*observed.cron;
    let zone = match zone_of(spec) {
        Ok(zone) => zone,
        Err(name) => {
            let message = format!("invalid timeZone: \"{name}\": unknown time zone {name}");
            plan.events
                .push(EventNote::warning(cron, "UnknownTimeZone", message));
            return;
        }
    };
    let schedule = match Schedule::parse(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(error) => {
            let message = format!("unparseable schedule: \"{}\" : {error}", spec.schedule);
            plan.events
                .push(EventNote::warning(cron, "UnparseableSchedule", message));
            return;
        }
    };
    let due = last_due(cron, spec, &schedule, &zone, now, plan);
    if let Some(next) = schedule.next(now, &zone) {
        plan.requeue_within(pods::until(now, next) + std::time::Duration::from_millis(100));
    }
    let Some(due) = due else { return };
    let name = job_name(cron, due);
    let exists = observed
        .jobs
        .iter()
        .any(|job| owner::name(&job.metadata) == name);
    if exists
        || status
            .last_schedule_time
            .as_ref()
            .is_some_and(|last| last.0 >= due)
    {
        return;
    }
    let deadline = spec
        .starting_deadline_seconds
        .map(SignedDuration::from_secs);
    if deadline.is_some_and(|deadline| due + deadline < now) {
        let message = format!(
            "Missed scheduled time to start a job: {}",
            due.strftime("%Y-%m-%dT%H:%M:%SZ")
        );
        plan.events
            .push(EventNote::warning(cron, "MissSchedule", message));
        return;
    }
    let active = status
        .active
        .as_ref()
        .is_some_and(|active| !active.is_empty());
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if active => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.events
                .push(EventNote::normal(cron, "JobAlreadyActive", message));
            return;
        }
        Some("Replace") => replace_active(observed, status, plan),
        _ => {}
    }
    let job = new_job(cron, spec, name, due);
    plan.push(
        Step::from(Action::create(&job))
            .on_success(EventNote::normal(
                cron,
                "SuccessfulCreate",
                "Created job {}",
            ))
            .on_failure(EventNote::warning(
                cron,
                "FailedCreate",
                "Error creating job: {}",
            )),
    );
    status.last_schedule_time = Some(Time(due));
}

fn replace_active(observed: &Observed, status: &mut CronJobStatus, plan: &mut Plan) {
    let active = status.active.take().unwrap_or_default();
    for job in &observed.jobs {
        if active
            .iter()
            .any(|reference| reference.uid == job.metadata.uid)
        {
            plan.push(delete(observed, job));
        }
    }
    status.active = Some(Vec::new());
}

/// UTC unless the spec names a zone.
fn zone_of(spec: &CronJobSpec) -> Result<TimeZone, String> {
    match &spec.time_zone {
        None => Ok(TimeZone::UTC),
        Some(name) => TimeZone::get(name).map_err(|_| name.clone()),
    }
}

/// The newest scheduled time that has come since the last one that was seen to.
fn last_due(
    cron: &CronJob,
    spec: &CronJobSpec,
    schedule: &Schedule,
    zone: &TimeZone,
    now: Timestamp,
    plan: &mut Plan,
) -> Option<Timestamp> {
    let last = cron
        .status
        .as_ref()
        .and_then(|status| status.last_schedule_time.clone());
    let since = last.or(cron.metadata.creation_timestamp.clone())?.0;
    let deadline = spec
        .starting_deadline_seconds
        .map(SignedDuration::from_secs);
    let horizon = deadline.and_then(|deadline| now.checked_sub(deadline).ok());
    let mut at = horizon.map_or(since, |horizon| since.max(horizon));
    let mut due = None;
    let mut missed = 0;
    while let Some(next) = schedule.next(at, zone).filter(|next| *next <= now) {
        missed += 1;
        if missed > MANY_MISSED {
            let message = "too many missed start times. Set or decrease \
                 .spec.startingDeadlineSeconds or check clock skew";
            plan.events
                .push(EventNote::warning(cron, "TooManyMissedTimes", message));
            // Far behind: begin anew shortly before now.
            return schedule.last_before(now, zone);
        }
        due = Some(next);
        at = next;
    }
    due
}

/// The same name for the same time, so that a Job is never started twice.
fn job_name(cron: &CronJob, due: Timestamp) -> String {
    let minutes = due.as_second().div_euclid(60);
    format!("{}-{minutes}", owner::name(&cron.metadata))
}

fn new_job(cron: &CronJob, spec: &CronJobSpec, name: String, due: Timestamp) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    let zone = zone_of(spec).unwrap_or(TimeZone::UTC);
    let at = due
        .to_zoned(zone)
        .strftime("%Y-%m-%dT%H:%M:%S%:z")
        .to_string();
    annotations.insert(SCHEDULED_AT.to_owned(), at.replace("+00:00", "Z"));
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: cron.metadata.namespace.clone(),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner::controller_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests;

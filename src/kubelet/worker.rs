//! One worker per pod: observes, asks the planner, executes what it says.
//!
//! The worker owns everything that is remembered about its pod. It sleeps until something happens:
//! mail (the object changed, the runtime changed, a probe spoke), a job that ended, or the time the
//! planner asked for. Jobs run beside it, so that a long pull or a grace period never keeps it from
//! listening. When the agent stops the worker just ends: containers keep running, and the next
//! worker finds them by their labels. Upstream counterpart: `pod_workers`.

pub(crate) mod disk;
pub(crate) mod jobs;
pub(crate) mod mailbox;
mod memory;
mod probing;

use crate::context::Context;
use crate::dirs::PodDirs;
use crate::manager::{View, Views};
use crate::plan::{Action, Plan, StartFailure, Volumes, plan_pod};
use crate::pod;
use crate::qos;
use crate::start::{Failure, Progress, Sequence};
use crate::status::{self, ERR_IMAGE_PULL, status_patch};
use disk::Disk;
use jiff::{SignedDuration, Timestamp};
use jobs::{Done, Scope};
use k8s_openapi::api::core::v1::Pod;
use mailbox::{Mail, Mailbox};
use memory::Memory;
use sampan_util::Shutdown;
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinError, JoinSet};

/// Between attempts at a start that failed for other reasons than the image.
const START_RETRY: SignedDuration = SignedDuration::from_secs(10);
/// Between two events about a back-off that lasts.
const BACKOFF_REMINDER: SignedDuration = SignedDuration::from_secs(12);
/// Between attempts to ask a runtime that does not answer.
const REFRESH_RETRY: Duration = Duration::from_secs(1);

/// How a worker came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The pod and all its traces are gone, or the agent stops.
    Retired,
    /// A job ended by a bug. What it had begun is not known any more: another worker has to begin
    /// from what the runtime says.
    Broken,
}

pub struct Worker {
    context: Arc<Context>,
    mailbox: Arc<Mailbox>,
    views: Arc<Views>,
    dirs: PodDirs,
    disk: Arc<Disk>,
    memory: Memory,
    jobs: JoinSet<Done>,
    /// Handles of jobs that a stop cancels.
    cancellable: Vec<AbortHandle>,
    probing: probing::Probing,
    is_retired: bool,
    needs_refresh: bool,
    wake_at: Option<Timestamp>,
}

impl Worker {
    pub fn new(
        context: Arc<Context>,
        views: Arc<Views>,
        mailbox: Arc<Mailbox>,
        pod: Arc<Pod>,
        is_gone: bool,
    ) -> Self {
        let mut memory = Memory::new(Arc::clone(&pod), is_gone);
        memory.known.cgroup = context.cgroups.clone().map(|cgroups| {
            let path = cgroups.pod_path(qos::class(&pod), pod::uid(&pod));
            (cgroups, path)
        });
        Self {
            dirs: context.dirs.of(&pod),
            disk: Arc::default(),
            memory,
            jobs: JoinSet::new(),
            cancellable: Vec::new(),
            probing: probing::Probing::default(),
            is_retired: false,
            needs_refresh: true,
            wake_at: None,
            context,
            mailbox,
            views,
        }
    }

    /// Runs until the pod and all its traces are gone, or until shutdown.
    pub async fn run(mut self, shutdown: Shutdown) -> End {
        let mut network = self.context.network.clone();
        self.hold_objects();
        loop {
            self.take_mail();
            while let Some(done) = self.jobs.try_join_next() {
                if !self.accept(done) {
                    return End::Broken;
                }
            }
            if self.needs_refresh {
                self.refresh().await;
            }
            self.step();
            if self.is_retired {
                return End::Retired;
            }
            tokio::select! {
                () = self.mailbox.notified() => {}
                Some(done) = self.jobs.join_next() => {
                    if !self.accept(done) {
                        return End::Broken;
                    }
                }
                () = until(self.wake_at) => {}
                Ok(()) = network.changed() => {}
                () = shutdown.wait() => return End::Retired,
            }
        }
    }

    /// False if the job ended by a bug.
    fn accept(&mut self, done: Result<Done, JoinError>) -> bool {
        match done {
            Ok(done) => self.finish(done),
            Err(error) if error.is_panic() => {
                let pod = pod::describe(&self.memory.pod);
                tracing::error!(%pod, %error, "a job of the pod panicked");
                return false;
            }
            // A job that was cancelled took its slot back when it was.
            Err(_) => {}
        }
        true
    }

    fn scope(&self) -> Scope {
        Scope {
            context: Arc::clone(&self.context),
            pod: Arc::clone(&self.memory.pod),
            dirs: self.dirs.clone(),
            disk: Arc::clone(&self.disk),
        }
    }

    /// Watches what the pod refers to; a changed reference starts with a new watch.
    fn hold_objects(&mut self) {
        let wanted = crate::objects::references(&self.memory.pod);
        let is_current = self
            .memory
            .held
            .as_ref()
            .is_some_and(|held| held.references == wanted);
        if is_current || self.memory.is_gone {
            return;
        }
        let mailbox = Arc::clone(&self.mailbox);
        let wake: crate::objects::Wake =
            Arc::new(move || mailbox.put(|mail| mail.objects_changed = true));
        let held = self.context.objects.hold(&self.memory.pod, &wake);
        self.memory.held = Some(Arc::new(held));
    }

    async fn refresh(&mut self) {
        let uid = pod::uid(&self.memory.pod).to_owned();
        let (observer, known) = (&mut self.memory.observer, &mut self.memory.known);
        match observer.refresh(&self.context.runtime, &uid, known).await {
            Ok(()) => {
                let instances = &observer.state.instances;
                known
                    .killed
                    .retain(|id| instances.iter().any(|instance| instance.id == *id));
                self.needs_refresh = false;
                self.memory.is_observed = true;
                self.context.relister.note(&uid, &observer.state);
                self.memory.note_runs();
            }
            Err(error) => {
                tracing::debug!(pod = %pod::describe(&self.memory.pod), %error, "the runtime does not answer");
            }
        }
    }

    fn take_mail(&mut self) {
        let mail: Mail = self.mailbox.take();
        if let Some(pod) = mail.pod {
            self.memory.accept_pod(pod);
            self.hold_objects();
        }
        if let Some(mirror) = mail.mirror {
            self.memory.accept_mirror(mirror);
        }
        self.memory.is_gone |= mail.is_gone;
        self.needs_refresh |= mail.runtime_changed;
        if let Some(verdict) = mail.verdict {
            self.memory.verdict.get_or_insert(verdict);
        }
        if let Some(pending) = mail.resize {
            self.memory.resize_pending = pending;
        }
        if mail.objects_changed {
            self.memory.objects_changed();
        }
        for (container_id, kind, verdict) in mail.probes {
            self.memory.probe_said(container_id, kind, verdict);
        }
        for progress in mail.progress {
            self.needs_refresh = true;
            self.accept_progress(progress);
        }
    }

    fn accept_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Running(run) => {
                self.memory.actuated.insert(run.id, run.resources);
            }
            Progress::Started(name) => {
                self.memory.busy.starting.remove(&name);
                self.memory.failures.remove(&name);
            }
            Progress::Failed(name, failure) => {
                self.memory.busy.starting.remove(&name);
                self.record_failure(name, failure);
            }
        }
    }

    fn record_failure(&mut self, name: String, failure: Failure) {
        let now = Timestamp::now();
        let mut retry_at = now + START_RETRY;
        if failure.reason == ERR_IMAGE_PULL {
            let image = pod::find_container(&self.memory.pod, &name)
                .and_then(|(_, c)| c.image.clone())
                .unwrap_or_default();
            self.memory.pulls.advance(&image, now, now);
            retry_at = now + self.memory.pulls.delay(&image);
        }
        let failure = StartFailure {
            reason: failure.reason,
            message: failure.message,
            at: now,
            retry_at,
        };
        self.memory.failures.insert(name, failure);
    }

    fn finish(&mut self, done: Done) {
        let memory = &mut self.memory;
        let busy = &mut memory.busy;
        match done {
            Done::Mounted(outcome) => memory.accept_volumes(*outcome),
            Done::SandboxCreated(result) => {
                busy.creating_sandbox = false;
                memory.sandbox_failures = match result {
                    Ok(()) => 0,
                    Err(()) => memory.sandbox_failures + 1,
                };
                self.needs_refresh = true;
            }
            Done::Started(names) => {
                for name in names {
                    busy.starting.remove(&name);
                }
                self.needs_refresh = true;
            }
            Done::Killed(id) => {
                busy.killing.remove(&id);
                self.needs_refresh = true;
            }
            Done::SandboxStopped(id) => {
                busy.stopping_sandboxes.remove(&id);
                self.needs_refresh = true;
            }
            Done::Removed(id) => {
                busy.removing.remove(&id);
                self.needs_refresh = true;
            }
            Done::Resized(outcome) => memory.accept_resize(*outcome),
            Done::Released(ok) => {
                busy.releasing = false;
                if ok {
                    memory.volumes = Volumes::Released;
                } else {
                    memory.release_failures += 1;
                }
            }
            // Once sent it is the server's business; finalizers may keep the object for a while.
            Done::Deleted(ok) => busy.deleting = ok,
            Done::Purged(ok) => {
                busy.purging = false;
                memory.is_purged = ok;
                memory.release_failures += u32::from(!ok);
                self.needs_refresh = !ok;
            }
            Done::Reported(pod) => memory.accept_report(pod),
        }
    }

    /// Plans, reports, executes.
    fn step(&mut self) {
        if !self.memory.is_observed {
            self.wake_after(REFRESH_RETRY);
            return;
        }
        let now = Timestamp::now();
        let mut plan = self.plan(now);
        // What the server has accepted is known only now, and the plan may depend on it.
        if self.note_reported(&plan) {
            plan = self.plan(now);
        }
        self.wake_at = plan.wake_at;
        if let Some(at) = self.memory.renew_at
            && plan.stop.is_none()
        {
            self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        }
        if self.needs_refresh {
            self.wake_after(REFRESH_RETRY);
        }
        if let Some(stop) = &plan.stop {
            if let Some(late) = &plan.late
                && self.memory.stopping_since.is_none()
            {
                let (reason, message) = (late.reason.clone(), late.message.clone());
                let recorder = &self.context.recorder;
                recorder.normal(&*self.memory.pod, reason, message);
            }
            self.memory.stopping_since.get_or_insert(stop.since);
        }
        self.announce_backoff(&plan);
        self.announce_network(&plan);
        self.report(&plan);
        self.publish();
        let stops = plan.stop.is_some();
        let mailbox = &self.mailbox;
        self.probing
            .follow(&self.context, &self.memory, mailbox, stops);
        for action in plan.actions {
            self.execute(action, now);
        }
    }

    fn plan(&self, now: Timestamp) -> Plan {
        let host_ips = &self.context.around.host_ips;
        let network_ready = self.context.network_ready();
        plan_pod(&self.memory.observed(host_ips, network_ready, now))
    }

    /// Whether the server has the terminal status; true if that is news.
    fn note_reported(&mut self, plan: &Plan) -> bool {
        let phase = plan.status.phase.as_deref().unwrap_or_default();
        let is_reported = pod::is_terminal_phase(phase) && self.status_patch(plan).is_none();
        let is_news = is_reported && !self.memory.is_reported;
        self.memory.is_reported = is_reported;
        is_news
    }

    /// What has to be written for the server to have the plan's status.
    fn status_patch(&self, plan: &Plan) -> Option<Value> {
        let wanted = serde_json::to_value(&plan.status).unwrap_or(Value::Null);
        status_patch(self.memory.api_uid()?, &self.memory.reported, &wanted)
    }

    fn wake_after(&mut self, delay: Duration) {
        let delay = SignedDuration::try_from(delay).unwrap_or_default();
        let at = Timestamp::now() + delay;
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// A pod that waits for the network says so, once.
    fn announce_network(&mut self, plan: &Plan) {
        let problem = match &*self.context.network.borrow() {
            Err(problem) if plan.waits_for_network => problem.clone(),
            _ => return,
        };
        if !std::mem::replace(&mut self.memory.network_announced, true) {
            let message = format!("network is not ready: {problem}");
            let pod = &*self.memory.pod;
            self.context
                .recorder
                .warning(pod, "NetworkNotReady", message);
        }
    }

    /// Back-offs, of a crash or of a pull, are told when they begin and again while they last: people read
    /// from the count that it still goes on.
    fn announce_backoff(&mut self, plan: &Plan) {
        let now = Timestamp::now();
        for (name, _) in &plan.backing_off {
            if self.is_to_be_told(name, now) {
                let pod = pod::describe(&self.memory.pod);
                let message = format!("Back-off restarting failed container {name} in pod {pod}");
                self.tell_backoff(name, true, "BackOff", message);
            }
        }
        let failures = self.memory.failures.iter();
        let pulls: Vec<String> = failures
            .filter(|(_, f)| f.reason == ERR_IMAGE_PULL)
            .filter(|(_, f)| now >= f.at + status::PULL_ERROR_SHOWN && now < f.retry_at)
            .map(|(name, _)| name.clone())
            .collect();
        for name in &pulls {
            if self.is_to_be_told(name, now) {
                let image = pod::find_container(&self.memory.pod, name)
                    .and_then(|(_, c)| c.image.clone())
                    .unwrap_or_default();
                let message = format!("Back-off pulling image {image:?}");
                self.tell_backoff(name, false, "BackOff", message);
                let message = "Error: ImagePullBackOff".to_owned();
                self.tell_backoff(name, true, "Failed", message);
            }
        }
        let lasting = |name: &String| {
            pulls.contains(name) || plan.backing_off.iter().any(|(other, _)| other == name)
        };
        self.memory.announced.retain(|name, _| lasting(name));
    }

    /// Also notes that it was told, and when to look again.
    fn is_to_be_told(&mut self, name: &str, now: Timestamp) -> bool {
        let told = self.memory.announced.get(name).copied();
        let due = told.is_none_or(|at| now >= at + BACKOFF_REMINDER);
        let at = if due { now } else { told.unwrap_or(now) };
        self.memory.announced.insert(name.to_owned(), at);
        let next = at + BACKOFF_REMINDER;
        self.wake_at = Some(self.wake_at.map_or(next, |earlier| earlier.min(next)));
        due
    }

    fn tell_backoff(&self, name: &str, warning: bool, reason: &str, message: String) {
        let about = crate::events::container_reference(&self.memory.pod, name);
        self.context
            .recorder
            .record(about, warning, reason, message);
    }

    /// Writes the status if the server has another one; one write at a time.
    fn report(&mut self, plan: &Plan) {
        self.memory.previous = plan.status.clone();
        if self.memory.is_gone {
            return;
        }
        if self.memory.is_reporting {
            return;
        }
        let Some(patch) = self.status_patch(plan) else {
            return;
        };
        self.memory.is_reporting = true;
        let failures = self.memory.report_failures;
        let job = self.scope().report(patch, failures);
        self.jobs.spawn(job);
    }

    fn publish(&self) {
        let memory = &self.memory;
        self.views.put(
            pod::uid(&memory.pod),
            View {
                pod: Arc::clone(&memory.pod),
                status: memory.previous.clone(),
                runtime: memory.observer.state.clone(),
                logs: self.dirs.logs.clone(),
            },
        );
    }

    fn spawn(&mut self, job: impl Future<Output = Done> + Send + 'static) -> AbortHandle {
        self.jobs.spawn(job)
    }

    fn execute(&mut self, action: Action, now: Timestamp) {
        tracing::debug!(pod = %pod::describe(&self.memory.pod), %action, "act");
        let scope = self.scope();
        let failures = self.memory.release_failures;
        match action {
            Action::Mount => self.mount(scope),
            Action::CreateSandbox { attempt, replaces } => {
                self.memory.busy.creating_sandbox = true;
                let failures = self.memory.sandbox_failures;
                self.spawn(scope.create_sandbox(attempt, replaces, failures));
            }
            Action::Start(names) => self.start(names, now),
            Action::CancelStart => self.cancel_start(),
            Action::Kill {
                id,
                name,
                message,
                grace,
                redefined,
            } => {
                if redefined {
                    self.memory.redefined.insert(id.clone());
                }
                self.memory.known.killed.insert(id.clone());
                let is_first = self.memory.busy.killing.insert(id.clone(), grace).is_none();
                self.spawn(scope.kill(id, name, message, grace, is_first));
            }
            Action::Resize(names) => {
                self.memory.busy.resizing = true;
                let runs = self.memory.runs_of(&names);
                let failures = self.memory.resize_failures;
                self.spawn(scope.resize(runs, failures));
            }
            Action::StopSandbox(id) => {
                self.memory.busy.stopping_sandboxes.insert(id.clone());
                self.spawn(scope.stop_sandbox(id));
            }
            Action::RemoveContainer(id) => self.remove_container(scope, id),
            Action::RemoveSandbox(id) => {
                self.memory.busy.removing.insert(id.clone());
                self.spawn(scope.remove_sandbox(id));
            }
            Action::Release => {
                self.memory.busy.releasing = true;
                self.spawn(scope.release(failures));
            }
            Action::Delete => {
                self.memory.busy.deleting = true;
                self.spawn(scope.delete(failures));
            }
            Action::Purge => {
                self.memory.busy.purging = true;
                let runtime = self.memory.observer.state.clone();
                self.spawn(scope.purge(runtime, failures));
            }
            Action::Retire => self.retire(),
        }
    }

    fn remove_container(&mut self, scope: Scope, id: String) {
        let instance = self.memory.instance(&id);
        let (name, count) =
            instance.map_or((String::new(), 0), |i| (i.name.clone(), i.restart_count));
        self.memory.busy.removing.insert(id.clone());
        self.spawn(scope.remove_container(id, name, count));
    }

    fn retire(&mut self) {
        self.views.remove(pod::uid(&self.memory.pod));
        self.context.relister.forget(pod::uid(&self.memory.pod));
        self.is_retired = true;
    }

    fn mount(&mut self, scope: Scope) {
        let Some(held) = self.memory.held.clone() else {
            return;
        };
        self.memory.busy.mounting = true;
        self.memory.remount = false;
        let tokens = self.memory.tokens.clone();
        let pod_ips = self.memory.observer.state.ips().to_vec();
        let handle = self.spawn(scope.mount(held, tokens, pod_ips));
        self.cancellable.push(handle);
    }

    fn start(&mut self, names: Vec<String>, now: Timestamp) {
        let state = &self.memory.observer.state;
        let (Some(sandbox), Some(held)) = (state.sandbox().cloned(), self.memory.held.clone())
        else {
            return;
        };
        self.memory.note_restarts(&names, now);
        self.memory.busy.starting.extend(names.iter().cloned());
        let sequence = Sequence {
            context: Arc::clone(&self.context),
            pod: Arc::clone(&self.memory.pod),
            dirs: self.dirs.clone(),
            sandbox,
            runtime: self.memory.observer.state.clone(),
            volumes: self.memory.mounted.clone(),
            held,
            disk: Arc::clone(&self.disk),
            names: names.clone(),
        };
        let mailbox = Arc::clone(&self.mailbox);
        let handle = self.spawn(async move {
            sequence
                .run(|progress| mailbox.put(|mail| mail.progress.push(progress)))
                .await;
            Done::Started(names)
        });
        self.cancellable.push(handle);
    }

    fn cancel_start(&mut self) {
        for handle in self.cancellable.drain(..) {
            handle.abort();
        }
        self.memory.busy.starting.clear();
        self.memory.busy.mounting = false;
        self.needs_refresh = true;
        self.mailbox.put(|mail| mail.runtime_changed = true);
    }
}

async fn until(at: Option<Timestamp>) {
    let Some(at) = at else {
        return std::future::pending().await;
    };
    let left = Duration::try_from(at.duration_since(Timestamp::now()));
    tokio::time::sleep(left.unwrap_or_default()).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_job_with_a_bug_ends_its_worker() {
        let pod = Arc::new(crate::fixture::pod_of(
            serde_json::json!({"containers": []}),
        ));
        let context = crate::fixture::context();
        let mut worker = Worker::new(context, Arc::default(), Arc::default(), pod, false);
        worker.memory.busy.purging = true;
        worker.jobs.spawn(async { panic!("a bug") });
        let ended = tokio::time::timeout(Duration::from_secs(30), worker.run(Shutdown::new()));
        assert_eq!(ended.await.unwrap(), End::Broken);
    }
}

//! One reconcile of a Deployment: which of the ways to go, and replacing old pods by new ones.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use sampan_client::ObjectKey;
use serde_json::json;

use super::sets::{
    Sets, is_recreate, max_surge, max_unavailable, replicas_of, same_template, template_of,
};
use super::{Observed, replace_status, revision, scaling, status};
use crate::owner;
use crate::runtime::{Action, Form, Plan, Step};

/// What is known and decided so far.
pub(super) struct Rollout<'a> {
    pub(super) observed: &'a Observed,
    pub(super) deployment: &'a Deployment,
    pub(super) sets: Sets,
    /// Conditions are edited here before the counts are taken.
    pub(super) status: DeploymentStatus,
    pub(super) now: Timestamp,
    revision: Option<String>,
    deletions: Vec<usize>,
    requeue_after: Option<std::time::Duration>,
}

impl<'a> Rollout<'a> {
    pub(super) fn new(observed: &'a Observed, sets: Sets, now: Timestamp) -> Self {
        let deployment = &*observed.deployment;
        Self {
            observed,
            deployment,
            sets,
            status: deployment.status.clone().unwrap_or_default(),
            now,
            revision: None,
            deletions: Vec::new(),
            requeue_after: None,
        }
    }

    /// Fills in the decisions.
    pub(super) fn decide(&mut self) {
        let spec = self.deployment.spec.as_ref();
        let paused = spec.and_then(|spec| spec.paused).unwrap_or(false);
        if owner::is_deleting(&self.deployment.metadata) {
            self.renew_newest();
            self.status = status::calculate(self);
            return;
        }
        status::note_pause(self, paused);
        if paused || self.was_scaled() {
            self.renew_newest();
            scaling::scale(self.deployment, &mut self.sets);
            if paused {
                self.clean_up();
            }
            self.status = status::calculate(self);
            return;
        }
        let goes_on = if is_recreate(self.deployment) {
            self.recreate()
        } else {
            self.roll()
        };
        if goes_on && status::is_complete(self.deployment, self.deployment.status.as_ref()) {
            self.clean_up();
        }
        let (status, requeue_after) = status::with_progress(self);
        self.status = status;
        self.requeue_after = requeue_after;
    }

    /// Whether the Deployment's size differs from what its active sets were told.
    fn was_scaled(&self) -> bool {
        let wanted = replicas_of(self.deployment);
        self.sets.active().into_iter().any(|index| {
            let told = self.sets.all[index].count(revision::DESIRED_REPLICAS);
            told.is_some_and(|told| told != wanted)
        })
    }

    /// Brings the newest set's annotations up to date, if it exists.
    fn renew_newest(&mut self) {
        let Some(index) = self.sets.new else { return };
        let next = revision::next_revision(&self.sets);
        let min_ready = self
            .deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds);
        let set = &mut self.sets.all[index];
        revision::annotate(set, self.deployment, next);
        if let Some(spec) = &mut set.planned.spec {
            spec.min_ready_seconds = min_ready;
        }
        self.revision = set.annotation(revision::REVISION).map(str::to_owned);
        let name = set.name().to_owned();
        status::note_found(self, &name);
    }

    /// Brings the newest set up to date, or plans its creation. False if a namesake is in the way.
    fn ensure_newest(&mut self) -> bool {
        if self.sets.new.is_some() {
            self.renew_newest();
            return true;
        }
        if self.collides() {
            let collisions = self.status.collision_count.unwrap_or(0);
            self.status.collision_count = Some(collisions + 1);
            return false;
        }
        let next = revision::next_revision(&self.sets);
        let Some(mut set) = revision::new_set(self.deployment) else {
            return false;
        };
        revision::annotate(&mut set, self.deployment, next);
        self.revision = Some(next.to_string());
        let name = set.name().to_owned();
        self.sets.all.push(set);
        let index = self.sets.all.len() - 1;
        self.sets.new = Some(index);
        let replicas = self.room_for_newest();
        self.sets.all[index].scale(self.deployment, replicas);
        status::note_created(self, &name);
        true
    }

    /// Whether a set that is not ours, or has another template, has the name we need.
    fn collides(&self) -> bool {
        let Some(namesake) = &self.observed.namesake else {
            return false;
        };
        let ours =
            owner::is_controlled_by(&namesake.metadata, owner::uid(&self.deployment.metadata));
        let template = namesake
            .spec
            .as_ref()
            .and_then(|spec| spec.template.as_ref());
        !(ours && same_template(template_of(self.deployment), template))
    }

    /// How many replicas the newest set may want now.
    fn room_for_newest(&self) -> i32 {
        let wanted = replicas_of(self.deployment);
        let Some(newest) = self.sets.new_set() else {
            return 0;
        };
        if is_recreate(self.deployment) {
            return wanted;
        }
        let own = newest.replicas();
        let most = wanted + max_surge(self.deployment);
        let total = self.sets.wanted();
        if total >= most {
            return own;
        }
        own + (most - total).min(wanted - own)
    }

    /// True if nothing had to be moved, so that a finished rollout may clean up.
    fn roll(&mut self) -> bool {
        if !self.ensure_newest() {
            return false;
        }
        !self.scale_newest() && !self.scale_old_down()
    }

    fn scale_newest(&mut self) -> bool {
        let Some(index) = self.sets.new else {
            return false;
        };
        let wanted = replicas_of(self.deployment);
        let own = self.sets.all[index].replicas();
        let target = if own > wanted {
            wanted
        } else {
            self.room_for_newest()
        };
        if own == wanted || target == own {
            return false;
        }
        self.sets.all[index].scale(self.deployment, target);
        true
    }

    /// Takes away old pods: first those that are not available anyway, then as many available ones
    /// as may be missing.
    fn scale_old_down(&mut self) -> bool {
        let old = self.sets.active_old();
        let Some(newest) = self.sets.new_set().filter(|_| !old.is_empty()) else {
            return false;
        };
        let at_least = replicas_of(self.deployment) - max_unavailable(self.deployment);
        let not_yet = newest.replicas() - newest.available();
        let removable = self.sets.wanted() - at_least - not_yet;
        if removable <= 0 {
            return false;
        }
        let unhealthy = self.remove(&old, removable, |set| set.replicas() - set.available());
        let available = self.sets.sum(|set| set.available().min(set.replicas()));
        let spare = available - at_least;
        let healthy = if spare > 0 {
            self.remove(&old, spare, super::sets::Set::replicas)
        } else {
            0
        };
        unhealthy + healthy > 0
    }

    /// Scales the given sets down, oldest first, by up to `limit` in all and by up to what `surplus`
    /// says for each. Returns how many pods went.
    fn remove(
        &mut self,
        indices: &[usize],
        limit: i32,
        surplus: impl Fn(&super::sets::Set) -> i32,
    ) -> i32 {
        let mut removed = 0;
        for index in indices {
            let set = &mut self.sets.all[*index];
            let count = surplus(set).min(limit - removed);
            if count > 0 && set.replicas() > 0 {
                let target = set.replicas() - count;
                set.scale(self.deployment, target);
                removed += count;
            }
        }
        removed
    }

    /// All old pods go before any new one comes.
    fn recreate(&mut self) -> bool {
        self.renew_newest();
        let old = self.sets.active_old();
        for index in &old {
            self.sets.all[*index].scale(self.deployment, 0);
        }
        if !old.is_empty() || self.old_pods_run() {
            return false;
        }
        if !self.ensure_newest() {
            return false;
        }
        let wanted = replicas_of(self.deployment);
        if let Some(index) = self.sets.new
            && self.sets.all[index].replicas() != wanted
        {
            self.sets.all[index].scale(self.deployment, wanted);
        }
        true
    }

    fn old_pods_run(&self) -> bool {
        let reported = self
            .sets
            .old()
            .into_iter()
            .any(|index| self.sets.all[index].actual() > 0);
        let newest = self.sets.new_set();
        let newest = newest.map_or("", |set| owner::uid(&set.planned.metadata));
        reported || self.observed.running.iter().any(|uid| uid != newest)
    }

    /// Old, empty sets beyond the history's limit go.
    fn clean_up(&mut self) {
        let limit = self
            .deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.revision_history_limit);
        let Some(limit) = limit.filter(|limit| *limit != i32::MAX) else {
            return;
        };
        let mut old = self.sets.old();
        let all = &self.sets.all;
        old.retain(|index| !owner::is_deleting(&all[*index].planned.metadata));
        old.sort_by(|a, b| revision::by_revision(&all[*a], &all[*b]));
        let surplus = old
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        let idle = |index: &usize| {
            let set = &all[*index];
            let status = set.planned.status.as_ref();
            let seen = status.and_then(|status| status.observed_generation);
            set.actual() == 0 && set.replicas() == 0 && seen >= set.planned.metadata.generation
        };
        self.deletions = old.into_iter().take(surplus).filter(idle).collect();
    }

    /// The decisions as a plan.
    pub(super) fn into_plan(self) -> Plan {
        let mut plan = Plan {
            requeue_after: self.requeue_after,
            ..Plan::default()
        };
        // What comes up comes before what goes down.
        let newest = self.sets.new.into_iter();
        for index in newest.chain(self.sets.old()) {
            if !self.deletions.contains(&index) {
                plan.actions
                    .extend(self.sets.all[index].step(self.deployment));
            }
        }
        for index in &self.deletions {
            plan.push(Action::delete(&self.sets.all[*index].planned));
        }
        plan.status = self.status_action().map(Step::from);
        plan
    }

    /// The status and, with it, the revision: as part of the status it is no new generation.
    fn status_action(&self) -> Option<Action> {
        let mut action = replace_status(self.deployment, &self.status);
        let annotations = self.deployment.metadata.annotations.as_ref();
        let current = annotations.and_then(|map| map.get(revision::REVISION));
        let wanted = self
            .revision
            .as_ref()
            .filter(|wanted| current != Some(*wanted));
        if let Some(wanted) = wanted {
            let metadata = json!({"annotations": {revision::REVISION: wanted}});
            match &mut action {
                Some(Action::Write { change, .. }) => change["metadata"] = metadata,
                _ => {
                    let key = ObjectKey::of(&self.deployment.metadata);
                    let change = json!({"metadata": metadata});
                    action = Some(Action::write_status::<Deployment>(&key, Form::Put, change));
                }
            }
        }
        action
    }
}

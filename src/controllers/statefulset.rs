//! StatefulSets: pods with names, storage and an order.
//!
//! Watches the sets, their pods, claims and revisions. [`identity`] makes pods and claims, [`steps`]
//! decides what comes next, one ordinal after the other.

mod identity;
mod steps;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    ControllerRevision, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use sampan_api::Selector;
use sampan_client::{Change, Lister, ObjectKey};

use crate::labels::selector_of;
use crate::runtime::{Action, Controller, Plan, Step, Watches};
use crate::{Settings, history, json, owner, pods};

/// The revision of a pod (its whole name), and the hash of a revision.
pub(crate) const REVISION_LABEL: &str = "controller-revision-hash";
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

pub struct StatefulSetController {
    sets: Lister<StatefulSet>,
    pods: Lister<Pod>,
    claims: Lister<PersistentVolumeClaim>,
    revisions: Lister<ControllerRevision>,
}

pub struct Observed {
    pub(crate) set: Arc<StatefulSet>,
    selector: Selector,
    pods: Vec<Arc<Pod>>,
    /// The namespace's claims whose names may be those of the set.
    pub(crate) claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    revisions: Vec<Arc<ControllerRevision>>,
    revision_names: HashSet<String>,
}

impl Controller for StatefulSetController {
    const NAME: &'static str = "statefulset-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, _: &Settings) -> Self {
        let sets = watches.primary::<StatefulSet>();
        let known = sets.clone();
        Self {
            pods: watches.mapped::<Pod>(move |change| keys_of_pod(change, &known)),
            claims: watches.reads::<PersistentVolumeClaim>(),
            revisions: watches.owned::<ControllerRevision, StatefulSet>(),
            sets,
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let set = self.sets.get_key(key)?;
        let spec = set.spec.as_ref()?;
        let uid = owner::uid(&set.metadata);
        let selector = selector_of(&spec.selector);
        let mut pods = self.pods.by_owner(uid);
        let mut orphans = self
            .pods
            .select_unowned(key.namespace(), |labels| selector.matches(labels));
        orphans.retain(|pod| identity::ordinal_of(&set, pod).is_some());
        pods.extend(orphans);
        let mut claims = HashMap::new();
        if spec
            .volume_claim_templates
            .as_ref()
            .is_some_and(|list| !list.is_empty())
        {
            for claim in self.claims.list(key.namespace()) {
                claims.insert(owner::name(&claim.metadata).to_owned(), claim);
            }
        }
        let names = self.revisions.list(key.namespace());
        let names = names
            .iter()
            .map(|one| owner::name(&one.metadata).to_owned());
        let mut revisions = self.revisions.by_owner(uid);
        history::sort(&mut revisions);
        Some(Observed {
            selector,
            pods,
            claims,
            revision_names: names.collect(),
            revisions,
            set,
        })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let set = &*observed.set;
        let mut plan = Plan::default();
        let Some(spec) = &set.spec else { return plan };
        let claims =
            owner::claim::<StatefulSet, Pod, _>(set, &observed.selector, observed.pods.clone());
        plan.actions.extend(claims.steps);
        let Some(revisions) = plan_revisions(observed, spec, &mut plan) else {
            return plan;
        };
        let mut pods = claims.owned;
        pods.sort_by_key(|pod| identity::ordinal_of(set, pod));
        let scene = Scene {
            observed,
            set,
            spec,
            pods,
            revisions,
            now,
        };
        if !owner::is_deleting(&set.metadata) {
            steps::plan(&scene, &mut plan);
        }
        let status = scene.status();
        let current = status.current_revision.clone().unwrap_or_default();
        plan.actions.extend(clean_history(&scene, &current));
        let ready = scene.pods.iter().map(|pod| &**pod);
        if let Some(wait) = pods::next_availability(ready, scene.min_ready(), now) {
            plan.requeue_within(wait);
        }
        let key = ObjectKey::of(&set.metadata);
        let action = Action::replace_status::<StatefulSet, _>(&key, &set.status, &status);
        plan.status = action.map(Step::from);
        plan
    }
}

/// The set that controls the pod; for a pod of nobody the one whose name it bears.
fn keys_of_pod(change: &Change<Pod>, sets: &Lister<StatefulSet>) -> Vec<ObjectKey> {
    let keys = owner::controllers_of::<Pod, StatefulSet>(change);
    let Change::Applied { new, .. } = change else {
        return keys;
    };
    if !keys.is_empty() || owner::controller_of(&new.metadata).is_some() {
        return keys;
    }
    let parent = owner::name(&new.metadata)
        .rsplit_once('-')
        .map(|(parent, _)| parent);
    let namespace = new.metadata.namespace.as_deref();
    let set = parent.and_then(|parent| sets.get(namespace, parent));
    set.map(|set| ObjectKey::of(&set.metadata))
        .into_iter()
        .collect()
}

/// The revisions by which pods are told apart.
pub(crate) struct Revisions {
    pub(crate) current: Arc<ControllerRevision>,
    pub(crate) update: Arc<ControllerRevision>,
}

impl Revisions {
    pub(crate) fn current_name(&self) -> &str {
        owner::name(&self.current.metadata)
    }

    pub(crate) fn update_name(&self) -> &str {
        owner::name(&self.update.metadata)
    }
}

/// Brings the revision of the present template into place; `None` after a collision.
fn plan_revisions(
    observed: &Observed,
    spec: &StatefulSetSpec,
    plan: &mut Plan,
) -> Option<Revisions> {
    let set = &*observed.set;
    let status = set.status.clone().unwrap_or_default();
    let labels = spec.template.metadata.as_ref();
    let request = history::Request {
        owner: set,
        data: history::data_of(json::to_value(&spec.template)),
        labels: labels
            .and_then(|meta| meta.labels.clone())
            .unwrap_or_default(),
        hash_label: HASH_LABEL,
        collisions: status.collision_count,
    };
    let taken = |name: &str| observed.revision_names.contains(name);
    let update = match request.find(&observed.revisions, taken) {
        history::Current::Known { revision, renumber } => {
            plan.actions.extend(renumber.map(Step::from));
            revision
        }
        history::Current::New(revision) => {
            plan.push(Action::create(&*revision));
            Arc::new(*revision)
        }
        history::Current::Collision => {
            let new = StatefulSetStatus {
                collision_count: Some(status.collision_count.unwrap_or(0) + 1),
                ..status
            };
            let key = ObjectKey::of(&set.metadata);
            let action = Action::replace_status::<StatefulSet, _>(&key, &set.status, &new);
            plan.status = action.map(Step::from);
            return None;
        }
    };
    let named = status.current_revision.unwrap_or_default();
    let mut known = observed.revisions.iter();
    let current = known.find(|revision| owner::name(&revision.metadata) == named);
    Some(Revisions {
        current: current.cloned().unwrap_or_else(|| Arc::clone(&update)),
        update,
    })
}

fn clean_history(scene: &Scene<'_>, current: &str) -> Vec<Step> {
    let limit = scene.spec.revision_history_limit.unwrap_or(10);
    let running: HashSet<&str> = scene.pods.iter().map(|pod| revision_of(pod)).collect();
    let is_live = |revision: &ControllerRevision| {
        let name = owner::name(&revision.metadata);
        name == current
            || name == scene.revisions.update_name()
            || name == scene.revisions.current_name()
            || running.contains(name)
    };
    let gone = history::truncate(&scene.observed.revisions, limit, is_live);
    gone.into_iter().map(Step::from).collect()
}

pub(crate) fn revision_of(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(REVISION_LABEL))
        .map_or("", String::as_str)
}

/// A set with its pods, by ordinal.
pub(crate) struct Scene<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) set: &'a StatefulSet,
    pub(crate) spec: &'a StatefulSetSpec,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) revisions: Revisions,
    pub(crate) now: Timestamp,
}

impl Scene<'_> {
    pub(crate) fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    pub(crate) fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    pub(crate) fn start(&self) -> i32 {
        let ordinals = self.spec.ordinals.as_ref();
        ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0)
    }

    pub(crate) fn wants(&self, ordinal: i32) -> bool {
        (self.start()..self.start() + self.replicas()).contains(&ordinal)
    }

    pub(crate) fn is_available(&self, pod: &Pod) -> bool {
        is_running_and_ready(pod) && pods::is_available(pod, self.min_ready(), self.now)
    }

    fn count(&self, test: impl Fn(&Pod) -> bool) -> i32 {
        let count = self.pods.iter().filter(|pod| test(pod)).count();
        i32::try_from(count).unwrap_or(i32::MAX)
    }

    fn status(&self) -> StatefulSetStatus {
        let created = |pod: &Pod| !pods::phase(pod).is_empty();
        let lives = |pod: &Pod| created(pod) && !owner::is_deleting(&pod.metadata);
        let (current, update) = (self.revisions.current_name(), self.revisions.update_name());
        let old = self.set.status.clone().unwrap_or_default();
        let mut status = StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: self.count(created),
            ready_replicas: json::nonzero(self.count(is_running_and_ready)),
            available_replicas: Some(self.count(|pod| self.is_available(pod))),
            current_replicas: json::nonzero(
                self.count(|pod| lives(pod) && revision_of(pod) == current),
            ),
            updated_replicas: json::nonzero(
                self.count(|pod| lives(pod) && revision_of(pod) == update),
            ),
            current_revision: Some(current.to_owned()),
            update_revision: Some(update.to_owned()),
            collision_count: Some(old.collision_count.unwrap_or(0)),
            conditions: old.conditions,
        };
        let all = |count: Option<i32>| count.unwrap_or(0) == status.replicas;
        if steps::is_rolling(self.spec)
            && all(status.updated_replicas)
            && all(status.ready_replicas)
        {
            status.current_replicas = status.updated_replicas;
            status.current_revision = Some(update.to_owned());
        }
        status
    }
}

pub(crate) fn is_running_and_ready(pod: &Pod) -> bool {
    pods::phase(pod) == "Running" && pods::is_ready(pod)
}

#[cfg(test)]
mod tests;

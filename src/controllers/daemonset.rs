//! DaemonSets: one pod on every node that the template suits.
//!
//! Watches DaemonSets, their pods and revisions, and nodes. Pods are bound to their node by
//! affinity and placed by the scheduler. [`placement`] decides which nodes, [`update`] replaces
//! old pods.

mod placement;
mod update;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use sampan_api::Selector;
use sampan_client::{Change, Lister, ObjectKey};
use sampan_util::{Backoff, Clock};

use crate::labels::selector_of;
use crate::runtime::{Action, Controller, EventNote, Plan, Step, Watches};
use crate::{Settings, history, json, owner, pods};

/// Marks pods and revisions with their template.
pub(crate) const HASH_LABEL: &str = "controller-revision-hash";

pub struct DaemonSetController {
    sets: Lister<DaemonSet>,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    revisions: Lister<ControllerRevision>,
    failures: FailureBackoff,
    clock: Clock,
}

pub struct Observed {
    pub(crate) set: Arc<DaemonSet>,
    selector: Selector,
    pub(crate) nodes: Vec<Arc<Node>>,
    pods: Vec<Arc<Pod>>,
    revisions: Vec<Arc<ControllerRevision>>,
    /// Names of all revisions in the namespace.
    revision_names: HashSet<String>,
    /// Failed pods that are not to be replaced yet, and for how long.
    held: HashMap<String, Duration>,
}

/// Pods that fail again and again on a node are replaced ever more slowly.
#[derive(Default)]
struct FailureBackoff(Mutex<HashMap<(String, String), (u32, Timestamp)>>);

impl FailureBackoff {
    const DELAYS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(900));

    /// How long a failed pod must stay; zero counts as its replacement.
    fn hold(&self, set: &str, node: &str, now: Timestamp) -> Duration {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, (_, since)| pods::until(*since, now) < Duration::from_secs(3600));
        let entry = table.entry((set.to_owned(), node.to_owned()));
        let (failures, since) = entry.or_insert((0, Timestamp::MIN));
        let waited = pods::until(*since, now);
        let delay = Self::DELAYS.base(failures.saturating_sub(1));
        if *failures > 0 && waited < delay {
            return delay - waited;
        }
        *failures += 1;
        *since = now;
        Duration::ZERO
    }
}

impl Controller for DaemonSetController {
    const NAME: &'static str = "daemonset-controller";
    const IDENTITY: &'static str = "daemon-set-controller";

    type Observed = Observed;

    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self {
        let sets = watches.primary::<DaemonSet>();
        let known = sets.clone();
        let pods = watches.mapped::<Pod>(move |change| keys_of_pod(change, &known));
        let known = sets.clone();
        let nodes = watches.mapped::<Node>(move |change| keys_of_node(change, &known));
        Self {
            revisions: watches.owned::<ControllerRevision, DaemonSet>(),
            sets,
            pods,
            nodes,
            failures: FailureBackoff::default(),
            clock: settings.clock.clone(),
        }
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let set = self.sets.get_key(key)?;
        if owner::is_deleting(&set.metadata) {
            return None;
        }
        let uid = owner::uid(&set.metadata);
        let selector = selector_of(&set.spec.as_ref()?.selector);
        let mut pods = self.pods.by_owner(uid);
        let mine = |labels: &_| !selector.is_everything() && selector.matches(labels);
        pods.extend(self.pods.select_unowned(key.namespace(), mine));
        let names = self.revisions.list(key.namespace());
        let names = names
            .iter()
            .map(|one| owner::name(&one.metadata).to_owned());
        let mut revisions = self.revisions.by_owner(uid);
        history::sort(&mut revisions);
        let now = Timestamp::try_from(self.clock.now()).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut held = HashMap::new();
        for pod in pods.iter().filter(|pod| is_failed(pod)) {
            let hold = self.failures.hold(uid, placement::target_node(pod), now);
            if !hold.is_zero() {
                held.insert(owner::name(&pod.metadata).to_owned(), hold);
            }
        }
        Some(Observed {
            selector,
            nodes: self.nodes.list(None),
            pods,
            revision_names: names.collect(),
            revisions,
            held,
            set,
        })
    }

    fn reconcile(observed: &Observed, now: Timestamp) -> Plan {
        let set = &*observed.set;
        let mut plan = Plan::default();
        let Some(spec) = &set.spec else { return plan };
        if observed.selector.is_everything() {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            let status = set.status.as_ref();
            if status.and_then(|status| status.observed_generation) < set.metadata.generation {
                plan.events
                    .push(EventNote::warning(set, "SelectingAll", message));
            }
            return plan;
        }
        let Some(hash) = plan_revision(observed, spec, &mut plan) else {
            return plan;
        };
        let mut situation = Situation::new(observed, spec, hash, now, &mut plan);
        situation.manage(&mut plan);
        if update::is_rolling(spec) {
            update::roll(&mut situation);
        }
        situation.fill(&mut plan);
        plan.actions.extend(clean_history(observed, &situation));
        plan.status = status_action(set, &situation).map(Step::from);
        plan
    }
}

fn is_failed(pod: &Pod) -> bool {
    pods::phase(pod) == "Failed" && !owner::is_deleting(&pod.metadata)
}

/// The set that controls the pod; for a pod of nobody all that would take it.
fn keys_of_pod(change: &Change<Pod>, sets: &Lister<DaemonSet>) -> Vec<ObjectKey> {
    let keys = owner::controllers_of::<Pod, DaemonSet>(change);
    let Change::Applied { new, .. } = change else {
        return keys;
    };
    if !keys.is_empty() || owner::controller_of(&new.metadata).is_some() {
        return keys;
    }
    let takes = |set: &&Arc<DaemonSet>| {
        let Some(spec) = &set.spec else { return false };
        let selector = selector_of(&spec.selector);
        !selector.is_everything() && selector.matches(&new.metadata.labels)
    };
    let sets = sets.list(new.metadata.namespace.as_deref());
    let keys = sets.iter().filter(takes);
    keys.map(|set| ObjectKey::of(&set.metadata)).collect()
}

/// All sets, if the change may change where pods run.
fn keys_of_node(change: &Change<Node>, sets: &Lister<DaemonSet>) -> Vec<ObjectKey> {
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
    if let Change::Applied {
        old: Some(old),
        new,
    } = change
        && old.metadata.labels == new.metadata.labels
        && taints(old) == taints(new)
    {
        return Vec::new();
    }
    let sets = sets.list(None);
    sets.iter()
        .map(|set| ObjectKey::of(&set.metadata))
        .collect()
}

/// Brings the present template's revision into place and returns its hash; `None` after a collision.
fn plan_revision(observed: &Observed, spec: &DaemonSetSpec, plan: &mut Plan) -> Option<String> {
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
    let hash_of = |revision: &ControllerRevision| {
        let labels = revision.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(HASH_LABEL))
            .cloned()
            .unwrap_or_default()
    };
    match request.find(&observed.revisions, taken) {
        history::Current::Known { revision, renumber } => {
            plan.actions.extend(renumber.map(Step::from));
            Some(hash_of(&revision))
        }
        history::Current::New(revision) => {
            plan.push(Action::create(&*revision));
            Some(hash_of(&revision))
        }
        history::Current::Collision => {
            let new = DaemonSetStatus {
                collision_count: Some(status.collision_count.unwrap_or(0) + 1),
                ..status
            };
            let key = ObjectKey::of(&set.metadata);
            let action = Action::replace_status::<DaemonSet, _>(&key, &set.status, &new);
            plan.status = action.map(Step::from);
            None
        }
    }
}

fn clean_history(observed: &Observed, situation: &Situation<'_>) -> Vec<Step> {
    let spec = observed.set.spec.as_ref();
    let limit = spec
        .and_then(|spec| spec.revision_history_limit)
        .unwrap_or(10);
    let hash_of = |labels: Option<&BTreeMap<String, String>>| {
        labels.and_then(|labels| labels.get(HASH_LABEL)).cloned()
    };
    let running: HashSet<Option<String>> = situation
        .by_node
        .values()
        .flatten()
        .map(|pod| hash_of(pod.metadata.labels.as_ref()))
        .collect();
    let is_live = |revision: &ControllerRevision| {
        let hash = hash_of(revision.metadata.labels.as_ref());
        hash.as_deref() == Some(&situation.hash) || running.contains(&hash)
    };
    let gone = history::truncate(&observed.revisions, limit, is_live);
    gone.into_iter().map(Step::from).collect()
}

/// What is there, and what is to come and go.
pub(crate) struct Situation<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) spec: &'a DaemonSetSpec,
    pub(crate) hash: String,
    pub(crate) now: Timestamp,
    /// The set's pods by the node they are meant for.
    pub(crate) by_node: BTreeMap<String, Vec<Arc<Pod>>>,
    pub(crate) create_on: Vec<String>,
    pub(crate) delete: Vec<Arc<Pod>>,
}

impl<'a> Situation<'a> {
    fn new(
        observed: &'a Observed,
        spec: &'a DaemonSetSpec,
        hash: String,
        now: Timestamp,
        plan: &mut Plan,
    ) -> Self {
        let candidates = observed.pods.clone();
        let claims =
            owner::claim::<DaemonSet, Pod, _>(&*observed.set, &observed.selector, candidates);
        plan.actions.extend(claims.steps);
        let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in claims.owned {
            if pods::is_finished(&pod) && owner::is_deleting(&pod.metadata) {
                continue;
            }
            let node = placement::target_node(&pod).to_owned();
            by_node.entry(node).or_default().push(pod);
        }
        for pods in by_node.values_mut() {
            pods.sort_by(placement::scheduled_then_oldest);
        }
        Self {
            observed,
            spec,
            hash,
            now,
            by_node,
            create_on: Vec::new(),
            delete: Vec::new(),
        }
    }

    pub(crate) fn is_available(&self, pod: &Pod) -> bool {
        let seconds = self.spec.min_ready_seconds.unwrap_or(0);
        pods::is_available(pod, seconds, self.now)
    }

    pub(crate) fn is_updated(&self, pod: &Pod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(HASH_LABEL)) == Some(&self.hash)
    }

    pub(crate) fn pods_on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// Node by node: missing pods come, superfluous and ended ones go.
    fn manage(&mut self, plan: &mut Plan) {
        let mut known = HashSet::new();
        for node in &self.observed.nodes {
            let name = owner::name(&node.metadata);
            known.insert(name.to_owned());
            let verdict = placement::judge(self.spec, node);
            let pods = self.pods_on(name).to_vec();
            if verdict.should_run && pods.is_empty() {
                self.create_on.push(name.to_owned());
            } else if verdict.may_stay {
                self.prune(name, verdict.should_run, &pods, plan);
            } else {
                let staying = pods
                    .into_iter()
                    .filter(|pod| !owner::is_deleting(&pod.metadata));
                self.delete.extend(staying);
            }
        }
        // Never placed, and their node is gone: nobody else will remove them.
        let lost = self
            .by_node
            .iter()
            .filter(|(node, _)| !known.contains(*node));
        let lost = lost.flat_map(|(_, pods)| pods);
        let lost = lost.filter(|pod| pods::node_name(pod).is_empty());
        let lost = lost.filter(|pod| !owner::is_deleting(&pod.metadata));
        self.delete.extend(lost.cloned().collect::<Vec<_>>());
    }

    fn prune(&mut self, node: &str, should_run: bool, pods: &[Arc<Pod>], plan: &mut Plan) {
        let mut running = Vec::new();
        for pod in pods.iter().filter(|pod| !owner::is_deleting(&pod.metadata)) {
            match pods::phase(pod) {
                "Failed" | "Succeeded" => self.replace_ended(node, pod, plan),
                _ => running.push(Arc::clone(pod)),
            }
        }
        if !update::surges(self.spec) {
            self.delete.extend(running.into_iter().skip(1));
            return;
        }
        if running.is_empty() && should_run {
            self.create_on.push(node.to_owned());
            return;
        }
        let (new, old): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|pod| self.is_updated(pod));
        let (first_new, first_old) = (new.first().cloned(), old.first().cloned());
        let others = new.into_iter().skip(1).chain(old.into_iter().skip(1));
        self.delete.extend(others);
        if let (Some(new), Some(old)) = (first_new, first_old)
            && (!pods::is_ready(&old) || self.is_available(&new))
        {
            self.delete.push(old);
        }
    }

    fn replace_ended(&mut self, node: &str, pod: &Arc<Pod>, plan: &mut Plan) {
        let set = &*self.observed.set;
        if let Some(hold) = self.observed.held.get(owner::name(&pod.metadata)) {
            plan.requeue_within(*hold);
            return;
        }
        let key = ObjectKey::of(&pod.metadata);
        plan.events.push(if pods::phase(pod) == "Failed" {
            let message =
                format!("Found failed daemon pod {key} on node {node}, will try to kill it");
            EventNote::warning(set, "FailedDaemonPod", message)
        } else {
            let message =
                format!("Found succeeded daemon pod {key} on node {node}, will try to delete it");
            EventNote::normal(set, "SucceededDaemonPod", message)
        });
        self.delete.push(Arc::clone(pod));
    }

    /// Writes creations and deletions into the plan.
    fn fill(&self, plan: &mut Plan) {
        let set = &*self.observed.set;
        for node in &self.create_on {
            let pod = placement::pod_for(set, self.spec, &self.hash, node);
            plan.push(
                Step::from(Action::create(&pod))
                    .on_success(EventNote::normal(
                        set,
                        "SuccessfulCreate",
                        "Created pod: {}",
                    ))
                    .on_failure(EventNote::warning(
                        set,
                        "FailedCreate",
                        "Error creating: {}",
                    )),
            );
        }
        let mut gone = HashSet::new();
        for pod in &self.delete {
            if gone.insert(owner::uid(&pod.metadata)) {
                plan.push(
                    Step::from(Action::delete(&**pod))
                        .on_success(EventNote::normal(
                            set,
                            "SuccessfulDelete",
                            "Deleted pod: {}",
                        ))
                        .on_failure(EventNote::warning(
                            set,
                            "FailedDelete",
                            "Error deleting: {}",
                        )),
                );
            }
        }
        let ready = self.by_node.values().flatten().map(|pod| &**pod);
        let seconds = self.spec.min_ready_seconds.unwrap_or(0);
        if let Some(wait) = pods::next_availability(ready, seconds, self.now) {
            plan.requeue_within(wait);
        }
    }
}

fn status_action(set: &DaemonSet, situation: &Situation<'_>) -> Option<Action> {
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        ..DaemonSetStatus::default()
    };
    let old = set.status.clone().unwrap_or_default();
    status.collision_count = old.collision_count;
    status.conditions = old.conditions;
    let (mut updated, mut available) = (0, 0);
    for node in &situation.observed.nodes {
        let pods = situation.pods_on(owner::name(&node.metadata));
        if !placement::judge(situation.spec, node).should_run {
            status.number_misscheduled += i32::from(!pods.is_empty());
            continue;
        }
        status.desired_number_scheduled += 1;
        let Some(pod) = pods.first() else { continue };
        status.current_number_scheduled += 1;
        status.number_ready += i32::from(pods::is_ready(pod));
        available += i32::from(situation.is_available(pod));
        updated += i32::from(situation.is_updated(pod));
    }
    status.updated_number_scheduled = json::nonzero(updated);
    status.number_available = json::nonzero(available);
    status.number_unavailable = json::nonzero(status.desired_number_scheduled - available);
    let key = ObjectKey::of(&set.metadata);
    Action::replace_status::<DaemonSet, _>(&key, &set.status, &status)
}

#[cfg(test)]
mod tests;

//! A Deployment's ReplicaSets as they are and as they are planned to become.

use std::cmp::Ordering;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sampan_client::ObjectKey;
use serde_json::json;

use super::revision;
use crate::json;
use crate::owner;
use crate::runtime::{Action, EventNote, Form, Step};

/// One ReplicaSet, with what this reconcile has decided about it so far.
pub(super) struct Set {
    pub(super) planned: ReplicaSet,
    /// As the cache has it; `None` if it is to be created.
    original: Option<Arc<ReplicaSet>>,
}

/// All ReplicaSets, oldest first.
pub(super) struct Sets {
    pub(super) all: Vec<Set>,
    /// Index of the one with the Deployment's present template.
    pub(super) new: Option<usize>,
}

impl Set {
    pub(super) fn created(planned: ReplicaSet) -> Self {
        Self {
            planned,
            original: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        owner::name(&self.planned.metadata)
    }

    pub(super) fn is_new_born(&self) -> bool {
        self.original.is_none()
    }

    /// Wanted replicas.
    pub(super) fn replicas(&self) -> i32 {
        let spec = self.planned.spec.as_ref();
        spec.and_then(|spec| spec.replicas).unwrap_or(1)
    }

    pub(super) fn actual(&self) -> i32 {
        self.planned
            .status
            .as_ref()
            .map_or(0, |status| status.replicas)
    }

    pub(super) fn ready(&self) -> i32 {
        let status = self.planned.status.as_ref();
        status.and_then(|status| status.ready_replicas).unwrap_or(0)
    }

    pub(super) fn available(&self) -> i32 {
        let status = self.planned.status.as_ref();
        status
            .and_then(|status| status.available_replicas)
            .unwrap_or(0)
    }

    /// `None` if the set's controller has not reported it yet.
    pub(super) fn terminating(&self) -> Option<i32> {
        if self.is_new_born() {
            return Some(0);
        }
        self.planned.status.as_ref()?.terminating_replicas
    }

    pub(super) fn is_active(&self) -> bool {
        self.replicas() > 0
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.planned.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    pub(super) fn annotate(&mut self, key: &str, value: impl Into<String>) {
        let annotations = self.planned.metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.into());
    }

    /// A number annotated by this controller.
    pub(super) fn count(&self, key: &str) -> Option<i32> {
        self.annotation(key)?
            .parse()
            .ok()
            .filter(|count| *count >= 0)
    }

    /// Sets the wanted replicas and what the set is to know about its Deployment's size.
    pub(super) fn scale(&mut self, deployment: &Deployment, replicas: i32) {
        if let Some(spec) = &mut self.planned.spec {
            spec.replicas = Some(replicas);
        }
        let desired = replicas_of(deployment);
        let most = desired + max_surge(deployment);
        self.annotate(revision::DESIRED_REPLICAS, desired.to_string());
        self.annotate(revision::MAX_REPLICAS, most.to_string());
    }

    /// Whether the set is as large as the Deployment, knows it, and has all its pods available.
    pub(super) fn is_saturated(&self, deployment: &Deployment) -> bool {
        let desired = replicas_of(deployment);
        self.replicas() == desired
            && self.count(revision::DESIRED_REPLICAS) == Some(desired)
            && self.available() == desired
    }

    pub(super) fn by_age(&self, other: &Self) -> Ordering {
        by_age(&self.planned, &other.planned)
    }

    /// The write that makes the set as planned.
    pub(super) fn step(&self, deployment: &Deployment) -> Option<Step> {
        let Some(original) = &self.original else {
            return Some(self.creation(deployment));
        };
        let mut change = json!({});
        let old = json::to_value(&original.metadata.annotations);
        let new = json::to_value(&self.planned.metadata.annotations);
        if let Some(difference) = json::difference(&old, &new) {
            change["metadata"]["annotations"] = difference;
        }
        let old_spec = original.spec.as_ref()?;
        let new_spec = self.planned.spec.as_ref()?;
        if old_spec.replicas != new_spec.replicas {
            change["spec"]["replicas"] = json!(new_spec.replicas);
        }
        let min_ready = |seconds: Option<i32>| seconds.unwrap_or(0);
        if min_ready(old_spec.min_ready_seconds) != min_ready(new_spec.min_ready_seconds) {
            change["spec"]["minReadySeconds"] = json!(new_spec.min_ready_seconds);
        }
        if change == json!({}) {
            return None;
        }
        let key = ObjectKey::of(&self.planned.metadata);
        let step = Step::from(Action::write::<ReplicaSet>(
            &key,
            Form::MergeCurrent,
            change,
        ));
        let (from, to) = (old_spec.replicas.unwrap_or(1), self.replicas());
        Some(match from.cmp(&to) {
            Ordering::Equal => step,
            Ordering::Less => step.on_success(self.scaled(deployment, "up", from)),
            Ordering::Greater => step.on_success(self.scaled(deployment, "down", from)),
        })
    }

    fn creation(&self, deployment: &Deployment) -> Step {
        let name = self.name();
        let failed = format!("Failed to create new replica set \"{name}\": {{}}");
        let step = Step::from(Action::create(&self.planned)).on_failure(EventNote::warning(
            deployment,
            "ReplicaSetCreateError",
            failed,
        ));
        if self.replicas() > 0 {
            step.on_success(self.scaled(deployment, "up", 0))
        } else {
            step
        }
    }

    fn scaled(&self, deployment: &Deployment, way: &str, from: i32) -> EventNote {
        let (name, to) = (self.name(), self.replicas());
        let message = format!("Scaled {way} replica set {name} from {from} to {to}");
        EventNote::normal(deployment, "ScalingReplicaSet", message)
    }
}

impl Sets {
    pub(super) fn of(deployment: &Deployment, owned: Vec<Arc<ReplicaSet>>) -> Self {
        let mut all: Vec<Set> = owned
            .into_iter()
            .map(|set| Set {
                planned: (*set).clone(),
                original: Some(set),
            })
            .collect();
        all.sort_by(Set::by_age);
        let template = template_of(deployment);
        let new = all.iter().position(|set| {
            let own = set
                .planned
                .spec
                .as_ref()
                .and_then(|spec| spec.template.as_ref());
            same_template(template, own)
        });
        Self { all, new }
    }

    pub(super) fn new_set(&self) -> Option<&Set> {
        self.new.map(|index| &self.all[index])
    }

    /// Indices of all but the new one, oldest first.
    pub(super) fn old(&self) -> Vec<usize> {
        let indices = 0..self.all.len();
        indices.filter(|index| Some(*index) != self.new).collect()
    }

    /// Indices of those that want pods.
    pub(super) fn active(&self) -> Vec<usize> {
        let indices = 0..self.all.len();
        indices
            .filter(|index| self.all[*index].is_active())
            .collect()
    }

    pub(super) fn active_old(&self) -> Vec<usize> {
        let mut old = self.old();
        old.retain(|index| self.all[*index].is_active());
        old
    }

    pub(super) fn sum(&self, count: impl Fn(&Set) -> i32) -> i32 {
        self.all.iter().map(count).sum()
    }

    pub(super) fn wanted(&self) -> i32 {
        self.sum(Set::replicas)
    }
}

pub(super) fn by_age(a: &ReplicaSet, b: &ReplicaSet) -> Ordering {
    let time = |set: &ReplicaSet| set.metadata.creation_timestamp.clone();
    time(a)
        .cmp(&time(b))
        .then_with(|| a.metadata.name.cmp(&b.metadata.name))
}

pub(super) fn spec_of(deployment: &Deployment) -> Option<&DeploymentSpec> {
    deployment.spec.as_ref()
}

pub(super) fn template_of(deployment: &Deployment) -> Option<&PodTemplateSpec> {
    spec_of(deployment).map(|spec| &spec.template)
}

/// Equal but for the hash label, an absent map being as good as an empty one.
pub(super) fn same_template(a: Option<&PodTemplateSpec>, b: Option<&PodTemplateSpec>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => plain(a) == plain(b),
        _ => false,
    }
}

fn plain(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let mut metadata = template.metadata.take().unwrap_or_default();
    if let Some(labels) = &mut metadata.labels {
        labels.remove(revision::HASH_LABEL);
    }
    metadata.labels = metadata.labels.filter(|labels| !labels.is_empty());
    metadata.annotations = metadata.annotations.filter(|map| !map.is_empty());
    template.metadata = Some(metadata);
    template
}

pub(super) fn replicas_of(deployment: &Deployment) -> i32 {
    spec_of(deployment)
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

fn strategy_type(deployment: &Deployment) -> &str {
    let strategy = spec_of(deployment).and_then(|spec| spec.strategy.as_ref());
    let kind = strategy.and_then(|strategy| strategy.type_.as_deref());
    kind.unwrap_or("RollingUpdate")
}

pub(super) fn is_recreate(deployment: &Deployment) -> bool {
    strategy_type(deployment) == "Recreate"
}

/// A count, or that share of `total`.
pub(crate) fn scaled(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(count) => *count,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = percent * i64::from(total);
            let share = if round_up {
                (product + 99).div_euclid(100)
            } else {
                product / 100
            };
            i32::try_from(share).unwrap_or(i32::MAX)
        }
    }
}

/// How many pods more, and how many fewer, than wanted a rolling update may have.
fn limits(deployment: &Deployment) -> (i32, i32) {
    if is_recreate(deployment) {
        return (0, 0);
    }
    let strategy = spec_of(deployment).and_then(|spec| spec.strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let quarter = IntOrString::String("25%".to_owned());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let wanted = replicas_of(deployment);
    let surge = scaled(surge.unwrap_or(&quarter), wanted, true);
    let unavailable = scaled(unavailable.unwrap_or(&quarter), wanted, false);
    // Rounded down both may be nothing: then nothing would ever move.
    if surge == 0 && unavailable == 0 {
        return (0, 1);
    }
    (surge, unavailable)
}

pub(super) fn max_surge(deployment: &Deployment) -> i32 {
    limits(deployment).0
}

pub(super) fn max_unavailable(deployment: &Deployment) -> i32 {
    let wanted = replicas_of(deployment);
    if wanted == 0 {
        return 0;
    }
    limits(deployment).1.min(wanted)
}

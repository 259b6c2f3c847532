//! A pod, read once: everything the plugins ask about it in the form they need.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Pod, PodAffinityTerm, PodSpec, PodStatus, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};

use crate::resources::Requests;
use crate::selector::{Labels, NodeTerm, RequiredNodes, Selector};
use crate::volumes::{ClaimRef, claims_of};

/// The labels of something that has none.
pub static NO_LABELS: Labels = Labels::new();

/// The scheduler of pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    pub ip: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    /// Two listeners collide on the same port unless they use different addresses.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let any = |port: &Self| port.ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || any(self) || any(other))
    }
}

/// A term of pod affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffinityTerm {
    pub topology_key: String,
    selector: Selector,
    namespaces: Vec<String>,
    namespace_selector: Selector,
}

impl AffinityTerm {
    fn new(term: &PodAffinityTerm, own_namespace: &str) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(own_namespace.to_owned());
        }
        Self {
            topology_key: term.topology_key.clone(),
            selector: Selector::new(term.label_selector.as_ref()),
            namespaces,
            namespace_selector: Selector::new(term.namespace_selector.as_ref()),
        }
    }

    /// `namespace_labels` are those of the pod's namespace.
    pub fn matches(&self, pod: &PodInfo, namespace_labels: &Labels) -> bool {
        (self.namespaces.contains(&pod.namespace)
            || self.namespace_selector.matches(namespace_labels))
            && self.selector.matches(&pod.labels)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affinity {
    pub required: Vec<AffinityTerm>,
    pub preferred: Vec<(i64, AffinityTerm)>,
}

impl Affinity {
    fn new(
        required: &Option<Vec<PodAffinityTerm>>,
        preferred: &Option<Vec<WeightedPodAffinityTerm>>,
        namespace: &str,
    ) -> Self {
        Self {
            required: required
                .iter()
                .flatten()
                .map(|term| AffinityTerm::new(term, namespace))
                .collect(),
            preferred: preferred
                .iter()
                .flatten()
                .map(|each| {
                    (
                        i64::from(each.weight),
                        AffinityTerm::new(&each.pod_affinity_term, namespace),
                    )
                })
                .collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }
}

/// A topology spread constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpreadConstraint {
    pub max_skew: i64,
    pub topology_key: String,
    pub selector: Selector,
    pub min_domains: i64,
    pub honor_affinity: bool,
    pub honor_taints: bool,
    /// `DoNotSchedule`, not just a wish.
    pub hard: bool,
}

impl SpreadConstraint {
    fn new(constraint: &TopologySpreadConstraint, pod_labels: &Labels) -> Self {
        let mut selector = Selector::new(constraint.label_selector.as_ref());
        for key in constraint.match_label_keys.iter().flatten() {
            if let Some(value) = pod_labels.get(key) {
                selector.require(key, value);
            }
        }
        Self {
            max_skew: i64::from(constraint.max_skew),
            topology_key: constraint.topology_key.clone(),
            selector,
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
            hard: constraint.when_unsatisfiable == "DoNotSchedule",
        }
    }
}

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// What the pod's `PodScheduled` condition says now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduledCondition {
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Option<Timestamp>,
}

/// Facts of a pod, without the pod: thousands of these are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct PodInfo {
    pub uid: Arc<str>,
    pub namespace: String,
    pub name: String,
    pub resource_version: String,
    pub generation: Option<i64>,
    pub labels: Labels,
    pub priority: i32,
    pub node_name: Option<Arc<str>>,
    pub nominated_node: Option<Arc<str>>,
    pub scheduler_name: String,
    pub started: Option<Timestamp>,
    pub terminating: bool,
    /// On its way out because a scheduler wanted its place.
    pub preempted: bool,
    pub may_preempt: bool,
    pub requests: Requests,
    pub ports: Vec<HostPort>,
    pub affinity: Affinity,
    pub anti_affinity: Affinity,
    /// What only matters while it looks for a node; empty once it has one.
    pub gates: Vec<String>,
    pub condition: Option<ScheduledCondition>,
    pub owner: Option<Owner>,
    pub tolerations: Vec<Toleration>,
    pub required_nodes: RequiredNodes,
    pub preferred_nodes: Vec<(i64, NodeTerm)>,
    pub spread: Vec<SpreadConstraint>,
    /// Normalised names of the images that its containers and volumes use.
    pub images: Vec<String>,
    pub containers: usize,
    pub claims: Vec<ClaimRef>,
}

impl PodInfo {
    pub fn new(pod: &Pod) -> Self {
        let mut info = Self::basics(pod);
        if info.node_name.is_none() {
            info.read_wishes(pod);
        }
        info
    }

    fn basics(pod: &Pod) -> Self {
        let (empty_spec, empty_status) = (PodSpec::default(), PodStatus::default());
        let spec = pod.spec.as_ref().unwrap_or(&empty_spec);
        let status = pod.status.as_ref().unwrap_or(&empty_status);
        let metadata = &pod.metadata;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let (affinity, anti_affinity) = pod_affinities(spec, &namespace);
        let terminating = metadata.deletion_timestamp.is_some();
        let named = |name: &Option<String>| {
            name.as_deref()
                .filter(|name| !name.is_empty())
                .map(Arc::from)
        };
        Self {
            uid: Arc::from(metadata.uid.as_deref().unwrap_or_default()),
            name: metadata.name.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation,
            labels: metadata.labels.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            node_name: named(&spec.node_name),
            nominated_node: named(&status.nominated_node_name),
            scheduler_name: spec
                .scheduler_name
                .clone()
                .unwrap_or_else(|| DEFAULT_SCHEDULER.to_owned()),
            started: status.start_time.as_ref().map(|time| time.0),
            terminating,
            preempted: terminating && is_preempted(status),
            may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            requests: Requests::of(pod),
            ports: host_ports(spec),
            affinity,
            anti_affinity,
            namespace,
            gates: Vec::new(),
            condition: None,
            owner: None,
            tolerations: Vec::new(),
            required_nodes: RequiredNodes::default(),
            preferred_nodes: Vec::new(),
            spread: Vec::new(),
            images: Vec::new(),
            containers: 0,
            claims: Vec::new(),
        }
    }

    fn read_wishes(&mut self, pod: &Pod) {
        let Some(spec) = pod.spec.as_ref() else {
            return;
        };
        self.gates = spec
            .scheduling_gates
            .iter()
            .flatten()
            .map(|gate| gate.name.clone())
            .collect();
        self.condition = pod.status.as_ref().and_then(scheduled_condition);
        self.owner = controller_of(pod);
        self.tolerations = spec.tolerations.clone().unwrap_or_default();
        self.required_nodes = required_nodes(spec);
        self.preferred_nodes = preferred_nodes(spec);
        let constraints = spec.topology_spread_constraints.iter().flatten();
        self.spread = constraints
            .map(|each| SpreadConstraint::new(each, &self.labels))
            .collect();
        self.claims = claims_of(pod);
        self.images = images(spec);
        self.containers = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    }

    pub fn has_affinity(&self) -> bool {
        !self.affinity.is_empty() || !self.anti_affinity.is_empty()
    }

    /// Whether a scheduler could decide otherwise than about the other state of the pod.
    pub fn schedules_differently(&self, other: &Self) -> bool {
        let facts = |info: &Self| Self {
            resource_version: String::new(),
            generation: None,
            nominated_node: None,
            condition: None,
            started: None,
            ..info.clone()
        };
        facts(self) != facts(other)
    }
}

fn is_preempted(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|each| {
        each.type_ == "DisruptionTarget"
            && each.status == "True"
            && each.reason.as_deref() == Some("PreemptionByScheduler")
    })
}

fn scheduled_condition(status: &PodStatus) -> Option<ScheduledCondition> {
    let found = status
        .conditions
        .iter()
        .flatten()
        .find(|each| each.type_ == "PodScheduled")?;
    Some(ScheduledCondition {
        status: found.status.clone(),
        reason: found.reason.clone().unwrap_or_default(),
        message: found.message.clone().unwrap_or_default(),
        since: found.last_transition_time.as_ref().map(|time| time.0),
    })
}

fn controller_of(pod: &Pod) -> Option<Owner> {
    let owners = pod.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(Owner {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    })
}

fn pod_affinities(spec: &PodSpec, namespace: &str) -> (Affinity, Affinity) {
    let Some(affinity) = &spec.affinity else {
        return Default::default();
    };
    let pods = affinity.pod_affinity.as_ref().map(|each| {
        let preferred = &each.preferred_during_scheduling_ignored_during_execution;
        Affinity::new(
            &each.required_during_scheduling_ignored_during_execution,
            preferred,
            namespace,
        )
    });
    let anti = affinity.pod_anti_affinity.as_ref().map(|each| {
        let preferred = &each.preferred_during_scheduling_ignored_during_execution;
        Affinity::new(
            &each.required_during_scheduling_ignored_during_execution,
            preferred,
            namespace,
        )
    });
    (pods.unwrap_or_default(), anti.unwrap_or_default())
}

fn required_nodes(spec: &PodSpec) -> RequiredNodes {
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|each| {
        each.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    RequiredNodes {
        labels: spec
            .node_selector
            .as_ref()
            .map(Selector::from_labels)
            .unwrap_or_default(),
        terms: required.map(|selector| {
            selector
                .node_selector_terms
                .iter()
                .map(NodeTerm::new)
                .collect()
        }),
    }
}

fn preferred_nodes(spec: &PodSpec) -> Vec<(i64, NodeTerm)> {
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let preferred = affinity.and_then(|each| {
        each.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    preferred
        .into_iter()
        .flatten()
        .filter(|each| each.weight != 0)
        .map(|each| (i64::from(each.weight), NodeTerm::new(&each.preference)))
        .collect()
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|each| each.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let ip = port
                .host_ip
                .as_deref()
                .filter(|ip| !ip.is_empty())
                .unwrap_or("0.0.0.0");
            let protocol = port
                .protocol
                .as_deref()
                .filter(|text| !text.is_empty())
                .unwrap_or("TCP");
            Some(HostPort {
                ip: ip.to_owned(),
                protocol: protocol.to_owned(),
                port: number,
            })
        })
        .collect()
}

fn images(spec: &PodSpec) -> Vec<String> {
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let volumes = spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    containers
        .filter_map(|container| container.image.as_deref())
        .chain(volumes)
        .map(normalize_image)
        .collect()
}

/// An image name with its tag spelled out.
pub fn normalize_image(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

//! Amounts of resources as plain integers, and how much of them a pod asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

type QuantityMap = BTreeMap<String, Quantity>;

/// What a container without a request counts as when nodes are compared (never when they are filtered).
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// An amount of every resource. CPU in thousandths of a core, everything else in its unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Huge pages, attachable volumes and extended resources, sorted by name.
    pub scalars: Vec<(Arc<str>, i64)>,
}

impl Resources {
    pub fn from_quantities(quantities: &QuantityMap) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in quantities {
            match name.as_str() {
                "cpu" => resources.milli_cpu = parse(quantity).milli_value(),
                "memory" => resources.memory = parse(quantity).value(),
                "ephemeral-storage" => resources.ephemeral_storage = parse(quantity).value(),
                "pods" => {}
                // A request for none of it is no request.
                _ if is_scalar(name) && !parse(quantity).is_zero() => {
                    resources
                        .scalars
                        .push((Arc::from(name.as_str()), parse(quantity).value()));
                }
                _ => {}
            }
        }
        resources
    }

    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral_storage == 0
            && self.scalars.is_empty()
    }

    pub fn scalar(&self, name: &str) -> i64 {
        self.scalars
            .iter()
            .find(|(known, _)| &**known == name)
            .map_or(0, |(_, amount)| *amount)
    }

    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
        self.scalars.retain(|(_, amount)| *amount != 0);
    }

    pub fn raise_to(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Self, with: fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalars {
            match self.scalars.binary_search_by(|(known, _)| known.cmp(name)) {
                Ok(at) => self.scalars[at].1 = with(self.scalars[at].1, *amount),
                Err(at) => self.scalars.insert(at, (name.clone(), with(0, *amount))),
            }
        }
    }
}

/// How many pods a node takes.
pub fn allowed_pods(allocatable: &QuantityMap) -> i64 {
    allocatable
        .get("pods")
        .map_or(0, |quantity| parse(quantity).value())
}

fn is_scalar(name: &str) -> bool {
    let extended = name.contains('/') && !name.contains("kubernetes.io/");
    extended
        || name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
        || name.contains("kubernetes.io/")
}

/// Rounded up; what cannot be read counts as nothing, as validation refuses it.
fn parse(quantity: &Quantity) -> sampan_api::Quantity {
    quantity.0.parse().unwrap_or(sampan_api::Quantity::ZERO)
}

/// What a pod asks of its node: exactly, and with the defaults that only scoring uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requests {
    pub exact: Resources,
    pub for_scoring: Resources,
}

impl Requests {
    pub fn of(pod: &Pod) -> Self {
        Self {
            exact: pod_requests(pod, false),
            for_scoring: pod_requests(pod, true),
        }
    }
}

/// Containers run together; init containers one after the other beside the sidecars that were started before them.
fn pod_requests(pod: &Pod, fill_missing: bool) -> Resources {
    let Some(spec) = &pod.spec else {
        return Resources::default();
    };
    let mut total = Resources::default();
    for container in &spec.containers {
        total.add(&container_requests(pod, container, fill_missing));
    }
    let mut sidecars = Resources::default();
    let mut init_peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut needed = container_requests(pod, container, fill_missing);
        if container.restart_policy.as_deref() == Some("Always") {
            total.add(&needed);
            sidecars.add(&needed);
            needed = sidecars.clone();
        } else {
            needed.add(&sidecars);
        }
        init_peak.raise_to(&needed);
    }
    total.raise_to(&init_peak);
    if let Some(requests) = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref())
    {
        override_with_pod_level(&mut total, requests);
    }
    if let Some(overhead) = &spec.overhead {
        total.add(&Resources::from_quantities(overhead));
    }
    total
}

fn override_with_pod_level(total: &mut Resources, requests: &QuantityMap) {
    let level = Resources::from_quantities(requests);
    if requests.contains_key("cpu") {
        total.milli_cpu = level.milli_cpu;
    }
    if requests.contains_key("memory") {
        total.memory = level.memory;
    }
    for (name, amount) in level
        .scalars
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
    {
        total.scalars.retain(|(known, _)| known != name);
        total.add(&Resources {
            scalars: vec![(name.clone(), *amount)],
            ..Resources::default()
        });
    }
}

fn container_requests(pod: &Pod, container: &Container, fill_missing: bool) -> Resources {
    let requests = container
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let mut amount = requests.map(Resources::from_quantities).unwrap_or_default();
    raise_to_resized(&mut amount, pod, container);
    if fill_missing {
        let has = |name| requests.is_some_and(|requests| requests.contains_key(name));
        if !has("cpu") {
            amount.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !has("memory") {
            amount.memory = DEFAULT_MEMORY;
        }
    }
    amount
}

/// While a resize is under way the container counts with the larger of what it wants, has, and was promised.
fn raise_to_resized(amount: &mut Resources, pod: &Pod, container: &Container) {
    let Some(status) = pod.status.as_ref() else {
        return;
    };
    let statuses = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten();
    let Some(found) = statuses
        .into_iter()
        .find(|status| status.name == container.name)
    else {
        return;
    };
    let Some(actual) = found.resources.as_ref() else {
        return;
    };
    let infeasible = status.conditions.iter().flatten().any(|each| {
        each.type_ == "PodResizePending" && each.reason.as_deref() == Some("Infeasible")
    });
    if infeasible {
        *amount = Resources::default();
    }
    for quantities in held_by(found, actual.requests.as_ref()) {
        amount.raise_to(&Resources::from_quantities(quantities));
    }
}

fn held_by<'a>(
    status: &'a ContainerStatus,
    actual: Option<&'a QuantityMap>,
) -> impl Iterator<Item = &'a QuantityMap> {
    actual
        .into_iter()
        .chain(status.allocated_resources.as_ref())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": spec})).unwrap()
    }

    fn container(name: &str, cpu: &str) -> serde_json::Value {
        serde_json::json!({"name": name, "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn init_containers_and_sidecars() {
        let mut sidecar = container("sidecar", "1");
        sidecar["restartPolicy"] = "Always".into();
        let spec = serde_json::json!({
            "initContainers": [container("early", "3"), sidecar, container("late", "5")],
            "containers": [container("main", "2")],
            "overhead": {"cpu": "250m"},
        });
        // late beside the sidecar: 6; main beside the sidecar: 3.
        assert_eq!(Requests::of(&pod(spec)).exact.milli_cpu, 6250);
    }

    #[test]
    fn pod_level_requests_win_over_the_sum() {
        let spec = serde_json::json!({
            "containers": [container("a", "2")],
            "resources": {"requests": {"cpu": "500m"}},
        });
        assert_eq!(Requests::of(&pod(spec)).exact.milli_cpu, 500);
    }

    #[test]
    fn missing_requests_count_only_for_scoring() {
        let requests = Requests::of(&pod(
            serde_json::json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        ));
        assert!(requests.exact.is_zero());
        assert_eq!(
            (requests.for_scoring.milli_cpu, requests.for_scoring.memory),
            (200, 2 * DEFAULT_MEMORY)
        );
    }

    #[test]
    fn adding_and_subtracting_is_neutral() {
        let quantities = |text: &str| {
            let quantities: QuantityMap = serde_json::from_str(text).unwrap();
            Resources::from_quantities(&quantities)
        };
        let mut sum = quantities(r#"{"cpu":"1","example.com/gpu":"2"}"#);
        let more = quantities(r#"{"memory":"5","example.com/fpga":"1","example.com/gpu":"1"}"#);
        let before = sum.clone();
        sum.add(&more);
        assert_eq!(sum.scalar("example.com/gpu"), 3);
        sum.subtract(&more);
        assert_eq!(sum, before);
    }
}

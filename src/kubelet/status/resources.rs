//! The resources of the pod as a whole, as its status shows them.

use crate::cgroup::resources::peak;
use crate::pod;
use crate::qos::{Amounts, amount};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use std::collections::BTreeSet;

type List = for<'a> fn(&'a ResourceRequirements) -> Option<&'a Amounts>;

pub(super) fn render(pod: &Pod, status: &mut PodStatus) {
    let requests = total(pod, |r| r.requests.as_ref());
    let limits = total(pod, |r| r.limits.as_ref());
    status.allocated_resources = requests.clone();
    status.resources = Some(ResourceRequirements {
        requests,
        limits,
        ..ResourceRequirements::default()
    });
}

/// The sum over all containers, where the pod does not say itself what it wants.
fn total(pod: &Pod, list: List) -> Option<Amounts> {
    let spec = pod::spec(pod);
    let own = spec.resources.as_ref().and_then(list);
    let containers = pod::init_containers(pod).iter().chain(&spec.containers);
    let lists = containers.filter_map(|c| c.resources.as_ref().and_then(list));
    let names: BTreeSet<&String> = lists.flat_map(|l| l.keys()).collect();
    let of = |container: &Container, name: &str| {
        amount(container.resources.as_ref().and_then(list), name)
    };
    let mut all: Amounts = names
        .into_iter()
        .map(|name| {
            let sum = peak(pod, |container| of(container, name));
            let overhead = amount(spec.overhead.as_ref(), name);
            (name.clone(), Text((sum + overhead).to_string()))
        })
        .collect();
    all.extend(own.cloned().unwrap_or_default());
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::json;

    #[test]
    fn containers_add_up() {
        let pod = pod_of(json!({"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}},
            {"name": "b", "resources": {"requests": {"cpu": "200m", "memory": "1Mi"}}}]}));
        let mut status = PodStatus::default();
        render(&pod, &mut status);
        assert_eq!(
            serde_json::json!(status),
            json!({"allocatedResources": {"cpu": "300m", "memory": "1Mi"},
                "resources": {"requests": {"cpu": "300m", "memory": "1Mi"}, "limits": {"cpu": "1"}}})
        );
    }
}

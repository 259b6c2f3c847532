//! Values that a pod may read about itself: the downward API.

use crate::pod;
use crate::qos::{Amounts, amount};
use k8s_openapi::api::core::v1::{
    Container, ObjectFieldSelector, Pod, ResourceFieldSelector, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use sampan_api::quantity::Quantity;
use std::collections::BTreeMap;

/// What is known of the pod beyond its object.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub host_ips: Vec<String>,
    pub pod_ips: Vec<String>,
    /// What a container without limits may use.
    pub allocatable: Amounts,
}

/// The value of a field reference.
pub fn field(
    pod: &Pod,
    selector: &ObjectFieldSelector,
    around: &Surroundings,
) -> Result<String, String> {
    let path = selector.field_path.as_str();
    let metadata = &pod.metadata;
    if let Some((base, key)) = subscript(path) {
        let map = match base {
            "metadata.annotations" => &metadata.annotations,
            "metadata.labels" => &metadata.labels,
            _ => return Err(format!("fieldPath {path:?} does not support subscript")),
        };
        let value = map.as_ref().and_then(|m| m.get(key));
        return Ok(value.cloned().unwrap_or_default());
    }
    let spec = pod::spec(pod);
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    Ok(match path {
        "metadata.name" => pod::name(pod).to_owned(),
        "metadata.namespace" => pod::namespace(pod).to_owned(),
        "metadata.uid" => pod::uid(pod).to_owned(),
        "metadata.annotations" => format_map(metadata.annotations.as_ref()),
        "metadata.labels" => format_map(metadata.labels.as_ref()),
        "spec.nodeName" => spec.node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&around.host_ips),
        "status.hostIPs" => around.host_ips.join(","),
        "status.podIP" => first(&around.pod_ips),
        "status.podIPs" => around.pod_ips.join(","),
        _ => return Err(format!("unsupported fieldPath: {path}")),
    })
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// One `key="value"` per line, sorted, with the value quoted as Go does.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The value of a resource reference, in units of its divisor and rounded up.
pub fn resource(
    pod: &Pod,
    own: &Container,
    selector: &ResourceFieldSelector,
    around: &Surroundings,
) -> Result<String, String> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let container = match named {
        None => own.clone(),
        Some(name) => pod::find_container(pod, name)
            .map(|(_, c)| c.into_owned())
            .ok_or_else(|| format!("container {name} not found"))?,
    };
    let resources = container.resources.unwrap_or_default();
    let path = selector.resource.as_str();
    let (list, resource) = path
        .split_once('.')
        .ok_or_else(|| format!("unsupported container resource : {path}"))?;
    let value = match list {
        "limits" => limit(&resources, resource, around),
        "requests" => amount(resources.requests.as_ref(), resource),
        _ => return Err(format!("unsupported container resource : {path}")),
    };
    let divisor = selector
        .divisor
        .as_ref()
        .and_then(|d| d.0.parse::<Quantity>().ok())
        .filter(|d| !d.is_zero())
        .unwrap_or(Quantity::from_units(1, value.format()));
    let divided = divide_up(value.nano_value(), divisor.nano_value());
    Ok(divided.to_string())
}

/// A container without a limit may use what the node has to give.
fn limit(resources: &ResourceRequirements, resource: &str, around: &Surroundings) -> Quantity {
    let own = amount(resources.limits.as_ref(), resource);
    if own.is_zero() {
        amount(Some(&around.allocatable), resource)
    } else {
        own
    }
}

fn divide_up(value: i128, divisor: i128) -> i128 {
    let whole = value / divisor;
    whole + i128::from(value % divisor != 0)
}

/// Builds an amount list from pairs; for node facts and tests.
pub fn amounts<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Amounts {
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Text(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixture::pod_of;
    use serde_json::json;

    fn read(pod: &Pod, path: &str) -> Result<String, String> {
        let selector = ObjectFieldSelector {
            field_path: path.into(),
            api_version: None,
        };
        let around = Surroundings {
            pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            ..Surroundings::default()
        };
        field(pod, &selector, &around)
    }

    #[test]
    fn fields_labels_and_subscripts() {
        let mut pod = pod_of(json!({"containers": []}));
        pod.metadata.labels = Some([("b".into(), "2".into()), ("a".into(), "x\"y".into())].into());
        assert_eq!(read(&pod, "metadata.name").unwrap(), "web");
        assert_eq!(
            read(&pod, "metadata.labels").unwrap(),
            "a=\"x\\\"y\"\nb=\"2\""
        );
        assert_eq!(read(&pod, "metadata.labels['b']").unwrap(), "2");
        assert_eq!(read(&pod, "metadata.labels['none']").unwrap(), "");
        assert_eq!(read(&pod, "status.podIPs").unwrap(), "10.0.0.1,fd00::1");
        assert!(read(&pod, "spec.unknown").is_err());
    }

    #[test]
    fn resources_are_divided_and_fall_back_to_the_node() {
        let pod = pod_of(json!({"containers": [{"name": "a", "resources":
            {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}}]}));
        let around = Surroundings {
            allocatable: amounts([("memory", "1Gi".to_owned())]),
            ..Surroundings::default()
        };
        let value = |path: &str, divisor: Option<&str>| {
            let selector = ResourceFieldSelector {
                container_name: Some("a".into()),
                resource: path.into(),
                divisor: divisor.map(|d| Text(d.into())),
            };
            resource(&pod, &pod::spec(&pod).containers[0], &selector, &around).unwrap()
        };
        assert_eq!(value("limits.cpu", None), "2");
        assert_eq!(value("limits.cpu", Some("1m")), "1500");
        assert_eq!(value("requests.memory", Some("1Mi")), "64");
        assert_eq!(value("limits.memory", Some("1Mi")), "1024");
        assert_eq!(value("requests.cpu", None), "0");
    }
}

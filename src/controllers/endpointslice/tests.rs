#![allow(clippy::unwrap_used)]

use super::*;
use crate::fixtures::{at, make_ready, object, pod};

fn service() -> Service {
    object(json!({
        "metadata": {"namespace": "ns", "name": "web", "uid": "uid-web", "labels": {"a": "b"}},
        "spec": {
            "clusterIP": "10.43.0.7", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080}],
        },
    }))
}

fn backend(name: &str, ip: &str) -> Pod {
    let mut pod = pod("ns", name);
    make_ready(&mut pod, at(0));
    pod.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
    let status = pod.status.as_mut().unwrap();
    status.pod_ips = Some(vec![object(json!({"ip": ip}))]);
    pod
}

fn observed(pods: Vec<Pod>, slices: Vec<EndpointSlice>) -> Observed {
    Observed {
        service: Arc::new(service()),
        pods: pods.into_iter().map(Arc::new).collect(),
        zones: [("n1".to_owned(), Some("z".to_owned()))].into(),
        slices: slices.into_iter().map(Arc::new).collect(),
    }
}

fn plan(observed: &Observed) -> Plan {
    EndpointSliceController::reconcile(observed, at(0))
}

fn created(plan: &Plan) -> EndpointSlice {
    match &plan.actions[0].action {
        Action::Create { object, .. } => crate::fixtures::object(object.clone()),
        other => panic!("{other}"),
    }
}

#[test]
fn ready_pods_become_ready_endpoints() {
    let plan = plan(&observed(vec![backend("a", "10.42.0.2")], Vec::new()));
    let slice = created(&plan);
    let endpoint = &slice.endpoints.as_ref().unwrap()[0];
    assert_eq!(endpoint.addresses, ["10.42.0.2"]);
    assert_eq!(endpoint.conditions.as_ref().unwrap().ready, Some(true));
    assert_eq!(endpoint.zone.as_deref(), Some("z"));
    assert_eq!(slice.ports.unwrap()[0].port, Some(8080));
    let labels = slice.metadata.labels.unwrap();
    assert_eq!(labels[SERVICE_NAME], "web");
    assert_eq!(labels["a"], "b");
    assert!(!labels.contains_key(HEADLESS));
}

#[test]
fn a_terminating_pod_serves_but_is_not_ready() {
    let mut leaving = backend("a", "10.42.0.2");
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    let slice = created(&plan(&observed(vec![leaving], Vec::new())));
    let conditions = slice.endpoints.unwrap()[0].conditions.clone().unwrap();
    assert_eq!(conditions.ready, Some(false));
    assert_eq!(conditions.serving, Some(true));
    assert_eq!(conditions.terminating, Some(true));
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let first = observed(vec![backend("a", "10.42.0.2")], Vec::new());
    let mut slice = created(&plan(&first));
    slice.metadata.name = Some("web-1".to_owned());
    let again = observed(vec![backend("a", "10.42.0.2")], vec![slice.clone()]);
    assert!(plan(&again).is_nothing(), "{}", plan(&again));
    let moved = observed(vec![backend("a", "10.42.0.3")], vec![slice]);
    let lines = plan(&moved).lines();
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("write endpointslices ns/web-1"),
        "{lines:?}"
    );
}

#[test]
fn without_pods_there_is_one_empty_slice() {
    let slice = created(&plan(&observed(Vec::new(), Vec::new())));
    assert!(slice.endpoints.unwrap().is_empty());
    let mut stranded = backend("a", "10.42.0.2");
    stranded.spec.as_mut().unwrap().node_name = Some("gone".to_owned());
    let slice = created(&plan(&observed(vec![stranded], Vec::new())));
    assert!(slice.endpoints.unwrap().is_empty());
}

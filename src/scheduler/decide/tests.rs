#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;

/// A cluster from a few lines: nodes as (name, rest of the node), pods as (name, node, rest of the pod).
#[derive(Default)]
struct Cluster(Snapshot);

fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

fn pod(name: &str, rest: Value) -> PodInfo {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "main", "image": "app"}]},
    });
    merge(&mut pod, &rest);
    PodInfo::new(&serde_json::from_value::<Pod>(pod).unwrap())
}

fn asking(cpu: &str) -> Value {
    json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}})
}

impl Cluster {
    fn node(mut self, name: &str, rest: Value) -> Self {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "3"}},
        });
        merge(&mut node, &rest);
        self.0
            .set_node(&serde_json::from_value::<Node>(node).unwrap());
        self
    }

    fn pod(mut self, name: &str, node: &str, rest: Value) -> Self {
        let mut placed = rest;
        merge(&mut placed, &json!({"spec": {"nodeName": node}}));
        self.0.set_pod(Arc::new(pod(name, placed)));
        self
    }

    fn decide(&self, pod: &PodInfo) -> Decision {
        decide(&Request::new(pod, &self.0))
    }

    #[track_caller]
    fn places(&self, pod: &PodInfo, expected: &str) {
        match self.decide(pod) {
            Decision::Place { node, .. } => assert_eq!(&*node, expected),
            Decision::Refuse { diagnosis, .. } => panic!("refused: {diagnosis}"),
        }
    }

    #[track_caller]
    fn refuses(&self, pod: &PodInfo, expected: &str) {
        match self.decide(pod) {
            Decision::Place { node, .. } => panic!("placed on {node}"),
            Decision::Refuse { diagnosis, .. } => assert_eq!(diagnosis.to_string(), expected),
        }
    }
}

fn three() -> Cluster {
    Cluster::default()
        .node("a", json!({}))
        .node("b", json!({}))
        .node("c", json!({}))
}

#[test]
fn no_nodes() {
    Cluster::default().refuses(&pod("p", json!({})), "no nodes available to schedule pods");
}

#[test]
fn reasons_are_counted_over_the_nodes() {
    let cluster = three()
        .node(
            "a",
            json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}),
        )
        .pod("other", "b", asking("1500m"));
    let cluster = Cluster(cluster.0).node("d", json!({"spec": {"unschedulable": true}}));
    let cluster = cluster.pod("more", "c", asking("1500m"));
    cluster.refuses(
        &pod("p", asking("1")),
        "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, \
         2 Insufficient cpu. preemption: 0/4 nodes are available: \
         2 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.",
    );
}

#[test]
fn everything_that_is_short_is_named() {
    let wanted =
        json!({"cpu": "3", "memory": "8Gi", "ephemeral-storage": "1", "example.com/gpu": "1"});
    let pod = pod(
        "p",
        json!({"spec": {"containers": [{"name": "m", "resources": {"requests": wanted}}]}}),
    );
    three().refuses(
        &pod,
        "0/3 nodes are available: 3 Insufficient cpu, 3 Insufficient ephemeral-storage, \
         3 Insufficient example.com/gpu, 3 Insufficient memory. preemption: 0/3 nodes are available: \
         3 Preemption is not helpful for scheduling.",
    );
}

#[test]
fn too_many_pods() {
    let cluster = Cluster::default()
        .node("a", json!({"status": {"allocatable": {"pods": "1"}}}))
        .pod("x", "a", json!({}));
    cluster.refuses(
        &pod("p", json!({})),
        "0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available: \
         1 No preemption victims found for incoming pod.",
    );
}

#[test]
fn the_emptier_node_wins() {
    let cluster = three()
        .pod("x", "a", asking("1"))
        .pod("y", "b", asking("500m"));
    cluster.places(&pod("p", asking("100m")), "c");
}

#[test]
fn tolerations_open_tainted_nodes_and_wishes_are_kept() {
    let taint =
        |effect: &str| json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": effect}]}});
    let cluster = Cluster::default().node("a", taint("NoSchedule"));
    let tolerant = json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}});
    cluster.places(&pod("p", tolerant), "a");
    let cluster = Cluster::default()
        .node("a", taint("PreferNoSchedule"))
        .node("b", json!({}))
        .pod("x", "b", asking("1"));
    cluster.places(&pod("p", json!({})), "b");
}

#[test]
fn node_selector_and_affinity() {
    let zone = |zone: &str| json!({"metadata": {"labels": {"zone": zone}}});
    let cluster = Cluster::default().node("a", zone("1")).node("b", zone("2"));
    cluster.places(
        &pod("p", json!({"spec": {"nodeSelector": {"zone": "2"}}})),
        "b",
    );
    let required = json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["3"]}]}]}}}}});
    cluster.refuses(
        &pod("p", required),
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: \
         0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
    );
    let preferred = json!({"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 100, "preference": {"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["1"]}]}}]}}}});
    cluster.places(&pod("p", preferred), "b");
}

#[test]
fn a_pod_that_names_its_node_looks_at_no_other() {
    let to = |name: &str| {
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}}},
            "containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}}}]}})
    };
    three().places(&pod("p", to("b")), "b");
    three().pod("x", "b", asking("2")).refuses(
        &pod("p", to("b")),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. \
         preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, \
         2 Preemption is not helpful for scheduling.",
    );
}

#[test]
fn host_ports_collide_by_address() {
    let with_port = |ip: &str| json!({"spec": {"containers": [{"name": "m", "ports": [{"containerPort": 1, "hostPort": 80, "hostIP": ip}]}]}});
    let cluster = Cluster::default()
        .node("a", json!({}))
        .pod("x", "a", with_port("10.0.0.1"));
    cluster.places(&pod("p", with_port("10.0.0.2")), "a");
    cluster.refuses(
        &pod("p", with_port("")),
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. preemption: \
         0/1 nodes are available: 1 No preemption victims found for incoming pod.",
    );
}

#[test]
fn large_images_draw_pods() {
    let image =
        json!({"status": {"images": [{"names": ["app:latest"], "sizeBytes": 2_000_000_000u64}]}});
    let cluster = Cluster::default().node("a", json!({})).node("b", image);
    cluster.places(&pod("p", json!({})), "b");
}

fn app(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

#[test]
fn hard_spreading() {
    let mut spreading = app(json!({"app": "web"}));
    spreading["spec"] = json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]});
    let zone = |zone: &str| json!({"metadata": {"labels": {"zone": zone}}});
    let cluster = Cluster::default()
        .node("a", zone("1"))
        .node("b", zone("2"))
        .node("c", json!({}))
        .pod("x", "a", app(json!({"app": "web"})));
    cluster.places(&pod("p", spreading.clone()), "b");
    let cluster = Cluster(cluster.0).node(
        "b",
        json!({"spec": {"unschedulable": true}, "metadata": {"labels": {"zone": "2"}}}),
    );
    cluster.refuses(
        &pod("p", spreading),
        "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, \
         1 node(s) didn't match pod topology spread constraints (missing required label), \
         1 node(s) were unschedulable. preemption: 0/3 nodes are available: \
         1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.",
    );
}

#[test]
fn pods_of_one_service_spread_by_default() {
    let cluster =
        three()
            .pod("x", "a", app(json!({"app": "web"})))
            .pod("y", "b", app(json!({"app": "web"})));
    // The third node is the fullest, yet the only one without a pod of the service.
    let cluster = cluster.pod("z", "c", json!({})).pod("z2", "c", json!({}));
    let labels = json!({"app": "web"});
    let pod = pod("p", app(labels));
    let selector = Selector::from_labels(&pod.labels);
    let request = Request {
        default_spread: Some(&selector),
        ..Request::new(&pod, &cluster.0)
    };
    assert!(matches!(decide(&request), Decision::Place { node, .. } if &*node == "c"));
}

fn anti_affinity(key: &str) -> Value {
    json!({"metadata": {"labels": {"app": "db"}}, "spec": {"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}}]}}}})
}

#[test]
fn anti_affinity_works_both_ways() {
    let host = "kubernetes.io/hostname";
    let cluster =
        three()
            .pod("x", "a", anti_affinity(host))
            .pod("y", "b", app(json!({"app": "db"})));
    cluster.places(&pod("p", anti_affinity(host)), "c");
    let cluster = Cluster::default()
        .node("a", json!({}))
        .pod("x", "a", anti_affinity(host));
    cluster.refuses(
        &pod("p", app(json!({"app": "db"}))),
        "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules. preemption: \
         0/1 nodes are available: 1 No preemption victims found for incoming pod.",
    );
}

#[test]
fn affinity_goes_where_the_others_are_and_the_first_goes_anywhere() {
    let mut wanting = anti_affinity("kubernetes.io/hostname");
    let terms = wanting["spec"]["affinity"]["podAntiAffinity"].take();
    wanting["spec"]["affinity"] = json!({"podAffinity": terms});
    let first = pod("p", wanting.clone());
    assert!(matches!(three().decide(&first), Decision::Place { .. }));
    three()
        .pod("x", "b", app(json!({"app": "db"})))
        .places(&first, "b");
    wanting["metadata"]["labels"] = json!({"app": "other"});
    three().refuses(
        &pod("p", wanting),
        "0/3 nodes are available: 3 node(s) didn't match pod affinity rules. preemption: \
         0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
    );
}

fn important(priority: i32, cpu: &str) -> Value {
    let mut rest = asking(cpu);
    rest["spec"]["priority"] = json!(priority);
    rest
}

fn preemption_of(
    cluster: &Cluster,
    pod: &PodInfo,
    budgets: &[Budget],
) -> Option<(String, Vec<String>)> {
    match decide(&Request {
        budgets,
        ..Request::new(pod, &cluster.0)
    }) {
        Decision::Refuse {
            preemption: Some(found),
            ..
        } => Some((
            found.node.to_string(),
            found
                .victims
                .iter()
                .map(|victim| victim.name.clone())
                .collect(),
        )),
        _ => None,
    }
}

#[test]
fn preemption_takes_the_least_important_pods() {
    let cluster = Cluster::default()
        .node("a", json!({}))
        .node("b", json!({}))
        .pod("a1", "a", important(50, "1"))
        .pod("a2", "a", important(10, "1"))
        .pod("b1", "b", important(20, "1"))
        .pod("b2", "b", important(20, "1"));
    let pod = pod("p", important(100, "1"));
    assert_eq!(
        preemption_of(&cluster, &pod, &[]),
        Some(("a".to_owned(), vec!["a2".to_owned()]))
    );
}

#[test]
fn preemption_spares_what_a_budget_protects() {
    let labelled = |cpu: &str| {
        let mut rest = important(10, cpu);
        rest["metadata"] = json!({"labels": {"app": "db"}});
        rest
    };
    let cluster = Cluster::default()
        .node("a", json!({}))
        .node("b", json!({}))
        .pod("a1", "a", labelled("2"))
        .pod("b1", "b", important(50, "2"));
    let selector = Selector::from_labels(&[("app".to_owned(), "db".to_owned())].into());
    let budget = Budget {
        namespace: "default".to_owned(),
        selector,
        allowed: 0,
        disrupted: Default::default(),
    };
    let pod = pod("p", important(100, "1"));
    assert_eq!(
        preemption_of(&cluster, &pod, &[budget]),
        Some(("b".to_owned(), vec!["b1".to_owned()]))
    );
    assert_eq!(
        preemption_of(&cluster, &pod, &[]),
        Some(("a".to_owned(), vec!["a1".to_owned()]))
    );
}

#[test]
fn a_pod_may_be_forbidden_to_preempt() {
    let mut modest = important(100, "1");
    modest["spec"]["preemptionPolicy"] = json!("Never");
    let cluster = Cluster::default()
        .node("a", json!({}))
        .pod("x", "a", asking("2"));
    cluster.refuses(
        &pod("p", modest),
        "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.",
    );
}

#[test]
fn room_that_is_promised_to_another_is_not_given_away() {
    let mut cluster = Cluster::default().node("a", json!({}));
    cluster
        .0
        .nominate(Arc::new(pod("rival", important(10, "2"))), "a");
    assert!(matches!(
        cluster.decide(&pod("p", important(5, "1"))),
        Decision::Refuse { .. }
    ));
    cluster.places(&pod("p", important(20, "1")), "a");
    cluster.places(&pod("rival", important(10, "2")), "a");
}

#[test]
fn large_clusters_are_searched_in_turns() {
    let mut cluster = Cluster::default();
    for number in 0..1000 {
        cluster = cluster.node(&format!("node-{number}"), json!({}));
    }
    let pod = pod("p", asking("100m"));
    let decision = decide(&Request {
        start: 900,
        ..Request::new(&pod, &cluster.0)
    });
    assert_eq!(decision.examined(), 420);
    assert!(matches!(decision, Decision::Place { node, .. } if &*node == "node-900"));
}

/// A claim and what is said of it, and a volume on one node.
fn with_claims(mut cluster: Cluster) -> Cluster {
    let volumes = cluster.0.volumes_mut();
    for (name, spec, status) in [
        ("immediate", json!({}), json!({"phase": "Pending"})),
        ("late", json!({"storageClassName": "late"}), json!({})),
        (
            "local",
            json!({"volumeName": "on-b"}),
            json!({"phase": "Bound"}),
        ),
        (
            "anywhere",
            json!({"volumeName": "free"}),
            json!({"phase": "Bound"}),
        ),
        (
            "dangling",
            json!({"volumeName": "none"}),
            json!({"phase": "Bound"}),
        ),
        (
            "lost",
            json!({"volumeName": "none"}),
            json!({"phase": "Lost"}),
        ),
    ] {
        let metadata = json!({"name": name, "namespace": "default"});
        let claim = json!({"metadata": metadata, "spec": spec, "status": status});
        assert!(volumes.set_claim(&serde_json::from_value(claim).unwrap()));
    }
    let term = json!({"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]});
    for (name, spec) in [
        (
            "on-b",
            json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}),
        ),
        ("free", json!({})),
    ] {
        let volume = json!({"metadata": {"name": name}, "spec": spec});
        volumes.set_volume(&serde_json::from_value(volume).unwrap());
    }
    let class = json!({"metadata": {"name": "late"}, "provisioner": "p",
        "volumeBindingMode": "WaitForFirstConsumer"});
    volumes.set_class(&serde_json::from_value(class).unwrap());
    cluster
}

#[test]
fn claims_are_bound_before_their_pod_runs() {
    let cluster = with_claims(three());
    let using = |claims: &[&str]| {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        pod("p", json!({"spec": {"volumes": volumes}}))
    };
    cluster.places(&using(&["local"]), "b");
    cluster.places(&using(&["anywhere", "local"]), "b");
    for (claims, reason) in [
        (&["none"][..], "persistentvolumeclaim \"none\" not found"),
        (
            &["immediate"],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            &["late", "immediate"],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            &["late"],
            "3 node(s) didn't find available persistent volumes to bind",
        ),
        (
            &["lost"],
            "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"none\"",
        ),
        (
            &["dangling"],
            "3 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
        ),
    ] {
        let Decision::Refuse { diagnosis, .. } = cluster.decide(&using(claims)) else {
            panic!("{claims:?} was placed");
        };
        let said = diagnosis.to_string();
        let expected = format!("0/3 nodes are available: {reason}.");
        assert!(said.starts_with(&expected), "{claims:?}: {said}");
    }
}

#[test]
fn an_ephemeral_volume_waits_for_its_claim() {
    let volume = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
    let pod = pod("p", json!({"spec": {"volumes": [volume]}}));
    let Decision::Refuse { diagnosis, .. } = three().decide(&pod) else {
        panic!("it was placed");
    };
    let waits =
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-data\"";
    assert!(diagnosis.to_string().contains(waits), "{diagnosis}");
}

#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sampan_pki::{CertificateInfo, PrivateKey, RequestSpec};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{at, object};

const CLIENT: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
const SERVER: [&str; 2] = ["digital signature", "server auth"];

fn node_subject(name: &str) -> RequestSpec {
    RequestSpec {
        common_name: format!("system:node:{name}"),
        organizations: vec!["system:nodes".to_owned()],
        ..RequestSpec::default()
    }
}

fn serving(name: &str, ip: &str) -> RequestSpec {
    RequestSpec {
        dns_names: vec![name.to_owned()],
        ips: vec![ip.parse().unwrap()],
        ..node_subject(name)
    }
}

/// A request of `user` in `group`, made at second 0.
fn request(subject: &RequestSpec, signer: &str, usages: &[&str], user: &str, group: &str) -> Value {
    let pem = subject.encode(&PrivateKey::generate().unwrap()).unwrap();
    json!({
        "metadata": {"name": "csr", "uid": "u", "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {
            "request": STANDARD.encode(pem), "signerName": format!("kubernetes.io/{signer}"),
            "usages": usages, "username": user, "groups": [group],
        },
    })
}

fn observed(request: Value) -> Observed {
    let authority = || Arc::new(Authority::create("ca", SystemTime::UNIX_EPOCH).unwrap());
    Observed {
        request: Arc::new(object(request)),
        node: None,
        foreign: HashSet::new(),
        holder: name::Holder::Nobody,
        beat: None,
        authorities: Some(Authorities {
            client: authority(),
            kubelet_serving: authority(),
            serving: authority(),
        }),
    }
}

fn node(ip: &str) -> Option<Arc<Node>> {
    let addresses =
        json!([{"type": "InternalIP", "address": ip}, {"type": "Hostname", "address": "host-a"}]);
    Some(Arc::new(object(
        json!({"metadata": {"name": "a"}, "status": {"addresses": addresses}}),
    )))
}

/// The written condition's type, if one is written.
fn written(plan: &Plan) -> Option<String> {
    let Some(Action::Write { target, change, .. }) = plan.actions.last().map(|step| &step.action)
    else {
        return None;
    };
    let condition = change["status"]["conditions"].as_array()?.last()?;
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    Some(format!(
        "{} {} {}: {}",
        target.subresource.clone()?,
        text("type"),
        text("reason"),
        text("message")
    ))
}

fn approved(observed: &Observed) -> bool {
    written(&CertificateController::reconcile(observed, at(10)))
        .is_some_and(|text| text.starts_with("approval Approved AutoApproved"))
}

#[test]
fn who_may_have_a_kubelet_client_certificate() {
    let ask = |subject: &RequestSpec, usages: &[&str], user: &str, group: &str| {
        approved(&observed(request(
            subject,
            "kube-apiserver-client-kubelet",
            usages,
            user,
            group,
        )))
    };
    let subject = node_subject("a");
    assert!(ask(&subject, &CLIENT, "bootstrap", "system:bootstrappers"));
    assert!(ask(&subject, &CLIENT, "system:node:a", "system:nodes"));
    assert!(
        !ask(&subject, &CLIENT, "system:node:b", "system:nodes"),
        "another node"
    );
    assert!(!ask(&subject, &CLIENT, "jane", "developers"));
    assert!(!ask(&subject, &SERVER, "bootstrap", "system:bootstrappers"));
    let masters = RequestSpec {
        organizations: vec!["system:masters".to_owned()],
        ..node_subject("a")
    };
    assert!(!ask(&masters, &CLIENT, "bootstrap", "system:bootstrappers"));
    assert!(!ask(
        &serving("a", "10.0.0.1"),
        &CLIENT,
        "bootstrap",
        "system:bootstrappers"
    ));
}

/// One request for the node `a`, by whom, while the name has this holder: what is written, and whether the name is taken.
fn named(user: &str, group: &str, holder: fn(&str) -> name::Holder) -> (String, bool) {
    let signer = "kube-apiserver-client-kubelet";
    let mut observed = observed(request(&node_subject("a"), signer, &CLIENT, user, group));
    let own = parse(&observed.request).unwrap().key_hash();
    observed.holder = holder(&own);
    let plan = CertificateController::reconcile(&observed, at(10));
    let takes = match plan.actions.first().map(|step| &step.action) {
        Some(Action::Create { object, target }) => {
            assert_eq!(target.namespace.as_deref(), Some("kube-system"));
            assert_eq!(object["metadata"]["name"], json!("a.node-password.sampan"));
            let hash = STANDARD.decode(object["data"]["public-key-sha256"].as_str().unwrap());
            assert_eq!(hash.unwrap(), own.as_bytes());
            assert_eq!(plan.actions.len(), 2, "the name first, then the approval");
            true
        }
        _ => false,
    };
    (written(&plan).unwrap_or_default(), takes)
}

#[test]
fn a_name_is_its_first_keys() {
    use name::Holder::{Key, Nobody};
    let newcomer = ("bootstrap", "system:bootstrappers");
    let node = ("system:node:a", "system:nodes");
    let ask = |(user, group): (&str, &str), holder| named(user, group, holder);
    let approved = |said: &str| said.starts_with("approval Approved AutoApproved");
    for who in [newcomer, node] {
        let (said, takes) = ask(who, |_| Nobody);
        assert!(approved(&said) && takes, "{said}");
        let (said, takes) = ask(who, |own| Key(own.to_owned()));
        assert!(approved(&said) && !takes, "{said}");
    }
    let (said, takes) = ask(newcomer, |_| Key("another".to_owned()));
    assert!(
        said.starts_with("approval Denied NodeNameTaken: the node name a belongs"),
        "{said}"
    );
    assert!(said.contains("kubectl delete node a") && !takes, "{said}");
    let (said, takes) = ask(node, |_| Key("another".to_owned()));
    assert!(
        said.starts_with("approval Denied NodeNameTaken") && !takes,
        "a renewal with a key that is not the name's: {said}"
    );
}

/// Names that no Node, and no Secret, can have: the answer is final, or it would be asked for without end.
#[test]
fn names_that_cannot_be_are_denied_once() {
    let long = "a".repeat(240);
    for name in ["", "A", "a b", "a..b", "a/../b", "a_b", "node-", &long] {
        let subject = node_subject(name);
        let user = format!("system:node:{name}");
        for (user, group) in [
            ("bootstrap", "system:bootstrappers"),
            (user.as_str(), "system:nodes"),
        ] {
            let signer = "kube-apiserver-client-kubelet";
            let asked = request(&subject, signer, &CLIENT, user, group);
            let plan = CertificateController::reconcile(&observed(asked.clone()), at(10));
            let said = written(&plan).unwrap();
            let start = "approval Denied NodeNameInvalid: no node can have the name";
            assert!(said.starts_with(start), "{name}: {said}");
            assert_eq!(plan.actions.len(), 1, "nothing else is written");
            let denied = decided(asked, "Denied", "1970-01-01T00:00:10Z");
            let plan = CertificateController::reconcile(&observed(denied), at(20));
            assert!(plan.actions.is_empty(), "{plan}");
        }
    }
}

/// What becomes of a request of second 0 for a free name at second 10, when this sign of life was the last one.
fn while_living(who: (&str, &str), seconds: i64, is_renewal: bool) -> Plan {
    let signer = "kube-apiserver-client-kubelet";
    let mut observed = observed(request(&node_subject("a"), signer, &CLIENT, who.0, who.1));
    let at = at(seconds);
    observed.beat = Some(beats::Beat { at, is_renewal });
    CertificateController::reconcile(&observed, crate::fixtures::at(10))
}

#[test]
fn a_free_name_that_a_machine_goes_by_is_not_given_away() {
    let newcomer = ("bootstrap", "system:bootstrappers");
    let said = written(&while_living(newcomer, 5, true)).unwrap();
    assert!(
        said.starts_with("approval Denied NodeNameTaken") && said.contains("runs under"),
        "{said}"
    );
    // It may be who asks, before it was started again; or a Lease that was old already when it was first seen.
    for (seconds, is_renewal) in [(0, true), (1, true), (-15, true), (5, false)] {
        let plan = while_living(newcomer, seconds, is_renewal);
        assert!(plan.is_nothing(), "{seconds}: {plan}");
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(2)));
    }
    let approved = |plan: &Plan| {
        written(plan).is_some_and(|said| said.starts_with("approval Approved AutoApproved"))
    };
    assert!(
        approved(&while_living(newcomer, -25, true)),
        "silent for long"
    );
    let itself = ("system:node:a", "system:nodes");
    assert!(
        approved(&while_living(itself, 5, true)),
        "who lives takes its name"
    );
}

#[test]
fn who_may_have_a_serving_certificate() {
    let ask = |subject: &RequestSpec, user: &str, change: fn(&mut Observed)| {
        let mut observed = observed(request(
            subject,
            "kubelet-serving",
            &SERVER,
            user,
            "system:nodes",
        ));
        change(&mut observed);
        approved(&observed)
    };
    let subject = serving("a", "10.0.0.1");
    assert!(
        ask(&subject, "system:node:a", |_| {}),
        "the Node may be missing yet"
    );
    assert!(ask(&subject, "system:node:a", |seen| seen.node =
        node("10.0.0.1")));
    assert!(!ask(&subject, "system:node:a", |seen| seen.node =
        node("10.0.0.2")));
    assert!(!ask(&subject, "system:node:a", |seen| seen
        .foreign
        .extend(["10.0.0.1".parse::<IpAddr>().unwrap()])));
    assert!(!ask(&subject, "system:node:b", |_| {}));
    let other_name = RequestSpec {
        dns_names: vec!["kubernetes".to_owned()],
        ..subject.clone()
    };
    assert!(!ask(&other_name, "system:node:a", |_| {}));
    let host_name = RequestSpec {
        dns_names: vec!["host-a".to_owned()],
        ..subject
    };
    assert!(
        !ask(&host_name, "system:node:a", |seen| seen.node =
            node("10.0.0.1")),
        "a node writes its host name itself"
    );
    for (name, ip) in [("kubernetes.default.svc", "10.0.0.1"), ("a", "127.0.0.1")] {
        let user = format!("system:node:{name}");
        assert!(!ask(&serving(name, ip), &user, |_| {}), "{name} {ip}");
    }
}

#[test]
fn who_may_have_another_client_certificate() {
    let named = |name: &str| RequestSpec {
        common_name: name.to_owned(),
        ..RequestSpec::default()
    };
    let ask = |subject: &RequestSpec, group: &str| {
        approved(&observed(request(
            subject,
            "kube-apiserver-client",
            &CLIENT,
            "someone",
            group,
        )))
    };
    assert!(ask(&named("system:kube-proxy"), "system:bootstrappers"));
    assert!(ask(&named("system:kube-proxy"), "system:nodes"));
    assert!(!ask(&named("system:kube-proxy"), "developers"));
    assert!(!ask(&named("admin"), "system:nodes"));
    let mut more = named("system:kube-proxy");
    more.organizations = vec!["system:masters".to_owned()];
    assert!(!ask(&more, "system:nodes"));
}

fn decided(mut request: Value, kind: &str, at: &str) -> Value {
    request["status"] =
        json!({"conditions": [{"type": kind, "status": "True", "lastUpdateTime": at}]});
    request
}

#[test]
fn an_approved_request_is_signed_for_its_time() {
    let mut asked = request(
        &node_subject("a"),
        "kube-apiserver-client-kubelet",
        &CLIENT,
        "x",
        "y",
    );
    asked["spec"]["expirationSeconds"] = json!(7200);
    let observed = observed(decided(asked, "Approved", "1970-01-01T00:00:00Z"));
    let plan = CertificateController::reconcile(&observed, at(1000));
    let Action::Make { change, target, .. } = &plan.actions[0].action else {
        panic!("{plan}")
    };
    assert!(
        !format!("{plan:?}").contains("certificate\":"),
        "a plan has signed nothing"
    );
    let change = change.make();
    assert_eq!(target.subresource.as_deref(), Some("status"));
    let pem = STANDARD
        .decode(change["status"]["certificate"].as_str().unwrap())
        .unwrap();
    let info = CertificateInfo::from_pem(&String::from_utf8(pem).unwrap()).unwrap();
    assert_eq!(info.common_name, "system:node:a");
    assert_eq!(
        info.not_after,
        SystemTime::UNIX_EPOCH + Duration::from_secs(8200)
    );
}

#[test]
fn an_unfit_request_fails_even_when_approved() {
    let asked = request(&node_subject("a"), "kubelet-serving", &SERVER, "x", "y");
    let observed = observed(decided(asked, "Approved", "1970-01-01T00:00:00Z"));
    assert_eq!(
        written(&CertificateController::reconcile(&observed, at(1))).unwrap(),
        "status Failed SignerValidationFailure: DNS or IP subjectAltName is required"
    );
}

#[test]
fn denied_and_unknown_requests_are_left_alone() {
    let asked = request(
        &node_subject("a"),
        "kube-apiserver-client-kubelet",
        &CLIENT,
        "b",
        "system:bootstrappers",
    );
    let denied = observed(decided(asked, "Denied", "1970-01-01T00:00:00Z"));
    assert!(CertificateController::reconcile(&denied, at(1)).is_nothing());
    let mut foreign = request(
        &node_subject("a"),
        "x",
        &CLIENT,
        "b",
        "system:bootstrappers",
    );
    foreign["spec"]["signerName"] = json!("example.com/signer");
    assert!(CertificateController::reconcile(&observed(foreign), at(1)).is_nothing());
}

#[test]
fn old_requests_go() {
    let asked = || {
        request(
            &node_subject("a"),
            "kube-apiserver-client-kubelet",
            &CLIENT,
            "x",
            "y",
        )
    };
    let fate = |request: Value, now: i64| clean::fate(&object(request), at(now));
    assert_eq!(
        fate(asked(), 3600),
        clean::Fate::KeepFor(Duration::from_secs(23 * 3600))
    );
    assert_eq!(fate(asked(), 24 * 3600), clean::Fate::Remove);
    let denied = decided(asked(), "Denied", "1970-01-01T01:00:00Z");
    assert_eq!(
        fate(denied.clone(), 5400),
        clean::Fate::KeepFor(Duration::from_secs(1800))
    );
    assert_eq!(fate(denied, 7200), clean::Fate::Remove);
    let plan = CertificateController::reconcile(&observed(asked()), at(90_000));
    assert_eq!(plan.lines(), ["delete certificatesigningrequests csr"]);
}

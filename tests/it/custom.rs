//! Custom resources by kubectl: defined, checked, completed, shown, scaled, owned, kept over a restart, and gone with
//! their definition or their namespace.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::process::ControlPlane;
use crate::support::{attempt, eventually, output, run};

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.test}
spec:
  group: example.test
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, shortNames: [bt], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.oars, statusReplicasPath: .status.oars}
    selectableFields: [{jsonPath: .spec.name}]
    additionalPrinterColumns:
    - {name: Oars, type: integer, jsonPath: .spec.oars}
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
    schema:
      openAPIV3Schema:
        type: object
        description: A boat floats.
        properties:
          spec:
            type: object
            x-kubernetes-validations:
            - {rule: "self.oars % 2 == 0 || self.name == 'gondola'", messageExpression: "string(self.oars) + ' oars are odd'"}
            - {rule: "has(self.name) == has(oldSelf.name)", message: "a boat keeps its name", fieldPath: .name}
            properties:
              oars: {type: integer, minimum: 1, maximum: 40, default: 2, description: Two at a time.}
              name: {type: string, pattern: '^[a-z]+$'}
              flags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {name: {type: string}}}}
"#;

fn boat(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: example.test/v1\nkind: Boat\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

/// `kubectl apply` of a manifest with further arguments.
fn apply(plane: &ControlPlane, manifest: &str, arguments: &[&str]) -> std::process::Output {
    let file = plane.sampan.data_dir.with_file_name("boat.yaml");
    std::fs::write(&file, manifest).unwrap();
    let path = file.display().to_string();
    let all = [&["apply", "-f", &path], arguments].concat();
    output(&mut plane.sampan.kubectl_args(&all))
}

/// What kubectl says of a manifest that it must not get through.
fn refusal(plane: &ControlPlane, manifest: &str, arguments: &[&str]) -> String {
    let found = apply(plane, manifest, arguments);
    assert!(!found.status.success(), "taken: {manifest}");
    String::from_utf8_lossy(&found.stderr).into_owned()
}

fn must_apply(plane: &ControlPlane, manifest: &str, arguments: &[&str]) {
    let found = apply(plane, manifest, arguments);
    let words = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(found.status.success(), "{words}");
}

/// Defines and returns how long it took until the kind was served.
fn define(plane: &ControlPlane) -> Duration {
    plane.sampan.apply(DEFINITION);
    let since = Instant::now();
    text(
        plane,
        "wait --for=condition=Established --timeout=20s crd/boats.example.test",
    );
    text(plane, "get --raw /apis/example.test/v1/boats");
    since.elapsed()
}

fn text(plane: &ControlPlane, arguments: &str) -> String {
    run(&mut plane.sampan.kubectl(arguments))
}

#[test]
fn a_definition_is_served_like_any_other_kind() {
    let mut plane = ControlPlane::start(&["--disable-scheduler"]);
    let served = define(&plane);
    let first = ["--server-side", "--field-manager=first"];
    must_apply(&plane, &boat("sampan", "name: san, flags: [red]"), &first);
    let refusals = refuses_what_does_not_fit(&plane);
    keeps_to_rules(&plane);
    is_owned_field_by_field(&plane);
    let patch = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
    run(&mut plane.sampan.kubectl_args(&[
        "patch",
        "boat",
        "sampan",
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ]));
    text(&plane, "scale --replicas=4 boats/sampan");
    plane.sampan.terminate();
    plane.start_again();
    plane.wait_ready();
    is_shown(&plane);
    has_two_versions(&plane);
    goes_with_its_owner(&plane);
    goes_with_its_namespace(&plane);
    let ended = goes_with_its_definition(&plane);
    define(&plane);
    assert_eq!(
        text(&plane, "get boats -o name"),
        "",
        "objects do not come back with their definition"
    );
    println!(
        "custom resources: served within {} ms, {refusals} kinds of refusals, rules in CEL, 2 field managers, status, scale, columns, \
         selectors, explained, 2 versions, a restart, 3 ways to go, a watch that ended {} ms after its definition",
        served.as_millis(),
        ended.as_millis()
    );
}

fn refuses_what_does_not_fit(plane: &ControlPlane) -> usize {
    let all: &[(&str, &[&str], &[&str])] = &[
        ("sails: 3", &[], &["unknown field \"spec.sails\""]),
        (
            "oars: 41, name: A",
            &[],
            &[
                "spec.oars in body should be less than or equal to 40",
                "spec.name in body should match '^[a-z]+$'",
            ],
        ),
        ("oars: many", &[], &["must be of type integer"]),
        ("flags: [x, x]", &[], &["Duplicate value: \"x\""]),
        (
            "oars: 5, name: skiff",
            &[],
            &["spec: Invalid value: 5 oars are odd"],
        ),
    ];
    for (spec, arguments, words) in all {
        let found = refusal(plane, &boat("bad", spec), arguments);
        for word in *words {
            assert!(found.contains(word), "{found}");
        }
    }
    let warned = apply(
        plane,
        &boat("odd", "sails: 3"),
        &["--validate=warn", "--dry-run=server"],
    );
    let words = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(
        warned.status.success() && words.contains("Warning: unknown field \"spec.sails\""),
        "{words}"
    );
    all.len()
}

/// A rule that compares with what was before, and a definition whose rule makes no sense.
fn keeps_to_rules(plane: &ControlPlane) {
    let patch = [
        "patch",
        "boat",
        "sampan",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/spec/name"}]"#,
    ];
    let found = output(&mut plane.sampan.kubectl_args(&patch));
    let words = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(
        !found.status.success()
            && words.contains("spec.name: Invalid value: a boat keeps its name"),
        "{words}"
    );
    let wrong = DEFINITION.replace("self.oars % 2", "self.sails % 2");
    let words = refusal(plane, &wrong, &[]);
    assert!(
        words.contains("compilation failed") && words.contains("undefined field 'sails'"),
        "{words}"
    );
}

fn is_owned_field_by_field(plane: &ControlPlane) {
    let own = ["--server-side", "--field-manager=second"];
    must_apply(plane, &boat("sampan", "flags: [blue]"), &own);
    let flags = text(plane, "get boat sampan -o jsonpath={.spec.flags}");
    assert_eq!(flags, r#"["red","blue"]"#, "elements of a set add up");
    let conflict = refusal(plane, &boat("sampan", "name: other"), &own);
    assert!(conflict.contains("conflict with"), "{conflict}");
}

fn is_shown(plane: &ControlPlane) {
    let table = text(plane, "get bt");
    let cells: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(cells, [["NAME", "OARS", "READY"], ["sampan", "4", "True"]]);
    let generation = text(plane, "get boat sampan -o jsonpath={.metadata.generation}");
    assert_eq!(generation, "3", "created, applied and scaled");
    for (words, count) in [("san", 1), ("sun", 0)] {
        let found = text(
            plane,
            &format!("get boats -o name --field-selector spec.name={words}"),
        );
        assert_eq!(found.lines().count(), count, "{found}");
    }
    let explained = text(plane, "explain boats.spec");
    assert!(explained.contains("Two at a time."), "{explained}");
    let all = text(plane, "get all -o name");
    assert!(all.contains("boat.example.test/sampan"), "{all}");
}

fn has_two_versions(plane: &ControlPlane) {
    let old = output(
        &mut plane
            .sampan
            .kubectl("get boats.v1beta1.example.test sampan -o jsonpath={.apiVersion}{.spec}"),
    );
    let (shown, words) = (
        String::from_utf8_lossy(&old.stdout).into_owned(),
        String::from_utf8_lossy(&old.stderr).into_owned(),
    );
    assert_eq!(shown, r#"example.test/v1beta1{"name":"san"}"#);
    assert!(
        words.contains("example.test/v1beta1 Boat is deprecated; use example.test/v1 Boat"),
        "{words}"
    );
}

fn goes_with_its_owner(plane: &ControlPlane) {
    text(plane, "create configmap owner");
    let uid = text(plane, "get configmap owner -o jsonpath={.metadata.uid}");
    let owned = format!(
        "apiVersion: example.test/v1\nkind: Boat\nmetadata:\n  name: owned\n  ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]\n"
    );
    must_apply(plane, &owned, &[]);
    text(plane, "delete configmap owner");
    text(plane, "wait --for=delete boat/owned --timeout=20s");
}

fn goes_with_its_namespace(plane: &ControlPlane) {
    text(plane, "create namespace harbour");
    must_apply(
        plane,
        &boat("guest", "oars: 2, name: guest"),
        &["-n", "harbour"],
    );
    text(plane, "delete namespace harbour --timeout=60s");
    eventually("only one boat is left", Duration::from_secs(10), || {
        let left = attempt(&mut plane.sampan.kubectl("get boats -A -o name"))?;
        if left.trim() == "boat.example.test/sampan" {
            Ok(())
        } else {
            Err(left)
        }
    });
}

/// How long after the definition's end a watch of its objects ended.
fn goes_with_its_definition(plane: &ControlPlane) -> Duration {
    let mut watch = plane
        .sampan
        .kubectl("get --raw /apis/example.test/v1/boats?watch=1&timeoutSeconds=60");
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    text(plane, "delete crd boats.example.test --timeout=30s");
    let since = Instant::now();
    let seen = loop {
        if watch.try_wait().unwrap().is_some() {
            break since.elapsed();
        }
        assert!(since.elapsed() < Duration::from_secs(20), "a watch goes on");
        std::thread::sleep(Duration::from_millis(5));
    };
    let gone = output(&mut plane.sampan.kubectl("get boats"));
    assert!(!gone.status.success());
    seen
}

//! Custom resources by kubectl: defined, checked, completed, shown, scaled, kept over a restart, and gone with their
//! definition or their namespace.

use std::time::Duration;

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
    additionalPrinterColumns:
    - {name: Oars, type: integer, jsonPath: .spec.oars}
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              oars: {type: integer, minimum: 1, maximum: 40, default: 2}
              name: {type: string, pattern: '^[a-z]+$'}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"#;

fn boat(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: example.test/v1\nkind: Boat\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

/// What kubectl says of a manifest that it must not get through.
fn refusal(plane: &ControlPlane, manifest: &str) -> String {
    let file = plane.sampan.data_dir.with_file_name("refused.yaml");
    std::fs::write(&file, manifest).unwrap();
    let found =
        output(
            &mut plane
                .sampan
                .kubectl_args(&["apply", "-f", &file.display().to_string()]),
        );
    assert!(!found.status.success(), "taken: {manifest}");
    String::from_utf8_lossy(&found.stderr).into_owned()
}

fn define(plane: &ControlPlane) {
    plane.sampan.apply(DEFINITION);
    run(&mut plane
        .sampan
        .kubectl("wait --for=condition=Established --timeout=20s crd/boats.example.test"));
}

fn text(plane: &ControlPlane, arguments: &str) -> String {
    run(&mut plane.sampan.kubectl(arguments))
}

#[test]
fn a_definition_is_served_like_any_other_kind() {
    let mut plane = ControlPlane::start(&["--disable-scheduler"]);
    define(&plane);
    plane.sampan.apply(&boat("sampan", "name: san"));
    let unknown = refusal(&plane, &boat("bad", "sails: 3"));
    assert!(
        unknown.contains("unknown field \"spec.sails\""),
        "{unknown}"
    );
    let wrong = refusal(&plane, &boat("bad", "oars: 41, name: A"));
    for words in [
        "should be less than or equal to 40",
        "should match '^[a-z]+$'",
    ] {
        assert!(wrong.contains(words), "{wrong}");
    }
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
    let table = text(&plane, "get bt");
    let cells: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(cells, [["NAME", "OARS", "READY"], ["sampan", "4", "True"]]);
    let explained = text(&plane, "explain boats.spec");
    assert!(explained.contains("oars"), "{explained}");
    let applied = text(&plane, "get boat sampan -o jsonpath={.metadata.generation}");
    assert_eq!(applied, "2", "created and scaled");
    goes_with_its_namespace(&plane);
    text(&plane, "delete crd boats.example.test --timeout=30s");
    let gone = output(&mut plane.sampan.kubectl("get boats"));
    assert!(!gone.status.success());
    define(&plane);
    assert_eq!(
        text(&plane, "get boats -o name"),
        "",
        "objects do not come back with their definition"
    );
    println!(
        "custom resources: defined, 2 kinds of refusals, status, scale, columns, a restart, 2 ways to go"
    );
}

fn goes_with_its_namespace(plane: &ControlPlane) {
    text(plane, "create namespace harbour");
    let file = plane.sampan.data_dir.with_file_name("harbour.yaml");
    std::fs::write(&file, boat("guest", "oars: 1")).unwrap();
    text(plane, &format!("apply -n harbour -f {}", file.display()));
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

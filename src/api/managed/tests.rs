#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::schema::of_kind;

fn write<'a>(kind: &'a str, manager: &'a str, time: &'a str) -> Write<'a> {
    let group = if kind == "Deployment" { "apps" } else { "" };
    Write {
        schema: of_kind(group, "v1", kind),
        manager,
        api_version: if kind == "Deployment" {
            "apps/v1"
        } else {
            "v1"
        },
        subresource: "",
        reset: if kind == "Deployment" {
            &["status"]
        } else {
            &[]
        },
        time,
    }
}

fn fields(object: &Value, index: usize) -> &Value {
    &object["metadata"]["managedFields"][index]["fieldsV1"]
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "uid": "u"}, "data": data})
}

#[test]
fn creates_own_what_they_set() {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "labels": {"a": "1"}}, "data": {"k": "v"}});
    update(&mut object, &Value::Null, &write("ConfigMap", "m", "t"));
    assert_eq!(
        *fields(&object, 0),
        json!({"f:data": {".": {}, "f:k": {}}, "f:metadata": {"f:labels": {".": {}, "f:a": {}}}})
    );
}

#[test]
fn updates_move_fields() {
    let mut first = config_map(json!({"a": "1", "b": "1"}));
    first["metadata"]["uid"] = json!("");
    update(&mut first, &Value::Null, &write("ConfigMap", "one", "t1"));
    first["metadata"]["uid"] = json!("u");
    let mut second = first.clone();
    second["data"] = json!({"a": "2"});
    update(&mut second, &first, &write("ConfigMap", "two", "t2"));
    assert_eq!(*fields(&second, 0), json!({"f:data": {}}));
    assert_eq!(*fields(&second, 1), json!({"f:data": {"f:a": {}}}));
    let mut same = second.clone();
    update(&mut same, &second, &write("ConfigMap", "three", "t3"));
    assert_eq!(same, second);
    same["metadata"]["managedFields"] = json!([]);
    update(&mut same, &second, &write("ConfigMap", "three", "t3"));
    assert!(same["metadata"].get("managedFields").is_none());
}

fn deployment(containers: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": containers}}}})
}

fn apply_to(live: &Value, config: Value, manager: &str, force: bool) -> Result<Value, ApplyError> {
    let mut object = apply(live, &config, &write("Deployment", manager, "t"), force)?;
    object["metadata"]["uid"] = json!("u");
    Ok(object)
}

#[test]
fn applies_merge_and_prune() {
    let first = apply_to(
        &Value::Null,
        deployment(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}])),
        "m",
        false,
    )
    .unwrap();
    let second = apply_to(
        &first,
        deployment(json!([{"name": "a", "image": "2"}])),
        "m",
        false,
    )
    .unwrap();
    let containers = &second["spec"]["template"]["spec"]["containers"];
    assert_eq!(*containers, json!([{"name": "a", "image": "2"}]));
    assert_eq!(
        *fields(&second, 0),
        json!({"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
            "k:{\"name\":\"a\"}": {".": {}, "f:image": {}, "f:name": {}}}}}}})
    );
}

#[test]
fn conflicts_are_named() {
    let mut live = deployment(json!([{"name": "a", "image": "1"}]));
    update(&mut live, &Value::Null, &write("Deployment", "other", "t"));
    live["metadata"]["uid"] = json!("u");
    let config = deployment(json!([{"name": "a", "image": "2"}]));
    let status = apply_to(&live, config.clone(), "m", false)
        .unwrap_err()
        .to_status();
    assert_eq!(
        status.message,
        "Apply failed with 1 conflict: conflict with \"other\" using apps/v1: \
         .spec.template.spec.containers[name=\"a\"].image"
    );
    let forced = apply_to(&live, config, "m", true).unwrap();
    assert_eq!(
        forced["metadata"]["managedFields"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn wrong_types_are_named() {
    let mut config = deployment(json!([{"name": "a"}, {"name": "a"}]));
    config["spec"]["nonsense"] = json!(1);
    let status = apply_to(&Value::Null, config, "m", false)
        .unwrap_err()
        .to_status();
    assert_eq!(
        status.message,
        "failed to create typed patch object (/d; apps/v1, Kind=Deployment): errors:\n  \
         .spec.nonsense: field not declared in schema\n  \
         .spec.template.spec.containers: duplicate entries for key [name=\"a\"]"
    );
}

#[test]
fn metadata_stays_when_all_that_was_owned_of_it_goes() {
    let live =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "uid": "u"}});
    let mut config = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "annotations": {"a": "1"}}, "data": {"k": "v"}});
    let write = write("ConfigMap", "m", "t");
    let applied = apply(&live, &config, &write, false).unwrap();
    meta::remove(&mut config, &["metadata", "annotations"]);
    let again = apply(&applied, &config, &write, false).unwrap();
    assert_eq!(again["metadata"]["name"], "c");
    assert_eq!(again["metadata"]["uid"], "u");
    assert_eq!(again["metadata"].get("annotations"), None);
    assert_eq!(*fields(&again, 0), json!({"f:data": {"f:k": {}}}));
}

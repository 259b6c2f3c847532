//! Who owns the number of replicas, seen from the scale: entries of `managedFields` go there and come back.

use sampan_api::managed::{self, Write};
use sampan_api::meta::{self, at, get, items};
use sampan_api::{Status, schema};
use serde_json::{Value, json};

use crate::registry::call::Call;

const VERSION: &str = "autoscaling/v1";

/// The scale's own field, as entries name it.
fn owned() -> Value {
    json!({"f:spec": {"f:replicas": {}}})
}

/// `f:spec`, `f:replicas` … of the object.
fn marks(replicas: &[String]) -> Vec<String> {
    replicas.iter().map(|step| format!("f:{step}")).collect()
}

fn owns(entry: &Value, marks: &[String]) -> bool {
    let found = marks
        .iter()
        .fold(get(entry, "fieldsV1"), |value, mark| get(value, mark));
    !found.is_null()
}

/// Applies a scale: the object gets the entries that follow, the answer is the new scale.
pub(super) fn apply(
    call: &Call,
    object: &mut Value,
    mut scale: Value,
    config: &Value,
    replicas: &[String],
) -> Result<Value, Status> {
    let marks = marks(replicas);
    let entries = items(object, &["metadata", "managedFields"]).to_vec();
    let seen: Vec<Value> = entries
        .iter()
        .filter(|entry| owns(entry, &marks))
        .map(|entry| {
            let mut entry = entry.clone();
            entry["apiVersion"] = VERSION.into();
            entry["fieldsV1"] = owned();
            entry
        })
        .collect();
    if !seen.is_empty() {
        meta::set(&mut scale, &["metadata", "managedFields"], seen);
    }
    let write = Write {
        schema: schema::of_kind("autoscaling", "v1", "Scale"),
        manager: call.manager(),
        api_version: VERSION,
        subresource: "scale",
        reset: &["status"],
        time: "",
    };
    let force = call.options.force.unwrap_or_default();
    let applied =
        managed::apply(&scale, config, &write, force).map_err(|error| error.to_status())?;
    let after = items(&applied, &["metadata", "managedFields"]);
    let back = come_back(entries, after, &marks, &call.version.api_version());
    if back.is_empty() {
        meta::remove(object, &["metadata", "managedFields"]);
    } else {
        meta::set(object, &["metadata", "managedFields"], back);
    }
    Ok(applied)
}

/// An entry's owner, whatever version it speaks.
fn owner(entry: &Value) -> [&Value; 3] {
    ["manager", "operation", "subresource"].map(|key| get(entry, key))
}

fn come_back(before: Vec<Value>, after: &[Value], marks: &[String], version: &str) -> Vec<Value> {
    let path: Vec<&str> = std::iter::once("fieldsV1")
        .chain(marks.iter().map(String::as_str))
        .collect();
    let mut entries: Vec<Value> = before
        .into_iter()
        .map(|mut entry| {
            let kept = after.iter().any(|one| owner(one) == owner(&entry));
            if owns(&entry, marks) && !kept {
                remove(&mut entry, &path);
            }
            entry
        })
        .filter(|entry| {
            at(entry, &["fieldsV1"])
                .as_object()
                .is_some_and(|set| !set.is_empty())
        })
        .collect();
    for entry in after {
        if entries
            .iter()
            .any(|one| owner(one) == owner(entry) && owns(one, marks))
        {
            continue;
        }
        let mut entry = entry.clone();
        entry["apiVersion"] = version.into();
        entry["fieldsV1"] = json!({});
        meta::set(&mut entry, &path, json!({}));
        meta::remove(&mut entry, &["time"]);
        entries.push(entry);
    }
    entries
}

/// Takes the field away, and what is empty without it.
fn remove(entry: &mut Value, path: &[&str]) {
    meta::remove(entry, path);
    for length in (2..path.len()).rev() {
        let above = &path[..length];
        if at(entry, above)
            .as_object()
            .is_some_and(serde_json::Map::is_empty)
        {
            meta::remove(entry, above);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_and_come_back() {
        let marks = marks(&["spec".to_owned(), "replicas".to_owned()]);
        let user = json!({"manager": "user", "operation": "Apply", "apiVersion": "apps/v1",
            "fieldsV1": {"f:spec": {"f:replicas": {}, "f:selector": {}}}});
        let scaler = json!({"manager": "hpa", "operation": "Apply", "subresource": "scale", "apiVersion": VERSION,
            "fieldsV1": owned()});
        let entries = come_back(vec![user], &[scaler], &marks, "apps/v1");
        assert_eq!(
            entries[0]["fieldsV1"],
            json!({"f:spec": {"f:selector": {}}})
        );
        assert_eq!(entries[1]["apiVersion"], "apps/v1");
        assert!(owns(&entries[1], &marks));
    }
}

//! `metadata.managedFields`: who wrote which fields.
//!
//! Every write by create, update or patch moves the fields it changed to its manager's `Update`
//! entry. Maps are followed member by member; a list counts as one field.

use sampan_api::meta;
use serde_json::{Map, Value, json};

/// Who writes, through which door, and when.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    pub manager: &'a str,
    pub operation: &'a str,
    pub api_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// The time of the write as text.
    pub time: &'a str,
}

/// Members of `metadata` that nobody owns.
const UNOWNED: &[&str] = &[
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// A set of fields in the `FieldsV1` form: `{"f:spec": {"f:replicas": {}}}`.
type Fields = Map<String, Value>;

/// Renews the entries of `object` for a write that turned `old` into it.
pub fn record(object: &mut Value, old: &Value, writer: Writer<'_>) {
    let asked = meta::remove(object, &["metadata", "managedFields"]);
    // An explicitly empty list resets ownership; a missing one keeps it.
    let before = match asked {
        Some(Value::Array(entries)) if entries.is_empty() || entries == [json!({})] => Vec::new(),
        Some(Value::Array(entries)) => entries,
        _ => meta::items(old, &["metadata", "managedFields"]).to_vec(),
    };
    let changed = changed_members(object, old, true);
    let removed = removed_members(object, old, true);
    let mut entries: Vec<Value> = Vec::with_capacity(before.len() + 1);
    let mut own: Option<Value> = None;
    for mut entry in before {
        let mine = is_writer(&entry, writer);
        let Some(Value::Object(fields)) = entry.get_mut("fieldsV1") else {
            continue;
        };
        subtract(fields, &removed);
        if !mine {
            subtract(fields, &changed);
        }
        if fields.is_empty() {
            continue;
        }
        if mine {
            own = Some(entry);
        } else {
            entries.push(entry);
        }
    }
    if let Some(entry) = own_entry(own, changed, writer) {
        entries.push(entry);
    }
    sort(&mut entries);
    if !entries.is_empty() {
        meta::set(object, &["metadata", "managedFields"], entries);
    }
}

fn own_entry(own: Option<Value>, changed: Fields, writer: Writer<'_>) -> Option<Value> {
    if changed.is_empty() {
        return own;
    }
    let mut fields = match own {
        Some(mut entry) => match entry.get_mut("fieldsV1").map(Value::take) {
            Some(Value::Object(fields)) => fields,
            _ => Fields::new(),
        },
        None => Fields::new(),
    };
    unite(&mut fields, changed);
    let mut entry = json!({
        "manager": writer.manager,
        "operation": writer.operation,
        "apiVersion": writer.api_version,
        "time": writer.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    });
    if !writer.subresource.is_empty() {
        meta::set(&mut entry, &["subresource"], writer.subresource);
    }
    Some(entry)
}

fn is_writer(entry: &Value, writer: Writer<'_>) -> bool {
    meta::text(entry, &["manager"]) == writer.manager
        && meta::text(entry, &["operation"]) == writer.operation
        && meta::text(entry, &["apiVersion"]) == writer.api_version
        && meta::text(entry, &["subresource"]) == writer.subresource
}

/// Applies come first; then the older entry.
fn sort(entries: &mut [Value]) {
    entries.sort_by_cached_key(|entry| {
        let text = |field| meta::text(entry, &[field]).to_owned();
        (
            text("operation"),
            text("time"),
            text("manager"),
            text("apiVersion"),
            text("subresource"),
        )
    });
}

fn members(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object().filter(|map| !map.is_empty())
}

fn owned(key: &str, root: bool) -> bool {
    !root || !matches!(key, "kind" | "apiVersion")
}

/// Members of `new` that are not the same in `old`.
fn changed_members(new: &Value, old: &Value, root: bool) -> Fields {
    let mut fields = Fields::new();
    for (key, value) in new.as_object().into_iter().flatten() {
        if !owned(key, root) || value.is_null() {
            continue;
        }
        let before = meta::get(old, key);
        if root && key == "metadata" {
            let metadata = changed_metadata(value, before);
            if !metadata.is_empty() {
                fields.insert("f:metadata".to_owned(), Value::Object(metadata));
            }
            continue;
        }
        if value == before {
            continue;
        }
        if let Some(below) = members(value) {
            let mut inner = changed_members(&Value::Object(below.clone()), before, false);
            if !before.is_object() {
                inner.insert(".".to_owned(), json!({}));
            }
            // A struct is made of its members; only maps exist by themselves.
            if is_struct(below) {
                inner.remove(".");
            }
            if !inner.is_empty() {
                fields.insert(format!("f:{key}"), Value::Object(inner));
            }
        } else if !value.as_object().is_some_and(Map::is_empty) || before.is_null() {
            fields.insert(format!("f:{key}"), json!({}));
        }
    }
    fields
}

fn changed_metadata(new: &Value, old: &Value) -> Fields {
    let mut fields = changed_members(new, old, false);
    for key in UNOWNED {
        fields.remove(&format!("f:{key}"));
    }
    fields
}

/// Names of struct members are identifiers with other values than texts in a map; labels and the
/// like are maps of texts.
fn is_struct(map: &Map<String, Value>) -> bool {
    !map.values().all(Value::is_string)
}

/// Members of `old` that `new` has no more.
fn removed_members(new: &Value, old: &Value, root: bool) -> Fields {
    let mut fields = Fields::new();
    for (key, before) in old.as_object().into_iter().flatten() {
        if !owned(key, root) {
            continue;
        }
        match new.get(key) {
            None | Some(Value::Null) => {
                fields.insert(format!("f:{key}"), Value::Null);
            }
            Some(value) if before.is_object() => {
                let inner = removed_members(value, before, false);
                if !inner.is_empty() {
                    fields.insert(format!("f:{key}"), Value::Object(inner));
                }
            }
            Some(_) => {}
        }
    }
    fields
}

/// Takes `other` out of `fields`; `null` takes everything below.
fn subtract(fields: &mut Fields, other: &Fields) {
    for (key, below) in other {
        let Some(mine) = fields.get_mut(key) else {
            continue;
        };
        let gone = match (mine, below) {
            (_, Value::Null) => true,
            (Value::Object(mine), Value::Object(below)) if !below.is_empty() => {
                let leaf = mine.is_empty();
                subtract(mine, below);
                mine.is_empty() && !leaf
            }
            _ => true,
        };
        if gone {
            fields.remove(key);
        }
    }
}

fn unite(fields: &mut Fields, other: Fields) {
    for (key, below) in other {
        match (fields.get_mut(&key), below) {
            (Some(Value::Object(mine)), Value::Object(below)) => unite(mine, below),
            (_, below) => {
                fields.insert(key, below);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(manager: &'static str, time: &'static str) -> Writer<'static> {
        Writer {
            manager,
            operation: "Update",
            api_version: "v1",
            subresource: "",
            time,
        }
    }

    #[test]
    fn fields_move_to_who_changes_them() {
        let mut first = json!({"kind": "ConfigMap", "metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"a": "1", "b": "1"}});
        record(&mut first, &Value::Null, writer("one", "t1"));
        let entries = meta::items(&first, &["metadata", "managedFields"]);
        assert_eq!(entries.len(), 1);
        assert_eq!(
            entries[0]["fieldsV1"],
            json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}, "f:metadata": {"f:labels": {".": {}, "f:x": {}}}})
        );
        let mut second = first.clone();
        second["data"] = json!({"a": "2"});
        record(&mut second, &first, writer("two", "t2"));
        let entries = meta::items(&second, &["metadata", "managedFields"]);
        assert_eq!(entries[0]["fieldsV1"]["f:data"], json!({".": {}}));
        assert_eq!(entries[1]["fieldsV1"], json!({"f:data": {"f:a": {}}}));
        let mut third = second.clone();
        record(&mut third, &second, writer("three", "t3"));
        assert_eq!(third, second, "nothing changed, nobody is recorded");
        third["metadata"]["managedFields"] = json!([]);
        record(&mut third, &second, writer("three", "t3"));
        assert!(third["metadata"].get("managedFields").is_none());
    }
}

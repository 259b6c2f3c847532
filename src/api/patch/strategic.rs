//! Strategic merge patch: a merge patch that knows which lists merge by which key.
//!
//! Directives: `$patch: replace|delete|merge`, `$retainKeys`, `$setElementOrder/LIST`,
//! `$deleteFromPrimitiveList/LIST`. Upstream counterpart: `apimachinery/pkg/util/strategicpatch`.

use serde_json::{Map, Value};

use super::PatchError;
use crate::schema::{Schema, Shape};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder";
const DELETE: &str = "$deleteFromPrimitiveList";

type Object = Map<String, Value>;

/// Merges `patch` into `target`, both in the form of `schema`.
pub fn apply(target: &mut Value, patch: Value, schema: &Schema) -> Result<(), PatchError> {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => merge_map(target, patch, Some(schema)),
        (_, patch) => Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            type_name(&patch)
        ))),
    }
}

fn bad<T>(text: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::BadDirective(text.into()))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "map",
    }
}

/// How the schema says a member is merged.
struct Rule<'s> {
    /// The schema of the member, or of its list's elements.
    inner: Option<&'s Schema>,
    /// For lists: `Some("key")`, `Some("")` for scalars, `None` to replace.
    merge: Option<&'static str>,
    /// For structs: replace, do not merge.
    replace: bool,
}

fn rule<'s>(schema: Option<&'s Schema>, key: &str) -> Rule<'s> {
    let mut rule = Rule {
        inner: None,
        merge: None,
        replace: false,
    };
    let member = match schema.map(|schema| &schema.shape) {
        Some(Shape::Struct(structure)) => structure.field(key).map(|field| {
            rule.replace = field.replace;
            &*field.schema
        }),
        Some(Shape::Map(map)) => Some(&*map.value),
        _ => None,
    };
    match member.map(|schema| &schema.shape) {
        Some(Shape::List(list)) => {
            rule.inner = Some(&list.item);
            rule.merge = list.merge;
        }
        _ => rule.inner = member,
    }
    rule
}

fn merge_map(
    original: &mut Object,
    mut patch: Object,
    schema: Option<&Schema>,
) -> Result<(), PatchError> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            Some("replace") => {
                *original = patch;
                Ok(())
            }
            Some("delete") => {
                original.clear();
                Ok(())
            }
            _ => bad(format!(
                "unknown patch type: {} in map: {}",
                directive.as_str().unwrap_or_default(),
                go_map(&patch)
            )),
        };
    }
    retain_keys(original, &mut patch)?;
    merge_ordered_lists(original, &mut patch, schema)?;
    for (key, value) in patch {
        merge_member(original, key, value, schema)?;
    }
    Ok(())
}

/// `$retainKeys`: the original keeps only the keys named.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(directive) = patch.remove(RETAIN) else {
        return Ok(());
    };
    let wrong = || bad("invalid patch format of retainKeys");
    let Value::Array(keys) = directive else {
        return wrong();
    };
    let kept = |key: &str| keys.iter().any(|one| one.as_str() == Some(key));
    let strange = patch.iter().any(|(key, value)| {
        !value.is_null() && !key.starts_with(DELETE) && !key.starts_with(ORDER) && !kept(key)
    });
    if strange {
        return wrong();
    }
    original.retain(|key, _| kept(key));
    Ok(())
}

fn merge_member(
    original: &mut Object,
    key: String,
    mut value: Value,
    schema: Option<&Schema>,
) -> Result<(), PatchError> {
    let (key, deleting) = if key.starts_with(DELETE) {
        match key.split_once('/') {
            Some((DELETE, list)) => (list.to_owned(), true),
            _ => return bad("invalid patch format of primitive list"),
        }
    } else {
        (key, false)
    };
    if value.is_null() {
        original.remove(&key);
        return Ok(());
    }
    let take = |original: &mut Object, key: String, mut value: Value| {
        discard_nulls(&mut value);
        if remove_directives(&mut value) {
            original.insert(key, value);
        } else {
            original.remove(&key);
        }
    };
    let Some(existing) = original.get_mut(&key) else {
        if !deleting {
            take(original, key, value);
        }
        return Ok(());
    };
    let rule = rule(schema, &key);
    match (existing, &mut value) {
        (Value::Object(existing), Value::Object(patch)) => {
            let patch = std::mem::take(patch);
            if rule.replace {
                *existing = patch;
                Ok(())
            } else {
                merge_map(existing, patch, rule.inner)
            }
        }
        (Value::Array(existing), Value::Array(patch)) => {
            let patch = std::mem::take(patch);
            if deleting || rule.merge.is_some() {
                merge_list(existing, patch, &rule, deleting)
            } else {
                *existing = patch;
                Ok(())
            }
        }
        _ if deleting => Ok(()),
        _ => {
            take(original, key, value);
            Ok(())
        }
    }
}

/// Handles each `$setElementOrder/LIST` together with the patch's LIST, which is taken out.
fn merge_ordered_lists(
    original: &mut Object,
    patch: &mut Object,
    schema: Option<&Schema>,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            other => return bad_type("array", &other.unwrap_or_default()),
        };
        let Some((ORDER, list)) = directive.split_once('/') else {
            return bad("invalid patch format of setElementOrder list");
        };
        let patch_list = match patch.remove(list) {
            None | Some(Value::Null) => None,
            Some(Value::Array(items)) => Some(items),
            Some(other) => return bad_type("array", &other),
        };
        let rule = rule(schema, list);
        merge_ordered(original, list, patch_list, &order, &rule)?;
    }
    Ok(())
}

fn bad_type<T>(expected: &str, value: &Value) -> Result<T, PatchError> {
    bad(format!(
        "expected a {expected}, but received a {}",
        type_name(value)
    ))
}

fn merge_ordered(
    original: &mut Object,
    list: &str,
    patch_list: Option<Vec<Value>>,
    order: &[Value],
    rule: &Rule<'_>,
) -> Result<(), PatchError> {
    let key = rule.merge.unwrap_or_default();
    check_order(patch_list.as_deref().unwrap_or_default(), order, key)?;
    let existing = match original.get(list) {
        None | Some(Value::Null) => None,
        Some(Value::Array(items)) => Some(items.clone()),
        Some(other) => return bad_type("array", other),
    };
    let live_order = existing.clone().unwrap_or_default();
    let merged = match (existing, patch_list) {
        (None, None) => return Ok(()),
        (Some(existing), None) => existing,
        (None, Some(patch)) => {
            let mut added = Value::Array(patch);
            remove_directives(&mut added);
            match added {
                Value::Array(items) => items,
                _ => Vec::new(),
            }
        }
        (Some(mut existing), Some(patch)) => {
            if rule.merge.is_some() {
                merge_list(&mut existing, patch, rule, false)?;
                existing
            } else {
                patch
            }
        }
    };
    let ordered = enforce_order(merged, order, &live_order, key);
    original.insert(list.to_owned(), Value::Array(ordered));
    Ok(())
}

/// The patch's elements must appear in the order list, in the same order.
fn check_order(patch: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted = patch
        .iter()
        .filter(|item| item.get(PATCH).is_none())
        .peekable();
    for element in order {
        match wanted.peek() {
            Some(item) if same(item, element, key) => {
                wanted.next();
            }
            Some(_) => {}
            None => break,
        }
    }
    if wanted.peek().is_none() {
        return Ok(());
    }
    bad(format!(
        "The order in patch list:\n{}\n doesn't match {ORDER} list:\n{}\n",
        go_value(&Value::Array(patch.to_vec())),
        go_value(&Value::Array(order.to_vec())),
    ))
}

/// Whether two elements have the same key, or are the same scalar.
fn same(left: &Value, right: &Value, key: &str) -> bool {
    if key.is_empty() {
        return left == right;
    }
    matches!((left.get(key), right.get(key)), (Some(a), Some(b)) if a == b)
}

fn merge_list(
    original: &mut Vec<Value>,
    patch: Vec<Value>,
    rule: &Rule<'_>,
    deleting: bool,
) -> Result<(), PatchError> {
    if original.is_empty() && patch.is_empty() {
        return Ok(());
    }
    let of_maps = original
        .iter()
        .chain(&patch)
        .next()
        .is_some_and(Value::is_object);
    if let Some(odd) = original
        .iter()
        .chain(&patch)
        .find(|item| item.is_object() != of_maps || item.is_array())
    {
        return if odd.is_array() {
            bad("lists of lists are not supported")
        } else {
            bad(format!(
                "list element types are not identical: {}",
                type_name(odd)
            ))
        };
    }
    let live_order = original.clone();
    let (merged, order) = if of_maps {
        merge_maps(std::mem::take(original), patch, rule)?
    } else if deleting {
        original.retain(|item| !patch.contains(item));
        return Ok(());
    } else {
        let mut merged: Vec<Value> = Vec::new();
        for item in std::mem::take(original).into_iter().chain(patch.clone()) {
            if !merged.contains(&item) {
                merged.push(item);
            }
        }
        (merged, patch)
    };
    let key = if of_maps {
        rule.merge.unwrap_or_default()
    } else {
        ""
    };
    *original = enforce_order(merged, &order, &live_order, key);
    Ok(())
}

/// Merges lists of maps by key; the second result are the patch's elements without directives.
fn merge_maps(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    rule: &Rule<'_>,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let key = match rule.merge {
        Some(key) if !key.is_empty() => key,
        _ => return bad("cannot merge lists without merge key"),
    };
    let no_key = |item: &Value| {
        bad(format!(
            "map: {} does not contain declared merge key: {key}",
            go_value(item)
        ))
    };
    let mut plain = Vec::new();
    let mut replace = false;
    for item in patch {
        match item
            .get(PATCH)
            .map(|directive| directive.as_str().unwrap_or_default())
        {
            None => plain.push(item),
            Some("delete") => match item.get(key) {
                Some(wanted) => original.retain(|one| one.get(key) != Some(wanted)),
                None => return no_key(&item),
            },
            Some("replace") => replace = true,
            Some("merge") => return bad("merging lists cannot yet be specified in the patch"),
            Some(other) => {
                return bad(format!(
                    "unknown patch type: {other} in map: {}",
                    go_value(&item)
                ));
            }
        }
    }
    if replace {
        return Ok((plain, Vec::new()));
    }
    for item in &plain {
        let Some(wanted) = item.get(key) else {
            return no_key(item);
        };
        let found = original
            .iter_mut()
            .find(|one| one.get(key) == Some(wanted))
            .and_then(Value::as_object_mut);
        match (found, item) {
            (Some(found), Value::Object(item)) => merge_map(found, item.clone(), rule.inner)?,
            _ => original.push(item.clone()),
        }
    }
    Ok((original, plain))
}

/// Elements named in `order` come in that order; the others keep their place relative to them as
/// far as `live_order` tells.
fn enforce_order(
    merged: Vec<Value>,
    order: &[Value],
    live_order: &[Value],
    key: &str,
) -> Vec<Value> {
    let index = |list: &[Value], item: &Value| list.iter().position(|one| same(one, item, key));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = merged
        .into_iter()
        .partition(|item| index(order, item).is_some());
    named.sort_by_key(|item| index(order, item));
    others.sort_by_key(|item| index(live_order, item).unwrap_or(usize::MAX));
    let mut result = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let before = match (others.peek(), named.peek()) {
            (Some(other), Some(name)) => matches!(
                (index(live_order, other), index(live_order, name)),
                (Some(left), Some(right)) if left < right
            ),
            (Some(_), None) => true,
            (None, _) => false,
        };
        match if before { others.next() } else { named.next() } {
            Some(item) => result.push(item),
            None => return result,
        }
    }
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, member| !member.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// Takes directives out of a value that is taken over as it is; false if the value itself is one.
fn remove_directives(value: &mut Value) -> bool {
    match value {
        Value::Object(map) => {
            if map.contains_key(PATCH) {
                return false;
            }
            map.retain(|_, member| remove_directives(member));
            true
        }
        Value::Array(items) => {
            items.retain_mut(remove_directives);
            true
        }
        _ => true,
    }
}

/// A value as Go's `%v` prints it.
fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_value).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => go_map(map),
        other => other.to_string(),
    }
}

fn go_map(map: &Object) -> String {
    let members: Vec<String> = map
        .iter()
        .map(|(key, value)| format!("{key}:{}", go_value(value)))
        .collect();
    format!("map[{}]", members.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::schema::of_kind;
    use serde_json::json;

    fn patch_pod(mut spec: Value, patch: Value) -> Result<Value, PatchError> {
        let pod = of_kind("", "v1", "Pod").unwrap();
        let schema = &pod.field("spec").unwrap().schema;
        apply(&mut spec, patch, schema).map(|()| spec)
    }

    #[test]
    fn lists_merge_by_key_and_keep_order() {
        let spec =
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]});
        assert_eq!(
            patch_pod(
                spec.clone(),
                json!({"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]})
            )
            .unwrap(),
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}]})
        );
        assert_eq!(
            patch_pod(
                spec.clone(),
                json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                    "containers": [{"name": "c", "image": "3"}, {"name": "b", "$patch": "delete"}]})
            )
            .unwrap(),
            json!({"containers": [{"name": "c", "image": "3"}, {"name": "a", "image": "1"}]})
        );
        assert_eq!(
            patch_pod(spec, json!({"containers": [{"image": "x"}]})).unwrap_err(),
            PatchError::BadDirective(
                "map: map[image:x] does not contain declared merge key: name".to_owned()
            )
        );
    }

    #[test]
    fn retain_keys_and_nulls() {
        let spec = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        assert_eq!(
            patch_pod(
                spec,
                json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/h", "type": null}}]})
            )
            .unwrap(),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/h"}}]})
        );
    }

    #[test]
    fn primitive_lists() {
        let mut meta = json!({"finalizers": ["a", "b"]});
        let pod = of_kind("", "v1", "Pod").unwrap();
        let schema = &pod.field("metadata").unwrap().schema;
        apply(
            &mut meta,
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}),
            schema,
        )
        .unwrap();
        // What is new comes first, as with upstream.
        assert_eq!(meta, json!({"finalizers": ["c", "b"]}));
    }
}

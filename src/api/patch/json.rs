//! JSON patch (RFC 6902), with negative indices as upstream's library allows them.

use serde_json::Value;

use super::{MAX_COPIED, MAX_DEPTH, MAX_OPERATIONS, PatchError};
use crate::meta;

/// Applies all operations in order.
pub fn apply(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Some(operations) = patch.as_array() else {
        return Err(PatchError::Malformed(
            "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp".to_owned(),
        ));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations(operations.len()));
    }
    let mut copied = 0;
    operations
        .iter()
        .try_for_each(|operation| apply_one(target, operation, &mut copied))
}

/// Few copies of copies make any size; what they add up to is limited.
fn count_copy(value: &Value, copied: &mut usize) -> Result<(), PatchError> {
    *copied += value.to_string().len();
    if *copied > MAX_COPIED {
        return unfitting(format!(
            "Unable to copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
        ));
    }
    Ok(())
}

/// Whoever walks a tree does so by recursion, so it must not grow deep.
fn check_depth(path: &str, value: &Value) -> Result<(), PatchError> {
    if path.matches('/').count() + meta::depth(value) > MAX_DEPTH {
        return unfitting(format!(
            "Unable to put a value there, the result is deeper than {MAX_DEPTH} levels"
        ));
    }
    Ok(())
}

fn unfitting<T>(text: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Unfitting(text.into()))
}

fn text<'a>(operation: &'a Value, name: &str) -> Result<&'a str, PatchError> {
    match operation.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(PatchError::Malformed(format!(
            "json: cannot unmarshal value into Go struct field jsonPatchOp.{name} of type string"
        ))),
        None => unfitting(format!("missing {name}")),
    }
}

fn apply_one(target: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), PatchError> {
    if !operation.is_object() {
        return Err(PatchError::Malformed(
            "json: cannot unmarshal value into Go value of type handlers.jsonPatchOp".to_owned(),
        ));
    }
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    let path = text(operation, "path")?;
    match text(operation, "op")? {
        "add" => add(target, path, value()),
        "remove" => remove(target, path).map(drop),
        "replace" => {
            let value = value();
            check_depth(path, &value)?;
            replace(target, path, value)
        }
        "move" => {
            let moved = remove(target, text(operation, "from")?)?;
            add(target, path, moved)
        }
        "copy" => {
            let source = find(target, text(operation, "from")?)?;
            count_copy(source, copied)?;
            let copy = source.clone();
            add(target, path, copy)
        }
        "test" => test(target, path, &value()),
        other => unfitting(format!("Unexpected kind: {other}")),
    }
}

fn test(target: &Value, path: &str, expected: &Value) -> Result<(), PatchError> {
    let found = match find(target, path) {
        Ok(found) => found,
        Err(_) if expected.is_null() => return Ok(()),
        Err(error) => return Err(error),
    };
    if equal(found, expected) {
        Ok(())
    } else {
        unfitting(format!("testing value {path} failed: test failed"))
    }
}

/// Equality that does not tell `1` from `1.0`.
fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => left == right,
    }
}

/// The unescaped steps of a pointer.
fn steps(path: &str) -> Result<Vec<String>, PatchError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let Some(rest) = path.strip_prefix('/') else {
        return unfitting(format!("path {path} does not begin with a slash"));
    };
    Ok(rest
        .split('/')
        .map(|step| step.replace("~1", "/").replace("~0", "~"))
        .collect())
}

/// The position a step means in a list, counted from the end if negative.
fn position(step: &str, length: usize) -> Option<usize> {
    if let Some(back) = step.strip_prefix('-') {
        let back: usize = back.parse().ok()?;
        return length.checked_sub(back).filter(|_| back > 0);
    }
    step.parse().ok()
}

fn child_mut<'a>(value: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(map) => map.get_mut(step),
        Value::Array(items) => {
            let index = position(step, items.len())?;
            items.get_mut(index)
        }
        _ => None,
    }
}

fn child<'a>(value: &'a Value, step: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(step),
        Value::Array(items) => items.get(position(step, items.len())?),
        _ => None,
    }
}

fn missing(path: &str) -> PatchError {
    PatchError::Unfitting(format!("path {path} does not exist: missing value"))
}

fn find<'a>(target: &'a Value, path: &str) -> Result<&'a Value, PatchError> {
    steps(path)?
        .iter()
        .try_fold(target, |value, step| child(value, step))
        .ok_or_else(|| missing(path))
}

/// The container that holds a path's last step.
fn parent_mut<'a>(
    target: &'a mut Value,
    path: &str,
) -> Result<(&'a mut Value, String), PatchError> {
    let mut steps = steps(path)?;
    let Some(last) = steps.pop() else {
        return unfitting("the whole document cannot be changed");
    };
    let parent = steps
        .iter()
        .try_fold(target, |value, step| child_mut(value, step))
        .ok_or_else(|| missing(path))?;
    Ok((parent, last))
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    check_depth(path, &value)?;
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let (parent, last) = parent_mut(target, path)?;
    match parent {
        Value::Object(map) => {
            map.insert(last, value);
            Ok(())
        }
        Value::Array(items) => {
            let index = match last.as_str() {
                "-" => Some(items.len()),
                step if step.starts_with('-') => position(step, items.len() + 1),
                step => position(step, items.len()),
            };
            match index.filter(|&index| index <= items.len()) {
                Some(index) => {
                    items.insert(index, value);
                    Ok(())
                }
                None => unfitting(format!("Unable to access invalid index: {last}")),
            }
        }
        _ => Err(missing(path)),
    }
}

/// A member that is not there is added, as upstream's library does; a place in a list must exist.
fn replace(target: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let (parent, last) = parent_mut(target, path)?;
    if let Value::Object(map) = parent {
        map.insert(last, value);
        return Ok(());
    }
    let slot = child_mut(parent, &last).ok_or_else(|| missing(path))?;
    *slot = value;
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, PatchError> {
    let (parent, last) = parent_mut(target, path)?;
    let removed = match parent {
        Value::Object(map) => map.remove(&last),
        Value::Array(items) => position(&last, items.len())
            .filter(|&index| index < items.len())
            .map(|index| items.remove(index)),
        _ => None,
    };
    removed.ok_or_else(|| missing(path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn patched(mut target: Value, patch: Value) -> Result<Value, PatchError> {
        apply(&mut target, &patch).map(|()| target)
    }

    #[test]
    fn operations() {
        let target = json!({"a": {"b/c": 1}, "l": [1, 2, 3]});
        let result = patched(
            target,
            json!([
                {"op": "test", "path": "/a/b~1c", "value": 1.0},
                {"op": "replace", "path": "/a/b~1c", "value": 5},
                {"op": "add", "path": "/l/-", "value": 4},
                {"op": "add", "path": "/l/0", "value": 0},
                {"op": "remove", "path": "/l/1"},
                {"op": "move", "from": "/a", "path": "/x"},
                {"op": "copy", "from": "/l/-1", "path": "/last"},
            ]),
        );
        assert_eq!(
            result.unwrap(),
            json!({"x": {"b/c": 5}, "l": [0, 2, 3, 4], "last": 4})
        );
    }

    #[test]
    fn copies_are_limited_in_size_and_depth() {
        let double = json!({"op": "copy", "from": "/l", "path": "/l/-"});
        let refused = |target, patch| patched(target, patch).unwrap_err().to_string();
        // Each copy doubles what is there.
        let text = refused(
            json!({"l": ["x".repeat(1024)]}),
            json!(vec![double.clone(); 40]),
        );
        assert!(
            text.contains("accumulated size increase of copy is"),
            "{text}"
        );
        assert!(text.ends_with("exceeding the limit 3145728"), "{text}");
        // Each copy goes as deep as all before it together.
        let mut deep = Vec::new();
        let mut path = String::new();
        for _ in 0..12 {
            deep.push(json!({"op": "copy", "from": "/a", "path": format!("/a{path}/b")}));
            path = format!("{path}/b{path}");
        }
        let text = refused(json!({"a": {}}), json!(deep));
        assert!(text.ends_with("deeper than 100 levels"), "{text}");
        let nest = |depth| (0..depth).fold(json!({}), |below, _| json!({"b": below}));
        for op in ["add", "replace"] {
            let patch = json!([{"op": op, "path": "/a", "value": nest(100)}]);
            assert!(refused(json!({"a": 1}), patch).ends_with("100 levels"));
        }
        let fits = json!([{"op": "add", "path": "/a", "value": nest(90)}, {"op": "copy", "from": "/a", "path": "/c"}]);
        patched(json!({}), fits).unwrap();
    }

    #[test]
    fn faults() {
        let unfitting = |patch| {
            matches!(
                patched(json!({"a": [1]}), patch),
                Err(PatchError::Unfitting(_))
            )
        };
        assert!(unfitting(json!([{"op": "remove", "path": "/b"}])));
        assert!(unfitting(
            json!([{"op": "replace", "path": "/b/c", "value": 1}])
        ));
        assert!(unfitting(
            json!([{"op": "add", "path": "/a/5", "value": 1}])
        ));
        assert!(unfitting(
            json!([{"op": "add", "path": "/b/c", "value": 1}])
        ));
        assert!(unfitting(
            json!([{"op": "test", "path": "/a/0", "value": 2}])
        ));
        assert!(unfitting(json!([{"op": "increment", "path": "/a"}])));
        assert!(matches!(
            patched(json!({}), json!({"op": "add"})),
            Err(PatchError::Malformed(_))
        ));
    }
}

//! Objects as trees of fields: comparing, merging, listing and removing fields, guided by a schema.

use serde_json::{Map, Value};

use super::set::{Element, Set};
use crate::schema::{List, ListKind, Schema, Shape};

/// A value that does not have its type, with every place where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeError(pub Vec<(String, String)>);

impl std::fmt::Display for TypeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let line = |(path, text): &(String, String)| {
            if path.is_empty() {
                text.clone()
            } else {
                format!("{path}: {text}")
            }
        };
        match self.0.as_slice() {
            [one] => f.write_str(&line(one)),
            many => {
                f.write_str("errors:")?;
                many.iter()
                    .try_for_each(|one| write!(f, "\n  {}", line(one)))
            }
        }
    }
}

/// How a value is taken apart.
enum Form<'s> {
    /// One field, whatever is in it.
    Leaf,
    /// A struct (with what is known of its members) or map.
    Members(Option<&'s Schema>),
    /// A list whose elements have a name.
    Elements(&'s List),
}

fn form<'s>(schema: Option<&'s Schema>, value: &Value) -> Form<'s> {
    let deduced = || match value {
        Value::Object(_) => Form::Members(None),
        _ => Form::Leaf,
    };
    let Some(schema) = schema else {
        return deduced();
    };
    match &schema.shape {
        Shape::Struct(structure) if !structure.atomic => Form::Members(Some(schema)),
        Shape::Map(map) if !map.atomic => Form::Members(Some(schema)),
        Shape::List(list) if list.kind != ListKind::Atomic => Form::Elements(list),
        Shape::Any | Shape::Raw | Shape::Fields | Shape::SchemaOr(..) => deduced(),
        _ => Form::Leaf,
    }
}

/// What is known of a member: its schema, or `None` if anything goes. The second says whether it is
/// declared by name.
fn member<'s>(schema: Option<&'s Schema>, key: &str) -> (Option<&'s Schema>, bool) {
    match schema.map(|schema| &schema.shape) {
        Some(Shape::Struct(structure)) => match structure.field(key) {
            Some(field) => (Some(&field.schema), true),
            None => (structure.additional.as_deref(), false),
        },
        Some(Shape::Map(map)) => (Some(&map.value), false),
        _ => (None, false),
    }
}

fn is_declared(schema: Option<&Schema>, key: &str) -> bool {
    match schema.map(|schema| &schema.shape) {
        Some(Shape::Struct(structure)) => {
            structure.preserve_unknown
                || structure.additional.is_some()
                || structure.field(key).is_some()
        }
        _ => true,
    }
}

fn members(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn elements(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// The name of a list's element.
fn element_of(list: &List, item: &Value) -> Result<Element, String> {
    if list.kind == ListKind::Set {
        return match item {
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".into())
            }
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".into())
            }
            Value::Array(_) => {
                Err("associative list without keys has an element that's a list type".into())
            }
            scalar => Ok(Element::Value(scalar.to_string())),
        };
    }
    let Some(map) = item.as_object() else {
        return Err(if item.is_null() {
            "associative list with keys may not have a null element".to_owned()
        } else {
            "associative list with keys may not have non-map elements".to_owned()
        });
    };
    let mut key = Map::new();
    for name in list.keys.iter() {
        let value = map.get(name.as_ref()).filter(|value| !value.is_null());
        let value = value.cloned().or_else(|| key_default(list, name));
        match value {
            Some(value) => {
                key.insert(name.clone().into_owned(), value);
            }
            None if list.keys.len() == 1 => {
                return Err(format!(
                    "associative list with keys has an element that omits key field {name:?} (and doesn't have default value)"
                ));
            }
            None => {}
        }
    }
    Ok(Element::Key(Value::Object(key).to_string()))
}

fn key_default(list: &List, name: &str) -> Option<Value> {
    let field = list.item.field(name)?;
    field.default.value().or_else(|| {
        let zero = field.schema.zero();
        (field.required && !zero.is_null()).then_some(zero)
    })
}

/// Elements by name, in order; `None` as name where an element has none.
fn named<'v>(list: &List, items: &'v [Value]) -> Vec<(Element, &'v Value)> {
    items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            let element = element_of(list, item).unwrap_or(Element::Index(index));
            (element, item)
        })
        .collect()
}

#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Added or with another value.
    pub(super) changed: Set,
    pub(super) removed: Set,
}

/// What is different in `new`.
pub(super) fn compare(schema: Option<&Schema>, old: &Value, new: &Value) -> Comparison {
    let mut comparison = Comparison::default();
    walk(
        schema,
        Some(old),
        Some(new),
        &mut Vec::new(),
        &mut comparison,
    );
    comparison
}

fn walk(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    comparison: &mut Comparison,
) {
    let Some(shown) = new.filter(|new| !new.is_null()).or(old).or(new) else {
        return;
    };
    let leaf = |comparison: &mut Comparison, path: &[Element]| match (old, new) {
        (_, None) => comparison.removed.insert(path),
        (Some(old), Some(new)) if old == new => {}
        _ => comparison.changed.insert(path),
    };
    if is_empty(old) && is_empty(new) {
        return leaf(comparison, path);
    }
    // A value that changed its kind is compared as a whole.
    let different = matches!((old, new), (Some(old), Some(new))
        if !old.is_null() && !new.is_null()
            && (old.is_object() != new.is_object() || old.is_array() != new.is_array()));
    if different {
        return leaf(comparison, path);
    }
    match form(schema, shown) {
        Form::Leaf => return leaf(comparison, path),
        Form::Members(schema) => {
            if old == new && old.is_some() {
                return;
            }
            walk_members(schema, members(old), members(new), path, comparison);
        }
        Form::Elements(list) => {
            if old == new && old.is_some() {
                return;
            }
            walk_elements(list, elements(old), elements(new), path, comparison);
        }
    }
    if old.is_none() {
        comparison.changed.insert(path);
    } else if new.is_none() {
        comparison.removed.insert(path);
    }
}

fn walk_members(
    schema: Option<&Schema>,
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    path: &mut Vec<Element>,
    comparison: &mut Comparison,
) {
    let none = Map::new();
    let (old, new) = (old.unwrap_or(&none), new.unwrap_or(&none));
    for key in new
        .keys()
        .chain(old.keys().filter(|key| !new.contains_key(*key)))
    {
        let (inner, _) = member(schema, key);
        path.push(Element::field(key));
        walk(inner, old.get(key), new.get(key), path, comparison);
        path.pop();
    }
}

fn walk_elements(
    list: &List,
    old: &[Value],
    new: &[Value],
    path: &mut Vec<Element>,
    comparison: &mut Comparison,
) {
    let (old, new) = (named(list, old), named(list, new));
    let find = |items: &[(Element, &Value)], element: &Element| {
        items.iter().position(|(one, _)| one == element)
    };
    for (element, item) in &new {
        let before = find(&old, element).map(|index| old[index].1);
        path.push(element.clone());
        walk(Some(&list.item), before, Some(item), path, comparison);
        path.pop();
    }
    for (element, item) in &old {
        if find(&new, element).is_none() {
            path.push(element.clone());
            walk(Some(&list.item), Some(item), None, path, comparison);
            path.pop();
        }
    }
}

/// The fields a configuration names.
pub(super) fn to_set(schema: Option<&Schema>, value: &Value) -> Set {
    match form(schema, value) {
        Form::Leaf => Set::default(),
        Form::Members(schema) => {
            let mut set = Set::default();
            for (key, inner) in members(Some(value)).into_iter().flatten() {
                let (inner_schema, by_name) = member(schema, key);
                let below = to_set(inner_schema, inner);
                let whole = is_empty(Some(inner)) && !inner.is_array()
                    || !by_name
                    || matches!(form(inner_schema, inner), Form::Leaf);
                set.put(Element::field(key), whole, below);
            }
            set
        }
        Form::Elements(list) => {
            let mut set = Set::default();
            for (element, item) in named(list, elements(Some(value))) {
                let below = to_set(Some(&list.item), item);
                set.put(element, true, below);
            }
            set
        }
    }
}

/// `config` laid over `live`: members and named elements merge, everything else is replaced.
pub(super) fn merge(schema: Option<&Schema>, live: &Value, config: &Value) -> Value {
    if config.is_null() {
        return Value::Null;
    }
    match form(schema, config) {
        Form::Members(schema) if live.is_object() && config.is_object() => {
            let mut merged = live.as_object().cloned().unwrap_or_default();
            for (key, value) in members(Some(config)).into_iter().flatten() {
                let (inner, _) = member(schema, key);
                let value = match merged.get(key) {
                    Some(before) => merge(inner, before, value),
                    None => value.clone(),
                };
                merged.insert(key.clone(), value);
            }
            Value::Object(merged)
        }
        Form::Elements(list) if live.is_array() && config.is_array() => Value::Array(
            merge_elements(list, elements(Some(live)), elements(Some(config))),
        ),
        _ => config.clone(),
    }
}

/// Elements that both have keep the order of the configuration; the live ones stay between them.
fn merge_elements(list: &List, live: &[Value], config: &[Value]) -> Vec<Value> {
    let (live, config) = (named(list, live), named(list, config));
    let in_live = |element: &Element| live.iter().find(|(one, _)| one == element);
    let in_config = |element: &Element| config.iter().any(|(one, _)| one == element);
    let combined = |element: &Element, item: &Value| match in_live(element) {
        Some((_, before)) => merge(Some(&list.item), before, item),
        None => item.clone(),
    };
    let mut shared = config
        .iter()
        .map(|(element, _)| element)
        .filter(|element| in_live(element).is_some())
        .peekable();
    let mut merged: Vec<Value> = Vec::with_capacity(live.len().max(config.len()));
    let (mut left, mut right) = (0, 0);
    let mut done: Vec<&Element> = Vec::new();
    while left < live.len() || right < config.len() {
        if let (Some((element, _)), Some((wanted, item))) = (live.get(left), config.get(right)) {
            if element == wanted {
                merged.push(combined(wanted, item));
                done.push(wanted);
                left += 1;
                right += 1;
                shared.next();
                continue;
            }
            if in_config(element) && shared.peek().is_some_and(|next| *next != element) {
                left += 1;
                continue;
            }
        }
        if let Some((element, item)) = live.get(left) {
            if !in_config(element) {
                merged.push((*item).clone());
                left += 1;
                continue;
            }
            if done.contains(&element) {
                left += 1;
            }
        }
        if let Some((element, item)) = config.get(right) {
            merged.push(combined(element, item));
            done.push(element);
            right += 1;
            if shared.peek().is_some_and(|next| *next == element) {
                shared.next();
            }
        }
    }
    merged
}

/// `value` without the fields of `gone`.
pub(super) fn remove(schema: Option<&Schema>, value: &Value, gone: &Set) -> Value {
    if gone.is_empty() {
        return value.clone();
    }
    match form(schema, value) {
        Form::Leaf => value.clone(),
        Form::Members(schema) => {
            let Some(map) = value.as_object() else {
                return value.clone();
            };
            let mut kept = Map::new();
            for (key, inner) in map {
                let element = Element::field(key);
                if gone.has(&element) {
                    continue;
                }
                let (inner_schema, _) = member(schema, key);
                let inner = match gone.below(&element) {
                    Some(below) => remove(inner_schema, inner, below),
                    None => inner.clone(),
                };
                kept.insert(key.clone(), inner);
            }
            Value::Object(kept)
        }
        Form::Elements(list) => {
            let kept = named(list, elements(Some(value)))
                .into_iter()
                .filter(|(element, _)| !gone.has(element))
                .map(|(element, item)| match gone.below(&element) {
                    Some(below) => remove(Some(&list.item), item, below),
                    None => item.clone(),
                })
                .collect();
            Value::Array(kept)
        }
    }
}

/// The set with every declared field on the way to a member made a member itself.
pub(super) fn with_named_fields(schema: Option<&Schema>, set: &Set) -> Set {
    let mut result = Set::default();
    for (element, is_member, below) in set.iter() {
        let (inner, by_name) = match element {
            Element::Field(name) => member(schema, name),
            _ => match schema.map(|schema| &schema.shape) {
                Some(Shape::List(list)) => (Some(&*list.item), false),
                _ => (None, false),
            },
        };
        let below = with_named_fields(inner, below);
        result.put(element.clone(), is_member || by_name, below);
    }
    result
}

/// Checks a configuration against its type.
pub(super) fn validate(schema: Option<&Schema>, value: &Value) -> Result<(), TypeError> {
    let mut errors = Vec::new();
    check(schema, value, "", &mut errors);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(TypeError(errors))
    }
}

fn check(schema: Option<&Schema>, value: &Value, path: &str, errors: &mut Vec<(String, String)>) {
    let Some(schema) = schema else { return };
    if value.is_null() {
        return;
    }
    let mut wrong = |text: String| errors.push((path.to_owned(), text));
    match &schema.shape {
        Shape::Struct(_) | Shape::Map(_) => match value.as_object() {
            Some(map) => check_members(schema, map, path, errors),
            None => wrong(format!("expected map, got {}", shown(value))),
        },
        Shape::List(list) => match value.as_array() {
            Some(items) => check_elements(list, items, path, errors),
            None => wrong(format!("expected list, got {}", shown(value))),
        },
        Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime => {
            if !value.is_string() {
                wrong(format!("expected string, got {}", shown(value)));
            }
        }
        Shape::Boolean => {
            if !value.is_boolean() {
                wrong(format!("expected boolean, got {}", shown(value)));
            }
        }
        Shape::Int32 | Shape::Int64 | Shape::Double => {
            if !value.is_number() {
                wrong(format!(
                    "expected numeric (int or float), got {}",
                    go_type(value)
                ));
            }
        }
        Shape::Quantity | Shape::IntOrString => {
            if value.is_object() || value.is_array() {
                wrong(format!("expected any scalar, got {}", shown(value)));
            }
        }
        _ => {}
    }
}

/// A value as upstream's library prints it in its messages.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("&{{{text}}}"),
        other => format!("&{{{other}}}"),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
        Value::Number(_) => "int64",
        Value::Null => "<nil>",
    }
}

fn check_members(
    schema: &Schema,
    map: &Map<String, Value>,
    path: &str,
    errors: &mut Vec<(String, String)>,
) {
    for (key, value) in map {
        let path = format!("{path}.{key}");
        if is_declared(Some(schema), key) {
            check(member(Some(schema), key).0, value, &path, errors);
        } else {
            errors.push((path, "field not declared in schema".to_owned()));
        }
    }
}

fn check_elements(list: &List, items: &[Value], path: &str, errors: &mut Vec<(String, String)>) {
    let mut seen: Vec<Element> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let element = if list.kind == ListKind::Atomic {
            Element::Index(index)
        } else {
            match element_of(list, item) {
                Ok(element) => element,
                Err(why) => {
                    errors.push((path.to_owned(), format!("element {index}: {why}")));
                    return;
                }
            }
        };
        if seen.contains(&element) {
            errors.push((
                path.to_owned(),
                format!("duplicate entries for key {element}"),
            ));
        }
        check(Some(&list.item), item, &format!("{path}{element}"), errors);
        seen.push(element);
    }
}

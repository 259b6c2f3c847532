//! Lists and sets.

use std::cmp::Ordering;

use super::super::eval::{Outcome, error, no_overload};
use super::super::looping::sorted;
use super::super::value::Value;

/// The longest list that `lists.range` makes.
const RANGE: i64 = 10_000;

pub(super) fn call(name: &str, values: &[Value]) -> Option<Outcome> {
    Some(match (name, values) {
        ("lists.range", [Value::Int(to)]) if *to <= RANGE => {
            Ok(Value::list((0..*to).map(Value::Int).collect()))
        }
        ("lists.range", [Value::Int(_)]) => error("lists.range: too long"),
        ("sets.contains", [Value::List(a), Value::List(b)]) => truth(is_within(b, a)),
        ("sets.equivalent", [Value::List(a), Value::List(b)]) => {
            truth(is_within(a, b) && is_within(b, a))
        }
        ("sets.intersects", [Value::List(a), Value::List(b)]) => {
            truth(a.iter().any(|item| b.contains(item)))
        }
        (_, [Value::List(items), rest @ ..]) => return on_list(name, items, rest),
        _ => return None,
    })
}

fn truth(value: bool) -> Outcome {
    Ok(Value::Bool(value))
}

fn is_within(part: &[Value], whole: &[Value]) -> bool {
    part.iter().all(|item| whole.contains(item))
}

fn on_list(name: &str, items: &[Value], rest: &[Value]) -> Option<Outcome> {
    let position = |at: Option<usize>| {
        let at = at.and_then(|at| i64::try_from(at).ok());
        Ok(Value::Int(at.unwrap_or(-1)))
    };
    let optional = |item: Option<&Value>| Ok(Value::Optional(item.cloned().map(Box::new)));
    Some(match (name, rest) {
        ("isSorted", []) => {
            let ordered = |two: &[Value]| two[0].order(&two[1]).map(Ordering::is_le);
            match items.windows(2).map(ordered).collect::<Option<Vec<bool>>>() {
                Some(all) => truth(all.into_iter().all(|one| one)),
                None => no_overload(),
            }
        }
        ("sum", []) => sum(items),
        ("min", []) => extreme(items, Ordering::Less),
        ("max", []) => extreme(items, Ordering::Greater),
        ("indexOf", [item]) => position(items.iter().position(|one| one == item)),
        ("lastIndexOf", [item]) => position(items.iter().rposition(|one| one == item)),
        ("slice", [Value::Int(from), Value::Int(to)]) => {
            let range = usize::try_from(*from).ok().zip(usize::try_from(*to).ok());
            match range.and_then(|(from, to)| items.get(from..to)) {
                Some(part) => Ok(Value::list(part.to_vec())),
                None => error(format!(
                    "cannot slice({from}, {to}), list length: {}",
                    items.len()
                )),
            }
        }
        ("flatten", []) => Ok(Value::list(flat(items, 1))),
        ("flatten", [Value::Int(depth)]) => match usize::try_from(*depth) {
            Ok(depth) => Ok(Value::list(flat(items, depth.min(64)))),
            Err(_) => error("level must be non-negative"),
        },
        ("distinct", []) => {
            let mut seen: Vec<Value> = Vec::new();
            for item in items {
                if !seen.contains(item) {
                    seen.push(item.clone());
                }
            }
            Ok(Value::list(seen))
        }
        ("reverse", []) => Ok(Value::list(items.iter().rev().cloned().collect())),
        ("sort", []) => sorted(items.to_vec(), items.to_vec()),
        ("first", []) => optional(items.first()),
        ("last", []) => optional(items.last()),
        _ => return None,
    })
}

fn flat(items: &[Value], depth: usize) -> Vec<Value> {
    let mut all = Vec::new();
    for item in items {
        match item {
            Value::List(inner) if depth > 0 => all.extend(flat(inner, depth - 1)),
            other => all.push(other.clone()),
        }
    }
    all
}

fn extreme(items: &[Value], wanted: Ordering) -> Outcome {
    let Some(mut best) = items.first() else {
        return error("min/max called on empty list");
    };
    for item in items {
        match item.order(best) {
            Some(order) if order == wanted => best = item,
            Some(_) => {}
            None => return no_overload(),
        }
    }
    Ok(best.clone())
}

fn sum(items: &[Value]) -> Outcome {
    let mut total: Option<Value> = None;
    for item in items {
        total = Some(match (total, item) {
            (None, Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_)) => {
                item.clone()
            }
            (Some(Value::Int(a)), Value::Int(b)) => match a.checked_add(*b) {
                Some(sum) => Value::Int(sum),
                None => return error("integer overflow"),
            },
            (Some(Value::Uint(a)), Value::Uint(b)) => match a.checked_add(*b) {
                Some(sum) => Value::Uint(sum),
                None => return error("unsigned integer overflow"),
            },
            (Some(Value::Double(a)), Value::Double(b)) => Value::Double(a + b),
            (Some(Value::Duration(a)), Value::Duration(b)) => match a.checked_add(*b) {
                Some(sum) => Value::Duration(sum),
                None => return error("integer overflow"),
            },
            _ => return no_overload(),
        });
    }
    Ok(total.unwrap_or(Value::Int(0)))
}

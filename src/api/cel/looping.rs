//! Loops: what the macros over lists and maps become.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::ast::{Fold, Loop};
use super::eval::{Eval, Failure, Outcome, Scope, error, no_overload};
use super::value::{Key, Value};

/// What a loop goes over: pairs of index or key, and element, made one at a time.
fn pairs(range: &Value) -> Result<Box<dyn Iterator<Item = (Value, Value)> + '_>, Failure> {
    match range {
        Value::List(items) => Ok(Box::new((0..).map(Value::Int).zip(items.iter().cloned()))),
        Value::Map(map) => Ok(Box::new(
            map.iter().map(|(key, value)| (key.value(), value.clone())),
        )),
        _ => no_overload(),
    }
}

pub(super) fn run(eval: &mut Eval<'_>, inner: &Loop, scope: &Scope<'_>) -> Outcome {
    let range = eval.value(&inner.range, scope)?;
    let is_map = matches!(range, Value::Map(_));
    let mut state = State::new(inner.fold);
    for (first, second) in pairs(&range)? {
        eval.pay(2)?;
        // With one name, maps are gone through by key, lists by element.
        let key = first.clone();
        let (names, item) = match inner.names.as_slice() {
            [one] => {
                let item = if is_map { first } else { second };
                (vec![(one, item.clone())], item)
            }
            [one, two] => (vec![(one, first), (two, second.clone())], second),
            _ => return no_overload(),
        };
        let done = with(eval, &names, scope, &mut |eval, scope| {
            if let Some(filter) = &inner.filter {
                match eval.value(filter, scope)? {
                    Value::Bool(true) => {}
                    Value::Bool(false) => return Ok(false),
                    _ => return no_overload(),
                }
            }
            let made = eval.value(&inner.body, scope);
            state.take(made, &key, &item)
        })?;
        if done {
            break;
        }
    }
    state.finish()
}

type Step<'s> = dyn FnMut(&mut Eval<'_>, &Scope<'_>) -> Result<bool, Failure> + 's;

fn with(
    eval: &mut Eval<'_>,
    names: &[(&String, Value)],
    scope: &Scope<'_>,
    step: &mut Step<'_>,
) -> Result<bool, Failure> {
    match names {
        [] => step(eval, scope),
        [(name, value), rest @ ..] => with(eval, rest, &scope.with(name, value.clone()), step),
    }
}

struct State {
    fold: Fold,
    /// Of `all` and `exists`: a failure that another element may make harmless.
    failure: Option<Failure>,
    decided: bool,
    count: usize,
    items: Vec<Value>,
    keys: Vec<Value>,
    map: BTreeMap<Key, Value>,
}

impl State {
    fn new(fold: Fold) -> Self {
        Self {
            fold,
            failure: None,
            decided: false,
            count: 0,
            items: Vec::new(),
            keys: Vec::new(),
            map: BTreeMap::new(),
        }
    }

    /// What one element gave; true if the loop may end.
    fn take(&mut self, made: Outcome, key: &Value, item: &Value) -> Result<bool, Failure> {
        match self.fold {
            Fold::All | Fold::Exists => match made {
                Ok(Value::Bool(value)) => {
                    self.decided = value == (self.fold == Fold::Exists);
                }
                Ok(_) => self.failure = Some(Failure::Error("no such overload".to_owned())),
                Err(Failure::Cost) => return Err(Failure::Cost),
                Err(failure) => self.failure = self.failure.take().or(Some(failure)),
            },
            Fold::ExistsOne => self.count += usize::from(truth(made)?),
            Fold::Filter => {
                if truth(made)? {
                    self.items.push(item.clone());
                }
            }
            Fold::Map => self.items.push(made?),
            Fold::TransformMap => {
                let Some(key) = Key::of(key) else {
                    return error("unsupported key type");
                };
                self.map.insert(key, made?);
            }
            Fold::SortBy => {
                self.keys.push(made?);
                self.items.push(item.clone());
            }
        }
        Ok(self.decided)
    }

    fn finish(self) -> Outcome {
        match self.fold {
            Fold::All | Fold::Exists => {
                let exists = self.fold == Fold::Exists;
                match self.failure {
                    Some(failure) if !self.decided => Err(failure),
                    _ => Ok(Value::Bool(self.decided == exists)),
                }
            }
            Fold::ExistsOne => Ok(Value::Bool(self.count == 1)),
            Fold::Filter | Fold::Map => Ok(Value::list(self.items)),
            Fold::TransformMap => Ok(Value::Map(Arc::new(self.map))),
            Fold::SortBy => sorted(self.keys, self.items),
        }
    }
}

fn truth(made: Outcome) -> Result<bool, Failure> {
    match made? {
        Value::Bool(value) => Ok(value),
        _ => no_overload(),
    }
}

/// Elements in the order of their keys.
pub(super) fn sorted(keys: Vec<Value>, items: Vec<Value>) -> Outcome {
    let mut pairs: Vec<(Value, Value)> = keys.into_iter().zip(items).collect();
    if pairs
        .windows(2)
        .any(|two| two[0].0.order(&two[1].0).is_none())
    {
        return no_overload();
    }
    pairs.sort_by(|a, b| a.0.order(&b.0).unwrap_or(Ordering::Equal));
    Ok(Value::list(
        pairs.into_iter().map(|(_, item)| item).collect(),
    ))
}

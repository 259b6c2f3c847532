//! Evaluation with a budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ast::{Expr, Op};
use super::value::{Key, Value};
use super::{functions, looping};

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The expression went wrong, for the reason given.
    #[error("{0}")]
    Error(String),
    /// The budget is used up.
    #[error("operation cancelled: actual cost limit exceeded")]
    Cost,
}

pub(super) type Outcome = Result<Value, Failure>;

pub(super) fn error<T>(why: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Error(why.into()))
}

pub(super) fn no_overload<T>() -> Result<T, Failure> {
    error("no such overload")
}

/// Variables; inner ones hide outer ones.
pub struct Scope<'a> {
    name: &'a str,
    value: Value,
    outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    pub fn new(name: &'a str, value: Value) -> Self {
        Self {
            name,
            value,
            outer: None,
        }
    }

    pub fn with<'b>(&'b self, name: &'b str, value: Value) -> Scope<'b> {
        Scope {
            name,
            value,
            outer: Some(self),
        }
    }

    fn find(&self, name: &str) -> Option<&Value> {
        if self.name == name {
            return Some(&self.value);
        }
        self.outer?.find(name)
    }
}

pub(super) fn run(expression: &Expr, scope: &Scope<'_>, budget: &mut u64) -> Outcome {
    let mut eval = Eval { budget };
    eval.value(expression, scope)
}

pub(super) struct Eval<'b> {
    budget: &'b mut u64,
}

impl Eval<'_> {
    pub(super) fn pay(&mut self, cost: usize) -> Result<(), Failure> {
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        *self.budget = self.budget.checked_sub(cost).ok_or(Failure::Cost)?;
        Ok(())
    }

    fn left(&self) -> usize {
        usize::try_from(*self.budget).unwrap_or(usize::MAX)
    }

    pub(super) fn value(&mut self, expression: &Expr, scope: &Scope<'_>) -> Outcome {
        match expression {
            Expr::Literal(value) => Ok(value.clone()),
            Expr::Name(name) => self.name(name, scope),
            Expr::Select {
                of,
                field,
                test,
                optional,
            } => {
                self.pay(1)?;
                match self.value(of, scope)? {
                    of if *test => has(&of, field),
                    of => select(&of, field, *optional),
                }
            }
            Expr::Index {
                of,
                index,
                optional,
            } => {
                self.pay(1)?;
                let of = self.value(of, scope)?;
                let index = self.value(index, scope)?;
                at(&of, &index, *optional)
            }
            Expr::Not(of) => match self.value(of, scope)? {
                Value::Bool(value) => Ok(Value::Bool(!value)),
                _ => no_overload(),
            },
            Expr::Negate(of) => negate(&self.value(of, scope)?),
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.value(a, scope)?, self.value(b, scope)?);
                self.pay(cost_of(*op, &a, &b, self.left()))?;
                binary(*op, &a, &b)
            }
            Expr::And(a, b) => self.junction(a, b, scope, false),
            Expr::Or(a, b) => self.junction(a, b, scope, true),
            Expr::Choice(condition, yes, no) => match self.value(condition, scope)? {
                Value::Bool(true) => self.value(yes, scope),
                Value::Bool(false) => self.value(no, scope),
                _ => no_overload(),
            },
            Expr::Call {
                name,
                on,
                arguments,
            } => self.call(name, on.as_deref(), arguments, scope),
            Expr::List(items) => self.list(items, scope),
            Expr::Map(items) => self.map(items, scope),
            Expr::Loop(inner) => looping::run(self, inner, scope),
            Expr::Bind { name, value, body } => {
                let value = self.value(value, scope)?;
                self.value(body, &scope.with(name, value))
            }
            Expr::OptMap {
                of,
                name,
                body,
                flat,
            } => self.opt_map(of, name, body, *flat, scope),
        }
    }

    fn name(&mut self, name: &str, scope: &Scope<'_>) -> Outcome {
        self.pay(1)?;
        if let Some(value) = scope.find(name) {
            return Ok(value.clone());
        }
        match functions::type_named(name) {
            Some(found) => Ok(Value::Type(found)),
            None => error(format!("no such attribute(s): {name}")),
        }
    }

    /// `&&` and `||`: one side may decide although the other fails.
    fn junction(&mut self, a: &Expr, b: &Expr, scope: &Scope<'_>, decides: bool) -> Outcome {
        let left = self.value(a, scope);
        match left {
            Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(decides)),
            Err(Failure::Cost) => return Err(Failure::Cost),
            _ => {}
        }
        match (left, self.value(b, scope)?) {
            (_, Value::Bool(value)) if value == decides => Ok(Value::Bool(decides)),
            (Ok(Value::Bool(_)), Value::Bool(_)) => Ok(Value::Bool(!decides)),
            (Err(failure), _) => Err(failure),
            _ => no_overload(),
        }
    }

    fn call(
        &mut self,
        name: &str,
        on: Option<&Expr>,
        arguments: &[Expr],
        scope: &Scope<'_>,
    ) -> Outcome {
        // The alternative is only looked at if there is need of it.
        if let (Some(on), "or" | "orValue", [other]) = (on, name, arguments) {
            return match self.value(on, scope)? {
                Value::Optional(Some(value)) if name == "orValue" => Ok(*value),
                Value::Optional(None) => self.value(other, scope),
                found @ Value::Optional(_) => Ok(found),
                _ => no_overload(),
            };
        }
        let mut values = Vec::with_capacity(arguments.len() + 1);
        if let Some(on) = on {
            values.push(self.value(on, scope)?);
        }
        for argument in arguments {
            values.push(self.value(argument, scope)?);
        }
        self.pay(pattern_price(name, on.is_some(), arguments, &values))?;
        let left = self.left();
        let weights = values.iter().map(|value| weight(value, left));
        let work: usize = if SQUARE.contains(&name) {
            let most = weights.clone().max().unwrap_or_default();
            weights.fold(most, usize::saturating_mul)
        } else {
            weights.sum()
        };
        self.pay(work.saturating_add(1))?;
        // What would be too big is not even made.
        if functions::most(name, &values) > self.left() {
            return Err(Failure::Cost);
        }
        let made = functions::call(name, on.is_some(), &values)?;
        self.pay(weight(&made, self.left()))?;
        Ok(made)
    }

    fn list(&mut self, items: &[(bool, Expr)], scope: &Scope<'_>) -> Outcome {
        self.pay(items.len().max(10))?;
        let mut all = Vec::with_capacity(items.len());
        for (optional, item) in items {
            match (optional, self.value(item, scope)?) {
                (true, Value::Optional(found)) => all.extend(found.map(|value| *value)),
                (true, _) => return no_overload(),
                (false, value) => all.push(value),
            }
        }
        Ok(Value::list(all))
    }

    fn map(&mut self, items: &[(bool, Expr, Expr)], scope: &Scope<'_>) -> Outcome {
        self.pay(items.len().max(30))?;
        let mut all = BTreeMap::new();
        for (optional, key, value) in items {
            let key = self.value(key, scope)?;
            let value = match (optional, self.value(value, scope)?) {
                (true, Value::Optional(None)) => continue,
                (true, Value::Optional(Some(value))) => *value,
                (true, _) => return no_overload(),
                (false, value) => value,
            };
            let Some(key) = Key::of(&key) else {
                return error("unsupported key type");
            };
            all.insert(key, value);
        }
        Ok(Value::Map(Arc::new(all)))
    }

    fn opt_map(
        &mut self,
        of: &Expr,
        name: &str,
        body: &Expr,
        flat: bool,
        scope: &Scope<'_>,
    ) -> Outcome {
        let value = match self.value(of, scope)? {
            Value::Optional(Some(value)) => *value,
            none @ Value::Optional(None) => return Ok(none),
            _ => return no_overload(),
        };
        let value = self.value(body, &scope.with(name, value))?;
        Ok(if flat { value } else { Value::some(value) })
    }
}

/// How much work a value is for whoever goes through it once: counted up to `most`, for what stands in a value more
/// than once is counted as often.
fn weight(value: &Value, most: usize) -> usize {
    let sum = |items: &mut dyn Iterator<Item = (usize, &Value)>| {
        let mut total: usize = 1;
        for (key, item) in items {
            if total > most {
                break;
            }
            let left = most - total;
            total = total.saturating_add(1 + key + weight(item, left));
        }
        total
    };
    let of_key = |key: &Key| match key {
        Key::Text(text) => text.len().div_ceil(10),
        _ => 0,
    };
    match value {
        Value::Text(text) | Value::Url(text) => text.len().div_ceil(10),
        Value::Bytes(bytes) => bytes.len().div_ceil(10),
        Value::List(items) => sum(&mut items.iter().map(|item| (0, item))),
        Value::Map(map) => sum(&mut map.iter().map(|(key, value)| (of_key(key), value))),
        Value::Optional(Some(inner)) => weight(inner, most),
        _ => 0,
    }
}

/// What making a pattern that only shows when the rule runs costs, before its length.
const PATTERN: usize = 2_000;

/// What matching costs beyond going through its arguments once: long patterns make every step longer.
fn pattern_price(name: &str, receiver: bool, arguments: &[Expr], values: &[Value]) -> usize {
    let ("matches" | "find" | "findAll", [Value::Text(text), Value::Text(pattern), ..]) =
        (name, values)
    else {
        return 0;
    };
    let fixed = arguments.get(usize::from(!receiver));
    let made = match fixed {
        Some(Expr::Literal(_)) => 0,
        _ => PATTERN.saturating_add(pattern.len()),
    };
    let steps = text.len().div_ceil(10);
    steps
        .saturating_mul((pattern.len() / 4).max(1))
        .saturating_add(made)
}

fn cost_of(op: Op, a: &Value, b: &Value, most: usize) -> usize {
    match op {
        Op::In if matches!(b, Value::Map(_)) => 1,
        Op::Equal | Op::NotEqual => 1 + weight(a, most).min(weight(b, most)),
        _ => 1 + weight(a, most) + weight(b, most),
    }
}

/// Functions that hold every element of one list against every one of another.
const SQUARE: &[&str] = &[
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "distinct",
];

fn has(of: &Value, field: &str) -> Outcome {
    match of {
        Value::Map(map) => Ok(Value::Bool(map.contains_key(&Key::text(field)))),
        Value::Optional(Some(inner)) => has(inner, field),
        Value::Optional(None) => Ok(Value::Bool(false)),
        _ => no_overload(),
    }
}

fn select(of: &Value, field: &str, optional: bool) -> Outcome {
    at(of, &Value::from(field), optional)
}

/// An element; of or as an optional value, none where there is nothing.
fn at(of: &Value, index: &Value, optional: bool) -> Outcome {
    if let Value::Optional(inner) = of {
        return match inner {
            Some(inner) => at(inner, index, true),
            None => Ok(Value::Optional(None)),
        };
    }
    let found = match of {
        Value::Map(map) => {
            let Some(key) = Key::of(index) else {
                return no_overload();
            };
            map.get(&key).cloned().ok_or(format!("no such key: {key}"))
        }
        Value::List(items) => {
            let Some(Key::Number(number)) = Key::of(index) else {
                return no_overload();
            };
            let item = usize::try_from(number).ok().and_then(|at| items.get(at));
            item.cloned()
                .ok_or(format!("index out of bounds: {number}"))
        }
        _ => return no_overload(),
    };
    match (found, optional) {
        (Ok(value), false) => Ok(value),
        (Ok(value), true) => Ok(Value::some(value)),
        (Err(_), true) => Ok(Value::Optional(None)),
        (Err(why), false) => error(why),
    }
}

fn negate(value: &Value) -> Outcome {
    match value {
        Value::Int(value) => value
            .checked_neg()
            .map(Value::Int)
            .ok_or_else(|| Failure::Error("integer overflow".to_owned())),
        Value::Double(value) => Ok(Value::Double(-value)),
        _ => no_overload(),
    }
}

fn binary(op: Op, a: &Value, b: &Value) -> Outcome {
    match op {
        Op::Equal => Ok(Value::Bool(a == b)),
        Op::NotEqual => Ok(Value::Bool(a != b)),
        Op::In => contains(a, b),
        Op::Less | Op::LessOrEqual | Op::Greater | Op::GreaterOrEqual => {
            let not_a_number =
                |value: &Value| matches!(value, Value::Double(value) if value.is_nan());
            let Some(order) = a.order(b) else {
                return if not_a_number(a) || not_a_number(b) {
                    Ok(Value::Bool(false))
                } else {
                    no_overload()
                };
            };
            Ok(Value::Bool(match op {
                Op::Less => order.is_lt(),
                Op::LessOrEqual => order.is_le(),
                Op::Greater => order.is_gt(),
                _ => order.is_ge(),
            }))
        }
        _ => arithmetic(op, a, b),
    }
}

fn contains(item: &Value, of: &Value) -> Outcome {
    match of {
        Value::List(items) => Ok(Value::Bool(items.contains(item))),
        Value::Map(map) => Ok(Value::Bool(
            Key::of(item).is_some_and(|key| map.contains_key(&key)),
        )),
        _ => no_overload(),
    }
}

fn arithmetic(op: Op, a: &Value, b: &Value) -> Outcome {
    let overflow =
        |value: Option<Value>| value.ok_or_else(|| Failure::Error("integer overflow".to_owned()));
    let divides = matches!(op, Op::Divide | Op::Modulo);
    match (a, b) {
        (_, Value::Int(0)) | (_, Value::Uint(0)) if divides && a.type_name() == b.type_name() => {
            error(if op == Op::Divide {
                "division by zero"
            } else {
                "modulus by zero"
            })
        }
        (Value::Int(a), Value::Int(b)) => overflow(
            match op {
                Op::Add => a.checked_add(*b),
                Op::Subtract => a.checked_sub(*b),
                Op::Multiply => a.checked_mul(*b),
                Op::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            }
            .map(Value::Int),
        ),
        (Value::Uint(a), Value::Uint(b)) => overflow(
            match op {
                Op::Add => a.checked_add(*b),
                Op::Subtract => a.checked_sub(*b),
                Op::Multiply => a.checked_mul(*b),
                Op::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            }
            .map(Value::Uint),
        ),
        (Value::Double(a), Value::Double(b)) => match op {
            Op::Add => Ok(Value::Double(a + b)),
            Op::Subtract => Ok(Value::Double(a - b)),
            Op::Multiply => Ok(Value::Double(a * b)),
            Op::Divide => Ok(Value::Double(a / b)),
            _ => no_overload(),
        },
        _ if op == Op::Add => join(a, b),
        _ if op == Op::Subtract => subtract(a, b),
        _ => no_overload(),
    }
}

fn join(a: &Value, b: &Value) -> Outcome {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => Ok(Value::from(format!("{a}{b}"))),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(Value::Bytes([&a[..], &b[..]].concat().into())),
        (Value::List(a), Value::List(b)) => {
            Ok(Value::list(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Value::Duration(a), Value::Duration(b)) => match a.checked_add(*b) {
            Some(sum) => Ok(Value::Duration(sum)),
            None => error("integer overflow"),
        },
        (Value::Time(at), Value::Duration(by)) | (Value::Duration(by), Value::Time(at)) => {
            shifted(*at, *by)
        }
        _ => no_overload(),
    }
}

fn shifted(at: jiff::Timestamp, by: i64) -> Outcome {
    match at.checked_add(jiff::SignedDuration::from_nanos(by)) {
        Ok(at) => Ok(Value::Time(at)),
        Err(_) => error("timestamp overflow"),
    }
}

fn subtract(a: &Value, b: &Value) -> Outcome {
    match (a, b) {
        (Value::Duration(a), Value::Duration(b)) => match a.checked_sub(*b) {
            Some(value) => Ok(Value::Duration(value)),
            None => error("integer overflow"),
        },
        (Value::Time(at), Value::Duration(by)) => shifted(*at, by.saturating_neg()),
        (Value::Time(a), Value::Time(b)) => match i64::try_from(a.duration_since(*b).as_nanos()) {
            Ok(nanos) => Ok(Value::Duration(nanos)),
            Err(_) => error("integer overflow"),
        },
        _ => no_overload(),
    }
}

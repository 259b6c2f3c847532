//! Checks before anything runs: names, fields and functions that there are not, operands that never fit.

use super::ast::{Expr, Fold, Loop, Op};
use super::functions;
use super::types::Type;
use super::value::Value;

/// Variables and their types, innermost last.
type Names = Vec<(String, Type)>;

pub(super) fn check(expression: &Expr, variables: &[(&str, Type)]) -> Result<Type, String> {
    let names = variables.iter();
    let mut names: Names = names
        .map(|(name, kind)| ((*name).to_owned(), kind.clone()))
        .collect();
    of(expression, &mut names)
}

fn fail<T>(why: String) -> Result<T, String> {
    Err(format!("ERROR: <input>:1:1: {why}"))
}

fn of(expression: &Expr, names: &mut Names) -> Result<Type, String> {
    match expression {
        Expr::Literal(value) => Ok(literal(value)),
        Expr::Name(name) => named(name, names),
        Expr::Select {
            of: inner,
            field,
            test,
            optional,
        } => {
            let inner = of(inner, names)?;
            let found = select(&inner, field)?;
            Ok(match (test, optional) {
                (true, _) => Type::Bool,
                (_, true) => optional_of(found),
                _ => found,
            })
        }
        Expr::Index {
            of: inner,
            index,
            optional,
        } => {
            let (inner, index) = (of(inner, names)?, of(index, names)?);
            let found = indexed(&inner, &index)?;
            Ok(if *optional { optional_of(found) } else { found })
        }
        Expr::Not(inner) => expect(inner, &Type::Bool, "!_", names),
        Expr::Negate(inner) => match of(inner, names)? {
            found @ (Type::Int | Type::Double | Type::Dyn) => Ok(found),
            other => overload("-_", &[other]),
        },
        Expr::Binary(op, a, b) => {
            let (a, b) = (of(a, names)?, of(b, names)?);
            binary(*op, a, b)
        }
        Expr::And(a, b) => {
            expect(a, &Type::Bool, "_&&_", names)?;
            expect(b, &Type::Bool, "_&&_", names)
        }
        Expr::Or(a, b) => {
            expect(a, &Type::Bool, "_||_", names)?;
            expect(b, &Type::Bool, "_||_", names)
        }
        Expr::Choice(condition, a, b) => {
            expect(condition, &Type::Bool, "_?_:_", names)?;
            let (a, b) = (of(a, names)?, of(b, names)?);
            if a.meets(&b) {
                Ok(a.joined(&b))
            } else {
                overload("_?_:_", &[Type::Bool, a, b])
            }
        }
        _ => composed(expression, names),
    }
}

fn composed(expression: &Expr, names: &mut Names) -> Result<Type, String> {
    match expression {
        Expr::Call {
            name,
            on,
            arguments,
        } => {
            let mut types = Vec::new();
            for part in on.as_deref().into_iter().chain(arguments) {
                types.push(of(part, names)?);
            }
            match functions::signature(name, on.is_some(), &types) {
                Some(found) => Ok(found),
                None if functions::is_known(name) => overload(name, &types),
                None => fail(format!(
                    "undeclared reference to '{name}' (in container '')"
                )),
            }
        }
        Expr::List(items) => {
            let mut all = None;
            for (optional, item) in items {
                let found = of(item, names)?;
                all = Some(gathered(all, found, *optional));
            }
            Ok(Type::List(Box::new(all.unwrap_or(Type::Dyn))))
        }
        Expr::Map(items) => {
            let mut all = None;
            for (optional, key, value) in items {
                of(key, names)?;
                let found = of(value, names)?;
                all = Some(gathered(all, found, *optional));
            }
            Ok(Type::Map(Box::new(all.unwrap_or(Type::Dyn))))
        }
        Expr::Loop(inner) => looped(inner, names),
        Expr::Bind { name, value, body } => {
            let value = of(value, names)?;
            with(&[(name, value)], names, |names| of(body, names))
        }
        Expr::OptMap {
            of: source,
            name,
            body,
            flat,
        } => {
            let source = inner(&of(source, names)?);
            let made = with(&[(name, source)], names, |names| of(body, names))?;
            Ok(if *flat { made } else { optional_of(made) })
        }
        _ => Ok(Type::Dyn),
    }
}

/// The type of all elements so far and one more.
fn gathered(before: Option<Type>, found: Type, optional: bool) -> Type {
    let found = if optional { inner(&found) } else { found };
    match before {
        Some(before) => before.joined(&found),
        None => found,
    }
}

fn with<T>(
    new: &[(&String, Type)],
    names: &mut Names,
    work: impl FnOnce(&mut Names) -> Result<T, String>,
) -> Result<T, String> {
    let before = names.len();
    names.extend(
        new.iter()
            .map(|(name, kind)| ((*name).clone(), kind.clone())),
    );
    let found = work(names);
    names.truncate(before);
    found
}

fn looped(inner: &Loop, names: &mut Names) -> Result<Type, String> {
    let range = of(&inner.range, names)?;
    let (key, item) = match &range {
        Type::List(item) => (Type::Int, (**item).clone()),
        Type::Map(value) => (Type::Text, (**value).clone()),
        // Objects are no maps: their fields are named.
        Type::Dyn => (Type::Dyn, Type::Dyn),
        other => {
            return fail(format!(
                "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                other.name()
            ));
        }
    };
    let is_map = matches!(range, Type::Map(_));
    let new: Vec<(&String, Type)> = match inner.names.as_slice() {
        [one] if is_map => vec![(one, key.clone())],
        [one] => vec![(one, item.clone())],
        [one, two] => vec![(one, key.clone()), (two, item.clone())],
        _ => Vec::new(),
    };
    let made = with(&new, names, |names| {
        if let Some(filter) = &inner.filter {
            expect(filter, &Type::Bool, "_?_:_", names)?;
        }
        of(&inner.body, names)
    })?;
    let predicate = matches!(
        inner.fold,
        Fold::All | Fold::Exists | Fold::ExistsOne | Fold::Filter
    );
    if predicate && !made.meets(&Type::Bool) {
        return overload("_&&_", &[Type::Bool, made]);
    }
    Ok(match inner.fold {
        Fold::All | Fold::Exists | Fold::ExistsOne => Type::Bool,
        Fold::Filter if is_map => Type::List(Box::new(key)),
        Fold::Filter | Fold::SortBy => Type::List(Box::new(item)),
        Fold::Map => Type::List(Box::new(made)),
        Fold::TransformMap => Type::Map(Box::new(made)),
    })
}

fn literal(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::Text(_) => Type::Text,
        Value::Bytes(_) => Type::Bytes,
        _ => Type::Dyn,
    }
}

fn named(name: &str, names: &Names) -> Result<Type, String> {
    if let Some((_, kind)) = names.iter().rev().find(|(one, _)| one == name) {
        return Ok(kind.clone());
    }
    match functions::type_named(name) {
        Some(_) => Ok(Type::Type),
        None => fail(format!(
            "undeclared reference to '{name}' (in container '')"
        )),
    }
}

fn optional_of(kind: Type) -> Type {
    match kind {
        Type::Optional(_) => kind,
        other => Type::Optional(Box::new(other)),
    }
}

fn inner(kind: &Type) -> Type {
    match kind {
        Type::Optional(of) => (**of).clone(),
        _ => Type::Dyn,
    }
}

fn select(kind: &Type, field: &str) -> Result<Type, String> {
    match kind {
        Type::Dyn => Ok(Type::Dyn),
        Type::Map(value) => Ok((**value).clone()),
        Type::Optional(of) => select(of, field).map(optional_of),
        Type::Object(fields) => match fields.iter().find(|(name, _)| name == field) {
            Some((_, kind)) => Ok(kind.clone()),
            None => fail(format!("undefined field '{field}'")),
        },
        other => fail(format!(
            "type '{}' does not support field selection",
            other.name()
        )),
    }
}

fn indexed(kind: &Type, index: &Type) -> Result<Type, String> {
    match kind {
        Type::Dyn => Ok(Type::Dyn),
        Type::Optional(of) => indexed(of, index).map(optional_of),
        Type::List(item) if matches!(index, Type::Int | Type::Uint | Type::Dyn) => {
            Ok((**item).clone())
        }
        // Maps made in the expression may have other keys.
        Type::Map(value) => Ok((**value).clone()),
        other => overload("_[_]", &[other.clone(), index.clone()]),
    }
}

fn expect(
    expression: &Expr,
    wanted: &Type,
    operator: &str,
    names: &mut Names,
) -> Result<Type, String> {
    let found = of(expression, names)?;
    if found.meets(wanted) && found != Type::Null {
        Ok(wanted.clone())
    } else {
        overload(operator, &[found])
    }
}

fn overload<T>(operator: &str, types: &[Type]) -> Result<T, String> {
    let names: Vec<String> = types.iter().map(Type::name).collect();
    fail(format!(
        "found no matching overload for '{operator}' applied to '({})'",
        names.join(", ")
    ))
}

fn binary(op: Op, a: Type, b: Type) -> Result<Type, String> {
    let number = |kind: &Type| matches!(kind, Type::Int | Type::Uint | Type::Double);
    let free = a == Type::Dyn || b == Type::Dyn;
    let found = match op {
        Op::Equal | Op::NotEqual => a.meets(&b).then_some(Type::Bool),
        Op::Less | Op::LessOrEqual | Op::Greater | Op::GreaterOrEqual => {
            let ordered = |kind: &Type| {
                number(kind)
                    || matches!(
                        kind,
                        Type::Bool | Type::Text | Type::Bytes | Type::Duration | Type::Time
                    )
            };
            let fits = (number(&a) && number(&b)) || (a == b && ordered(&a)) || free;
            fits.then_some(Type::Bool)
        }
        Op::In => match &b {
            Type::List(item) if a.meets(item) => Some(Type::Bool),
            Type::Map(_) | Type::Dyn => Some(Type::Bool),
            _ => None,
        },
        _ if free => Some(Type::Dyn),
        _ => arithmetic(op, &a, &b),
    };
    match found {
        Some(found) => Ok(found),
        None => overload(&format!("_{}_", op.text()), &[a, b]),
    }
}

fn arithmetic(op: Op, a: &Type, b: &Type) -> Option<Type> {
    match (op, a, b) {
        (Op::Modulo, Type::Double, _) => None,
        (_, Type::Int | Type::Uint | Type::Double, _) if a == b => Some(a.clone()),
        (Op::Add, Type::Text | Type::Bytes, _) if a == b => Some(a.clone()),
        (Op::Add, Type::List(x), Type::List(y)) if x.meets(y) => {
            Some(Type::List(Box::new((**x).clone().joined(y))))
        }
        (Op::Add | Op::Subtract, Type::Duration, Type::Duration)
        | (Op::Subtract, Type::Time, Type::Time) => Some(Type::Duration),
        (Op::Add | Op::Subtract, Type::Time, Type::Duration)
        | (Op::Add, Type::Duration, Type::Time) => Some(Type::Time),
        _ => None,
    }
}

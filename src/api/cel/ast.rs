//! Expressions as trees.

use super::value::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

impl Op {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Modulo => "%",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::In => "in",
        }
    }
}

/// What a loop makes of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fold {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
    TransformMap,
    SortBy,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) fold: Fold,
    pub(super) range: Expr,
    /// One name, or two: index and value, key and value.
    pub(super) names: Vec<String>,
    pub(super) filter: Option<Expr>,
    pub(super) body: Expr,
}

#[derive(Debug)]
pub(super) enum Expr {
    Literal(Value),
    Name(String),
    /// `a.b`; with `test`, `has(a.b)`; optional, `a.?b`.
    Select {
        of: Box<Expr>,
        field: String,
        test: bool,
        optional: bool,
    },
    Index {
        of: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Op, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    Call {
        name: String,
        on: Option<Box<Expr>>,
        arguments: Vec<Expr>,
    },
    /// Optional elements are left out if they are none.
    List(Vec<(bool, Expr)>),
    Map(Vec<(bool, Expr, Expr)>),
    Loop(Box<Loop>),
    /// `cel.bind(name, value, body)`
    Bind {
        name: String,
        value: Box<Expr>,
        body: Box<Expr>,
    },
    /// `o.optMap(name, body)`; flat, the body gives an optional value itself.
    OptMap {
        of: Box<Expr>,
        name: String,
        body: Box<Expr>,
        flat: bool,
    },
}

impl Expr {
    pub(super) fn uses(&self, variable: &str) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Name(name) => name == variable,
            Self::Select { of, .. } => of.uses(variable),
            Self::Not(of) | Self::Negate(of) => of.uses(variable),
            Self::Index { of, index: b, .. } | Self::Binary(_, of, b) => {
                of.uses(variable) || b.uses(variable)
            }
            Self::And(a, b) | Self::Or(a, b) => a.uses(variable) || b.uses(variable),
            Self::Choice(a, b, c) => [a, b, c].iter().any(|one| one.uses(variable)),
            Self::Call { on, arguments, .. } => {
                on.as_ref().is_some_and(|on| on.uses(variable))
                    || arguments.iter().any(|one| one.uses(variable))
            }
            Self::List(items) => items.iter().any(|(_, one)| one.uses(variable)),
            Self::Map(items) => items
                .iter()
                .any(|(_, key, value)| key.uses(variable) || value.uses(variable)),
            Self::Loop(inner) => {
                inner.range.uses(variable)
                    || inner.body.uses(variable)
                    || inner.filter.as_ref().is_some_and(|one| one.uses(variable))
            }
            Self::Bind { value, body, .. } => value.uses(variable) || body.uses(variable),
            Self::OptMap { of, body, .. } => of.uses(variable) || body.uses(variable),
        }
    }
}

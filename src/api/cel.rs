//! The Common Expression Language as the API's rules are written in it: parsed, checked, run with a budget.
//!
//! [`Program::compile`] parses and checks against the [`Type`]s of the variables; [`Program::run`] evaluates and takes
//! what it costs from a budget, so that no rule can keep the server busy. Pure: no clock, no randomness.

mod ast;
mod check;
mod eval;
mod functions;
mod lexer;
mod looping;
mod parser;
mod types;
mod value;

pub use eval::{Failure, Scope};
pub(crate) use functions::duration;
pub(crate) use parser::RESERVED;
pub use types::Type;
pub use value::{Key, Value};

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    expression: ast::Expr,
    result: Type,
}

impl Program {
    /// Parses and checks; the message says what is wrong and where.
    pub fn compile(text: &str, variables: &[(&str, Type)]) -> Result<Self, String> {
        let expression = parser::parse(text)?;
        let result = check::check(&expression, variables)?;
        Ok(Self { expression, result })
    }

    /// What the expression gives, as far as can be told before it runs.
    pub fn result(&self) -> &Type {
        &self.result
    }

    /// Whether the expression reads this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.expression.uses(variable)
    }

    /// Evaluates; the budget pays for it.
    pub fn run(&self, scope: &Scope<'_>, budget: &mut u64) -> Result<Value, Failure> {
        eval::run(&self.expression, scope, budget)
    }
}

#[cfg(test)]
mod tests;

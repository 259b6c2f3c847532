//! Tokens to trees, by recursive descent. Macros become loops and bindings here.

use super::ast::{Expr, Fold, Loop, Op};
use super::lexer::{Token, fault, tokens};
use super::value::Value;

/// Deeper nesting is refused …
const DEPTH: usize = 64;
/// … and so are higher trees: whoever walks them goes down as deep.
const HEIGHT: usize = 160;
/// Longer ones too.
const LENGTH: usize = 100_000;

/// Names before a dot that only name a family of functions.
const FAMILIES: &[&str] = &[
    "sets", "lists", "math", "strings", "base64", "optional", "format", "ip", "cel",
];

/// Names that no variable and no field has as it is.
pub(crate) const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
    "in",
];

pub(super) fn parse(text: &str) -> Result<Expr, String> {
    if text.len() > LENGTH {
        return Err(fault(0, "the expression is too long"));
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        depth: 0,
        height: 0,
    };
    let expression = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(expression),
        _ => Err(parser.unexpected()),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    depth: usize,
    /// Of the tree that was parsed last.
    height: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        if token != Token::End {
            self.at += 1;
        }
        token
    }

    fn unexpected(&self) -> String {
        let (at, token) = &self.tokens[self.at];
        let what = match token {
            Token::Name(name) => name.clone(),
            Token::Sign(sign) => (*sign).to_owned(),
            Token::Literal(_) => "a literal".to_owned(),
            Token::End => "<EOF>".to_owned(),
        };
        fault(*at, &format!("Syntax error: mismatched input '{what}'"))
    }

    fn takes(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(one) if *one == sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) {
            Ok(())
        } else {
            Err(self.unexpected())
        }
    }

    /// A tree stands on the last one and another of this height.
    fn grow(&mut self, other: usize) -> Result<(), String> {
        self.height = self.height.max(other) + 1;
        if self.height > HEIGHT {
            return Err(self.too_deep());
        }
        Ok(())
    }

    fn too_deep(&self) -> String {
        fault(
            self.tokens[self.at].0,
            "expression recursion limit exceeded",
        )
    }

    /// One level deeper, as long as that is allowed.
    fn expression(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(self.too_deep());
        }
        let found = self.choice();
        self.depth -= 1;
        found
    }

    fn choice(&mut self) -> Result<Expr, String> {
        let condition = self.or()?;
        if !self.takes("?") {
            return Ok(condition);
        }
        let first = self.height;
        let yes = self.or()?;
        let second = self.height;
        self.expect(":")?;
        let no = self.expression()?;
        self.grow(first.max(second))?;
        Ok(Expr::Choice(condition.into(), yes.into(), no.into()))
    }

    fn or(&mut self) -> Result<Expr, String> {
        self.junction("||", Self::and, |a, b| Expr::Or(a.into(), b.into()))
    }

    fn and(&mut self) -> Result<Expr, String> {
        self.junction("&&", Self::relation, |a, b| Expr::And(a.into(), b.into()))
    }

    /// Terms of one operator, as a tree that is as flat as it can be.
    fn junction(
        &mut self,
        sign: &str,
        term: fn(&mut Self) -> Result<Expr, String>,
        both: fn(Expr, Expr) -> Expr,
    ) -> Result<Expr, String> {
        let mut terms = vec![term(self)?];
        let mut highest = self.height;
        while self.takes(sign) {
            terms.push(term(self)?);
            highest = highest.max(self.height);
        }
        self.height = highest;
        while terms.len() > 1 {
            self.grow(0)?;
            let mut rest = terms.into_iter();
            terms = Vec::new();
            while let Some(first) = rest.next() {
                terms.push(match rest.next() {
                    Some(second) => both(first, second),
                    None => first,
                });
            }
        }
        terms.pop().ok_or_else(|| self.unexpected())
    }

    /// Operators of one rank, from the left.
    fn chain(
        &mut self,
        known: &[Op],
        operand: fn(&mut Self) -> Result<Expr, String>,
    ) -> Result<Expr, String> {
        let mut left = operand(self)?;
        while let Some(op) = self.operator(known) {
            let height = self.height;
            let right = operand(self)?;
            self.grow(height)?;
            left = Expr::Binary(op, left.into(), right.into());
        }
        Ok(left)
    }

    fn operator(&mut self, known: &[Op]) -> Option<Op> {
        let found = known.iter().find(|op| match self.peek() {
            Token::Sign(sign) => *sign == op.text(),
            Token::Name(name) => name == op.text(),
            _ => false,
        });
        self.at += usize::from(found.is_some());
        found.copied()
    }

    fn relation(&mut self) -> Result<Expr, String> {
        const KNOWN: &[Op] = &[
            Op::Equal,
            Op::NotEqual,
            Op::Less,
            Op::LessOrEqual,
            Op::Greater,
            Op::GreaterOrEqual,
            Op::In,
        ];
        self.chain(KNOWN, Self::sum)
    }

    fn sum(&mut self) -> Result<Expr, String> {
        self.chain(&[Op::Add, Op::Subtract], Self::product)
    }

    fn product(&mut self) -> Result<Expr, String> {
        self.chain(&[Op::Multiply, Op::Divide, Op::Modulo], Self::unary)
    }

    fn unary(&mut self) -> Result<Expr, String> {
        let mut count = 0;
        if self.takes("!") {
            count += 1;
            while self.takes("!") {
                count += 1;
            }
            let of = self.member()?;
            return Ok(if count % 2 == 1 {
                Expr::Not(of.into())
            } else {
                Expr::Not(Expr::Not(of.into()).into())
            });
        }
        while self.takes("-") {
            count += 1;
        }
        if count % 2 == 0 && *self.peek() == Token::Literal(Value::Int(i64::MIN)) {
            return Err(self.unexpected());
        }
        let of = self.member()?;
        if count % 2 == 0 {
            return Ok(of);
        }
        Ok(match of {
            Expr::Literal(Value::Int(i64::MIN)) => Expr::Literal(Value::Int(i64::MIN)),
            Expr::Literal(Value::Int(value)) => Expr::Literal(Value::Int(-value)),
            Expr::Literal(Value::Double(value)) => Expr::Literal(Value::Double(-value)),
            of => Expr::Negate(of.into()),
        })
    }

    fn member(&mut self) -> Result<Expr, String> {
        let mut of = self.primary()?;
        loop {
            let height = self.height;
            if self.takes("[") {
                let optional = self.takes("?");
                let index = Box::new(self.expression()?);
                self.expect("]")?;
                self.grow(height)?;
                of = Expr::Index {
                    of: of.into(),
                    index,
                    optional,
                };
            } else if self.takes(".") {
                let optional = self.takes("?");
                let Token::Name(field) = self.next() else {
                    self.at = self.at.saturating_sub(1);
                    return Err(self.unexpected());
                };
                of = if !optional && self.takes("(") {
                    let arguments = self.arguments(")")?;
                    self.grow(height)?;
                    self.call(Some(of), field, arguments)?
                } else {
                    self.grow(height)?;
                    Expr::Select {
                        of: of.into(),
                        field,
                        test: false,
                        optional,
                    }
                };
            } else {
                return Ok(of);
            }
        }
    }

    fn arguments(&mut self, end: &str) -> Result<Vec<Expr>, String> {
        let (mut all, mut highest) = (Vec::new(), 0);
        while !self.takes(end) {
            if !all.is_empty() {
                self.expect(",")?;
            }
            all.push(self.expression()?);
            highest = highest.max(self.height);
        }
        self.height = highest;
        Ok(all)
    }

    fn primary(&mut self) -> Result<Expr, String> {
        if self.takes("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.takes("[") {
            return self.list();
        }
        if self.takes("{") {
            return self.map();
        }
        // A leading dot names the root, where all variables are.
        self.takes(".");
        match self.peek().clone() {
            Token::Literal(value) => {
                let minus = |at: usize| self.tokens[at].1 == Token::Sign("-");
                let smallest = value == Value::Int(i64::MIN);
                if smallest && !self.at.checked_sub(1).is_some_and(minus) {
                    return Err(self.unexpected());
                }
                self.at += 1;
                self.height = 1;
                Ok(Expr::Literal(value))
            }
            Token::Name(name) if !RESERVED.contains(&name.as_str()) => {
                self.at += 1;
                if self.takes("(") {
                    let arguments = self.arguments(")")?;
                    self.grow(0)?;
                    return self.call(None, name, arguments);
                }
                self.height = 1;
                Ok(Expr::Name(name))
            }
            _ => Err(self.unexpected()),
        }
    }

    fn list(&mut self) -> Result<Expr, String> {
        let (mut items, mut highest) = (Vec::new(), 0);
        while !self.takes("]") {
            if !items.is_empty() {
                self.expect(",")?;
                if self.takes("]") {
                    break;
                }
            }
            let optional = self.takes("?");
            items.push((optional, self.expression()?));
            highest = highest.max(self.height);
        }
        self.height = highest;
        self.grow(0)?;
        Ok(Expr::List(items))
    }

    fn map(&mut self) -> Result<Expr, String> {
        let (mut items, mut highest) = (Vec::new(), 0);
        while !self.takes("}") {
            if !items.is_empty() {
                self.expect(",")?;
                if self.takes("}") {
                    break;
                }
            }
            let optional = self.takes("?");
            let key = self.expression()?;
            highest = highest.max(self.height);
            self.expect(":")?;
            items.push((optional, key, self.expression()?));
            highest = highest.max(self.height);
        }
        self.height = highest;
        self.grow(0)?;
        Ok(Expr::Map(items))
    }

    fn call(
        &mut self,
        on: Option<Expr>,
        name: String,
        arguments: Vec<Expr>,
    ) -> Result<Expr, String> {
        let at = self.tokens[self.at.saturating_sub(1)].0;
        if name == "has" && on.is_none() {
            return has(arguments).ok_or_else(|| fault(at, "invalid argument to has() macro"));
        }
        match on {
            None => Ok(Expr::Call {
                name,
                on: None,
                arguments,
            }),
            Some(Expr::Name(family)) if is_family(&family, &name, arguments.len()) => {
                let name = format!("{family}.{name}");
                if name == "cel.bind" {
                    return bind(arguments).ok_or_else(|| fault(at, "invalid use of cel.bind"));
                }
                Ok(Expr::Call {
                    name,
                    on: None,
                    arguments,
                })
            }
            Some(on) => looping(on, name, arguments).map_err(|why| fault(at, &why)),
        }
    }
}

/// `ip.isCanonical('…')` has an argument, the same on a variable called `ip` has none.
fn is_family(family: &str, name: &str, arguments: usize) -> bool {
    FAMILIES.contains(&family) && (family != "ip" || (name == "isCanonical" && arguments == 1))
}

fn has(arguments: Vec<Expr>) -> Option<Expr> {
    let [argument] = <[Expr; 1]>::try_from(arguments).ok()?;
    match argument {
        Expr::Select {
            of,
            field,
            test: false,
            optional: false,
        } => Some(Expr::Select {
            of,
            field,
            test: true,
            optional: false,
        }),
        _ => None,
    }
}

fn bind(arguments: Vec<Expr>) -> Option<Expr> {
    let [name, value, body] = <[Expr; 3]>::try_from(arguments).ok()?;
    Some(Expr::Bind {
        name: simple(&name)?,
        value: value.into(),
        body: body.into(),
    })
}

fn simple(name: &Expr) -> Option<String> {
    match name {
        Expr::Name(name) => Some(name.clone()),
        _ => None,
    }
}

/// Calls on something, macros among them.
fn looping(on: Expr, name: String, mut arguments: Vec<Expr>) -> Result<Expr, String> {
    let wrong = || format!("argument must be a simple name: {name}");
    if matches!(name.as_str(), "optMap" | "optFlatMap") && arguments.len() == 2 {
        let body = arguments.pop().map(Box::new).ok_or_else(wrong)?;
        return Ok(Expr::OptMap {
            of: on.into(),
            name: arguments.first().and_then(simple).ok_or_else(wrong)?,
            body,
            flat: name == "optFlatMap",
        });
    }
    // How many names, whether there is a filter.
    let (fold, names, filter) = match (name.as_str(), arguments.len()) {
        ("all", 2) => (Fold::All, 1, false),
        ("all", 3) => (Fold::All, 2, false),
        ("exists", 2) => (Fold::Exists, 1, false),
        ("exists", 3) => (Fold::Exists, 2, false),
        ("exists_one" | "existsOne", 2) => (Fold::ExistsOne, 1, false),
        ("exists_one" | "existsOne", 3) => (Fold::ExistsOne, 2, false),
        ("filter", 2) => (Fold::Filter, 1, false),
        ("map", 2) => (Fold::Map, 1, false),
        ("map", 3) => (Fold::Map, 1, true),
        ("transformList", 3) => (Fold::Map, 2, false),
        ("transformList", 4) => (Fold::Map, 2, true),
        ("transformMap", 3) => (Fold::TransformMap, 2, false),
        ("transformMap", 4) => (Fold::TransformMap, 2, true),
        ("sortBy", 2) => (Fold::SortBy, 1, false),
        _ => {
            return Ok(Expr::Call {
                name,
                on: Some(on.into()),
                arguments,
            });
        }
    };
    let body = arguments.pop().ok_or_else(wrong)?;
    let filter = if filter { arguments.pop() } else { None };
    let names: Option<Vec<String>> = arguments.iter().take(names).map(simple).collect();
    Ok(Expr::Loop(Box::new(Loop {
        fold,
        range: on,
        names: names.ok_or_else(wrong)?,
        filter,
        body,
    })))
}

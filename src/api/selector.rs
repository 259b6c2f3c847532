//! Label and field selectors: their syntax, their texts, their matching.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::field::{ErrorList, Path};
use crate::names;

/// A set of labels, whatever holds it.
pub trait Labels {
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Labels for serde_json::Map<String, Value> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }
}

impl<T: Labels> Labels for Option<T> {
    fn label(&self, key: &str) -> Option<&str> {
        self.as_ref()?.label(key)
    }
}

impl<T: Labels> Labels for &T {
    fn label(&self, key: &str) -> Option<&str> {
        (*self).label(key)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    DoesNotExist,
    Equals,
    DoubleEquals,
    In,
    NotEquals,
    NotIn,
    Exists,
    GreaterThan,
    LessThan,
}

impl Operator {
    fn as_str(self) -> &'static str {
        match self {
            Self::DoesNotExist => "!",
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::In => "in",
            Self::NotEquals => "!=",
            Self::NotIn => "notin",
            Self::Exists => "exists",
            Self::GreaterThan => "gt",
            Self::LessThan => "lt",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

/// A text that is no selector; the message is what a client sees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);

impl Requirement {
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, ParseError> {
        Self::at(&Path::ROOT, key, operator, values)
    }

    fn at(
        path: &Path<'_>,
        key: &str,
        operator: Operator,
        values: Vec<String>,
    ) -> Result<Self, ParseError> {
        let mut errors = ErrorList::new();
        let messages = names::label_key(key);
        if !messages.is_empty() {
            errors.invalid(&path.child("key"), key, messages.join("; "));
        }
        let value_path = path.child("values");
        let mut count = |bad: bool, text: &str| {
            if bad {
                errors.invalid(&value_path, values.clone(), text);
            }
        };
        match operator {
            Operator::In | Operator::NotIn => count(
                values.is_empty(),
                "for 'in', 'notin' operators, values set can't be empty",
            ),
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => count(
                values.len() != 1,
                "exact-match compatibility requires one single value",
            ),
            Operator::Exists | Operator::DoesNotExist => count(
                !values.is_empty(),
                "values set must be empty for exists and does not exist",
            ),
            Operator::GreaterThan | Operator::LessThan => {
                count(
                    values.len() != 1,
                    "for 'Gt', 'Lt' operators, exactly one value is required",
                );
                for (index, value) in values.iter().enumerate() {
                    if value.parse::<i64>().is_err() {
                        errors.invalid(
                            &value_path.index(index),
                            value.as_str(),
                            "for 'Gt', 'Lt' operators, the value must be an integer",
                        );
                    }
                }
            }
        }
        for (index, value) in values.iter().enumerate() {
            let messages = names::label_value(value);
            if !messages.is_empty() {
                let at = value_path.index(index);
                errors.invalid(&at.key(key), value.as_str(), messages.join("; "));
            }
        }
        if errors.is_empty() {
            Ok(Self {
                key: key.to_owned(),
                operator,
                values,
            })
        } else {
            Err(ParseError(errors.aggregate()))
        }
    }

    pub fn matches(&self, labels: &impl Labels) -> bool {
        let found = labels.label(&self.key);
        let has = |value: &str| self.values.iter().any(|own| own == value);
        let number = |value: &str| value.parse::<i64>().ok();
        let compare = |greater: bool| {
            let pair = (
                found.and_then(number),
                self.values.first().and_then(|value| number(value)),
            );
            matches!(pair, (Some(label), Some(bound)) if if greater { label > bound } else { label < bound })
        };
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => found.is_some_and(has),
            Operator::NotIn | Operator::NotEquals => !found.is_some_and(has),
            Operator::Exists => found.is_some(),
            Operator::DoesNotExist => found.is_none(),
            Operator::GreaterThan => compare(true),
            Operator::LessThan => compare(false),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.join(",");
        match self.operator {
            Operator::DoesNotExist => write!(f, "!{}", self.key),
            Operator::Exists => f.write_str(&self.key),
            Operator::In | Operator::NotIn => {
                write!(f, "{} {} ({values})", self.key, self.operator.as_str())
            }
            Operator::GreaterThan => write!(f, "{}>{values}", self.key),
            Operator::LessThan => write!(f, "{}<{values}", self.key),
            _ => write!(f, "{}{}{values}", self.key, self.operator.as_str()),
        }
    }
}

/// Which labels an object must have. Without requirements everything matches; `nothing` matches
/// no object (an absent `LabelSelector`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    pub requirements: Vec<Requirement>,
    nothing: bool,
}

impl Selector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn nothing() -> Self {
        Self {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    pub fn matches(&self, labels: &impl Labels) -> bool {
        !self.nothing && self.requirements.iter().all(|one| one.matches(labels))
    }

    /// Exactly these labels, as in a Service's or ReplicationController's `selector`. Not validated.
    pub fn from_map<'a>(map: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        Self {
            requirements: map
                .into_iter()
                .map(|(key, value)| Requirement {
                    key: key.clone(),
                    operator: Operator::Equals,
                    values: vec![value.clone()],
                })
                .collect(),
            nothing: false,
        }
    }

    /// Reads a `LabelSelector` object; `null` selects nothing, `{}` everything.
    pub fn from_object(object: &Value) -> Result<Self, ParseError> {
        if object.is_null() {
            return Ok(Self::nothing());
        }
        let mut requirements = Vec::new();
        if let Some(map) = object.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in map {
                let value = value.as_str().unwrap_or_default().to_owned();
                requirements.push(Requirement::new(key, Operator::Equals, vec![value])?);
            }
        }
        let expressions = object.get("matchExpressions").and_then(Value::as_array);
        for expression in expressions.into_iter().flatten() {
            let text = |name| expression.get(name).and_then(Value::as_str).unwrap_or("");
            let operator = match text("operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(ParseError(format!(
                        "\"{other}\" is not a valid label selector operator"
                    )));
                }
            };
            let values = expression.get("values").and_then(Value::as_array);
            let values = values
                .into_iter()
                .flatten()
                .map(|value| value.as_str().unwrap_or_default().to_owned())
                .collect();
            requirements.push(Requirement::new(text("key"), operator, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self {
            requirements,
            nothing: false,
        })
    }

    /// Parses the text form, as in `labelSelector=`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut requirements = Parser::new(text).parse()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self {
            requirements,
            nothing: false,
        })
    }

    /// The value that a single `key=value` requirement demands, if there is one for `key`.
    pub fn exact(&self, key: &str) -> Option<&str> {
        self.requirements.iter().find_map(|requirement| {
            let exact = matches!(
                requirement.operator,
                Operator::Equals | Operator::DoubleEquals | Operator::In
            );
            match requirement.values.as_slice() {
                [value] if exact && requirement.key == key => Some(value.as_str()),
                _ => None,
            }
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Error,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Identifier,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

const SPECIAL: &[u8] = b"=!(),><";

fn symbol(text: &[u8]) -> Option<Token> {
    Some(match text {
        b")" => Token::Close,
        b"," => Token::Comma,
        b"!" => Token::Not,
        b"==" => Token::DoubleEquals,
        b"=" => Token::Equals,
        b">" => Token::Greater,
        b"<" => Token::Less,
        b"!=" => Token::NotEquals,
        b"(" => Token::Open,
        _ => return None,
    })
}

/// All tokens of a text, the end included.
fn tokens(text: &str) -> Vec<(Token, String)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut position = 0;
    loop {
        while position < bytes.len() && b" \t\r\n".contains(&bytes[position]) {
            position += 1;
        }
        let Some(&first) = bytes.get(position) else {
            found.push((Token::End, String::new()));
            return found;
        };
        let start = position;
        if SPECIAL.contains(&first) {
            let run = bytes[start..]
                .iter()
                .take_while(|byte| SPECIAL.contains(byte))
                .count();
            // The longest symbol that grows one character at a time.
            let longest = (1..=run)
                .take_while(|&length| symbol(&bytes[start..start + length]).is_some())
                .last();
            match longest {
                Some(length) => {
                    position += length;
                    let token = symbol(&bytes[start..position]).unwrap_or(Token::Error);
                    found.push((token, text[start..position].to_owned()));
                }
                None => {
                    position += run;
                    found.push((
                        Token::Error,
                        format!("error expected: keyword found '{}'", &text[start..position]),
                    ));
                }
            }
        } else {
            while position < bytes.len()
                && !SPECIAL.contains(&bytes[position])
                && !b" \t\r\n".contains(&bytes[position])
            {
                position += 1;
            }
            let literal = &text[start..position];
            let token = match literal {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Identifier,
            };
            found.push((token, literal.to_owned()));
        }
    }
}

/// Recursive descent over the tokens. In the place of a key or value `in` and `notin` are words.
struct Parser {
    tokens: Vec<(Token, String)>,
    position: usize,
}

fn as_value(token: Token) -> Token {
    match token {
        Token::In | Token::NotIn => Token::Identifier,
        other => other,
    }
}

fn expected<T>(literal: &str, what: &str) -> Result<T, ParseError> {
    Err(ParseError(format!("found '{literal}', expected: {what}")))
}

impl Parser {
    fn new(text: &str) -> Self {
        Self {
            tokens: tokens(text),
            position: 0,
        }
    }

    fn peek(&self) -> (Token, &str) {
        self.tokens
            .get(self.position)
            .map_or((Token::End, ""), |(token, literal)| {
                (as_value(*token), literal.as_str())
            })
    }

    fn next_raw(&mut self) -> (Token, String) {
        let item = self.tokens.get(self.position).cloned();
        self.position += 1;
        item.unwrap_or((Token::End, String::new()))
    }

    fn next(&mut self) -> (Token, String) {
        let (token, literal) = self.next_raw();
        (as_value(token), literal)
    }

    fn parse(&mut self) -> Result<Vec<Requirement>, ParseError> {
        let mut requirements = Vec::new();
        loop {
            let (token, literal) = self.peek();
            match token {
                Token::Identifier | Token::Not => {
                    let requirement = self.requirement().map_err(|error| {
                        ParseError(format!("unable to parse requirement: {}", error.0))
                    })?;
                    requirements.push(requirement);
                    let (token, literal) = self.next();
                    match token {
                        Token::End => return Ok(requirements),
                        Token::Comma => {
                            let (after, literal) = self.peek();
                            if !matches!(after, Token::Identifier | Token::Not) {
                                return expected(literal, "identifier after ','");
                            }
                        }
                        _ => return expected(&literal, "',' or 'end of string'"),
                    }
                }
                Token::End => return Ok(requirements),
                _ => return expected(literal, "!, identifier, or 'end of string'"),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let (mut token, mut key) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.next();
        }
        if token != Token::Identifier {
            return expected(&key, "identifier");
        }
        let messages = names::label_key(&key);
        if !messages.is_empty() {
            let mut errors = ErrorList::new();
            errors.invalid(&Path::ROOT, key.as_str(), messages.join("; "));
            return Err(ParseError(errors.aggregate()));
        }
        if negated {
            return Requirement::new(&key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(&key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => self.exact_value()?,
        };
        values.sort();
        values.dedup();
        Requirement::new(&key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, ParseError> {
        let (token, literal) = self.next_raw();
        Ok(match token {
            Token::In => Operator::In,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            Token::NotIn => Operator::NotIn,
            Token::NotEquals => Operator::NotEquals,
            _ => return expected(&literal, "in, notin, =, ==, !=, gt, lt"),
        })
    }

    fn values(&mut self) -> Result<Vec<String>, ParseError> {
        let (token, literal) = self.next();
        if token != Token::Open {
            return Err(ParseError(format!("found '{literal}' expected: '('")));
        }
        let (token, literal) = self.peek();
        match token {
            Token::Identifier | Token::Comma => {
                let literal = literal.to_owned();
                let values = self.identifiers()?;
                if self.next().0 != Token::Close {
                    return expected(&literal, "')'");
                }
                Ok(values)
            }
            Token::Close => {
                self.position += 1;
                Ok(vec![String::new()])
            }
            _ => expected(literal, "',', ')' or identifier"),
        }
    }

    fn identifiers(&mut self) -> Result<Vec<String>, ParseError> {
        let mut values = Vec::new();
        loop {
            let (token, literal) = self.next();
            match token {
                Token::Identifier => {
                    values.push(literal);
                    let (token, literal) = self.peek();
                    match token {
                        Token::Comma => {}
                        Token::Close => return Ok(values),
                        _ => return expected(literal, "',' or ')'"),
                    }
                }
                Token::Comma => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    match self.peek().0 {
                        Token::Close => {
                            values.push(String::new());
                            return Ok(values);
                        }
                        Token::Comma => values.push(String::new()),
                        _ => {}
                    }
                }
                _ => return expected(&literal, "',', or identifier"),
            }
        }
    }

    fn exact_value(&mut self) -> Result<Vec<String>, ParseError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(vec![String::new()]);
        }
        let (token, literal) = self.next();
        if token == Token::Identifier {
            return Ok(vec![literal]);
        }
        expected(&literal, "identifier")
    }
}

/// One comparison of a field selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTerm {
    pub field: String,
    pub value: String,
    /// False for `!=`.
    pub equal: bool,
}

/// Which fields an object must have; without terms everything matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    pub terms: Vec<FieldTerm>,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (field, equal, value) = split_term(part).ok_or_else(|| {
                ParseError(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                ))
            })?;
            terms.push(FieldTerm {
                field: field.to_owned(),
                value: unescape(value)?,
                equal,
            });
        }
        Ok(Self { terms })
    }

    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// `value_of` gives a field's text, empty if the object lacks it.
    pub fn matches<'a>(&self, value_of: impl Fn(&str) -> std::borrow::Cow<'a, str>) -> bool {
        self.terms
            .iter()
            .all(|term| (value_of(&term.field) == term.value) == term.equal)
    }

    /// The value that `field=value` demands, for fast paths such as `metadata.name`.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| term.equal && term.field == field)
            .map(|term| term.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let operator = if term.equal { "=" } else { "!=" };
            let value = term.value.replace('\\', "\\\\");
            let value = value.replace(',', "\\,").replace('=', "\\=");
            write!(f, "{}{operator}{value}", term.field)?;
        }
        Ok(())
    }
}

/// Splits at commas that are not escaped.
fn split_terms(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let position = term.find(['=', '!']).map(|found| {
        // A lone `!` is part of the name.
        let mut position = found;
        while !term[position..].starts_with('=') && !term[position..].starts_with("!=") {
            match term[position + 1..].find(['=', '!']) {
                Some(next) => position += 1 + next,
                None => return usize::MAX,
            }
        }
        position
    })?;
    let rest = term.get(position..)?;
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some(value) = rest.strip_prefix(operator) {
            return Some((&term[..position], equal, value));
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, ParseError> {
    let mut text = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(next @ ('\\' | ',' | '=')) => text.push(next),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    return Err(ParseError(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    )));
                }
            },
            ',' | '=' => {
                return Err(ParseError(format!(
                    "invalid field selector: unescaped character in value: {}",
                    character as u32
                )));
            }
            other => text.push(other),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn parse_and_match() {
        let set = labels(&[("a", "1"), ("app", "web")]);
        for (text, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,a", true),
            ("app!=web", false),
            ("!missing", true),
            ("app in (web,db)", true),
            ("app notin (web)", false),
            ("missing notin (x)", true),
            ("a>0,a<2", true),
            ("a>1", false),
            ("in in (in)", false),
            ("app in (,)", false),
        ] {
            assert_eq!(
                Selector::parse(text).unwrap().matches(&set),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn texts_of_errors() {
        let error = |text| Selector::parse(text).unwrap_err().0;
        assert_eq!(error("a,"), "found '', expected: identifier after ','");
        assert_eq!(
            error("a in b"),
            "unable to parse requirement: found 'b' expected: '('"
        );
        assert!(
            error("a=!")
                .starts_with("unable to parse requirement: found '!', expected: identifier")
        );
        assert!(error("-=x").starts_with(
            "unable to parse requirement: <nil>: Invalid value: \"-\": name part must consist"
        ));
    }

    #[test]
    fn objects() {
        let selector = Selector::from_object(&serde_json::json!({
            "matchLabels": {"a": "1"},
            "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}],
        }))
        .unwrap();
        assert!(selector.matches(&labels(&[("a", "1")])));
        assert!(!selector.matches(&labels(&[("a", "1"), ("b", "")])));
        assert_eq!(selector.to_string(), "a=1,!b");
        assert!(
            !Selector::from_object(&Value::Null)
                .unwrap()
                .matches(&labels(&[]))
        );
    }

    #[test]
    fn fields() {
        let selector = FieldSelector::parse("metadata.name=a\\,b,spec.nodeName!=").unwrap();
        assert_eq!(selector.exact("metadata.name"), Some("a,b"));
        assert!(selector.matches(|field| match field {
            "metadata.name" => "a,b".into(),
            _ => "n".into(),
        }));
        assert_eq!(
            FieldSelector::parse("x").unwrap_err().0,
            "invalid selector: 'x'; can't understand 'x'"
        );
    }
}

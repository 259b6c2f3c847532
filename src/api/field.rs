//! Field paths and field errors: what validation returns, worded as upstream words it.

use std::fmt;

use serde_json::Value;

use crate::status::{Cause, Details, Reason, Status, qualified};

/// Where in an object a value is. A chain of borrowed steps: nothing is allocated until an error
/// is made. A step may itself be dotted (`child("spec.template")`).
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Child(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The object itself.
    pub const ROOT: Path<'static> = Path {
        parent: None,
        step: Step::Root,
    };

    pub const fn new(name: &'a str) -> Self {
        Self {
            parent: None,
            step: Step::Child(name),
        }
    }

    pub const fn child(&'a self, name: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Child(name),
        }
    }

    pub const fn index(&'a self, index: usize) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Index(index),
        }
    }

    pub const fn key(&'a self, key: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Key(key),
        }
    }

    fn is_root(&self) -> bool {
        matches!(self.step, Step::Root)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Child(name) => {
                if self.parent.is_some_and(|parent| !parent.is_root()) {
                    f.write_str(".")?;
                }
                f.write_str(name)
            }
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}

impl fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is wrong with a field; the strings are the `reason` of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooShort,
    TooMany,
    TooFew,
    TypeInvalid,
    Internal,
}

impl ErrorKind {
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooShort => "FieldValueTooShort",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooShort => "Too short",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(
            self,
            Self::Required | Self::Forbidden | Self::TooLong | Self::TooShort | Self::Internal
        )
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub field: String,
    /// `None`: not shown.
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    /// The message without the field's name.
    pub fn body(&self) -> String {
        let mut text = self.kind.words().to_owned();
        if let (true, Some(value)) = (self.kind.shows_value(), &self.value) {
            text.push_str(": ");
            match value {
                Value::String(string) => text.push_str(&go_quote(string)),
                other => text.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// A string as Go's `%q` writes it.
pub fn go_quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\u{b}' => quoted.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                quoted.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// All errors of one object, in the order they were found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ErrorList(pub Vec<FieldError>);

impl ErrorList {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn extend(&mut self, other: ErrorList) {
        self.0.extend(other.0);
    }

    pub fn add(
        &mut self,
        kind: ErrorKind,
        path: &Path<'_>,
        value: Option<Value>,
        detail: impl Into<String>,
    ) {
        let field = if path.is_root() {
            "<nil>".to_owned()
        } else {
            path.to_string()
        };
        self.0.push(FieldError {
            kind,
            field,
            value,
            detail: detail.into(),
        });
    }

    pub fn required(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(ErrorKind::Required, path, None, detail);
    }

    pub fn invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) {
        self.add(ErrorKind::Invalid, path, Some(value.into()), detail);
    }

    /// One `invalid` error for each message.
    pub fn invalid_each(&mut self, path: &Path<'_>, value: &str, messages: Vec<String>) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }

    pub fn duplicate(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.add(ErrorKind::Duplicate, path, Some(value.into()), "");
    }

    pub fn not_found(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.add(ErrorKind::NotFound, path, Some(value.into()), "");
    }

    pub fn not_supported(&mut self, path: &Path<'_>, value: impl Into<Value>, valid: &[&str]) {
        let quoted: Vec<String> = valid.iter().map(|text| go_quote(text)).collect();
        let detail = if valid.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        self.add(ErrorKind::NotSupported, path, Some(value.into()), detail);
    }

    pub fn forbidden(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(ErrorKind::Forbidden, path, None, detail);
    }

    pub fn too_long(&mut self, path: &Path<'_>, max_bytes: usize) {
        let unit = if max_bytes == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max_bytes} {unit}");
        self.add(ErrorKind::TooLong, path, None, detail);
    }

    pub fn too_many(&mut self, path: &Path<'_>, actual: usize, max: usize) {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        self.add(ErrorKind::TooMany, path, Some(actual.into()), detail);
    }

    pub fn internal(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(ErrorKind::Internal, path, None, detail);
    }

    /// The messages in one line: alone as it is, several in brackets; equal ones once.
    pub fn aggregate(&self) -> String {
        let mut messages: Vec<String> = Vec::with_capacity(self.0.len());
        for error in &self.0 {
            let message = error.to_string();
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        if messages.len() == 1 {
            messages.remove(0)
        } else {
            format!("[{}]", messages.join(", "))
        }
    }

    /// The `Status` with reason `Invalid` for these errors.
    pub fn to_status(&self, group: &str, kind: &str, name: &str) -> Status {
        let what = qualified(kind, group);
        let message = if self.is_empty() {
            format!("{what} {} is invalid", go_quote(name))
        } else {
            format!("{what} {} is invalid: {}", go_quote(name), self.aggregate())
        };
        let causes = self
            .0
            .iter()
            .map(|error| Cause {
                reason: error.kind.reason().to_owned(),
                message: error.body(),
                field: error.field.clone(),
            })
            .collect();
        Status::new(Reason::Invalid, message).with_details(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes,
            ..Details::default()
        })
    }

    /// `Ok` if there are none, else the status.
    pub fn into_result(self, group: &str, kind: &str, name: &str) -> Result<(), Status> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.to_status(group, kind, name))
        }
    }
}

impl IntoIterator for ErrorList {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_bodies() {
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        let mut errors = ErrorList::new();
        errors.invalid(&first.child("name"), "A", "bad");
        errors.required(&spec.child("x").key("k"), "");
        errors.not_supported(&spec, "q", &["a", "b"]);
        assert_eq!(
            errors.aggregate(),
            "[spec.containers[0].name: Invalid value: \"A\": bad, spec.x[k]: Required value, \
             spec: Unsupported value: \"q\": supported values: \"a\", \"b\"]"
        );
        let status = errors.to_status("apps", "Deployment", "d");
        assert!(
            status
                .message
                .starts_with("Deployment.apps \"d\" is invalid: [")
        );
        assert_eq!(status.code, 422);
    }
}

//! What is known of an expression's type before it runs.

use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub enum Type {
    /// Anything; what it is shows when it runs.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Duration,
    Time,
    List(Box<Type>),
    /// Keys are text where they are known.
    Map(Box<Type>),
    /// An object with exactly these fields.
    Object(Arc<Vec<(String, Type)>>),
    Optional(Box<Type>),
    Type,
    /// One of the kinds of the libraries.
    Opaque(&'static str),
}

impl Type {
    /// As it is named in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Dyn => "dyn".to_owned(),
            Self::Null => "null".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Int => "int".to_owned(),
            Self::Uint => "uint".to_owned(),
            Self::Double => "double".to_owned(),
            Self::Text => "string".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Duration => "duration".to_owned(),
            Self::Time => "timestamp".to_owned(),
            Self::List(of) => format!("list({})", of.name()),
            Self::Map(of) => format!("map(string, {})", of.name()),
            Self::Object(_) => "object".to_owned(),
            Self::Optional(of) => format!("optional_type({})", of.name()),
            Self::Type => "type".to_owned(),
            Self::Opaque(name) => (*name).to_owned(),
        }
    }

    /// Whether a value of both types is possible.
    pub(super) fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            (Self::List(a), Self::List(b)) | (Self::Map(a), Self::Map(b)) => a.meets(b),
            (Self::Optional(a), Self::Optional(b)) => a.meets(b),
            (Self::Object(_) | Self::Map(_), Self::Object(_) | Self::Map(_)) => true,
            // Whatever may be missing is compared with null.
            (Self::Null, _) | (_, Self::Null) => true,
            (a, b) => a == b,
        }
    }

    /// The type of what may be either.
    pub(super) fn joined(self, other: &Self) -> Self {
        if self == *other { self } else { Self::Dyn }
    }
}

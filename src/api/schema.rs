//! The schema of a type: one form for built-in types (static tables) and custom resources (built at
//! run time). Decoding, defaulting, pruning, strategic merge, server-side apply, protobuf and
//! OpenAPI all read it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::custom::columns::CustomColumn;
use crate::custom::rules::Rules;
use crate::resource::Name;

mod decode;
mod strict;
mod types;

pub use decode::{DecodeError, Strictness};
pub use strict::strict_errors;
pub use types::{by_name, of_kind};

/// A reference to a schema, static or shared.
#[derive(Clone)]
pub enum SchemaRef {
    Static(&'static Schema),
    Shared(Arc<Schema>),
}

impl Deref for SchemaRef {
    type Target = Schema;
    fn deref(&self) -> &Schema {
        match self {
            Self::Static(schema) => schema,
            Self::Shared(schema) => schema,
        }
    }
}

/// A list that is a table's or its own.
#[derive(Debug)]
pub enum Slice<T: 'static> {
    Static(&'static [T]),
    Owned(Vec<T>),
}

impl<T> Deref for Slice<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Static(items) => items,
            Self::Owned(items) => items,
        }
    }
}

pub struct Schema {
    /// The OpenAPI name of a named type, else empty.
    pub name: Name,
    pub shape: Shape,
    /// `null` is a value of its own (custom resources only).
    pub nullable: bool,
}

/// Types refer to each other in circles, so only the name is printed.
impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({})", self.name)
    }
}

impl fmt::Debug for SchemaRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

#[derive(Debug)]
pub enum Shape {
    /// Anything, kept as it is.
    Any,
    String,
    /// Base64 text.
    Bytes,
    Boolean,
    Int32,
    Int64,
    Double,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// An object of any kind (`RawExtension`).
    Raw,
    /// `FieldsV1`.
    Fields,
    /// Any JSON, in the fields of a CustomResourceDefinition.
    Json,
    /// A schema, or something simpler in its place.
    SchemaOr(SchemaRef, Or),
    Struct(Struct),
    Map(Map),
    List(List),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Or {
    Bool,
    Array,
    Strings,
}

#[derive(Debug)]
pub struct Struct {
    /// Ordered by name.
    pub fields: Slice<Field>,
    /// One unit for server-side apply.
    pub atomic: bool,
    pub union: Option<&'static Union>,
    /// Fields the schema does not name are kept (custom resources only).
    pub preserve_unknown: bool,
    /// The schema of fields that are not named (custom resources only).
    pub additional: Option<SchemaRef>,
    /// An object of its own with apiVersion, kind and metadata (custom resources only).
    pub embedded: bool,
}

#[derive(Debug)]
pub struct Union {
    pub discriminator: &'static str,
    /// Field and the discriminator's value for it.
    pub members: &'static [(&'static str, &'static str)],
}

#[derive(Debug)]
pub struct Map {
    pub value: SchemaRef,
    pub atomic: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    Atomic,
    Set,
    Map,
}

#[derive(Debug)]
pub struct List {
    pub item: SchemaRef,
    pub kind: ListKind,
    /// The key fields of a `Map` list.
    pub keys: Slice<Name>,
    /// For strategic merge patch: `Some("name")` merges by that key, `Some("")` merges scalars,
    /// `None` replaces.
    pub merge: Option<&'static str>,
    /// In protobuf the list is a message of its own.
    pub wrapped: bool,
}

#[derive(Debug)]
pub struct Field {
    pub name: Name,
    pub schema: SchemaRef,
    pub required: bool,
    /// Absent and zero are different.
    pub pointer: bool,
    /// Written even when absent: without `omitempty`, or a struct by value.
    pub always: bool,
    pub default: FieldDefault,
    /// Strategic merge patch honours `$retainKeys` here.
    pub retain_keys: bool,
    /// Strategic merge patch replaces the struct.
    pub replace: bool,
    /// Protobuf field number, 0 if it has none, …
    pub tag: u32,
    /// … inside these nested messages.
    pub via: &'static [u32],
}

/// A default that the schema itself states.
#[derive(Debug)]
pub enum FieldDefault {
    /// JSON text, for built-in types.
    Text(Option<&'static str>),
    Value(serde_json::Value),
}

impl FieldDefault {
    pub fn value(&self) -> Option<serde_json::Value> {
        match self {
            Self::Text(text) => text.and_then(|text| serde_json::from_str(text).ok()),
            Self::Value(value) => Some(value.clone()),
        }
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::Text(None))
    }
}

impl Schema {
    pub(crate) const fn builtin(name: &'static str, shape: Shape) -> Self {
        Self {
            name: Name::Borrowed(name),
            shape,
            nullable: false,
        }
    }

    pub fn as_struct(&self) -> Option<&Struct> {
        match &self.shape {
            Shape::Struct(structure) => Some(structure),
            _ => None,
        }
    }

    /// The field of a struct.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.as_struct()?.field(name)
    }
}

impl Struct {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields
            .binary_search_by(|field| field.name.as_ref().cmp(name))
            .ok()
            .map(|index| &self.fields[index])
    }
}

/// What a CustomResourceDefinition says of its versions.
#[derive(Debug, Default)]
pub struct CustomSchema {
    /// The definition's uid …
    pub uid: String,
    /// … and which state of it this is.
    pub generation: i64,
    /// The version that is stored.
    pub storage: String,
    /// Versions are converted by a webhook, not by their name alone.
    pub by_webhook: bool,
    pub versions: Vec<CustomVersion>,
}

/// One version of a custom resource.
#[derive(Debug)]
pub struct CustomVersion {
    pub name: String,
    /// `None` if everything is kept.
    pub schema: Option<SchemaRef>,
    /// The same as the definition writes it.
    pub raw: serde_json::Value,
    /// Rules in CEL.
    pub rules: Option<Rules>,
    /// What clients are told if it is deprecated.
    pub deprecation: Option<String>,
    pub columns: Vec<CustomColumn>,
    /// The paths of the scale subresource; null without one.
    pub scale: serde_json::Value,
}

impl CustomSchema {
    /// The schema of a version; `None` if everything is kept.
    pub fn version(&self, name: &str) -> Option<&Schema> {
        self.of(name)?.schema.as_deref()
    }

    pub fn of(&self, name: &str) -> Option<&CustomVersion> {
        self.versions.iter().find(|version| version.name == name)
    }
}

//! The schema of a custom resource in the one form that apply and OpenAPI read.

use std::sync::Arc;

use serde_json::Value;

use crate::meta::{boolean, get, items, text};
use crate::resource::Name;
use crate::schema::{
    self, Field, FieldDefault, List, ListKind, Map, Schema, SchemaRef, Shape, Slice, Struct,
};

/// The schema of whole objects; `None` if everything in them is kept.
pub fn of_root(schema: &Value) -> Option<SchemaRef> {
    if !get(schema, "properties").is_object()
        && boolean(schema, &["x-kubernetes-preserve-unknown-fields"])
    {
        return None;
    }
    let structure = structure(schema, true);
    Some(shared(Shape::Struct(structure), false))
}

fn shared(shape: Shape, nullable: bool) -> SchemaRef {
    SchemaRef::Shared(Arc::new(Schema {
        name: Name::Borrowed(""),
        shape,
        nullable,
    }))
}

fn of(schema: &Value) -> SchemaRef {
    let nullable = boolean(schema, &["nullable"]);
    let shape = if boolean(schema, &["x-kubernetes-int-or-string"]) {
        Shape::IntOrString
    } else {
        match text(schema, &["type"]) {
            "string" => Shape::String,
            "integer" => Shape::Int64,
            "number" => Shape::Double,
            "boolean" => Shape::Boolean,
            "array" => Shape::List(list(schema)),
            "object" => object(schema),
            _ => Shape::Any,
        }
    };
    shared(shape, nullable)
}

fn is_atomic(schema: &Value) -> bool {
    text(schema, &["x-kubernetes-map-type"]) == "atomic"
}

fn object(schema: &Value) -> Shape {
    let additional = get(schema, "additionalProperties");
    if additional.is_object() && !get(schema, "properties").is_object() {
        return Shape::Map(Map {
            value: of(additional),
            atomic: is_atomic(schema),
        });
    }
    Shape::Struct(structure(
        schema,
        boolean(schema, &["x-kubernetes-embedded-resource"]),
    ))
}

fn structure(schema: &Value, embedded: bool) -> Struct {
    let properties = get(schema, "properties").as_object();
    let required = items(schema, &["required"]);
    let mut fields: Vec<Field> = properties
        .into_iter()
        .flatten()
        .filter(|(name, _)| {
            !(embedded && ["apiVersion", "kind", "metadata"].contains(&name.as_str()))
        })
        .map(|(name, property)| Field {
            required: required.iter().any(|one| one == name),
            ..field(name, of(property), property.get("default"))
        })
        .collect();
    if embedded {
        let metadata = schema::by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        let metadata = metadata.map_or_else(|| shared(Shape::Any, false), SchemaRef::Static);
        fields.push(field("apiVersion", shared(Shape::String, false), None));
        fields.push(field("kind", shared(Shape::String, false), None));
        fields.push(field("metadata", metadata, None));
    }
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    let additional = get(schema, "additionalProperties");
    Struct {
        fields: Slice::Owned(fields),
        atomic: is_atomic(schema),
        union: None,
        preserve_unknown: boolean(schema, &["x-kubernetes-preserve-unknown-fields"])
            || additional == &Value::Bool(true),
        additional: additional.is_object().then(|| of(additional)),
        embedded,
    }
}

fn field(name: &str, schema: SchemaRef, default: Option<&Value>) -> Field {
    Field {
        name: Name::Owned(name.to_owned()),
        schema,
        required: false,
        pointer: true,
        always: false,
        default: default.map_or(FieldDefault::Text(None), |value| {
            FieldDefault::Value(value.clone())
        }),
        retain_keys: false,
        replace: false,
        tag: 0,
        via: &[],
    }
}

fn list(schema: &Value) -> List {
    let keys = items(schema, &["x-kubernetes-list-map-keys"]).iter();
    let keys = keys
        .filter_map(|key| Some(Name::Owned(key.as_str()?.to_owned())))
        .collect();
    List {
        item: of(get(schema, "items")),
        kind: match text(schema, &["x-kubernetes-list-type"]) {
            "set" => ListKind::Set,
            "map" => ListKind::Map,
            _ => ListKind::Atomic,
        },
        keys: Slice::Owned(keys),
        merge: None,
        wrapped: false,
    }
}

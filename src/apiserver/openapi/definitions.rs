//! Types as OpenAPI schemas.

use std::collections::BTreeMap;

use sampan_api::registry::ServedVersion;
use sampan_api::schema::{self, Field, List, ListKind, Or, Schema, Shape, Struct};
use sampan_api::{ResourceDef, resource};
use serde_json::{Map, Value, json};

use super::{Flavor, custom};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// The types that a document refers to, gathered as they are met.
pub(super) struct Definitions {
    flavor: Flavor,
    /// `None` while a type is being rendered: types refer to each other in circles.
    done: BTreeMap<String, Option<Value>>,
}

impl Definitions {
    pub(super) fn new(flavor: Flavor) -> Self {
        Self {
            flavor,
            done: BTreeMap::new(),
        }
    }

    pub(super) fn flavor(&self) -> Flavor {
        self.flavor
    }

    pub(super) fn finish(self) -> Value {
        let all: Map<String, Value> = self
            .done
            .into_iter()
            .filter_map(|(name, definition)| Some((name, definition?)))
            .collect();
        all.into()
    }

    /// The kind of a row and the kind of its list.
    pub(super) fn add_row(&mut self, row: &ResourceDef, served: &ServedVersion) {
        let Some(name) = self.kind_name(row, served) else {
            return;
        };
        let gvk = json!([{
            "group": served.group,
            "kind": row.kind,
            "version": served.version,
        }]);
        if let Some(Some(definition)) = self.done.get_mut(&name) {
            definition["x-kubernetes-group-version-kind"] = gvk;
        }
        if row.allows(resource::Verb::List) {
            let list = self.list_definition(row, served, &name);
            self.done.insert(format!("{name}List"), Some(list));
        }
    }

    /// The name of a row's kind, whose definition is made if it is not there yet.
    pub(super) fn kind_name(
        &mut self,
        row: &ResourceDef,
        served: &ServedVersion,
    ) -> Option<String> {
        if row.is_custom() {
            return Some(self.custom_kind(row, served));
        }
        self.builtin_kind(&served.group, &served.version, &row.kind)
    }

    pub(super) fn builtin_kind(
        &mut self,
        group: &str,
        version: &str,
        kind: &str,
    ) -> Option<String> {
        let schema = schema::of_kind(group, version, kind)?;
        self.named(schema);
        Some(schema.name.to_string())
    }

    /// `com.example.v1.Thing` for `things.example.com`.
    fn custom_kind(&mut self, row: &ResourceDef, served: &ServedVersion) -> String {
        let mut parts: Vec<&str> = served.group.split('.').collect();
        parts.reverse();
        let name = format!("{}.{}.{}", parts.join("."), served.version, row.kind);
        if self.done.contains_key(&name) {
            return name;
        }
        self.done.insert(name.clone(), None);
        let version = row
            .custom
            .as_ref()
            .and_then(|custom| custom.of(&served.version));
        let metadata = self.meta("ObjectMeta");
        let raw = version.map_or(&Value::Null, |version| &version.raw);
        let definition = custom::root(raw, &metadata, self.flavor);
        self.done.insert(name.clone(), Some(definition));
        name
    }

    fn list_definition(&mut self, row: &ResourceDef, served: &ServedVersion, item: &str) -> Value {
        let metadata = self.meta("ListMeta");
        json!({
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": metadata,
                "items": {"type": "array", "items": self.reference(item)},
            },
            "x-kubernetes-group-version-kind": [{
                "group": served.group,
                "kind": row.list_kind,
                "version": served.version,
            }],
        })
    }

    /// A reference to a type of `meta/v1`.
    pub(super) fn meta(&mut self, kind: &str) -> Value {
        let name = format!("{META}.{kind}");
        match schema::by_name(&name) {
            Some(schema) => {
                self.named(schema);
                self.reference(&name)
            }
            None => json!({"type": "object"}),
        }
    }

    pub(super) fn reference(&self, name: &str) -> Value {
        match self.flavor {
            Flavor::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Flavor::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }

    /// Renders a named type once.
    fn named(&mut self, schema: &Schema) {
        let name = schema.name.to_string();
        if self.done.contains_key(&name) {
            return;
        }
        self.done.insert(name.clone(), None);
        let definition = self.inline(schema);
        self.done.insert(name, Some(definition));
    }

    /// A reference to a type that has a name without a table of fields.
    fn scalar(&mut self, name: String, definition: Value) -> Value {
        let reference = self.reference(&name);
        self.done.entry(name).or_insert(Some(definition));
        reference
    }

    /// How a field or element of this type is written.
    fn use_of(&mut self, schema: &Schema) -> Value {
        let v2 = self.flavor == Flavor::V2;
        match &schema.shape {
            Shape::Struct(_) if !schema.name.is_empty() => {
                self.named(schema);
                self.reference(&schema.name)
            }
            Shape::Time => self.scalar(
                format!("{META}.Time"),
                json!({"type": "string", "format": "date-time"}),
            ),
            Shape::MicroTime => self.scalar(
                format!("{META}.MicroTime"),
                json!({"type": "string", "format": "date-time"}),
            ),
            Shape::Quantity => self.scalar(
                "io.k8s.apimachinery.pkg.api.resource.Quantity".to_owned(),
                if v2 {
                    json!({"type": "string"})
                } else {
                    json!({"oneOf": [{"type": "string"}, {"type": "number"}]})
                },
            ),
            Shape::IntOrString => self.scalar(
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString".to_owned(),
                if v2 {
                    json!({"type": "string", "format": "int-or-string"})
                } else {
                    json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
                },
            ),
            Shape::Raw => self.scalar(
                "io.k8s.apimachinery.pkg.runtime.RawExtension".to_owned(),
                json!({"type": "object"}),
            ),
            Shape::Fields => {
                self.scalar(format!("{META}.FieldsV1"), json!({"type": "object"}))
            }
            Shape::Json => self.scalar(format!("{EXTENSIONS}.JSON"), json!({})),
            Shape::SchemaOr(_, or) => {
                let kind = match or {
                    Or::Bool => "Bool",
                    Or::Array => "Array",
                    Or::Strings => "StringArray",
                };
                self.scalar(format!("{EXTENSIONS}.JSONSchemaPropsOr{kind}"), json!({}))
            }
            _ => self.inline(schema),
        }
    }

    /// The type itself, written out.
    fn inline(&mut self, schema: &Schema) -> Value {
        match &schema.shape {
            Shape::String => json!({"type": "string"}),
            Shape::Bytes => json!({"type": "string", "format": "byte"}),
            Shape::Boolean => json!({"type": "boolean"}),
            Shape::Int32 => json!({"type": "integer", "format": "int32"}),
            Shape::Int64 => json!({"type": "integer", "format": "int64"}),
            Shape::Double => json!({"type": "number", "format": "double"}),
            Shape::Map(map) => {
                let value = self.use_of(&map.value);
                let mut out = json!({"type": "object", "additionalProperties": value});
                if map.atomic {
                    out["x-kubernetes-map-type"] = "atomic".into();
                }
                out
            }
            Shape::List(list) => self.list(list),
            Shape::Struct(structure) => self.structure(structure),
            Shape::Any => json!({}),
            _ => self.use_of(schema),
        }
    }

    fn list(&mut self, list: &List) -> Value {
        let items = self.use_of(&list.item);
        let mut out = json!({"type": "array", "items": items});
        out["x-kubernetes-list-type"] = match list.kind {
            ListKind::Atomic => "atomic",
            ListKind::Set => "set",
            ListKind::Map => "map",
        }
        .into();
        if !list.keys.is_empty() {
            out["x-kubernetes-list-map-keys"] = list
                .keys
                .iter()
                .map(|key| Value::from(key.as_ref()))
                .collect();
        }
        if let Some(key) = list.merge {
            out["x-kubernetes-patch-strategy"] = "merge".into();
            if !key.is_empty() {
                out["x-kubernetes-patch-merge-key"] = key.into();
            }
        }
        out
    }

    fn structure(&mut self, structure: &Struct) -> Value {
        let mut out = Map::new();
        out.insert("type".to_owned(), "object".into());
        let mut properties = Map::new();
        let mut required: Vec<Value> = Vec::new();
        for field in structure.fields.iter() {
            properties.insert(field.name.to_string(), self.property(field));
            if field.required {
                required.push(field.name.as_ref().into());
            }
        }
        if !properties.is_empty() {
            out.insert("properties".to_owned(), properties.into());
        }
        if !required.is_empty() {
            out.insert("required".to_owned(), required.into());
        }
        if let Some(additional) = &structure.additional {
            out.insert("additionalProperties".to_owned(), self.use_of(additional));
        }
        if structure.atomic {
            out.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
        }
        if structure.preserve_unknown {
            out.insert(
                "x-kubernetes-preserve-unknown-fields".to_owned(),
                true.into(),
            );
        }
        if structure.embedded {
            out.insert("x-kubernetes-embedded-resource".to_owned(), true.into());
        }
        if let Some(union) = structure.union {
            let members: Map<String, Value> = union
                .members
                .iter()
                .map(|(field, value)| ((*field).to_owned(), (*value).into()))
                .collect();
            let mut entry = json!({"fields-to-discriminateBy": members});
            if !union.discriminator.is_empty() {
                entry["discriminator"] = union.discriminator.into();
            }
            out.insert("x-kubernetes-unions".to_owned(), json!([entry]));
        }
        out.into()
    }

    fn property(&mut self, field: &Field) -> Value {
        let mut out = self.use_of(&field.schema);
        let default = field.default.value();
        let mut strategies: Vec<&str> = Vec::new();
        if let Some(strategy) = out["x-kubernetes-patch-strategy"].as_str() {
            strategies.push(if strategy == "merge" { "merge" } else { "" });
        }
        if field.retain_keys {
            strategies.push("retainKeys");
        }
        if field.replace {
            strategies.push("replace");
        }
        let plain_struct = matches!(field.schema.shape, Shape::Struct(_)) && !field.pointer;
        let default = default.or_else(|| plain_struct.then(|| json!({})));
        let has_more = default.is_some() || !strategies.is_empty();
        // A reference stands alone in version 3; what belongs to the field goes around it.
        if self.flavor == Flavor::V3 && has_more && out.get("$ref").is_some() {
            out = json!({"allOf": [out]});
        }
        if let Some(default) = default
            && (self.flavor == Flavor::V3 || default != json!({}))
        {
            out["default"] = default;
        }
        if !strategies.is_empty() {
            out["x-kubernetes-patch-strategy"] = strategies.join(",").into();
        } else if let Some(map) = out.as_object_mut() {
            map.remove("x-kubernetes-patch-strategy");
        }
        out
    }
}

//! `as=Table`: lists and objects as rows for people.

use std::sync::Arc;

use bytes::Bytes;
use sampan_api::ResourceDef;
use sampan_api::custom::columns::CustomColumn;
use sampan_api::registry::ServedVersion;
use sampan_api::schema::CustomSchema;
use sampan_api::table::{Column, Printer, printer};
use sampan_client::List;
use serde_json::{Value, json};

use super::respond::{self, Form};

/// How much of each object goes into its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    /// The value of the `includeObject` option.
    pub fn parse(value: Option<&str>) -> Self {
        match value {
            Some("None") => Self::None,
            Some("Object") => Self::Object,
            _ => Self::Metadata,
        }
    }
}

/// Where a resource's columns come from.
#[derive(Clone)]
pub struct TableSource {
    printer: &'static Printer,
    /// A definition that says itself how its objects are shown, and which version.
    custom: Option<(Arc<CustomSchema>, String)>,
    now: jiff::Timestamp,
}

impl TableSource {
    /// `kind` is that of the objects that are shown: a subresource may have its own, and then no version.
    pub fn new(
        def: &ResourceDef,
        version: Option<&ServedVersion>,
        kind: (&str, &str),
        now: jiff::Timestamp,
    ) -> Self {
        Self {
            printer: printer(kind.0, kind.1, def.is_custom() && version.is_some()),
            custom: def
                .custom
                .clone()
                .zip(version.map(|version| version.version.to_string())),
            now,
        }
    }

    /// Columns that the definition asks for; none if it leaves that to us.
    fn own_columns(&self) -> &[CustomColumn] {
        let version = self
            .custom
            .as_ref()
            .and_then(|(custom, version)| custom.of(version));
        version.map_or(&[], |version| &version.columns)
    }

    /// The same at another time.
    #[must_use]
    pub fn at(&self, now: jiff::Timestamp) -> Self {
        Self {
            now,
            ..self.clone()
        }
    }

    #[cfg(test)]
    pub fn plain() -> Self {
        Self {
            printer: printer("", "ConfigMap", false),
            custom: None,
            now: jiff::Timestamp::UNIX_EPOCH,
        }
    }
}

/// The Table of `items`; `list` gives the list's metadata. A watch describes columns only once.
pub fn render(
    items: &[Bytes],
    source: &TableSource,
    form: &Form,
    list: Option<&List>,
    with_columns: bool,
) -> Vec<u8> {
    let version = if form.negotiated.beta_transform {
        "meta.k8s.io/v1beta1"
    } else {
        "meta.k8s.io/v1"
    };
    let metadata = match list {
        Some(list) => respond::list_metadata(list),
        None => items.first().map_or_else(
            || json!({}),
            |item| json!({"resourceVersion": resource_version(item)}),
        ),
    };
    let columns = if with_columns {
        columns(source)
    } else {
        Value::Null
    };
    let mut out = format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"columnDefinitions\":{columns},\"rows\":["
    )
    .into_bytes();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        append_row(&mut out, item, source, form, version);
    }
    out.extend_from_slice(b"]}");
    out
}

fn resource_version(object: &Bytes) -> String {
    sampan_api::Meta::from_bytes(object)
        .map(|meta| meta.resource_version)
        .unwrap_or_default()
}

fn columns(source: &TableSource) -> Value {
    let describe = |column: &Column| {
        json!({
            "name": column.name,
            "type": column.kind,
            "format": column.format,
            "description": "",
            "priority": i32::from(column.wide),
        })
    };
    let own = source.own_columns();
    if own.is_empty() {
        return source.printer.columns().iter().map(describe).collect();
    }
    let name = json!({"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0});
    let own = own.iter().map(|column| {
        json!({
            "name": column.name,
            "type": column.kind,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        })
    });
    std::iter::once(name).chain(own).collect()
}

fn append_row(out: &mut Vec<u8>, item: &Bytes, source: &TableSource, form: &Form, version: &str) {
    // What the cache holds is valid; a row without cells would still be an answer.
    let object: Value = serde_json::from_slice(item).unwrap_or_default();
    let own = source.own_columns();
    let cells = if own.is_empty() {
        source.printer.cells(&object, source.now)
    } else {
        let name = sampan_api::meta::text(&object, &["metadata", "name"]);
        let cells = own.iter().map(|column| column.cell(&object, source.now));
        std::iter::once(Value::from(name)).chain(cells).collect()
    };
    out.extend_from_slice(b"{\"cells\":");
    out.extend_from_slice(Value::from(cells).to_string().as_bytes());
    if let Some(conditions) = source.printer.conditions(&object) {
        out.extend_from_slice(b",\"conditions\":");
        out.extend_from_slice(conditions.to_string().as_bytes());
    }
    match form.include_object {
        IncludeObject::None => out.extend_from_slice(b",\"object\":null"),
        IncludeObject::Metadata => {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(&respond::partial(item, version));
        }
        IncludeObject::Object => {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(item);
        }
    }
    out.push(b'}');
}

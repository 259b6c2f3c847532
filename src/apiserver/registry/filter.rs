//! Which objects a list, watch or delete of a collection means: place, labels, fields.

use sampan_api::selector::FieldTerm;
use sampan_api::{FieldSelector, ResourceDef, Selector, Status};

use super::call::Call;
use super::object::Object;

#[derive(Debug, Clone)]
pub struct Filter {
    /// Keys begin so.
    pub prefix: String,
    labels: Selector,
    fields: Vec<(Field, FieldTerm)>,
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Name,
    Namespace,
    /// Index into the row's selectable fields.
    Selectable(usize),
}

impl Filter {
    pub fn of(call: &Call) -> Result<Self, Status> {
        let labels = match call.options.label_selector.as_deref() {
            None | Some("") => Selector::everything(),
            Some(text) => {
                Selector::parse(text).map_err(|error| Status::bad_request(error.to_string()))?
            }
        };
        let mut selector = match call.options.field_selector.as_deref() {
            None | Some("") => FieldSelector::default(),
            Some(text) => FieldSelector::parse(text)
                .map_err(|error| Status::bad_request(error.to_string()))?,
        };
        if let Some(name) = call.target.name.as_deref() {
            if selector.is_everything() {
                selector.terms.push(FieldTerm {
                    field: "metadata.name".to_owned(),
                    value: name.to_owned(),
                    equal: true,
                });
            } else if selector.exact("metadata.name") != Some(name) {
                return Err(Status::bad_request(
                    "fieldSelector metadata.name doesn't match requested name",
                ));
            }
        }
        let prefix = prefix(call, &selector);
        let fields = selector
            .terms
            .into_iter()
            .map(|term| Ok((field(call, &term.field)?, term)))
            .collect::<Result<_, Status>>()?;
        Ok(Self {
            prefix,
            labels,
            fields,
        })
    }

    /// Everything under the prefix.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Object) -> bool {
        self.labels.matches(&object.selectable.labels)
            && self.fields.iter().all(|(field, term)| {
                let value = match field {
                    Field::Name => object.name(),
                    Field::Namespace => object.namespace(),
                    Field::Selectable(index) => object
                        .selectable
                        .fields
                        .get(*index)
                        .map_or("", |value| value),
                };
                (value == term.value) == term.equal
            })
    }
}

/// The narrowest prefix that holds everything that can match.
fn prefix(call: &Call, selector: &FieldSelector) -> String {
    let all = call.def.prefix();
    if !call.def.is_namespaced() {
        return all;
    }
    match call.target.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{all}{namespace}/"),
        _ => match selector.exact("metadata.namespace") {
            Some(namespace) if !namespace.is_empty() && !namespace.contains('/') => {
                format!("{all}{namespace}/")
            }
            _ => all,
        },
    }
}

fn field(call: &Call, name: &str) -> Result<Field, Status> {
    let name = sampan_api::convert::field_to_storage(&call.version, name);
    match name {
        "metadata.name" => return Ok(Field::Name),
        "metadata.namespace" if call.def.is_namespaced() => return Ok(Field::Namespace),
        _ => {}
    }
    if let Some(index) = call.def.selectable.iter().position(|one| one == name) {
        return Ok(Field::Selectable(index));
    }
    Err(Status::bad_request(unsupported(&call.def, name)))
}

/// Kinds word it differently.
fn unsupported(def: &ResourceDef, field: &str) -> String {
    match &*def.kind {
        "Job" => format!("field label {field:?} not supported for Job"),
        "ResourceSlice" => format!(
            "field label not supported for {}: {field}",
            def.storage_gvk()
        ),
        "CertificateSigningRequest"
        | "Event"
        | "Namespace"
        | "Node"
        | "Pod"
        | "ReplicationController"
        | "Secret"
        | "Service"
            if !def.is_custom() =>
        {
            format!("field label not supported: {field}")
        }
        _ if def.is_custom() => format!("field label not supported: {field}"),
        _ => {
            let known = ["\"metadata.name\"", "\"metadata.namespace\""];
            format!(
                "{field:?} is not a known field selector: only {}",
                known.join(", ")
            )
        }
    }
}

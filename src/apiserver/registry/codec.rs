//! Between what clients send and see and the trees in the storage version.

use bytes::Bytes;
use sampan_api::registry::ServedVersion;
use sampan_api::resource::api_version;
use sampan_api::schema::{self, DecodeError, SchemaRef};
use sampan_api::{ResourceDef, Status, convert, custom, defaults, meta};
use sampan_client::Body;
use serde_json::Value;

use super::call::Call;
use super::object::{encode, resplice, splice};

/// The body of a create or update in the storage version, defaulted.
pub fn decode(call: &mut Call) -> Result<Value, Status> {
    let Body::Object(mut object) = std::mem::replace(&mut call.body, Body::None) else {
        return Err(Status::bad_request(
            "the request needs an object in its body",
        ));
    };
    if object.is_null() {
        object = Value::Object(serde_json::Map::new());
    }
    if !object.is_object() {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: it is no JSON object",
            call.def.kind
        )));
    }
    check_type(call, &mut object)?;
    let mut errors = std::mem::take(&mut call.strict_errors);
    if call.def.is_custom() {
        // Which fields nobody knows is only known to the definition.
        let unknown = to_storage(call, &mut object)
            .map_err(|error| unfitting(call, &call.def.kind, &call.version.version, &error))?;
        errors.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
        strictness(call, errors)?;
        return Ok(object);
    }
    strictness(call, errors)?;
    to_storage(call, &mut object)
        .map_err(|error| unfitting(call, &call.def.kind, &call.version.version, &error))?;
    Ok(object)
}

fn unfitting(call: &Call, kind: &str, version: &str, error: &dyn std::fmt::Display) -> Status {
    Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {}: {error}",
        call.def.kind
    ))
}

/// Brings a tree of the request's version into stored form, defaulted. Unknown fields go;
/// returns them.
pub fn to_storage(call: &Call, object: &mut Value) -> Result<Vec<String>, DecodeError> {
    if call.def.is_custom() {
        return call.def.decode(&call.version, object);
    }
    let mut unknown = Vec::new();
    if let Some(schema) = schema_of(&call.def, &call.version) {
        unknown = schema.decode(object)?;
        defaults::apply(&schema, object);
    }
    convert::to_storage(&call.def, &call.version, object);
    call.def.strategy.default(object);
    Ok(unknown)
}

/// Members that are always written get their zero (a `status` that was dropped).
pub fn fill(def: &ResourceDef, object: &mut Value) {
    let Some(schema) = schema_of(def, def.storage_version()) else {
        return;
    };
    let fields = schema
        .as_struct()
        .map_or(&[][..], |structure| &structure.fields);
    for field in fields.iter().filter(|field| field.always) {
        if object.get(&*field.name).is_none() {
            let zero = if field.pointer {
                Value::Null
            } else {
                field.schema.zero()
            };
            meta::set(object, &[&field.name], zero);
        }
    }
}

pub fn schema_of(def: &ResourceDef, version: &ServedVersion) -> Option<SchemaRef> {
    match &def.custom {
        Some(custom) => custom.of(&version.version)?.schema.clone(),
        None => schema::of_kind(&version.group, &version.version, &def.kind).map(SchemaRef::Static),
    }
}

/// `kind` and `apiVersion` are filled in or must be those of the request.
fn check_type(call: &Call, object: &mut Value) -> Result<(), Status> {
    let expected = api_version(&call.version.group, &call.version.version);
    let kind = meta::text(object, &["kind"]);
    let version = meta::text(object, &["apiVersion"]);
    let named = if version.is_empty() {
        &*expected
    } else {
        version
    };
    if (!kind.is_empty() && kind != call.def.kind) || named != expected {
        let kind = if kind.is_empty() {
            &*call.def.kind
        } else {
            kind
        };
        let (group, short) = named.rsplit_once('/').unwrap_or(("", named));
        let known = call.server.core().registry.snapshot();
        return Err(match known.by_kind(group, short, kind) {
            Some(_) if named != expected => Status::bad_request(format!(
                "the API version in the data ({named}) does not match the expected API version ({expected})"
            )),
            Some(_) => unfitting(
                call,
                kind,
                short,
                &format!(
                    "converting ({short}.{kind}) to ({}.{}): unknown conversion",
                    call.version.version, call.def.kind
                ),
            ),
            None => unfitting(
                call,
                kind,
                short,
                &format!("no kind {kind:?} is registered for version {named:?}"),
            ),
        });
    }
    meta::set(object, &["kind"], &*call.def.kind);
    meta::set(object, &["apiVersion"], expected);
    Ok(())
}

/// What becomes of fields that nobody knows or that came twice.
pub fn strictness(call: &mut Call, errors: Vec<String>) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    match call.options.field_validation.as_deref() {
        Some("Ignore") => Ok(()),
        Some("Strict") => Err(Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
            call.def.kind,
            &*call.version.version,
            call.def.kind,
            errors.join(", ")
        ))),
        _ => {
            call.warnings.extend(errors);
            Ok(())
        }
    }
}

/// The defaults of the stored form; done again after mutating admission.
pub fn default(def: &ResourceDef, object: &mut Value) {
    if let Some(custom) = &def.custom {
        if let Some(version) = custom.of(&custom.storage) {
            custom::structural::default(&version.raw, object);
        }
        return;
    }
    if let Some(schema) = schema_of(def, def.storage_version()) {
        defaults::apply(&schema, object);
    }
    def.strategy.default(object);
}

/// The bytes a client of `version` sees.
pub fn serve(def: &ResourceDef, version: &ServedVersion, bytes: &Bytes) -> Result<Bytes, Status> {
    if version == def.storage_version() && (!def.is_custom() || has_version(bytes, version)) {
        return Ok(bytes.clone());
    }
    let mut object: Value = serde_json::from_slice(bytes).map_err(Status::internal)?;
    let revision = meta::text(&object, &["metadata", "resourceVersion"])
        .parse()
        .ok();
    convert::from_storage(def, version, &mut object);
    let stored = encode(&object).map_err(Status::internal)?;
    Ok(match revision {
        Some(revision) => splice(&stored, revision),
        None => Bytes::from(stored),
    })
}

/// Objects of a custom resource stay as they were stored when another version becomes the stored one.
fn has_version(bytes: &[u8], version: &ServedVersion) -> bool {
    // Only the object's own version counts: `encode` writes it next after the kind.
    let after_kind = bytes.strip_prefix(b"{\"kind\":\"").and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'"')?;
        rest.get(end..)
    });
    let mark = format!("\",\"apiVersion\":\"{}\"", version.api_version());
    after_kind.is_some_and(|rest| rest.starts_with(mark.as_bytes()))
}

/// The tree of a stored object, in the version that is stored now.
pub fn current(def: &ResourceDef, bytes: &[u8]) -> Result<Value, Status> {
    let mut object = parse(bytes)?;
    if def.is_custom() {
        convert::from_storage(def, def.storage_version(), &mut object);
    }
    Ok(object)
}

/// A tree as it would be served under a revision (0: none, as for what was never stored).
pub fn render(object: &Value, revision: u64) -> Result<Bytes, Status> {
    let stored = encode(object).map_err(Status::internal)?;
    Ok(if revision == 0 {
        Bytes::from(stored)
    } else {
        splice(&stored, revision)
    })
}

pub fn parse(bytes: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(bytes).map_err(Status::internal)
}

/// The same bytes under another revision.
pub fn under(bytes: &[u8], revision: u64) -> Bytes {
    resplice(bytes, revision)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_own_version_of_an_object_counts() {
        let of = |version: &'static str| ServedVersion {
            group: "g.example".into(),
            version: version.into(),
            served: true,
        };
        let object = json!({"kind": "K", "apiVersion": "g.example/v1", "metadata": {"name": "a",
            "managedFields": [{"apiVersion": "g.example/v2", "manager": "m"}]}});
        let served = render(&object, 7).unwrap();
        assert!(has_version(&served, &of("v1")));
        assert!(
            !has_version(&served, &of("v2")),
            "who wrote it is no matter"
        );
        assert!(!has_version(&served, &of("v")));
    }
}

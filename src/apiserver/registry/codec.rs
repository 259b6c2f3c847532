//! Between what clients send and see and the trees in the storage version.

use bytes::Bytes;
use sampan_api::registry::ServedVersion;
use sampan_api::resource::api_version;
use sampan_api::schema::{self, SchemaRef};
use sampan_api::{ResourceDef, Status, convert, defaults, meta};
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
    if !object.is_object() {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): it is no JSON object",
            call.def.kind
        )));
    }
    check_type(call, &mut object)?;
    let errors = std::mem::take(&mut call.strict_errors);
    strictness(call, errors)?;
    to_storage(call, &mut object)?;
    Ok(object)
}

/// Brings a tree of the request's version into stored form, defaulted. Unknown fields go;
/// returns them.
pub fn to_storage(call: &Call, object: &mut Value) -> Result<Vec<String>, Status> {
    let mut unknown = Vec::new();
    if let Some(schema) = schema_of(&call.def, &call.version) {
        unknown = schema.decode(object).map_err(|error| {
            Status::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {error}",
                call.def.kind, &*call.version.version, call.def.kind
            ))
        })?;
        defaults::apply(&schema, object);
    }
    convert::to_storage(&call.def, &call.version, object);
    call.def.strategy.default(object);
    Ok(unknown)
}

pub fn schema_of(def: &ResourceDef, version: &ServedVersion) -> Option<SchemaRef> {
    match &def.custom {
        Some(custom) => custom
            .versions
            .iter()
            .find(|(name, _)| *name == *version.version)
            .and_then(|(_, schema)| schema.clone()),
        None => schema::of_kind(&version.group, &version.version, &def.kind).map(SchemaRef::Static),
    }
}

/// `kind` and `apiVersion` are filled in or must be those of the request.
fn check_type(call: &Call, object: &mut Value) -> Result<(), Status> {
    let expected = api_version(&call.version.group, &call.version.version);
    let kind = meta::text(object, &["kind"]);
    let version = meta::text(object, &["apiVersion"]);
    if !kind.is_empty() && kind != call.def.kind {
        return Err(Status::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: no kind {kind:?} is registered for this resource",
            version.rsplit('/').next().unwrap_or_default(),
            call.def.kind
        )));
    }
    if !version.is_empty() && version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
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
    if let Some(schema) = schema_of(def, def.storage_version()) {
        defaults::apply(&schema, object);
    }
    def.strategy.default(object);
}

/// The bytes a client of `version` sees.
pub fn serve(def: &ResourceDef, version: &ServedVersion, bytes: &Bytes) -> Result<Bytes, Status> {
    if version == def.storage_version() {
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

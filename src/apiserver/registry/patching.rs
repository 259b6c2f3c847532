//! What the kinds of patches make of an object.

use sampan_api::patch::{self, PatchError};
use sampan_api::resource::PatchType;
use sampan_api::{Status, managed, meta};
use serde_json::Value;

use super::call::Call;
use super::codec;
use super::write::{Source, timestamp};

/// Changes `object`, a tree in the request's version.
pub fn apply(
    call: &Call,
    kind: PatchType,
    object: &mut Value,
    patch: &Value,
) -> Result<(), Status> {
    let result = match kind {
        PatchType::Json => patch::apply_json(object, patch),
        PatchType::Merge | PatchType::Apply => patch::apply_merge(object, patch.clone()),
        PatchType::Strategic => match codec::schema_of(&call.def, &call.version) {
            Some(schema) if !call.def.is_custom() => {
                patch::apply_strategic(object, patch.clone(), &schema)
            }
            _ => Err(PatchError::Unsupported),
        },
    };
    result.map_err(|error| error.to_status())
}

/// A patch cannot make another kind of object.
pub fn check_kind(call: &Call, object: &Value) -> Result<(), Status> {
    let (own, wanted) = (call.version.api_version(), &*call.def.kind);
    let (version, kind) = (
        meta::text(object, &["apiVersion"]),
        meta::text(object, &["kind"]),
    );
    if version == own && kind == wanted {
        return Ok(());
    }
    let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
    let known = call.server.core().registry.snapshot();
    let why = if known.by_kind(group, short, kind).is_some() {
        let package = match call.def.group().split('.').next() {
            None | Some("") => "core",
            Some(package) => package,
        };
        format!("converting ({short}.{kind}) to ({package}.{wanted}): unknown conversion")
    } else {
        format!("no kind {kind:?} is registered for version {version:?}")
    };
    Err(patch::bad_result(object, &why))
}

/// Fields of a patch that nobody knows.
pub fn strictness(call: &mut Call, shown: &Value, unknown: Vec<String>) -> Result<(), Status> {
    let mut faults = std::mem::take(&mut call.strict_errors);
    faults.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    if faults.is_empty() {
        return Ok(());
    }
    match call.options.field_validation.as_deref() {
        Some("Ignore") => Ok(()),
        Some("Strict") => Err(patch::bad_result(
            shown,
            &format!("strict decoding error: {}", faults.join(", ")),
        )),
        _ => {
            call.warnings.extend(faults);
            Ok(())
        }
    }
}

/// Server-side apply.
pub struct Apply {
    patch: Value,
}

impl Apply {
    pub fn new(patch: Value) -> Self {
        Self { patch }
    }
}

/// A configuration must say what it is, and be what the request is about.
fn check_type(call: &Call, config: &Value) -> Result<(), Status> {
    let (version, kind) = (
        meta::text(config, &["apiVersion"]),
        meta::text(config, &["kind"]),
    );
    if version == call.version.api_version() && kind == call.def.kind {
        return Ok(());
    }
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    Err(Status::bad_request(format!(
        "invalid object type: {group}/{version}, Kind={kind}"
    )))
}

impl Source for Apply {
    fn make(&mut self, call: &mut Call, old: Option<&Value>) -> Result<Value, Status> {
        check_type(call, &self.patch)?;
        let mut live = old.cloned().unwrap_or_default();
        if old.is_some() {
            call.def.encode(&call.version, &mut live);
        }
        let api_version = call.version.api_version();
        let time = timestamp(call.now);
        let write = call.field_write(&api_version, &time);
        let force = call.options.force.unwrap_or_default();
        let mut object =
            managed::apply(&live, &self.patch, &write, force).map_err(|error| error.to_status())?;
        codec::to_storage(call, &mut object)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        Ok(object)
    }

    fn creates(&self) -> bool {
        true
    }

    fn tracks_fields(&self) -> bool {
        true
    }
}

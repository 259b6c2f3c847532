//! POST: a new object.

use sampan_api::field::{ErrorList, Path};
use sampan_api::{Status, meta};

use super::super::call::Call;
use super::super::{codec, metadata};
use crate::request::Reply;

pub async fn run(mut call: Call) -> Result<Reply, Status> {
    validate_options(&call, "CreateOptions")?;
    let mut object = codec::decode(&mut call)?;
    let version = meta::text(&object, &["metadata", "resourceVersion"]);
    if !matches!(version, "" | "0") {
        return Err(Status {
            code: 500,
            ..Status::new(
                sampan_api::Reason::Unknown,
                "resourceVersion should not be set on objects to be created",
            )
        });
    }
    meta::remove(&mut object, &["metadata", "resourceVersion"]);
    metadata::match_namespace(&mut object, call.object_namespace())?;
    let written = call.create(object).await?;
    Ok(Reply::Object {
        code: 201,
        object: codec::serve(&call.def, &call.version, &written.bytes)?,
        warnings: call.warnings.take(),
    })
}

/// Options that all writes share.
pub fn validate_options(call: &Call, kind: &str) -> Result<(), Status> {
    let options = &call.options;
    let mut errors = ErrorList::new();
    let manager = options.field_manager.as_deref().unwrap_or_default();
    metadata::manager_name(manager, &Path::new("fieldManager"), &mut errors);
    dry_run(&options.dry_run, &mut errors);
    let validation = options.field_validation.as_deref().unwrap_or_default();
    if !matches!(validation, "" | "Ignore" | "Warn" | "Strict") {
        errors.not_supported(
            &Path::new("fieldValidation"),
            validation,
            &["", "Ignore", "Strict", "Warn"],
        );
    }
    errors.into_result("meta.k8s.io", kind, "")
}

pub fn dry_run(values: &[String], errors: &mut ErrorList) {
    if values.iter().any(|value| value != "All") {
        errors.not_supported(&Path::new("dryRun"), values.to_vec(), &["All"]);
    }
}
